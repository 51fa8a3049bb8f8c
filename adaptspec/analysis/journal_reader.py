"""A journal by policies. It is read line by line, since it may be larger than memory."""

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
class PolicyRound:
    """A round, and `own`: those of its rows that one policy decided."""

    own: RoundRecord
    whole: RoundRecord


@dataclass
class JournalReader:
    """Reads a journal once, by `rounds`; the other fields fill on the way.

    Rows whose request began before the oldest line that is left have no known policy: `unknown_rows` counts them.
    """

    path: Path
    header: JournalHeader | None = None
    requests: dict[str, RequestStarted] = field(default_factory=dict)
    finished: dict[str, RequestFinished] = field(default_factory=dict)
    missing_lines: int = 0
    unknown_rows: int = 0

    @property
    def policies(self) -> Counter[str]:
        """Requests by policy."""
        return Counter(started.policy for started in self.requests.values() if started.policy)

    @property
    def known_header(self) -> JournalHeader:
        """The header. Raises JournalError: there is none, so it is unknown what the rounds ran on."""
        if self.header is None:
            raise JournalError(f"{self.path}: it has no header; give the file that --journal wrote, from its beginning")
        return self.header

    @property
    def drafters(self) -> Sequence[str]:
        """Names of the engine's drafters. Raises JournalError."""
        return self.known_header.drafters

    def costs(self) -> CostModel:
        """The machine's costs at the start of the server. Raises JournalError and ConfigError."""
        return CostModel(CostProfile.from_json(json.dumps(self.known_header.costs)))

    def rounds(self, policy: str | None = None) -> Iterator[PolicyRound]:
        """Rounds in which a policy decided rows, oldest first; None: any policy.

        A policy decides the rows of its requests. Raises JournalError: the file is no journal, or its models changed.
        """
        for entry in read_entries(self.path):
            match entry:
                case RoundRecord():
                    known = [self.requests.get(name) for name in entry.request_ids]
                    self.unknown_rows += known.count(None)
                    own = [i for i, one in enumerate(known) if one is not None and policy in (None, one.policy)]
                    if own:
                        yield PolicyRound(entry if len(own) == len(known) else entry.take(np.array(own)), entry)
                case RequestStarted():
                    self.requests[entry.id] = entry
                case RequestFinished():
                    self.finished[entry.id] = entry
                case LinesDropped():
                    self.missing_lines += entry.lines
                case JournalHeader():
                    before = self.header or entry
                    if (before.pair, list(before.drafters)) != (entry.pair, list(entry.drafters)):
                        raise JournalError(
                            f"{self.path}: its rounds are of different models; use a journal of one pair of models"
                        )
                    self.header = entry

    def no_rounds(self, policy: str) -> JournalError:
        """The error for a journal without rounds of a policy; it names the policies that have some."""
        found = ", ".join(f"{name} ({quantity(count, 'request')})" for name, count in self.policies.most_common())
        return JournalError(
            f"{self.path}: no round was decided by policy {policy!r}; it has rounds of: {found or 'none'}"
        )


def named_policy(name: str) -> tuple[str, PolicySpec | None]:
    """The name of a policy in journals, and its spec if it is a file or is shipped.

    Raises PolicyError: the name is a path, and there is no such file, or it is not valid.
    """
    shipped = {path.stem for path in shipped_policies()}
    if name not in shipped and Path(name).parent == Path() and not name.endswith((".yaml", ".yml")):
        return name, None
    spec = load_policy_spec(find_policy(name))
    return spec.name, spec


def served_policy(path: Path, request: str | None = None) -> str:
    """The policy of a request, else the server's default, else the one with most requests.

    Raises JournalError: the journal cannot be read, or has no request.
    """
    reader = JournalReader(path)
    for _ in reader.rounds():
        pass
    known = None if request is None else reader.requests.get(request)
    if known is not None and known.policy:
        return known.policy
    policies = reader.policies
    if not policies:
        raise JournalError(f"{path}: it has no requests, so there is nothing to explain; serve some first")
    default = reader.known_header.default
    return default if default in policies else policies.most_common(1)[0][0]
