"""The state of one request in the engine: its tokens, its text, its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np

from adaptspec.drafting.prediction import Prediction
from adaptspec.engine.detokenizer import Detokenizer
from adaptspec.engine.prefix_cache import Scope
from adaptspec.models.grammars import FAILED, Constraint
from adaptspec.models.sampling import RowSampling
from adaptspec.request import Request
from adaptspec.results import Completion, Delta, FinishReason, Piece, SpeculationStats, Timings, TokenLogprob
from adaptspec.verification.method import Method


class Sequence:
    """The state of a request from the queue to its completion. `tokens` is prompt + output, and only grows.

    `row` is its row in every cache while it runs, None while it waits. `method` verifies its drafts. Requests of one
    `scope` may draft from each other's text; None: only from its own text. Requests of one `prefix_scope` may reuse
    each other's cached tokens; None: it shares none. `cached_tokens`: prompt tokens that were cached at its first
    admission. `end_tokens` end it. `constraint` is the state of its grammar. `logprobs` and `prompt_logprobs` grow as
    tokens are scored, if they are requested. `prediction` aligns its output with the predicted text; lookup drafters
    use it, too. `over`: its completion was delivered.
    """

    over = False

    def __init__(
        self,
        request: Request,
        method: Method,
        detokenizer: Detokenizer,
        *,
        seed: int,
        eos: tuple[int, ...],
        context: int,
        now: float,
        constraint: Constraint | None = None,
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.method = method
        self.tokens = list(request.prompt)
        self.row: int | None = None
        self.scope: str | None = None
        self.prefix_scope: Scope | None = None
        self.cached_tokens = 0
        self.finish: FinishReason | None = None
        self.error: str | None = None
        self._was_lossy = False  # whether an earlier method was lossy
        self.max_tokens = min(sampling.max_tokens, context - len(request.prompt))
        self.end_tokens = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else frozenset(eos))
        self.sampling = RowSampling(sampling, seed, self.tokens, len(request.prompt), eos, constraint)
        self._detokenizer = detokenizer
        self._unread = len(self.tokens)  # position of the first token that is not in the text yet
        self._drafters: SequenceOf[str] = ()  # of the tokens from there on, except for the last
        self._sent = 0
        self._prompt_reported = False
        self.logprobs: list[TokenLogprob] = []
        self.scored: list[TokenLogprob] = []  # of the tokens that `append` adds next
        self.prompt_logprobs: list[TokenLogprob] = []
        self.prediction = Prediction(request.prediction, len(request.prompt)) if request.prediction else None
        self._counts = _Counts()
        self._provenance = TokenProvenance() if request.speculation.provenance else None
        self.timings = Timings(arrived=now, admitted=None, first_token=None, finished=now)

    @property
    def policy(self) -> str:
        return self.request.speculation.policy or ""

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def emitted(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def depth_limit(self) -> int:
        """Maximum useful draft depth: the draft and the bonus token must fit into max_tokens."""
        room = self.max_tokens - self.emitted - 1
        max_depth = self.request.speculation.max_depth
        return room if max_depth is None else min(room, max_depth)

    @property
    def lossy(self) -> bool:
        """Whether its verification may have changed the text."""
        return self._was_lossy or self.method.lossy

    def set_method(self, method: Method) -> None:
        """Verify with `method` from the next round on; `lossy` still accounts for the earlier method."""
        self._was_lossy |= self.method.lossy and self.emitted > 0
        self.method = method

    @property
    def admitted(self) -> bool:
        """Whether it has been admitted before."""
        return self.timings.admitted is not None

    def admit(self, now: float) -> None:
        """Record when the request left the queue for the first time."""
        if not self.admitted:
            self.timings = replace(self.timings, admitted=now)

    def append(self, tokens: list[int], now: float, drafters: SequenceOf[str] = ()) -> None:
        """Append the tokens of one round, up to one that ends the request; all but the last were proposed by these
        `drafters`. The next round may begin; their text is not known before `read_text`.
        """
        if self.timings.first_token is None:
            self.timings = replace(self.timings, first_token=now)
        self._drafters, before = drafters, self.emitted
        if not self.max_tokens:  # only the prompt was to be read
            self.finish = FinishReason.LENGTH
            return
        for token in tokens:
            self.tokens.append(token)
            if self._ends(token, self.emitted):
                self.finish = FinishReason.LENGTH  # or STOP, which `read_text` finds out
                break
        gained = self.emitted - before
        self.logprobs += self.scored[:gained]
        if self.sampling.constraint is not None:
            self._advance_constraint(self.sampling.constraint, tokens[:gained])

    def read_text(self) -> int:
        """Detokenize the appended tokens; return how many are emitted: none after a stop string."""
        first, end = self._unread, len(self.tokens)
        for position in range(first, end):
            token, emitted = self.tokens[position], position + 1 - self.prompt_length
            stops = self._stops(token, emitted)
            if not stops:
                stops = self._detokenizer.push(token, may_stop=emitted >= self.request.sampling.min_tokens)
                if not stops and emitted >= self.max_tokens:
                    stops = self._detokenizer.close()
            if self._provenance is not None:
                drafter = self._drafters[position - first] if position - first < len(self._drafters) else None
                self._provenance.add(len(self._detokenizer.text), drafter)
            if stops:
                if self.finish in (None, FinishReason.LENGTH):
                    self.finish = FinishReason.STOP
                del self.tokens[position + 1 :], self.logprobs[emitted:]
                break
        gained, self._unread = len(self.tokens) - first, len(self.tokens)
        if self.prediction is not None:
            self.prediction.read(self.tokens, len(self.tokens))
        return gained

    def _ends(self, token: int, emitted: int) -> bool:
        """Whether `token` ends the output, which then has `emitted` tokens."""
        return emitted >= self.max_tokens or self._stops(token, emitted)

    def _stops(self, token: int, emitted: int) -> bool:
        return token in self.end_tokens and emitted >= self.request.sampling.min_tokens

    def _advance_constraint(self, constraint: Constraint, tokens: list[int]) -> None:
        constraint.commit(tokens)
        if constraint.error is not None:
            self.finish, self.error = FinishReason.ERROR, f"{FAILED}{constraint.error}"

    def fail(self, error: str) -> None:
        """End the request with an error in this round."""
        self.finish, self.error = FinishReason.ERROR, error

    def without_text(self, error: str, now: float) -> Completion:
        """A completion without text, for a request whose text cannot be read."""
        timings = replace(self.timings, finished=now)
        return Completion.failed(self.request.id, self.prompt_length, error, timings, self.cached_tokens)

    def count_round(self, drafted: int, accepted: int, nodes: int) -> None:
        """Count a decoding round in the statistics: of `drafted` tokens on the longest path and `nodes` in total,
        `accepted` were emitted.
        """
        self._counts.add(drafted, accepted, nodes)

    def delta(self) -> Delta:
        """The output since the last call. Text that may begin a stop string is held back until the end."""
        start, self._sent = self._sent, self.emitted
        text = self._detokenizer.take(final=self.finish is not None)
        tokens = tuple(self.tokens[self.prompt_length + start :])
        logprobs = tuple(self.logprobs[start:])
        prompt_logprobs = () if self._prompt_reported else tuple(self.prompt_logprobs)
        self._prompt_reported = True
        pieces = None if self._provenance is None else self._provenance.take(text)
        return Delta(self.request.id, text, tokens, pieces=pieces, logprobs=logprobs, prompt_logprobs=prompt_logprobs)

    def completion(self, now: float) -> Completion:
        """The whole output. Raises ValueError if the request has not ended."""
        if self.finish is None:
            raise ValueError("the request has not ended")
        return Completion(
            request_id=self.request.id,
            text=self._detokenizer.text,
            tokens=tuple(self.tokens[self.prompt_length :]),
            prompt_tokens=self.prompt_length,
            finish=self.finish,
            stats=replace(
                self._counts.stats(self.policy),
                task=self.request.speculation.task,
                task_detected=self.request.speculation.task_detected,
                lossy=self.lossy,
            ),
            timings=replace(self.timings, finished=now),
            error=self.error,
            logprobs=tuple(self.logprobs),
            prompt_logprobs=tuple(self.prompt_logprobs),
            prediction_accepted=0 if self.prediction is None else self.prediction.accepted,
            prediction_rejected=0 if self.prediction is None else self.prediction.rejected,
            cached_tokens=self.cached_tokens,
        )


class _Counts:
    """Running totals behind a request's SpeculationStats."""

    def __init__(self) -> None:
        self.rounds = 0
        self.drafted = 0
        self.accepted = 0
        self.nodes = 0
        self.histogram: list[int] = []

    def add(self, drafted: int, accepted: int, nodes: int) -> None:
        self.rounds += 1
        if drafted:
            self.drafted += drafted
            self.nodes += nodes
            self.accepted += accepted
            self.histogram += [0] * (drafted + 1 - len(self.histogram))
            self.histogram[accepted] += 1

    def stats(self, policy: str) -> SpeculationStats:
        at_least = np.cumsum(self.histogram[::-1])[::-1] if self.histogram else np.zeros(1, dtype=np.int64)
        return SpeculationStats(
            policy=policy,
            rounds=self.rounds,
            draft_rounds=int(at_least[0]),
            drafted=self.drafted,
            accepted=self.accepted,
            accepted_per_position=tuple(int(n) for n in at_least[1:]),
            acceptance_histogram=tuple(self.histogram),
            nodes=self.nodes,
        )


class TokenProvenance:
    """Records which drafter has proposed each part of an output, for requests with `provenance`.

    `add` every token as it is committed; `take` the pieces of the text that is delivered.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, str | None]] = deque()  # end of a token's text, and its drafter
        self._taken = 0

    def add(self, end: int, drafter: str | None) -> None:
        """Add a token, after which the text has `end` characters; `drafter` None: the target."""
        self._waiting.append((end, drafter))

    def take(self, text: str) -> tuple[Piece, ...]:
        """The pieces of the next `text`, one per token.

        Tokens without text (within an incomplete character, or EOS) have no piece. Text without a token, such as an
        incomplete character at the end, is attributed to the target.
        """
        pieces, done, end = [], 0, self._taken + len(text)
        while done < len(text) and self._waiting:
            token_end, drafter = self._waiting[0]
            size = min(token_end, end) - self._taken - done
            if size > 0:
                pieces.append(Piece(text[done : done + size], drafter))
                done += size
            if token_end > end:
                break  # the rest of its text is held back
            self._waiting.popleft()
        if done < len(text):
            pieces.append(Piece(text[done:], None))
        self._taken = end
        return tuple(pieces)
