"""Tapes from journals: what was drafted is known exactly, what was not is a guess in proportion, and is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adaptspec.analysis.journal_tape import tape_of_journal
from adaptspec.errors import JournalError
from adaptspec.journal import RequestFinished, RequestStarted, read_entries, to_line
from adaptspec.simulation.machine import load_machine
from adaptspec.simulation.scenarios import Schedule, stream
from adaptspec.simulation.simulator import replay, static_spec
from adaptspec.simulation.tape import Tape
from tests.analysis.logs import write_journal
from tests.policies.tapes import made_tape


def _journal(path: Path, depth: int, tape: Tape) -> Path:
    """Of a server that always drafts so deep; all requests end."""
    write_journal(path, static_spec(depth), stream(tape, Schedule((1,))))
    started = [entry for entry in read_entries(path) if isinstance(entry, RequestStarted)]
    with path.open("a") as file:
        for one in started:
            length = int(tape.lengths[tape.ids.index(one.id.partition("#")[0])])
            file.write(to_line(RequestFinished(one.id, "x", "stop", length, 1, 0, 0, 0.1, 0.0, 0.05, 0.1)) + "\n")
    return path


def test_the_policy_that_was_logged_is_replayed_exactly(tmp_path: Path) -> None:
    """Where the same drafts are made again, nothing has to be guessed."""
    tape = made_tape(count=3)
    read = tape_of_journal(_journal(tmp_path / "j", 4, tape))
    assert 0.5 < read.known < 1.0
    assert read.tape.lengths.tolist() == tape.lengths.tolist()
    assert read.tape.tasks == tape.tasks
    logged, again = (replay(static_spec(4), stream(one, Schedule((1,))), read.machine) for one in (tape, read.tape))
    assert (again.accepted, again.rounds) == (logged.accepted, logged.rounds)
    assert again.goodput == pytest.approx(logged.goodput)


def test_guesses_are_in_proportion(tmp_path: Path) -> None:
    """From a journal at depth 2, depth 5 comes out near what it really earns, on the long run."""
    tape = made_tape(count=20, length=80)
    read = tape_of_journal(_journal(tmp_path / "j", 2, tape))
    real, guessed = (
        replay(static_spec(5), stream(one, Schedule((1,))), read.machine).mean_acceptance_length
        for one in (tape, read.tape)
    )
    assert guessed == pytest.approx(real, rel=0.08)
    again = tape_of_journal(tmp_path / "j").tape.views["draft-model"]
    assert np.array_equal(again.run, read.tape.views["draft-model"].run), "deterministic"


def test_costs_are_those_of_the_rounds_and_not_of_a_wrong_start(tmp_path: Path) -> None:
    """A server that measured plain rounds at eight times their time wrote that down; its rounds say otherwise."""
    work = stream(made_tape(count=6), Schedule((1,)))
    path = _journal(tmp_path / "j", 1, made_tape(count=6))
    plain = [
        one
        for one in replay(static_spec(0), work, load_machine("cpu-2-cores"), keep=True).records
        if not one.prefill_tokens
    ]
    header, *lines = path.read_text().splitlines()
    told = json.loads(header)
    told["costs"]["verify"] = [[8.0 * one, *rest] for one, *rest in told["costs"]["verify"]]
    asides = [to_line(replace(one, request_ids=("aside",))) for one in plain[:40]]
    started = to_line(RequestStarted("aside", "off", None, 8, 64, None, 0.0))
    path.write_text("\n".join([json.dumps(told), started, *asides, *lines]) + "\n")
    read, true = tape_of_journal(path), load_machine("cpu-2-cores")
    assert 40 <= read.plain < read.rounds
    for tokens in (1, 2):
        assert read.machine.verify_seconds(1, tokens, 0) == pytest.approx(true.verify_seconds(1, tokens, 0), rel=0.2)


def test_journals_that_know_too_little_are_refused(tmp_path: Path) -> None:
    """Off says nothing of drafts; a request that was cut off has no length."""
    with pytest.raises(JournalError, match="only 0% of the positions"):
        tape_of_journal(_journal(tmp_path / "off", 0, made_tape(count=1)))
    write_journal(tmp_path / "cut", static_spec(2), stream(made_tape(count=1), Schedule((1,))))
    with pytest.raises(JournalError, match="from beginning to end"):
        tape_of_journal(tmp_path / "cut")
