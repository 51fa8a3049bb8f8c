"""Cells: every task at every batch size, the worst case, and the mixed streams."""

from __future__ import annotations

from adaptspec.simulation.cells import IN_PHASES, IN_TURN, WRONG, mixed_cells, task_cells
from adaptspec.simulation.scenarios import Schedule
from tests.simulation.tapes import made_tape


def test_every_task_and_the_worst_case_at_every_batch_size() -> None:
    cells = task_cells(made_tape(), [Schedule((1,)), Schedule((1, 4, 1))])
    assert {(cell.work, cell.batch) for cell in cells} == {
        (work, batch) for work in ("code", "json", "rag", WRONG) for batch in ("1", "1-4-1")
    }
    for cell in cells:
        tape = cell.stream.tape
        assert cell.work == WRONG or set(tape.tasks) == {cell.work}
        assert tape.views["draft-model"].agreed.any() == (cell.work != WRONG)
        assert not cell.mixed


def test_mixed_streams_hold_all_tasks() -> None:
    cells = mixed_cells(made_tape(), [Schedule((4,))])
    assert [cell.work for cell in cells] == [IN_TURN, IN_PHASES]
    assert all(cell.mixed and set(cell.stream.tape.tasks) == {"code", "json", "rag"} for cell in cells)
