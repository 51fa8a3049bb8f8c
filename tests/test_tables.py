"""Tables that people and programs can read: nothing is cut off, however narrow the terminal is or where it goes."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from adaptspec.tables import Table, show


@pytest.fixture
def wide() -> Table:
    """What `policy simulate` shows for six policies: far wider than 80 columns."""
    names = ("goodput", "goodput-ngram", "batch-schedule", "static-3", "bandit-linucb", "off")
    table = Table("machine", "work", "batch", "best static", *names, title="goodput relative to off")
    for work in ("translate", "summarise", "code"):
        table.add_row("cpu-2-cores", work, "16", "1.52 draft-model@3", *(f"{1 + i / 7:.2f} (0.97)" for i in range(6)))
    return table


def drawn(table: Table, width: int) -> str:
    console = Console(width=width, file=StringIO())
    with console.capture() as captured:
        console.print(table)
    return captured.get()


@pytest.mark.parametrize("width", [80, 120, 400])
def test_no_figure_and_no_name_is_cut_off(wide: Table, width: int) -> None:
    """At 80 columns figures used to end as `1.…`."""
    text = drawn(wide, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    letters = sorted(letter for row in [wide.columns, *wide.rows] for cell in row for letter in cell if letter != " ")
    below_title = "".join(text.partition("━")[0].splitlines()[1:]) + text.partition("━")[2]
    assert sorted(letter for letter in below_title if letter.isascii() and not letter.isspace()) == letters


def test_a_pipe_gets_whole_lines(
    wide: Table, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No terminal, no width: rich would take 80 columns for granted. Sentences are not broken either."""
    monkeypatch.delenv("COLUMNS", raising=False)
    sentence = "a sentence of many words " * 10 + "[not markup] :smile:"
    show([sentence, wide])
    out = capsys.readouterr().out
    assert sentence in out.splitlines()
    assert out.count("machine") == 1
    assert any(all(name in line for name in wide.columns) for line in out.splitlines())
