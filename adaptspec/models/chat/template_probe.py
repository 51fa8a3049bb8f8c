"""The probe of a chat template: short conversations of marked words are rendered, and the words looked for.

A template is a program of the model's makers. It may refuse a system message, want content as a list of parts, accept
call ids of nine letters only, or leave out what it does not know. Nothing here knows a family by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jinja2 import TemplateSyntaxError
from transformers import PreTrainedTokenizerFast

from adaptspec.errors import RequestError
from adaptspec.models.chat.template_traits import CallForm, Message, Traits, fitted
from adaptspec.models.tokenization import chat_text

Render = Callable[..., str]

# Words without any character that a template might change.
_USER, _SECOND, _SYSTEM, _LATE = "zquser", "zqsecond", "zqsystem", "zqlate"
_ANSWER, _MORE, _RESULT, _RESULT_2 = "zqanswer", "zqmore", "zqresult", "zqanother"
_OFFERED, _CALLED, _ARGUMENT, _VALUE, _VALUE_2 = "zqoffered", "zqcalled", "zqargument", "zqvalue", "zqother"
_SHORT_IDS, _LONG_IDS = ("zqcall001", "zqcall002"), (f"call_{'0' * 23}1", f"call_{'0' * 23}2")
_PARAMETERS = {
    "type": "object",
    "properties": {_ARGUMENT: {"type": "string", "description": "a word"}},
    "required": [_ARGUMENT],
}
_TOOLS = [
    {"type": "function", "function": {"name": _OFFERED, "description": "a probe", "parameters": _PARAMETERS}},
]
# In the order in which they are tried.
_FORMS = tuple(CallForm(as_text, content) for content in ("", None) for as_text in (False, True))
# What a template writes of an object's key where it wants JSON text: JSON within a string, or Python's own spelling.
_MISREAD = (f'\\"{_ARGUMENT}', f"'{_ARGUMENT}'")


def probe(tokenizer: PreTrainedTokenizerFast, values: Mapping[str, Any]) -> Traits:
    """What the chat template of a tokenizer can write; `values` are its variables."""

    def render(messages: Sequence[Message], *, answer: bool = True, tools: Any = None) -> str:
        return chat_text(tokenizer, messages, answer=answer, tools=tools, values=values)

    found = _with_content(render, Traits(), tokenizer)
    if found.fault is not None or not found.system:  # what it loses may come out of parts
        in_parts = _with_content(render, Traits(parts=True), tokenizer)
        if in_parts.fault is None and (found.fault is not None or in_parts.system):
            return in_parts
    return found


def _with_content(render: Render, form: Traits, tokenizer: PreTrainedTokenizerFast) -> Traits:
    """What a template can write of content in this form."""
    try:
        text = render(fitted([_says("user", _USER)], form))
    except RequestError as error:
        return replace(form, fault=_reason(error.__cause__ or error))
    if _USER not in text:
        return replace(form, fault="it does not write the text of a user's message")
    return _Probe(render, form).traits(tokenizer)


def _reason(error: BaseException) -> str:
    """Why a template failed, with the line of a syntax error."""
    if isinstance(error, TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    return f"it raises an error: {error}"


class _Probe:
    """A template that writes a user's message."""

    def __init__(self, render: Render, traits: Traits) -> None:
        self._render = render
        self._traits = traits

    def traits(self, tokenizer: PreTrainedTokenizerFast) -> Traits:
        first, user, second = _says("system", _SYSTEM), _says("user", _USER), _says("user", _SECOND)
        answer, late = _says("assistant", _ANSWER), _says("system", _LATE)
        system = self._writes([first, user])
        late_system = self._writes([first, late, user]) and self._writes([first, user, answer, late, second])
        in_a_row = [user, second], [user, answer, _says("assistant", _MORE), second], [answer, user]
        repeated = all(self._writes(messages) for messages in in_a_row)
        tools = self._writes([user], _OFFERED, tools=_TOOLS)
        return replace(
            self._traits,
            system=system,
            late_system=system and late_system,
            system_alone=system and self._writes([first]),
            repeated_roles=repeated,
            earlier_turns=self._writes([user, answer, second]),
            tools=tools,
            calls=self._call_form(_TOOLS if tools else None),
            end_of_turn=self._end_of_turn(tokenizer),
        )

    def _call_form(self, tools: Any) -> CallForm | None:
        """How calls and results come out best; None: they do not."""
        written = [form for form in _FORMS if self._text(_round(_SHORT_IDS[:1]), tools, form) is not None]
        clean = [form for form in written if not self._misread(form, tools)]
        if not written:
            return None
        form = (clean or written)[0]
        both = _round(_SHORT_IDS)
        return replace(
            form,
            several=self._text(both, tools, form) is not None,
            long_ids=self._text(_round(_LONG_IDS[:1]), tools, form) is not None,
        )

    def _misread(self, form: CallForm, tools: Any) -> bool:
        text = self._text(_round(_SHORT_IDS[:1]), tools, form) or ""
        return any(word in text for word in _MISREAD)

    def _text(self, messages: Sequence[Message], tools: Any, form: CallForm) -> str | None:
        """The conversation with calls in this form, if all of it comes out; also where it ends at the result."""
        traits = replace(self._traits, calls=form)
        ends = [_says("assistant", _ANSWER), _says("user", _SECOND)]
        if self._come_out(messages, traits, tools) is None:
            return None
        return self._come_out([*messages, *ends], traits, tools)

    def _writes(self, messages: Sequence[Message], *words: str, tools: Any = None) -> bool:
        return self._come_out(messages, self._traits, tools, words) is not None

    def _come_out(
        self, messages: Sequence[Message], traits: Traits, tools: Any, words: Sequence[str] = ()
    ) -> str | None:
        """The text of a conversation; None if it is refused, or if any of its words is lost."""
        try:
            text: str = self._render(fitted(messages, traits), tools=tools)
        except RequestError:
            return None
        return text if all(word in text for word in (*words, *_words(messages))) else None

    def _end_of_turn(self, tokenizer: PreTrainedTokenizerFast) -> str | None:
        """The token that comes directly behind an assistant's last message."""
        messages = [_says("user", _USER), _says("assistant", _ANSWER)]
        try:
            text: str = self._render(fitted(messages, self._traits), answer=False)
        except RequestError:
            return None
        _, found, behind = text.rpartition(_ANSWER)
        names = [str(token) for token in tokenizer.added_tokens_decoder.values()]
        starts = [name for name in names if name.strip() and behind.lstrip().startswith(name)]
        return max(starts, key=len) if found and starts else None


def _says(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _round(ids: Sequence[str]) -> list[Message]:
    """A user's message, a call for each id, and their results."""
    values, texts = (_VALUE, _VALUE_2), (_RESULT, _RESULT_2)
    calls = [
        {"type": "function", "id": identity, "function": {"name": _CALLED, "arguments": {_ARGUMENT: value}}}
        for identity, value in zip(ids, values, strict=False)
    ]
    results = [
        {"role": "tool", "tool_call_id": identity, "content": text} for identity, text in zip(ids, texts, strict=False)
    ]
    return [_says("user", _USER), {"role": "assistant", "content": "", "tool_calls": calls}, *results]


def _words(messages: Sequence[Message]) -> list[str]:
    """All that should come out of a conversation."""
    words = [one["content"] for one in messages]
    for call in (call for one in messages for call in one.get("tool_calls", ())):
        words += [call["function"]["name"], *call["function"]["arguments"].values()]
    return words
