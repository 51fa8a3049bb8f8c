"""Text to token ids and back, with errors a client can act on. Knows no HTTP and no engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import cached_property

from jinja2 import TemplateError

from adaptspec.errors import RequestError
from adaptspec.models.token_bytes import TokenBytes
from adaptspec.server.messages import Message
from adaptspec.server.protocols import Tokenizer
from adaptspec.server.timed import within
from adaptspec.server.tools import Tool, written_out

# A template is a program of the model's makers: what it does with odd messages is not only what jinja raises itself.
_OF_TEMPLATES = (TemplateError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
LONG_TEXT = 20_000  # characters; encoding more than this would be felt by the streams of other clients
LONG_TALK = 64  # messages; rendering more than this would be, too


class Codec:
    """A tokenizer with its vocabulary's bounds.

    Long texts are encoded in a thread, one at a time: a tokenizer is not promised to be safe for two at once.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, template_seconds: float = 2.0) -> None:
        """`template_seconds`: how long a chat template may take for one conversation."""
        self._tokenizer = tokenizer
        self._template_seconds = template_seconds
        self._vocab_size = vocab_size
        self._long = asyncio.Lock()

    @cached_property
    def bytes_of(self) -> TokenBytes:
        """Gives the bytes of a token."""
        return TokenBytes(self._tokenizer)

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a text."""
        return (await self.encode_all([text], add_special_tokens=add_special_tokens))[0]

    async def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[tuple[int, ...]]:
        """Token ids of several texts. What counts as long is all of them together: they are felt together."""
        if sum(map(len, texts)) <= LONG_TEXT:
            return self._encode_all(texts, add_special_tokens)
        async with self._long:
            return await asyncio.to_thread(self._encode_all, texts, add_special_tokens)

    async def encode_chat(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, answer: bool = True
    ) -> tuple[int, ...]:
        """Token ids of a conversation; `answer` adds the opening of the assistant's turn.

        A template that knows nothing of tools gets them as text. Raises RequestError if the model has no chat template,
        or its template refuses the conversation or takes too long for it.
        """
        if len(messages) <= LONG_TALK and sum(message.characters for message in messages) <= LONG_TEXT:
            text = self._render(messages, tools, answer)
        else:
            text = await self._render_long(messages, tools, answer)
        # The template has written the special tokens itself.
        return await self.encode(text, add_special_tokens=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def check(self, tokens: Iterable[int], param: str) -> None:
        """Raise RequestError if an id is outside of the vocabulary."""
        if not all(0 <= token < self._vocab_size for token in tokens):
            raise RequestError(
                f"{param} has a token id that does not exist; ids go from 0 to {self._vocab_size - 1}", param
            )

    async def _render_long(self, messages: Sequence[Message], tools: Sequence[Tool], answer: bool) -> str:
        """Templates come with the model, and may do anything with what clients send: compare all messages, say."""
        async with self._long:
            try:
                return await within(self._template_seconds, lambda: self._render(messages, tools, answer))
            except asyncio.TimeoutError as error:
                raise RequestError(
                    f"the model's chat template takes longer than {self._template_seconds:g} seconds for these "
                    "messages; send fewer or shorter ones",
                    "messages",
                ) from error

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], answer: bool) -> str:
        plain, options = [message.plain() for message in messages], {}
        template = str(self._tokenizer.chat_template)
        if tools and "tools" in template:
            options["tools"] = [tool.plain() for tool in tools]
        elif tools or ("tool_calls" not in template and any(m.tool_calls or m.role == "tool" for m in messages)):
            plain = written_out(plain, tools)
        try:
            return str(
                self._tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=answer, **options)
            )
        except _OF_TEMPLATES as error:
            raise RequestError(
                f"the model's chat template does not take these messages ({error}); change their roles or order, "
                "or send a plain prompt to /v1/completions",
                "messages",
            ) from error

    def _encode_all(self, texts: Sequence[str], add_special_tokens: bool) -> list[tuple[int, ...]]:
        return [tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens)) for text in texts]
