"""Running policies: the same controller as the engine's, sums that add up, verification methods told apart."""

from __future__ import annotations

import pytest

from adaptspec.control.language.build import load_policy_spec, parse_policy_spec
from adaptspec.control.language.library import find_policy
from adaptspec.errors import ConfigError, TapeError
from adaptspec.simulation.cost_profiles import load_costs
from adaptspec.simulation.replay import replay, static_spec
from adaptspec.simulation.scenarios import Schedule, stream
from adaptspec.simulation.simulator import SimulatorSettings
from adaptspec.simulation.tape import join
from tests.policies.tapes import Kind, made_tape, one_request, written

COSTS = load_costs("cpu-2-cores")
HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: tested}\nspec:\n"


def test_a_fixed_depth_by_hand() -> None:
    """1 1 0 1 at depth 2: a round that gains three, one that gains two; every second accounted for."""
    tape = one_request([1, 1, 0, 1, 0], prompt=1)
    tally = replay(static_spec(2), stream(tape, Schedule((1,))), COSTS, keep=True)
    assert [record.emitted.tolist() for record in tally.records] == [[3], [2]]
    assert [record.drafted.tolist() for record in tally.records] == [[2], [1]], "one token is left: the bonus"
    assert (tally.tokens, tally.rounds, tally.drafted, tally.accepted) == (5, 2, 3, 3)
    own, context = COSTS.drafters["draft-model"], (2, 5)
    passes = COSTS.verify_seconds(1, 3, context[0]) + COSTS.verify_seconds(1, 2, context[1])
    drafting = 3 * COSTS.step_seconds("draft-model", 1, 0.0) + 2 * own.start
    assert tally.seconds == pytest.approx(passes + drafting + 2 * COSTS.overhead)
    assert tally.goodput == pytest.approx(5 / tally.seconds)
    assert tally.mean_acceptance_length == 2.5
    assert tally.duty == 1.0
    assert tally.depths[:3].tolist() == [0, 1, 1]
    assert tally.switches_per_1000 == 500.0


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
    other = load_costs("gpu-8b").profile()
    assert replay(static_spec(3), made, COSTS, profile=other).seconds == replay(static_spec(3), made, COSTS).seconds
    goodput = load_policy_spec(find_policy("goodput"))
    assert replay(goodput, made, COSTS, profile=other).seconds != replay(goodput, made, COSTS).seconds


def test_a_route_goes_by_the_prompt_lengths_of_the_tape() -> None:
    """Each recorded request is decided by the policy that its prompt's length leads to."""
    tape = join([written(f"{prompt}", Kind(0.8), 30, prompt=prompt) for prompt in (99, 100)])
    text = HEAD + "  choose: {algorithm: static, depth: 3}\n  when: [{prompt-tokens: {at-least: 100}, use: off}]\n"
    tally = replay(parse_policy_spec(text), stream(tape, Schedule((2,))), COSTS, keep=True)
    deepest: dict[str, int] = {}
    for record in tally.records:
        for name, depth in zip(record.request_ids, record.depths.tolist(), strict=True):
            prompt = name.partition("#")[0]
            deepest[prompt] = max(depth, deepest.get(prompt, 0))
    assert deepest == {"99": 3, "100": 0}
