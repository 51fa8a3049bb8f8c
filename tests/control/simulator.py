"""Synthetic tapes of known acceptance, and machines of known costs: small worlds to run policies in, no models.

The draft's agreement at an output position does not depend on the round it is drafted in, so fixed depths and
policies see the same text and their goodputs compare exactly. Everything else is `adaptspec.simulation`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from adaptspec.control.cost import CostProfile, DrafterCost
from adaptspec.control.language.build import parse_policy_spec
from adaptspec.simulation.cost_profiles import Curve, DraftCosts, MachineCosts, packed
from adaptspec.simulation.draft_view import DraftView
from adaptspec.simulation.replay import Tally, replay
from adaptspec.simulation.scenarios import Schedule, Stream
from adaptspec.simulation.simulator import SimulatorSettings
from adaptspec.simulation.tape import join, recorded
from adaptspec.types import BoolArray, FloatArray
from tests.references import fixed_goodput

HEADER = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: tested}\nspec:\n"
STATIC = HEADER + "  choose: {algorithm: static, depth: %d}\n"
GOODPUT = (
    HEADER
    + "  choose: {algorithm: goodput}\n  stop: {rule: marginal-goodput}\n"
    + "  guard: {never-slower: {margin: 0.03, window-rounds: 16, losing-windows: 2}}\n"
)


@dataclass(frozen=True)
class Machine:
    """True seconds of everything; defaults are a 6M-parameter target on two cores."""

    verify_tokens: tuple[float, ...] = (1, 2, 4, 8, 16)
    verify_ms: tuple[float, ...] = (1.2, 1.4, 1.7, 2.1, 2.8)
    step_ms: float = 0.2
    step_row_ms: float = 0.01
    catch_up_us: float = 5.0
    overhead_ms: float = 0.15
    noise: float = 0.02

    def verify(self, tokens: float) -> float:
        return Curve(self.verify_tokens, tuple(ms / 1e3 for ms in self.verify_ms)).at(tokens)

    def step(self, rows: int) -> float:
        return (self.step_ms + self.step_row_ms * (rows - 1)) / 1e3

    def costs(self) -> MachineCosts:
        curve = Curve(self.verify_tokens, tuple(ms / 1e3 for ms in self.verify_ms))
        draft = DraftCosts(Curve((1, 2), (self.step(1), self.step(2))), self.catch_up_us / 1e6)
        drafters = {"draft-model": draft}
        overhead = self.overhead_ms / 1e3
        return MachineCosts("tested", packed(curve), drafters, overhead=overhead, profile=self.profile())

    def profile(self) -> CostProfile:
        rows, tokens = (1, 2, 4, 8, 16), (1, 2, 3, 4, 5, 6, 7, 8)
        return CostProfile(
            rows=rows,
            tokens=tokens,
            verify=tuple(tuple(self.verify(r * t) for t in tokens) for r in rows),
            drafters={"draft-model": DrafterCost((1, 16), (self.step(1), self.step(16)), self.catch_up_us / 1e6)},
            overhead=self.overhead_ms / 1e3,
        )


@dataclass
class Text:
    """One request's output as drafting sees it: does the draft agree, and how sure was it."""

    agrees: BoolArray
    confidence: FloatArray
    prompt: int = 64
    task: str | None = None


def texts(acceptance: float, count: int, length: int = 128, seed: int = 0, sharpness: float = 2.0) -> list[Text]:
    """Requests whose draft agrees with probability `acceptance`; how likely varies by token; the draft half knows."""
    rng = np.random.default_rng(seed)
    if acceptance <= 0.0:
        return [Text(np.zeros(length, np.bool_), rng.uniform(0.2, 1.0, length)) for _ in range(count)]
    made = []
    for _ in range(count):
        chance = rng.beta(acceptance * sharpness, (1 - acceptance) * sharpness, length)
        noisy = np.clip(chance + rng.normal(0.0, 0.2, length), 0.02, 0.999)
        made.append(Text(rng.random(length) < chance, noisy))
    return made


def stream_of(work: Sequence[Text], batch: int = 1) -> Stream:
    """The texts as a synthetic tape; the prompt yields one token before them, as easy as their first."""
    tapes = []
    for i, text in enumerate(work):
        agrees, sure = np.append(text.agrees[:1], text.agrees), np.append(np.nan, text.confidence)
        views = {"draft-model": DraftView.of_agreement(agrees, sure, np.zeros(len(sure)))}
        tapes.append(recorded(f"r{i}", text.prompt, len(agrees), views, text.task or ""))
    return Stream(join(tapes), tuple(range(len(work))), Schedule((batch,)))


def run(
    policy: str,
    work: Sequence[Text],
    batch: int = 1,
    machine: Machine = Machine(),
    *,
    seed: int = 0,
    keep: bool = False,
    slow: Callable[[int], float] | None = None,
    profile: CostProfile | None = None,
) -> Tally:
    """Serve `work` with `batch` requests at a time. `slow(round)` multiplies that round's true time."""
    return replay(
        parse_policy_spec(policy),
        stream_of(work, batch),
        machine.costs(),
        SimulatorSettings(("draft-model",), max_depth=7, noise=machine.noise, seed=seed),
        profile=profile,
        pace=slow,
        keep=keep,
    )


def run_fixed(depth: int, work: Sequence[Text], batch: int = 1, machine: Machine = Machine()) -> float:
    """Goodput of one depth for everything, without noise: the yardstick."""
    settings = SimulatorSettings(("draft-model",), max_depth=7)
    return fixed_goodput(depth, "draft-model", stream_of(work, batch), machine.costs(), settings)


def best_fixed(work: Sequence[Text], batch: int = 1, machine: Machine = Machine()) -> float:
    """The best single depth in hindsight, off included."""
    return max(run_fixed(depth, work, batch, machine) for depth in (0, 1, 2, 3, 5, 7))
