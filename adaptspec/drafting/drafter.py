"""The interface of drafters, which propose tokens for the target to verify."""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerFast

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.decision import StopTable, TreeTable
from adaptspec.draft_tree import DraftTree, matching_path
from adaptspec.drafters import DRAFTERS, available_drafters
from adaptspec.drafting.ngram_index import CorpusTable, CountedText
from adaptspec.drafting.prediction import Prediction
from adaptspec.models.runner import Packed, Runner
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.rounds import DraftWork


@dataclass(frozen=True)
class DraftJob:
    """The B rows of a round to draft for, each with its token list (prompt + output, not copied) and its depth.

    Rows of depth 0 are skipped. `shares_noise`: sample with the target's noise (coupled) instead of the draft's.
    `keep_distribution`: return the distributions that tokens were sampled from. `stop`: when rows stop before their
    depth (None: never). `draft_temperature` [B, 2]: see `draft_temperatures` (None: sample from unchanged scores).
    `tree`: which candidates a drafter may submit in addition to its first choice (None: drafts are chains).
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
    """The drafted tokens of a round's B rows, and the work of drafting them."""

    tree: DraftTree
    work: tuple[DraftWork, ...] = ()


class NodeChoices:
    """The tokens that the target chose after the nodes of one row's draft."""

    def __init__(self, draft: DraftTree, row: int, choices: list[int]) -> None:
        """`choices` [nodes + 1]: after the newest token and after each node, -1 where unknown."""
        self._children = draft.children(row)
        self._choices = choices

    def after(self, path: Sequence[int]) -> int | None:
        """The token that the target chose after the drafted tokens `path`; None if not drafted or unknown."""
        nodes = matching_path(self._children, path)
        if len(nodes) < len(path):
            return None
        chosen = self._choices[nodes[-1] + 1 if nodes else 0]
        return None if chosen < 0 else chosen


@dataclass(frozen=True)
class RowStart:
    """A request that starts in a row: how it samples, and its predicted output.

    `scope`: requests of one scope may draft from each other's text; None: the request drafts from its text only.
    `shares_noise`: its drafts may be drawn with the target's noise. `text` counts its text for all lookup drafters.
    """

    sampling: RowSampling
    prediction: Prediction | None = None
    scope: str | None = None
    shares_noise: bool = True
    text: CountedText = field(default_factory=CountedText)


class Drafter(ABC):
    """Proposes tokens for the target to verify. One call per round for all rows that use it, always on one thread.

    Model-free drafters (all but `ModelDrafter`s) are cheap. They report before the round how much they would draft
    (`look_up`), and are scored in rounds in which they did not draft (`score`).
    """

    name: str  # as written in policies
    non_anticipating = True  # it shortens drafts only as `propose` allows under every method
    learns_from_choices = False  # `observe` must be called

    @abstractmethod
    def propose(self, job: DraftJob) -> Draft:
        """Draft at most `depths` tokens per row.

        Under a method that only compares tokens with the target's (`coupled`), a shorter draft is always exact. Methods
        that use the draft's distribution (`rejection`, `block`) need drafts that are non-anticipating: whether x_i is
        submitted depends neither on x_i nor on anything drawn, or known, after it. So a drafter may

        - stop before x_i for reasons that do not depend on x_i: the text so far, cache room, a budget, x_1 ... x_(i-1),
          q_i (its entropy, its largest probability),
        - stop after x_i for any reason, x_i itself included, if x_i is submitted,
        - omit tokens that it did not sample: an n-gram's token is a function of the text, and so is omitting it.

        It must not drop a sampled token because of its value: the replacement is drawn from p, so the values that are
        not dropped become too frequent. With p(a) = 1/2 and q(a) = 5/8, dropping every b gives
        P(a) = p(a) (1 + q(b)) = 0.69.
        """

    def start(self, row: int, start: RowStart) -> None:
        """A request starts, or continues after it gave way, in `row`."""

    def cache_gap(self, row: int, length: int) -> int:  # noqa: ARG002
        """Tokens that the drafter must read before it can draft for a row of `length` tokens, in addition to the one or
        two of every round.
        """
        return 0

    def look_up(self, row: int, tokens: list[int], max_depth: int) -> list[float]:  # noqa: ARG002
        """The confidence in each token that would be drafted after `tokens`, at most `max_depth`; NaN where unknown."""
        return []

    def score(self, row: int, tokens: list[int], start: int) -> tuple[int, int]:  # noqa: ARG002
        """The number of tokens that would have been drafted after `tokens[:start]` at a depth of `len(tokens) - start`,
        and how many of them match the emitted `tokens[start:]`.

        Exact for that depth. A deeper draft would have matched at least as many.
        """
        return 0, 0

    def observe(self, row: int, choices: NodeChoices) -> None:
        """Learn from the target's choices after the submitted nodes. Called between verification and `commit`."""

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:
        """Update `row`, whose text is now `tokens`; of the tokens that the drafter has read, `valid` remain."""

    def leave(self, row: int) -> None:
        """The row's request has ended or gave way."""


class ModelDrafter(Drafter):
    """A drafter that runs a model. After `leave`, the row's cache is kept for another request.

    Drafts stop at one of `eos_token_ids`. `description` states for users which tokens the model drafts in.
    """

    runner: Runner
    eos_token_ids: Collection[int]
    description: str

    @abstractmethod
    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the model's cache of the first `length` tokens of `source` to `target`, whose text begins with them.

        With `source == target` the row's cache is cut to `length`, and another text follows.
        """

    @abstractmethod
    def free(self, row: int) -> None:
        """Free the row in the model's cache."""

    def activate(self, *, active: bool) -> None:
        """Set whether policies use the drafter at present. An inactive head receives no hidden states."""

    def observe_pass(self, packed: Packed, starts: Sequence[int], states: torch.Tensor) -> None:
        """Receive hidden states [sum(counts), width] of a target pass whose rows begin at positions `starts` [B]."""

    def observe_commit(self, accepted: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Receive rows of the latest pass with the accepted nodes of each (indices within the row, ascending)."""


@dataclass(frozen=True)
class Loaded:
    """The loaded parts that drafters are made from: the target, an optional draft model, and EOS tokens.

    `counts` is an n-gram table of a corpus. `tokenizers` are those of the target and the draft model, if these may
    differ.
    """

    target: Runner
    draft: Runner | None
    eos_token_ids: Collection[int]
    counts: CorpusTable | None = None
    tokenizers: tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast] | None = None


def make_drafters(loaded: Loaded) -> list[Drafter]:
    """Make every drafter of `adaptspec.drafters` whose required parts were loaded."""
    names = available_drafters(draft=loaded.draft is not None)
    return [pkgutil.resolve_name(DRAFTERS[name].maker)(loaded) for name in names]
