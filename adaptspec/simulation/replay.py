"""Runs one policy over a stream of recorded requests and sums up what it delivered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from adaptspec.control.controller import Controller
from adaptspec.control.cost import CostProfile, CostTable
from adaptspec.control.language.build import build_policy, parse_policy_spec
from adaptspec.control.language.spec import BlockSpec, CoupledSpec, PolicySpec, RejectionSpec
from adaptspec.control.routing import routes_of, with_used
from adaptspec.control.tasks import Labels
from adaptspec.errors import TapeError
from adaptspec.simulation.cost_profiles import MachineCosts
from adaptspec.simulation.scenarios import Stream
from adaptspec.simulation.simulator import Simulator, SimulatorSettings, drafters_of
from adaptspec.types import IntArray, Reason, RoundRecord


@dataclass
class Tally:
    """What a run added up to. Row-rounds are rounds of single requests. `switches` counts row-rounds whose decided
    depth differs from the one before of the same request; `tries` are row-rounds that explored or probed. A row's share
    of a round's time is one over its rows.
    """

    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    row_rounds: int = 0
    drafting: int = 0  # row-rounds that drafted
    drafted: int = 0
    accepted: int = 0
    switches: int = 0
    depths: IntArray = field(default_factory=lambda: np.zeros(65, dtype=np.int64))  # row-rounds by decided depth
    records: list[RoundRecord] = field(default_factory=list)
    tries: int = 0
    tried_tokens: int = 0
    tried_seconds: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)  # each request's share of its rounds' seconds
    _last: dict[str, int] = field(default_factory=dict)

    @property
    def goodput(self) -> float:
        return self.tokens / self.seconds

    @property
    def mean_acceptance_length(self) -> float:
        """The bonus token counts."""
        return 1.0 + (self.accepted / self.drafting if self.drafting else 0.0)

    @property
    def duty(self) -> float:
        return self.drafting / self.row_rounds if self.row_rounds else 0.0

    @property
    def switches_per_1000(self) -> float:
        return 1e3 * self.switches / self.row_rounds if self.row_rounds else 0.0

    @property
    def switches_per_1000_tokens(self) -> float:
        return 1e3 * self.switches / self.tokens if self.tokens else 0.0

    @property
    def probing_cost(self) -> float:
        """Share of the time that exploring and probing lost: what these row-rounds took beyond what their tokens take
        in the others. Below 0 where they earned more.
        """
        seconds, tokens = self.seconds - self.tried_seconds, self.tokens - self.tried_tokens
        if not self.tries or tokens <= 0:
            return 0.0
        return (self.tried_seconds - self.tried_tokens * seconds / tokens) / self.seconds

    def add(self, record: RoundRecord) -> None:
        self.rounds += 1
        self.seconds += record.total_seconds
        self.tokens += int(record.emitted.sum())
        depths = record.depths.tolist()
        share = record.total_seconds / max(len(depths), 1)
        tries = (record.reasons == Reason.EXPLORE) | (record.reasons == Reason.PROBE)
        self.tries += int(tries.sum())
        self.tried_tokens += int(record.emitted[tries].sum())
        self.tried_seconds += share * int(tries.sum())
        self.row_rounds += len(depths)
        self.drafting += int(np.count_nonzero(record.drafted))
        self.drafted += int(record.drafted.sum())
        self.accepted += int(record.accepted.sum())
        for name, depth in zip(record.request_ids, depths, strict=True):
            self.depths[depth] += 1
            self.spent[name] = self.spent.get(name, 0.0) + share
            self.switches += self._last.get(name, depth) != depth
            self._last[name] = depth


def replay(
    spec: PolicySpec,
    stream: Stream,
    costs: MachineCosts,
    settings: SimulatorSettings = SimulatorSettings(),
    *,
    profile: CostProfile | None = None,
    pace: Callable[[int], float] | None = None,
    keep: bool = False,
    controller: Callable[..., Controller] = Controller,
) -> Tally:
    """Serve a stream under a policy. `profile` is what the policy believes of costs at the start (default: the truth at
    the points that a profiler measures); `keep` keeps the round records; `controller` makes one.

    The verification method is the policy's: under `rejection` (and `block`, which never does worse) agreement is drawn
    by chance, from the settings' seed. A draft temperature is left alone: what other tokens it would lead to, a tape
    does not know. Raises TapeError: tape and costs have no drafter in common with the settings, or the verification is
    lossy, or not the same in policies that it uses; PolicyError, ConfigError: the policy cannot be built, or wants a
    drafter that is not here.
    """
    if _by_rejection(spec):
        stream = replace(stream, tape=stream.tape.under_rejection(settings.seed))
    cost = CostTable(profile or costs.profile())
    labels = Labels()
    drafters = drafters_of(stream.tape, costs, settings)
    specs = with_used([spec.with_drafters(drafters)])
    policies = {one.name: build_policy(one, cost, stream.most_rows, labels) for one in specs}
    deciding = controller(
        policies, spec.name, drafters, stream.most_rows, cost=cost, labels=labels, routes=routes_of(spec)
    )
    return run(Simulator(stream, costs, deciding, settings, pace), keep=keep)


def _by_rejection(spec: PolicySpec) -> bool:
    """Whether agreement is a matter of chance under a policy; it is all of it, or none."""
    methods = [one.verification for one in with_used([spec])]
    lossy = [one.method for one in methods if not isinstance(one, CoupledSpec | RejectionSpec | BlockSpec)]
    if lossy:
        raise TapeError(
            f"policy {spec.name} verifies by {lossy[0]}, which may change the text: a tape cannot "
            "follow it; simulate it with a lossless method"
        )
    coupled = {isinstance(one, CoupledSpec) for one in methods}
    if len(coupled) > 1:
        raise TapeError(
            f"policy {spec.name} and those that it uses verify partly by coupled, partly by chance: a tape is replayed "
            "in one way; simulate them with one method"
        )
    return coupled == {False}


def run(simulator: Simulator, *, keep: bool = False) -> Tally:
    """Let it run to its end."""
    tally = Tally()
    while not simulator.over:
        record = simulator.round()
        tally.add(record)
        if keep:
            tally.records.append(record)
    tally.tokens += simulator.firsts
    return tally


def static_spec(depth: int, drafter: str = "draft-model", width: int = 1, name: str = "") -> PolicySpec:
    """The policy that always drafts `depth` tokens, with so many candidates for each; 0 is plain decoding."""
    name = name or f"static-{depth}"
    return parse_policy_spec(
        "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\n"
        f"metadata: {{name: {name}}}\n"
        f"spec: {{choose: {{algorithm: static, depth: {depth}}}, drafters: [{drafter}], max-width: {width}}}\n",
        name,
    )
