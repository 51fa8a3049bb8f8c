"""The synchronous Python API: prompts in, completions out."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence

from transformers import PreTrainedTokenizerFast

from adaptspec.config import AUTO, BUNDLED, Dtype, EngineConfig
from adaptspec.engine.build import build
from adaptspec.engine.core import EngineCore
from adaptspec.errors import RequestError
from adaptspec.models.chat.chat_template import ChatTemplate
from adaptspec.quantity import quantity
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.results import Completion, Delta
from adaptspec.start_status import Progress, no_progress


class Engine:
    """A model with speculation, in this process and on this thread.

    >>> engine = Engine.from_pretrained("bundled")
    >>> engine.generate(["Once upon a time"], SamplingParams(max_tokens=32))[0].text
    """

    def __init__(
        self, core: EngineCore, tokenizer: PreTrainedTokenizerFast, template: ChatTemplate | None = None
    ) -> None:
        """`template` None: the tokenizer's template."""
        self.core = core
        self.tokenizer = tokenizer
        self.template = template or ChatTemplate(tokenizer)
        self._ids = itertools.count()
        self._pieces: dict[str, deque[Delta]] = {}

    @classmethod
    def from_pretrained(
        cls,
        model: str = BUNDLED,
        draft: str | None = AUTO,
        policy: str | None = None,
        *,
        device: str = AUTO,
        dtype: Dtype = AUTO,
        max_rows: int = 16,
    ) -> Engine:
        """Load a target and a draft (directories, hub ids, or "bundled") under a policy (name or YAML file).

        See `EngineConfig` for the defaults of draft and policy.

        Raises:
            ModelError, PairError, ConfigError, PolicyError: the message says what to do.
        """
        return cls.from_config(
            EngineConfig(
                model=model,
                draft=draft,
                policy=(policy,) if policy else (),
                device=device,
                dtype=dtype,
                max_num_seqs=max_rows,
            )
        )

    @classmethod
    def from_config(cls, config: EngineConfig, progress: Progress = no_progress) -> Engine:
        """As `from_pretrained`, with all settings; for `progress` see `build`."""
        built = build(config, progress=progress)
        return cls(built.core, built.tokenizer, built.template)

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams] = SamplingParams(),
        speculation: SpeculationParams = SpeculationParams(),
    ) -> list[Completion]:
        """Complete all prompts (text, or token ids), batched; answers come in the order of the prompts.

        `sampling` is one for all prompts, or one for each.

        Raises:
            RequestError: a request cannot be served; none is run then.
        """
        each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
        if len(each) != len(prompts):
            raise RequestError(
                f"sampling has {quantity(len(each), 'entry', 'entries')} for {quantity(len(prompts), 'prompt')}; give "
                "one for all, or one each"
            )
        requests = [self._request(prompt, params, speculation) for prompt, params in zip(prompts, each, strict=True)]
        for request in requests:
            self.core.check(request)
        for request in requests:
            self.core.add(request)
        ends = [delta.completion for delta in self._run([request.id for request in requests])]
        done = {completion.request_id: completion for completion in ends if completion is not None}
        return [done[request.id] for request in requests]

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams = SamplingParams(),
        speculation: SpeculationParams = SpeculationParams(),
    ) -> Iterator[Delta]:
        """Complete one prompt piece by piece; leaving the loop early aborts it."""
        request = self._request(prompt, sampling, speculation)
        self.core.check(request)
        self.core.add(request)
        yield from self._run([request.id])

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The prompt of a conversation, in token ids, by the model's template.

        Raises RequestError if the template does not support these messages, or the model has none.
        """
        return self.template.encode(self.template.render(self.template.marked(list(messages))))

    def _run(self, ids: Sequence[str]) -> Iterator[Delta]:
        """Run rounds until these requests have ended; pieces of other open streams are kept for them."""
        unfinished = set(ids)
        self._pieces.update({request_id: deque() for request_id in ids})
        try:
            while unfinished:
                if not any(self._pieces[request_id] for request_id in unfinished):
                    self._sort(self.core.step())
                for request_id in sorted(unfinished):
                    while self._pieces[request_id]:
                        delta = self._pieces[request_id].popleft()
                        if delta.completion is not None:
                            unfinished.remove(request_id)
                        yield delta
        finally:
            for request_id in ids:
                del self._pieces[request_id]
                self._sort(self.core.abort(request_id))

    def _sort(self, deltas: Sequence[Delta]) -> None:
        """Queue each piece for its stream; pieces of abandoned requests are dropped."""
        for delta in deltas:
            if delta.request_id in self._pieces:
                self._pieces[delta.request_id].append(delta)

    def _request(
        self, prompt: str | Sequence[int], sampling: SamplingParams, speculation: SpeculationParams
    ) -> Request:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return Request(f"local-{next(self._ids)}", tuple(ids), sampling, speculation)
