"""What engines of one fleet have learned, shared through a directory: each writes a file of its own, and reads the
others'. It works under any orchestrator, on any volume that all of them can write to. What several have learned is what
one would have of all their traffic: counts add up, those of a task by its name.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from adaptspec.arrays import FloatArray
from adaptspec.control.learned_state import (
    FILE,
    LearnedState,
    PolicyState,
    StateStore,
    added,
    joined,
    read_state,
    renumbered,
)
from adaptspec.errors import StateError

_log = logging.getLogger(__name__)
_MOST_HERE = 64  # engines of one machine
_LEAST = 1e-12  # of a count: what is less is none
_States = dict[str, PolicyState]
_Mark = tuple[float, tuple[str, ...]]


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
        # By directory: when it was written and for which tasks it was read, and what is left of it.
        self._others: dict[str, tuple[_Mark, _States]] = {}
        self._said: set[str] = set()  # of whom the log says already that they are not used

    @property
    def place(self) -> Path:
        return self._store.folder

    def load(self, tasks: Sequence[str]) -> tuple[_States, tuple[str, ...]]:
        """All that was ever learned here, and names of tasks in its order, `tasks` first. Before the first request."""
        own = self._store.load() or LearnedState(self._pair)
        news = self._news(())
        names = joined(tasks, own.tasks, *(state.tasks for _, state in news.values()))
        self._mine = dict(renumbered(own, names).policies)
        self._others = self._taken(news, names)
        self._before = self._with_others(self._mine, self._others)
        return self._before, names

    def exchange(self, now: Mapping[str, PolicyState], tasks: Sequence[str]) -> _States:
        """Write what is one's own of what is known `now`, read what others have learned since; what is known then.

        `tasks` begin with those of the last time.
        """
        left = {place: (mark, self._faded(state, now)) for place, (mark, state) in self._others.items()}
        own = {name: self._own(name, state, [one for _, one in left.values()]) for name, state in now.items()}
        own = {**self._mine, **own}
        # Nothing has changed if it fails half-way: it is then done again with what was known.
        self._store.save(own, tuple(tasks))
        others = left | self._taken(self._news(tasks), tasks)
        self._before, self._others = self._with_others(own, others), others
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

    def _news(self, tasks: Sequence[str]) -> dict[str, tuple[float, LearnedState]]:
        """What others have written since it was read, or may say more than it did now that there are more tasks."""
        news = {}
        try:
            files = sorted(self._folder.glob(f"*/{FILE}"))
        except OSError as error:  # of a network's volume
            self._say(str(self._folder), f"what others have learned cannot be looked for now: {error}")
            return {}
        for file in files:
            place = file.parent.name
            if file.parent == self._store.folder:
                continue
            try:
                written = file.stat().st_mtime
                if place in self._others and self._others[place][0] == (written, tuple(tasks)):
                    continue
                state = read_state(file)
                if state.pair != self._pair:
                    raise StateError(f"it was learned with other models ({state.pair}, not {self._pair})")
            except (OSError, StateError) as error:
                self._say(place, f"what {place} has learned is not used: {error}")
                continue
            self._said.discard(place)
            news[place] = written, state
        return news

    @staticmethod
    def _taken(
        news: Mapping[str, tuple[float, LearnedState]], tasks: Sequence[str]
    ) -> dict[str, tuple[_Mark, _States]]:
        """It takes the place of what was read before; who has gone is remembered."""
        return {
            place: ((written, tuple(tasks)), dict(renumbered(state, tasks).policies))
            for place, (written, state) in news.items()
        }

    def _with_others(self, own: Mapping[str, PolicyState], others: Mapping[str, tuple[_Mark, _States]]) -> _States:
        """Of states that differ in their arms, the first counts."""
        whole = dict(own)
        for place, (_, state) in others.items():
            for name, one in state.items():
                try:
                    whole[name] = added(name, whole[name], one) if name in whole else one
                except StateError as error:
                    self._say(f"{place} {name}", f"what {place} has learned of it is not used: {error}")
        return whole

    def _say(self, what: str, text: str) -> None:
        if what not in self._said:
            _log.warning("%s", text)
            self._said.add(what)


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
