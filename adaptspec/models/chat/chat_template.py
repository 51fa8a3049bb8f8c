"""The chat template of a model: what it was found to write, and the prompts that it makes of conversations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedTokenizerFast

from adaptspec.errors import ConfigError, ModelError, RequestError
from adaptspec.files import read_text
from adaptspec.models.chat.control_tokens import ControlTokens
from adaptspec.models.chat.template_probe import probe
from adaptspec.models.chat.template_traits import Message, Traits, fitted
from adaptspec.models.tokenization import chat_text

NONE = "none"  # in place of a file: the model is served without a template
FLAG = "--chat-template"
MAX_FILE_BYTES = 2**20
# Ends a message that is to be continued: there its prompt is cut. Of private use, so that no text has it.
_OPEN_END = "\uf8f0"
_NO_VALUES: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class RenderOptions:
    """How a conversation is to be written.

    `answer` adds the opening of the assistant's turn. `continued` leaves the last message open instead, which
    has text: the assistant's, mostly, or the user's. `values` are variables of the template, from the field
    `values_param` of the request.
    """

    answer: bool = True
    continued: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    values_param: str = "chat_template_kwargs"


class ChatTemplate:
    """The chat template of a tokenizer, and what it was found to write."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, values: Mapping[str, Any] = _NO_VALUES, *, sanitize: bool = False
    ) -> None:
        """`values`: variables of the template where a request does not set them. `sanitize`: what clients write is
        never read as a control token.
        """
        self.tokenizer = tokenizer
        self._values = values
        self._sanitize = sanitize

    @property
    def source(self) -> str | None:
        """The text of the template; None: the model has none."""
        return self._source("default")

    @property
    def tool_source(self) -> str | None:
        """The text of the template that writes conversations with tools; most models have one for all."""
        return self._source("tool_use", "default")

    def writes(self, text: str) -> bool:
        """Whether the template for tools has this text in its own source, such as `<tool_call>` or `<think>`."""
        return text in (self.tool_source or "")

    @cached_property
    def traits(self) -> Traits:
        """What a probe finds, at the first time that it is asked for."""
        return Traits("the model has none") if self.source is None else probe(self.tokenizer, self._values)

    @property
    def renders_calls(self) -> bool:
        """Whether calls of earlier turns and their results come out in the prompt."""
        return self.traits.calls is not None

    def check(self, file: str | None = None) -> None:
        """Raise ModelError if the template cannot write even a user's message. `file`: where it was read from."""
        if self.source is not None and self.traits.fault is not None:
            name = "the model's chat template" if file is None else f"{FLAG} {file}"
            raise ModelError(
                f"{name} cannot be used: {self.traits.fault}; give one that works with {FLAG} FILE, "
                f"variables that it needs with {FLAG}-kwargs JSON, or {FLAG} {NONE} to do without"
            )

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: RenderOptions = RenderOptions(),
    ) -> str:
        """A conversation as the template writes it, special tokens included.

        Raises RequestError: the model has no template, or it does not take these messages or variables.
        """
        if self.source is not None:
            messages = fitted(_left_open(messages) if options.continued else messages, self.traits)
        tools = None if tools is None else [_whole(tool) for tool in tools]
        text = self._text(messages, tools, options)
        if not options.continued:
            return text
        before, found, _ = text.rpartition(_OPEN_END)
        if not found:
            raise RequestError(
                "the model's chat template does not write the last message, so it cannot be continued; leave "
                "continue_final_message out",
                "continue_final_message",
            )
        return before

    def _text(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, options: RenderOptions
    ) -> str:
        """What the template writes. If it fails, and does not without the request's variables, these are at fault."""
        answer = options.answer and not options.continued
        try:
            values = {**self._values, **options.values}
            return chat_text(self.tokenizer, messages, answer=answer, tools=tools, values=values)
        except RequestError as error:
            if not options.values:
                raise
            chat_text(self.tokenizer, messages, answer=answer, tools=tools, values=self._values)
            param = options.values_param
            fault = f"the model's chat template does not take the variables of {param} ({error.__cause__})"
            raise RequestError(f"{fault}; change them, or leave {param} out", param) from error

    def marked(self, value: Any) -> Any:
        """Messages, tools or variables of a client, of which `encode` reads no part as a control token."""
        return self._controls.marked(value) if self._sanitize else value

    def encode(self, text: str) -> list[int]:
        """Token ids of a text that `render` has written."""
        if self._sanitize:
            return self._controls.encode(text)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def encode_turn(self, text: str) -> list[int]:
        """Token ids of a user's message, ready for the answer. A base model, which has no template, goes on from it.

        Raises RequestError: the template does not take the message.
        """
        if self.source is not None:
            return self.encode(self.render([{"role": "user", "content": text}]))
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=True)
        return ids

    def _source(self, *names: str) -> str | None:
        source = self.tokenizer.chat_template
        if isinstance(source, Mapping):
            source = next((source[name] for name in names if name in source), None)
        return None if source is None else str(source)

    @cached_property
    def _controls(self) -> ControlTokens:
        return ControlTokens(self.tokenizer, f"{self.source} {self.tool_source}")


def use_template(tokenizer: PreTrainedTokenizerFast, file: str | None) -> None:
    """Have a tokenizer use the template in `file`, or none for "none"; None leaves it its own.

    Raises ConfigError: the file cannot be read.
    """
    if file is None:
        return
    try:
        text = None if file == NONE else read_text(Path(os.path.expanduser(file)), MAX_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{FLAG} {file}: cannot be read ({reason}); give a file that holds a template") from error
    if text is not None and not text.strip():
        raise ConfigError(f"{FLAG} {file}: it is empty; give a file that holds a template")
    tokenizer.chat_template = text


def _whole(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool with all that templates read of one: clients leave out what is empty."""
    empty = {"description": "", "parameters": {"type": "object", "properties": {}}}
    return {**tool, "function": {**empty, **tool["function"]}}


def _left_open(messages: Sequence[Message]) -> list[Message]:
    last = messages[-1]
    if last["role"] not in ("assistant", "user") or last.get("tool_calls"):
        raise RequestError(
            "continue_final_message needs a last message of the role assistant (or user) that has text and no calls; "
            "add it, or leave continue_final_message out",
            "continue_final_message",
        )
    return [*messages[:-1], {**last, "content": f"{last['content']}{_OPEN_END}"}]
