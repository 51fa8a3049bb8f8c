"""Samples of files as an earlier version wrote them, and the contract of what is read from them.

A sample in `samples/` is written once and never changed: it stands for the files of users. When a format gets a new
version, its sample is added here under a new name, and the old ones stay as long as there is a reader for them.

    python -m tests.files.samples       # writes the samples that do not exist yet
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.learned_state import LearnedState, PolicyState, read_state, to_bytes
from adaptspec.decision import Expected
from adaptspec.journal import (
    Entry,
    JournalHeader,
    LinesDropped,
    RequestFinished,
    RequestStarted,
    read_entries,
    to_line,
)
from adaptspec.simulation.tape import AfterMiss
from adaptspec.simulation.tape_file import load_tape, save_tape
from tests.control.helpers import caught_up
from tests.control.helpers import record as round_of
from tests.files.contracts import Document, name_set
from tests.policies.tapes import made_tape, with_candidates
from tests.trees import CHAIN, SIBLING, STRAIGHT, branching

SAMPLES = Path(__file__).with_name("samples")

HEADER = JournalHeader(
    "0.1.0",
    {"name": "tiny", "fingerprint": "f00d", "dtype": "float32"},
    "f00d+beef",
    ["draft-model", "ngram"],
    ["goodput", "off"],
    "goodput",
    ["other", "code"],
    {"rows": [1, 2], "verify": [[1.5, 2.25]]},
    clock=1.75e9,
)
STARTED = RequestStarted("r", "goodput", "code", 7, 64, 4, 0.5)
FINISHED = RequestFinished("r", "goodput", "stop", 12, 5, 9, 7, 0.25, 0.01, 0.03, 99.5, 11)


def journal_entries() -> list[Entry]:
    """An entry of each kind, and rounds that have every field in one line or another."""
    chain = replace(caught_up(round_of([5, 1, 0], [2, 1, 0]), 2), number=1, ended=17.25)
    explored = replace(
        branching(STRAIGHT, number=3),
        shadow=np.array([[4], [-1]]),
        shadow_drafted=np.array([[5], [-1]]),
        stated=np.array([[[np.nan] * 3], [[0.5, 0.25, np.nan]]]),
        expected=Expected(812.5, np.array([1.75]), 700.25),
        ended=17.5,
    )
    united = branching(replace(CHAIN, drafters=[0, 1]), number=4)
    unknown = RequestFinished("s", "off", "abort", 0, 0, 0, 0, 0.125, None, None, 99.75)
    started = RequestStarted("s", None, None, 3, 1, None, 0.0)
    trees = branching(CHAIN, SIBLING, number=2)
    return [HEADER, STARTED, started, chain, trees, explored, united, LinesDropped(3), FINISHED, unknown]


def learned_state() -> LearnedState:
    """Two policies, arrays of several shapes, and two tasks of users' own."""
    arrays = {"acceptance": np.array([[1.5, 2.0], [0.0, 1e-9]]), "seconds": np.array(0.25), "none": np.zeros((0, 3))}
    policies = {"goodput": PolicyState("s1", arrays), "mine": PolicyState("s2", {"n": np.arange(3.0)})}
    return LearnedState("f00d+beef", policies, ("invoices", "Büro 7/β"))


def _write_journal(path: Path) -> None:
    path.write_text("".join(f"{to_line(entry)}\n" for entry in journal_entries()), encoding="utf-8")


def _write_tape(path: Path) -> None:
    tape = with_candidates(made_tape({"code": 0.6}, count=2, length=6, beyond=1))
    view = tape.views["draft-model"]
    sure = np.where(view.agreed[:, None], np.nan, np.linspace(0.1, 0.9, 3))
    views = {**tape.views, "draft-model": replace(view, after_miss=AfterMiss(sure, 1.0 - sure))}
    save_tape(replace(tape, views=views), path)


def _write_old_tape(path: Path) -> None:
    """As it was before ranks of candidates were recorded."""
    _write_tape(path)
    with np.load(path) as arrays:
        kept = {name: arrays[name] for name in arrays.files if not name.endswith((".rank", ".top"))}
    np.savez_compressed(path, **kept)


# How samples were written; those of policies by hand, those of older versions by the programs of their time.
WRITERS: Mapping[str, Callable[[Path], object]] = {
    "journal-5.jsonl": _write_journal,
    "state-2.json": lambda path: path.write_bytes(to_bytes(learned_state())),
    "tape-1.npz": _write_tape,
    "tape-1-without-ranks.npz": _write_old_tape,
}


async def record(folder: Path) -> Document:
    """What today's code writes after it has read each sample; of a policy, how it differs from `off`."""
    return {sample.name: _rewritten(sample, folder) for sample in sorted(SAMPLES.iterdir())}


def _rewritten(sample: Path, folder: Path) -> Any:
    if sample.suffix == ".jsonl":
        return [json.loads(to_line(entry)) for entry in read_entries(sample)]
    if sample.suffix == ".json":
        return json.loads(to_bytes(read_state(sample)))
    if sample.suffix == ".yaml":
        return name_set(_differences(load_policy_spec(sample), load_policy_spec(find_policy("off"))))
    save_tape(load_tape(sample), folder / sample.name)
    with np.load(io.BytesIO((folder / sample.name).read_bytes())) as arrays:
        return {name: _array(arrays[name]) for name in arrays.files}


def _differences(left: PolicySpec, right: PolicySpec) -> Iterator[str]:
    """What two policies differ in once defaults are filled in, by path."""
    one, other = (dict(_leaves(spec.model_dump(by_alias=True), "")) for spec in (left, right))
    for path in {**one, **other}:
        if path not in one:
            yield f"{path}: + {other[path]}"
        elif path not in other:
            yield f"{path}: - {one[path]}"
        elif one[path] != other[path]:
            yield f"{path}: {one[path]} -> {other[path]}"


def _leaves(value: Mapping[Any, object], path: str) -> Iterator[tuple[str, object]]:
    for key, below in value.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(below, dict):
            yield from _leaves(below, here)
        elif below is not None:
            yield here, below


def _array(array: np.ndarray[Any, Any]) -> Document:
    """Kind and values of an array, with texts for numbers that JSON does not have."""
    values = [value if value == value else "nan" for value in array.ravel().tolist()]  # noqa: PLR0124
    return {"dtype": array.dtype.str, "shape": list(array.shape), "values": values}


def main() -> None:
    """Write the samples that do not exist yet."""
    SAMPLES.mkdir(exist_ok=True)
    for name, write in WRITERS.items():
        if not (SAMPLES / name).exists():
            write(SAMPLES / name)


if __name__ == "__main__":
    main()
