"""`/v1/responses` on the wire: its body, and the chat that it asks for.

Nothing is stored: every request brings its whole conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, GetJsonSchemaHandler, Tag, ValidationError, ValidationInfo
from pydantic_core import CoreSchema

from adaptspec.errors import RequestError
from adaptspec.server.api.answers import Json
from adaptspec.server.api.chat import ChatBody
from adaptspec.server.api.constraints.format_spellings import flat_spelling
from adaptspec.server.api.constraints.response_format import JsonObjectFormat, NamedSchema, TextFormat
from adaptspec.server.api.generation_body import (
    EFFORT,
    NO_EFFECT,
    NO_PROVENANCE,
    PROVENANCE,
    Alternatives,
    AtLeastNone,
    CacheSalt,
    Effort,
    Hints,
    Idle,
    MostTokens,
    SamplingFields,
    SpeculationFields,
    Verbosity,
)
from adaptspec.server.api.messages import IDLE_KEYS, FunctionName, TextIfAny
from adaptspec.server.api.neutral_values import ANY_VALUE, NEUTRAL
from adaptspec.server.api.template_fields import TemplateValues
from adaptspec.server.api.tool_choice import MAX_TOOLS, AllowedTools, NamedTool, ToolChoice
from adaptspec.server.api.tools import Function, OrOtherTools, usable_tools
from adaptspec.server.api.warnings import Warnings
from adaptspec.server.api.wire import LenientModel, Name, WireModel

# What a chat calls a field that a response calls otherwise.
OWN_NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
# As in a chat.
_SAME = (
    *("model", "stream", "parallel_tool_calls", "top_logprobs", "chat_template_kwargs", "cache_salt"),
    *SamplingFields.model_fields,
)
_ITEM = 256  # bytes


# Items of a history that only OpenAI's own servers can use: calls of their tools, and encrypted reasoning.
_OTHER_ITEMS = frozenset(
    {"additional_tools", "apply_patch_call", "apply_patch_call_output", "code_interpreter_call", "compaction_trigger"}
    | {"computer_call", "computer_call_output", "configuration_update", "custom_tool_call", "custom_tool_call_output"}
    | {"file_search_call", "image_generation_call", "local_shell_call", "local_shell_call_output"}
    | {"mcp_approval_request", "mcp_approval_response", "mcp_call", "mcp_list_tools", "program", "program_output"}
    | {"reasoning", "shell_call", "shell_call_output", "tool_search_call", "tool_search_output", "web_search_call"}
)
_NOT_STORED = "this server keeps no responses, so send the whole conversation as input"


class _Item(LenientModel):
    where: ClassVar[str] = "input[]"
    # `name` and `namespace` stand next to the id of the call, which says the same.
    idle: ClassVar[frozenset[str]] = IDLE_KEYS | {
        *("agent", "async", "async_", "caller", "created_by", "name", "namespace", "phase")
    }


class InputMessage(_Item):
    """A message, the client's or one of ours that comes back."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: TextIfAny = None

    together: ClassVar[Sequence[Mapping[str, Any]]] = (
        {
            "anyOf": [
                {"properties": {"role": {"const": "assistant"}}},
                {"properties": {"content": {"type": ["string", "array"]}}, "required": ["content"]},
            ]
        },
    )


class FunctionCall(_Item):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: Name
    name: FunctionName
    arguments: str = ""


class FunctionCallOutput(_Item):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: Name
    output: TextIfAny = None


class ReasoningItem(_Item):
    """What a model thought before the answer or the call that follows. `summary` is read where `content` has no text.

    Items without any text, such as encrypted ones, are dropped.
    """

    type: Literal["reasoning"]
    content: Any = None
    summary: Any = None

    idle: ClassVar[frozenset[str]] = _Item.idle | {"encrypted_content"}

    @property
    def text(self) -> str:
        return _thoughts(self.content) or _thoughts(self.summary)


def _thoughts(parts: object) -> str:
    """The text in parts of a reasoning item."""
    listed = parts if isinstance(parts, list) else ()
    texts = [part.get("text") for part in listed if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def _kind(item: object) -> str | None:
    """What an item is: clients leave out that a message is one."""
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    if kind is None and isinstance(item, dict):
        return "message"
    return kind if isinstance(kind, str) else None


def _usable(items: object, info: ValidationInfo) -> object:
    """The same items without those that this server cannot use; a warning names each type."""
    if not isinstance(items, list):
        return items
    kept = [item for item in items if not _is_other(item)]
    if isinstance(info.context, Warnings):
        for kind in map(_kind, filter(_is_other, items)):
            which = f"{kind} without text" if kind == "reasoning" else kind
            info.context.add("item", f"input[] of the type {which} cannot be used here and were dropped")
    return kept


def _is_other(item: object) -> bool:
    if isinstance(item, dict) and item.get("type") == "reasoning":
        return not (_thoughts(item.get("content")) or _thoughts(item.get("summary")))
    return _kind(item) in _OTHER_ITEMS


class _OrOtherItems:
    """Says in the schema of `input` that its list may have other items."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        written = handler(schema)
        other = {"type": "object", "properties": {"type": {"enum": sorted(_OTHER_ITEMS)}}, "required": ["type"]}
        written["items"] = {"anyOf": [written["items"], other]}
        return written


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
]
Items = Annotated[
    list[Item], Field(min_length=1, max_length=4096, fail_fast=True), BeforeValidator(_usable), _OrOtherItems()
]


class FunctionTool(Function):
    """A function that may be called."""

    type: Literal["function"]

    def chat(self) -> dict[str, Any]:
        return {"type": "function", "function": self.model_dump(exclude={"type"})}


FunctionTools = Annotated[
    list[FunctionTool],
    Field(max_length=MAX_TOOLS, fail_fast=True),
    BeforeValidator(partial(usable_tools, flat=True)),
    OrOtherTools(),
]


class SchemaFormat(NamedSchema):
    """JSON that fits a schema."""

    type: Literal["json_schema"]

    def chat(self) -> dict[str, Any]:
        return {"type": "json_schema", "json_schema": self.model_dump(exclude={"type"}, by_alias=True)}


class TextOptions(WireModel):
    """What the text is to be like."""

    format: (
        Annotated[
            TextFormat | JsonObjectFormat | SchemaFormat,
            Field(discriminator="type"),
            BeforeValidator(flat_spelling),
        ]
        | None
    ) = None
    verbosity: Verbosity = None


_LOGPROBS = "message.output_text.logprobs"
# What can be asked for in addition; all but the log-probabilities are of tools and models that are not here.
Includable = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class Reasoning(WireModel):
    """How a reasoning model is to think; `effort` is as in chats, the others have no effect."""

    effort: Annotated[Effort | None, Field(description=EFFORT)] = None
    context: Annotated[Literal["auto", "current_turn", "all_turns"] | None, Idle] = None
    mode: Annotated[Literal["standard"] | None, Idle] = None
    summary: Annotated[Literal["auto", "concise", "detailed"] | None, Idle] = None
    generate_summary: Annotated[Literal["auto", "concise", "detailed"] | None, Idle] = None


class ResponseStreamOptions(WireModel):
    """Options of a streamed response."""

    include_obfuscation: Annotated[bool | None, Idle] = None


class ResponseChat(ChatBody):
    """The chat that a response asks for."""

    tool_path: ClassVar[str] = "tools[{index}].parameters"
    schema_path: ClassVar[str] = "text.format.schema"


class ResponsesBody(SamplingFields, Hints):
    """A request for a response. Nothing is stored, also where `store` says so: the answer's `store` is false."""

    model: Name | None = None
    input: str | Items
    instructions: str | None = None
    max_output_tokens: MostTokens = None
    stream: bool | None = None
    text: TextOptions | None = None
    tools: FunctionTools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[
        AtLeastNone | None, Field(description=f"{NO_EFFECT} It counts tools run by a server.")
    ] = None
    top_logprobs: Alternatives | None = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None, Field(description="A conversation that does not fit is always refused.")
    ] = None
    user: Annotated[str | None, Idle] = None
    reasoning: Reasoning | None = None
    stream_options: Annotated[ResponseStreamOptions | None, Idle] = None
    include: list[Includable] | None = None
    chat_template_kwargs: TemplateValues | None = None
    cache_salt: CacheSalt | None = None
    adaptspec: SpeculationFields | None = None

    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **NEUTRAL,
        "access_programs": (),
        "background": (False,),
        "background_options": (),
        "client_metadata": ANY_VALUE,
        "context_management": ([],),
        "conversation": (),
        "image": (),
        "moderation": (),
        "n": (1,),
        "previous_response_id": (),
        "prompt": (),
    }
    remedies: ClassVar[Mapping[str, str]] = {
        "background": "no request runs in the background here, so leave it out, and wait for the answer or stream it",
        "context_management": "nothing shortens a conversation here, so leave it out",
        "conversation": _NOT_STORED,
        "image": "it writes text only, so leave it out",
        "moderation": "it moderates nothing, so leave it out",
        "previous_response_id": _NOT_STORED,
        "prompt": "this server keeps no prompts, so send the text as instructions and input",
    }
    other_names: ClassVar[Mapping[str, str]] = {
        **OWN_NAMES,
        "extra_key": "cache_salt",
        "max_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning.effort",
        "system": "instructions",
        "verbosity": "text.verbosity",
    }
    together: ClassVar[Sequence[Mapping[str, Any]]] = (NO_PROVENANCE,)

    @property
    def logprobs(self) -> bool:
        """Whether the answer is to have log-probabilities."""
        return _LOGPROBS in (self.include or ())

    @property
    def weight(self) -> int:
        """About how many bytes of JSON it takes as long to turn this into a chat as to read."""
        items = 0 if isinstance(self.input, str) else len(self.input)
        return _ITEM * (items + len(self.tools or ()))

    @property
    def choice(self) -> str | dict[str, Any]:
        """`tool_choice` as responses spell it."""
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return _flat(choice)
        if isinstance(choice, AllowedTools):
            allowed = choice.allowed_tools
            return {"type": choice.type, "mode": allowed.mode, "tools": [_flat(tool) for tool in allowed.tools]}
        return choice or "auto"

    def chat(self) -> ChatBody:
        """The same as a chat. Raises RequestError in the words of this body."""
        if self.adaptspec is not None and self.adaptspec.provenance:
            raise RequestError("adaptspec.provenance is not told here; stream /v1/chat/completions for it", PROVENANCE)
        asked = None if self.text is None else self.text.format
        document = {name: getattr(self, name) for name in _SAME} | {
            "messages": self._messages(),
            "max_completion_tokens": self.max_output_tokens,
            "logprobs": self.logprobs,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "response_format": asked.chat() if isinstance(asked, SchemaFormat) else asked,
            "tools": None if self.tools is None else [tool.chat() for tool in self.tools],
            "tool_choice": self.tool_choice,
            "adaptspec": self.adaptspec,
        }
        try:
            return ResponseChat.model_validate(document, context=self.warnings)
        except ValidationError as error:
            said = error.errors()[0]["msg"]
            raise RequestError(f"input cannot be read as a conversation: {said}", "input") from error

    def _messages(self) -> list[dict[str, Any]]:
        items = [InputMessage(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        messages = _conversation(items)
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
        return messages


def _flat(tool: NamedTool) -> dict[str, Any]:
    return {"type": tool.type, "name": tool.function.name}


def _conversation(items: Sequence[InputMessage | FunctionCall | FunctionCallOutput | ReasoningItem]) -> list[Json]:
    """Items as messages: calls belong to the assistant's message before them, and reasoning to the one after it.

    A reasoning that no answer or call follows, as that was cut off, is an assistant's message without text.
    """
    messages: list[Json] = []
    thoughts: list[str] = []
    for item in items:
        if isinstance(item, ReasoningItem):
            thoughts.append(item.text)
            continue
        if isinstance(item, FunctionCall):
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        elif isinstance(item, InputMessage) and item.role == "assistant":
            messages.append({"role": item.role, "content": item.content})
        elif thoughts:
            messages.append({"role": "assistant", "content": None})
        thoughts = _think(messages, thoughts)
        if isinstance(item, InputMessage) and item.role != "assistant":
            messages.append({"role": item.role, "content": item.content})
        elif isinstance(item, FunctionCallOutput):
            messages.append({"role": "tool", "content": item.output, "tool_call_id": item.call_id})
    if thoughts:
        messages.append({"role": "assistant", "content": None})
        _think(messages, thoughts)
    return messages


def _think(messages: list[Json], thoughts: list[str]) -> list[str]:
    """Add thoughts to the last message. Returns those that are left: none."""
    if thoughts:
        known = messages[-1].get("reasoning_content")
        messages[-1]["reasoning_content"] = "\n".join([*([known] if known else []), *thoughts])
    return []
