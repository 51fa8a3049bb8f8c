"""A tape from a live server's journal: what its drafts showed, and a likely stand-in for what they did not.

A round that drafts d tokens and has a of them accepted says of a positions that the draft agrees, and of the next, if
a < d, that it does not. Of the token after a full acceptance, and of tokens emitted without drafts, it says nothing:
what deeper or other drafts would have met there is counterfactual. Those positions are drawn from known ones of the
same task after the same outcome, so that figures for depths the server rarely ran are guesses: `JournalTape.known` says
how much was seen. `bench record` makes tapes that know every position.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from adaptspec.analysis.journal_reader import JournalReader
from adaptspec.arrays import IntArray
from adaptspec.control.language.spec import PolicySpec
from adaptspec.errors import ConfigError, JournalError
from adaptspec.journal import RequestStarted
from adaptspec.rounds import RoundRecord
from adaptspec.simulation.machine import Machine
from adaptspec.simulation.tape import DraftView, Tape, join, recorded

DRAFTER = "draft-model"
# With less than this seen, a tape would be made of guesses.
_LEAST_KNOWN = 0.1
_UNKNOWN = -1

# Task and what came before (1: agreed, 0: did not, -1: unknown) -> known positions: agreed, confidence, entropy.
_Pool = dict[tuple[str, int], list[tuple[int, float, float]]]


@dataclass(frozen=True)
class JournalTape:
    """The tape, the machine that the journal's rounds were timed on, and the share of positions that the journal knew.

    Of its `rounds`, `plain` ones ran without drafts: with none, the time of plain decoding is the server's first guess.
    """

    tape: Tape
    machine: Machine
    known: float
    rounds: int
    plain: int


def tape_of_journal(path: Path, seed: int = 0) -> JournalTape:
    """Read a journal; requests that it does not hold from beginning to end are left out. Raises JournalError: it is no
    journal, holds no whole request that the draft model drafted for, or knows too little.
    """
    log, requests, costs = JournalReader(path), dict[str, ReplayedRequest](), None
    rounds = plain = 0
    for logged in log.rounds(None):
        if DRAFTER not in log.drafters:
            raise JournalError(
                f"{path}: its server had no {DRAFTER}; only drafts of one can be replayed from a journal"
            )
        costs = costs or log.costs()
        costs.observe(logged.whole.work, logged.whole.timing)
        rounds, plain = rounds + 1, plain + (not logged.whole.drafting)
        own = list(log.drafters).index(DRAFTER)
        chains = logged.own.main_chains()
        for i, name in enumerate(chains.request_ids):
            requests.setdefault(name, ReplayedRequest(log.requests[name])).add(chains, i, own)
    whole = {
        name: one
        for name, one in requests.items()
        if name in log.finished and one.length == log.finished[name].tokens and one.length > 1
    }
    if costs is None or not whole:
        raise JournalError(f"{path}: it holds no request from beginning to end; let the server finish some")
    known = sum(len(one.known) for one in whole.values()) / sum(one.length - 1 for one in whole.values())
    if known < _LEAST_KNOWN:
        raise JournalError(
            f"{path}: only {known:.0%} of the positions were drafted for; log a policy that drafts more, such as "
            "static-3, or record a tape with `adaptspec bench record`"
        )
    tape = tape_of_rounds(whole, {"journal": path.name}, seed)
    return JournalTape(tape, Machine.of_cost_model("journal", costs), known, rounds, plain)


def tape_of_rounds(requests: Mapping[str, ReplayedRequest], about: Mapping[str, str], seed: int = 0) -> Tape:
    """A tape of requests, of which at least one position is known; the unknown ones are drawn."""
    pool, rng = _pool(list(requests.values())), np.random.default_rng(seed)
    return join([one.tape(name, pool, rng) for name, one in requests.items()], about)


def narrowed(spec: PolicySpec, known: Sequence[str]) -> PolicySpec:
    """The policy with those of its drafters that are on a journal's tape: `known` ones can be replayed. Raises
    ConfigError: none of its drafters can.
    """
    spec = spec.with_drafters(known)
    drafters = tuple(name for name in spec.drafters if name in known)
    if drafters == tuple(spec.drafters) or not spec.drafts:
        return spec
    if not drafters:
        raise ConfigError(
            f"policy {spec.name} drafts with {', '.join(spec.drafters)} only, which a journal cannot replay (it knows "
            f"{', '.join(known)}); simulate it on a tape of `adaptspec bench record`"
        )
    return spec.model_copy(update={"spec": spec.spec.model_copy(update={"drafters": drafters})})


@dataclass
class ReplayedRequest:
    """What rounds said of a request: known positions as (agreed, confidence, entropy)."""

    started: RequestStarted
    length: int = 1  # the first token comes with the prompt
    known: dict[int, tuple[int, float, float]] = field(default_factory=dict)

    @property
    def task(self) -> str:
        return self.started.task or ""

    def add(self, record: RoundRecord, i: int, drafter: int) -> None:
        at = int(record.context[i]) - self.started.prompt_tokens
        if at == self.length:  # else lines are missing, and the length differs from that of the end
            self.length += int(record.emitted[i])
        if int(record.drafter[i]) != drafter:
            return
        drafted, accepted = int(record.drafted[i]), int(record.accepted[i])
        for j in range(min(accepted + 1, drafted)):
            confidence, entropy = float(record.confidence[i, j]), float(record.entropy[i, j])
            self.known[at + j] = (int(j < accepted), confidence, entropy)

    def tape(self, name: str, pool: _Pool, rng: np.random.Generator) -> Tape:
        agreed: IntArray = np.full(self.length, _UNKNOWN, dtype=np.int64)
        confidence, entropy = np.full((2, self.length), np.nan)
        for at in range(1, self.length):
            found = self.known.get(at)
            if found is None:
                alike = pool[self.task, int(agreed[at - 1])] or pool[self.task, _UNKNOWN] or pool["", _UNKNOWN]
                found = alike[int(rng.integers(len(alike)))]
            agreed[at], confidence[at], entropy[at] = found
        view = DraftView.of_agreement(agreed == 1, confidence, entropy)
        own = self.started
        return recorded(
            name,
            own.prompt_tokens,
            self.length,
            {DRAFTER: view},
            self.task,
            source="journal",
            max_tokens=own.max_tokens,
            temperature=own.temperature,
        )


def _pool(requests: list[ReplayedRequest]) -> _Pool:
    pool: _Pool = defaultdict(list)
    for one in requests:
        for at, found in one.known.items():
            before = one.known.get(at - 1)
            if before is not None:
                pool[one.task, before[0]].append(found)
            pool[one.task, _UNKNOWN].append(found)
            if one.task:
                pool["", _UNKNOWN].append(found)
    return pool
