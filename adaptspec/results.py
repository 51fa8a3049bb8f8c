"""What a request gets: pieces of text while it runs, and its completion with counts and times. Plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FinishReason(str, Enum):
    """Why a request ended. STOP and LENGTH carry OpenAI's names."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True)
class SpeculationStats:
    """What speculation did for one request. Only tokens that were emitted count as accepted.

    `drafted` counts the tokens of each round's longest path, so that acceptance is that of depths; `nodes` counts all
    tokens that were submitted for verification, side nodes included. Entry j of
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
    # Over plain decoding, estimated; None: unknown. The engine leaves it to telemetry, which estimates it.
    speedup: float | None = None

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
    """The text of one token, and the drafter that proposed it; None: the target chose it."""

    text: str
    drafter: str | None


@dataclass(frozen=True)
class TokenLogprob:
    """The target's log-probability of a token at its position: natural logarithms, float32.

    Log-softmax of the target's logits, before temperature, penalties, bias and masks. So it does not depend on sampling
    settings, nor on whether the token was drafted. `top` are the likeliest tokens there, most likely first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Delta:
    """A piece of one request's output: text that can no longer change, and the tokens of the round.

    The last piece carries the `completion`. `pieces` are the same text by drafter; None where the request did not ask
    for them. Of a request that asked for them, `logprobs` has an entry for each of `tokens`, and the first piece has
    those of all prompt tokens but the first.
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
    """A finished request. `error` is the reason where `finish` is ERROR.

    Of the request's `prediction`, `prediction_accepted` tokens are in the output and `prediction_rejected` are not,
    whether or not they were drafted. `cached_tokens`: prompt tokens that were cached and not read again.
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
    cached_tokens: int = 0

    @classmethod
    def failed(
        cls, request_id: str, prompt_tokens: int, error: str, timings: Timings, cached_tokens: int = 0
    ) -> Completion:
        """A request that ended with an error, and without text."""
        stats, finish = SpeculationStats(), FinishReason.ERROR
        return cls(request_id, "", (), prompt_tokens, finish, stats, timings, error, cached_tokens=cached_tokens)
