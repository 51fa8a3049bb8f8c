"""What engines of one fleet have learned, shared through a directory: each writes a file of its own, and reads the
others'. It works under any orchestrator, on any volume that all of them can write to.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from adaptspec.control.state import FILE, PolicyState, StateStore, added, read_state
from adaptspec.errors import StateError
from adaptspec.types import FloatArray

_log = logging.getLogger(__name__)
_MOST_HERE = 64  # engines of one machine
_LEAST = 1e-12  # of a count: what is less is none
_States = dict[str, PolicyState]


def merged(states: Iterable[Mapping[str, PolicyState]]) -> _States:
    """What several engines have learned is what one would have of all their traffic: counts add up.

    Of states that differ in their arms, the first counts.
    """
    whole: _States = {}
    for state in states:
        for name, own in state.items():
            with suppress(StateError):
                whole[name] = added(name, whole[name], own) if name in whole else own
    return whole


class SharedState:
    """One engine's place in a directory. What it knows is its own and the others'; only its own is written.

    Counts fade as traffic goes by, at a pace that only the policies know. Of a sum that has become c, what came from
    others is taken to have faded by the same factor as the whole: exact where nothing was learned since, and else less
    is called one's own than is, so that nothing is ever counted twice.
    """

    def __init__(self, folder: Path, pair: str) -> None:
        """`pair` names the models. Raises StateError: the directory cannot be used."""
        self._folder = folder
        self._store = _first_free(folder, pair)
        self._pair = pair
        self._before: _States = {}  # all that was known after the last exchange
        self._mine: _States = {}  # as it was read: what is not served today may be wanted tomorrow
        self._others: dict[str, tuple[float, _States]] = {}  # by directory: when it was written, what is left

    @property
    def place(self) -> Path:
        return self._store.folder

    def load(self, tasks: Sequence[str]) -> tuple[_States, tuple[str, ...]]:
        """All that was ever learned here, and names of tasks in its order. Before the first request."""
        own = self._store.load()
        known = self._mine = dict(own.policies) if own is not None else {}
        names = tuple(tasks) if own is None else own.tasks
        self._read_others(names)
        self._before = merged([known, *(state for _, state in self._others.values())])
        return self._before, names

    def exchange(self, now: Mapping[str, PolicyState], tasks: Sequence[str]) -> _States:
        """Write what is one's own of what is known `now`, read what others have learned since; what is known then."""
        left = {place: (mark, self._faded(state, now)) for place, (mark, state) in self._others.items()}
        own = {name: self._own(name, state, [one for _, one in left.values()]) for name, state in now.items()}
        own = {**self._mine, **own}
        self._others = left
        self._store.save(own, tuple(tasks))
        self._read_others(tasks)
        self._before = merged([own, *(state for _, state in self._others.values())])
        return self._before

    def close(self) -> None:
        self._store.close()

    def _faded(self, state: _States, now: Mapping[str, PolicyState]) -> _States:
        """What is left of what came from another engine."""
        kept: _States = {}
        for name, one in state.items():
            before, known = self._before.get(name), now.get(name)
            if before is not None and known is not None and _kind(known) == _kind(one) == _kind(before):
                arrays = {key: one.arrays[key] * _left(before.arrays[key], known.arrays[key]) for key in one.arrays}
                kept[name] = PolicyState(one.signature, arrays)
        return kept

    @staticmethod
    def _own(name: str, now: PolicyState, others: Sequence[_States]) -> PolicyState:
        arrays: dict[str, FloatArray] = dict(now.arrays)
        for other in others:
            if name in other:
                arrays = {key: values - other[name].arrays[key] for key, values in arrays.items()}
        return PolicyState(now.signature, arrays)

    def _read_others(self, tasks: Sequence[str]) -> None:
        """Files that have changed take the place of what was read before; who has gone is remembered."""
        for file in sorted(self._folder.glob(f"*/{FILE}")):
            place = file.parent.name
            if file.parent == self._store.folder:
                continue
            try:
                mark = file.stat().st_mtime
                if place in self._others and self._others[place][0] == mark:
                    continue
                state = read_state(file)
            except (OSError, StateError) as error:
                _log.warning("what %s has learned is not used: %s", place, error)
                continue
            if state.pair == self._pair and tuple(state.tasks) == tuple(tasks)[: len(state.tasks)]:
                self._others[place] = mark, dict(state.policies)


def _first_free(folder: Path, pair: str) -> StateStore:
    """The first place of this machine that no other engine of it holds: after a restart the same again."""
    for number in range(_MOST_HERE):
        place = folder / f"{socket.gethostname()}-{number}"
        try:
            return StateStore(place, pair)
        except StateError:
            if not place.exists():
                raise  # nobody can write here
    raise StateError(f"{folder}: {_MOST_HERE} engines of this machine keep their state here; give this one another")


def _left(before: FloatArray, now: FloatArray) -> FloatArray:
    """The share of what was there that is left at most; all of it where nothing says how much."""
    size = np.abs(before)
    ratio = np.clip(now / np.copysign(np.maximum(size, _LEAST), before), 0.0, 1.0)
    left: FloatArray = np.where(size > _LEAST, ratio, 1.0)
    return left


def _kind(state: PolicyState) -> tuple[str, dict[str, tuple[int, ...]]]:
    """What two states must share to be of one policy: counts of others of the same shapes mean something else."""
    return state.signature, {name: values.shape for name, values in state.arrays.items()}
