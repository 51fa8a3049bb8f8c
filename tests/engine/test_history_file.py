"""History of served texts survives a restart, and a file that cannot be used costs a line in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.drafting.ngram_index import Histories
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.checkpointer import HISTORY, HistoryFile
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.request import Request, SamplingParams
from tests.exactness import dictated
from tests.exactness.harness import answers
from tests.exactness.worlds import table

ASKED = SamplingParams(30, temperature=0.0, ignore_eos=True)


def serving() -> tuple[EngineCore, Histories]:
    """An engine that drafts by counts, and its histories."""
    world = table("counts")
    known = [one.histories for one in world.drafters if isinstance(one, LookupDrafter) and one.histories is not None]
    (histories,) = known
    body = "{choose: {algorithm: dictated, depths: [5]}, drafters: [counts], history: key}"
    return world.engine([dictated.policy(body)], EngineLimits(max_rows=1)), histories


def file_of(folder: Path, histories: Histories, tokenizer: str = "t") -> HistoryFile:
    return HistoryFile(folder, histories, tokenizer=tokenizer, vocab_size=24)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with the history of a request of key a."""
    core, histories = serving()
    answers(core, [Request("a", (7, 9, 11), ASKED, key="a")])
    engine = AsyncEngine(core, "m")
    try:
        file_of(tmp_path, histories).save(engine)
    finally:
        engine.close()
    return tmp_path


def test_a_new_server_drafts_from_what_the_old_one_served(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    """For the same key alone; only the owner of the file can read it. A missing file is no fault."""
    assert (saved / HISTORY).stat().st_mode & 0o777 == 0o600
    accepted = []
    for folder, key in ((saved, "a"), (saved, "b"), (saved / "none", "a")):
        core, histories = serving()
        file_of(folder, histories).load()
        done = answers(core, [Request("x", (7, 9, 11), ASKED, key=key)])
        accepted.append(done["x"].stats.accepted)
    assert accepted[0] > accepted[1] == accepted[2]
    assert not caplog.text


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _later_version(path: Path) -> None:
    with np.load(path) as found:
        arrays = dict(found)
    np.savez(path, **{**arrays, "version": arrays["version"] + 1})


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "no archive": lambda path: path.write_bytes(b"nothing"),
    "other arrays": lambda path: np.savez(path, version=np.array(1), tokenizer=np.array("t"), scopes=np.array(["x"])),
    "pickle": lambda path: np.savez(path, version=np.array([{}], dtype=object)),  # type: ignore[arg-type]
    "folder": _folder,
    "other version": _later_version,
    "other tokenizer": lambda path: None,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_cannot_be_used_is_logged_and_replaced(saved: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    DAMAGE[damage](saved / HISTORY)
    histories = Histories()
    with caplog.at_level(logging.WARNING):
        file_of(saved, histories, "u" if damage == "other tokenizer" else "t").load()
    assert "the history starts empty" in caplog.text
    assert not len(histories)
