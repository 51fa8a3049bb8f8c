"""The nouns everything shares: requests, their outcomes, and what one round did. Plain data, no torch.

A round is one draft, one verify and one commit over the running batch; the control plane and the sinks learn from its
`RoundRecord` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from math import nan
from typing import Any, NamedTuple, Protocol

import numpy as np

from adaptspec.arrays import BoolArray as BoolArray  # noqa: PLC0414
from adaptspec.arrays import FloatArray as FloatArray  # noqa: PLC0414
from adaptspec.arrays import IntArray as IntArray  # noqa: PLC0414
from adaptspec.request import Request
from adaptspec.trees import Branches


class FinishReason(str, Enum):
    """Why a request ended. STOP and LENGTH carry OpenAI's names."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Reason(IntEnum):
    """Why a request runs a round at its depth; names appear in journals, metrics and traces."""

    POLICY = 0  # the algorithm's free choice
    FIXED = 1  # the policy knows only this depth
    EXPLORE = 2  # one deeper than the estimate asks for, to learn
    PROBE = 3  # speculation is off, this round tests whether it pays again
    OFF = 4  # the algorithm expects drafting to lose
    GUARD = 5  # a guard switched speculation off
    CEILING = 6  # batch too large, no room, or the task's bound
    REQUEST = 7  # the request's own max_depth
    DWELL = 9  # kept because the last switch was too recent (8 was never given, and stays free)


REASON_WORDS: Mapping[Reason, str] = {
    Reason.POLICY: "its own choice: what earns most, by what it has seen",
    Reason.FIXED: "it knows only this depth",
    Reason.EXPLORE: "to learn: it was not sure how this depth does",
    Reason.PROBE: "off, and tried again to see whether drafting pays by now",
    Reason.OFF: "no drafts: they were expected to lose",
    Reason.GUARD: "drafting measured slower than plain decoding",
    Reason.CEILING: "no room for more: the answer's end, the batch, memory, or the task's own bound",
    Reason.REQUEST: "the request's own max_depth",
    Reason.DWELL: "kept: the last change was too recent",
}


@dataclass(frozen=True)
class SpeculationStats:
    """What speculation did for one request. Only tokens that were emitted count as accepted.

    `drafted` counts the tokens of each round's longest path, so that acceptance is that of depths, whatever else was
    tried beside them; `nodes` counts all tokens that were submitted for verification. Entry j of
    `accepted_per_position` counts the rounds whose draft was accepted at position j (0-based); `rounds` counts the
    rounds that emitted; `draft_rounds` those of them that drafted. `policy` is the one that decided for the request.
    """

    policy: str = ""
    rounds: int = 0
    draft_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: tuple[int, ...] = ()
    acceptance_histogram: tuple[int, ...] = ()  # draft rounds by number of accepted tokens
    task: str | None = None  # None: unknown
    task_detected: bool = False  # read off the prompt, not named by the request
    lossy: bool = False  # the policy's verification may have kept what the target alone would not have written
    nodes: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted; 0 when nothing was drafted. Depends on the depth: never compare across tiers."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted per drafting round: the bonus token counts (vLLM's convention)."""
        return 1.0 + (self.accepted / self.draft_rounds if self.draft_rounds else 0.0)


@dataclass(frozen=True)
class Timings:
    """Seconds on the monotonic clock; `first_token` and `admitted` are None if never reached."""

    arrived: float
    admitted: float | None
    first_token: float | None
    finished: float


@dataclass(frozen=True)
class Piece:
    """The text of one token, and the drafter that proposed it; None: the target wrote it by itself."""

    text: str
    drafter: str | None


@dataclass(frozen=True)
class TokenLogprob:
    """How likely the target found a token where it stands: natural logarithms, float32.

    Log-softmax of the target's own logits, before temperature, penalties, bias and masks: what the model says, the same
    whatever the sampling settings, and never 0.0 just because a token was drafted and accepted. `top` are the likeliest
    tokens there, most likely first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Delta:
    """A piece of one request's output: text that can no longer change, and the tokens of the round.

    The last piece carries the `completion`. `pieces` are the same text by who drafted it; None where nobody asked.
    Of a request that asked for them, `logprobs` has an entry for each of `tokens`, and the first piece has those of all
    prompt tokens but the first, which nothing comes before.
    """

    request_id: str
    text: str
    tokens: tuple[int, ...]
    completion: Completion | None = None
    pieces: tuple[Piece, ...] | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Completion:
    """A finished request. `error` says what happened when `finish` is ERROR.

    Of the request's `prediction`, `prediction_accepted` tokens are in the output and `prediction_rejected` are not,
    whether or not anybody drafted them.
    """

    request_id: str
    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    finish: FinishReason
    stats: SpeculationStats
    timings: Timings
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    prediction_accepted: int = 0
    prediction_rejected: int = 0


def nobody() -> IntArray:
    """What no row has: an array of none."""
    return np.zeros(0, dtype=np.int64)


# Fields of `RoundRecord` by their shape: [B] and [drafters, B, ...].
PER_ROW = ("rows", "depths", "reasons", "drafter", "drafted", "accepted", "emitted", "context")
PER_DRAFTER = ("shadow", "shadow_drafted", "stated")


class ChainOutcome(NamedTuple):
    """Main chains of one drafter in a round, all [B], whether it ran or was only scored.

    `ran`: it drafted for the row. `known`: it ran or was scored; where not, `drafted` and `accepted` are 0.
    """

    ran: BoolArray
    known: BoolArray
    drafted: IntArray
    accepted: IntArray


@dataclass(frozen=True)
class RoundRecord:
    """What one round decided, did and cost. Row-wise arrays have the batch's order; B rows, D = deepest draft.

    Where drafts branch, `drafted` and `accepted` are tokens along a path, the longest and the accepted one, never
    nodes; `confidence` and `entropy` are those of the main chain, and `branches` has the rest.

    Only decoding rows are listed: rows still reading their prompt are summed in `prefill_tokens`.
    `confidence` (draft's probability of its own token) and `entropy` (nats, of the draft
    distribution) are [B, D], NaN where nothing was drafted. `accepted` counts what verification
    kept, `emitted` what the client gets (cut at EOS, stop, max_tokens). A token that was drafted but
    dropped by the stop rule counts in neither `drafted` nor `accepted`, only in `draft_seconds`. `ended` is on the
    monotonic clock, as `Timings` are; NaN where no clock ran (a simulation).
    """

    number: int
    request_ids: tuple[str, ...]
    rows: IntArray  # [B] the engine's row of each request, stable while it runs
    depths: IntArray  # [B] decided
    reasons: IntArray  # [B] Reason codes
    drafter: IntArray  # [B] index into the engine's drafters
    drafted: IntArray  # [B] submitted for verification, along the longest path
    accepted: IntArray  # [B]
    emitted: IntArray  # [B]
    context: IntArray  # [B] tokens before this round
    confidence: FloatArray  # [B, D]
    entropy: FloatArray  # [B, D]
    prefill_tokens: int
    draft_steps: int  # forward passes of the draft model
    caught_up: int  # tokens fed to the draft cache beyond the usual one or two per row
    verify_tokens: int  # packed tokens of the target's pass, prefill included
    draft_seconds: float
    verify_seconds: float
    total_seconds: float
    # [drafters, B]: tokens that a drafter which did not run would have got accepted, had it been asked for `emitted` of
    # them, and how many it would have drafted then; -1 where nobody knows. Deeper drafts stay unknown: what lies
    # beyond the emitted tokens does. Indexed as `drafter` is.
    shadow: IntArray | None = None
    shadow_drafted: IntArray | None = None
    # [drafters, B, depth]: how sure each drafter was of what it had found before the round (see `BatchSignals.stated`).
    stated: FloatArray | None = None
    expected: Expected | None = None  # None where the policy estimates nothing
    ended: float = nan
    branches: Branches | None = None  # None in rounds whose drafts are chains
    decision: int = 0  # the number of the decision that it ran: its outcome may come after later decisions
    # [B] the controller's numbers of each row's task and policy, as its decision told them; empty in journals.
    tasks: IntArray = field(default_factory=nobody)
    policies: IntArray = field(default_factory=nobody)

    @property
    def drafting(self) -> bool:
        if len(self.drafted) == 1:
            return self.drafted.item() > 0
        # `functools.cached_property` takes a lock, which is longer than looking at one row.
        known: bool | None = self.__dict__.get("_drafting")
        if known is None:
            known = self.__dict__["_drafting"] = bool(np.count_nonzero(self.drafted))
        return known

    @property
    def kept(self) -> IntArray:
        """Accepted tokens that the client got [B]: the token that every pass brings is none of them."""
        return np.minimum(self.accepted, np.maximum(self.emitted - 1, 0))

    @property
    def nodes(self) -> IntArray:
        """All tokens of each row that were submitted for verification [B]."""
        return self.drafted if self.branches is None else self.branches.nodes

    @property
    def chain(self) -> IntArray:
        """Tokens of each row's main chain [B]."""
        return self.drafted if self.branches is None else self.branches.tree.chain

    @property
    def straight(self) -> IntArray:
        """Tokens of it that the client got [B]: `kept`, had nothing branched off."""
        return self.kept if self.branches is None else np.minimum(self.kept, self.branches.straight)

    def main_chains(self) -> RoundRecord:
        """The round reduced to its main chains: what chains without side nodes would have had accepted.

        `emitted` stays, and may be more than the chains account for. `drafter` is that of the chain, which may be the
        second one where two drafters added nodes to a row.
        """
        if self.branches is None:
            return self
        tree, straight = self.branches.tree, np.minimum(self.accepted, self.branches.straight)
        owner = np.where(tree.chain > 0, tree.drafters[:, 0], self.drafter) if tree.drafters.size else self.drafter
        return replace(self, drafter=owner, drafted=tree.chain, accepted=straight, branches=None)

    def chains(self, drafter: int) -> ChainOutcome:
        """Outcomes of the main chains of a drafter: those that ran, else those that were scored."""
        main = self.main_chains()
        ran = (main.drafter == drafter) & (main.depths > 0)
        known, drafted, accepted = ran, np.where(ran, main.drafted, 0), np.where(ran, main.accepted, 0)
        if self.shadow is not None and self.shadow_drafted is not None:
            agreed = self.shadow[drafter]
            known = ran | (agreed >= 0)
            drafted = np.where(known > ran, self.shadow_drafted[drafter], drafted)
            accepted = np.where(known > ran, agreed, accepted)
        return ChainOutcome(ran, known, drafted, accepted)

    def take(self, index: IntArray) -> RoundRecord:
        """The same round for some of its rows, by position in the batch; what the whole round cost stays."""
        deepest = int(self.chain[index].max(initial=0))  # others may have drafted deeper than their policy can
        taken: dict[str, Any] = vars(self) | {name: getattr(self, name)[index] for name in PER_ROW}
        taken.pop("_drafting", None)
        taken["request_ids"] = tuple(self.request_ids[i] for i in index.tolist())
        for name in ("confidence", "entropy"):
            taken[name] = getattr(self, name)[index, :deepest]
        for name in PER_DRAFTER:
            if (value := getattr(self, name)) is not None:
                taken[name] = value[:, index]
        for name in ("tasks", "policies"):
            if len(value := getattr(self, name)):
                taken[name] = value[index]
        for name in ("expected", "branches"):
            if (value := getattr(self, name)) is not None:
                taken[name] = value.take(index)
        return RoundRecord(**taken)  # `replace` takes half as long again


@dataclass(frozen=True)
class Expected:
    """What a policy that estimates expected of a round, before it ran.

    `goodput` is in tokens per second for all of its rows (NaN where several policies shared the round); `accepted` is
    per row the tokens expected to be accepted if drafts ran to the decided depth (NaN where nobody said). `other` is
    the goodput expected of the choice that was rejected: plain decoding where the round drafts, else the best drafts.
    """

    goodput: float
    accepted: FloatArray  # [B]
    other: float = nan

    def take(self, index: IntArray) -> Expected:
        return replace(self, accepted=self.accepted[index])


class Sink(Protocol):
    """Receives what happened; called on the engine thread, so it must be quick and must not raise."""

    def started(self, request: Request) -> None:
        """One request has been admitted; its policy is decided and named."""

    def emit(self, record: RoundRecord) -> None:
        """One round has ended."""

    def finished(self, request: Request, completion: Completion) -> None:
        """One request has ended, however it ended."""
