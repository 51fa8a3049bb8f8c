"""Tools on the wire, how a prompt describes them to a model, and the grammar of their calls.

Calls are written in the form of the model's chat template, or in that of Hermes, which is described in words then. The
grammar makes them exact, so reading them back needs no guessing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema

from adaptspec.errors import RequestError
from adaptspec.request import Grammar
from adaptspec.server import limits
from adaptspec.server.api.fields import AtMost, LenientModel, Warnings, loggable_key, quoted, warnings_of
from adaptspec.server.api.messages import FUNCTION_NAME, IDLE_KEYS, NAME_RULE, FunctionName
from adaptspec.server.api.schemas.rewriting import rewrite
from adaptspec.server.api.schemas.schema_words import EXTENSION, Origin
from adaptspec.server.api.tool_choice import AllowedTools, Mode, NamedTool, chosen_names, mode_of
from adaptspec.server.api.tool_forms import CLOSE, HERMES, OPEN, ToolForm

TOOL_PATH = "tools[{index}].function.parameters"
# As models write it; and without line ends within, what closes a call cannot occur in its arguments.
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_TEXT = r"/(.|\n)*/"
_BLANK = r"/[ \t\r\n]*/"
_NO_PARAMETERS = {"type": "object", "properties": {}}
_ANY_PARAMETERS = {"type": "object"}
_SCHEMA_NAMES = ("input_schema", "inputSchema")  # what Anthropic and MCP call `parameters`
# Keys of a function: the type of their values, what replaces a value of another type, and what the warning says.
_KINDS: Mapping[str, tuple[type, Mapping[str, Any] | None, str]] = {
    "description": (str, None, "is no text and was dropped"),
    "parameters": (dict, _ANY_PARAMETERS, "is no object, so any arguments are allowed"),
    "strict": (bool, None, "is no boolean (true or false) and was dropped"),
}


class Function(LenientModel):
    """A function that may be called.

    Its parameters are kept to. Without `strict`, words of their schema that no grammar can hold, such as `uniqueItems`,
    are left out, and the answer's `warnings` name them; with it, they are refused. An object with `properties` takes no
    other keys, unless it has `additionalProperties`.
    """

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


def usable_tools(tools: object, info: ValidationInfo, *, flat: bool = False) -> object:
    """The same tools without those that cannot be called here, in the form of chats or, `flat`, of responses.

    One odd tool does not keep an agent from the others: what is no function, has no name that can be used, or has the
    name of an earlier one is dropped; so are a description that is no text and parameters that are no object, unless
    the function is strict. A warning names each. A `tool_choice` that needs a dropped tool is refused elsewhere.
    """
    if not isinstance(tools, list):
        return tools
    warnings = warnings_of(info)
    kept: list[object] = []
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            kept.append(tool)
            continue
        kind = tool.get("type")
        if kind is not None and kind != "function":
            of = f"of the type {loggable_key(kind)}" if isinstance(kind, str) else "whose type is no text"
            warnings.add("tool", f"tools[] {of} cannot be called here and were dropped")
            continue
        function = tool if tool.get("function") is None else tool["function"]
        name = function.get("name") if isinstance(function, dict) else None
        fault = _fault_of(name, names)
        if fault is not None:
            warnings.add("tool", f"tools[{index}] {fault}; it was dropped")
            continue
        names.add(str(name))
        cleaned = _with_parameters(function)
        _replace_odd_values(cleaned, warnings)
        if flat:
            kept.append({**cleaned, "type": "function"})
        elif function is tool:
            kept.append({"type": "function", "function": {k: v for k, v in cleaned.items() if k != "type"}})
        else:
            kept.append({**tool, "function": cleaned})
    return kept


def _fault_of(name: object, names: Set[str]) -> str | None:
    """Why a function of this name cannot be called, next to those of the `names`; None if it can."""
    if name is None:
        return "has no function with a name"
    if not isinstance(name, str) or not re.fullmatch(FUNCTION_NAME, name):
        given = loggable_key(name) if isinstance(name, str) else "no text"
        return f"has a name ({given}) that is not {NAME_RULE}"
    return f"has the name {loggable_key(name)} of an earlier one" if name in names else None


def _with_parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the function whose schema is called `parameters`."""
    kept = dict(function)
    for name in _SCHEMA_NAMES:
        if kept.get("parameters") is None and kept.get(name) is not None:
            kept["parameters"] = kept.pop(name)
    return kept


def _replace_odd_values(function: dict[str, Any], warnings: Warnings) -> None:
    """Replace values of a wrong type, each with a warning. A strict function keeps them, and is refused."""
    if function.get("strict") is True:
        return
    for key, (kind, replacement, outcome) in _KINDS.items():
        if function.get(key) is not None and not isinstance(function[key], kind):
            del function[key]
            if replacement is not None:
                function[key] = replacement
            warnings.add("tool", f"{key} of the function {loggable_key(function['name'])} {outcome}")


class OrOtherTools:
    """Says in the schema of a list of functions that it may have other tools, which are dropped."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        written = handler(schema)
        written["items"] = {"anyOf": [written["items"], {"type": "object"}]}
        return written


Tools = Annotated[
    list[Tool], Field(fail_fast=True), BeforeValidator(usable_tools), OrOtherTools(), AtMost(limits.TOOLS)
]


def tool_grammar(
    tools: Sequence[Tool],
    choice: Mode | NamedTool | AllowedTools | None,
    *,
    parallel: bool,
    form: ToolForm = HERMES,
    answer: Mapping[str, Any] | None = None,
    warnings: Warnings | None = None,
    path: str = TOOL_PATH,
) -> Grammar | None:
    """What may be written; None where nothing can be called.

    `parallel`: several calls in one answer, where their form has any. `answer` is the schema of an answer without
    calls; None: any text. `warnings` get the words of schemas that are left out, by `path`, with an `{index}`.

    Raises RequestError, with the path at fault: a schema is not valid, too much, or strict and cannot be kept to.
    """
    if not tools or choice == "none":
        return None
    wanted = chosen_names(choice)
    numbered = [(i, tool) for i, tool in enumerate(tools) if wanted is None or tool.function.name in wanted]
    parallel = parallel and not isinstance(choice, NamedTool)
    names = [tool.function.name for _, tool in numbered]
    if mode_of(choice) == "required":
        lines = ["start: calls", *_calls(form, names, parallel=parallel)]
    elif answer is not None:
        lines = [
            "start: calls | answer",
            f"answer: %json {json.dumps(answer)}",
            *_calls(form, names, parallel=parallel),
        ]
    elif form.mark:
        lines = _calls_among_text(form, names, parallel=parallel)
    else:
        lines = _calls_or_text(form, names, parallel=parallel)
    for number, (index, tool) in enumerate(numbered):
        origin = Origin(path.format(index=index), bool(tool.function.strict))
        schema = _parameters(tool.function, origin, warnings)
        lines.append(f"arguments_{number}: %json {json.dumps(schema)}")
    return Grammar("\n".join(["%llguidance {}", *lines]), "lark", "tools")


def _parameters(function: Function, origin: Origin, warnings: Warnings | None) -> dict[str, Any]:
    """The schema of a function's arguments, as the compiler takes it."""
    try:
        rewritten = rewrite(function.parameters or _NO_PARAMETERS, origin, arguments=True)
    except RequestError as error:
        raise type(error)(f"{error} (function {quoted(function.name)})", error.param) from error
    if warnings is not None:
        rewritten.warn(warnings, f" of the function {loggable_key(function.name)}")
    return {**rewritten.schema, EXTENSION: _STYLE}


def _calls(form: ToolForm, names: Sequence[str], *, parallel: bool) -> list[str]:
    """Rules of an answer that has calls and no text."""
    return [
        f"calls: {_token(form)} {_literal(form.opening)} call {_more(form, parallel=parallel)}",
        f"head: {_literal(form.head)}",
        _call(form, names),
    ]


def _calls_among_text(form: ToolForm, names: Sequence[str], *, parallel: bool) -> list[str]:
    """Rules of an answer in which the mark of a call cannot occur but in one."""
    return [
        "start: call* TEXT" if parallel else "start: call | TEXT",
        f"TEXT: {_TEXT}",
        f"marked[lazy]: TEXT {_literal(form.mark)}",
        f"head: marked {_literal(form.head.removeprefix(form.mark))}",
        _call(form, names),
    ]


def _calls_or_text(form: ToolForm, names: Sequence[str], *, parallel: bool) -> list[str]:
    """Rules of an answer that has calls or is a text: it is text unless it begins as the call of a tool does.

    That beginning, up to the arguments, is one lexeme: where it ends, no text can go on.
    """
    starts = [_literal(f"{form.start}{name}{form.separator}".lstrip()) for name in names]
    first = " | ".join(f"START_{i} arguments_{i}" for i in range(len(names)))
    token = _token(form) if form.token_id is not None else ""
    lines = [
        f"start: {token} first {_more(form, parallel=parallel)} | TEXT",
        f"first: ({first}) {_literal(form.tail)}",
        f"TEXT: {_TEXT} & ~CALLED",
        f"CALLED: {_BLANK} ({' | '.join(starts)}) {_TEXT}",
        *(f"START_{i}: {_BLANK} {start}" for i, start in enumerate(starts)),
    ]
    return [*lines, f"head: {_literal(form.head)}", _call(form, names)] if parallel and form.between else lines


def _call(form: ToolForm, names: Sequence[str]) -> str:
    written = " | ".join(f"{_literal(name + form.separator)} arguments_{i}" for i, name in enumerate(names))
    return f"call: head ({written}) {_literal(form.tail)}"


def _more(form: ToolForm, *, parallel: bool) -> str:
    """Further calls, and what closes all of them."""
    several = f"({_literal(form.between)} call)* " if parallel and form.between is not None else ""
    return several + _literal(form.closing)


def _token(form: ToolForm) -> str:
    return _literal(form.token) if form.token_id is None else f"<[{form.token_id}]>"


def _literal(text: str | None) -> str:
    """A text in Lark; nothing for no text."""
    return json.dumps(text) if text else ""


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
        HERMES.written(call["function"]["name"], json.dumps(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]
    content = "\n".join([message["content"], *calls] if message["content"] else calls)
    return {"role": message["role"], "content": content}
