"""Templates of cards: a name that is not given is an error, and text cannot break a table or a fence."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from adaptspec.training.cards import _cell, _fenced, render


def test_what_a_template_needs_must_be_given() -> None:
    with pytest.raises(UndefinedError):
        render("task_card")


def test_text_stays_in_its_place() -> None:
    assert _cell("a|b") == "a\\|b"
    assert _fenced("```\nx\n```").startswith("````\n")
