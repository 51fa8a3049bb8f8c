"""Usage and metrics, summed over the prompts of one request."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.server.api.outputs import metrics, usage


def completion(accepted: list[int], depth: int, finish: FinishReason = FinishReason.STOP) -> Completion:
    """A request whose drafting rounds, all at `depth`, accepted these counts."""
    stats = SpeculationStats(
        policy="goodput",
        rounds=len(accepted),
        draft_rounds=len(accepted),
        drafted=depth * len(accepted),
        accepted=sum(accepted),
        accepted_per_position=tuple(sum(count > position for count in accepted) for position in range(depth)),
        acceptance_histogram=tuple(accepted.count(count) for count in range(depth + 1)) if accepted else (),
        nodes=3 * depth * len(accepted),
    )
    tokens = (0,) * (sum(accepted) + len(accepted))
    return Completion("id", "", tokens, 3, finish, stats, Timings(0.0, 0.0, 0.0, 1.0))


ROUNDS = st.lists(st.integers(0, 5), max_size=6)


@given(st.lists(ROUNDS, min_size=1, max_size=4), st.integers(5, 7))
def test_several_prompts_count_as_one_long_one(rounds: list[list[int]], depth: int) -> None:
    parts = [completion(accepted, depth) for accepted in rounds]
    together = completion([count for accepted in rounds for count in accepted], depth)
    body = metrics(parts).written()["speculative_decoding"]
    assert body == metrics([together]).written()["speculative_decoding"] | {"adaptspec": body["adaptspec"]}
    assert sum(count * steps for count, steps in enumerate(body["acceptance_histogram"])) == together.stats.accepted
    assert sum(body["acceptance_histogram"]) == body["num_spec_steps"]
    assert body["adaptspec"]["nodes"] == together.stats.nodes
    assert body["num_accepted_draft_tokens"] <= body["num_draft_tokens"] == together.stats.drafted
    assert usage(parts).completion_tokens == len(together.tokens)


def test_cached_tokens_are_those_that_first_choices_found() -> None:
    """Two prompts with two choices each: prompts count once, and so do their cached tokens."""
    parts = [replace(completion([1], 2), cached_tokens=cached) for cached in (1, 2, 0, 2)]
    counted = usage(parts, choices=2).written()
    assert (counted["prompt_tokens"], counted["prompt_tokens_details"]) == (6, {"cached_tokens": 1})


def test_a_lossy_method_is_marked() -> None:
    """One lossy part makes the whole answer lossy."""
    exact, loose = completion([1], 2), completion([1], 2)
    loose = replace(loose, stats=replace(loose.stats, lossy=True))
    assert metrics([exact]).speculative_decoding.adaptspec.lossy is False
    assert metrics([exact, loose]).speculative_decoding.adaptspec.lossy is True
