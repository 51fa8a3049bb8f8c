"""What speculation would earn here: what drafts met (`try_drafts`) is replayed under policies, task by task.

The replay is the engine's own rounds over a tape, at the costs of rounds that ran here. Of drafts that branch no tape
is recorded: what they earn is that of chains, times how much faster they were in the same turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from adaptspec.analysis.journal_tape import DRAFTER
from adaptspec.analysis.oracle import Tier, references
from adaptspec.bench.setup import processor
from adaptspec.bench.try_drafts import PLAIN, Tried, try_draft
from adaptspec.bench.workloads import Workloads
from adaptspec.control.language.loader import parse_policy_spec
from adaptspec.drafters import Kind, available_drafters, kind_of
from adaptspec.engine.engine_config import AUTO, EngineConfig, model_path
from adaptspec.errors import AdaptSpecError
from adaptspec.models.gguf import is_gguf, read_header
from adaptspec.models.layers import has_products
from adaptspec.models.loading import DTYPES
from adaptspec.models.model_files import CONFIG, read_json
from adaptspec.models.self_speculation import FIRST_LAYERS, MTP, QUANTIZED
from adaptspec.models.source import find_model
from adaptspec.quantity import quantity
from adaptspec.simulation.machine import Curve, DraftTimes, Machine
from adaptspec.simulation.scenarios import Schedule, stream
from adaptspec.simulation.simulator import replay, started
from adaptspec.simulation.tape import MAX_REACH, DraftView
from adaptspec.start_status import Progress, no_progress
from adaptspec.tables import Table

# How often the prompts come in a replay. The last turn counts: what a server earns once it has seen some traffic.
_TURNS = 3
# What is earned beyond plain decoding must be more than what such forecasts are off by.
_WORTH = 1.03
_LOOKUP = "ngram"
_ALL = "all"
# How wide drafts are that branch.
_WIDTH = 8
# A heavier choice (more memory, a draft model's passes, branches) must earn this many times as much as a lighter one.
# Forecasts were off by up to 14 % (README); the margin is a choice within that.
_MARGIN = 1.1
# The draft model that is imagined: so much smaller than the target, and right so often.
_SMALLER, _RIGHT = 10, 0.7
# The share of the time for trying; the rest is for replays.
_TRYING = 0.7
# Parameters of a GGUF file that torch loads within seconds.
_SMALL = 5e8


@dataclass(frozen=True)
class DoctorSettings:
    """`tokens` per answer at most; `seconds` that all of it may take, where one answer in one configuration fits."""

    tokens: int = 128
    seconds: float = 90.0


def doctor_drafts(config: EngineConfig, given: Sequence[str]) -> list[str | None]:
    """The drafts to try: those given ("none" is lookup alone, "all" whatever needs no folder), or else the bundled one
    and the model in 8 bits. Of a GGUF file, which drafts nothing of itself, lookup alone.
    """
    own = [config.draft_model] if config.draft_model is not None else []
    names: list[str] = []
    for name in given or [*own, *self_speculations(config.model)[:1]]:
        names += [*own, *self_speculations(config.model)] if name == _ALL else [name]
    return [None if name == "none" else name for name in dict.fromkeys(names or ["none"])]


def self_speculations(model: str) -> list[str]:
    """All kinds of self-speculation that a model may support, as `--draft` names them."""
    found = find_model(model_path(model, "target"), gguf=True)
    if is_gguf(found):
        return []  # llama.cpp runs it whole, as it is
    layers = read_json(found / CONFIG).get("num_hidden_layers")
    half = [f"{FIRST_LAYERS}{layers // 2}"] if isinstance(layers, int) and layers > 1 else []
    return [f"{QUANTIZED}int8", f"{QUANTIZED}int4", *half, MTP]


def doctor_configs(config: EngineConfig) -> list[EngineConfig]:
    """The ways to run the model on this machine that flags leave open.

    Of a GGUF file llama.cpp and torch in its usual data type; of others, and with --runner torch, each data type for
    which this CPU has fast products. Torch takes minutes to load a large GGUF file, which is then for llama.cpp alone.
    """
    found = find_model(config.target_path, gguf=True)
    if config.dtype != AUTO or config.device not in (AUTO, "cpu") or torch.cuda.is_available():
        return [config]
    if is_gguf(found) and config.runner != "torch":
        small = config.runner == AUTO and read_header(found).parameters < _SMALL
        return [config, replace(config, runner="torch")] if small else [config]
    return [replace(config, dtype=name) for name, kind in DTYPES.items() if has_products(kind)]


def doctor_steps(configs: int, drafts: Sequence[str | None], workloads: Workloads) -> int:
    """How often `run_doctor` calls its `tick`, if every draft can be used and there is time for every prompt."""
    free = sum(1 for name in available_drafters(draft=False) if name != "lookahead")
    tried = configs * len(drafts) * (1 + sum(map(len, workloads.values())))
    return tried + 2 * sum(map(bool, drafts)) + free + 3


def run_doctor(
    configs: Sequence[EngineConfig],
    drafts: Sequence[str | None],
    workloads: Workloads,
    settings: DoctorSettings,
    tick: Callable[[str], None],
    *,
    progress: Progress = no_progress,
    attempt: Callable[..., Tried] = try_draft,
) -> dict[str, Any]:
    """Try all drafts by `attempt` in each configuration, and forecast what each would earn in the one that wrote most
    tokens per second. How long answers are is settled by the first, so that all are measured on answers of one length.
    `tick` is called after each step, `progress` while models load. A configuration or a draft that cannot be used, or
    for which there is no time, is left out, with the reason.

    Raises:
        ModelError, ConfigError: the model cannot be used at all, or answers none of the prompts.
    """
    ends = time.monotonic() + _TRYING * settings.seconds
    cases = [(index, draft) for index in range(len(configs)) for draft in drafts]
    found: dict[int, list[Tried]] = {}  # by the index of the configuration
    unusable: dict[str, str] = {}
    tokens = settings.tokens
    for number, (index, draft) in enumerate(cases):
        config = configs[index]
        name = draft or "none" if len(configs) == 1 else f"{draft or 'none'} in {_dtype_or_runner(config)}"
        left = ends - time.monotonic()
        if found and left < 0.0:
            unusable[name] = "there was no time left; give more --seconds"
            continue
        step, share = partial(tick, f"try {name}"), left / (len(cases) - number)
        try:
            tried = attempt(config, draft, workloads, tokens, step, progress=progress, seconds=share, fixed=bool(found))
        except AdaptSpecError as error:
            unusable[name] = str(error)
        else:
            found.setdefault(index, []).append(tried)
            tokens = tried.tokens
    if not found:  # without a draft, what is wrong with the model itself comes to light
        step = partial(tick, "try lookup")
        found[0] = [attempt(configs[0], None, workloads, tokens, step, progress=progress)]
    everything = [(index, one) for index, tried in found.items() for one in tried]
    speeds = _measured([one for _, one in everything])
    fastest = max(zip(everything, speeds, strict=True), key=lambda pair: max(pair[1].values(), default=0.0))[0][0]
    config, own = configs[fastest], _on_common_requests(found[fastest])
    rows = [(row, one) for one in own for row in _rows(one, partial(tick, "replay"), free=one is own[0])]
    best, chosen = recommended(rows)
    worth = bool(best["mean"] >= _WORTH)
    return {
        "machine": {"processor": processor(), "threads": torch.get_num_threads()},
        "model": config.model,
        "setup": dict(chosen.setup),
        "dtype": config.dtype,
        "runner": config.runner,
        "configurations": [
            {"setup": dict(one.setup), "draft": one.draft, "tokens_per_second": own_speeds}
            for (_, one), own_speeds in zip(everything, speeds, strict=True)
        ],
        "exactness": chosen.exactness,
        "worth": worth,
        "best": best,
        "plain_tokens_per_second": _speeds((), chosen),
        "drafters": [row for row, _ in rows],
        "unusable": unusable,
        "four_tokens_over_one": chosen.costs.verify_seconds(1, 4, 0.0) / chosen.costs.verify_seconds(1, 1, 0.0),
        "would_help": _helps(chosen, best["drafters"], partial(tick, "imagine")),
        "policy": policy_text(best["drafters"] if worth else (), best["width"]),
    }


def _measured(tried: Sequence[Tried]) -> list[dict[str, float]]:
    """Tokens per second of each by policy, prompts included, in the requests that all of them answered."""
    answered = [set(answers) for one in tried for answers in one.measured.values()]
    common = set.intersection(*answered) if answered else set()
    found = []
    for one in tried:
        sums = {policy: [answers[name] for name in common] for policy, answers in one.measured.items()}
        found.append({policy: sum(n for n, _ in own) / sum(s for _, s in own) for policy, own in sums.items()})
    return found


def _on_common_requests(tried: Sequence[Tried]) -> list[Tried]:
    """Each with the requests that all of them answered, so that forecasts are compared on the same tasks."""
    common = set.intersection(*(set(one.tape.ids) for one in tried))
    kept = ([i for i, name in enumerate(one.tape.ids) if name in common] for one in tried)
    return [replace(one, tape=one.tape.take(requests)) for one, requests in zip(tried, kept, strict=True)]


def _dtype_or_runner(config: EngineConfig) -> str:
    """A short label of a configuration among those of `doctor_configs`."""
    return config.dtype if config.dtype != AUTO else "torch" if config.runner == "torch" else "llama.cpp"


def recommended(rows: Sequence[tuple[dict[str, Any], Tried]]) -> tuple[dict[str, Any], Tried]:
    """The lightest row that pays and that no heavier one clearly beats.

    Rows are compared from the lightest (memory, then whether a draft model runs, then width) to the heaviest. A heavier
    row replaces one that pays only if its mean is more than `_MARGIN` times as much.
    """
    best, *heavier = sorted(rows, key=lambda pair: _weight(pair[0]))
    for pair in heavier:
        clearly = best[0]["mean"] >= _WORTH and _weight(pair[0]) != _weight(best[0])
        if pair[0]["mean"] > best[0]["mean"] * (_MARGIN if clearly else 1.0):
            best = pair
    return best


def _weight(row: Mapping[str, Any]) -> tuple[int, bool, int]:
    return row["memory"], DRAFTER in row["drafters"], row["width"]


def policy_text(drafters: Sequence[str], width: int = 1) -> str:
    """The policy for these drafters, in YAML; without any it is plain decoding. Drafts are chains, or this wide."""
    head = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: doctor}\nspec:\n"
    if not drafters:
        return f"{head}  choose: {{algorithm: static, depth: 0}}\n"
    model = any(kind_of(name) is not Kind.MODEL_FREE for name in drafters)
    return (
        f"{head}  max-depth: {12 if model else 7}\n"
        f"{f'  max-width: {width}{chr(10)}  max-nodes: 64{chr(10)}' if width > 1 else ''}"
        f"  drafters: [{', '.join(drafters)}]\n"
        "  choose: {algorithm: goodput}\n"
        f"  stop: {{rule: {'marginal-goodput' if model else 'none'}}}\n"
        "  guard:\n"
        "    never-slower: {margin: 0.03, window-rounds: 16, losing-windows: 2}\n"
        "    probe: {after-tokens: 64, backoff: 2.0}\n"
    )


def _speeds(drafters: Sequence[str], tried: Tried) -> dict[str, float]:
    """Tokens per second by task under the policy for these drafters, in the last turn of a replay."""
    tape, deciding = tried.tape, 0.0
    if drafters:  # a policy that nobody ran decides as long as the slowest
        deciding = tried.deciding.get(tuple(drafters), max(tried.deciding.values(), default=0.0))
    spec = parse_policy_spec(policy_text(drafters), "doctor")
    work = stream(tape, Schedule(), min_requests=_TURNS * len(tape))
    seconds, tokens = dict.fromkeys(tape.tasks, 0.0), dict.fromkeys(tape.tasks, 0)
    for record in replay(spec, work, tried.costs, keep=True).records:
        turn, request = divmod(started(record.request_ids[0]), len(tape))
        if turn == _TURNS - 1:
            seconds[tape.tasks[request]] += record.timing.total + deciding
            tokens[tape.tasks[request]] += int(record.emitted.sum())
    return {task: tokens[task] / spent for task, spent in seconds.items()}


def _over_plain(drafters: Sequence[str], tried: Tried) -> dict[str, float]:
    plain = _speeds((), tried)
    return {task: speed / plain[task] for task, speed in _speeds(drafters, tried).items()}


def _rows(tried: Tried, tick: Callable[[], None], *, free: bool) -> Iterator[dict[str, Any]]:
    """What each choice of drafters earns; those of texts alone only if they are asked for (`free`)."""
    choices = [(DRAFTER,), (DRAFTER, _LOOKUP)] if DRAFTER in tried.tape.views else []
    choices += [(name,) for name in tried.tape.views if free and name != DRAFTER]
    for drafters in choices:
        ratios = _over_plain(drafters, tried)
        work = {task: stream(tried.tape.of_task(task), Schedule()) for task in ratios}
        best = {task: references(one, tried.costs, drafters).best for task, one in work.items()}
        yield _row(tried, drafters, 1, ratios, best)
        if tried.branching is not None and len(drafters) > 1:  # the drafters of the policy that was tried
            wider = {task: ratio * tried.branching for task, ratio in ratios.items()}
            yield _row(tried, drafters, _WIDTH, wider, best)
        tick()


def _row(
    tried: Tried, drafters: Sequence[str], width: int, ratios: Mapping[str, float], best: Mapping[str, Tier]
) -> dict[str, Any]:
    return {
        "draft": tried.draft if DRAFTER in drafters else None,
        "drafters": list(drafters),
        "width": width,
        "memory": tried.memory if DRAFTER in drafters else 0,
        "mean": statistics.fmean(ratios.values()),
        "tasks": {task: {"over_plain": ratios[task], "best_fixed": str(best[task])} for task in ratios},
    }


def _helps(tried: Tried, drafters: Sequence[str], tick: Callable[[], None]) -> dict[str, float]:
    """What would be earned with another draft than the best choice has, the most helpful first."""
    one, eight = (tried.costs.verify_seconds(1, tokens, 0.0) / _SMALLER for tokens in (1, 8))
    size = f"{tried.parameters / _SMALLER / 1e6:.3g} M parameters"
    small = DraftTimes(Curve((1.0,), (one,)), eight / 8)
    cases = {f"a draft of {size}, right {_RIGHT:.0%} of the time": _imagined(tried, small, _RIGHT, _RIGHT)}
    if DRAFTER in drafters:
        own = tried.costs.drafters[DRAFTER]
        assert own.step is not None, "it runs a model"
        step = Curve(own.step.counts, tuple(0.5 * seconds for seconds in own.step.seconds))
        fast = DraftTimes(step, 0.5 * own.catch_up_per_token, start=0.5 * own.start)
        cases["this draft in half its time"] = _imagined(tried, fast, 0.0, 1.0)
        cases["this draft wrong half as often"] = _imagined(tried, own, 0.5, 1.0)
    found = {}
    for what, imagined in cases.items():
        found[what] = statistics.fmean(_over_plain((DRAFTER, _LOOKUP), imagined).values())
        tick()
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _imagined(tried: Tried, draft: DraftTimes, wrong: float, right: float) -> Tried:
    """The same texts with a draft of these costs, right so often where the real one is wrong, and where right."""
    tape, costs, size = tried.tape, tried.costs, int(tried.tape.offsets[-1])
    view = tape.views.get(DRAFTER) or DraftView.of_agreement(np.zeros(size, dtype=np.bool_))
    view = replace(view, reach=np.full(size, MAX_REACH), rejection=np.where(view.agreed, right, wrong))
    drawn = replace(tape, views={DRAFTER: view}).under_rejection()
    machine = Machine(costs.name, costs.verify, {**costs.drafters, DRAFTER: draft}, overhead=costs.overhead)
    return replace(tried, tape=replace(tape, views={**tape.views, **drawn.views}), costs=machine)


def doctor_report(result: Mapping[str, Any], serve: str) -> list[Table | str]:
    """The result for people; `serve` is the command that serves what was found best."""
    plain, best, rows = result["plain_tokens_per_second"], result["best"], result["drafters"]
    title = "times as fast as plain decoding (the best fixed depth of a single drafter in brackets; -: none)"
    table = Table("drafters", "draft", "draft weights", *plain, "mean", title=title, keys=3)
    table.add_row("plain, tokens per second", "", "", *(f"{speed:.0f}" for speed in plain.values()), "")
    for row in rows:
        cells = (_cell(row["tasks"][task], alone=len(row["drafters"]) == 1) for task in plain)
        memory = f"{row['memory'] / 1e6:.0f} MB" if row["memory"] else ""
        table.add_row(_drafters(row), row["draft"] or "", memory, *cells, f"{row['mean']:.2f}")
    helps = "; ".join(f"{what}: {mean:.2f} x" for what, mean in result["would_help"].items())
    return [
        _verdict(result),
        *_configurations(result["configurations"]),
        table,
        *(f"left out: {name}: {reason}" for name, reason in result["unusable"].items()),
        _cost_of_checking(result["four_tokens_over_one"]),
        f"Exactness: {result['exactness']}.",
        *(_lookup(row) for row in rows if row["drafters"] == [_LOOKUP]),
        f"What would help most, replayed (now {best['mean']:.2f} x): {helps}.",
        f"To serve it: {serve}",
    ]


def _configurations(rows: Sequence[Mapping[str, Any]]) -> Iterator[Table | str]:
    """What each configuration was measured to write, and the best one: plain where drafts earn no more than noise."""
    policies = list(dict.fromkeys(name for row in rows for name in row["tokens_per_second"]))
    if not policies:
        return
    table = Table("configuration", "draft", *policies, title="tokens per second, prompts included", keys=2)
    for row in rows:
        speeds = (row["tokens_per_second"].get(name) for name in policies)
        cells = ("" if speed is None else f"{speed:.1f}" for speed in speeds)
        table.add_row(_named(row["setup"]), row["draft"] or "", *cells)
    yield table
    best = max(rows, key=lambda row: max(row["tokens_per_second"].values()))
    speeds = best["tokens_per_second"]
    policy, speed = max(speeds.items(), key=lambda pair: pair[1])
    if speed < _WORTH * speeds[PLAIN]:
        policy, speed = PLAIN, speeds[PLAIN]
    yield f"Fastest: {_named(best['setup'])} under {policy}, {speed:.1f} tokens per second."


def _named(setup: Mapping[str, Any]) -> str:
    return f"{setup['dtype']} on {setup['runner']}, {quantity(setup['threads'], 'thread')}"


def _cost_of_checking(ratio: float) -> str:
    """What three drafted tokens add to a pass, and how often they must be accepted for that."""
    share = max(0.0, ratio - 1.0) / 3
    pays = f"drafts pay where more than {share:.0%} of them are accepted" if share < 1.0 else "no draft pays here"
    return (
        f"A pass of 4 tokens takes {ratio:.2f} x as long as one of a single token: each drafted token adds {share:.0%} "
        f"of a pass, so {pays} (not counting the time to draft them)."
    )


def _drafters(row: Mapping[str, Any]) -> str:
    return " + ".join(row["drafters"]) + (", branching" if row["width"] > 1 else "")


def _cell(task: Mapping[str, Any], *, alone: bool) -> str:
    depth = str(task["best_fixed"]).rpartition(" at ")[2]
    return f"{task['over_plain']:.2f}" + (f" ({'-' if depth == 'off' else depth})" if alone else "")


def _lookup(row: Mapping[str, Any]) -> str:
    earned, task = max((one["over_plain"], task) for task, one in row["tasks"].items())
    return f"Lookup (n-grams) alone, which needs no draft, earns {earned:.2f} x at best, on {task}."


def _verdict(result: Mapping[str, Any]) -> str:
    best, model = result["best"], result["model"]
    if not result["worth"]:
        said = "No: nothing that was tried makes {} faster here than plain decoding (at best {:.2f} x)."
        return said.format(model, best["mean"])
    by_task = sorted((one["over_plain"], task) for task, one in best["tasks"].items())
    (least, worst), (most, top) = by_task[0], by_task[-1]
    return (
        f"Yes: {model} would run {best['mean']:.2f} x as fast here as plain decoding, one request at a time, with "
        f"{_drafters(best)}{' (' + best['draft'] + ')' if best['draft'] else ''}"
        f"{f': {least:.2f} x on {worst} to {most:.2f} x on {top}' if worst != top else ''}."
    )
