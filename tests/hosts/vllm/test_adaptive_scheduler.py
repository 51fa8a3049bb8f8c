"""The scheduler inside vLLM itself: nothing undrawn is verified, nothing leaks, and texts stay what they were."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hosts.vllm.conftest import Program

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def scripted(program: Program) -> dict[str, Any]:
    return program("scripted", 10_000)


@pytest.mark.parametrize("run", ["random async", "random sync", "policy async", "policy sync"])
def test_no_row_verifies_drafts_that_nobody_drew(scripted: dict[str, Any], run: str) -> None:
    told = scripted[run]
    assert told["undrawn"] == told["padded"] == 0
    assert told["leaked"] == told["left"] == told["errors"] == 0
    assert told["verified"] > 1000
    assert told["preempted"] > 0


@pytest.mark.parametrize("run", ["policy async", "policy sync", "blind async", "blind sync"])
def test_who_opts_out_has_no_drafts(scripted: dict[str, Any], run: str) -> None:
    """Also where nothing can be decided, and when AdaptSpec has let go of that: the others draft as vLLM does."""
    told = scripted[run]
    assert told["unwanted"] == told["undrawn"] == told["leaked"] == told["left"] == 0
    assert told["verified"] > 1000
    assert (told["errors"] >= 1000) == told.get("detached", False) == run.startswith("blind")


def test_a_depth_that_is_set_too_late_is_seen(scripted: dict[str, Any]) -> None:
    """What makes the test above one that can fail."""
    assert scripted["late"]["undrawn"] > 50


@pytest.mark.parametrize("run", ["random async", "random sync"])
def test_all_depths_occur_and_whoever_came_has_left(scripted: dict[str, Any], run: str) -> None:
    told = scripted[run]
    assert all(told[f"depth {depth}"] > 100 for depth in range(6))
    assert told["rows"] == 0
    assert told["abort"] > 100
    assert told["length"] > 1000


def test_what_is_told_of_drafts_is_what_was_verified(scripted: dict[str, Any]) -> None:
    """Synchronously all of it; asynchronously some requests are gone when their last step ends."""
    assert scripted["random sync"]["drafted"] == scripted["random sync"]["verified"]
    told = scripted["random async"]
    assert 0.95 * told["verified"] < told["drafted"] <= told["verified"]


@pytest.fixture(scope="module")
def texts(program: Program) -> dict[str, Any]:
    return program("texts", 200)


def test_texts_are_those_of_plain_vllm(texts: dict[str, Any]) -> None:
    """Greedy, at batch 16, whatever was drafted for whom, with requests that are aborted and others preempted."""
    assert texts["compared"] == 200
    assert texts["differing"] == []
    assert texts["errors"] == 0
    assert texts["preempted"] > 20
    assert texts["abort"] > 20
    assert texts["kept"] > 1000


def test_where_the_draft_is_skipped_it_does_not_run(texts: dict[str, Any]) -> None:
    assert texts["skipped"] > 20
    assert "proposed in vain" not in texts
    assert texts["proposed"] > 300


@pytest.mark.parametrize(("fault", "kept_in"), [("raises", True), ("deep", False), ("nan", False), ("gone", True)])
def test_faults_cost_decisions_and_no_text(texts: dict[str, Any], fault: str, kept_in: bool) -> None:
    assert texts[fault]["differing"] == []
    assert (texts[fault]["errors"] > 10) == kept_in


def test_it_lets_go_when_nothing_works_any_more(texts: dict[str, Any]) -> None:
    assert texts["gone"]["errors"] == 100
    assert texts["detached"]
