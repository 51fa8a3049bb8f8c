"""The figures of a server: speed, acceptance, entropy, tiers and reasons over the last seconds.

Rates are of whole seconds only: the one that runs is not over yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from adaptspec.telemetry.live_schema import Compared, DrafterSums, TaskSums, read
from adaptspec.top.feed import Json, LiveState

RATE_SECONDS = 10
SHARE_SECONDS = 60
# Who drafts in hardly any round that could, over this many at least, should know why.
MOSTLY_OFF, ENOUGH_ROUNDS = 0.9, 20
_NO_CHOICE = ("fixed", "request")  # reasons for depth 0 where a policy or a client wants no drafts at all


@dataclass(frozen=True)
class TaskFigures:
    """One task: tokens emitted, 1 + accepted per draft and the drafts' mean entropy in nats (None: no drafts)."""

    emitted: int
    acceptance_length: float | None
    entropy: float | None


@dataclass(frozen=True)
class MostlyOff:
    """Rounds of requests could be drafted in, and were not: what share of them, and the most frequent reason."""

    share: float
    reason: str
    words: str


@dataclass(frozen=True)
class Summary:
    """Speed over the last `RATE_SECONDS`, all else over the last `SHARE_SECONDS`; None: nothing happened there.

    `speedup` is over rounds in which no prompt was read: their estimated seconds without speculation over their
    seconds; 1 where nothing was drafted. `plain_tokens_per_second` is the speed divided by it.
    `nodes` are tokens verified per draft, None while drafts are chains: then they are what is drafted.
    """

    model: str
    status: str
    running: int
    waiting: int
    policy: str
    tokens_per_second: float
    plain_tokens_per_second: float | None
    speedup: float | None
    acceptance_length: float | None
    acceptance_rate: float | None
    drafting: float | None
    nodes: float | None
    tiers: Mapping[int, float]
    reasons: Mapping[str, float]
    tasks: Mapping[str, TaskFigures]
    requests_ended: int
    mostly_off: MostlyOff | None
    since_start: Json | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summary(state: LiveState) -> Summary:
    """The figures as they stand."""
    rated, shared = latest(state, RATE_SECONDS), latest(state, SHARE_SECONDS)
    drafts = sum(read(DrafterSums, own).rounds for second in shared for own in second["drafters"])
    rows, drafted, accepted, nodes = (_sum(shared, name) for name in ("rows", "drafted", "accepted", "nodes"))
    speed, gain = _sum(rated, "emitted") / _span(state), speedup(shared)
    return Summary(
        model=state.server["model"],
        status=state.load["status"],
        running=state.load["running"],
        waiting=state.load["waiting"],
        policy=state.server["default_policy"],
        tokens_per_second=speed,
        plain_tokens_per_second=None if gain is None else speed / gain,
        speedup=gain,
        acceptance_length=1.0 + accepted / drafts if drafts else None,
        acceptance_rate=accepted / drafted if drafted else None,
        drafting=drafts / rows if rows else None,
        nodes=nodes / drafts if nodes > drafted else None,
        tiers=_shares(shared, "depths"),
        reasons={state.reasons[code]["name"]: share for code, share in _shares(shared, "reasons").items()},
        tasks=_tasks(shared),
        requests_ended=_sum(shared, "ended"),
        mostly_off=_mostly_off(state, shared),
        since_start=state.earnings,
    )


def latest(state: LiveState, count: int) -> list[Json]:
    """What is known of the last `count` whole seconds."""
    end = int(state.now())
    return [second for second in state.seconds if end - count <= second["at"] < end]


def speedup(seconds: Sequence[Json]) -> float | None:
    """Estimated time without speculation over the time that rounds took: 1 where nothing was drafted, None: unknown."""
    if not _sum(seconds, "drafted"):
        return 1.0 if _sum(seconds, "emitted") else None
    compared = [read(Compared, second["compared"]) for second in seconds if second.get("compared")]
    took, plain = sum(one.seconds for one in compared), sum(one.off_seconds for one in compared)
    return plain / took if took and plain else None


def _span(state: LiveState) -> int:
    """Seconds that rates are over: a server that has just begun has fewer."""
    known = int(state.now()) - state.seconds[0]["at"] if state.seconds else 0
    return max(1, min(RATE_SECONDS, known))


def _sum(seconds: Sequence[Json], name: str) -> int:
    return sum(second[name] for second in seconds)


def _tally(seconds: Sequence[Json], name: str) -> Counter[int]:
    tally: Counter[int] = Counter()
    for second in seconds:
        tally.update(dict(enumerate(second[name])))
    return tally


def _shares(seconds: Sequence[Json], name: str) -> dict[int, float]:
    tally = _tally(seconds, name)
    return {code: count / tally.total() for code, count in sorted(tally.items()) if count}


def _mostly_off(state: LiveState, seconds: Sequence[Json]) -> MostlyOff | None:
    """None where enough is drafted, and where nobody wants drafts."""
    tally = _tally(seconds, "off")
    unwanted = sum(tally.pop(code, 0) for code, told in state.reasons.items() if told["name"] in _NO_CHOICE)
    could, off = _sum(seconds, "rows") - unwanted, tally.total()
    if could < ENOUGH_ROUNDS or off <= MOSTLY_OFF * could:
        return None
    reason = state.reasons[tally.most_common(1)[0][0]]
    return MostlyOff(off / could, reason["name"], reason["words"])


def _tasks(seconds: Sequence[Json]) -> dict[str, TaskFigures]:
    totals: dict[str, TaskSums] = {}
    for task, own in (item for second in seconds for item in second["tasks"].items()):
        more = read(TaskSums, own)
        totals[task] = TaskSums._make(map(sum, zip(totals[task], more, strict=True))) if task in totals else more

    def figures(own: TaskSums) -> TaskFigures:
        length = 1.0 + own.accepted / own.drafting if own.drafting else None
        return TaskFigures(int(own.emitted), length, own.entropy_sum / own.entropy_count if own.entropy_count else None)

    return {task: figures(own) for task, own in sorted(totals.items(), key=lambda item: -item[1].emitted)}
