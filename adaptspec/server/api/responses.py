"""`/v1/responses` on the wire: its body, and the chat that it asks for.

Nothing is stored: every request brings its whole conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError

from adaptspec.errors import RequestError
from adaptspec.server.api.chat import ChatBody
from adaptspec.server.api.generation_body import (
    EFFORT,
    NO_PROVENANCE,
    PROVENANCE,
    AtLeastOne,
    Effort,
    Hints,
    Idle,
    SpeculationFields,
    Temperature,
    TopP,
)
from adaptspec.server.api.messages import FunctionName, refuse_media
from adaptspec.server.api.response_format import JsonObjectFormat, NamedSchema, TextFormat
from adaptspec.server.api.tools import MAX_TOOLS, Function, NamedFunction
from adaptspec.server.api.wire import Name, WireModel, without_no_ops

# What a chat calls a field that a response calls otherwise.
OWN_NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
_SAME = ("model", "temperature", "top_p", "stream", "parallel_tool_calls")  # as in a chat
_ITEM = 256  # bytes


class TextPart(WireModel):
    """A piece of a message; what an answer carries beside its text is not looked at."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class _Item(WireModel):
    id: str | None = None
    status: str | None = None


class InputMessage(_Item):
    """A message, the client's or one of ours that comes back."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[
        str | Annotated[list[TextPart], Field(min_length=1, fail_fast=True)], BeforeValidator(refuse_media)
    ]

    # Clients send items back as they parsed them, with every field that they know of.
    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {"agent": (None,), "phase": (None,), "created_by": (None,)}

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


class FunctionCall(_Item):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: Name
    name: FunctionName
    arguments: str

    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "agent": (None,),
        "async": (None, False),
        "async_": (None,),  # as OpenAI's Python models dump it
        "caller": (None,),
        "created_by": (None,),
        "namespace": (None,),
    }


class FunctionCallOutput(_Item):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: Name
    output: Annotated[str, BeforeValidator(refuse_media)]


def _kind(item: object) -> str | None:
    """What an item is: clients leave out that a message is one."""
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)
    return kind if isinstance(kind, str) else None


Item = Annotated[
    Annotated[InputMessage, BeforeValidator(without_no_ops(InputMessage)), Tag("message")]
    | Annotated[FunctionCall, BeforeValidator(without_no_ops(FunctionCall)), Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")],
    Discriminator(_kind),
]


class FunctionTool(Function):
    """A function that may be called."""

    type: Literal["function"]

    def chat(self) -> dict[str, Any]:
        return {"type": "function", "function": self.model_dump(exclude={"type"})}


class NamedFunctionTool(NamedFunction):
    """The one function that is to be called."""

    type: Literal["function"]

    def chat(self) -> dict[str, Any]:
        return {"type": "function", "function": {"name": self.name}}


class SchemaFormat(NamedSchema):
    """JSON that fits a schema."""

    type: Literal["json_schema"]

    def chat(self) -> dict[str, Any]:
        return {"type": "json_schema", "json_schema": self.model_dump(exclude={"type"}, by_alias=True)}


class TextOptions(WireModel):
    """What the text is to be like."""

    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None

    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {"verbosity": (None, "medium")}


class Reasoning(WireModel):
    """How a reasoning model is to think; `effort` is as in chats, the others have no effect."""

    effort: Annotated[Effort | None, Field(description=EFFORT)] = None
    summary: Annotated[Literal["auto", "concise", "detailed"] | None, Idle] = None
    generate_summary: Annotated[Literal["auto", "concise", "detailed"] | None, Idle] = None


class ResponseStreamOptions(WireModel):
    """Options of a streamed response."""

    include_obfuscation: Annotated[bool | None, Idle] = None


class ResponsesBody(Hints):
    """A request for a response. Nothing is stored, also where `store` says so: the answer's `store` is false."""

    model: Name | None = None
    input: str | Annotated[list[Item], Field(min_length=1, max_length=4096, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: AtLeastOne | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: bool | None = None
    text: Annotated[TextOptions, BeforeValidator(without_no_ops(TextOptions))] | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = None
    parallel_tool_calls: bool | None = None
    user: Annotated[str | None, Idle] = None
    reasoning: Reasoning | None = None
    stream_options: Annotated[ResponseStreamOptions | None, Idle] = None
    include: Annotated[list[Literal["reasoning.encrypted_content"]] | None, Idle] = None
    adaptspec: SpeculationFields | None = None

    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "previous_response_id": (None,),
        "conversation": (None,),
        "prompt": (None,),
        "background": (False, None),
        "truncation": (None, "disabled"),
        "moderation": (None,),
        "max_tool_calls": (None,),
        "top_logprobs": (None, 0),
    }
    together: ClassVar[Sequence[Mapping[str, Any]]] = (NO_PROVENANCE,)

    @property
    def weight(self) -> int:
        """About how many bytes of JSON it takes as long to turn this into a chat as to read."""
        items = 0 if isinstance(self.input, str) else len(self.input)
        return _ITEM * (items + len(self.tools or ()))

    def chat(self) -> ChatBody:
        """The same as a chat. Raises RequestError in the words of this body."""
        if self.adaptspec is not None and self.adaptspec.provenance:
            raise RequestError("adaptspec.provenance is not told here; stream /v1/chat/completions for it", PROVENANCE)
        asked = None if self.text is None else self.text.format
        choice = self.tool_choice
        document = {name: getattr(self, name) for name in _SAME} | {
            "messages": self._messages(),
            "max_completion_tokens": self.max_output_tokens,
            "response_format": asked.chat() if isinstance(asked, SchemaFormat) else asked,
            "tools": None if self.tools is None else [tool.chat() for tool in self.tools],
            "tool_choice": choice.chat() if isinstance(choice, NamedFunctionTool) else choice,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "adaptspec": self.adaptspec,
        }
        try:
            return ChatBody.model_validate(document, context=self.warnings)
        except ValidationError as error:
            said = error.errors()[0]["msg"]
            raise RequestError(f"input cannot be read as a conversation: {said}", "input") from error

    def _messages(self) -> list[dict[str, Any]]:
        items = [InputMessage(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        messages = _conversation(items)
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
        return messages


def _conversation(items: Sequence[InputMessage | FunctionCall | FunctionCallOutput]) -> list[dict[str, Any]]:
    """Items as messages: calls belong to the assistant's message before them."""
    messages: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, InputMessage):
            messages.append({"role": item.role, "content": item.text})
        elif isinstance(item, FunctionCallOutput):
            messages.append({"role": "tool", "content": item.output, "tool_call_id": item.call_id})
        else:
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None, "tool_calls": []})
            messages[-1].setdefault("tool_calls", []).append(call)
    return messages
