"""What a trace says of a request in words, and what it says of the choice that was not made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.decision import Expected, Reason
from adaptspec.request import Request
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.request_record import RequestRecord, RowRound
from adaptspec.telemetry.request_spans import of_decoding, of_round, summary
from tests.control.helpers import record
from tests.telemetry.feeding import made
from tests.trees import SIBLING, branching

DRAFTERS = ("draft-model", "ngram")


def lived(*rounds: RoundRecord, drafted: int = 0, accepted: int = 0, nodes: int = 0) -> RequestRecord:
    store, _ = made(lambda store: setattr(store, "detailed", True), drafters=DRAFTERS)
    store.started(Request("a", (1,)))
    for one in rounds:
        store.emit(replace(one, request_ids=("a",)))
    store.settle()
    one = store.running["a"]
    one.history.close(DRAFTERS)
    stats = SpeculationStats("goodput", len(rounds), drafted=drafted, accepted=accepted, nodes=nodes)
    one.completion = Completion("a", "", (), 1, FinishReason.STOP, stats, Timings(0.0, 0.0, 0.0, 1.0))
    return one


def plain(reason: Reason, chosen: float = np.nan, other: float = np.nan) -> RoundRecord:
    one = record([0], [0], depths=[0])
    expected = None if np.isnan(chosen) else Expected(chosen, np.array([0.0]), other)
    return replace(one, reasons=np.array([int(reason)]), expected=expected)


def test_who_drafted_is_told_what_it_brought_and_what_it_was_worth() -> None:
    drafting = replace(record([3], [2]), expected=Expected(900.0, np.array([2.0]), 500.0))
    one = lived(*[drafting] * 3, plain(Reason.OFF, 500.0, 400.0), drafted=9, accepted=6)
    assert summary(one, DRAFTERS) == (
        "4 rounds, 3 drafted, most often draft-model at 3; 6 of 9 drafted tokens kept; plain decoding 1.8 x the price "
        "of drafting; 1 not drafted: drafting 1.2 x the price of plain"
    )
    said = of_decoding(one, DRAFTERS)
    assert said["adaptspec.decision.alternative"] == "off"
    assert said["adaptspec.decision.goodput"] == pytest.approx(900.0)
    assert said["adaptspec.decision.alternative_goodput"] == pytest.approx(500.0)


def test_trees_are_told_by_their_nodes_and_paths() -> None:
    """A path is told by ranks: that of SIBLING began with a second choice. Of chains nothing is said twice."""
    one = lived(branching(SIBLING), record([2], [1]), drafted=5, accepted=3, nodes=7)
    assert "; 3 of 5 drafted tokens kept, of 7 nodes" in summary(one, DRAFTERS)
    said = of_decoding(one, DRAFTERS)
    assert (said["adaptspec.spec.drafted"], said["adaptspec.spec.nodes"]) == ("[3, 2]", "[5, 2]")
    assert said["adaptspec.spec.path"] == "[[1, 1], null]"
    assert said["adaptspec.spec.drafted_nodes"] == 7
    tree, chain = map(RowRound._make, one.history.kept)
    assert of_round(tree, DRAFTERS)["adaptspec.spec.path"] == (1, 1)
    assert not of_round(chain, DRAFTERS).keys() & {"adaptspec.spec.nodes", "adaptspec.spec.path"}
    of_chains = of_decoding(lived(record([2], [1]), drafted=2, accepted=1, nodes=2), DRAFTERS)
    assert not of_chains.keys() & {"adaptspec.spec.nodes", "adaptspec.spec.path"}
