"""What `adaptspec policy explain` makes of a journal; the exit status is 0."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from math import isnan

from adaptspec.analysis.explain import Explanation, Group, Line, explain
from adaptspec.analysis.journal_reader import JournalReader, named_policy, served_policy
from adaptspec.commands.output import print_result
from adaptspec.control.language.spec import PolicySpec
from adaptspec.decision import REASON_WORDS, Reason
from adaptspec.quantity import quantity
from adaptspec.tables import Table

_ROUNDS = 40  # of a request that are shown without --rounds


def run_explain(arguments: argparse.Namespace) -> int:
    """Say why a policy chose what it did. Raises JournalError: it cannot be read, or has no rounds of the policy or
    request; ConfigError, PolicyError: an argument cannot be used.
    """
    rounds = arguments.rounds
    if rounds is None:
        rounds = _ROUNDS if arguments.request is not None else 0
    policy = arguments.policy or served_policy(arguments.journal, arguments.request)
    name, spec = named_policy(policy)
    reader = JournalReader(arguments.journal)
    found = explain(reader, name, request=arguments.request, last_rounds=rounds)
    shown: list[Table | str] = [*_sentences(found, spec)]
    others = [
        f"{other} ({quantity(count, 'request')})" for other, count in reader.policies.most_common() if other != name
    ]
    if arguments.policy is None and others:
        shown.append(f"The journal has rounds of other policies, too: {', '.join(others)}; name one to explain it.")
    shown += [_reasons_table(found), _depths_table(found), _shares(found, found.tasks, "task", "by task")]
    if found.lines:
        shown.append(_rounds_table(found.lines))
    return print_result(arguments, found.to_json(), shown)


def _sentences(found: Explanation, spec: PolicySpec | None) -> Iterator[str]:
    """The gist: what it did, what that gained, how well it knew, what overruled it."""
    total = found.total.sums
    yield (
        f"{found.policy}: {quantity(len(found.requests), 'request')}, {quantity(total.rounds, 'round', form=',')}. "
        "Time for reading prompts is left out of all speed-ups."
    )
    gain = found.total.gain
    times = "at an unknown multiple of the speed of plain decoding"
    if gain is not None:
        times = f"at {gain.value:.2f} x the speed of plain decoding ({gain.low:.2f} to {gain.high:.2f})"
    yield (
        f"It drafted in {total.drafts / total.rows:.0%} of a request's rounds, had {total.accepted:,} of "
        f"{total.drafted:,} drafted tokens accepted, and ran {times}."
    )
    if total.nodes > total.drafted:
        yield f"Its drafts branched: they had {total.nodes:,} nodes, of which drafted tokens are the longest paths."
    if (best := found.best_fixed) is not None:
        yield (
            f"The best fixed depth for the same text: {best.drafter} at {best.depth}, {best.gain.value:.2f} x plain "
            f"({best.gain.low:.2f} to {best.gain.high:.2f}; {best.guessed:.0%} of its tokens are a guess)."
        )
    yield from _estimates(found)
    yield from _overruling(found)
    yield f"Requests changed their depth {1e3 * found.depth_changes / total.rows:.0f} times per 1,000 rounds."
    other = sorted(found.chosen - {0, *spec.tiers}) if spec is not None and spec.spec.choose.takes_tiers else []
    if other:
        yield (
            f"Note: it chose depths {', '.join(map(str, other))}, which the policy as it is now does not allow: "
            "the file has changed since the journal was written."
        )
    if found.missing_lines:
        yield f"{found.missing_lines:,} lines of the journal were dropped when it was written: counts are low."
    if found.unknown_rows:
        yield f"{found.unknown_rows:,} row-rounds belong to requests that began before the oldest line that is left."


def _reasons_table(found: Explanation) -> Table:
    groups = {f"{reason.label}: {REASON_WORDS[reason]}": group for reason, group in found.reasons.items()}
    return _shares(found, groups, "why", "why depths were chosen")


def _depths_table(found: Explanation) -> Table:
    """What each depth gained, and what was expected of it."""
    columns = ("depth", "share", "first token", "accepted", "expected", "tokens", "over plain")
    table = Table(*columns, title="what each depth gained (per request and round)")
    for depth, group in found.depths.items():
        sums = group.sums
        first = sums.accepted_per_position[:1].sum() / max(sums.drafts, 1)
        table.add_row(
            str(depth) if depth else "off",
            f"{sums.rows / found.total.sums.rows:.0%}",
            f"{first:.0%}" if sums.drafts else "-",
            f"{sums.accepted / sums.drafts:.2f}" if sums.drafts else "-",
            f"{sums.expected_accepted / sums.drafts:.2f}" if sums.expected_accepted else "-",
            f"{sums.emitted / sums.rows:.2f}",
            _gain(group),
        )
    return table


def _shares(found: Explanation, groups: Mapping[str, Group], noun: str, title: str) -> Table:
    table = Table(noun, "share", "depth", "accepted", "over plain", title=title)
    for name, group in sorted(groups.items(), key=lambda item: -item[1].sums.rows):
        sums = group.sums
        table.add_row(
            name,
            f"{sums.rows / found.total.sums.rows:.0%}",
            f"{group.mean_depth:.1f}",
            f"{sums.accepted / sums.drafted:.0%}" if sums.drafted else "-",
            _gain(group),
        )
    return table


def _rounds_table(lines: Sequence[Line]) -> Table:
    several = len({line.request for line in lines}) > 1
    names = ["round", "request"] if several else ["round"]
    branched = any(line.round.nodes > line.round.drafted for line in lines)
    drafters = len({line.drafter for line in lines if line.round.depth}) > 1
    figures = ("rows", "depth", *(["drafter"] if drafters else []), "drafted", *(["nodes"] if branched else []))
    columns = [*names, *figures, "accepted", "expected", "ms", "why"]
    table = Table(*columns, title="rounds" if several else lines[0].request)
    for line in lines:
        one = line.round
        table.add_row(
            str(one.number),
            *([line.request if len(line.request) <= 8 else f"..{line.request[-6:]}"] if several else []),
            str(one.rows),
            str(one.depth),
            *([line.drafter if one.depth else "-"] if drafters else []),
            str(one.drafted),
            *([str(one.nodes)] if branched else []),
            str(one.accepted),
            "-" if isnan(one.expected) or not one.depth else f"{one.expected:.2f}",
            f"{one.seconds * 1e3:.1f}",
            Reason(one.reason).label + (", with a prompt" if one.prefill_tokens else ""),
        )
    return table


def _estimates(found: Explanation) -> Iterator[str]:
    total, ratio = found.total.sums, found.expected_over_measured
    if total.expected_accepted:
        yield (
            f"Where it drafted it expected {total.expected_accepted / total.drafts:.2f} accepted tokens and got "
            f"{total.accepted_as_expected / total.drafts:.2f}."
        )
    if ratio is not None:
        yield f"It expected {ratio:.2f} x the measured tokens per second."


def _overruling(found: Explanation) -> Iterator[str]:
    guard = found.guard
    if guard.baselines:
        yield (
            f"Its guard took {quantity(guard.baselines, 'round')} without drafts, one at a time, to renew what it "
            "measures drafting against."
        )
    if guard.switched_off or guard.probes:
        yield (
            f"Its guard switched speculation off {quantity(guard.switched_off, 'time')}, tried again "
            f"{quantity(guard.probes, 'time')}, and {guard.came_back} of these probes switched it back on."
        )
    else:
        yield "No guard switched speculation off."


def _gain(group: Group) -> str:
    return "-" if group.gain is None else f"{group.gain.value:.2f}"
