"""Explanations: every row-round is counted once, in the right place, and expectations are those that were noted."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.analysis.explain import explain
from adaptspec.analysis.journal_rounds import JournalLog
from adaptspec.cli import main
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.decision import Reason
from adaptspec.errors import JournalError
from adaptspec.simulation.scenarios import Schedule, stream
from tests.analysis.logs import policy, write_journal
from tests.policies.tapes import made_tape, with_candidates

POLICY, GUARD, PROBE = int(Reason.POLICY), int(Reason.GUARD), int(Reason.PROBE)


@pytest.mark.parametrize(("name", "batch"), [("goodput", 1), ("thompson", 4)])
def test_the_parts_add_up_to_the_journal(name: str, batch: int, tmp_path: Path) -> None:
    """By reason, by depth and by task the same rows, tokens and seconds are summed up."""
    path = tmp_path / "j"
    records = write_journal(path, load_policy_spec(find_policy(name)), stream(made_tape(), Schedule((batch,))))
    found = explain(JournalLog(path), name, rounds=3)
    assert found.total.rows == sum(len(record.rows) for record in records)
    assert found.total.emitted == sum(int(record.emitted.sum()) for record in records)
    assert found.total.seconds == pytest.approx(sum(record.timing.total for record in records))
    for part in (found.reasons, found.depths, found.tasks):
        assert sum(group.rows for group in part.values()) == found.total.rows
        assert sum(group.accepted for group in part.values()) == found.total.accepted
    assert set(found.tasks) == set(made_tape().tasks)
    assert [line.number for line in found.lines] == [n for r in records[-3:] for n in [r.number] * len(r.rows)]
    expected = sum(
        float(record.expected.accepted[record.drafted > 0].sum()) for record in records if record.expected is not None
    )
    assert found.total.expected == pytest.approx(expected)
    assert found.to_json()["requests"] == len(found.requests)


def test_nodes_are_told_where_drafts_branch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside what was drafted, which stays the longest path; a policy of chains has nothing to say of them."""
    for width in (1, 4):
        path = tmp_path / f"j{width}"
        wide = policy(f"{{choose: {{algorithm: static, depth: 3}}, max-width: {width}}}")
        records = write_journal(path, wide, stream(with_candidates(made_tape()), Schedule((1,))))
        total = explain(JournalLog(path), "made").total
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
    found = explain(JournalLog(path), "goodput", request=name, rounds=1000)
    assert {line.request for line in found.lines} == {name}
    assert found.total.rows == len(found.lines) == sum(name in record.request_ids for record in records)
    with pytest.raises(JournalError, match="there is no request 'x'"):
        explain(JournalLog(path), "goodput", request="x")
    with pytest.raises(JournalError, match="ran under policy 'goodput'"):
        explain(JournalLog(path), "off", request=name)
    with pytest.raises(JournalError, match=r"it has rounds of: goodput"):
        explain(JournalLog(path), "off")
