"""The forms in which models write tool calls, and which of them a chat template uses.

A form is what stands around the name and the arguments of a call. Where the template writes calls in no form of the
table, the prompt describes that of Hermes in words, so that prompt and grammar agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adaptspec.errors import RequestError
from adaptspec.models.chat.chat_template import ChatTemplate


@dataclass(frozen=True)
class ToolForm:
    """How calls are written: `opening head NAME separator ARGUMENTS tail between head ... closing`.

    `mark` begins `head` and no text: calls may follow text, and text them. Without one an answer is calls or text.
    `token` comes before `opening`: a token of its own that is no text where the tokenizer calls it special; its id is
    `token_id` then. `between` None: one call in an answer. `in_words`: the template does not write calls in this form,
    so the prompt describes it (see `tools.written_out`).
    """

    head: str
    separator: str
    tail: str
    opening: str = ""
    closing: str = ""
    between: str | None = None
    token: str = ""
    token_id: int | None = None
    mark: str = ""
    in_words: bool = False

    @property
    def start(self) -> str:
        """The text before the first name, as far as it is text."""
        return ("" if self.token_id is not None else self.token) + self.opening + self.head

    def written(self, name: str, arguments: str) -> str:
        """One call, without what surrounds all of them."""
        return self.head + name + self.separator + arguments + self.tail


OPEN, CLOSE = "<tool_call>", "</tool_call>"
# Without line ends in the arguments, what closes a call cannot occur in them.
HERMES = ToolForm(
    head=f'{OPEN}\n{{"name": "', separator='", "arguments": ', tail=f"}}\n{CLOSE}", between="\n", mark=OPEN
)
IN_WORDS = replace(HERMES, in_words=True)
LLAMA3 = ToolForm(head='{"name": "', separator='", "parameters": ', tail="}")
MISTRAL = ToolForm(
    head='{"name": "',
    separator='", "arguments": ',
    tail="}",
    opening="[",
    closing="]",
    between=", ",
    token="[TOOL_CALLS]",
)
# Tokenizers that write a space before words have it in their templates, too.
MISTRAL_SPACED = replace(MISTRAL, opening=" [")
FORMS: Mapping[str, ToolForm] = {
    "hermes": HERMES,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "mistral-spaced": MISTRAL_SPACED,
}
# Calls of other forms stand in the same tags in some templates.
_OTHER_FORMS = ("<function=", "<arg_key>")

_NAME, _KEY = "probe_call", "probe_key"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Probe.",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "integer"}}, "required": [_KEY]},
    },
}
_CALL = {"id": "probe1234", "type": "function", "function": {"name": _NAME, "arguments": {_KEY: 1}}}
_CALLED: Sequence[Mapping[str, Any]] = (
    {"role": "user", "content": "Probe."},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": "1", "tool_call_id": "probe1234", "name": _NAME},
)


def form_of(template: ChatTemplate) -> ToolForm:
    """The form in which a chat template writes calls; `IN_WORDS`: it is in no table, or the template lacks tools."""
    if not template.traits.native_tools:
        return IN_WORDS
    try:
        called = template.render(_CALLED, [_TOOL])
    except RequestError:
        called = ""
    for form in sorted(FORMS.values(), key=lambda one: -len(one.start)):
        if f'{form.start}{_NAME}{form.separator}{{"{_KEY}": 1}}' in called:
            return _with_token(form, template)
    # Its white space may be other than ours, or it writes no calls of earlier turns.
    is_hermes = template.writes(OPEN) and not any(template.writes(mark) for mark in _OTHER_FORMS)
    return HERMES if is_hermes else IN_WORDS


def _with_token(form: ToolForm, template: ChatTemplate) -> ToolForm:
    """The same form with the id of its token, where the tokenizer has it as a special one."""
    if not form.token:
        return form
    added = template.tokenizer.added_tokens_decoder.items()
    special = (number for number, one in added if str(one) == form.token and one.special)
    return replace(form, token_id=next(special, None))
