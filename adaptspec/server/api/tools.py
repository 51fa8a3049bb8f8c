"""Tools on the wire, how a prompt tells a model of them, the grammar of their calls, and reading calls in an answer.

A call is written as <tool_call>, one line of JSON with name and arguments, </tool_call>: the form that Qwen's and
Hermes' models are trained on. The grammar makes it exact, so reading it back needs no guessing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticKnownError

from adaptspec.errors import RequestError
from adaptspec.request import Grammar
from adaptspec.server.api.json_schema import check_schema
from adaptspec.server.api.messages import IDLE_KEYS, FunctionName
from adaptspec.server.api.warnings import Warnings, name_of
from adaptspec.server.api.wire import LenientModel, WireModel, shown
from adaptspec.server.limits import ServerLimits

MAX_TOOLS = 128
OPEN, CLOSE = "<tool_call>", "</tool_call>"
HEAD, MIDDLE, TAIL = f'{OPEN}\n{{"name": "', '", "arguments": ', f"}}\n{CLOSE}"
# As models write it; and without line ends within, what closes a call cannot occur in its arguments.
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
Item = TypeVar("Item")
_TEXT = r"/(.|\n)*/"


class Function(LenientModel):
    """A function that may be called. Its parameters are always kept to, whatever `strict` says."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    where: ClassVar[str] = "tools[].function"
    idle: ClassVar[frozenset[str]] = IDLE_KEYS


class Tool(LenientModel):
    """A tool; all of them are functions."""

    type: Literal["function"] = "function"
    function: Function

    where: ClassVar[str] = "tools[]"
    idle: ClassVar[frozenset[str]] = IDLE_KEYS

    def plain(self) -> dict[str, Any]:
        return {"type": "function", "function": self.function.model_dump(exclude_none=True, exclude={"strict"})}


class NamedFunction(WireModel):
    """A function by its name."""

    name: FunctionName


class NamedTool(WireModel):
    """The one tool that is to be called."""

    type: Literal["function"] = "function"
    function: NamedFunction


def functions_only(tools: object, info: ValidationInfo) -> object:
    """The same tools without those that are no functions: only OpenAI's own servers can run them.

    Agents send them next to functions, and are served by these; a warning names each type.
    """
    if not isinstance(tools, list):
        return tools
    if len(tools) > MAX_TOOLS:
        sizes = {"field_type": "List", "max_length": MAX_TOOLS, "actual_length": len(tools)}
        raise PydanticKnownError("too_long", sizes)
    kept = []
    for tool in tools:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str) or kind == "function":
            kept.append(tool)
        elif isinstance(info.context, Warnings):
            info.context.add("tool", f"tools[] of the type {name_of(kind)} cannot be called here and were dropped")
    return kept


class OrOtherTools:
    """Says in the schema of a list of functions that it may have other tools."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        written = handler(schema)
        other = {"type": "string", "not": {"const": "function"}}
        written["items"] = {
            "anyOf": [written["items"], {"type": "object", "properties": {"type": other}, "required": ["type"]}]
        }
        return written


ToolsOf = Annotated[
    list[Item], Field(max_length=MAX_TOOLS, fail_fast=True), BeforeValidator(functions_only), OrOtherTools()
]
Tools = ToolsOf[Tool]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


def check_tools(tools: Sequence[Tool], choice: ToolChoice | None) -> None:
    """What no single field can say. Raises RequestError."""
    names = [tool.function.name for tool in tools]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise RequestError(f"tools has two functions called {shown(twice)}; rename one", "tools")
    if choice not in (None, "none", "auto") and not tools:
        raise RequestError("tool_choice needs tools; leave it out, or say what there is to call", "tool_choice")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise RequestError(f"tool_choice names {shown(choice.function.name)}, which is not in tools", "tool_choice")


def tool_grammar(
    tools: Sequence[Tool], choice: ToolChoice | None, *, parallel: bool, limits: ServerLimits = ServerLimits()
) -> Grammar | None:
    """What may be written; None where nothing can be called. `parallel`: several calls in one answer.

    Raises RequestError for too much of a schema.
    """
    if not tools or choice == "none":
        return None
    if isinstance(choice, NamedTool):
        tools, parallel = [tool for tool in tools if tool.function.name == choice.function.name], False
    names = [f"tool_{i}" for i in range(len(tools))]
    lines = ["%llguidance {}"]
    if choice in (None, "auto"):
        lines.append("start: call* TEXT" if parallel else "start: call | TEXT")
        lines += [f"TEXT: {_TEXT}", f"head[lazy]: TEXT {json.dumps(OPEN)}"]
    else:
        lines.append('start: call ("\\n" call)*' if parallel else "start: call")
        lines.append(f"head: {json.dumps(OPEN)}")
    lines.append(f"call: head {json.dumps(HEAD.removeprefix(OPEN))} ({' | '.join(names)}) {json.dumps(TAIL)}")
    for name, tool in zip(names, tools, strict=True):
        check_schema(tool.function.parameters or {}, "tools", limits)
        schema = {**(tool.function.parameters or {"type": "object", "properties": {}}), "x-guidance": _STYLE}
        lines.append(f"{name}: {json.dumps(tool.function.name + MIDDLE)} %json {json.dumps(schema)}")
    return Grammar("\n".join(lines), "lark", "tools")


def written_out(messages: Sequence[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """A conversation with tools, calls and results as plain text: for chat templates that know nothing of them."""
    plain = [_without_calls(message) for message in messages]
    if tools:
        listed = "\n".join(json.dumps(tool.plain()["function"]) for tool in tools)
        said = (
            f"You may call these functions, described as JSON, one per line:\n{listed}\n"
            f'To call one, write:\n{OPEN}\n{{"name": <its name>, "arguments": <a JSON object>}}\n{CLOSE}'
        )
        if plain and plain[0]["role"] == "system":
            said = f"{plain.pop(0)['content']}\n\n{said}"
        plain.insert(0, {"role": "system", "content": said})
    return plain


def _without_calls(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = [
        HEAD + call["function"]["name"] + MIDDLE + json.dumps(call["function"]["arguments"]) + TAIL
        for call in message.get("tool_calls", ())
    ]
    content = "\n".join([message["content"], *calls] if message["content"] else calls)
    return {"role": message["role"], "content": content}


@dataclass(frozen=True)
class TextPiece:
    """Text beside all calls."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A call begins; `index` counts them from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """The next piece of a call's arguments."""

    index: int
    text: str


Part = TextPiece | CallStart | CallArguments


class CallReader:
    """Reads tool calls out of one answer as it comes, piece by piece; the whole answer is read by the same rules.

    White space before a call is left out, and so is what ends an answer with calls.
    """

    def __init__(self, expected: bool = True) -> None:
        """`expected` False: the answer may call nothing, and all of it is text."""
        self._expected = expected
        self._buffer = ""
        self._place = HEAD  # what is looked for next
        self._blank = ""  # white space that is text only if text follows
        self.calls = 0

    @property
    def whole(self) -> bool:
        """Whether every call that was begun has been closed."""
        return self._place == HEAD

    def feed(self, text: str) -> Iterator[Part]:
        if not self._expected:
            yield from (TextPiece(text),) if text else ()
            return
        self._buffer += text
        while self._place in self._buffer:
            before, _, self._buffer = self._buffer.partition(self._place)
            yield from self._told(before)
            if self._place == HEAD:
                self._place, self._blank = MIDDLE, ""
            elif self._place == MIDDLE:
                self._place = TAIL
                self.calls += 1
                yield CallStart(self.calls - 1, before)
            else:
                self._place = HEAD
        if self._place != MIDDLE:
            certain = len(self._buffer) - _overlap(self._buffer, self._place)
            ready, self._buffer = self._buffer[:certain], self._buffer[certain:]
            yield from self._told(ready)

    def end(self) -> Iterator[Part]:
        """What was held back; a call that was cut short stays as it is."""
        if self._place != MIDDLE:
            yield from self._told(self._buffer)
        if self._blank and not self.calls:
            yield TextPiece(self._blank)

    def _told(self, text: str) -> Iterator[Part]:
        if self._place == TAIL and text:
            yield CallArguments(self.calls - 1, text)
        elif self._place == HEAD and text:
            held = self._blank + text
            told = held.rstrip()
            self._blank = held[len(told) :]
            if told:
                yield TextPiece(told)


def _overlap(text: str, wanted: str) -> int:
    """How many characters at the end of `text` may be the beginning of `wanted`."""
    return next((size for size in range(min(len(text), len(wanted) - 1), 0, -1) if text.endswith(wanted[:size])), 0)
