"""`tool_choice` on the wire: whether tools may be called, must be, or which of them.

Each kind of choice is read by one rule, in the words of chats and of responses alike. A name alone chooses that
function. `allowed_tools` is its mode over some functions. A kind of tool that is dropped from `tools` cannot be chosen,
so that choice becomes `auto`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, GetJsonSchemaHandler, Tag, ValidationInfo
from pydantic_core import CoreSchema

from adaptspec.errors import RequestError
from adaptspec.server import limits
from adaptspec.server.api.fields import AtMost, Warnings, WireModel, loggable_key, quoted, warnings_of
from adaptspec.server.api.messages import FUNCTION_NAME, FunctionName

Mode = Literal["none", "auto", "required"]
# Mistral and Anthropic call one of them otherwise.
_MODES: Mapping[str, Mode] = {"none": "none", "auto": "auto", "required": "required", "any": "required"}
_FUNCTION = ("function", "tool")  # the latter is Anthropic's word
_NAMES_SHOWN = 8  # functions that can be chosen, in one error
_DROPPED_SHOWN = 3  # reasons for which tools were dropped, in one error


class NamedFunction(WireModel):
    """A function by its name."""

    name: FunctionName


class NamedTool(WireModel):
    """The one tool that is to be called."""

    type: Literal["function"] = "function"
    function: NamedFunction


class AllowedFunctions(WireModel):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(fail_fast=True), AtMost(limits.TOOLS)]


class AllowedTools(WireModel):
    """The only tools that may be called. The model is shown all of them."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions


def read_choice(choice: object, info: ValidationInfo) -> object:
    """The same choice in the words of chats; a warning where it is of a tool that is dropped."""
    if isinstance(choice, str):
        return _MODES.get(choice) or {"type": "function", "function": {"name": choice}}
    if not isinstance(choice, dict):
        return choice
    given = {name: value for name, value in choice.items() if value is not None}
    kind = given.get("type", "function")
    if kind == "allowed_tools":
        return _allowed(given, info)
    if not isinstance(kind, str) or kind in _FUNCTION:
        return _named(given)
    if kind in _MODES:
        return _MODES[kind]
    _warn(info, f"tool_choice of the type {loggable_key(kind)} cannot be called here and became auto")
    return "auto"


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    """A chosen function as chats spell it; responses have the name next to the type."""
    named = {name: value for name, value in given.items() if value is not None}
    if named.get("type") in _FUNCTION:
        named["type"] = "function"
    if "name" in named and "function" not in named:
        named["function"] = {"name": named.pop("name")}
    return named


def _allowed(given: Mapping[str, Any], info: ValidationInfo) -> object:
    inner = given.get("allowed_tools", {name: value for name, value in given.items() if name != "type"})
    tools = inner.get("tools") if isinstance(inner, dict) else None
    if not isinstance(tools, list) or len(tools) > limits.TOOLS:
        return {"type": "allowed_tools", "allowed_tools": inner}
    kept: list[object] = []
    for tool in tools:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind not in _FUNCTION:
            _warn(info, f"tool_choice.tools[] of the type {loggable_key(kind)} cannot be called here and were dropped")
        elif isinstance(tool, str):
            kept.append({"function": {"name": tool}})
        else:
            kept.append(_named(tool) if isinstance(tool, dict) else tool)
    if not kept and inner.get("mode") == "auto":
        return "none"
    return {"type": "allowed_tools", "allowed_tools": {**inner, "tools": kept}}


def _warn(info: ValidationInfo, text: str) -> None:
    warnings_of(info).add("tool", text)


class _OtherSpellings:
    """Says in the schema of a choice what else is read as one."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        name = {"type": "string", "pattern": FUNCTION_NAME}
        other = {"type": "string", "not": {"const": "function"}}
        described: list[dict[str, Any]] = [
            name,
            {"type": "object", "properties": {"name": name}, "required": ["name"]},
            {"type": "object", "properties": {"type": other}, "required": ["type"]},
        ]
        return {"anyOf": [handler(schema), *described]}


def _kind(choice: object) -> str:
    if isinstance(choice, (NamedTool, AllowedTools)):
        return choice.type
    if not isinstance(choice, dict):
        return "mode"
    return "allowed_tools" if choice.get("type") == "allowed_tools" else "function"


ToolChoice = Annotated[
    Annotated[Mode, Tag("mode")]
    | Annotated[NamedTool, Tag("function")]
    | Annotated[AllowedTools, Tag("allowed_tools")],
    Discriminator(_kind),
    BeforeValidator(read_choice),
    _OtherSpellings(),
]


def mode_of(choice: Mode | NamedTool | AllowedTools | None) -> Mode:
    """Whether a tool may be called, or must be."""
    if isinstance(choice, AllowedTools):
        return choice.allowed_tools.mode
    return "required" if isinstance(choice, NamedTool) else choice or "auto"


def chosen_names(choice: Mode | NamedTool | AllowedTools | None) -> list[str] | None:
    """Names of the functions that alone may be called; None for all of them."""
    if isinstance(choice, AllowedTools):
        return [tool.function.name for tool in choice.allowed_tools.tools]
    return [choice.function.name] if isinstance(choice, NamedTool) else None


def check_choice(names: Sequence[str], choice: Mode | NamedTool | AllowedTools | None, warnings: Warnings) -> None:
    """Raise RequestError for a choice that the functions of these names cannot meet."""
    wanted = chosen_names(choice)
    if wanted is None and mode_of(choice) != "required":
        return
    reasons = [text for text in warnings.texts if text.startswith("tools[")]
    if not names or wanted == []:
        if not reasons:
            raise RequestError("tool_choice needs tools; leave it out, or say what there is to call", "tool_choice")
        remedy = "leave it out, or send functions"
        raise RequestError(
            f"tool_choice needs tools, and all of them were dropped ({_some(reasons)}); {remedy}", "tool_choice"
        )
    missing = next((name for name in wanted or () if name not in names), None)
    if missing is not None:
        why = f"; some were dropped: {_some(reasons)}" if reasons else ""
        usable = ", ".join([*map(loggable_key, names[:_NAMES_SHOWN]), *(["..."] if len(names) > _NAMES_SHOWN else [])])
        raise RequestError(
            f"tool_choice names {quoted(missing)}, which is not in tools{why}; choose one of {usable}", "tool_choice"
        )


def _some(reasons: Sequence[str]) -> str:
    more = len(reasons) - _DROPPED_SHOWN
    return "; ".join([*reasons[:_DROPPED_SHOWN], *([f"{more} more"] if more > 0 else [])])
