"""Text to token ids and back off the event loop, with errors that a client can act on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import NoReturn

from transformers import PreTrainedTokenizerFast

from adaptspec.errors import PromptTooLongError, RequestError, context_overflow
from adaptspec.models.chat.chat_template import ChatTemplate, RenderOptions
from adaptspec.models.tokenization import TokenBytes
from adaptspec.server import limits
from adaptspec.server.api.fields import Json, Warnings
from adaptspec.server.api.messages import Message
from adaptspec.server.api.tool_forms import IN_WORDS, ToolForm, form_of
from adaptspec.server.api.tools import Tool, written_out
from adaptspec.server.threads import INLINE, SizeClassExecutor

_LOST = "earlier messages are not in the prompt: the model's chat template writes only the latest ones"
# Work in bytes of JSON that take as long to read: of a character to encode or a token id to decode, and of a message,
# around which a template writes words.
_PER_TOKEN = 16
_PER_MESSAGE = 64


class Prompts:
    """A tokenizer and its chat template. Long texts are handled in threads and wait only for those of their length."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        context: int,
        template: ChatTemplate | None = None,
        threads: SizeClassExecutor | None = None,
    ) -> None:
        """`context`: how many tokens the model holds. `template` None: the tokenizer's own."""
        self.template = template or ChatTemplate(tokenizer)
        self._tokenizer = tokenizer
        self._context = context
        self._max_bytes = limits.text_bytes(context)
        self._threads = threads or SizeClassExecutor()

    @cached_property
    def bytes_of(self) -> TokenBytes:
        return TokenBytes(self._tokenizer)

    @cached_property
    def tool_form(self) -> ToolForm:
        """The form of tool calls in the chat template, probed at the first use."""
        return form_of(self.template)

    async def encode(self, text: str, *, add_special_tokens: bool = True, param: str = "prompt") -> tuple[int, ...]:
        """Token ids of a text, which came in the field `param`. Raises PromptTooLongError."""
        return (await self.encode_all([text], add_special_tokens=add_special_tokens, param=param))[0]

    async def encode_all(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool = True,
        param: str = "prompt",
        check: Callable[[tuple[int, ...]], object] = len,
    ) -> list[tuple[int, ...]]:
        """Token ids of several texts. They are encoded in threads if all of them together are long.

        `check` may raise for the ids of one: those after it are not encoded then. Raises PromptTooLongError, before any
        is encoded, if one is longer than any that fits.
        """
        for text in texts:
            self._check_length(text, param)
        is_short = _PER_TOKEN * sum(map(len, texts)) <= INLINE
        encoded = []
        for text in texts:
            size = _PER_TOKEN * len(text)
            work = partial(self._tokenizer.encode, text, add_special_tokens=add_special_tokens)
            encoded.append(tuple(await self._threads.run(size if is_short else max(size, INLINE + 1), work)))
            check(encoded[-1])
        return encoded

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        options: RenderOptions | None = None,
        form: ToolForm = IN_WORDS,
        *,
        warnings: Warnings | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a conversation. `form` is how calls are to be written.

        `warnings` get one where the template leaves out earlier messages.

        Raises RequestError if the model has no chat template, or it refuses the conversation or takes too long;
        PromptTooLongError.
        """
        text, is_cut = await self._rendered(messages, tools, options or RenderOptions(), form)
        if is_cut and warnings is not None:
            warnings.add("template", _LOST)
        self._check_length(text, "messages")
        return tuple(await self._threads.run(_PER_TOKEN * len(text), lambda: self.template.encode(text)))

    async def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        work = partial(self._tokenizer.decode, list(tokens), skip_special_tokens=False)
        return str(await self._threads.run(_PER_TOKEN * len(tokens), work))

    def token_names(self, tokens: Sequence[int]) -> list[str]:
        """Each token as the vocabulary has it, such as `Ġthe`; an id without a token has no text."""
        backend = self._tokenizer.backend_tokenizer
        return [backend.id_to_token(token) or "" for token in tokens]

    def tokenizer_info(self) -> Json:
        """The tokenizer's class, special tokens and chat template, by the names of `tokenizer_config.json`."""
        tokenizer = self._tokenizer
        added = {
            str(number): {"content": str(token), "special": token.special}
            for number, token in tokenizer.added_tokens_decoder.items()
        }
        special = ("bos_token", "eos_token", "unk_token", "pad_token")
        return {
            "tokenizer_class": type(tokenizer).__name__,
            "model_max_length": self._context,
            **{name: getattr(tokenizer, name) for name in special},
            "added_tokens_decoder": added,
            "chat_template": tokenizer.chat_template,
        }

    async def _rendered(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: RenderOptions, form: ToolForm
    ) -> tuple[str, bool]:
        """The text of a conversation, and whether earlier messages are not in it.

        Rendering runs in a thread with a time limit, since a template may take quadratic time.
        """
        size = sum(message.characters + _PER_MESSAGE for message in messages)
        if size > self._max_bytes:
            self._refuse_length("messages")
        seconds = limits.TEMPLATE_SECONDS
        try:
            return await self._threads.run_timed(size, seconds, lambda: self._render(messages, tools, options, form))
        except asyncio.TimeoutError as error:
            fault = f"the model's chat template takes longer than {seconds:g} seconds"
            raise RequestError(f"{fault} for these messages; send fewer or shorter ones", "messages") from error

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: RenderOptions, form: ToolForm
    ) -> tuple[str, bool]:
        template = self.template
        plain = template.marked([message.plain() for message in messages])
        tools = [_marked(tool, template) for tool in tools]
        options = replace(options, values=template.marked(dict(options.values)))
        native: list[Json] | None = None
        if tools and not form.in_words:
            native = [tool.plain() for tool in tools]
        elif tools or (not template.renders_calls and any(m.tool_calls or m.role == "tool" for m in messages)):
            plain = written_out(plain, tools)
        text = template.render(plain, native, options)
        # Few templates leave messages out, and only for these is it worth a search.
        is_cut = not template.traits.earlier_turns and any(
            message["content"].strip() not in text for message in plain[:-1]
        )
        return text, is_cut

    def _check_length(self, text: str, param: str) -> None:
        if len(text) > self._max_bytes or (not text.isascii() and len(text.encode()) > self._max_bytes):
            self._refuse_length(param)

    def _refuse_length(self, param: str) -> NoReturn:
        raise PromptTooLongError(
            context_overflow(
                self._context,
                f"{param} has a text of more than {self._max_bytes} bytes, which cannot fit, so it was not tokenized: "
                "send a shorter one",
            ),
            param,
        )


def _marked(tool: Tool, template: ChatTemplate) -> Tool:
    """The same tool, with texts that are no control tokens (see `ChatTemplate.marked`)."""
    texts = template.marked({"description": tool.function.description, "parameters": tool.function.parameters})
    return tool.model_copy(update={"function": tool.function.model_copy(update=texts)})
