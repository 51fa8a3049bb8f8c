"""Tables for people, drawn by rich: as wide as the terminal is, and in whole lines into a pipe. Nothing is cut off."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table as Drawing
from rich.text import Text

_ENDLESS = 10_000  # columns of a pipe: no line is longer
_FIGURE = re.compile(r"[-+<~]?\d.*")
_UNKNOWN = ("", "-")


class Table:
    """Rows of text under columns. Columns of figures are aligned right."""

    def __init__(self, *columns: str, title: str = "") -> None:
        self.columns = columns
        self.title = title
        self.rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        """One more row, of a cell for each column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def __rich__(self) -> Drawing:
        """Rich's protocol. Cells are folded where a terminal is too narrow for them."""
        drawing = Drawing(title=Text(self.title) if self.title else None)
        for i, column in enumerate(self.columns):
            known = [row[i] for row in self.rows if row[i] not in _UNKNOWN]
            figures = bool(known) and all(map(_FIGURE.fullmatch, known))
            drawing.add_column(Text(column), justify="right" if figures else "left", overflow="fold")
        for row in self.rows:
            drawing.add_row(*map(Text, row))
        return drawing


def table_of(rows: Sequence[Mapping[str, object]], title: str = "") -> Table:
    """A table with a column for each key that any row has, and floats in three digits."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*columns, title=title)
    for row in rows:
        cells = (row.get(key, "") for key in columns)
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells))
    return table


def show(parts: Iterable[Table | str]) -> None:
    """Print tables, and sentences between them, to standard output."""
    console = Console(highlight=False, emoji=False)
    if not (console.is_terminal or os.environ.get("COLUMNS", "").isdigit()):
        console.width = _ENDLESS
    for part in parts:
        console.print(part, markup=False, soft_wrap=isinstance(part, str))  # a path is not broken in two
