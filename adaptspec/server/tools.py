"""Tools on the wire, the grammar that makes their calls well-formed, and how a prompt tells a model of them.

A call is written as <tool_call>, one line of JSON with name and arguments, </tool_call>: the form that Qwen's and
Hermes' models are trained on. The grammar makes it exact, so reading it back needs no guessing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from adaptspec.errors import RequestError
from adaptspec.server.messages import FunctionName
from adaptspec.server.schemas import check_schema
from adaptspec.server.wire import WireModel, shown
from adaptspec.types import Grammar

MAX_TOOLS = 128
OPEN, CLOSE = "<tool_call>", "</tool_call>"
HEAD, MIDDLE, TAIL = f'{OPEN}\n{{"name": "', '", "arguments": ', f"}}\n{CLOSE}"
# As models write it; and without line ends within, what closes a call cannot occur in its arguments.
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_TEXT = r"/(.|\n)*/"


class Function(WireModel):
    """A function that may be called. Its parameters are always kept to, whatever `strict` says."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(WireModel):
    """A tool; all of them are functions."""

    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        """For a chat template."""
        return {"type": "function", "function": self.function.model_dump(exclude_none=True, exclude={"strict"})}


class NamedFunction(WireModel):
    """A function by its name."""

    name: FunctionName


class NamedTool(WireModel):
    """The one tool that is to be called."""

    type: Literal["function"]
    function: NamedFunction


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


def check_tools(tools: Sequence[Tool], choice: ToolChoice | None) -> None:
    """What no single field can say. Raises RequestError."""
    names = [tool.function.name for tool in tools]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise RequestError(f"tools has two functions called {shown(twice)}; rename one", "tools")
    if choice is not None and choice != "none" and not tools:
        raise RequestError("tool_choice needs tools; leave it out, or say what there is to call", "tool_choice")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise RequestError(f"tool_choice names {shown(choice.function.name)}, which is not in tools", "tool_choice")


def tool_grammar(tools: Sequence[Tool], choice: ToolChoice | None, *, parallel: bool) -> Grammar | None:
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
        check_schema(tool.function.parameters or {}, "tools")
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
            plain[0] = {**plain[0], "content": f"{plain[0]['content']}\n\n{said}"}
        else:
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
