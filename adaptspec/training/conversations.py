"""Conversations of a corpus, as a model's chat template writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adaptspec.errors import CorpusError, RequestError
from adaptspec.models.chat.chat_template import ChatTemplate, RenderOptions
from adaptspec.models.config import shown
from adaptspec.training.corpus import Record


def rendered(template: ChatTemplate, record: Record, messages: Sequence[Mapping[str, Any]], *, answer: bool) -> str:
    """Messages of a record as text, up to an answer of the model's if `answer`.

    Raises CorpusError: the template does not take them.
    """
    try:
        return template.render([dict(message) for message in messages], options=RenderOptions(answer=answer))
    except RequestError as error:
        raise CorpusError(
            f"{record.where}: the model's chat template does not take the conversation that ends with "
            f"{shown(record.prompt)} ({error.__cause__ or error}); change or delete the line"
        ) from error
