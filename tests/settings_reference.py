"""The settings of a server as Markdown: `python -m tests.settings_reference` writes them into adaptspec/README.md."""

from __future__ import annotations

from pathlib import Path

from adaptspec.config import ServeConfig
from adaptspec.settings import reference

README = Path(__file__).parents[1] / "adaptspec" / "README.md"
BEGIN, END = "<!-- Written by python -m tests.settings_reference -->\n\n", "\n<!-- Until here -->"


def written(page: str) -> str:
    """The page with today's settings."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return before + BEGIN + reference(ServeConfig) + end + after


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
