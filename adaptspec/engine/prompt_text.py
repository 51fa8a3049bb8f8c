"""The text of prompts, as far as decisions need it: what a request asks for.

Knows a tokenizer; the cost is that of a few hundred tokens, however long the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerFast

from adaptspec.control.tasks import HEAD, TAIL, TaskDetector
from adaptspec.types import Request

# The detector looks at HEAD and TAIL characters; few tokenizers need more than a token for two of them.
_HEAD_TOKENS, _TAIL_TOKENS = HEAD // 2, TAIL // 2


class PromptText:
    """Decodes parts of prompts. Touches no state, so any thread may use it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, detector: TaskDetector | None) -> None:
        """`detector` None: tasks are known from hints only."""
        self._decode = tokenizer.backend_tokenizer.decode
        self._detector = detector

    def tagged(self, request: Request) -> Request:
        """The request with its task read off the prompt, unless it names one or has been read before."""
        wishes = request.speculation
        if self._detector is None or wishes.task is not None or wishes.task_detected:
            return request
        task = self._detector.detect(self.excerpt(request.prompt)).task
        return replace(request, speculation=replace(wishes, task=task, task_detected=True))

    def excerpt(self, prompt: Sequence[int]) -> str:
        """The prompt's beginning and end, without special tokens."""
        if len(prompt) <= _HEAD_TOKENS + _TAIL_TOKENS:
            return str(self._decode(list(prompt)))
        return f"{self._decode(list(prompt[:_HEAD_TOKENS]))}\n{self._decode(list(prompt[-_TAIL_TOKENS:]))}"
