"""Fields of requests with messages that say how the chat template writes them, in vLLM's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, WithJsonSchema, model_validator

from adaptspec.errors import RequestError
from adaptspec.models.chat.chat_template import RenderOptions
from adaptspec.models.chat.template_values import MAX_KEYS, NAME_PATTERN, RESERVED, check_values
from adaptspec.server.api.wire import WireModel

_KWARGS = "chat_template_kwargs"
_NOT_FREE = {"anyOf": [{"enum": sorted(RESERVED)}, {"pattern": "_token$"}]}
_VALUES = {
    "type": "object",
    "maxProperties": MAX_KEYS,
    "propertyNames": {
        "pattern": f"^{NAME_PATTERN}$",
        "not": {"anyOf": [{"enum": sorted(RESERVED)}, {"pattern": "_token$"}]},
    },
}


def _within_bounds(values: dict[str, Any]) -> dict[str, Any]:
    try:
        return check_values(values)
    except ValueError as error:
        raise RequestError(f"{_KWARGS} cannot be used: {error}", _KWARGS) from error


TemplateValues = Annotated[dict[str, Any], AfterValidator(_within_bounds), WithJsonSchema(_VALUES)]
_IS_TRUE: Mapping[str, Any] = {"const": True}


class TemplateFields(WireModel):
    """How messages become a prompt.

    `add_generation_prompt` false leaves the opening of the assistant's turn out. `continue_final_message` has the model
    go on with the last message, the assistant's or the user's. `chat_template_kwargs` are variables of the model's
    chat template, such as `enable_thinking`, over those that the server was started with.
    """

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateValues | None = None

    together: ClassVar[Sequence[Mapping[str, Any]]] = (
        {
            "not": {
                "properties": {"add_generation_prompt": _IS_TRUE, "continue_final_message": _IS_TRUE},
                "required": ["add_generation_prompt", "continue_final_message"],
            }
        },
    )

    @property
    def render_options(self) -> RenderOptions:
        continued = bool(self.continue_final_message)
        answer = not continued and self.add_generation_prompt is not False
        return RenderOptions(answer, continued, self.chat_template_kwargs or {})

    @model_validator(mode="after")
    def _check_turn(self) -> TemplateFields:
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError(
                "continue_final_message goes on with the last message and add_generation_prompt begins a new one; send "
                "one of them",
                "continue_final_message",
            )
        return self
