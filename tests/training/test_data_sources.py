"""Attribution: every source of the bundled corpus has its origin and licence in a card that names it."""

from __future__ import annotations

import pytest

from adaptspec.training.data_sources import DATA_SOURCES
from adaptspec.training.model_card import model_card
from adaptspec.training.report import PairReport, ReportSize
from adaptspec.training.run_record import RunRecord
from adaptspec.training.settings import PairSettings


@pytest.mark.parametrize("tag", sorted(DATA_SOURCES))
def test_every_known_source_has_origin_and_licence(tag: str) -> None:
    """Attribution is what most of the licences ask for."""
    record = RunRecord(PairSettings().identity, "0123abcd", {tag: 1}, "CPU (2 threads)")
    card = model_card(record, PairReport(1, 1, ReportSize(), (), (), ()))
    source = DATA_SOURCES[tag]
    assert all((source.what, source.origin, source.licence))
    assert f"| {source.what} | {source.origin} | {source.licence} | 1 |" in card
