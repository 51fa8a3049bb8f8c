"""Explanations: every row-round is counted once, in the right place, and expectations are those that were noted."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.analysis.explain import explain
from adaptspec.analysis.journal_reader import JournalReader
from adaptspec.cli import main
from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.errors import JournalError
from adaptspec.simulation.machine import load_machine
from adaptspec.simulation.scenarios import Schedule, stream
from adaptspec.simulation.simulator import replay, static_spec
from adaptspec.telemetry.speedup import Estimate, round_features, speedup
from tests.analysis.logs import policy, write_journal
from tests.policies.tapes import made_tape, with_candidates


@pytest.mark.parametrize(("name", "batch"), [("goodput", 1), ("thompson", 4)])
def test_the_parts_add_up_to_the_journal(name: str, batch: int, tmp_path: Path) -> None:
    """By reason, by depth and by task the same rows, tokens and seconds are summed up."""
    path = tmp_path / "j"
    records = write_journal(path, load_policy_spec(find_policy(name)), stream(made_tape(), Schedule((batch,))))
    found = explain(JournalReader(path), name, last_rounds=3)
    total = found.total.sums
    assert (total.rounds, total.rows) == (len(records), sum(len(record.rows) for record in records))
    assert total.emitted == sum(int(record.emitted.sum()) for record in records)
    assert total.seconds == pytest.approx(sum(record.timing.total for record in records))
    for part in (found.reasons, found.depths, found.tasks):
        sums = [group.sums for group in part.values()]
        assert sum(one.rows for one in sums) == total.rows
        assert sum(one.accepted for one in sums) == total.accepted
        assert sum(one.seconds for one in sums) == pytest.approx(total.seconds)
    assert set(found.tasks) == set(made_tape().tasks)
    assert [line.round.number for line in found.lines] == [n for r in records[-3:] for n in [r.number] * len(r.rows)]
    assert [line.round.rows for line in found.lines] == [len(r.rows) for r in records[-3:] for _ in r.rows]
    expected = sum(
        float(record.expected.accepted[record.drafted > 0].sum()) for record in records if record.expected is not None
    )
    assert total.expected_accepted == pytest.approx(expected)
    assert found.to_json()["requests"] == len(found.requests)


def test_the_speed_up_is_that_of_the_server(tmp_path: Path) -> None:
    """By the cost model that learned from the same rounds; without drafts exactly 1."""
    path = tmp_path / "j"
    records = write_journal(path, static_spec(3), stream(made_tape(), Schedule((1,))))
    costs = CostModel(load_machine("cpu-2-cores").profile())
    for record in records:
        costs.observe(record.work, record.timing)
    ran, plain = round_features(costs, records)
    found = explain(JournalReader(path), "static-3")
    assert found.total.gain == speedup(costs, ran.sum(axis=0), plain.sum(axis=0)) is not None
    write_journal(path, static_spec(0), stream(made_tape(), Schedule((1,))))
    assert explain(JournalReader(path), "static-0").total.gain == Estimate(1.0, 1.0, 1.0)


def test_the_best_fixed_depth_is_that_of_a_replay(tmp_path: Path) -> None:
    """From a journal at depth 5, which shows every lower depth exactly."""
    path, work = tmp_path / "j", stream(made_tape(count=8), Schedule((1,)))
    write_journal(path, static_spec(5), work)
    best = explain(JournalReader(path), "static-5").best_fixed
    assert best is not None
    assert best.drafter == "draft-model"
    assert best.guessed < 0.2
    machine = load_machine("cpu-2-cores")
    goodput = {depth: replay(static_spec(depth), work, machine).goodput for depth in (0, 1, 2, 3, 4, 5, 7)}
    real = goodput[best.depth] / goodput[0]
    assert real >= 0.98 * max(goodput.values()) / goodput[0]
    assert best.gain.low <= real <= best.gain.high


def test_without_drafts_no_fixed_depth_is_known(tmp_path: Path) -> None:
    write_journal(tmp_path / "j", static_spec(0), stream(made_tape(), Schedule((1,))))
    assert explain(JournalReader(tmp_path / "j"), "static-0").best_fixed is None


def test_nodes_are_reported_where_drafts_branch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for width in (1, 4):
        path = tmp_path / f"j{width}"
        wide = policy(f"{{choose: {{algorithm: static, depth: 3}}, max-width: {width}}}")
        records = write_journal(path, wide, stream(with_candidates(made_tape()), Schedule((1,))))
        total = explain(JournalReader(path), "made").total.sums
        assert total.drafted == sum(int(record.drafted.sum()) for record in records)
        assert total.nodes == sum(int(record.nodes.sum()) for record in records)
        assert (total.nodes > total.drafted) == (width > 1)
        assert main(["policy", "explain", "made", "--journal", str(path), "--rounds", "3"]) == 0
        said = capsys.readouterr().out
        assert (f"{total.nodes:,} nodes" in said) == ("nodes" in said) == (width > 1)


def test_one_request_is_explained_alone(tmp_path: Path) -> None:
    path = tmp_path / "j"
    records = write_journal(path, load_policy_spec(find_policy("goodput")), stream(made_tape(count=1), Schedule((2,))))
    name = records[0].request_ids[0]
    found = explain(JournalReader(path), "goodput", request=name, last_rounds=1000)
    assert {line.request for line in found.lines} == {name}
    assert found.total.sums.rows == len(found.lines) == sum(name in record.request_ids for record in records)
    with pytest.raises(JournalError, match="there is no request 'x'"):
        explain(JournalReader(path), "goodput", request="x")
    with pytest.raises(JournalError, match="ran under policy 'goodput'"):
        explain(JournalReader(path), "off", request=name)
    with pytest.raises(JournalError, match=r"it has rounds of: goodput"):
        explain(JournalReader(path), "off")
