"""Journals before version 5: the passes of a round are estimated from its sums and its nodes."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from adaptspec.errors import JournalError
from adaptspec.journal import to_line
from adaptspec.rounds import DraftWork, RoundRecord, RoundWork
from tests.control.helpers import record
from tests.files.samples import HEADER, SAMPLES
from tests.records import read_journal
from tests.trees import CHAIN, Grown, branching, forests

DRAFTERS = ("draft-model", "ngram")


def work_of(
    ran: RoundRecord, drafters: tuple[str, ...] = DRAFTERS, *, caught_up: int = 0, steps: int = 0, whole: str = ""
) -> RoundWork:
    """The work that is read of a round from a journal of version 4, by a server of these drafters.

    Drafters in `whole` ran every pass over all rows.
    """
    plain = json.loads(to_line(ran))
    work, timing = plain.pop("work"), plain.pop("timing")
    plain |= {"prefill_tokens": work["prefill_tokens"], "draft_steps": steps, "caught_up": caught_up, "decision": 1}
    plain["verify_tokens"] = work["verify_tokens"] + work["prefill_tokens"]
    plain |= {f"{part}_seconds": value for part, value in zip(("draft", "verify", "total"), timing, strict=True)}
    profiles = {name: {"together": name in whole.split()} for name in drafters}
    header = replace(HEADER, version=4, drafters=list(drafters), costs={"drafters": profiles})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j"
        path.write_text(f"{to_line(header)}\n{json.dumps(plain)}\n", encoding="utf-8")
        (read,) = read_journal(path)
    assert read.timing == ran.timing
    return read.work


def passes(ran: RoundRecord) -> list[tuple[str, int, tuple[int, ...]]]:
    return [(one.drafter, one.rows, one.passes) for one in work_of(ran, ("draft-model", "other-model")).drafts]


@pytest.mark.parametrize("version", [3, 4])
def test_the_samples_of_older_versions_have_their_sums(version: int) -> None:
    rounds = list(read_journal(SAMPLES / f"journal-{version}.jsonl"))
    lines = (SAMPLES / f"journal-{version}.jsonl").read_text(encoding="utf-8").splitlines()
    recorded = [plain for plain in map(json.loads, lines) if plain["type"] == "round"]
    assert len(rounds) == len(recorded) > 0
    for read, plain in zip(rounds, recorded, strict=True):
        assert read.target_tokens == plain["verify_tokens"]
        for name in ("prefill_tokens", "draft_steps", "caught_up"):
            assert getattr(read, name) == plain[name], name
        assert read.timing.total == plain["total_seconds"]


def test_rows_leave_a_draft_one_after_another() -> None:
    work = work_of(record([3, 1], [1, 0]))
    assert work == RoundWork(2, 6, 200.0, (DraftWork("draft-model", 2, (2, 1, 1)),))


def test_whole_drafts_run_every_pass_over_all_rows() -> None:
    """Also over the row that does not draft."""
    work = work_of(record([3, 1, 0], [1, 0, 0]), steps=3, whole="draft-model")
    assert work.drafts == (DraftWork("draft-model", 2, (3, 3, 3)),)


def test_prompts_are_no_verified_tokens() -> None:
    work = work_of(record([2], [1], prefill=100))
    assert (work.verify_tokens, work.prefill_tokens) == (3, 100)


def test_plain_rounds_have_no_drafts() -> None:
    assert work_of(record([0, 0], [0, 0])).drafts == ()


def test_a_row_that_only_caught_up_is_in_the_first_pass() -> None:
    read = work_of(record([0], [0], depths=[2]), caught_up=300)
    assert read.drafts == (DraftWork("draft-model", 1, (1,), 300),)
    both = work_of(record([2, 0], [0, 0], depths=[2, 2]), caught_up=300)
    assert both.drafts == (DraftWork("draft-model", 2, (2, 1), 300),)


def test_passes_whose_tokens_were_dropped_still_ran() -> None:
    """The stop rule may drop all tokens of a pass; the sum of the round has them."""
    assert work_of(record([0, 0], [0, 0], depths=[3, 3]), steps=3).drafts == (DraftWork("draft-model", 2, (2, 2, 2)),)
    assert work_of(record([2, 1], [0, 0]), steps=4).drafts == (DraftWork("draft-model", 2, (2, 1, 1, 1)),)
    assert work_of(record([0], [0], depths=[3]), steps=2, whole="draft-model").drafts == (
        DraftWork("draft-model", 1, (1, 1)),
    )
    assert work_of(record([0], [0], drafter=[1], depths=[3])).drafts == ()


@pytest.mark.parametrize(
    "damage",
    [{"drafted": [2**60]}, {"drafted": [-1]}, {"drafter": [-1]}, {"draft_steps": 2**60}, {"draft_steps": -1}],
    ids=str,
)
def test_damaged_rounds_are_refused(damage: dict[str, object], tmp_path: Path) -> None:
    """Counts that no server writes would take memory without end, or count from the end of a list of names."""
    lines = (SAMPLES / "journal-4.jsonl").read_text(encoding="utf-8").splitlines()
    rounds = [(at, plain) for at, plain in enumerate(map(json.loads, lines)) if plain["type"] == "round"]
    at, plain = next((at, plain) for at, plain in rounds if plain["drafted"] == [3])
    del plain["branches"]
    lines[at] = json.dumps(plain | damage)
    path = tmp_path / "j"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(JournalError, match=f"j:{at + 1}: no line of a journal"):
        list(read_journal(path))


def test_rows_of_two_drafters_are_counted_apart() -> None:
    work = work_of(record([2, 3, 1], [0, 0, 0], drafter=[0, 1, 0]))
    assert work.drafts == (DraftWork("draft-model", 2, (2, 1)), DraftWork("ngram", 1))


def test_drafters_share_the_sums_of_a_round() -> None:
    """An old round has one sum of caught-up tokens and one of draft passes. Lookups read and run nothing."""
    names, ran = ("draft-model", "ngram", "other-model"), record([3, 2, 1, 1], [0] * 4, drafter=[0, 1, 2, 0])
    stopping = work_of(ran, names, caught_up=300, steps=4).drafts
    assert {one.drafter: one.catch_up_tokens for one in stopping} == {
        "draft-model": 200.0,
        "ngram": 0.0,
        "other-model": 100.0,
    }
    whole = work_of(ran, names, steps=4, whole="draft-model other-model").drafts
    assert {one.drafter: one.passes for one in whole} == {"draft-model": (4, 4, 4), "ngram": (), "other-model": (4,)}


def test_a_drafter_without_a_name_is_still_counted() -> None:
    assert [one.drafter for one in work_of(record([1], [0], drafter=[1]), ("draft-model",)).drafts] == [""]


@settings(max_examples=50, deadline=None)
@given(forests())
def test_a_drafter_pays_for_the_nodes_that_it_extended(one: RoundRecord) -> None:
    """Siblings come from one pass; each part of a tree is paid once, by the drafter that proposed it."""
    assert one.branches is not None
    drafters = one.branches.tree.drafter.tolist()
    for drafter_id, name in enumerate(("draft-model", "other-model")):
        nodes = drafters.count(drafter_id)
        for drafter, rows, active in passes(one):
            if drafter == name:
                assert active[0] == rows <= len(one.rows)
                assert sum(active[1:]) <= nodes


def test_side_nodes_cost_no_further_pass() -> None:
    """A sibling takes no pass of the draft model, only tokens of the target's pass."""
    siblings = Grown([-1, 0, 1, -1, 0, 1], 3)
    for one in (record([3, 2], [1, 0]), branching(siblings, CHAIN), branching(Grown([-1, 0, 1], 3), CHAIN)):
        assert passes(one) == [("draft-model", 2, (2, 2, 1))]


def test_nodes_that_are_extended_side_by_side_are_rows_of_one_pass() -> None:
    assert passes(branching(Grown([-1, 0, -1, 2, 2], 2))) == [("draft-model", 1, (1, 2))]


def test_a_union_is_paid_by_both_drafters() -> None:
    union = branching(Grown([-1, 0, -1, 2], 2, drafters=[0, 0, 1, 1]))
    assert [one.drafter for one in work_of(union).drafts] == ["draft-model", "ngram"]
