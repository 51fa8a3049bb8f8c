"""Rounds of a journal by the policy that decided them. Read entry by entry: a journal may be larger than memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from adaptspec.control.cost_model import CostModel
from adaptspec.control.cost_profile import CostProfile
from adaptspec.control.language.library import find_policy, shipped_policies
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.errors import JournalError
from adaptspec.journal import JournalHeader, LinesDropped, RequestFinished, RequestStarted, read_entries
from adaptspec.quantity import quantity
from adaptspec.rounds import RoundRecord


@dataclass(frozen=True)
class LoggedRound:
    """A round, and `own`: those of its rows that one policy decided."""

    own: RoundRecord
    whole: RoundRecord

    @property
    def size(self) -> int:
        """Rows that decoded in it, under whatever policy."""
        return len(self.whole.rows)


@dataclass
class JournalLog:
    """A journal that is being read: `rounds` goes through it once, and fills in the rest on the way. Rows whose request
    began before the oldest line that is left belong to nobody known; they are counted in `strays`.
    """

    path: Path
    header: JournalHeader | None = None
    requests: dict[str, RequestStarted] = field(default_factory=dict)
    finished: dict[str, RequestFinished] = field(default_factory=dict)
    missing_lines: int = 0
    strays: int = 0

    @property
    def policies(self) -> Counter[str]:
        return Counter(started.policy for started in self.requests.values() if started.policy)

    @property
    def known_header(self) -> JournalHeader:
        """The header. Raises JournalError: no line says what the rounds ran on."""
        if self.header is None:
            raise JournalError(f"{self.path}: it has no header; give the file that --journal wrote, from its beginning")
        return self.header

    @property
    def drafters(self) -> Sequence[str]:
        """Names of the engine's drafters. Raises JournalError."""
        return self.known_header.drafters

    def costs(self) -> CostModel:
        """The machine's costs as they were at the server's start. Raises JournalError and ConfigError."""
        return CostModel(CostProfile.from_json(json.dumps(self.known_header.costs)))

    def rounds(self, policy: str | None) -> Iterator[LoggedRound]:
        """Rounds in which a policy decided rows, oldest first; None: any policy.

        A policy decides the rows of its requests. Raises JournalError: it is no journal, or the models changed within
        it.
        """
        for entry in read_entries(self.path):
            match entry:
                case RoundRecord():
                    known = [self.requests.get(name) for name in entry.request_ids]
                    self.strays += known.count(None)
                    mine = [i for i, one in enumerate(known) if one and policy in (None, one.policy)]
                    if mine:
                        yield LoggedRound(entry if len(mine) == len(known) else entry.take(np.array(mine)), entry)
                case RequestStarted():
                    self.requests[entry.id] = entry
                case RequestFinished():
                    self.finished[entry.id] = entry
                case LinesDropped():
                    self.missing_lines += entry.lines
                case JournalHeader():
                    before = self.header or entry
                    if (before.pair, list(before.drafters)) != (entry.pair, list(entry.drafters)):
                        said = "its rounds are of different models; use a journal of one pair of models"
                        raise JournalError(f"{self.path}: {said}")
                    self.header = entry

    def nothing_of(self, policy: str) -> JournalError:
        """The error for a journal without rounds of a policy: says whose it has."""
        found = ", ".join(f"{name} ({quantity(count, 'request')})" for name, count in self.policies.most_common())
        return JournalError(
            f"{self.path}: no round was decided by policy {policy!r}; it has rounds of: {found or 'none'}"
        )


def named_policy(name: str) -> tuple[str, PolicySpec | None]:
    """A policy as users name one: its name in journals, and its spec if there is a file of it. Raises PolicyError: it
    is a path, and there is no such file, or it is not valid.
    """
    shipped = {path.stem for path in shipped_policies()}
    if name not in shipped and Path(name).parent == Path() and not name.endswith((".yaml", ".yml")):
        return name, None
    spec = load_policy_spec(find_policy(name))
    return spec.name, spec


def served_policy(path: Path, request: str | None = None) -> str:
    """The policy that a journal is about: that of a request, else its default, else the one with most requests. Raises
    JournalError: it cannot be read, or nobody was served.
    """
    log = JournalLog(path)
    for _ in log.rounds(None):
        pass
    known = None if request is None else log.requests.get(request)
    if known is not None and known.policy:
        return known.policy
    policies = log.policies
    if not policies:
        raise JournalError(f"{path}: it has no requests, so there is nothing to explain; serve some first")
    default = log.known_header.default
    return default if default in policies else policies.most_common(1)[0][0]
