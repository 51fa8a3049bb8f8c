"""Guards: off when slower, back when it pays, no oscillation, no permanent disable; and policy files reach them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from adaptspec.control.controller import Controller
from adaptspec.control.cost_model import CostModel
from adaptspec.control.guard import Guard, GuardSpec, Mode
from adaptspec.control.language.loader import build_policy, parse_policy_spec
from adaptspec.control.tasks import TaskNames
from adaptspec.decision import Reason
from adaptspec.request import Request
from adaptspec.rounds import RoundRecord
from tests.control.helpers import QUIET, caught_up, record, signals, table, timed
from tests.fakes import array

SLOWER = GuardSpec.model_validate({"never-slower": {}})
HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\n"
SWITCH = "guard: {max-batch-size: 1, never-slower: {}, probe: {after-tokens: 64}}"
LOSING, WINNING, PLAIN = record([3], [0]), record([3], [3]), record([0], [0])


def drive(guard: Guard, rounds: int, speculating: RoundRecord) -> list[Mode]:
    """Rounds of an obedient engine: speculate when allowed, else decode plainly."""
    seen = []
    for _ in range(rounds):
        decided = guard.decide(signals([7]))
        seen.append(decided.mode)
        guard.learn(speculating if decided.mode in (Mode.RUN, Mode.PROBE) else PLAIN, decided)
    return seen


def test_losing_windows_switch_off() -> None:
    modes = drive(Guard(SLOWER, table()), 60, LOSING)
    assert modes[0] is Mode.RUN
    assert modes.index(Mode.OFF) <= 34


def late(guard: Guard, sizes: Sequence[int], told: Callable[[Mode, int], RoundRecord], after: int = 1) -> list[Mode]:
    """Rounds of so many rows each, told of when `after` more have been decided."""
    seen, waiting = [], []
    for size in sizes:
        decided = guard.decide(signals([7] * size))
        seen.append(decided.mode)
        waiting.append((told(decided.mode, size), decided))
        if len(waiting) > after:
            guard.learn(*waiting.pop(0))
    return seen


@pytest.mark.parametrize("after", [0, 1, 5])
def test_drafts_that_were_under_way_do_not_count_as_waiting(after: int) -> None:
    """Those of rounds decided before the switch are told of after it; nor do they count for the probe that follows."""
    rules = {"never-slower": {"window-rounds": 3, "losing-windows": 1}, "probe": {"after-tokens": 8}}
    guard = Guard(GuardSpec.model_validate(rules), table())
    modes = late(guard, [1] * 40, lambda mode, _: PLAIN if mode is Mode.OFF else LOSING, after)
    assert [mode for mode, _ in groupby(modes)][:4] == [Mode.RUN, Mode.OFF, Mode.PROBE, Mode.OFF]
    assert [len(list(rounds)) for _, rounds in groupby(modes)][:3] == [3 + after, 8 + after, 5 + after]


def test_every_round_that_runs_by_one_decision_counts() -> None:
    """Eight rounds run by each decision: a wait of 64 tokens is over after eight decisions."""
    rules = {"never-slower": {"window-rounds": 3, "losing-windows": 1}, "probe": {"after-tokens": 64}}
    guard = Guard(GuardSpec.model_validate(rules), table())
    modes = []
    for _ in range(19):
        decided = guard.decide(signals([7]))
        modes.append(decided.mode)
        for _ in range(8):
            guard.learn(PLAIN if decided.mode is Mode.OFF else LOSING, decided)
    assert [len(list(rounds)) for _, rounds in groupby(modes)][:2] == [1, 8]


@pytest.mark.parametrize("after", [0, 1])
def test_rounds_count_for_the_batch_that_they_were_decided_for(after: int) -> None:
    """Rounds of one row really take four times what the table says, those of four do not, and nobody drafts there."""

    def told(mode: Mode, size: int) -> RoundRecord:
        depth = 3 if mode in (Mode.RUN, Mode.PROBE) and size == 1 else 0
        return record([depth] * size, [depth] * size, slower=4.0 if size == 1 else 1.0)

    modes = late(Guard(SLOWER, table()), [1, 1, 4, 4] * 200, told, after)
    assert Mode.OFF not in modes[400:]  # at first it believes the table


@pytest.mark.parametrize("after", [0, 1, 5])
def test_one_plain_round_renews_the_baseline_however_late_it_is_told_of(after: int) -> None:
    modes = late(Guard(SLOWER, table()), [1] * 600, lambda mode, _: WINNING if mode is Mode.RUN else PLAIN, after)
    assert max(len(list(rounds)) for mode, rounds in groupby(modes) if mode is Mode.PLAIN_ONCE) == 1
    assert 2 <= modes.count(Mode.PLAIN_ONCE) < 0.03 * len(modes)


def test_rounds_that_were_decided_without_the_guard_are_not_counted() -> None:
    """Those in which no row may draft, and those of another policy."""
    spec = parse_policy_spec(f"{HEAD}spec: {{choose: {{algorithm: static, depth: 3}}, {SWITCH}}}")
    policy = build_policy(spec, table(), 1)
    for _ in range(100):
        policy.learn(LOSING)
    assert policy.decide(signals([7])).depths.tolist() == [3]


@pytest.mark.parametrize(("replaced", "depth"), [(False, 0), (True, 3)])
def test_rounds_that_were_decided_by_the_policy_before_are_not_counted(replaced: bool, depth: int) -> None:
    """A policy is replaced while outcomes of its decisions are under way."""
    spec, cost = parse_policy_spec(f"{HEAD}spec: {{choose: {{algorithm: static, depth: 3}}, {SWITCH}}}"), table()
    controller = Controller({"mine": build_policy(spec, cost, 1)}, "mine", ("draft-model",), 1, cost=cost)
    controller.start(0, Request("r", (1,)))
    decisions = [controller.decide(signals([7])) for _ in range(100)]
    if replaced:
        controller.adopt("mine", build_policy(spec, cost, 1))
    for decision in decisions:
        controller.learn(replace(LOSING, decision=decision, tasks=decision.tasks))
    assert controller.decide(signals([7])).depths.tolist() == [depth]


def test_rounds_that_requests_left_meanwhile_are_not_measured() -> None:
    """What was done for them is not what those that stay took."""
    guard = Guard(SLOWER, table())
    modes = late(guard, [2] * 100, lambda mode, _: LOSING if mode is Mode.RUN else PLAIN)
    assert Mode.OFF not in modes


def test_stalls_in_many_windows_are_not_held_against_drafts() -> None:
    """One round in twenty takes ten times as long, as any round would: drafts earn as much more as ever."""
    guard = Guard(SLOWER, table())
    stall = timed(WINNING, 10 * WINNING.timing.total)
    modes = [mode for _ in range(40) for mode in (*drive(guard, 19, WINNING), *drive(guard, 1, stall))]
    assert set(modes) <= {Mode.RUN, Mode.PLAIN_ONCE}


def test_stalls_do_not_hide_drafts_that_lose() -> None:
    """Drafts that take a quarter longer than plain rounds; one in eight takes a hundred times as long, by chance."""
    losing, stall = (timed(LOSING, times * PLAIN.timing.total) for times in (1.25, 100.0))
    guard = Guard(SLOWER, table())
    modes = [mode for _ in range(6) for mode in (*drive(guard, 7, losing), *drive(guard, 1, stall))]
    assert Mode.OFF in modes


def test_drafts_that_lose_at_once_are_not_tried_for_whole_windows() -> None:
    """Two windows of sixteen would be as much as three hundred plain rounds; of fewer than four, chance decides."""
    modes = drive(Guard(SLOWER, table()), 40, timed(LOSING, 10.0 * PLAIN.timing.total))
    assert modes.index(Mode.OFF) == 8


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_not_held_against_drafts(seed: int) -> None:
    """They earn two percent on average; each round takes up to twice as long, or half as long, by chance."""
    mean, deviation = PLAIN.timing.total * WINNING.emitted.item() / 1.02, 0.3
    noise = np.random.default_rng(seed).lognormal(-(deviation**2) / 2, deviation, 800)
    guard = Guard(SLOWER, table())
    modes = [mode for factor in noise for mode in drive(guard, 1, timed(WINNING, mean * factor))]
    assert Mode.OFF not in modes


def test_rounds_that_only_catch_up_are_no_plain_decoding() -> None:
    """They take three times as long, which says nothing of what decoding takes: drafts that lose are still found."""
    guard = Guard(SLOWER, table())
    drive(guard, 40, timed(caught_up(PLAIN, 300), 3 * PLAIN.timing.total))
    assert Mode.OFF in drive(guard, 60, LOSING)


def test_one_losing_window_is_not_enough() -> None:
    """A hopeless window is cut short, so a few bad rounds close one; the second window wins."""
    guard = Guard(SLOWER, table())
    modes = drive(guard, 6, LOSING) + drive(guard, 60, WINNING)
    assert Mode.OFF not in modes


def test_probes_back_off_while_they_lose() -> None:
    """Neither a permanent disable nor an oscillation: the gaps between probes double."""
    modes = drive(Guard(SLOWER, table()), 3000, LOSING)
    starts = [i for i in range(1, len(modes)) if modes[i] is Mode.PROBE and modes[i - 1] is Mode.OFF]
    gaps = np.diff(starts)
    assert len(starts) >= 4
    assert (gaps[1:] > 1.6 * gaps[:-1]).all()
    assert modes.count(Mode.PROBE) < 0.02 * len(modes)


def test_a_winning_probe_turns_on_and_resets_the_back_off() -> None:
    guard = Guard(SLOWER, table())
    drive(guard, 1000, LOSING)
    back = drive(guard, 2500, WINNING)
    assert back[-1] is Mode.RUN
    again = drive(guard, 400, LOSING)
    off = again.index(Mode.OFF)
    assert 60 <= again.index(Mode.PROBE) - off <= 70


def test_a_new_request_shortens_the_wait() -> None:
    patient, eager = Guard(SLOWER, table()), Guard(SLOWER, table())
    for guard in (patient, eager):
        drive(guard, 40, LOSING)
    eager.start(0)
    assert drive(eager, 100, LOSING).index(Mode.PROBE) < drive(patient, 100, LOSING).index(Mode.PROBE)


def test_a_probe_the_algorithm_declines_hands_back_to_it() -> None:
    guard = Guard(SLOWER, table())
    drive(guard, 40, LOSING)
    assert drive(guard, 200, PLAIN)[-1] is Mode.RUN


def test_rounds_shared_with_other_policies_or_prompts_are_not_measured() -> None:
    """Their seconds are not this policy's doing."""
    for around in ({"other_rows": 3}, {"prefill": 100}):
        guard = Guard(SLOWER, table())
        for _ in range(100):
            decided = guard.decide(signals([7], **around))
            assert decided.mode in (Mode.RUN, Mode.PLAIN_ONCE)
            guard.learn(LOSING, decided)


def test_a_long_pause_that_was_caught_up_is_not_held_against_drafts() -> None:
    """It is paid once: six rounds of reading, then drafts that win."""
    reading = caught_up(LOSING, 300)
    guard = Guard(SLOWER, table())
    for _ in range(20):
        assert Mode.OFF not in drive(guard, 6, reading) + drive(guard, 12, WINNING)


def test_catching_up_counts_where_every_round_does() -> None:
    """Requests that come and go must all be read: that is what drafts cost there, and it is not paid once."""
    modes = drive(Guard(SLOWER, table()), 200, caught_up(LOSING, 300))
    assert Mode.OFF in modes
    assert modes.count(Mode.RUN) < 60


def test_luck_in_a_probe_starts_no_oscillation() -> None:
    """A probe that wins and a window that loses: the waits grow all the same."""
    guard = Guard(SLOWER, table())
    rounds, probing, starts = [], 0, []
    for number in range(6000):
        decided = guard.decide(signals([7]))
        mode = decided.mode
        rounds.append(mode)
        probing = probing + 1 if mode is Mode.PROBE else 0
        starts += [number] if probing == 1 else []
        # Probes of six rounds win, everything after them loses.
        speculating = WINNING if mode is Mode.PROBE else LOSING
        guard.learn(speculating if mode in (Mode.RUN, Mode.PROBE) else PLAIN, decided)
    gaps = np.diff(starts)
    assert (gaps[1:] > 1.5 * gaps[:-1]).all()
    assert rounds.count(Mode.OFF) > 0.9 * len(rounds)


def test_a_request_among_many_hardly_shortens_the_wait() -> None:
    """In a large batch requests begin all the time; halving at each would undo the back-off."""
    waits = []
    for rows in (1, 16):
        guard = Guard(SLOWER, table())
        drive(guard, 40, LOSING)
        guard.decide(signals([7] * rows))
        guard.start(0)
        modes = drive(guard, 100, LOSING)
        waits.append(modes.index(Mode.PROBE))
    assert waits[0] < 0.7 * waits[1]


def test_the_baseline_is_renewed_when_other_policies_come_in_between() -> None:
    """A plain round counts for the batch it was asked of, or it would be asked for again and again."""
    guard = Guard(SLOWER, table())
    pair = record([3, 3], [3, 3])
    for _ in range(8):
        guard.learn(pair, guard.decide(signals([7, 7])))
    seen = []
    for _ in range(20):
        decided = guard.decide(signals([7], other_rows=1))
        seen.append(decided.mode)
        guard.learn(WINNING if decided.mode is Mode.RUN else PLAIN, decided)
    assert seen.count(Mode.PLAIN_ONCE) <= 2


@pytest.mark.parametrize(("plain", "drafting"), [(1, 1), (8, 5)])
def test_what_plain_rounds_really_take_is_what_drafts_must_beat(plain: int, drafting: int) -> None:
    """A table that has rounds take three times as long makes losing drafts look good. What plain rounds of other batch
    sizes take tells of those that are about as large.
    """
    wrong = QUIET.profile()
    wrong = replace(wrong, verify=tuple(tuple(3.0 * seconds for seconds in line) for line in wrong.verify))
    guard = Guard(SLOWER, CostModel(wrong))
    for _ in range(8):
        guard.learn(record([0] * plain, [0] * plain), guard.decide(signals([7] * plain)))
    idle = record([0] * drafting, [0] * drafting)
    losing = timed(record([3] * drafting, [0] * drafting), 1.5 * idle.timing.total)
    modes = late(guard, [drafting] * 60, lambda mode, _: losing if mode is Mode.RUN else idle, 0)
    assert Mode.OFF in modes


def test_a_stall_in_a_plain_round_makes_no_drafts_look_good() -> None:
    """It takes a hundred times as long, as it happens to any round, and is not what drafts must beat."""
    guard = Guard(SLOWER, table())
    for times in (*[1.0] * 8, 100.0):
        guard.learn(timed(PLAIN, times * PLAIN.timing.total), guard.decide(signals([7])))
    assert Mode.OFF in drive(guard, 60, LOSING)


def test_a_baseline_goes_by_what_the_table_says_when_it_is_taken() -> None:
    """The machine becomes four times as slow, the table finds it out, and drafts that lose are found out as before."""
    cost = table()
    guard = Guard(SLOWER, cost)
    drive(guard, 40, WINNING)
    for _ in range(20):
        cost.observe(PLAIN.work, PLAIN.timing._replace(total=4 * PLAIN.timing.total, verify=4 * PLAIN.timing.verify))
    ratio = cost.plain_seconds(1, 100) / table().plain_seconds(1, 100)
    assert ratio > 1.5
    plain, winning = record([0], [0], slower=ratio), record([3], [3], slower=ratio)
    for _ in range(300):
        decided = guard.decide(signals([7]))
        guard.learn(winning if decided.mode is Mode.RUN else plain, decided)
    assert Mode.OFF in drive(guard, 48, record([3], [0], slower=ratio))


@pytest.mark.parametrize("doubted", [False, True])
def test_costs_in_doubt_have_plain_rounds_run_sooner(doubted: bool) -> None:
    """They measure best; else the next might be hundreds of rounds away."""
    cost = table()
    guard = Guard(SLOWER, cost)
    renewed = 0
    while renewed < 4:  # it is renewed seldom by now, and was just now
        renewed += drive(guard, 1, WINNING)[0] is Mode.PLAIN_ONCE
    if doubted:
        cost.inflate_variance()
    assert (Mode.PLAIN_ONCE in drive(guard, 66, WINNING)) == doubted


def test_drafts_are_judged_by_what_plain_rounds_take_where_contexts_are_now() -> None:
    """All rounds take longer as contexts grow, between two plain ones, too: that is no fault of drafts."""
    profile = replace(QUIET.profile(), per_cached_token=1e-6)
    guard, short = Guard(SLOWER, CostModel(profile)), CostModel(profile).plain_seconds(1)
    modes = []
    for number in range(400):
        slower = 1.01**number
        context = array(round((slower - 1.0) * short / profile.per_cached_token))
        decided = guard.decide(signals([7]))
        modes.append(decided.mode)
        told = record([3], [3], slower=slower) if modes[-1] is Mode.RUN else record([0], [0], slower=slower)
        guard.learn(replace(told, context=context), decided)
    assert set(modes) == {Mode.RUN, Mode.PLAIN_ONCE}


HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\n"


def depths_and_reasons(body: str, limits: list[int], tasks: list[int] | None = None) -> tuple[list[int], list[int]]:
    spec = parse_policy_spec(f"{HEAD}spec: {{choose: {{algorithm: static, depth: 3}}, {body}}}")
    policy = build_policy(spec, table(), len(limits), TaskNames(("code", "story")))
    for row in range(len(limits)):
        policy.start(row)
    decision = policy.decide(signals(limits, tasks=tasks))
    return decision.depths.tolist(), decision.reasons.tolist()


def test_ceilings_lower_depths_and_say_so() -> None:
    """The whole round by its size, single rows by their task; the others keep their own reason."""
    assert depths_and_reasons("guard: {max-batch-size: 1}", [7, 7]) == ([0, 0], [Reason.CEILING] * 2)
    assert depths_and_reasons("guard: {depth-by-batch-size: [[1, 1, 3], [2, 8, 2]]}", [7, 1]) == (
        [2, 1],
        [Reason.CEILING, Reason.FIXED],
    )
    assert depths_and_reasons("tasks: {code: {max-depth: 1}, story: {off: true}}", [7, 7, 7], [0, 1, 2]) == (
        [3, 1, 0],
        [Reason.FIXED, Reason.CEILING, Reason.CEILING],
    )


def test_the_switch_waits_while_a_ceiling_holds() -> None:
    """Rounds that could not draft are neither idling nor a probe that was declined."""
    spec = parse_policy_spec(f"{HEAD}spec: {{choose: {{algorithm: static, depth: 3}}, {SWITCH}}}")
    policy = build_policy(spec, table(), 2)
    reasons = []
    for number in range(400):
        limits = [7, 7] if 100 <= number < 300 else [7]
        decision = policy.decide(signals(limits))
        reasons.append(int(decision.reasons[0]))
        policy.learn(record(decision.depths.tolist(), [0] * len(limits)), decision.memo)
    assert set(reasons[100:300]) == {int(Reason.CEILING)}
    assert Reason.GUARD in reasons[:100]
    assert reasons[300] in (Reason.GUARD, Reason.PROBE)
    assert np.mean([reason == Reason.FIXED for reason in reasons[300:]]) < 0.5
