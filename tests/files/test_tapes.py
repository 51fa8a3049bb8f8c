"""Tape files: what is written is read, foreign and damaged files are refused, and a failed write leaves nothing.

What older tapes give and what each damage is answered is in the contracts `samples` and `damage`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adaptspec.control.tasks import TASKS
from adaptspec.errors import TapeError
from adaptspec.simulation.tape import AfterMiss, join
from adaptspec.simulation.tape_file import BUNDLED, find_tape, load_tape, save_tape
from tests.policies.tapes import made_tape, with_candidates


def test_a_tape_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Counts exactly, shares to float16; writing what was read gives the same file again."""
    tape, path = made_tape(beyond=2), tmp_path / "tape.npz"
    save_tape(tape, path)
    read = load_tape(path)
    assert (read.ids, read.tasks, read.sources, read.about) == (tape.ids, tape.tasks, tape.sources, tape.about)
    for name in ("prompt_tokens", "lengths", "max_tokens", "temperatures", "seeds", "offsets"):
        np.testing.assert_array_equal(getattr(read, name), getattr(tape, name))
    for name, view in tape.views.items():
        np.testing.assert_array_equal(read.views[name].run, view.run)
        np.testing.assert_array_equal(read.views[name].reach, view.reach)
        np.testing.assert_allclose(read.views[name].confidence, view.confidence, rtol=1e-3)
    save_tape(read, tmp_path / "again.npz")
    again = load_tape(tmp_path / "again.npz")
    np.testing.assert_array_equal(again.views["draft-model"].entropy, read.views["draft-model"].entropy)
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["again.npz", "tape.npz"]


def test_confidence_after_a_wrong_token_is_kept(tmp_path: Path) -> None:
    """To float16. A tape of drafters without it has none, alone or joined with others."""
    tape, path = made_tape(count=1), tmp_path / "tape.npz"
    view = tape.views["draft-model"]
    sure = np.where(view.agreed[:, None], np.nan, np.linspace(0.1, 0.9, 3))
    asked = replace(tape, views={**tape.views, "draft-model": replace(view, after_miss=AfterMiss(sure, 1.0 - sure))})
    save_tape(asked, path)
    after_miss = load_tape(path).views["draft-model"].after_miss
    assert after_miss is not None
    np.testing.assert_allclose(after_miss.confidence, sure, rtol=1e-3)
    np.testing.assert_allclose(after_miss.entropy, 1.0 - sure, rtol=2e-3)
    both = join([asked, asked]).views["draft-model"].after_miss
    assert both is not None
    assert len(both.confidence) == 2 * len(sure)
    assert join([asked, tape]).views["draft-model"].after_miss is None
    assert load_tape(path).views["ngram"].after_miss is None


def test_ranks_and_candidates_are_kept(tmp_path: Path) -> None:
    """Shares to three decimals. Of a tape that has neither, only a right token has a rank."""
    tape, path = made_tape(count=1), tmp_path / "tape.npz"
    save_tape(tape, path)
    read = load_tape(path).views["draft-model"]
    assert read.top is None
    assert (read.rank == 0).tolist() == read.agreed.tolist()
    ranked = with_candidates(tape)
    save_tape(ranked, path)
    read, view = load_tape(path).views["draft-model"], ranked.views["draft-model"]
    np.testing.assert_array_equal(read.rank, view.rank)
    assert read.top is not None
    np.testing.assert_allclose(read.top, view.top, atol=1e-3)
    assert join([ranked, ranked]).views["draft-model"].top is not None
    assert join([ranked, tape]).views["draft-model"].top is None


def test_a_file_with_flipped_bytes_is_refused_or_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "tape.npz"
    tape = made_tape(count=1)
    save_tape(tape, path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(whole), 60).tolist():
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            read = load_tape(path)
        except TapeError:
            continue
        np.testing.assert_array_equal(read.views["ngram"].run, tape.views["ngram"].run)


def _foreign(path: Path, kind: str) -> None:
    if kind == "array":
        np.savez(path, numbers=np.arange(3))
    elif kind == "pickle":
        np.savez(path, header=np.array([{"format": "adaptspec-tape"}], dtype=object))
    elif kind == "header":
        np.savez(path, header=np.array("[1, 2"))
    elif kind == "version":
        np.savez(path, header=np.array(json.dumps({"format": "adaptspec-tape", "version": 99})))
    else:
        np.savez(path, header=np.array(json.dumps({"format": kind, "version": 1})))


@pytest.mark.parametrize("kind", ["array", "pickle", "header", "version", "other"])
def test_a_foreign_file_is_refused(kind: str, tmp_path: Path) -> None:
    """Nothing in it is ever unpickled."""
    path = tmp_path / "tape.npz"
    _foreign(path, kind)
    with pytest.raises(TapeError, match=r"tape\.npz"):
        load_tape(path)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(TapeError, match="bench record"):
        load_tape(tmp_path / "none.npz")


def test_a_tape_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TapeError, match="cannot be written"):
        save_tape(made_tape(count=1), tmp_path / "missing" / "tape.npz")


def test_the_tape_that_ships_has_every_task() -> None:
    """`policy simulate` replays it by default."""
    tape = load_tape(find_tape(BUNDLED))
    assert set(tape.tasks) == set(TASKS)
    assert set(tape.views) == {"draft-model", "ngram", "counts"}
    assert len(tape.at_temperature(0.0)) == len(tape.at_temperature(0.8)) > 100
