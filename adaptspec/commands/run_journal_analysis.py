"""What `adaptspec policy explain` makes of a journal; the exit status is 0."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

from adaptspec.analysis.explain import Explanation, Group, RowRound, explain
from adaptspec.analysis.journal_rounds import JournalLog, named_policy, served_policy
from adaptspec.commands.arguments import tell
from adaptspec.control.language.spec import PolicySpec
from adaptspec.decision import REASON_WORDS
from adaptspec.errors import ConfigError
from adaptspec.quantity import quantity
from adaptspec.tables import Table

_ROUNDS = 40  # that are shown of a request where nobody says how many


def run_explain(arguments: argparse.Namespace) -> int:
    """Say why a policy chose what it did. Raises JournalError: it cannot be read, or has no rounds of the policy or
    request; ConfigError, PolicyError: an argument cannot be used.
    """
    rounds = arguments.rounds
    if rounds is not None and rounds < 0:
        raise ConfigError(f"--rounds {rounds}: give a number of rounds")
    if rounds is None:
        rounds = _ROUNDS if arguments.request is not None else 0
    policy = arguments.policy or served_policy(arguments.journal, arguments.request)
    name, spec = named_policy(policy)
    log = JournalLog(arguments.journal)
    found = explain(log, name, request=arguments.request, rounds=rounds)
    said: list[Table | str] = [*_sentences(found, spec)]
    others = [f"{other} ({quantity(count, 'request')})" for other, count in log.policies.most_common() if other != name]
    if arguments.policy is None and others:
        said.append(f"The journal has rounds of other policies, too: {', '.join(others)}; name one to explain it.")
    if found.total.rows:
        said += [_reasons_table(found), _depths_table(found), _tasks_table(found)]
    if found.lines:
        said.append(_rounds_table(found.lines))
    return tell(arguments, found.to_json(), said)


def _sentences(found: Explanation, spec: PolicySpec | None) -> Iterator[str]:
    """The gist: what it did, what that earned, how well it knew, what overruled it."""
    total = found.total
    requests, rounds = quantity(len(found.requests), "request"), quantity(found.rounds, "round", form=",")
    yield (
        f"{found.policy}: {requests}, {rounds}. Rounds that also read a prompt are left out below; where requests "
        "share a round, so they do its time."
    )
    if not total.rows:
        yield "There is no round without a prompt being read: nothing to say of its choices."
        return
    earned = total.over_plain(found.pace)
    times = "an unknown multiple of" if earned is None else f"{earned:.2f} x"
    yield (
        f"It drafted in {total.drafting / total.rows:.0%} of a request's rounds, had {total.accepted:,} of "
        f"{total.drafted:,} drafted tokens accepted, and delivered {times} the tokens per second of plain decoding."
    )
    if total.nodes > total.drafted:
        yield f"Its drafts branched: they had {total.nodes:,} nodes, of which drafted tokens are the longest paths."
    yield from _estimates(found)
    yield from _overruling(found)
    yield f"Requests changed their depth {1e3 * found.switches / total.rows:.0f} times per 1,000 rounds."
    other = sorted(found.chosen - {0, *spec.tiers}) if spec is not None and spec.spec.choose.takes_tiers else []
    if other:
        yield (
            f"Note: it chose depths {', '.join(map(str, other))}, which the policy as it is now does not allow: "
            "the file has changed since the journal was written."
        )
    if found.missing_lines:
        yield f"{found.missing_lines:,} lines of the journal were dropped when it was written: counts are low."
    if found.strays:
        yield f"{found.strays:,} row-rounds belong to requests that began before the oldest line that is left."


def _reasons_table(found: Explanation) -> Table:
    groups = {f"{reason.name.lower()}: {REASON_WORDS[reason]}": group for reason, group in found.reasons.items()}
    return _shares(found, groups, "why", "why depths were chosen")


def _depths_table(found: Explanation) -> Table:
    """What each depth earned, and what was expected of it."""
    columns = ("depth", "share", "first token", "accepted", "expected", "tokens", "over plain")
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
        )
    return table


def _tasks_table(found: Explanation) -> Table:
    return _shares(found, found.tasks, "task", "by task")


def _shares(found: Explanation, groups: Mapping[str, Group], what: str, title: str) -> Table:
    table = Table(what, "share", "depth", "accepted", "over plain", title=title)
    for name, group in sorted(groups.items(), key=lambda item: -item[1].rows):
        table.add_row(
            name,
            f"{group.rows / found.total.rows:.0%}",
            f"{group.depth / group.rows:.1f}",
            f"{group.accepted / group.drafted:.0%}" if group.drafted else "-",
            _ratio(group.over_plain(found.pace)),
        )
    return table


def _rounds_table(lines: Sequence[RowRound]) -> Table:
    several = len({line.request for line in lines}) > 1
    names = ["round", "request"] if several else ["round"]
    branched = any(line.nodes > line.drafted for line in lines)
    figures = ("rows", "depth", "drafted", *(["nodes"] if branched else []), "accepted", "expected", "ms")
    columns = [*names, *figures, "why"]
    table = Table(*columns, title="rounds" if several else lines[0].request, keys=len(names))
    for line in lines:
        table.add_row(
            str(line.number),
            *([line.request if len(line.request) <= 8 else f"..{line.request[-6:]}"] if several else []),
            str(line.size),
            str(line.depth),
            str(line.drafted),
            *([str(line.nodes)] if branched else []),
            str(line.accepted),
            "-" if line.expected is None or not line.depth else f"{line.expected:.2f}",
            f"{line.seconds * line.size * 1e3:.1f}",
            line.reason.name.lower(),
        )
    return table


def _estimates(found: Explanation) -> Iterator[str]:
    total, ratio = found.total, found.goodput_expected_over_came
    if total.expected:
        yield (
            f"Where it drafted it expected {total.expected / total.drafting:.2f} accepted tokens and got "
            f"{total.came / total.drafting:.2f} (the first is for the whole depth; a stop rule may end drafts early)."
        )
    if ratio is not None:
        yield f"It expected {ratio:.2f} x the tokens per second that came."


def _overruling(found: Explanation) -> Iterator[str]:
    guard = found.guarding
    if guard.baselines:
        yield (
            f"Its guard took {_count(guard.baselines, 'round')} without drafts, one at a time, to renew what it "
            "measures drafting against."
        )
    if guard.switched_off or guard.probes:
        yield (
            f"Its guard switched speculation off {_count(guard.switched_off, 'time')}, tried again "
            f"{_count(guard.probes, 'time')}, and {guard.came_back} of these tries won."
        )
    else:
        yield "No guard switched speculation off."


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
