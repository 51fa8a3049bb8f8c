"""What policies have learned: as bytes that are checked when read, merged by task names, and stored in a directory."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from adaptspec.arrays import FloatArray
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.policy import Policy
from adaptspec.control.tasks import MAX_ADDED, OTHER, TASKS
from adaptspec.drafters import Kind, kind_of
from adaptspec.errors import StateError
from adaptspec.files import open_file, read_bytes, write_file

VERSION = 2
FILE = "learned.json"
MOST_BYTES = 64 * 2**20
# Beyond any count, and little enough that squares and sums of such numbers are finite.
_MOST = 1e30
# Arrays with a row for each task, added tasks last, and the parts of policies that belong to one task.
_BY_TASK = re.compile(r"(?:^|/)(?:acceptance|calibration|stated|lookups|sums\.task)(?:-\d+)?$")
_OF_TASK = re.compile(r"(?<=@stop-of-task-)\d+(?=/)")
_KNOWN = (OTHER, *TASKS)
_FIRST_ADDED = len(_KNOWN)
_NOT_RESTORED = "what policy %s had learned is not used (%s); it learns anew"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PolicyState:
    """What one policy has learned. `signature` is that of its arms: counts of other arms mean something else."""

    signature: str
    arrays: Mapping[str, FloatArray]


@dataclass(frozen=True)
class LearnedState:
    """What an engine has learned, by policy. `pair` names the models that it is true of.

    `tasks` are the added names in the order of their numbers (see `TaskNames.added`), by which the arrays are indexed.
    """

    pair: str
    policies: Mapping[str, PolicyState] = field(default_factory=lambda: MappingProxyType({}))
    tasks: tuple[str, ...] = ()


def signature(spec: PolicySpec) -> str:
    """A short hash of what a policy counts: algorithm, arms, depths, drafters, verification, tasks.

    Single numbers (a discount, a prior) are left out: counts stay true when they are tuned. So is `when`: each policy
    learns from its requests, however they came to it.
    """
    body = spec.spec
    parts: dict[str, Any] = {
        "choose": _arms(body.choose.model_dump(mode="json")),
        "tiers": spec.tiers,
        "drafters": spec.drafters,
        "verification": spec.verification.model_dump(mode="json"),
        "tasks": [*TASKS, MAX_ADDED],
    }
    if spec.spec.max_width > 1:
        parts["branches"] = True  # what side nodes bring is counted, too
    if any(kind_of(name) is Kind.MODEL_FREE for name in spec.drafters):
        parts["lookups"] = "confidence"  # of lookups, runs were counted before
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()


def learned_states(policies: Mapping[str, Policy], signatures: Mapping[str, str]) -> dict[str, PolicyState]:
    """Copies of what policies have learned, by name; those that learn nothing are left out."""
    known = {name: policy.learned() for name, policy in policies.items()}
    return {name: PolicyState(signatures[name], arrays) for name, arrays in known.items() if arrays}


def restore_states(
    policies: Mapping[str, Policy], signatures: Mapping[str, str], states: Mapping[str, PolicyState]
) -> list[str]:
    """Before the first round: have policies go on from their states. Returns the names of those that do.

    States of policies that are not served are ignored. A state that does not fit its policy, such as one of other arms,
    is logged and not used.
    """
    restored = []
    for name, state in states.items():
        if name not in signatures:
            continue
        if signatures[name] != state.signature:
            _log.warning(_NOT_RESTORED, name, "its depths, drafters or verification were others")
        elif restore_policy(name, policies[name], state.arrays):
            restored.append(name)
    return restored


def restore_policy(name: str, policy: Policy, arrays: Mapping[str, FloatArray]) -> bool:
    """Have a policy go on from what was learned. Returns False, with a line in the log, if that does not fit it."""
    try:
        policy.restore(arrays)
    except StateError as error:
        _log.warning(_NOT_RESTORED, name, error)
        return False
    return True


def added(name: str, a: PolicyState, b: PolicyState) -> PolicyState:
    """What two engines have learned of a policy: decayed counts add. Raises StateError: its arms differ."""
    shapes = [{key: array.shape for key, array in policy.arrays.items()} for policy in (a, b)]
    if a.signature != b.signature or shapes[0] != shapes[1]:
        raise StateError(
            f"the policy {name!r} has other arms in one state than in another; merge states of one policy file"
        )
    return PolicyState(a.signature, {key: array + b.arrays[key] for key, array in a.arrays.items()})


def joined(*tasks: Sequence[str]) -> tuple[str, ...]:
    """Added task names of several engines, in the order of the first engine: as many as there is room for."""
    return tuple(dict.fromkeys(name for names in tasks for name in names if name not in _KNOWN))[:MAX_ADDED]


def renumbered(state: LearnedState, tasks: Sequence[str]) -> LearnedState:
    """The same for an engine that has added `tasks` in this order. Other tasks are left out, unless that engine has no
    room for them: then they count as `OTHER`, as their requests would.
    """
    if tuple(tasks[: len(state.tasks)]) == state.tasks:
        return replace(state, tasks=tuple(tasks))
    numbers = {name: number for number, name in enumerate(tasks, start=_FIRST_ADDED)}
    rest = 0 if len(tasks) >= MAX_ADDED else None
    earlier = enumerate(state.tasks[:MAX_ADDED], start=_FIRST_ADDED)
    found = {number: numbers.get(name, rest) for number, name in earlier}
    policies = {name: _renumbered(policy, found) for name, policy in state.policies.items()}
    return LearnedState(state.pair, policies, tuple(tasks))


def _renumbered(policy: PolicyState, found: Mapping[int, int | None]) -> PolicyState:
    """`found` are numbers of tasks by what they were; None: nothing is kept."""
    arrays: dict[str, FloatArray] = {}
    for key, values in policy.arrays.items():
        part = _OF_TASK.search(key)
        if part is not None:
            number = found.get(int(part[0]), int(part[0]))
            if number:
                arrays[_OF_TASK.sub(str(number), key)] = values
        elif _BY_TASK.search(key) and (start := sum(values.shape[:1]) - MAX_ADDED - _FIRST_ADDED) in (0, 1):
            # Task 0 is at `start`, after all traffic.
            moved = values.copy()
            moved[start + _FIRST_ADDED :] = 0.0
            for before, number in found.items():
                if number is not None:
                    moved[start + number] += values[start + before]
            arrays[key] = moved
        else:
            arrays[key] = values
    return PolicyState(policy.signature, arrays)


def merged(states: Sequence[LearnedState]) -> LearnedState:
    """The states of several replicas as one: decayed counts add, those of a task by its name. Raises StateError: they
    are of different models, or a policy has other arms in one than in another.
    """
    pairs = {state.pair for state in states}
    if len(pairs) != 1:
        raise StateError(
            f"the states are of different models ({', '.join(sorted(pairs)) or 'none'}): merge like with like"
        )
    tasks = joined(*(state.tasks for state in states))
    whole: dict[str, PolicyState] = {}
    for state in states:
        for name, policy in renumbered(state, tasks).policies.items():
            whole[name] = added(name, whole[name], policy) if name in whole else policy
    return LearnedState(pairs.pop(), whole, tasks)


def to_bytes(state: LearnedState) -> bytes:
    """The file of a state: JSON, with a digest over everything else in it."""
    body: dict[str, Any] = {
        "version": VERSION,
        "pair": state.pair,
        "tasks": state.tasks,
        "policies": {
            name: {
                "signature": policy.signature,
                "arrays": {n: {"shape": a.shape, "values": a.ravel().tolist()} for n, a in policy.arrays.items()},
            }
            for name, policy in state.policies.items()
        },
    }
    return _dumped({**body, "digest": _digest(body)})


def from_bytes(raw: bytes) -> LearnedState:
    """The state in a file. Raises StateError if it is none, is damaged, or holds what no count can be."""
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
        digest = body.pop("digest")
        if body["version"] != VERSION:
            raise StateError(f"it is of version {body['version']}, this program reads {VERSION}")
        if digest != _digest(body):
            raise StateError("its digest does not match: it was damaged, or changed by hand")
        policies = {
            str(name): PolicyState(
                str(policy["signature"]), {str(key): _array(array) for key, array in policy["arrays"].items()}
            )
            for name, policy in body["policies"].items()
        }
        return LearnedState(str(body["pair"]), policies, tuple(map(str, body.get("tasks", ()))))
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise StateError(f"it is no learned state ({type(error).__name__}: {error})") from error


def read_state(path: Path) -> LearnedState:
    """The state in a file. Raises StateError if it cannot be read, or is none."""
    try:
        return from_bytes(read_bytes(path, MOST_BYTES))
    except OSError as error:
        raise StateError(f"{path}: cannot be read ({error.strerror})") from error
    except StateError as error:
        raise StateError(f"{path}: {error}") from error


class StateStore:
    """The state directory of one engine, `folder`. Holds a lock on it until `close`."""

    def __init__(self, folder: Path, pair: str) -> None:
        """
        Raises:
            StateError: the directory cannot be used, or another engine uses it.
        """
        self.folder, self._path = folder, folder / FILE
        self._pair = pair
        self._written = b""
        self.quarantined, self.failed_saves = 0, 0  # since the start
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = open_file(folder / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StateError(f"--state-dir {folder}: cannot be used ({error.strerror}); choose another") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StateError(f"--state-dir {folder} is in use by another engine; give each its own") from error

    def load(self) -> LearnedState | None:
        """The last saved state; None if there is none, or if it could not be trusted and was quarantined."""
        try:
            raw = read_bytes(self._path, MOST_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.quarantine(f"it cannot be read ({error.strerror})")
            return None
        try:
            state = from_bytes(raw)
        except StateError as error:
            self.quarantine(str(error))
            return None
        if state.pair != self._pair:
            self.quarantine(f"it was learned with other models ({state.pair}, not {self._pair})")
            return None
        self._written = raw
        return state

    def quarantine(self, reason: str) -> None:
        """Rename the file: nothing reads it any more, and an operator can look at it."""
        self._written = b""  # what was loaded from it is no longer on the disk
        self.quarantined += 1
        earlier = [path.name.rpartition("-")[2] for path in self._path.parent.glob(f"{FILE}.quarantined-*")]
        taken = [int(number) for number in earlier if number.isdecimal()]
        renamed = self._path.with_name(f"{FILE}.quarantined-{1 + max(taken, default=0)}")
        try:
            os.replace(self._path, renamed)
        except OSError as error:
            _log.warning("%s is not used: %s; it could not be renamed either (%s)", self._path, reason, error.strerror)
            return
        _log.warning("%s is not used: %s. It is now %s; learning starts anew", self._path, reason, renamed.name)

    def save(self, policies: Mapping[str, PolicyState], tasks: tuple[str, ...] = ()) -> bool:
        """Write what has been learned, if anything is new. A full disk is a line in the log, and False: the old file
        stays.
        """
        raw = to_bytes(LearnedState(self._pair, policies, tasks))
        if raw == self._written:
            return True
        try:
            write_file(self._path, raw)
        except OSError as error:
            self.failed_saves += 1
            _log.warning("%s could not be saved (%s); it is tried again later", self._path, error.strerror)
            return False
        self._written = raw
        return True

    def close(self) -> None:
        """Let another engine have the directory."""
        os.close(self._lock)


def _arms(value: Any) -> Any:
    """Names and lists; single numbers are settings."""
    if not isinstance(value, dict):
        return value
    kept = {key: _arms(item) for key, item in value.items() if not isinstance(item, (bool, int, float))}
    return {key: item for key, item in kept.items() if item not in ({}, None)}


def _dumped(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, sort_keys=True, allow_nan=False).encode()
    except ValueError as error:
        raise StateError("a policy has learned something that is no finite number; it is not saved") from error


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.blake2b(_dumped(body), digest_size=16).hexdigest()


def _refuse_constant(name: str) -> float:
    raise StateError(f"it holds {name}, which no count can be")


def _array(body: Mapping[str, Any]) -> FloatArray:
    shape = tuple(int(length) for length in body["shape"])
    values: FloatArray = np.array(body["values"], dtype=np.float64)
    if min(shape, default=0) < 0 or values.ndim != 1 or len(values) != math.prod(shape):
        raise StateError(f"an array of {values.size} values does not have the shape {list(shape)}")
    if not (np.abs(values) <= _MOST).all():
        raise StateError("it holds a number that no count can be")
    return values.reshape(shape)
