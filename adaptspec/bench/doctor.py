"""What speculation would earn here: what drafts met (`try_drafts`) is replayed under policies, task by task.

The replay is the engine's own rounds over a tape, at the costs of rounds that ran here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from adaptspec.analysis.journal_tape import DRAFTER
from adaptspec.analysis.oracle import references
from adaptspec.bench.try_drafts import Tried, try_draft
from adaptspec.bench.workloads import Workloads
from adaptspec.control.language.build import parse_policy_spec
from adaptspec.drafters import Kind, available_drafters, kind_of
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.engine.profiler import processor
from adaptspec.errors import AdaptSpecError
from adaptspec.models.quantized import PREFIX
from adaptspec.simulation.cost_profiles import Curve, DraftCosts, MachineCosts
from adaptspec.simulation.draft_view import FAR, DraftView
from adaptspec.simulation.replay import replay
from adaptspec.simulation.scenarios import Schedule, stream
from adaptspec.simulation.simulator import started
from adaptspec.simulation.tape import Tape
from adaptspec.tables import Table
from adaptspec.types import FloatArray

# How often the prompts come in a replay. The last turn counts: what a server earns once it has seen some traffic.
_TURNS = 3
# What is earned beyond plain decoding must be more than what such forecasts are off by.
_WORTH = 1.03
_LOOKUP = "ngram"
# The draft model that is imagined: so much smaller than the target, and right so often.
_SMALLER, _RIGHT = 10, 0.7


@dataclass(frozen=True)
class _Earned:
    """Seconds and tokens by task."""

    seconds: Mapping[str, float]
    tokens: Mapping[str, int]

    def over(self, plain: _Earned) -> dict[str, float]:
        """How many times as fast, by task."""
        return {task: plain.seconds[task] / seconds for task, seconds in self.seconds.items()}


def doctor_drafts(config: EngineConfig, given: Sequence[str]) -> list[str | None]:
    """The drafts to try: those given ("none" is lookup alone), or else the bundled one and the model in 8 bits."""
    if given:
        return [None if name == "none" else name for name in dict.fromkeys(given)]
    own = config.draft_model
    return [*([own] if own is not None else []), f"{PREFIX}int8"]


def doctor_steps(drafts: Sequence[str | None], workloads: Workloads) -> int:
    """How often `run_doctor` calls its `tick`, if every draft can be used."""
    free = sum(1 for name in available_drafters(draft=False) if name != "lookahead")
    return len(drafts) * (1 + sum(map(len, workloads.values()))) + 2 * sum(map(bool, drafts)) + free + 4


def run_doctor(
    config: EngineConfig, drafts: Sequence[str | None], workloads: Workloads, tokens: int, tick: Callable[[str], None]
) -> dict[str, Any]:
    """Try all drafts and forecast what each would earn; `tick` is told what was done, step by step. A draft that
    cannot be used is left out, with the reason.

    Raises:
        ModelError, ConfigError: the model cannot be used at all, or answers none of the prompts.
    """
    tried: list[Tried] = []
    unusable: dict[str, str] = {}
    for draft in drafts:
        try:
            tried.append(try_draft(config, draft, workloads, tokens, partial(tick, f"try {draft or 'lookup'}")))
        except AdaptSpecError as error:
            unusable[draft or "none"] = str(error)
    # Without a draft, what is wrong with the model itself comes to light.
    tried = tried or [try_draft(config, None, workloads, tokens, partial(tick, "try lookup"))]
    rows = [row for i, one in enumerate(tried) for row in _rows(one, partial(tick, "replay"), free=i == 0)]
    best = max(rows, key=lambda row: float(row["mean"]))
    chosen = next(one for one in tried if one.draft == best["tried_with"])
    worth = bool(best["mean"] >= _WORTH)
    return {
        "machine": {"processor": processor(), "device": config.device, "threads": torch.get_num_threads()},
        "model": config.model,
        "worth": worth,
        "best": {name: best[name] for name in ("draft", "drafters", "mean")},
        "plain_tokens_per_second": _speeds(_earned((), chosen)),
        "drafters": rows,
        "unusable": unusable,
        "four_tokens_over_one": chosen.costs.verify_seconds(1, 4, 0.0) / chosen.costs.verify_seconds(1, 1, 0.0),
        "would_help": _helps(chosen, best["drafters"], partial(tick, "imagine")),
        "policy": policy_text(best["drafters"] if worth else ()),
    }


def policy_text(drafters: Sequence[str]) -> str:
    """The policy for these drafters, in YAML; without any it is plain decoding."""
    head = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: doctor}\nspec:\n"
    if not drafters:
        return f"{head}  choose: {{algorithm: static, depth: 0}}\n"
    model = any(kind_of(name) is not Kind.MODEL_FREE for name in drafters)
    return (
        f"{head}  max-depth: {12 if model else 7}\n"
        f"  drafters: [{', '.join(drafters)}]\n"
        "  choose: {algorithm: goodput}\n"
        f"  stop: {{rule: {'marginal-goodput' if model else 'none'}}}\n"
        "  guard:\n"
        "    never-slower: {margin: 0.03, window-rounds: 16, losing-windows: 2}\n"
        "    probe: {after-tokens: 64, backoff: 2.0}\n"
    )


def _earned(drafters: Sequence[str], tried: Tried) -> _Earned:
    """What the policy for these drafters delivers, decisions included, in the last turn of a replay."""
    tape, deciding = tried.tape, tried.deciding if drafters else 0.0
    spec, work = parse_policy_spec(policy_text(drafters), "doctor"), stream(tape, Schedule(), least=_TURNS * len(tape))
    tally = replay(spec, work, tried.costs, keep=True)
    seconds, tokens = dict.fromkeys(tape.tasks, 0.0), dict.fromkeys(tape.tasks, 0)
    for record in tally.records:
        turn, request = divmod(started(record.request_ids[0]), len(tape))
        if turn == _TURNS - 1:
            seconds[tape.tasks[request]] += record.total_seconds + deciding
            tokens[tape.tasks[request]] += int(record.emitted.sum())
    return _Earned(seconds, tokens)


def _speeds(earned: _Earned) -> dict[str, float]:
    return {task: earned.tokens[task] / seconds for task, seconds in earned.seconds.items()}


def _rows(tried: Tried, tick: Callable[[], None], *, free: bool) -> list[dict[str, Any]]:
    """What each choice of drafters earns; those of texts alone only if they are asked for (`free`)."""
    found = [name for name in tried.tape.views if name != DRAFTER]
    choices = [(DRAFTER,), (DRAFTER, _LOOKUP)] if tried.draft is not None else []
    choices += [(name,) for name in found if free]
    plain, rows = _earned((), tried), []
    for drafters in choices:
        earned = _earned(drafters, tried)
        ratios, speeds = earned.over(plain), _speeds(earned)
        tasks = {
            task: {
                "over_plain": ratio,
                "tokens_per_second": speeds[task],
                "best_fixed": str(references(stream(tried.tape.of_task(task), Schedule()), tried.costs, drafters).best),
            }
            for task, ratio in ratios.items()
        }
        draft = tried.draft if DRAFTER in drafters else None
        mean = statistics.fmean(ratios.values())
        rows.append(
            {"draft": draft, "tried_with": tried.draft, "drafters": list(drafters), "mean": mean, "tasks": tasks}
        )
        tick()
    return rows


def _helps(tried: Tried, drafters: Sequence[str], tick: Callable[[], None]) -> list[dict[str, Any]]:
    """What the best choice would earn if something were better, the most helpful first."""
    tape, costs = tried.tape, tried.costs
    small = (
        f"a draft model of {tried.parameters / _SMALLER / 1e6:.3g} M parameters that is right {_RIGHT:.0%} of the time"
    )
    one = costs.verify_seconds(1, 1, 0.0) / _SMALLER
    new = DraftCosts(Curve((1.0, 2.0), (one, one)), costs.verify_seconds(1, 8, 0.0) / 8 / _SMALLER)
    both = [DRAFTER, _LOOKUP]
    cases = {
        "further tokens of a pass took half as long": (drafters, tape, _machine(costs, further=0.5)),
        small: (both, _redrawn(tape, lambda view: np.full(len(view.run), _RIGHT)), _machine(costs, draft=new)),
    }
    if DRAFTER in drafters:
        own = costs.drafters[DRAFTER]
        assert own.step is not None, "it runs a model"
        step = Curve(own.step.counts, tuple(0.5 * seconds for seconds in own.step.seconds))
        fast = DraftCosts(step, 0.5 * own.catch_up_per_token, start=0.5 * own.start)
        right = _redrawn(tape, lambda view: np.where(view.agreed, 1.0, 0.5))
        cases["the draft took half its time"] = drafters, tape, _machine(costs, draft=fast)
        cases["the draft was wrong half as often"] = drafters, right, costs
    found = []
    for what, (own_drafters, met, machine) in cases.items():
        imagined = replace(tried, tape=met, costs=machine)
        ratios = _earned(own_drafters, imagined).over(_earned((), imagined))
        found.append({"what": what, "mean": statistics.fmean(ratios.values())})
        tick()
    return sorted(found, key=lambda case: -float(str(case["mean"])))


def _machine(costs: MachineCosts, *, further: float = 1.0, draft: DraftCosts | None = None) -> MachineCosts:
    """The same machine, had further tokens of a pass taken that share of their time, or had it that draft."""

    def verify(rows: int, tokens: float) -> float:
        first = costs.verify_seconds(rows, rows, 0.0)
        return first + further * (costs.verify_seconds(rows, tokens, 0.0) - first)  # type: ignore[arg-type]

    drafters = costs.drafters if draft is None else {**costs.drafters, DRAFTER: draft}
    overhead, attended = costs.overhead, costs.per_cached_token
    return MachineCosts("imagined", verify, drafters, overhead=overhead, per_cached_token=attended)


def _redrawn(tape: Tape, chance: Callable[[DraftView], FloatArray]) -> Tape:
    """The same texts with a draft model whose tokens are right with these chances, [P]."""
    size = int(tape.offsets[-1])
    view = tape.views.get(DRAFTER) or DraftView.of_agreement(np.zeros(size, dtype=np.bool_))
    whole = replace(view, reach=np.full(size, FAR), rejection=chance(view))
    drawn = replace(tape, views={DRAFTER: whole}).under_rejection()
    return replace(tape, views={**tape.views, **drawn.views})


def doctor_report(result: Mapping[str, Any], serve: str) -> list[Table | str]:
    """The result for people; `serve` is the command that serves what was found best."""
    rows = result["drafters"]
    tasks = list(result["plain_tokens_per_second"])
    title = "times as fast as plain decoding (the best fixed depth in brackets; -: none)"
    table = Table("drafters", "draft", *tasks, "mean", title=title, keys=2)
    speeds = (f"{speed:.0f}" for speed in result["plain_tokens_per_second"].values())
    table.add_row("plain, tokens per second", "", *speeds, "")
    for row in rows:
        cells = (_cell(row["tasks"][task], alone=len(row["drafters"]) == 1) for task in tasks)
        table.add_row(" + ".join(row["drafters"]), row["draft"] or "", *cells, f"{row['mean']:.2f}")
    left_out = [f"left out: {name}: {reason}" for name, reason in result["unusable"].items()]
    return [_verdict(result), table, *left_out, *_advice(result), f"Serve it: {serve}"]


def _cell(task: Mapping[str, Any], *, alone: bool) -> str:
    depth = str(task["best_fixed"]).rpartition(" at ")[2]
    return f"{task['over_plain']:.2f}" + (f" ({'-' if depth == 'off' else depth})" if alone else "")


def _verdict(result: Mapping[str, Any]) -> str:
    best, model = result["best"], result["model"]
    if not result["worth"]:
        return (
            f"No: of all that was tried nothing makes {model} faster here than plain decoding "
            f"(at best {best['mean']:.2f} x, one request at a time)."
        )
    row = max(result["drafters"], key=lambda row: float(row["mean"]))
    by_task = sorted((one["over_plain"], task) for task, one in row["tasks"].items())
    (least, worst), (most, top) = by_task[0], by_task[-1]
    draft = f", the draft being {best['draft']}" if best["draft"] else ""
    return (
        f"Yes: {model} would run {best['mean']:.2f} x as fast here as plain decoding, one request at a time, with "
        f"{' + '.join(best['drafters'])}{draft}: {least:.2f} x on {worst}, {most:.2f} x on {top}."
    )


def _advice(result: Mapping[str, Any]) -> list[str]:
    ratio = result["four_tokens_over_one"]
    bound = (
        "it is bound by reading weights, so that checking drafts costs little"
        if ratio < 2.0
        else "it is bound by computing, so that only drafts which are nearly always right pay"
    )
    said = [f"A pass of 4 tokens takes {ratio:.2f} x as long as one of a single token: {bound}."]
    lookup = next((row for row in result["drafters"] if row["drafters"] == [_LOOKUP]), None)
    if lookup is not None:
        earned, task = max((one["over_plain"], task) for task, one in lookup["tasks"].items())
        said.append(f"Lookup (n-grams) alone, which needs no draft, earns {earned:.2f} x on {task}.")
    helps = [f"{one['what']}: {one['mean']:.2f} x" for one in result["would_help"]]
    return [*said, f"What would help most, by replay: {'; '.join(helps)} (now {result['best']['mean']:.2f} x)."]
