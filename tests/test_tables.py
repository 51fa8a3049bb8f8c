"""Tables that people and programs can read: nothing is cut off, however narrow the terminal is or where it goes."""

from __future__ import annotations

import csv
from io import StringIO

import pytest
from rich.console import Console

from adaptspec.command_line import CSV, MARKDOWN
from adaptspec.tables import Table, show


@pytest.fixture
def wide() -> Table:
    """What `policy simulate` shows for six policies: far wider than 80 columns."""
    names = ("goodput", "goodput-ngram", "batch-schedule", "static-3", "bandit-linucb", "off")
    table = Table("machine", "work", "batch", "best static", *names, title="goodput relative to off", keys=3)
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
    words = {word for row in [wide.columns, *wide.rows] for cell in row for word in cell.split()}
    assert {word for word in words if word not in text} == set()


def test_every_part_of_a_wide_table_says_which_row_is_which(wide: Table) -> None:
    text = drawn(wide, 80)
    parts = text.count("machine")
    assert parts > 1
    assert text.count("translate") == text.count("cpu-2-cores") // 3 == parts
    assert drawn(wide, 400).count("machine") == 1


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


def test_csv_is_read_back_by_programs(wide: Table, capsys: pytest.CaptureFixture[str]) -> None:
    """Commas and quotes included; what is no table goes where no program reads it."""
    wide.add_row("a, b", 'say "x"', "1", *["2"] * 7)
    show(["a sentence", wide], CSV)
    told = capsys.readouterr()
    assert [tuple(row) for row in csv.reader(StringIO(told.out))] == [wide.columns, *wide.rows]
    assert told.err == "a sentence\n"


def test_markdown_has_its_cells_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    """Bars and line breaks in a cell would be taken for the table's own; figures stand right."""
    table = Table("why", "share", title="reasons")
    table.add_row("guard | off\nagain", "12%")
    table.add_row("policy", "-")
    show(["It drafted.", table], MARKDOWN)
    assert capsys.readouterr().out.splitlines() == [
        "It drafted.",
        "",
        "**reasons**",
        "",
        "| why | share |",
        "| --- | ---: |",
        "| guard \\| off again | 12% |",
        "| policy | - |",
    ]
