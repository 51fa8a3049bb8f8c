"""What a drafter is: it proposes tokens for the target to verify, given token lists and rows of a cache."""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerFast

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.decision import StopTable, TreeTable
from adaptspec.draft_tree import DraftTree
from adaptspec.drafters import DRAFTERS, available_drafters
from adaptspec.drafting.ngram_index import CorpusTable
from adaptspec.drafting.prediction import Prediction
from adaptspec.models.runner import Packed, Runner
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.rounds import DraftWork


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


class Draft(NamedTuple):
    """The drafted tokens of a round's B rows, and the passes that drafting ran."""

    tree: DraftTree
    work: tuple[DraftWork, ...] = ()


class NodeChoices:
    """The tokens that the target chose after the nodes of one row's draft."""

    def __init__(self, draft: DraftTree, row: int, choices: list[int]) -> None:
        """`choices` [nodes + 1]: after the newest token and after each node, -1 where unknown."""
        at = draft.row_nodes(row)
        nodes = zip(draft.parent[at].tolist(), draft.token[at].tolist(), strict=True)
        self._nodes = {node: i for i, node in enumerate(nodes)}
        self._choices = choices

    def after(self, path: Sequence[int]) -> int | None:
        """The token that the target chose after these drafted ones; None: they were not drafted, or it is unknown."""
        node = -1
        for token in path:
            found = self._nodes.get((node, token))
            if found is None:
                return None
            node = found
        chosen = self._choices[node + 1]
        return None if chosen < 0 else chosen


@dataclass(frozen=True)
class RowStart:
    """A request that starts in a row: how it draws its tokens, and what its output is expected to be.

    `scope`: requests of one scope may draft from each other's text; None: only from its own text.
    `shares_noise`: its drafts may be drawn with the target's noise.
    """

    sampling: RowSampling
    prediction: Prediction | None = None
    scope: str | None = None
    shares_noise: bool = True


class Drafter(ABC):
    """Proposes tokens for the target to verify. One call per round for all rows that use it; one thread calls it.

    A drafter that runs no model (a `ModelDrafter` runs one) is so cheap that it can be asked before the round what it
    would draft (`look_up`), and be scored in rounds in which it did not draft (`score`).
    """

    name: str  # as written in policies
    non_anticipating = True  # it drafts fewer tokens only in the ways that `propose` allows under every method
    learns_from_choices = False  # `observe` must be called

    @abstractmethod
    def propose(self, job: DraftJob) -> Draft:
        """Draft at most `depths` tokens per row.

        Fewer is always exact under a method that asks only whether a token is the target's (`coupled`). Methods that
        weigh it by what it was drawn from (`rejection`, `block`) need drafts that are non-anticipating: whether x_i is
        submitted depends neither on x_i nor on anything drawn, or known, after it. So a drafter may

        - stop before x_i for what is known without it: the text so far, room, a budget, x_1 ... x_(i-1), all of q_i
          (its entropy, its largest probability),
        - stop after x_i for any reason, x_i itself included, if x_i is submitted,
        - leave out what it did not draw: an n-gram's token is a function of the text, as is leaving it out.

        It must not drop a token that it drew for what that is: its replacement is drawn from p, so the tokens that were
        not dropped come too often. With p(a) = 1/2 and q(a) = 5/8, dropping every b gives
        P(a) = p(a) (1 + q(b)) = 0.69.
        """

    def start(self, row: int, start: RowStart) -> None:
        """A request starts, or continues after it gave way, in `row`."""

    def cache_gap(self, row: int, length: int) -> int:  # noqa: ARG002
        """Tokens that it must read before it can draft for a row of `length` tokens, beyond the one or two that every
        round brings.
        """
        return 0

    def look_up(self, row: int, tokens: list[int], max_depth: int) -> list[float]:  # noqa: ARG002
        """Its confidence in each token that it would draft after `tokens`, up to `max_depth`; NaN where unknown."""
        return []

    def score(self, row: int, tokens: list[int], start: int) -> tuple[int, int]:  # noqa: ARG002
        """The number of tokens that it would have drafted after `tokens[:start]` if asked for as many as were emitted
        since (`tokens[start:]`), and how many of them were right.

        Exact for that depth. A deeper draft would have got at least as many right.
        """
        return 0, 0

    def observe(self, row: int, choices: NodeChoices) -> None:
        """Learn from the target's choices after the nodes that it submitted. Between verification and `commit`."""

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:
        """`tokens` is now the text of `row`; the first `valid` of the tokens that the drafter has read were kept."""

    def leave(self, row: int) -> None:
        """The row's request has ended or given way."""


class ModelDrafter(Drafter):
    """A drafter that runs a model, token by token. After `leave`, the row's cache stays for another request.

    Its drafts stop at one of `eos_token_ids`. `description` says in words how it reads and writes the target's text.
    """

    runner: Runner
    eos_token_ids: Collection[int]
    description: str

    @abstractmethod
    def catch_up(self, job: DraftJob) -> tuple[IntArray, int]:
        """Have its model read what rows that draft have missed, except for their last two tokens; how many tokens.

        The depths [B] are of the rows that may draft now with its model run by the caller; see `propose`.
        """

    @abstractmethod
    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the model's cache of the first `length` tokens of `source` to `target`, whose text begins with them.

        With `source == target` the row is cut, and another text follows.
        """

    @abstractmethod
    def free(self, row: int) -> None:
        """Free the row in the model's cache."""

    def activate(self, *, active: bool) -> None:
        """Set whether policies use the drafter at present: an inactive head takes no hidden states."""

    def observe_pass(self, packed: Packed, starts: Sequence[int], states: torch.Tensor) -> None:
        """Take the hidden states [sum(counts), width] of a pass of the target, whose rows begin at `starts` [B]."""

    def observe_commit(self, accepted: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Rows of the latest pass, and which of their drafted nodes were accepted (indices in the row, ascending)."""


@dataclass(frozen=True)
class Loaded:
    """What a drafter may be made from: the target, the draft model if there is one, and tokens that end a text.

    `counts` are those of a corpus, if there are any; `tokenizers` those of target and draft model, if they may differ.
    """

    target: Runner
    draft: Runner | None
    eos_token_ids: Collection[int]
    counts: CorpusTable | None = None
    tokenizers: tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast] | None = None


def make_drafters(loaded: Loaded) -> list[Drafter]:
    """Every drafter of `adaptspec.drafters` for which everything it needs was loaded."""
    names = available_drafters(draft=loaded.draft is not None)
    return [pkgutil.resolve_name(DRAFTERS[name].maker)(loaded) for name in names]
