"""The cost model's prices add up, rise with work, follow the machine, and withstand stalls and wrong profiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.arrays import FloatArray
from adaptspec.control.cost_model import CostModel, batch_bucket
from adaptspec.control.cost_profile import CostProfile, DrafterCost
from adaptspec.hosts.rounds import costs_of_steps
from adaptspec.rounds import DraftWork, RoundRecord, RoundWork, Timing
from tests.control.helpers import QUIET, caught_up, record, table, timed
from tests.control.test_cost_profile import random_profile

DRAFTERS = ("draft-model", "ngram")
NAN = math.nan


def observe(model: CostModel, *records: RoundRecord, times: int = 1) -> None:
    """These rounds in turn, so many times."""
    for _ in range(times):
        for one in records:
            model.observe(one.work, one.timing)


def step(model: CostModel, rows: int, drafter: str = "draft-model") -> float:
    """Seconds of a draft pass in which all of `rows` rows are active."""
    prices = model.draft_prices(drafter, rows)
    return prices.step + prices.step_row * rows


PLAIN, DRAFTING = record([0], [0]), record([3], [2])


# --- prices -----------------------------------------------------------------------------------------------------


def test_a_round_is_the_sum_of_its_parts() -> None:
    model = table()
    whole = model.draft_round_seconds("draft-model", 4, np.array([0.0, 2.0]), np.array([0.0, 8.0]))
    assert whole[0] == pytest.approx(model.plain_seconds(4))
    parts = model.overhead_seconds(4, drafting=True) + model.verify_seconds(4, 12) + 2 * step(model, 4)
    assert whole[1] == pytest.approx(parts + model.draft_prices("draft-model", 4).start)
    expected = 2 * QUIET.step(4) + QUIET.verify(12) + QUIET.overhead_ms / 1e3
    assert whole[1] == pytest.approx(expected, rel=0.05)


def test_a_profile_is_reproduced_and_extrapolated() -> None:
    """Prices follow the measured passes, and their last slope beyond them."""
    model = table()
    for tokens in (1, 2, 4, 8, 16):
        assert model.verify_seconds(1, tokens) == pytest.approx(QUIET.verify(tokens), rel=0.03)
    for rows in (1, 4, 16):
        assert step(model, rows) == pytest.approx(QUIET.step(rows), rel=0.03)
    line = CostModel(CostProfile((1, 2), (1, 2), ((0.4, 0.5), (0.5, 0.7))))
    for rows, tokens in ((1, 8), (16, 16), (16, 128)):
        assert line.verify_seconds(rows, tokens) == pytest.approx(0.3 + 0.1 * tokens, rel=0.15)


def test_prices_of_drafters_without_a_model_are_per_row() -> None:
    model = table()
    prices = model.draft_prices("ngram", 4)
    assert prices.row > 0.0
    assert (prices.start, prices.step, prices.step_row, prices.catch_up_token) == (0.0, 0.0, 0.0, 0.0)
    assert model.catch_up_seconds("ngram", 100.0) == 0.0
    assert model.draft_prices("draft-model", 4).row == 0.0


def test_the_start_of_a_draft_is_paid_once_a_round() -> None:
    """The first pass after the target's is dearer. Rounds of one depth do not make every pass as dear as the first."""
    profile = CostProfile(
        (1,), (1, 8), ((1e-3, 1.7e-3),), {"draft-model": DrafterCost((1,), (2e-4,), 0.0, 3e-4)}, overhead=1e-4
    )
    model = CostModel(profile)

    def deeper() -> FloatArray:
        return model.draft_round_seconds("draft-model", 1, np.array([1.0, 2.0]), np.array([1.0, 2.0]))

    first, second = deeper()
    assert second - first == pytest.approx(2e-4 + 1e-4)
    rest = model.overhead_seconds(1, drafting=True) + model.verify_seconds(1, 2)
    assert first == pytest.approx(rest + 2e-4 + 3e-4)
    observe(model, timed(record([1], [1]), 1.7e-3, draft=5e-4, verify=1.1e-3), times=50)
    assert step(model, 1) == pytest.approx(2e-4, rel=0.05)
    assert model.draft_prices("draft-model", 1).start == pytest.approx(3e-4, rel=0.05)


def test_passes_of_whole_drafts_cover_all_rows() -> None:
    """Where an executor runs every planned pass over all rows, a row more or less in a pass changes nothing."""
    stopping, whole = (
        CostModel(CostProfile((1,), (1,), ((1e-3,),), {"draft-model": DrafterCost((1, 8), (2e-4, 4e-4), together=one)}))
        for one in (False, True)
    )
    assert (stopping.runs_whole_drafts("draft-model"), whole.runs_whole_drafts("draft-model")) == (False, True)
    assert not whole.runs_whole_drafts("ngram")
    assert stopping.draft_prices("draft-model", 8).step_row > 0.0
    assert whole.draft_prices("draft-model", 8).step_row == 0.0
    for rows in (1, 8):
        assert step(whole, rows) == pytest.approx(step(stopping, rows))


def test_a_draft_that_reads_along_has_its_first_token_for_nothing() -> None:
    """One of its passes runs in plain rounds too, and is part of their price."""
    alone, along = (
        CostModel(
            CostProfile(
                (1, 8), (1,), ((1e-3,), (2e-3,)), {"draft-model": DrafterCost((1, 8), (2e-4, 4e-4), reads_along=one)}
            )
        )
        for one in (False, True)
    )
    for rows in (1, 8):
        one, none = np.array([1.0]), np.array([0.0])
        first = along.draft_round_seconds("draft-model", rows, one, one * rows)
        dearer = alone.draft_round_seconds("draft-model", rows, one, one * rows)
        assert dearer - first == pytest.approx(step(alone, rows))
        assert along.draft_round_seconds("draft-model", rows, none, none) == pytest.approx(alone.plain_seconds(rows))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_prices_rise_with_work_whatever_is_seen(seed: int) -> None:
    """Random profiles, and rounds of random times; the lower bound is never above the estimate."""
    rng = np.random.default_rng(seed)
    model = CostModel(random_profile(seed))
    for _ in range(20):
        rows, depth = int(rng.integers(1, 20)), int(rng.integers(0, 4))
        drafts = (DraftWork("draft-model", rows, (rows,) * depth),) if depth else ()
        seconds = np.exp(rng.normal(-6.0, 3.0, 3)).tolist()
        draft, verify = (NAN, NAN) if rng.random() < 0.3 else seconds[:2]
        timing = Timing(draft, verify, sum(seconds))
        model.observe(RoundWork(rows, rows * (1 + depth), float(rng.integers(0, 5000)), drafts), timing)
    tokens = np.linspace(16.0, 1500.0, 200)
    curves = np.array([model.verify_curve(rows, tokens, 100.0) for rows in (1, 2, 4, 9, 16)])
    assert (curves > 0.0).all()
    assert np.isfinite(curves).all()
    assert (np.diff(curves, axis=0) >= 0.0).all()
    assert (np.diff(curves, axis=1) >= 0.0).all()
    for rows in (1, 2, 4, 9, 16):
        assert model.overhead_seconds(rows, drafting=True) >= model.overhead_seconds(rows, drafting=False) > 0.0
    assert all(step(model, more) >= step(model, less) > 0.0 for less, more in ((1, 2), (2, 16), (16, 200)))


# --- learning ---------------------------------------------------------------------------------------------------


def test_a_slower_machine_is_learned() -> None:
    model = table()
    observe(model, record([3], [2], slower=1.5), record([0], [0], slower=1.5), times=200)
    plain = QUIET.verify(1) + QUIET.overhead_ms / 1e3
    assert model.plain_seconds(1) == pytest.approx(1.5 * plain, rel=0.05)
    assert step(model, 1) == pytest.approx(1.5 * QUIET.step(1), rel=0.05)


def test_whole_rounds_suffice_to_learn_from() -> None:
    """Hosts and some executors time no parts: depths of several sizes say what a pass and a token cost."""

    def whole(drafted: int) -> RoundRecord:
        return timed(record([drafted], [0], slower=2.0), draft=NAN, verify=NAN)

    model = table()
    observe(model, whole(0), whole(1), whole(3), whole(7), times=100)
    depths = np.array([0.0, 1.0, 3.0, 7.0])
    prices = model.draft_round_seconds("draft-model", 1, depths, depths)
    assert prices == pytest.approx([whole(int(depth)).timing.total for depth in depths], rel=0.05)


def test_passes_of_several_drafters_are_learned_apart() -> None:
    """Lookups that take 20 times as long as expected hardly move the price of the draft model."""
    model = table()
    before = step(model, 1) / model.plain_seconds(1)
    lookup = record([3], [2], drafter=[1])
    lookup = timed(lookup, lookup.timing.total - lookup.timing.draft + 2e-4, draft=2e-4)
    observe(model, lookup, times=100)
    assert model.draft_prices("ngram", 1).row == pytest.approx(2e-4, rel=0.1)
    assert step(model, 1) / model.plain_seconds(1) == pytest.approx(before, rel=0.2)


def test_attended_tokens_have_a_price() -> None:
    model = CostModel(replace(QUIET.profile(), per_cached_token=3e-8))
    for context in (100, 20_000) * 100:
        more = 1e-7 * context
        seconds = PLAIN.timing.verify + more
        ran = timed(PLAIN, PLAIN.timing.total + more, verify=seconds)
        observe(model, replace(ran, work=ran.work._replace(context_tokens=float(context))))
    more = model.verify_seconds(1, 1, 20_000.0) - model.verify_seconds(1, 1, 0.0)
    assert more == pytest.approx(2e-3, rel=0.15)


def test_stalls_do_not_move_prices() -> None:
    """One round in fifty takes ten times as long. That is no contradiction either."""
    rng, model = np.random.default_rng(0), table()
    for _ in range(2000):
        slower = float(np.exp(rng.normal(0.0, 0.3))) * (10.0 if rng.random() < 0.02 else 1.0)
        observe(model, record([2], [1], slower=slower))
    assert model.resets == 0
    took = record([2], [1]).timing.total
    price = model.draft_round_seconds("draft-model", 1, np.array([2.0]), np.array([2.0]))
    assert price == pytest.approx(took, rel=0.15)


def test_a_change_of_the_clock_moves_no_relative_price() -> None:
    """Drafting rounds alone show that the machine is half as fast: plain ones are priced twice as high as well."""
    model = table()
    observe(model, PLAIN, DRAFTING, times=100)
    relative, plain = model.verify_seconds(1, 4) / model.plain_seconds(1), model.plain_seconds(1)
    observe(model, record([3], [2], slower=2.0), times=60)
    assert model.verify_seconds(1, 4) / model.plain_seconds(1) == pytest.approx(relative, rel=0.05)
    assert model.plain_seconds(1) == pytest.approx(2.0 * plain, rel=0.1)


def test_a_hiccup_does_not_change_which_depth_pays_and_it_recovers() -> None:
    model = table()

    def relative() -> float:
        return model.verify_seconds(1, 4) / model.plain_seconds(1)

    observe(model, PLAIN, DRAFTING, times=40)
    usual = relative()
    observe(model, record([3], [2], slower=50.0), times=3)
    observe(model, DRAFTING, times=16)
    assert relative() == pytest.approx(usual, rel=0.05)
    observe(model, PLAIN, DRAFTING, times=200)
    assert relative() == pytest.approx(usual, rel=0.02)


def test_timed_passes_that_read_a_prompt_change_nothing() -> None:
    """A long prompt says nothing about decoding, however long it takes. Neither does a round without decoding rows."""
    model = table()
    before = model.plain_seconds(1)
    observe(model, record([0], [0], slower=9.0, prefill=100), times=60)
    assert model.plain_seconds(1) == before
    model.observe(RoundWork(0, 0, prefill_tokens=9), Timing(NAN, NAN, 1.0))
    assert model.plain_seconds(1) == before


def test_whole_rounds_that_read_a_prompt_price_it() -> None:
    """Plain rounds say what decoding takes, so the rest is the prompt's."""
    model = table()
    prompt = timed(record([0], [0], slower=9.0, prefill=100), draft=NAN, verify=NAN)
    observe(model, timed(PLAIN, draft=NAN, verify=NAN), prompt, times=100)
    assert model.plain_seconds(1) == pytest.approx(PLAIN.timing.total, rel=0.1)
    assert model.seconds(RoundWork(1, 1, 100.0, prefill_tokens=100)) == pytest.approx(prompt.timing.total, rel=0.1)


@pytest.mark.parametrize("rows", [0, 1, 8])
def test_timed_passes_that_read_a_prompt_price_its_tokens(rows: int) -> None:
    """From few of them, next to decoding rows or without; stalls count as the clip allows."""
    model = table()
    work = RoundWork(rows, rows, 100.0 * rows, prefill_tokens=1280)
    others = model.verify_seconds(rows, rows, 100.0 * rows) if rows else 0.0
    plain = [model.plain_seconds(size) for size in (1, 4)]
    for round_ in range(20):
        verify = others + 1280 * 3e-5
        model.observe(work, Timing(0.0, 9.0 * verify if round_ == 12 else verify, verify))
    assert model.prefill_tokens_within(0.3) == pytest.approx(10_000, rel=0.15)
    assert [model.plain_seconds(size) for size in (1, 4)] == plain


@pytest.mark.parametrize("seconds", [0.0, -1.0, NAN, 1e-300, 1e300])
def test_a_clock_that_jumps_changes_nothing(seconds: float) -> None:
    model = table()
    before = model.plain_seconds(1)
    observe(model, timed(PLAIN, seconds, verify=seconds), times=20)
    assert model.plain_seconds(1) == before


def test_rounds_that_only_caught_up_are_not_plain_rounds() -> None:
    """Seconds of a draft model that read missed tokens are no part of plain decoding: guards compare with that."""
    model = table()
    observe(model, PLAIN, times=50)
    before = model.plain_seconds(1)
    read = timed(caught_up(PLAIN, 500), PLAIN.timing.total + 5e-3, draft=5e-3)
    observe(model, read, times=50)
    assert model.plain_seconds(1) == pytest.approx(before, rel=0.03)
    assert model.catch_up_seconds("draft-model", 500.0) > 2e-3


def test_drafting_rounds_have_no_less_overhead_than_plain_ones() -> None:
    """They do all that plain ones do: where plain ones take longer, drafting ones are priced higher as well."""
    model = table()
    observe(model, DRAFTING, record([0], [0], slower=3.0), times=200)
    assert model.overhead_seconds(1, drafting=True) >= model.overhead_seconds(1, drafting=False)


def test_the_rare_plain_round_among_drafting_rounds_counts() -> None:
    """It is the only measurement of the guard's baseline."""
    model = table()
    observe(model, DRAFTING, times=200)
    before = model.plain_seconds(1, 100.0)
    for _ in range(4):
        observe(model, record([0], [0], slower=1.3))
        observe(model, DRAFTING, times=20)
    assert model.plain_seconds(1, 100.0) > 1.02 * before


def test_a_fit_follows_rounds_of_all_sizes_and_is_as_certain_as_a_profile() -> None:
    """One further round counts as much as it does after a profile."""
    true, model = table(), CostModel(CostProfile((1,), (1, 2), ((2e-3, 2.1e-3),)))
    works = [RoundWork(rows, rows * tokens) for rows in (1, 4, 16) for tokens in (1, 2, 4, 8)]
    rounds = [(work, Timing(0.0, true.verify_seconds(*work[:2]), true.seconds(work))) for work in works]
    model.fit(rounds)
    for work, timing in rounds:
        assert model.seconds(work) == pytest.approx(timing.total, rel=0.2)
    moved = []
    for one in (model, true):
        before = one.plain_seconds(1)
        observe(one, record([0], [0], slower=2.0))
        moved.append(one.plain_seconds(1) / before)
    assert moved[0] == pytest.approx(moved[1], rel=0.2)


# --- hosts, which time whole steps and have no profile ----------------------------------------------------------


def hosted_seconds(work: RoundWork) -> float:
    """5 ms, 0.2 ms a row, 0.1 ms a drafted token, 0.8 ms and 0.02 ms a row for a draft pass, 1 ms for ragged rows."""
    passes = sum(0.8e-3 + 2e-5 * rows for draft in work.drafts for rows in draft.passes)
    drafted = work.verify_tokens - work.rows
    rest = 1e-5 * work.prefill_tokens + 1e-3 * work.ragged
    return 5e-3 + 2e-4 * work.rows + 1e-4 * drafted + passes + rest


def hosted_work(rows: int, drafted: int, passes: int, prefill: int = 0, *, ragged: bool = False) -> RoundWork:
    """A step that verifies `drafted` tokens per row and runs `passes` draft passes over all rows."""
    drafts = (DraftWork("draft-model", rows, (rows,) * passes),) if passes else ()
    return RoundWork(rows, rows * (1 + drafted) - ragged, 0.0, drafts, prefill, ragged)


def learned(steps: Sequence[tuple[RoundWork, float]]) -> CostModel:
    """The model of a host that has timed these steps, 24 of them before the policies decide."""
    model = costs_of_steps(steps[:24])
    for work, seconds in steps[24:]:
        model.observe(work, Timing(NAN, NAN, seconds))
    return model


def hosted(noise: float, stalls: float, *, scale: float = 1.0, steps: int = 600) -> CostModel:
    """A model that saw steps of 1, 4 and 16 rows whose depths go round."""
    rng, timed, before = np.random.default_rng(0), [], 0
    for number in range(steps):
        rows, depth = (1, 4, 16)[number // 40 % 3], (5, 0, 3, 1)[number % 4]
        prefill, ragged = 40 * (number % 50 == 0), number % 7 == 3 and before > 0 and rows > 1
        work = hosted_work(rows, before, max(depth - 1, 0), prefill, ragged=ragged)
        stalled = rng.uniform(2.0, 5.0) if rng.random() < stalls else 1.0
        seconds = scale * hosted_seconds(work) * float(rng.lognormal(0.0, noise)) * stalled
        timed.append((work, seconds))
        before = depth
    return learned(timed)


@pytest.mark.parametrize(("noise", "stalls", "error"), [(0.02, 0.0, 0.05), (0.1, 0.05, 0.15)])
@pytest.mark.parametrize("scale", [1.0, 0.01, 100.0])
def test_parts_of_steps_are_priced_without_a_profile(noise: float, stalls: float, error: float, scale: float) -> None:
    """On machines of any speed, with one step in twenty several times as long."""
    model = hosted(noise, stalls, scale=scale)
    for rows in (1, 4, 16):
        plain = scale * (5e-3 + 2e-4 * rows)
        assert model.plain_seconds(rows) == pytest.approx(plain, rel=error)
        assert step(model, rows) == pytest.approx(scale * (8e-4 + 2e-5 * rows), rel=3 * error)
        verified = model.verify_seconds(rows, 4 * rows) - model.verify_seconds(rows, rows)
        assert verified == pytest.approx(scale * 3e-4 * rows, rel=0.2, abs=0.05 * plain)


def test_the_first_steps_set_the_scale() -> None:
    """Shares of a step are guessed; a machine a thousand times as fast needs no rounds to be found."""
    for scale in (1e-3, 1e3):
        model = CostModel(CostProfile.typical("draft-model", [(hosted_work(1, 0, 0), scale)] * 3))
        assert model.plain_seconds(1) == pytest.approx(scale, rel=0.01)
        assert step(model, 1) == pytest.approx(0.1 * scale, rel=0.01)


@pytest.mark.parametrize("slower", [20.0, 1000.0])
@pytest.mark.parametrize("first", [hosted_work(4, 0, 0), hosted_work(4, 0, 0, 3000)], ids=["warm-up", "prompt"])
def test_a_first_round_that_takes_long_spoils_nothing(first: RoundWork, slower: float) -> None:
    """It may compile kernels, or read a prompt whose price is unknown."""
    works = [hosted_work(4, (5, 0, 3, 1)[number % 4], (0, 2, 0, 4)[number % 4]) for number in range(40)]
    model = learned([(first, slower * hosted_seconds(first)), *((work, hosted_seconds(work)) for work in works)])
    assert model.plain_seconds(4) == pytest.approx(5.8e-3, rel=0.05)
    assert step(model, 4) == pytest.approx(8.8e-4, rel=0.2)


def test_a_host_whose_steps_all_read_prompts_is_learned() -> None:
    """A busy server has prompts to read in every step. What drafts cost is seen in these steps, too."""
    rng, timed = np.random.default_rng(0), []
    for number in range(400):
        work = hosted_work(4, (5, 0, 3, 1)[number % 4], (0, 2, 0, 4)[number % 4], int(rng.integers(50, 500)))
        timed.append((work, hosted_seconds(work) * float(rng.lognormal(0.0, 0.02))))
    model = learned(timed)
    for work, _ in timed[-8:]:
        assert model.seconds(work) == pytest.approx(hosted_seconds(work), rel=0.1)
    assert step(model, 4) == pytest.approx(8.8e-4, rel=0.2)


def test_a_price_of_ragged_rows_is_not_held_for_ever() -> None:
    """They took a third longer for some time; now they take nothing, and one step in 64 tries them."""
    rng, model = np.random.default_rng(0), CostModel(CostProfile.typical("draft-model"))
    prices = []
    for number in range(5000):
        ragged = number % 3 == 0 if number < 600 else number % 64 == 0
        work = hosted_work(16, (0, 2, 4)[number % 5 % 3], 1, ragged=ragged)
        seconds = hosted_seconds(work) + ragged * (1e-3 if number < 1200 else -1e-3)
        model.observe(work, Timing(NAN, NAN, seconds * float(rng.lognormal(0.0, 0.02))))
        prices.append(model.ragged_seconds)
    assert prices[600] == pytest.approx(2e-3, rel=0.3)
    assert prices[-1] < 3e-4


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 300),
            st.integers(0, 12),
            st.integers(0, 12),
            st.integers(0, 9000),
            st.booleans(),
            st.one_of(st.floats(allow_nan=True), st.floats(1e-6, 10.0)),
        ),
        max_size=60,
    )
)
def test_prices_are_times_whatever_a_host_reports(steps: list[tuple[int, int, int, int, bool, float]]) -> None:
    """Positive and finite, also for a clock that goes backwards; what it learned can be written as a profile."""
    model = learned(
        [
            (hosted_work(rows, drafted, passes, prefill, ragged=ragged), seconds)
            for rows, drafted, passes, prefill, ragged, seconds in steps
        ]
    )
    assert 0.0 < model.plain_seconds(7) < math.inf
    assert 0.0 < step(model, 7) < math.inf
    assert 0.0 < model.ragged_seconds < math.inf
    profile = model.learned_profile((1, 4, 16), (1, 2, 4))
    assert CostProfile.from_json(profile.to_json()) == profile


def test_a_learned_profile_is_the_given_one_before_the_first_round() -> None:
    """Read at the points of a profile, a model that has seen no round gives that profile."""
    profile = QUIET.profile()
    learned = CostModel(profile).learned_profile(profile.rows, profile.tokens)
    assert np.array(learned.verify) == pytest.approx(np.array(profile.verify), rel=0.05)
    cost, given_cost = learned.drafters["draft-model"], profile.drafters["draft-model"]
    assert cost.step_seconds == pytest.approx(given_cost.step_seconds, rel=0.05)
    assert cost.catch_up_per_token == pytest.approx(given_cost.catch_up_per_token)
    assert learned.overhead == pytest.approx(profile.overhead)


# --- wrong profiles and contradictions --------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0.2, 5.0])
def test_a_wrong_profile_is_outweighed_in_a_few_dozen_rounds(wrong: float) -> None:
    """Plain passes five times too dear or too cheap in the profile."""
    profile = QUIET.profile()
    model = CostModel(replace(profile, verify=tuple((wrong * one, *rest) for one, *rest in profile.verify)))
    observe(model, PLAIN, DRAFTING, times=18)
    assert model.plain_seconds(1) == pytest.approx(PLAIN.timing.total, rel=0.12)
    assert model.verify_seconds(1, 4) == pytest.approx(QUIET.verify(4), rel=0.12)


def test_a_wrong_cell_is_corrected_by_its_neighbours() -> None:
    """Rounds of one and of four tokens are timed; two then cost something in between, whatever a profile said."""
    model = CostModel(CostProfile((1,), (1, 2, 4), ((1e-3, 5e-3, 1.4e-3),)))
    for _ in range(40):
        for tokens, seconds in ((1, 1e-3), (4, 1.4e-3)):
            drafts = (DraftWork("ngram", 1),) if tokens > 1 else ()
            model.observe(RoundWork(1, tokens, 0.0, drafts), Timing(1e-5, seconds, seconds + 1e-4))
    assert 1e-3 <= model.verify_seconds(1, 2) <= 1.5e-3


def test_a_contradiction_resets_once_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The next rounds then count most, and the model is certain again."""
    model = table()
    for slower in (1.0, 3.0):
        uncertain = False
        for _ in range(200):
            observe(model, record([0], [0], slower=slower), record([3], [2], slower=slower))
            uncertain |= model.uncertain
        assert uncertain == (slower > 1.0)
    assert (model.uncertain, model.resets) == (False, 1)
    assert model.plain_seconds(1) == pytest.approx(3.0 * PLAIN.timing.total, rel=0.05)
    assert [line.message.split(":")[0] for line in caplog.records] == ["costs are unsure"]


def test_a_stall_hides_no_contradiction() -> None:
    """Rounds take three times as long from now on, and in one of eight the machine sleeps: the mean of eight would be
    far off, and its error larger still.
    """
    model = table()
    for number in range(300):
        slower = 1.0 if number < 200 else 1e5 if number % 8 == 3 else 3.0
        observe(model, record([0], [0], slower=slower))
    assert model.resets == 1


def test_a_contradiction_that_lasts_resets_seldom() -> None:
    """Plain rounds that take longer than those of four tokens fit no model. Prices must still settle."""
    model = table()
    for number in range(4000):
        observe(model, record([0], [0], slower=3.0) if number % 5 == 0 else DRAFTING)
    assert model.uncertain
    assert 1 <= model.resets <= 5


def test_a_reset_weighs_the_next_rounds_more() -> None:
    """What is asked for from outside, such as after a change of the thread count, is no contradiction."""
    settled, reset = table(), table()
    for model in (settled, reset):
        observe(model, PLAIN, DRAFTING, times=200)
    reset.inflate_variance()
    assert (reset.resets, reset.uncertain) == (1, False)
    assert reset.plain_seconds(1) == settled.plain_seconds(1)
    before = reset.plain_seconds(1)
    for model in (settled, reset):
        observe(model, record([0], [0], slower=1.2), times=16)
    assert reset.plain_seconds(1) - before > 1.3 * (settled.plain_seconds(1) - before)


@pytest.mark.parametrize("rows", [1, 2, 7, 300, 2000])
def test_a_round_has_one_price(rows: int) -> None:
    """The price of its work is that of the same round among many that a policy compares."""
    model = CostModel(CostProfile.typical("draft-model", reads_along=False))
    for number in range(64):
        work = RoundWork(rows, rows * (1 + number % 4), 50.0, (DraftWork("draft-model", rows, (rows,) * (number % 4)),))
        model.observe(work, Timing(math.nan, math.nan, 0.01 + 0.003 * (number % 4)))
    for steps in (0, 1, 3):
        drafts = (DraftWork("draft-model", rows, (rows,) * steps),) if steps else ()
        work = RoundWork(rows, rows * (1 + steps), 50.0, drafts)
        among = model.draft_round_seconds("draft-model", rows, np.array([steps]), np.array([rows * steps]), 50.0)
        assert among.tolist() == pytest.approx([model.seconds(work)] if steps else [model.plain_seconds(rows, 50.0)])
        assert model.seconds(work._replace(prefill_tokens=20)) - model.seconds(work) == pytest.approx(
            20 * (model.seconds(work._replace(prefill_tokens=1)) - model.seconds(work)), rel=1e-6
        )
    lookups = RoundWork(rows, rows, 50.0, (DraftWork("ngram", rows),))
    row = model.draft_prices("ngram", rows).row
    plain, drafting = (model.overhead_seconds(rows, drafting=drafts) for drafts in (False, True))
    assert model.seconds(lookups) == pytest.approx(model.plain_seconds(rows, 50.0) + drafting - plain + rows * row)


@pytest.mark.parametrize(("rows", "bucket"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (16, 4)])
def test_batch_sizes_that_are_alike_share_a_bucket(rows: int, bucket: int) -> None:
    assert batch_bucket(rows) == bucket
