"""Checks requests, detects their tasks and turns them into sequences."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence as Tokens
from dataclasses import replace
from typing import TYPE_CHECKING

from adaptspec.control.task_detector import HEAD, TAIL, TaskDetector
from adaptspec.engine.detokenizer import Detokenizer
from adaptspec.engine.sequence import Sequence
from adaptspec.errors import PromptTooLongError, RequestError, context_overflow
from adaptspec.models.grammars import Grammars
from adaptspec.models.runner import ModelInfo
from adaptspec.models.sampling import check_tokens, check_vocabulary
from adaptspec.request import Grammar, Request
from adaptspec.verification.method import Method

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# The detector uses HEAD and TAIL characters; with most tokenizers two of them need at most one token.
_HEAD_TOKENS, _TAIL_TOKENS = HEAD // 2, TAIL // 2


class InputProcessor:
    """Checks and prepares requests for one target and its tokenizer. Any thread may use it."""

    def __init__(
        self, info: ModelInfo, tokenizer: PreTrainedTokenizerFast, detector: TaskDetector | None = None
    ) -> None:
        """`detector` detects the task of requests that name none; None: they have no task."""
        self.info = info
        self._tokenizer = tokenizer
        self._detector = detector
        self._grammars = Grammars(tokenizer, info.vocab_size, info.eos_token_ids)

    def check(self, request: Request) -> None:
        """Check whether this model can serve a request.

        Raises:
            RequestError: with the field at fault in `param`.
        """
        prompt, info = request.prompt, self.info
        if not prompt:
            raise RequestError("prompt is empty; send at least one token", "prompt")
        if len(prompt) >= info.context:
            raise PromptTooLongError(
                context_overflow(
                    info.context,
                    f"your prompt resulted in {len(prompt)} tokens, and the answer needs one more: send a shorter one",
                ),
                "prompt",
            )
        check_tokens("prompt", prompt, info.drawn_tokens)
        check_vocabulary(request.sampling, info.drawn_tokens)
        if request.sampling.grammar is not None:
            self.compile_grammar(request.sampling.grammar)

    def prepare_grammars(self) -> None:
        """See `Grammars.prepare`."""
        self._grammars.prepare()

    def compile_grammar(self, grammar: Grammar, max_bytes: int | None = None) -> Grammar:
        """The same grammar with its compiled form; see `Grammars.compile`."""
        return self._grammars.compile(grammar, max_bytes)

    def prepared(self, request: Request) -> Request:
        """Add the compiled grammar and the detected task to a checked request that does not have them."""
        sampling = request.sampling
        if sampling.grammar is not None and sampling.grammar.compiled is None:
            grammar = self.compile_grammar(sampling.grammar)
            request = replace(request, sampling=replace(sampling, grammar=grammar))
        speculation = request.speculation
        if self._detector is None or speculation.task is not None or speculation.task_detected:
            return request
        task = self._detector.detect(self.excerpt(request.prompt)).task
        return replace(request, speculation=replace(speculation, task=task, task_detected=True))

    def excerpt(self, prompt: Tokens[int]) -> str:
        """The prompt's beginning and end, without special tokens; at most a few hundred tokens are decoded."""
        decode = self._tokenizer.backend_tokenizer.decode
        if len(prompt) <= _HEAD_TOKENS + _TAIL_TOKENS:
            return str(decode(list(prompt)))
        return f"{decode(list(prompt[:_HEAD_TOKENS]))}\n{decode(list(prompt[-_TAIL_TOKENS:]))}"

    def sequence(self, request: Request, method: Method) -> Sequence:
        """Make the sequence of a checked request; `method` verifies its drafts."""
        seed, grammar = request.sampling.seed, request.sampling.grammar
        return Sequence(
            request,
            method,
            Detokenizer(self._tokenizer, request.sampling.stop),
            seed=secrets.randbits(63) if seed is None else seed,
            eos=self.info.eos_token_ids,
            context=self.info.context,
            now=time.monotonic(),
            constraint=None if grammar is None else self._grammars.start(grammar),
        )
