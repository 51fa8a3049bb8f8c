"""The drafters there are: name, kind, and where each is made. To add one: its file, its test, and a line in `DRAFTERS`.

The control plane reads names and kinds here, so nothing of a drafter is imported until an engine makes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """What a drafter is, by what its drafts cost (`CostModel` has the seconds, learned from the first round on)."""

    MODEL = "model"  # a step per token, over the rows that draft that deep; what it has not read must be caught up
    MODEL_FREE = (
        "model-free"  # next to nothing per row: it says beforehand what it has found, and is scored where it is idle
    )
    HEAD = "head"  # steps like a model's, from the target's own states: nothing to catch up
    BLOCK = "block"  # one pass for all tokens of a draft
    HOST = "host"  # whatever another engine's own drafter takes


@dataclass(frozen=True)
class Entry:
    """One drafter. `maker` is `module:function` or `module:Class.function`, called with `drafting.drafter.Loaded`.

    `needs_draft`: it runs a draft model, which must have been given. `by_default`: policies that name no drafters use
    it.
    """

    name: str
    kind: Kind
    maker: str
    needs_draft: bool = False
    by_default: bool = True


# In the order that engines have them.
DRAFTERS: Mapping[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("draft-model", Kind.MODEL, "adaptspec.drafting.cross_tokenizer:make", needs_draft=True),
        Entry("ngram", Kind.MODEL_FREE, "adaptspec.drafting.lookup:make_ngram"),
        Entry("counts", Kind.MODEL_FREE, "adaptspec.drafting.lookup:make_counts"),
        # It only learns where drafts branch, and then takes some thirty tokens of every pass, so policies must name it.
        Entry("lookahead", Kind.MODEL_FREE, "adaptspec.drafting.lookahead:LookaheadDrafter.make", by_default=False),
    )
}


def kind_of(name: str) -> Kind:
    """The kind of a drafter. Simulations may have several models, by names of their own."""
    return DRAFTERS[name].kind if name in DRAFTERS else Kind.MODEL


def default_drafters(here: Sequence[str]) -> tuple[str, ...]:
    """The drafters of a policy that names none, on a server that has those that are `here`, in the same order."""
    return tuple(name for name in here if name not in DRAFTERS or DRAFTERS[name].by_default)


def available_drafters(*, draft: bool) -> tuple[str, ...]:
    """Names of the drafters that an engine can make, with a `draft` model or without."""
    return tuple(name for name, entry in DRAFTERS.items() if draft or not entry.needs_draft)
