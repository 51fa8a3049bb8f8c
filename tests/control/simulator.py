"""A small world to run policies in: known acceptance, known costs, seeded draws, no models.

The draft's agreement at an output position does not depend on the round it is drafted in, so fixed depths and
policies see the same text and their goodputs compare exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from adaptspec.control.controller import Controller
from adaptspec.control.cost import CostProfile, CostTable, DrafterCost
from adaptspec.control.policy import BatchSignals
from adaptspec.control.spec import build_policy, parse_policy_spec
from adaptspec.types import BoolArray, FloatArray, Request, RoundRecord, SpeculationParams

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
        xs, ys = self.verify_tokens, self.verify_ms
        beyond = max(0.0, tokens - xs[-1]) * (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
        return (float(np.interp(tokens, xs, ys)) + beyond) / 1e3

    def step(self, rows: int) -> float:
        return (self.step_ms + self.step_row_ms * (rows - 1)) / 1e3

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
    at: int = 0


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


@dataclass
class Outcome:
    """What a run delivered."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    records: list[RoundRecord] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        return self.tokens / self.seconds


def run(
    policy: str,
    work: Sequence[Text],
    batch: int = 1,
    machine: Machine = Machine(),
    *,
    seed: int = 0,
    keep: bool = False,
    slow: Callable[[int], float] = lambda number: 1.0,
    profile: CostProfile | None = None,
) -> Outcome:
    """Serve `work` with `batch` requests at a time. `slow(round)` multiplies that round's true time."""
    cost = CostTable(profile or machine.profile())
    tasks = sorted({text.task for text in work if text.task})
    tested = build_policy(parse_policy_spec(policy), cost, batch, tasks)
    controller = Controller({"tested": tested}, "tested", ("draft-model",), batch, cost=cost, task_names=tasks)
    queue = [Text(t.agrees, t.confidence, t.prompt, t.task) for t in reversed(work)]
    rows: list[Text | None] = [None] * batch
    lag = np.zeros(batch, dtype=np.int64)
    rng = np.random.default_rng(seed)
    outcome = Outcome()
    # Several rows at a time: the tail, when rows run out, says nothing about a policy.
    while queue or (batch == 1 and any(rows)):
        for row in range(batch):
            if rows[row] is None and queue:
                text = queue.pop()
                rows[row], lag[row] = text, text.prompt
                controller.start(row, Request(str(outcome.rounds), (1,), speculation=SpeculationParams(task=text.task)))
        running = [row for row in range(batch) if rows[row] is not None]
        record = _round(controller, machine, rows, np.array(running), lag, rng, slow(outcome.rounds), outcome.rounds)
        outcome.tokens += int(record.emitted.sum())
        outcome.seconds += record.total_seconds
        outcome.rounds += 1
        for row in running:
            text = rows[row]
            if text is not None and text.at >= len(text.agrees):
                rows[row] = None
                controller.finish(row)
        controller.learn(record)
        if keep:
            outcome.records.append(record)
    return outcome


def _round(controller, machine, rows, running, lag, rng, slow, number):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    size = len(running)
    left = np.array([len(rows[r].agrees) - rows[r].at for r in running])
    context = np.array([rows[r].prompt + rows[r].at for r in running])
    nobody = np.zeros_like(running)
    position = np.array([rows[r].at for r in running])
    signals = BatchSignals(running, nobody, context, np.minimum(left - 1, 7), lag[running], position, nobody)
    decision = controller.decide(signals)
    assert (decision.depths <= signals.limits).all()
    deepest = int(decision.depths.max())
    drafted = np.zeros(size, dtype=np.int64)
    confidence = np.full((size, deepest), np.nan)
    active, draft_seconds, steps = np.flatnonzero(decision.depths), 0.0, 0
    caught_up = int(lag[running[active]].sum())
    draft_seconds += caught_up * machine.catch_up_us / 1e6
    while len(active):
        draft_seconds += machine.step(len(active))
        sure = np.array([rows[running[i]].confidence[rows[running[i]].at + steps] for i in active])
        confidence[active, steps] = sure
        drafted[active] += 1
        steps += 1
        going = decision.depths[active] > steps
        if decision.stop is not None and going.any():
            going &= decision.stop(steps, active, sure, np.zeros_like(sure))
        active = active[going]
    accepted = np.zeros(size, dtype=np.int64)
    emitted = np.zeros(size, dtype=np.int64)
    for i, row in enumerate(running):
        text = rows[row]
        window = text.agrees[text.at : text.at + drafted[i]]
        accepted[i] = len(window) if window.all() else int(np.argmin(window))
        emitted[i] = min(accepted[i] + 1, left[i])
        text.at += int(emitted[i])
        lag[row] = 0 if drafted[i] else lag[row] + emitted[i]
    jitter = slow * np.exp(rng.normal(0.0, machine.noise, 3)) if machine.noise else np.full(3, slow)
    draft_seconds *= jitter[0]
    verify = machine.verify(size + int(drafted.sum())) * jitter[1]
    return RoundRecord(
        number=number,
        request_ids=tuple(str(r) for r in running),
        rows=running,
        depths=decision.depths,
        reasons=decision.reasons,
        drafter=decision.drafter,
        drafted=drafted,
        accepted=accepted,
        emitted=emitted,
        context=context,
        confidence=confidence,
        entropy=np.full_like(confidence, np.nan),
        prefill_tokens=0,
        draft_steps=steps,
        caught_up=caught_up,
        verify_tokens=size + int(drafted.sum()),
        draft_seconds=draft_seconds,
        verify_seconds=verify,
        total_seconds=draft_seconds + verify + machine.overhead_ms / 1e3 * jitter[2],
    )


def run_fixed(depth: int, work: Sequence[Text], batch: int = 1, machine: Machine = Machine()) -> float:
    """Goodput of one depth for everything, without noise and without any control plane: the yardstick."""
    lengths = [len(text.agrees) for text in work]
    # next_miss[t]: how many drafts in a row would be accepted from position t on
    runs = [_agreement_runs(text.agrees) for text in work]
    queue = list(range(len(work)))[::-1]
    rows: list[tuple[int, int] | None] = [None] * batch
    tokens, seconds = 0, 0.0
    while queue or (batch == 1 and rows[0] is not None):
        packed, steps = 0, [0] * depth
        for row in range(batch):
            state = rows[row]
            if state is None and queue:
                state = (queue.pop(), 0)
                if depth:
                    seconds += work[state[0]].prompt * machine.catch_up_us / 1e6
            if state is None:
                continue
            which, at = state
            drafted = min(depth, lengths[which] - at - 1)
            packed += 1 + drafted
            for step in range(drafted):
                steps[step] += 1
            gained = min(runs[which][at], drafted) + 1
            tokens += gained
            rows[row] = (which, at + gained) if at + gained < lengths[which] else None
        seconds += machine.verify(packed) + machine.overhead_ms / 1e3 + sum(machine.step(n) for n in steps if n)
    return tokens / seconds


def best_fixed(work: Sequence[Text], batch: int = 1, machine: Machine = Machine()) -> float:
    """The best single depth in hindsight, off included."""
    return max(run_fixed(depth, work, batch, machine) for depth in (0, 1, 2, 3, 5, 7))


def _agreement_runs(agrees: BoolArray) -> list[int]:
    runs, run_length = [], 0
    for agreed in reversed(agrees.tolist()):
        run_length = run_length + 1 if agreed else 0
        runs.append(run_length)
    return runs[::-1]
