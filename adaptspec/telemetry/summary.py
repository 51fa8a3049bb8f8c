"""Figures and sentences about rounds: what the live page, `adaptspec top` and traces say of sums.

Every figure is computed here, so that all of them agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from adaptspec.arrays import IntArray
from adaptspec.control.cost_model import CostModel
from adaptspec.decision import REASON_WORDS, Reason
from adaptspec.quantity import quantity
from adaptspec.telemetry.requests import LoggedRequest
from adaptspec.telemetry.speedup import Estimate, speedup
from adaptspec.telemetry.sums import DrafterSums, RoundSums

Json = dict[str, Any]
_COUNTS = ("rows", "drafts", "drafted", "accepted", "emitted", "nodes")


@dataclass(frozen=True)
class Window:
    """What happened in a stretch of time: sums over all rounds and by task, and requests that ended."""

    sums: RoundSums = field(default_factory=RoundSums)
    tasks: Mapping[str, RoundSums] = field(default_factory=dict)
    finished: int = 0

    def __add__(self, more: Window) -> Window:
        tasks = dict(self.tasks)
        for task, sums in more.tasks.items():
            tasks[task] = tasks[task] + sums if task in tasks else sums
        return Window(self.sums + more.sums, tasks, self.finished + more.finished)


def summarize(windows: Sequence[Window], costs: CostModel | None, drafters: Sequence[str]) -> Json | None:
    """The figures of these stretches of time together, as plain data; None if no round ended in them."""
    whole = sum(windows, Window())
    sums = whole.sums
    if not sums.rounds:
        return None
    return {
        **speeds(sums, costs),
        "busy": round(sums.seconds, 6),
        "rounds": sums.rounds,
        **counts(sums),
        **ratios(sums),
        "prefill_tokens": round(sums.prefill_tokens),
        "finished": whole.finished,
        "depths": shares(sums.depths),
        "reasons": {Reason(int(code)).label: share for code, share in shares(sums.reasons).items()},
        "drafters": {
            name: one | {"acceptance_rate": _ratio(one["accepted"], one["drafted"])}
            for name, one in by_drafter(sums, drafters).items()
        },
        "tasks": {
            task: counts(one) | ratios(one) | {"speedup": estimate(_speedup(one, costs))}
            for task, one in whole.tasks.items()
        },
        "why": why(sums),
    }


def counts(sums: RoundSums) -> Json:
    """Numbers of rows and tokens."""
    return {name: getattr(sums, name) for name in _COUNTS}


def speeds(sums: RoundSums, costs: CostModel | None) -> Json:
    """Tokens per second of the time that rounds took, estimated without speculation as well; None: unknown."""
    gain = _speedup(sums, costs)
    speed = sums.emitted / sums.seconds if sums.seconds else None
    plain = None if speed is None or gain is None else speed / gain.value
    return {"tokens_per_second": _rounded(speed), "plain_tokens_per_second": _rounded(plain), "speedup": estimate(gain)}


def ratios(sums: RoundSums) -> Json:
    """Figures of speculation; None: unknown."""
    length = _ratio(sums.accepted, sums.drafts)
    return {
        "drafted_share": _ratio(sums.drafts, sums.rows),
        "tokens_per_pass": _ratio(sums.emitted, sums.rows),
        "acceptance_rate": _ratio(sums.accepted, sums.drafted),
        "acceptance_length": None if length is None else 1.0 + length,
        "entropy": _ratio(sums.entropy_sum, sums.entropy_count),
    }


def by_drafter(sums: RoundSums, drafters: Sequence[str]) -> dict[str, Json]:
    """The sums of each drafter that proposed a token, by its name."""
    found = {index: DrafterSums._make(values) for index, values in enumerate(sums.drafters.tolist())}
    return {
        drafters[index] if index < len(drafters) else str(index): one._asdict()
        for index, one in found.items()
        if one.drafts or one.nodes
    }


def shares(tally: IntArray) -> dict[str, float]:
    """Share of each value that occurred, by the value."""
    total = int(tally.sum())
    return {str(value): round(int(tally[value]) / total, 4) for value in np.flatnonzero(tally).tolist()}


def estimate(found: Estimate | None) -> Json | None:
    """An estimate as plain data, with as many digits as in answers and traces."""
    return None if found is None else {name: round(value, 3) for name, value in asdict(found).items()}


def why(sums: RoundSums) -> str:
    """In a sentence: how many rounds drafted, what came of it, and why the others did not."""
    if not sums.rows:
        return "no rounds yet"
    if not sums.drafts:
        return f"no round drafted: {_why_off(sums)}"
    words = f"{100 * sums.drafts / sums.rows:.0f} % of rounds drafted, {sums.emitted / sums.rows:.1f} tokens a pass"
    return words if sums.drafts == sums.rows else f"{words}; the rest off: {_why_off(sums)}"


def sentence(logged: LoggedRequest) -> str:
    """What speculation did for a request and why; the speed-up only once it has ended."""
    sums = logged.sums
    if not sums.rows:
        return "No decoding rounds: the answer has no token beyond the one that comes with the prompt."
    # The pass that reads the end of the prompt gives the first token.
    words = f"{quantity(logged.tokens, 'token')} in {sums.rows + 1} passes"
    if not sums.drafts:
        return f"{words}. No round drafted: {_why_off(sums)}."
    words += f" ({sums.emitted - sums.rows} saved). {sums.drafts} of {quantity(sums.rows, 'round')} drafted"
    choices = Counter((one.drafter, one.depth) for one in logged.rounds if one.drafted)
    if choices:
        (drafter, depth), _ = choices.most_common(1)[0]
        words += f", most often {logged.drafter_name(drafter)} at depth {depth}"
    words += f": {sums.accepted} of {quantity(sums.drafted, 'drafted token')} accepted"
    if sums.nodes > sums.drafted:
        words += f", {quantity(sums.nodes, 'token')} verified"
    words += "."
    if sums.drafts < sums.rows:
        words += f" The rest off: {_why_off(sums)}."
    gain = logged.speedup
    if gain is not None:
        words += f" {gain.value:.2f} x plain decoding ({gain.low:.2f} to {gain.high:.2f})."
    return words


def _why_off(sums: RoundSums) -> str:
    """The most frequent reason of rounds that did not draft."""
    total = int(sums.off_reasons.sum())
    if not total:
        return "the drafters found nothing to propose"
    reason = Reason(int(sums.off_reasons.argmax()))
    words = REASON_WORDS[reason].removeprefix("no drafts: ")
    ahead = sums.plain_decoding.advantage
    if reason is Reason.FIXED:
        words = "the policy does not draft"
    elif reason is Reason.OFF:
        words = "drafting was expected to lose"
        if ahead is not None and ahead > 1:
            words = f"drafting was expected to cost {ahead:.1f} x plain"
    count = int(sums.off_reasons[reason])
    return words if count == total else f"{words} ({count} of {total})"


def _speedup(sums: RoundSums, costs: CostModel | None) -> Estimate | None:
    return None if costs is None else speedup(costs, sums.ran, sums.plain)


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
