"""What was served is kept for those who ask, comes back as it was, and what is broken costs a line in the log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.counts import CountsDrafter
from adaptspec.drafting.token_counts import Histories
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.checkpointer import HISTORY, HistoryFile
from adaptspec.engine.core import EngineCore
from adaptspec.request import Request, SamplingParams
from tests.engine.conftest import Dictated, make_core, run
from tests.fakes import TableRunner

_ASKED = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)


def _core(tokenizer: PreTrainedTokenizerFast, drafter: CountsDrafter) -> EngineCore:
    return make_core(
        tokenizer, TableRunner(), [drafter], {"p": (Dictated(("counts",), lambda n, s: [5] * s), "coupled")}
    )


def _file(folder: Path, histories: Histories, tokenizer: str = "t") -> HistoryFile:
    return HistoryFile(folder, histories, tokenizer=tokenizer, vocab_size=24)


def _saved(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    drafter = CountsDrafter(24)
    core = _core(tokenizer, drafter)
    run(core, [Request("a", (7, 9, 11), _ASKED, key="a")])
    engine = AsyncEngine(core, "m")
    try:
        _file(folder, drafter.histories).save(engine)
    finally:
        engine.close()


def test_a_new_server_drafts_from_what_the_old_one_served(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """To the same key alone; and nobody but its owner reads the file."""
    _saved(tokenizer, tmp_path)
    assert (tmp_path / HISTORY).stat().st_mode & 0o777 == 0o600
    drafter, anew = CountsDrafter(24), CountsDrafter(24)
    _file(tmp_path, drafter.histories).load()
    accepted = []
    for made, key in ((drafter, "a"), (drafter, "b"), (anew, "a")):
        done = run(_core(tokenizer, made), [Request("x", (7, 9, 11), _ASKED, key=key)])
        accepted.append(done["x"].stats.accepted)
    assert accepted[0] > accepted[1] == accepted[2]


@pytest.mark.parametrize("damage", ["cut", "other tokenizer", "no archive", "other arrays", "pickle", "folder"])
def test_what_cannot_be_used_is_told_and_replaced(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    _saved(tokenizer, tmp_path)
    path = tmp_path / HISTORY
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "no archive":
        path.write_bytes(b"nothing")
    elif damage == "other arrays":
        np.savez(path, version=np.array(1), tokenizer=np.array("t"), scopes=np.array(["x"]))
    elif damage == "pickle":
        objects: Any = np.array([{}], dtype=object)
        np.savez(path, version=objects)
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    histories = Histories()
    with caplog.at_level(logging.WARNING):
        _file(tmp_path, histories, "u" if damage == "other tokenizer" else "t").load()
    assert "history starts anew" in caplog.text
    assert not len(histories)


def test_nothing_there_is_nothing_to_tell(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _file(tmp_path, Histories()).load()
    assert not caplog.text
