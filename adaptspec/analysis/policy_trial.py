"""What a policy would have earned on the newest part of a server's journal, beside the policy it is to replace.

`python -m adaptspec.analysis.policy_trial` is one trial in its own process, so that a server can wait or give up: it
reads {"journal", "policy", "against", "served"} as JSON from standard input, and writes {"trial"} or {"error"}.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from adaptspec.analysis.journal_tape import narrowed, tape_of_journal
from adaptspec.control.language.loader import found_next_to, parse_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.tasks import TaskNames
from adaptspec.errors import AdaptSpecError, JournalError
from adaptspec.files import open_file
from adaptspec.journal import read_journal
from adaptspec.simulation.scenarios import Schedule, in_turn, stream
from adaptspec.simulation.simulator import ReplayStats, replay, static_spec
from adaptspec.simulation.tape import Tape

RECENT_BYTES = 2 * 2**20
_HEADER = b'{"type":"header",'  # how `to_line` begins one
# Replaying a token under the seven or so policies takes two to three milliseconds in all.
_MOST_TOKENS = 4_000
_DEPTHS = (1, 2, 4, 7)  # fixed depths to compare with
_BATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Run:
    """One policy over the requests; goodput in tokens per second of the costs that the server measured."""

    policy: str
    goodput: float
    over_off: float
    acceptance_length: float
    duty: float

    @classmethod
    def of(cls, name: str, tally: ReplayStats, off: ReplayStats) -> Run:
        """What a tally comes to beside plain decoding."""
        return cls(name, tally.goodput, tally.goodput / off.goodput, tally.mean_acceptance_length, tally.duty)


@dataclass(frozen=True)
class Trial:
    """The outcome. `known` is the share of positions that the journal saw drafts for; the others are drawn. `left_out`
    are drafters that a policy asks for and a journal cannot replay. `current` and its error: what serves now may be
    something that no journal can replay, where the new policy can be.
    """

    edited: Run
    current: Run | None
    current_error: str | None
    off: Run
    best_static: Run
    requests: int
    tokens: int
    batch: int
    known: float
    left_out: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def try_policy(
    journal: Path,
    text: str,
    against: str | None,
    served: Mapping[str, str] = MappingProxyType({}),
    folder: Path = Path(),
) -> Trial:
    """Replay the policy in `text` and the one in `against` over the newest `RECENT_BYTES` of a journal. `served`
    are texts of policies that they may use, by name; files that they name are found from `folder`. Raises
    PolicyError, ConfigError: the policy cannot be used; JournalError: the journal holds no request from beginning
    to end, or knows too little of them; TapeError: the policy verifies in a way that no tape can follow.
    """

    def find(name: str) -> PolicySpec:
        return parse_policy_spec(served[name], name) if name in served else found_next_to(folder)(name)

    edited = parse_policy_spec(text, "<body>", TaskNames(), find=find)
    with tempfile.TemporaryDirectory() as copies:
        recent = Path(copies) / journal.name
        _copy_newest(journal, recent)
        try:
            read = tape_of_journal(recent)
            batch = _batch(recent)
        except JournalError as error:
            raise JournalError(str(error).replace(f"{recent}: ", f"{journal.name}: ")) from error
    tape, known = _thinned(read.tape), tuple(read.tape.drafters)
    work = stream(tape, Schedule((batch,)), in_turn(tape))
    off = replay(static_spec(0), work, read.machine)
    fixed = [replay(static_spec(depth), work, read.machine) for depth in _DEPTHS]
    depth, best = max(zip(_DEPTHS, fixed, strict=True), key=lambda pair: pair[1].goodput)

    def earned(spec: PolicySpec) -> Run:
        return Run.of(spec.name, replay(narrowed(spec, known), work, read.machine), off)

    current, reason = None, None
    try:
        current = None if against is None else earned(parse_policy_spec(against, "<served>", find=find))
    except AdaptSpecError as error:
        reason = str(error)
    return Trial(
        edited=earned(edited),
        current=current,
        current_error=reason,
        off=Run.of("off", off, off),
        best_static=Run.of(f"static-{depth}", best, off),
        requests=len(tape),
        tokens=off.tokens,
        batch=batch,
        known=read.known,
        left_out=tuple(name for name in edited.drafters if name not in known),
    )


def _thinned(tape: Tape) -> Tape:
    """As many requests of each task as there is time for, at least one."""
    each = max(1, len(tape))
    while each > 1 and int(tape.thinned(each).lengths.sum()) > _MOST_TOKENS:
        each = each * 3 // 4
    return tape.thinned(each)


def _copy_newest(journal: Path, to: Path) -> None:
    """The newest whole lines of a journal, after the header that they are under. Raises JournalError."""
    try:
        with open(open_file(journal), "rb") as file, to.open("wb") as copy:
            left, header = journal.stat().st_size - RECENT_BYTES, b""
            # A server that was started anew goes on in the same file, with a header of its own.
            while left > 0 and (line := file.readline(RECENT_BYTES)):
                left -= len(line)
                if line.startswith(_HEADER):
                    header = line
            copy.write(header + file.read(2 * RECENT_BYTES))
    except OSError as error:
        raise JournalError(f"{journal.name}: cannot be read ({error.strerror})") from error


def _batch(journal: Path) -> int:
    """A usual batch size there, as one of a few: the median over the rounds of requests."""
    rows = statistics.median(len(record.rows) for record in read_journal(journal) for _ in record.rows)
    return min(_BATCHES, key=lambda size: abs(size - rows))


def main() -> int:
    """Answer one question; the exit status is 0 also where the answer is what is wrong with the policy."""
    os.nice(5)  # whoever is served now comes first
    asked, answer = json.load(sys.stdin), dict[str, Any]()
    try:
        journal = Path(asked["journal"])
        answer = {
            "trial": try_policy(
                journal, asked["policy"], asked["against"], asked["served"], Path(asked.get("folder", ""))
            ).to_json()
        }
    except AdaptSpecError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout, allow_nan=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
