"""An explanation in words and tables, for people."""

from __future__ import annotations

from collections.abc import Sequence

from adaptspec.analysis.explain import Explanation, Group, RowRound
from adaptspec.control.language.spec import PolicySpec
from adaptspec.tables import Table
from adaptspec.types import REASON_WORDS


def sentences(found: Explanation, spec: PolicySpec | None) -> list[str]:
    """The gist: what it did, what that earned, how well it knew, what overruled it."""
    total, pace = found.total, found.pace
    said = [
        f"{found.policy}: {len(found.requests)} requests, {found.rounds:,} rounds. Rounds that also read a prompt are "
        "left out below; where requests share a round, so they do its time."
    ]
    if not total.rows:
        return [*said, "There is no round without a prompt being read: nothing to say of its choices."]
    earned = total.over_plain(pace)
    said.append(
        f"It drafted in {total.drafting / total.rows:.0%} of a request's rounds, had {total.accepted:,} of "
        f"{total.drafted:,} drafted tokens accepted, and delivered {_times(earned)} the tokens per second of plain "
        "decoding."
    )
    said += _estimates(found) + _overruling(found) + _changes(found, spec)
    if found.missing_lines:
        said.append(f"{found.missing_lines:,} lines of the journal were dropped when it was written: counts are low.")
    if found.strays:
        said.append(f"{found.strays:,} row-rounds belong to requests that began before the oldest line that is left.")
    return said


def reasons_table(found: Explanation) -> Table:
    """One line for each reason, the most frequent first."""
    table = Table("why", "share", "depth", "accepted", "over plain", title="why depths were chosen")
    ranked = sorted(found.reasons.items(), key=lambda item: -item[1].rows)
    for reason, group in ranked:
        table.add_row(f"{reason.name.lower()}: {REASON_WORDS[reason]}", *_figures(group, found))
    return table


def depths_table(found: Explanation) -> Table:
    """What each depth earned, and what was expected of it."""
    columns = ("depth", "share", "first token", "accepted", "expected", "tokens", "over plain", "expected over plain")
    table = Table(*columns, title="what each depth earned (per request and round)")
    for depth in sorted(found.depths):
        group = found.depths[depth]
        drafting = max(group.drafting, 1)
        table.add_row(
            str(depth) if depth else "off",
            f"{group.rows / found.total.rows:.0%}",
            f"{group.first / drafting:.0%}" if group.drafting else "-",
            f"{group.accepted / drafting:.2f}" if group.drafting else "-",
            f"{group.expected / drafting:.2f}" if group.expected else "-",
            f"{group.emitted / group.rows:.2f}",
            _ratio(group.over_plain(found.pace)),
            _ratio(group.expected_over_plain),
        )
    return table


def tasks_table(found: Explanation) -> Table:
    """One line for each task."""
    table = Table("task", "share", "depth", "accepted", "over plain", title="by task")
    for task, group in sorted(found.tasks.items(), key=lambda item: -item[1].rows):
        table.add_row(task, *_figures(group, found))
    return table


def rounds_table(lines: Sequence[RowRound]) -> Table:
    """One line for each request and round."""
    several = len({line.request for line in lines}) > 1
    names = ["round", "request"] if several else ["round"]
    figures = ("rows", "depth", "drafted", "accepted", "expected", "ms")
    table = Table(*names, *figures, "why", title="rounds" if several else lines[0].request, keys=len(names))
    for line in lines:
        table.add_row(
            str(line.number),
            *([_short(line.request)] if several else []),
            str(line.size),
            str(line.depth),
            str(line.drafted),
            str(line.accepted),
            "-" if line.expected is None or not line.depth else f"{line.expected:.2f}",
            f"{line.seconds * line.size * 1e3:.1f}",
            _why(line),
        )
    return table


def _why(line: RowRound) -> str:
    words = line.reason.name.lower()
    if line.propensity is not None and line.propensity < 1.0:
        words += f", p {line.propensity:.2f}"
    return words if line.worth is None else f"{words}, expected {line.worth:.2f} x"


def _estimates(found: Explanation) -> list[str]:
    said = []
    total = found.total
    if total.expected:
        said.append(
            f"Where it drafted it expected {total.expected / total.drafting:.2f} accepted tokens and got "
            f"{total.came / total.drafting:.2f} (the first is for the whole depth; a stop rule may end drafts early)."
        )
    ratio = found.goodput_expected_over_came
    if ratio is not None:
        said.append(f"It expected {ratio:.2f} x the tokens per second that came.")
    worth = total.expected_over_plain
    if worth is not None:
        said.append(f"When it picked depths it expected {worth:.2f} x plain decoding of them, on average.")
    return said


def _overruling(found: Explanation) -> list[str]:
    guard = found.guarding
    said = []
    if guard.baselines:
        rounds = _count(guard.baselines, "round")
        said.append(
            f"Its guard took {rounds} without drafts, one at a time, to renew what it measures drafting against."
        )
    if not guard.switched_off and not guard.probes:
        return [*said, "No guard switched speculation off."]
    return [
        *said,
        f"Its guard switched speculation off {_count(guard.switched_off, 'time')}, tried again "
        f"{_count(guard.probes, 'time')}, and {guard.came_back} of these tries won.",
    ]


def _changes(found: Explanation, spec: PolicySpec | None) -> list[str]:
    said = [f"Requests changed their depth {1e3 * found.switches / found.total.rows:.0f} times per 1,000 rounds."]
    if spec is not None and spec.spec.choose.takes_tiers:
        other = sorted(found.chosen - {0, *spec.tiers})
        if other:
            said.append(
                f"Note: it chose depths {', '.join(map(str, other))}, which the policy as it is now does not allow: "
                "the file has changed since the journal was written."
            )
    return said


def _figures(group: Group, found: Explanation) -> tuple[str, str, str, str]:
    return (
        f"{group.rows / found.total.rows:.0%}",
        f"{group.depth / group.rows:.1f}",
        f"{group.accepted / group.drafted:.0%}" if group.drafted else "-",
        _ratio(group.over_plain(found.pace)),
    )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _times(value: float | None) -> str:
    return "an unknown multiple of" if value is None else f"{value:.2f} x"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(request: str) -> str:
    return request if len(request) <= 8 else f"..{request[-6:]}"
