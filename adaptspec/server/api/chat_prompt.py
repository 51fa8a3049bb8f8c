"""Fields of a chat that change its prompt, in addition to the messages; `/tokenize` takes the same."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, model_validator

from adaptspec.errors import RequestError
from adaptspec.models.chat.chat_template import RenderOptions
from adaptspec.models.chat.template_values import check_values
from adaptspec.server.api.constraints.response_format import FormatField
from adaptspec.server.api.fields import RequestBody
from adaptspec.server.api.reasoning import with_effort
from adaptspec.server.api.sampling import Effort
from adaptspec.server.api.tool_choice import ToolChoice, check_choice, mode_of
from adaptspec.server.api.tool_forms import IN_WORDS, ToolForm
from adaptspec.server.api.tools import Tools


def _within_bounds(values: dict[str, Any]) -> dict[str, Any]:
    try:
        return check_values(values)
    except ValueError as error:
        field = "chat_template_kwargs"
        raise RequestError(f"{field} cannot be used: {error}", field) from error


TemplateValues = Annotated[dict[str, Any], AfterValidator(_within_bounds)]


class ChatPromptFields(FormatField, RequestBody):
    """Tools, and how messages become a prompt, in vLLM's words.

    `add_generation_prompt` false leaves the opening of the assistant's turn out. `continue_final_message` has the model
    go on with the last message, the assistant's or the user's. `chat_template_kwargs` are variables of the model's
    chat template, such as `enable_thinking`, over those that the server was started with.
    """

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateValues | None = None

    @property
    def render_options(self) -> RenderOptions:
        continued = bool(self.continue_final_message)
        answer = not continued and self.add_generation_prompt is not False
        return with_effort(RenderOptions(answer, continued, self.chat_template_kwargs or {}), self.reasoning_effort)

    @property
    def tool_names(self) -> list[str]:
        return [tool.function.name for tool in self.tools or ()]

    def call_form(self, native: ToolForm) -> ToolForm:
        """The form of calls: the `native` one of the model, unless an answer in JSON can begin as it."""
        is_either = self.wants_json and mode_of(self.tool_choice) == "auto"
        return native if native.mark or native.token_id is not None or not is_either else IN_WORDS

    @model_validator(mode="after")
    def _check_prompt(self) -> ChatPromptFields:
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError(
                "continue_final_message goes on with the last message and add_generation_prompt begins a new one; send "
                "one of them",
                "continue_final_message",
            )
        check_choice(self.tool_names, self.tool_choice, self.warnings)
        return self
