"""The simulated engine: sums that add up, the same every time, and records like the engine's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.controller import Controller
from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import build_policy, load_policy_spec, parse_policy_spec
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Decision
from adaptspec.errors import ConfigError, TapeError
from adaptspec.rounds import RoundRecord
from adaptspec.simulation.machine import Machine, load_machine
from adaptspec.simulation.scenarios import Schedule, Stream, stream
from adaptspec.simulation.simulator import Simulator, SimulatorSettings, replay, static_spec
from adaptspec.simulation.tape import join
from tests.engine.conftest import Dictated
from tests.policies.tapes import Kind, made_tape, one_request, written

COSTS = load_machine("cpu-2-cores")
BOTH = ("draft-model", "ngram")
HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: tested}\nspec:\n"


def dictated(
    made: Stream,
    choose: Callable[[int, int], Sequence[int]],
    *,
    drafters: tuple[str, ...] = BOTH,
    settings: SimulatorSettings = SimulatorSettings(),
    costs: Machine = COSTS,
    pace: Callable[[int], float] | None = None,
) -> Simulator:
    """A simulator whose depths are dictated; drafters take turns by row and round."""
    policy = Dictated(drafters, choose)
    here = tuple(name for name in settings.drafters if name in made.tape.views)
    return Simulator(made, costs, Controller({"p": policy}, "p", here, made.max_rows), settings, pace)


def finish(one: Simulator) -> list[RoundRecord]:
    records = []
    while not one.over:
        records.append(one.round())
    return records


@settings(max_examples=40, deadline=None)
@given(
    depths=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    batch=st.integers(1, 5),
    prefill=st.sampled_from([0, 7, 512]),
    catch_up=st.sampled_from([8, 512]),
    beyond=st.integers(0, 4),
)
def test_accounts_add_up(depths: list[int], batch: int, prefill: int, catch_up: int, beyond: int) -> None:
    """Whatever is decided: every token is emitted once, nothing passes its limit, and sums are those of the rounds."""
    tape = made_tape(count=2, length=14, beyond=beyond, most=14 + beyond)
    made = Stream(tape, tuple(range(6)), Schedule((batch,)))
    settings = SimulatorSettings(prefill_tokens=prefill, catch_up_tokens=catch_up)
    one = dictated(made, lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)], settings=settings)
    emitted: dict[str, int] = {}
    records = finish(one)
    for record in records:
        assert (record.accepted <= record.drafted).all()
        assert (record.drafted <= record.depths).all()
        assert (record.emitted <= record.accepted + 1).all()
        assert (record.emitted >= 1).all()
        assert record.target_tokens == len(record.rows) + record.drafted.sum() + record.prefill_tokens
        assert record.confidence.shape == (len(record.rows), record.chain.max(initial=0))
        assert 0 < record.timing.draft + record.timing.verify <= record.timing.total
        for name, count in zip(record.request_ids, record.emitted.tolist(), strict=True):
            emitted[name] = emitted.get(name, 0) + count
    assert all(count <= 13 for count in emitted.values())
    assert sum(count == 13 for count in emitted.values()) >= 6 - batch + 1
    firsts = one.firsts
    assert (len(emitted) <= firsts <= 6) if prefill else not firsts
    assert [record.number for record in records] == list(range(1, len(records) + 1))


def test_prompts_share_rounds_with_decoding() -> None:
    """At most so many prompt tokens a round, shared by those that read; the end of a prompt yields the first token."""
    tape = made_tape({"code": 0.5}, count=3, length=30, prompt=20)
    settings = SimulatorSettings(prefill_tokens=16)
    one = dictated(Stream(tape, (0, 1, 2), Schedule((2,))), lambda n, size: [0] * size, settings=settings)
    records = finish(one)
    assert [record.prefill_tokens for record in records[:4]] == [16, 16, 8, 0]
    assert [len(record.rows) for record in records[:4]] == [0, 0, 0, 2]
    assert records[2].target_tokens == 8
    assert one.firsts == 2, "it ends when one row runs empty, before the third prompt is read"


def test_runs_are_deterministic_and_noise_is_seeded() -> None:
    """Without noise times are the cost table's; with it they scatter around them, the same for one seed."""
    made = stream(made_tape(), Schedule((4,)))

    def seconds(noise: float, seed: int) -> float:
        one = dictated(made, lambda n, size: [2] * size, settings=SimulatorSettings(noise=noise, seed=seed))
        return sum(record.timing.total for record in finish(one))

    assert seconds(0.0, 0) == seconds(0.0, 1)
    assert seconds(0.1, 0) == seconds(0.1, 0) != seconds(0.1, 1)
    assert seconds(0.1, 0) == pytest.approx(seconds(0.0, 0), rel=0.05)


def test_n_grams_are_scored_where_they_do_not_draft() -> None:
    """Against the tokens of the round, as no others are known; a draft model is not, and needs no row."""
    tape = made_tape({"code": 0.6}, count=1, length=60)
    run, reach = tape.views["ngram"].run, tape.views["ngram"].reach
    records = finish(dictated(stream(tape, Schedule((1,))), lambda n, size: [n % 3] * size))
    at, scored = 1, 0
    for record in records:
        assert record.shadow is not None
        assert record.shadow_drafted is not None
        gained = int(record.emitted[0])
        idle = record.drafter[0] != 1 or not record.depths[0]
        assert record.shadow[0, 0] == -1
        assert record.shadow[1, 0] == (min(int(run[at]), gained) if idle else -1)
        assert record.shadow_drafted[1, 0] == (min(int(reach[at]), gained) if idle else -1)
        scored += idle
        at += gained
    assert 0 < scored < len(records)


def test_a_tape_and_costs_without_a_common_drafter_are_refused() -> None:
    tape = one_request([1, 0])
    with pytest.raises(TapeError, match="in common with ngram"):
        replay(static_spec(0), Stream(tape, (0,), Schedule((1,))), COSTS, SimulatorSettings(drafters=("ngram",)))


class Onlooker(Controller):
    """Keeps the signals it was shown."""

    def __init__(self, policy: str, cost: CostModel, rows: int) -> None:
        built = build_policy(load_policy_spec(find_policy(policy)), cost, rows)
        super().__init__({policy: built}, policy, BOTH, rows, cost=cost)
        self.seen: list[BatchSignals] = []

    def decide(self, signals: BatchSignals) -> Decision:
        self.seen.append(signals)
        return super().decide(signals)


@pytest.mark.parametrize("batch", [1, 3])
def test_offers_are_what_n_grams_would_draft(batch: int) -> None:
    """Known before the round, within the limits, never of a draft model: exactly what is then drafted."""
    made = stream(made_tape(count=3, length=20), Schedule((batch,)))
    controller = Onlooker("goodput", CostModel(COSTS.profile()), batch)
    one = Simulator(made, COSTS, controller)
    records = finish(one)
    assert any(signals.found.any() for signals in controller.seen)
    for signals, record in zip(controller.seen, records, strict=True):
        assert not signals.found[0].any()
        assert (signals.found <= signals.limits).all()
        ran = (record.drafter == 1) & (record.depths > 0)
        assert (record.drafted[ran] == np.minimum(record.depths, signals.found[1])[ran]).all()


def test_a_fixed_depth_by_hand() -> None:
    """1 1 0 1 at depth 2: a round that gains three, one that gains two; every second accounted for."""
    tape = one_request([1, 1, 0, 1, 0], prompt=1)
    stats = replay(static_spec(2), stream(tape, Schedule((1,))), COSTS, keep=True)
    assert [record.emitted.tolist() for record in stats.records] == [[3], [2]]
    assert [record.drafted.tolist() for record in stats.records] == [[2], [1]], "one token is left: the bonus"
    assert (stats.tokens, stats.rounds, stats.drafted, stats.accepted) == (5, 2, 3, 3)
    times, context = COSTS.drafters["draft-model"], (2, 5)
    passes = COSTS.verify_seconds(1, 3, context[0]) + COSTS.verify_seconds(1, 2, context[1])
    drafting = 3 * COSTS.step_seconds("draft-model", 1, 0.0) + 2 * times.start
    assert stats.seconds == pytest.approx(passes + drafting + 2 * COSTS.overhead)
    assert stats.goodput == pytest.approx(5 / stats.seconds)
    assert stats.mean_acceptance_length == 2.5
    assert stats.duty == 1.0
    assert stats.depths[:3].tolist() == [0, 1, 1]
    assert stats.switches_per_1000 == 500.0


def test_rejection_and_block_draw_agreement_from_its_chance() -> None:
    """Another verification meets another agreement; a seed decides which."""
    made = stream(made_tape({"rag": 0.4}, count=4, length=100), Schedule((1,)))

    def accepted(method: str, seed: int = 0) -> int:
        text = HEAD + f"  choose: {{algorithm: static, depth: 3}}\n  verification: {{method: {method}}}\n"
        return replay(parse_policy_spec(text), made, COSTS, SimulatorSettings(seed=seed)).accepted

    assert accepted("rejection") == accepted("block") != accepted("coupled")
    assert accepted("rejection", 1) != accepted("rejection", 2)
    assert accepted("coupled", 1) == accepted("coupled", 2)


def test_lossy_verification_cannot_be_followed() -> None:
    text = HEAD + "  choose: {algorithm: static, depth: 3}\n  verification: {method: typical, lossy: true}\n"
    with pytest.raises(TapeError, match="lossless"):
        replay(parse_policy_spec(text), stream(made_tape(), Schedule((1,))), COSTS)


def test_a_policy_whose_drafter_is_not_on_the_tape_is_refused() -> None:
    tape = one_request([1, 0, 1])
    with pytest.raises(ConfigError, match="ngram"):
        replay(load_policy_spec(find_policy("goodput-ngram")), stream(tape, Schedule((1,))), COSTS)


def test_a_policy_may_believe_in_other_costs_than_the_truth() -> None:
    """Only what it decides changes; a fixed depth does not look at costs at all."""
    made = stream(made_tape(), Schedule((1,)))
    other = load_machine("gpu-8b").profile()
    assert replay(static_spec(3), made, COSTS, profile=other).seconds == replay(static_spec(3), made, COSTS).seconds
    goodput = load_policy_spec(find_policy("goodput"))
    assert replay(goodput, made, COSTS, profile=other).seconds != replay(goodput, made, COSTS).seconds


def test_a_route_goes_by_the_prompt_lengths_of_the_tape() -> None:
    """Each recorded request is decided by the policy that its prompt's length leads to."""
    tape = join([written(f"{prompt}", Kind(0.8), 30, prompt=prompt) for prompt in (99, 100)])
    text = HEAD + "  choose: {algorithm: static, depth: 3}\n  when: [{prompt-tokens: {at-least: 100}, use: off}]\n"
    stats = replay(parse_policy_spec(text), stream(tape, Schedule((2,))), COSTS, keep=True)
    deepest: dict[str, int] = {}
    for record in stats.records:
        for name, depth in zip(record.request_ids, record.depths.tolist(), strict=True):
            prompt = name.partition("#")[0]
            deepest[prompt] = max(depth, deepest.get(prompt, 0))
    assert deepest == {"99": 3, "100": 0}


def test_where_drafts_run_whole_the_planner_plans_the_depth_itself() -> None:
    """Where a stop rule saves steps, goodput asks for deep drafts and lets the rule end them; elsewhere it cannot."""
    gpu = load_machine("gpu-8b")
    stepwise = Machine(
        "stepwise",
        gpu.verify,
        {name: replace(times, together=False) for name, times in gpu.drafters.items()},
        overhead=gpu.overhead,
        per_cached_token=gpu.per_cached_token,
    )
    made = stream(made_tape({"rag": 0.6}, count=20, length=60), Schedule((1,)))
    body = "  choose: {algorithm: goodput}\n  drafters: [draft-model]\n  stop: {rule: marginal-goodput}\n"
    goodput = parse_policy_spec(HEAD + body)

    def undrafted(machine: Machine) -> float:
        """The share of the decided tokens that were not drafted."""
        records = replay(goodput, made, machine, keep=True).records
        settled = records[len(records) // 2 :]
        return 1.0 - sum(one.drafted.sum() for one in settled) / sum(one.depths.sum() for one in settled)

    assert undrafted(stepwise) > 0.3
    assert undrafted(gpu) < 0.1


def test_an_error_in_what_learns_is_an_error_of_the_run() -> None:
    """A server would log it and go on serving."""

    class Broken(Controller):
        def learn(self, record: RoundRecord) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replay(static_spec(1), stream(made_tape(count=1), Schedule((1,))), COSTS, controller=Broken)
