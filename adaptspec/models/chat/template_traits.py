"""What a chat template can write, and conversations changed to fit it by one rule."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

Message = Mapping[str, Any]

ID_LETTERS = 9  # of the id of a tool call: all that Mistral's templates take
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BETWEEN = "\n\n"  # texts that become one


@dataclass(frozen=True)
class CallForm:
    """How tool calls of earlier turns must be given to a template.

    `arguments_as_text`: as the JSON text of an object, otherwise as the object. `content`: that of a message that only
    calls; None: the message has none. `several`: a message may have several calls. `long_ids`: ids of calls may have
    any length, otherwise nine letters and digits.
    """

    arguments_as_text: bool = False
    content: str | None = ""
    several: bool = True
    long_ids: bool = True


@dataclass(frozen=True)
class Traits:
    """What a probe found of a template.

    `fault`: why it cannot write even a user's message. `parts`: content must be a list of parts. `system`: it writes a
    first system message; `late_system`: also a second one, and one after other messages; `system_alone`: also one
    without any other message. `repeated_roles`: it writes two messages in a row of one role, and the assistant's before
    any user's. `earlier_turns`: it writes all turns of a conversation, not the latest alone. `tools`: it writes the
    tools that may be called. `calls`: how it writes calls and their results; None: it does not. `end_of_turn`: the
    token behind an assistant's message.
    """

    fault: str | None = None
    parts: bool = False
    system: bool = True
    late_system: bool = True
    system_alone: bool = True
    repeated_roles: bool = True
    earlier_turns: bool = True
    tools: bool = False
    calls: CallForm | None = None
    end_of_turn: str | None = None

    @property
    def native_tools(self) -> bool:
        """Whether the tools that may be called, calls and their results all come out in the prompt."""
        return self.tools and self.calls is not None


def fitted(messages: Sequence[Message], traits: Traits) -> list[dict[str, Any]]:
    """The same conversation as a template with these traits can write it.

    System text that it does not write where it stands goes before the next user message. Messages of one role in a row
    are joined where roles must alternate, and an empty user message comes before an assistant's that is the first.
    Content becomes parts where only parts come out.
    """
    fit = [dict(message) for message in messages]
    if not traits.repeated_roles:
        fit = _user_first(fit)
    fit = _with_systems(fit, traits)
    if not traits.repeated_roles:
        fit = _joined(fit)
    if traits.calls is not None:
        fit = _calls_as(_named_results(fit), traits.calls)
    return [_in_parts(message) for message in fit] if traits.parts else fit


def call_id(seed: bytes) -> str:
    """An id of a tool call, of nine letters and digits; the same for the same bytes."""
    number, letters = int.from_bytes(blake2b(seed, digest_size=8).digest(), "big"), list[str]()
    for _ in range(ID_LETTERS):
        number, letter = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[letter])
    return "".join(letters)


def new_call_id() -> str:
    """An id of a new tool call, which every template takes on the next turn."""
    return call_id(secrets.token_bytes(8))


def _with_systems(messages: Sequence[dict[str, Any]], traits: Traits) -> list[dict[str, Any]]:
    if not traits.system_alone and all(message["role"] == "system" for message in messages):
        return [{"role": "user", "content": _together(*(message["content"] for message in messages))}]
    if traits.system and traits.late_system:
        return list(messages)
    fit: list[dict[str, Any]] = []
    held: list[str] = []  # system text that waits for a user message
    leading = traits.system  # as long as all messages were system messages
    for message in messages:
        if message["role"] == "system":
            if not leading:
                held.append(message["content"])
            elif fit:
                fit[0]["content"] = _together(fit[0]["content"], message["content"])
            else:
                fit.append(message)
            continue
        leading = False
        if held and message["role"] == "user":
            message["content"], held = _together(*held, message["content"]), []
        fit.append(message)
    if held:
        fit.append({"role": "user", "content": _together(*held)})
    return fit


def _together(*texts: str) -> str:
    return _BETWEEN.join(filter(None, texts))


def _user_first(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    place = next((i for i, message in enumerate(messages) if message["role"] != "system"), None)
    if place is None or messages[place]["role"] != "assistant":
        return messages
    return [*messages[:place], {"role": "user", "content": ""}, *messages[place:]]


def _joined(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """User messages in a row as one, and so the assistant's but for calls."""
    fit: list[dict[str, Any]] = []
    for message in messages:
        before = fit[-1] if fit else {}
        plain = not message.get("tool_calls") and not before.get("tool_calls")
        if plain and message["role"] == before.get("role") and message["role"] in ("user", "assistant"):
            before["content"] = _together(before["content"], message["content"])
        else:
            fit.append(message)
    return fit


def _named_results(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of calls with the function's name, which some templates write."""
    names = {call["id"]: call["function"]["name"] for one in messages for call in one.get("tool_calls") or ()}
    return [
        {"name": names[one["tool_call_id"]], **one} if one.get("tool_call_id") in names else one for one in messages
    ]


def _calls_as(messages: Sequence[dict[str, Any]], form: CallForm) -> list[dict[str, Any]]:
    fit = [_call_message(message, form) for message in messages]
    return fit if form.several else _one_call_each(fit)


def _call_message(message: dict[str, Any], form: CallForm) -> dict[str, Any]:
    if message.get("tool_call_id") and not form.long_ids:
        return message | {"tool_call_id": _short(message["tool_call_id"])}
    if not message.get("tool_calls"):
        return message
    changed = message | {"tool_calls": [_call(call, form) for call in message["tool_calls"]]}
    if not message.get("content"):
        changed["content"] = form.content
    return {key: value for key, value in changed.items() if value is not None}


def _call(call: Mapping[str, Any], form: CallForm) -> dict[str, Any]:
    function = dict(call["function"])
    if form.arguments_as_text and not isinstance(function["arguments"], str):
        function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "id": call["id"] if form.long_ids else _short(call["id"]), "function": function}


def _short(identity: str) -> str:
    fits = len(identity) == ID_LETTERS and identity.isascii() and identity.isalnum()
    return identity if fits else call_id(identity.encode())


def _one_call_each(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls of one message one after the other, each before its result."""
    fit: list[dict[str, Any]] = []
    waiting: dict[str, dict[str, Any]] = {}  # messages with a call whose result has not come yet, by its id
    for message in messages:
        if message["role"] == "tool":
            called = waiting.pop(message.get("tool_call_id", ""), None)
            fit += [message] if called is None else [called, message]
            continue
        fit += waiting.values()
        waiting = {call["id"]: message | {"tool_calls": [call]} for call in message.get("tool_calls") or ()}
        if not waiting:
            fit.append(message)
    return [*fit, *waiting.values()]


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return message | {"content": [{"type": "text", "text": content}]} if isinstance(content, str) else message
