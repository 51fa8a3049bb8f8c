"""The short form of the goldens: each shipped policy in a cell of the SmolLM2 tape, and how changes are reported."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from adaptspec.control.language.library import shipped_policies
from adaptspec.simulation.scenarios import IN_TURN
from tests.policies import goldens
from tests.policies.cells import FOLDER, NOT_ON_TAPE, SAMPLED, SPLITS, TABLES, Cell, cells, policies, tape
from tests.policies.goldens import ALL, BEST_FIXED, PLAIN, REFERENCES, Change, changes, measured, recorded

TASKS = tuple(dict.fromkeys(tape().tasks))
# Where a draft pays a little, faults of a policy show first. The default policy is measured with every table.
SAMPLE = [
    *((name, Cell("xeon-bfloat16", SAMPLED, "1")) for name in policies()),
    *(("goodput", Cell(table, SAMPLED, "1")) for table in TABLES if table != "xeon-bfloat16"),
]


@cache
def plain(cell: Cell) -> list[float]:
    """Tokens per second of plain decoding."""
    return measured((PLAIN, cell))


@pytest.mark.whole
@pytest.mark.parametrize(("policy", "cell"), SAMPLE, ids=[f"{name}: {cell}" for name, cell in SAMPLE])
def test_a_policy_earns_what_is_recorded(policy: str, cell: Cell) -> None:
    """After an intended change: python -m tests.policies.goldens record."""
    before = recorded()
    assert str(cell) in before[policy]
    after = {PLAIN: {str(cell): plain(cell)}, policy: {str(cell): measured((policy, cell))}}
    found = list(changes(before, after))
    assert not found, "\n".join(map(str, found))


@pytest.mark.whole
def test_the_best_fixed_depth_earns_what_is_recorded() -> None:
    cell = Cell(TABLES[0], TASKS[0], "1")
    before = recorded()
    assert str(cell) in before[BEST_FIXED]
    after = {name: {str(cell): measured((name, cell))} for name in REFERENCES}
    assert not list(changes(before, after))


@pytest.mark.whole
def test_two_runs_are_equal_bit_for_bit() -> None:
    for name, cell in (("goodput", Cell(TABLES[0], IN_TURN, "4")), ("thompson", Cell(TABLES[1], "json", "1"))):
        one, other = (goldens.goodput(name, cell, 0) for _ in range(2))
        assert one.hex() == other.hex()


@pytest.mark.nightly
def test_all_policies_earn_what_is_recorded() -> None:
    assert goldens.main(["compare"]) == 0


def test_every_policy_has_a_record_of_every_cell() -> None:
    """And the file is as `record` writes it: its summary is that of its figures."""
    figures = recorded()
    assert {*figures} == {*REFERENCES, *(path.stem for path in shipped_policies())} - {*NOT_ON_TAPE}
    for own in figures.values():
        assert list(own) == [str(cell) for cell in cells()]
        assert all(len(values) == SPLITS and min(values) > 0.0 for values in own.values())
    assert goldens.written(figures) == goldens.FILE.read_text(encoding="utf-8")


CELL = "epyc-float32 | code | 1"
BEFORE = {PLAIN: {CELL: [10.0] * 5}, "goodput": {CELL: [12.0, 13.0, 14.0, 15.0, 16.0]}}


@pytest.mark.parametrize(
    ("factors", "reported"),
    [
        ([1.0] * 5, False),
        ([0.995] * 5, False),  # less than the tolerance
        ([0.90, 1.06, 0.93, 1.05, 0.98], False),  # 0.984 in the mean, but the splits disagree
        ([0.97, 0.98, 0.96, 0.99, 0.97], True),
        ([1.03, 1.02, 1.04, 1.01, 1.03], True),  # a gain is recorded, too
    ],
)
def test_only_a_change_beyond_its_interval_is_reported(factors: list[float], *, reported: bool) -> None:
    after = {**BEFORE, "goodput": {CELL: np.multiply(BEFORE["goodput"][CELL], factors).tolist()}}
    found = list(changes(BEFORE, after))
    assert [(one.policy, one.cell) for one in found] == [("goodput", CELL)] * reported


def test_a_small_change_in_all_cells_is_reported() -> None:
    before = {name: {str(i): values[CELL] for i in range(3)} for name, values in BEFORE.items()}
    after = {**before, "goodput": {cell: [0.992 * value for value in own] for cell, own in before["goodput"].items()}}
    assert [one.cell for one in changes(before, after)] == [ALL]


def test_a_machine_of_another_speed_changes_no_earnings() -> None:
    """Where all seconds are longer, plain decoding is reported, and policies are not."""
    after = {name: {CELL: [0.5 * value for value in own[CELL]]} for name, own in BEFORE.items()}
    assert [one.policy for one in changes(BEFORE, after)] == [PLAIN]


def test_a_report_names_policy_cell_and_both_values() -> None:
    text = str(Change("goodput", CELL, 1.4, 1.3, (0.93, 0.92, 0.94)))
    assert text == "goodput | epyc-float32 | code | 1: 1.4 before, 1.3 after; ratio 0.9300 (0.9200 to 0.9400)"


@pytest.mark.whole
def test_compare_fails_on_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command exits with 0 on what is recorded, and with 1 once a figure in the file is another one."""
    asked = ["compare", "--policy", "static-3", "--only", CELL, "--jobs", "1"]
    assert goldens.main(asked) == 0
    figures = json.loads(json.dumps(recorded()))
    figures["static-3"][CELL] = [1.05 * value for value in figures["static-3"][CELL]]
    changed = tmp_path / "goldens.json"
    changed.write_text(goldens.written(figures), encoding="utf-8")
    monkeypatch.setattr(goldens, "FILE", changed)
    capsys.readouterr()
    assert goldens.main(asked) == 1
    assert f"static-3 | {CELL}: " in capsys.readouterr().out


def test_the_tape_has_no_text() -> None:
    """Words are names of requests, tasks and sources; numbers are too small for tokens, but for lengths and seeds."""
    with np.load(FOLDER / "smollm2.npz", allow_pickle=False) as arrays:
        words = {name: arrays[name] for name in arrays.files if arrays[name].dtype.kind == "U"}
        positions = {name: arrays[name].dtype for name in arrays.files if name[0].isdigit()}
        rest = {*arrays.files} - {*words, *positions}
    assert {*words} == {"header", "ids", "tasks", "sources"}
    assert rest == {"prompt_tokens", "lengths", "max_tokens", "temperatures", "seeds", "sizes"}
    assert {str(dtype) for dtype in positions.values()} == {"uint8", "float16"}
    assert all(re.fullmatch(r"[a-z]+-\d@0(\.8)?", name) for name in words["ids"].tolist())
    assert all(re.fullmatch(r"[a-z0-9_/-]+", name) for name in {*words["sources"].tolist()})
    assert {*json.loads(str(words["header"]))["about"]} == {"target", "models", "dtype", "verification"}


def test_the_tape_is_what_the_goldens_ask_for() -> None:
    assert tape().drafters == ("draft-model", "ngram", "counts")
    assert len(TASKS) == 10
    for temperature in (0.0, 0.8):
        own = tape().at_temperature(temperature)
        assert all(own.tasks.count(task) >= 8 for task in TASKS)
    assert (FOLDER / "smollm2.npz").stat().st_size < 3 * 2**20


def test_the_best_fixed_depth_is_never_below_plain_decoding() -> None:
    figures = recorded()
    assert all(np.greater_equal(values, figures[PLAIN][cell]).all() for cell, values in figures[BEST_FIXED].items())
