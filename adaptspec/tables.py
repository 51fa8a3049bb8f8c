"""Tables of text, and the forms they are printed in: drawn for people, Markdown, CSV.

Nothing is cut off: a terminal that is too narrow gets wrapped cells, and then the columns in several parts. A pipe gets
lines as long as they need to be.
"""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as Drawing
from rich.text import Text

from adaptspec.command_line import MARKDOWN, TEXT

_ENDLESS = 10_000  # columns: no line is longer
_LONGEST_WORD = 32  # words up to this length are not broken, whatever room is left
_FIGURE, _NONE = re.compile(r"[-+<~]?\d.*"), ("", "-")


class Table:
    """Rows of text under columns. The first `keys` columns say what a row is: every part of a wide table has them."""

    def __init__(self, *columns: str, title: str = "", keys: int = 1) -> None:
        self.columns = columns
        self.title = title
        self.rows: list[tuple[str, ...]] = []
        self._keys = keys

    def add_row(self, *cells: str) -> None:
        """One more row, of a cell for each column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def markdown(self) -> str:
        """As GitHub's Markdown has tables, below the title."""
        marks = ("---:" if right else "---" for right in self._figures())
        lines = (self.columns, tuple(marks), *self.rows)
        text = "\n".join(f"| {' | '.join(map(_in_markdown, line))} |" for line in lines)
        return f"**{_in_markdown(self.title)}**\n\n{text}\n" if self.title else f"{text}\n"

    def csv(self) -> str:
        """A header and the rows; the title is not part of it."""
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Rich's protocol: the whole table where there is room, else parts of it, one below the other."""
        for number, part in enumerate(self._parts(options.max_width)):
            yield self._drawn(part, options.max_width, "" if number == 0 else " (more columns)")

    def _drawn(self, part: Sequence[int], room: int, more: str) -> Drawing:
        drawing = Drawing(title=Text(self.title + more) if self.title else None)
        figures = self._figures()
        for i, width in zip(part, self._widths(part, room), strict=True):
            drawing.add_column(
                Text(self.columns[i]), justify="right" if figures[i] else "left", width=width, overflow="fold"
            )
        for row in self.rows:
            drawing.add_row(*(Text(row[i]) for i in part))
        return drawing

    def _parts(self, room: int) -> list[list[int]]:
        """Columns by part: as many as fit with no word broken, at least one beside the keys."""
        least = [self._least(i) for i in range(len(self.columns))]
        keys = list(range(min(self._keys, len(self.columns))))
        parts = [keys]
        for i in range(len(keys), len(least)):
            if len(parts[-1]) > len(keys) and _outer(least[k] for k in (*parts[-1], i)) > room:
                parts.append(keys)
            parts[-1] = [*parts[-1], i]
        return parts

    def _widths(self, part: Sequence[int], room: int) -> list[int]:
        """What cells need, or less: the widest column gives way first, and no word is broken before it has to be."""
        widths = [max(map(cell_len, self._column(i))) for i in part]
        least = [self._least(i) for i in part]
        while _outer(widths) > room and max(widths) > 1:
            spare = [width if width > low else 0 for width, low in zip(widths, least, strict=True)]
            giving = spare if any(spare) else widths
            widths[giving.index(max(giving))] -= 1
        return widths

    def _column(self, i: int) -> list[str]:
        return [self.columns[i], *(row[i] for row in self.rows)]

    def _least(self, i: int) -> int:
        """Width of a column in which no word is broken."""
        return min(_LONGEST_WORD, max(cell_len(word) for cell in self._column(i) for word in (*cell.split(), "")))

    def _figures(self) -> list[bool]:
        """Which columns hold numbers: those are aligned right."""
        cells = [[row[i] for row in self.rows] for i in range(len(self.columns))]
        known = [[cell for cell in own if cell not in _NONE] for own in cells]
        return [bool(own) and all(map(_FIGURE.fullmatch, own)) for own in known]


def table_of(rows: Sequence[Mapping[str, object]], title: str = "", keys: int = 1) -> Table:
    """A table with a column for each key that any row has, and floats in three digits."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*columns, title=title, keys=keys)
    for row in rows:
        cells = (row.get(key, "") for key in columns)
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells))
    return table


def show(parts: Iterable[Table | str], form: str = TEXT) -> None:
    """Print tables, and sentences between them, to standard output.

    CSV is of tables only: sentences then go to standard error, and where several tables follow each other, each has its
    title above it (`# title`).
    """
    if form == TEXT:
        # As wide as the terminal, or as `COLUMNS` says; without a terminal as wide as lines are.
        console = Console(highlight=False, emoji=False)
        if not (console.is_terminal or os.environ.get("COLUMNS", "").isdigit()):
            console.width = _ENDLESS
        for part in parts:
            console.print(part, markup=False, soft_wrap=isinstance(part, str))  # a path is not broken in two
        return
    said = list(parts)
    several = sum(isinstance(part, Table) for part in said) > 1
    for number, part in enumerate(said):
        if form == MARKDOWN:
            text = part.markdown() if isinstance(part, Table) else f"{part}\n"
            sys.stdout.write(text if number == 0 else f"\n{text}")
        elif isinstance(part, Table):
            sys.stdout.write((f"# {part.title}\n" if several else "") + part.csv())
        else:
            sys.stderr.write(f"{part}\n")


def _outer(widths: Iterable[int]) -> int:
    """Width of a drawing with its lines and spaces."""
    return sum(width + 3 for width in widths) + 1


def _in_markdown(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
