"""What a drafter is: whatever proposes tokens for the target to verify, given token lists and rows of a cache."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from transformers import PreTrainedTokenizerFast

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.decision import StopTable, TreeTable
from adaptspec.drafters import DRAFTERS, available_drafters
from adaptspec.drafting.ngram_index import CorpusTable
from adaptspec.drafting.prediction import Prediction
from adaptspec.models.draft import Draft, NodeChoices
from adaptspec.models.runner import Runner
from adaptspec.models.sampling import RowSampling, SamplingBatch


@dataclass(frozen=True)
class DraftJob:
    """What to draft: the B rows of a round, each with its live token list (prompt + output) and its depth.

    Depth 0 leaves a row out. `shares_noise`: guess with the target's noise (coupled) or with noise
    of one's own. `keep_distribution`: return what sampled tokens were drawn from. `stop`: when rows stop before
    their depth (None: never). `draft_temperature` [B, 2]: see `draft_temperatures` (None: draw from the scores as they
    are). `tree`: which candidates a drafter may submit in addition to its first choice (None: drafts are chains).
    """

    rows: IntArray  # [B]
    tokens: Sequence[list[int]]  # [B]
    depths: IntArray  # [B]
    sampling: SamplingBatch
    shares_noise: bool = True
    keep_distribution: bool = False
    stop: StopTable | None = None
    draft_temperature: FloatArray | None = None
    tree: TreeTable | None = None


class Drafter(Protocol):
    """Proposes tokens. One call per round for all rows that use it; all calls come from one thread."""

    name: str  # as written in policies
    non_anticipating: bool  # it drafts fewer tokens only in the ways that `propose` allows under every method

    def cache_gap(self, row: int, length: int) -> int:
        """Tokens this drafter must still read before it can draft for a row of `length` tokens,
        beyond the one or two that every round brings.
        """

    def propose(self, job: DraftJob) -> Draft:
        """Draft at most `depths` tokens per row.

        Fewer is always exact under a method that asks only whether a token is the target's (`coupled`). Methods that
        weigh it by what it was drawn from (`rejection`, `block`) need drafts that are non-anticipating: whether x_i is
        submitted depends neither on x_i nor on what was drawn, or came to light, after it. So a drafter may

        - stop before x_i for what is known without it: the text so far, room, a budget, x_1 ... x_(i-1), all of q_i
          (its entropy, its largest share),
        - stop after x_i for any reason, x_i itself included, if x_i is submitted,
        - leave out what it did not draw: an n-gram's token is a function of the text, as is leaving it out.

        It may not drop a token that it drew for what that is: what takes its place is drawn from p, so what was not
        dropped comes too often. With p(a) = 1/2 and q(a) = 5/8, dropping every b gives P(a) = p(a) (1 + q(b)) = 0.69.
        """

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:
        """`tokens` is now the text of `row`: of what the drafter has seen, the first `valid` of them were kept."""

    def free(self, row: int) -> None:
        """The row's request has ended."""


@runtime_checkable
class ModelDrafter(Drafter, Protocol):
    """A drafter that runs a model of its own, token by token: its costs are learned before the first request.

    A draft of it stops at one of the tokens `ends`. `way` says in words how it reads and writes the target's text.
    """

    runner: Runner
    ends: Collection[int]
    way: str

    def catch_up(self, job: DraftJob) -> tuple[IntArray, int]:
        """Have its model read what rows that draft have missed, but their last two tokens; how many tokens that were.

        The depths [B] are of those that may draft now, by whoever runs its model; see `propose`.
        """

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the model's cache of the first `length` tokens of `source` to `target`, whose text begins with them.

        With `source == target` the row is cut, and another text follows.
        """


@dataclass(frozen=True)
class RowStart:
    """What a request tells as it begins in a row: how it draws its tokens, what it expects its output to be.

    `scope`: requests of one scope may draft from each other's text; None: nobody else may see this one's.
    `shares_noise`: its drafts may guess with the target's noise.
    """

    sampling: RowSampling
    prediction: Prediction | None = None
    scope: str | None = None
    shares_noise: bool = True


@runtime_checkable
class ModelFreeDrafter(Drafter, Protocol):
    """A drafter so cheap that it can say what it would draft before it is asked, and be scored where it does not."""

    def begin(self, row: int, start: RowStart) -> None:
        """A request begins, or goes on after it gave way, in `row`."""

    def offer(self, row: int, tokens: list[int], most: int) -> list[float]:
        """How sure it is of each token that it would draft after `tokens` if asked for `most`; NaN if it cannot say."""

    def shadow(self, row: int, tokens: list[int], start: int) -> tuple[int, int]:
        """Tokens that it would have drafted after `tokens[:start]`, asked for as many as were emitted since
        (`tokens[start:]`), and those of them that would have been accepted.

        Exact for that depth. Of deeper drafts it says only that they would have got at least as much.
        """


@runtime_checkable
class Observing(Protocol):
    """A drafter that learns from what the target chose after the nodes that it submitted, kept or not."""

    def absorb(self, row: int, choices: NodeChoices) -> None:
        """Between verification and commit."""


@dataclass(frozen=True)
class Loaded:
    """What a drafter may be made from: the target, the draft model if there is one, and tokens that end a text.

    `counts` are those of a corpus, if there are any; `tokenizers` those of target and draft model, if they may differ.
    """

    target: Runner
    draft: Runner | None
    ends: Collection[int]
    counts: CorpusTable | None = None
    tokenizers: tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast] | None = None


def make_drafters(loaded: Loaded) -> list[Drafter]:
    """Every drafter of `adaptspec.drafters` for which everything it needs was loaded."""
    names = available_drafters(draft=loaded.draft is not None)
    return [pkgutil.resolve_name(DRAFTERS[name].maker)(loaded) for name in names]
