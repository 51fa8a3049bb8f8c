"""Markdown of reports and model cards, from the templates beside this file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

_DATA_SOURCES = Path(__file__).parent / "data_sources.yaml"


def render(template: str, **values: object) -> str:
    """The text of `templates/NAME.md.j2` with these values."""
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(
        loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(two=_two, count="{:,}".format, cell=_cell, setting=_setting, fenced=_fenced)
    return environment.get_template(f"{template}.md.j2").render(data_sources=data_sources(), **values)


def data_sources() -> Mapping[str, Mapping[str, str]]:
    """What is known of the bundled corpus's sources, by tag: `what`, `origin`, `licence`."""
    known: Mapping[str, Mapping[str, str]] = yaml.safe_load(_DATA_SOURCES.read_text(encoding="utf-8"))
    return known


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _setting(value: Any) -> str:
    return f"`{json.dumps(value)}`" if isinstance(value, Mapping) else str(value)


def _fenced(text: str) -> str:
    # A fence longer than any run of backticks in the text cannot be closed by it.
    fence = "````" if "```" in text else "```"
    return f"{fence}\n{text}\n{fence}"
