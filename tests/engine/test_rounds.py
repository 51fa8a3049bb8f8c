"""The round loop: what caches hold, what is read of prompts, and which requests wait."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.request import Request, SamplingParams, SpeculationParams
from tests.exactness import dictated
from tests.exactness.harness import SHAPES, Case, Notes, answers
from tests.exactness.worlds import World, table
from tests.fakes import TableRunner


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(tokens, temperature=0.0, ignore_eos=True)


def engine(world: World, depths: str, notes: Notes | None = None, rows: int = 4) -> EngineCore:
    limits = EngineLimits(rows, prefill_tokens=8, max_depth=7)
    return world.engine([dictated.policy(Case(depths=depths).policy)], limits, [notes] if notes else [])


def models(world: World) -> tuple[TableRunner, TableRunner]:
    target, drafter = world.target, world.drafters[0]
    assert isinstance(target, TableRunner)
    assert isinstance(drafter, DraftModelDrafter)
    assert isinstance(drafter.runner, TableRunner)
    return target, drafter.runner


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(2, 22), min_size=1, max_size=20), min_size=2, max_size=6),
    seed=st.integers(0, 99),
    aborts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=4),
)
def test_caches_hold_exactly_what_was_kept(prompts: list[list[int]], seed: int, aborts: list[tuple[int, int]]) -> None:
    """After every round target and draft cache prefixes of the texts of running requests; once idle rows are evicted,
    nothing is cached.
    """
    world = table("draft-model")
    target, draft = models(world)
    core = world.engine([dictated.policy(Case(seed=seed).policy)], EngineLimits(4, prefill_tokens=8))
    for i, prompt in enumerate(prompts):
        core.add(Request(f"r{i}", tuple(prompt), greedy(16)))
    rounds = 0
    while not core.idle:
        for which in [which for which, when in aborts if when == rounds]:
            core.abort(f"r{which}")
        if not core.idle:
            core.step()
        rounds += 1
        for one in core.scheduler.running:
            assert one.row is not None
            assert target.held(one.row) == one.tokens[: target.length(one.row)]
            assert draft.held(one.row) == one.tokens[: draft.length(one.row)]
            assert not one.emitted or target.length(one.row) == one.length - 1
    core.scheduler.prefixes.clear()
    assert target.free_memory == draft.free_memory == 1.0


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 999),
    shape=st.sampled_from(SHAPES),
    nodes=st.sampled_from((1, 4, 16, 64)),
    temperature=st.sampled_from((0.0, 0.9)),
)
def test_the_draft_model_keeps_what_the_text_went_on_with(
    seed: int, shape: str, nodes: int, temperature: float
) -> None:
    """Whatever was fed, and whichever drafter proposed what was accepted: its cache is a beginning of the text."""
    world, case = table("draft-model"), Case(shape=shape, nodes=nodes, seed=seed)
    core = world.engine([dictated.policy(case.policy)], EngineLimits(max_rows=1, prefill_tokens=8))
    text = [5, 6, 7]
    core.add(Request("r", tuple(text), SamplingParams(24, temperature=temperature, seed=seed, ignore_eos=True)))
    _, draft = models(world)
    while not core.idle:
        for delta in core.step():
            text += delta.tokens
            held = draft.held(0)
            assert held == text[: len(held)]
            assert world.drafters[0].cache_gap(0, len(text)) == max(0, len(text) - len(held) - 2)


def test_a_request_that_gave_way_waits_until_another_has_left() -> None:
    """Back at once, it would be driven out again, and its text be read each time."""
    specs = [dictated.policy(Case(depths=depths).policy, name) for name, depths in (("off", "0"), ("deep", "7"))]
    core = table("draft-model", capacity=80).engine(specs, EngineLimits(4, prefill_tokens=8, max_depth=7))
    answers(core, [Request(f"r{i}", (5, 6, 7, *range(2, 3 + 3 * i)), greedy(30)) for i in range(4)])
    assert 1 <= core.scheduler.preemptions <= 4


def test_speculation_drives_no_request_out() -> None:
    """Short of room, drafts get what is left: running deep costs no more re-reading than not drafting at all."""
    fed = []
    for depths in ("0", "7"):
        world = table("copy", capacity=100)
        answers(engine(world, depths), [Request(f"r{i}", (5, 6, 7 + i), greedy(40)) for i in range(4)])
        fed.append(models(world)[0].fed)
    assert fed[1] <= fed[0] + 4 * 8 * 2, "accepted drafts cost nothing; only what was cut at the end may"


def test_short_of_room_a_draft_is_half_as_deep() -> None:
    """The depth is halved until the draft fits, so a row drafts a little where there is room for a little."""
    notes, tokens = Notes(), 40
    requests = [Request(f"r{i}", (5, 6, 7 + i), greedy(tokens)) for i in range(2)]
    answers(engine(table("copy", capacity=64), "7", notes), requests)
    # Near its end a request has a smaller limit.
    far_from_the_end = [
        depth
        for record in notes.records
        for depth, context in zip(record.depths.tolist(), record.context.tolist(), strict=True)
        if context + 8 < len(requests[0].prompt) + tokens
    ]
    assert {1, 3, 7} <= set(far_from_the_end) <= {0, 1, 3, 7}


def test_no_draft_work_without_drafts_and_coming_back_catches_up() -> None:
    """The first draft after plain rounds feeds the draft model what was missed, and its record reports that."""
    world, notes = table("draft-model"), Notes()
    _, draft = models(world)
    specs = [dictated.policy(Case(depths=depths).policy, name) for name, depths in (("off", "0"), ("deep", "3"))]
    core = world.engine(specs, EngineLimits(1, prefill_tokens=8), [notes])
    answers(core, [Request("r", (5, 6, 7), greedy(24))])
    assert draft.fed == 0
    late = Request("late", tuple(range(2, 20)), greedy(24), SpeculationParams("deep"))
    answers(core, [late])
    assert max(record.caught_up for record in notes.records) > 0


def test_a_long_catch_up_is_read_in_pieces() -> None:
    """A draft model that must read a long prompt does so over several rounds, and the request goes on meanwhile."""
    context, notes, prompt = 512, Notes(), tuple(range(2, 23)) * 5
    drafter = DraftModelDrafter(TableRunner(context=context), catch_up_tokens=16)
    world = replace(table("draft-model"), target=TableRunner(context=context), drafters=[drafter])
    done = answers(engine(world, "3", notes), [Request("r", prompt, greedy(60))])["r"]
    caught_up = [record.caught_up for record in notes.records if len(record.rows)]
    assert max(caught_up) <= 16
    assert sum(n > 0 for n in caught_up) >= len(prompt) // 16, "two tokens of each piece are a round's usual share"
    assert done.stats.drafted > 0


def test_prompts_share_a_budget_and_rounds_with_decoding() -> None:
    """So many tokens a round; a request that decodes gains a token in each of them."""
    notes = Notes()
    core = engine(table("draft-model"), "0", notes)
    answers(
        core, [Request(f"r{i}", tuple(range(2 + i, 2 + i + size)), greedy(30)) for i, size in enumerate((3, 20, 11))]
    )
    assert [record.prefill_tokens for record in notes.records][:6] == [8, 8, 8, 8, 2, 0]
    assert not any(record.prefill_tokens for record in notes.records[6:])
    assert all("r0" in record.request_ids for record in notes.records[1:20])
