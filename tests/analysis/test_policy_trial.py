"""A trial says what a policy would have earned lately, and what it could not take into account."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from adaptspec.analysis.policy_trial import try_policy
from adaptspec.errors import ConfigError, JournalError, PolicyError
from tests.analysis.test_journal_tape import _journal
from tests.policies.tapes import made_tape


def policy(name: str, body: str) -> str:
    return f"apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {{name: {name}}}\nspec:\n  {body}\n"


STATIC = policy("edited", "choose: {algorithm: static, depth: 4}\n  drafters: [draft-model]")
OFF = policy("served", "choose: {algorithm: static, depth: 0}")


def test_it_compares_with_what_serves_and_with_plain_decoding(tmp_path: Path) -> None:
    found = try_policy(_journal(tmp_path / "j", 4, made_tape(count=6)), STATIC, OFF)
    assert found.current is not None
    assert (found.edited.policy, found.current.policy, found.batch) == ("edited", "served", 1)
    assert found.current.over_off == pytest.approx(1.0)
    assert found.edited.over_off == pytest.approx(found.edited.goodput / found.off.goodput)
    assert found.edited.duty > 0.9
    assert 0.5 < found.known <= 1.0
    assert found.left_out == ()


def test_a_drafter_that_no_journal_replays_is_left_out_and_named(tmp_path: Path) -> None:
    journal = _journal(tmp_path / "j", 4, made_tape(count=3))
    both = policy("edited", "choose: {algorithm: goodput}\n  drafters: [draft-model, ngram]")
    assert try_policy(journal, both, None).left_out == ("ngram",)
    lookup = policy("edited", "choose: {algorithm: goodput}\n  drafters: [ngram]")
    with pytest.raises(ConfigError, match="ngram only"):
        try_policy(journal, lookup, None)
    found = try_policy(journal, STATIC, lookup)
    assert found.current is None
    assert found.current_error is not None
    assert "ngram only" in found.current_error


def test_what_cannot_be_tried_is_said_in_the_users_words(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"<body>:5:23: spec\.choose\.algorithm"):
        try_policy(tmp_path / "j", policy("edited", "choose: {algorithm: magic}"), None)
    with pytest.raises(JournalError, match=r"^j: cannot be read"):
        try_policy(tmp_path / "j", STATIC, None)
    with pytest.raises(JournalError, match=r"^off: only 0%"):
        try_policy(_journal(tmp_path / "off", 0, made_tape(count=1)), STATIC, None)


def test_the_process_answers_in_json(tmp_path: Path) -> None:
    journal = _journal(tmp_path / "j", 4, made_tape(count=2))
    question = json.dumps({"journal": str(journal), "policy": STATIC, "against": None, "served": {}})
    command = [sys.executable, "-m", "adaptspec.analysis.policy_trial"]
    done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=60, check=True)
    assert list(json.loads(done.stdout)) == ["trial"]
