"""What a policy would have earned, from the journal of one that explores: rounds where both decide alike, weighted.

Drives the policy itself over the journal's rounds, which say less than the engine knew: how far a draft model lags is
taken from the rounds it ran in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from adaptspec.analysis.importance_weighting import WeightedGoodput, weighted_goodput
from adaptspec.analysis.journal_rounds import JournalLog, LoggedRound
from adaptspec.control.controller import Controller
from adaptspec.control.language.build import build_policy
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.policy import BatchSignals
from adaptspec.control.tasks import Labels, Names
from adaptspec.drafters import DRAFTERS, Kind, kind_of
from adaptspec.errors import ConfigError, JournalError
from adaptspec.quantity import quantity
from adaptspec.request import Request, SpeculationParams
from adaptspec.types import BoolArray, IntArray, Reason, RoundRecord

_MOST_DEPTH, _MOST_ROWS = 64, 1024
_SURE = 1.0 - 1e-9
# Below these the interval itself cannot be trusted.
_LEAST_EFFECTIVE, _LEAST_BLOCKS = 50.0, 10
# Where chance left the policy out more often than this, what is left says little of the traffic.
_MOST_LEFT_OUT = 0.5
# Drafts also end at an end token, but no text goes on behind one that was kept. More often than this is a stop rule.
_STOPPED = 0.05
_OVERRULED = (int(Reason.DWELL), int(Reason.GUARD), int(Reason.CEILING), int(Reason.REQUEST))


@dataclass(frozen=True)
class OffPolicyEstimate:
    """The estimate of `policy` from rounds that `logged` decided; `left_out` counts rounds by why they do not count."""

    policy: str
    logged: str
    rounds: int
    result: WeightedGoodput
    left_out: dict[str, int]
    learns: bool  # it was judged while it learned from the rounds that match, and those only

    @property
    def uncovered(self) -> float:
        """Share of rounds in which the journal's policy could not have done what this one does, or was overruled."""
        lost = self.left_out["impossible"] + self.left_out["overruled"]
        return lost / (self.rounds + self.left_out["overruled"])

    def to_json(self) -> dict[str, Any]:
        found = self.result
        return {
            "policy": self.policy,
            "logged_policy": self.logged,
            "goodput": vars(found.goodput),
            "over_logged": vars(found.over_logged),
            "logged_goodput": found.logged,
            "rounds": self.rounds,
            "matched_rounds": found.matched,
            "effective_rounds": found.effective,
            "clipped_weight": found.clipped,
            "left_out": self.left_out,
            "uncovered": self.uncovered,
            "learns": self.learns,
        }


def exploring_policies(log: JournalLog) -> Counter[str]:
    """Policies of a journal by the row-rounds that they decided by chance. Raises JournalError."""
    found: Counter[str] = Counter()
    for logged in log.rounds(None):
        told = logged.own.provenance
        if told is not None:
            drawn = np.flatnonzero(told.propensities < _SURE).tolist()
            policies = (log.requests[logged.own.request_ids[i]].policy for i in drawn)
            found.update(name for name in policies if name)
    return found


def estimate(
    log: JournalLog, spec: PolicySpec, logged: str, *, clip: float = 50.0, level: float = 0.95
) -> OffPolicyEstimate:
    """Estimate a policy from the rounds that the policy named `logged` decided; see `weighted_goodput`.

    A round counts where `spec` decides the depths and drafters that were really run. Only such rounds teach it, as if
    it had run them (Li et al. 2011, "Unbiased Offline Evaluation of Contextual-bandit-based News Article Recommendation
    Algorithms"). Rows that share a draw count it once; rows that drew by themselves multiply, so large batches with
    draws per request soon overlap with nothing.

    What it cannot see: choices change the rounds after them (where the text is, who lags); these are as the logged
    policy left them. A policy that learns learns slowly here: what it would try next is seldom what was done, so one
    that tries arms for a few rounds at a time may never find out what they are worth. `OffPolicyEstimate.learns` says
    which estimates to take with that caution; simulate such policies on a tape. Raises JournalError: no rounds of that
    policy, no propensities, or no overlap: says which, and what to do; ConfigError, PolicyError: the policy cannot be
    judged by its depths, or cannot be built.
    """
    _refuse_stops(spec.with_drafters(tuple(DRAFTERS)))
    seen = _Seen()
    replica: _Replica | None = None
    for one in log.rounds(logged):
        replica = replica or _Replica(log, spec)
        seen.add(one, replica)
    if replica is None:
        raise log.nothing_of(logged)
    where = f"{log.path}: policy {logged!r}"
    _refuse_what_says_nothing(where, seen)
    rounds = len(seen.rounds)
    tokens, seconds, propensity, alike, decisions = np.array(seen.rounds, dtype=np.float64).reshape(rounds, 5).T
    try:
        numbers = decisions.astype(np.int64)
        result = weighted_goodput(tokens, seconds, propensity, alike > 0.0, numbers, clip=clip, level=level)
    except ValueError as error:
        raise _no_overlap(where, spec, f"they agree in {int(alike.sum())} of {quantity(rounds, 'round')}") from error
    found = OffPolicyEstimate(
        spec.name, logged, rounds, result, seen.left_out, spec.spec.choose.algorithm not in ("static", "batch-table")
    )
    if result.effective < _LEAST_EFFECTIVE or result.blocks < _LEAST_BLOCKS:
        share = f"the {result.matched} of {rounds} rounds that agree weigh as much as {result.effective:.0f}"
        raise _no_overlap(where, spec, share)
    if found.uncovered > _MOST_LEFT_OUT:
        raise _no_overlap(where, spec, f"in {found.uncovered:.0%} of its rounds there was no chance of it")
    return found


@dataclass
class _Seen:
    # Tokens, seconds, propensity, alike, and the decision, which may have served several: by a number of its own where
    # the journal has none.
    rounds: list[tuple[int, float, float, bool, int]] = field(default_factory=list)
    left_out: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("reads a prompt", "shared with other policies", "near an answer's end", "overruled", "impossible"), 0
        )
    )
    random: int = 0
    deepest: int = 0
    went_on: int = 0  # drafts of a model that were kept whole, and text came after them
    stopped: int = 0  # those of them that ended before their depth

    def add(self, logged: LoggedRound, replica: _Replica) -> None:
        """Ask the policy what it would do in this round, and compare."""
        own, told = logged.own, logged.own.provenance
        same, limits = replica.decides_alike(own)
        self.deepest = max(self.deepest, int(own.depths.max()))
        if logged.size > len(own.rows):
            self.left_out["shared with other policies"] += 1
        elif own.prefill_tokens:
            self.left_out["reads a prompt"] += 1
        elif (limits < self.deepest).any():
            # Several arms come to the same depth here, and the journal has the chance of one of them only.
            self.left_out["near an answer's end"] += 1
        elif told is None or (np.isnan(told.propensities) | np.isin(own.reasons, _OVERRULED)).any():
            self.left_out["overruled"] += 1
        else:
            chances = told.propensities
            self.random += bool((chances < _SURE).any())
            self.left_out["impossible"] += bool((~same & (chances >= _SURE)).any())
            draws, of_row = np.unique(told.draws, return_inverse=True)
            by_draw = np.ones(len(draws))
            np.minimum.at(by_draw, of_row, chances)
            seen, number = int(own.emitted.sum()), own.decision or -len(self.rounds)
            self.rounds.append((seen, own.total_seconds, float(by_draw.prod()), bool(same.all()), number))
        models = replica.runs_model[own.drafter] & (own.drafted > 0) & (own.depths <= limits)
        main = own.trunk()
        went_on = models & (main.accepted == main.drafted) & (own.emitted > main.drafted)
        self.went_on += int(went_on.sum())
        self.stopped += int((went_on & (main.drafted < own.depths)).sum())
        if same.all():
            replica.learn(own)


def _refuse_what_says_nothing(where: str, seen: _Seen) -> None:
    if not seen.random:
        raise JournalError(
            f"{where} decided no round by chance (there are no propensities below 1), so nothing can be said of other "
            "policies; serve one that explores, such as examples/logging_policy.yaml, or simulate on a tape"
        )
    if seen.stopped > _STOPPED * seen.went_on:
        raise JournalError(
            f"{where} ends drafts early by a stop rule, so its depths do not say what was done; log one without stops"
        )


def _no_overlap(where: str, spec: PolicySpec, why: str) -> JournalError:
    return JournalError(
        f"{where} did too little of what {spec.name!r} would do: {why}; log a policy that explores more, such as "
        "examples/logging_policy.yaml, log for longer, with fewer requests at a time, or simulate on a tape"
    )


def _refuse_stops(spec: PolicySpec) -> None:
    body = spec.spec
    stops = body.stop.rule != "none" or any(task.stop is not None for task in body.tasks.values())
    arms = getattr(body.choose, "arms", None) or ()
    if body.choose.weighs_found and any(kind_of(name) is Kind.MODEL_FREE for name in spec.drafters):
        raise ConfigError(
            f"policy {spec.name!r} weighs what n-grams propose, which a journal tells only where it was taken; "
            "simulate it on a tape"
        )
    if stops or body.draft_temperature is not None or any(arm.depth is None or arm.stop is not None for arm in arms):
        raise ConfigError(
            f"policy {spec.name!r} does more than choose depths (stop rules, draft temperatures, nested policies), "
            "which rounds of another policy cannot tell; simulate it on a tape, or leave these out"
        )


class _Replica:
    """The policy in question, shown the rounds of a journal."""

    def __init__(self, log: JournalLog, spec: PolicySpec) -> None:
        header, cost = log.known_header, log.costs()
        self._log = log
        labels = Labels(Names(header.tasks))
        policy = build_policy(spec.with_drafters(header.drafters), cost, _MOST_ROWS, labels)
        self._controller = Controller(
            {spec.name: policy}, spec.name, header.drafters, _MOST_ROWS, cost=cost, labels=labels
        )
        profiled = cost.profile.drafters
        self.runs_model: BoolArray = np.array([bool(name in profiled) for name in header.drafters] or [False])
        self._cached: IntArray = np.zeros((len(self.runs_model), _MOST_ROWS), dtype=np.int64)  # by drafter and row
        self._running: dict[int, str] = {}
        self._decided = 0

    def decides_alike(self, record: RoundRecord) -> tuple[BoolArray, IntArray]:
        """Whether it decides each row as the round did, and how deep each may have drafted at most; [B] each."""
        self._begin(record)
        known = [self._log.requests[name] for name in record.request_ids]
        position = record.context - np.array([one.prompt_tokens for one in known])
        most = np.array([one.max_tokens for one in known])
        own = np.array([_MOST_DEPTH if one.max_depth is None else one.max_depth for one in known])
        limits = np.minimum(most - position - 1, np.minimum(own, _MOST_DEPTH))
        missing = record.context - self._cached[:, record.rows] - 2
        cache_gap = np.where(self.runs_model[:, None], np.maximum(missing, 0), 0)
        nothing = np.zeros(len(known), dtype=np.int64)
        signals = BatchSignals(
            record.rows,
            nothing,
            record.context,
            limits,
            cache_gap,
            np.zeros_like(cache_gap),
            position,
            record.prefill_tokens,
        )
        decision = self._controller.decide(signals)
        self._decided = decision.number
        drafter = (decision.drafter == record.drafter) | (decision.depths == 0)
        read = record.drafted > 0
        self._cached[record.drafter[read], record.rows[read]] = (record.context + record.trunk().accepted)[read]
        return np.asarray((decision.depths == record.depths) & drafter), limits

    def learn(self, record: RoundRecord) -> None:
        self._controller.learn(replace(record, decision=self._decided))

    def _begin(self, record: RoundRecord) -> None:
        for name, row in zip(record.request_ids, record.rows.tolist(), strict=True):
            if self._running.get(row) == name:
                continue
            if row >= _MOST_ROWS:
                raise JournalError(f"{self._log.path}: more than {_MOST_ROWS} requests at a time; log with fewer")
            started = self._log.requests[name]
            wishes = SpeculationParams(task=started.task, max_depth=started.max_depth)
            self._controller.start(row, Request(name, (0,), speculation=wishes))
            self._running[row] = name
            self._cached[:, row] = 0
