"""Fields of a chat that change its prompt, besides the messages; `/tokenize` takes the same."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from adaptspec.models.chat.chat_template import RenderOptions
from adaptspec.server.api.constraints.response_format import FormatField
from adaptspec.server.api.generation_body import EFFORT, Effort
from adaptspec.server.api.reasoning import with_effort
from adaptspec.server.api.template_fields import TemplateFields
from adaptspec.server.api.tool_choice import ToolChoice, check_choice, mode_of
from adaptspec.server.api.tool_forms import IN_WORDS, ToolForm
from adaptspec.server.api.tools import Tools
from adaptspec.server.api.wire import RequestBody


class PromptFields(TemplateFields, FormatField, RequestBody):
    """Tools, and how messages become a prompt."""

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    reasoning_effort: Annotated[Effort | None, Field(description=EFFORT)] = None

    @property
    def render_options(self) -> RenderOptions:
        return with_effort(super().render_options, self.reasoning_effort)

    @property
    def tool_names(self) -> list[str]:
        return [tool.function.name for tool in self.tools or ()]

    def call_form(self, own: ToolForm) -> ToolForm:
        """The form in which calls are to be written: the model's `own`, unless an answer in JSON can begin as it."""
        is_either = self.wants_json and mode_of(self.tool_choice) == "auto"
        return own if own.mark or own.token_id is not None or not is_either else IN_WORDS

    @model_validator(mode="after")
    def _check_tools(self) -> PromptFields:
        check_choice(self.tool_names, self.tool_choice, self.warnings)
        return self
