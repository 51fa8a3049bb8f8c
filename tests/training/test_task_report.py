"""The accuracy report: what counts as right, and which sources count as never seen."""

from __future__ import annotations

from adaptspec.control.task_detector import SHIPPED
from adaptspec.training.task_report import (
    card_path,
    digest,
)


def test_the_card_that_ships_is_of_the_weights_that_ship() -> None:
    """Whoever trains the detector anew and commits only the weights is told here."""
    assert digest(SHIPPED.read_bytes()) in card_path(SHIPPED).read_text()
