"""The round loop: what caches hold, what is read of prompts, and who waits for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.core import EngineLimits
from adaptspec.request import Request, SamplingParams, SpeculationParams
from tests.engine.conftest import Dictated, Notes, make_core, run
from tests.exactness import dictated
from tests.exactness.harness import SHAPES, Case
from tests.exactness.worlds import table
from tests.fakes import TableRunner

PROMPT = st.lists(st.integers(2, 23), min_size=1, max_size=20)


def _sampled(seed: int, **more: float) -> SamplingParams:
    return SamplingParams(max_tokens=24, temperature=0.9, seed=seed, **more)  # type: ignore[arg-type]


def _requests(prompts: list[list[int]], params: list[SamplingParams]) -> list[Request]:
    return [Request(f"r{i}", tuple(p), s) for i, (p, s) in enumerate(zip(prompts, params, strict=True))]


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(PROMPT, min_size=2, max_size=6),
    depths=st.lists(st.integers(0, 7), min_size=1, max_size=20),
    aborts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=4),
)
def test_caches_hold_exactly_what_was_kept(
    prompts: list[list[int]], depths: list[int], aborts: list[tuple[int, int]]
) -> None:
    """Exactness rule 5: after every round target and draft cache prefixes of the output, and free rows nothing."""
    target, draft = TableRunner(), TableRunner(seed=1, blend=0.8)
    policy = Dictated(("draft-model",), lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)])
    core = make_core(_TOKENIZER, target, [DraftModelDrafter(draft)], {"p": (policy, "coupled")})
    for request in _requests(prompts, [SamplingParams(max_tokens=16, temperature=0.0)] * len(prompts)):
        core.add(request)
    scheduler = core.scheduler
    rounds = 0
    while not core.idle:
        for which in [which for which, when in aborts if when == rounds]:
            core.abort(f"r{which}")
        if not core.idle:
            core.step()
        rounds += 1
        running = {s.row: s.tokens for s in scheduler.running}
        prompts_by_row = {s.row: s.request.prompt for s in scheduler.running}
        for row in range(4):
            tokens = running.get(row, [])
            assert target.held(row) == tokens[: target.length(row)]
            assert draft.held(row) == tokens[: draft.length(row)]
            decoding = row in running and len(tokens) > len(prompts_by_row[row])
            assert not decoding or target.length(row) == len(tokens) - 1
            assert row in running or target.length(row) == draft.length(row) == 0


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
    draft = world.drafters[0]
    while not core.idle:
        for delta in core.step():
            text += delta.tokens
            held = draft.runner.held(0)  # type: ignore[attr-defined]
            assert held == text[: len(held)]
            assert draft.cache_gap(0, len(text)) == max(0, len(text) - len(held) - 2)


def test_a_request_that_gave_way_waits_until_another_has_left() -> None:
    """Back at once, it would be driven out again, and its text be read each time."""
    policy = Dictated(("draft-model",), lambda _, size: [0] * size)
    drafter = DraftModelDrafter(TableRunner(seed=1))
    core = make_core(_TOKENIZER, TableRunner(capacity=80), [drafter], {"p": (policy, "coupled")})
    sampling = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    run(core, [Request(f"r{i}", (5, 6, 7, *range(2, 3 + 3 * i)), sampling) for i in range(4)])
    assert 1 <= core.scheduler.preemptions <= 4


def _agreeing_core(notes: Notes):  # type: ignore[no-untyped-def]
    """Drafts are always accepted: rounds bring eight tokens where the request has room for them."""
    policy = Dictated(("draft-model",), lambda _, size: [7] * size)
    drafter = DraftModelDrafter(TableRunner())
    return make_core(_TOKENIZER, TableRunner(), [drafter], {"p": (policy, "coupled")}, sinks=[notes])


def test_a_draft_and_the_token_after_it_fit_into_max_tokens() -> None:
    """What cannot be emitted is not drafted."""
    notes, prompt = Notes(), (5, 6, 7)
    sampling = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    run(_agreeing_core(notes), [Request("r", prompt, sampling)])
    rounds = [record for record in notes.records if len(record.rows)]
    left = [len(prompt) + 20 - int(record.context[0]) for record in rounds]
    drafted = [int(record.drafted[0]) for record in rounds]
    assert drafted == [min(7, room - 1) for room in left]


def test_nothing_behind_a_stop_string_is_counted() -> None:
    """A round that brings eight tokens is cut at the one that completes the stop string."""
    letters = SamplingParams(
        max_tokens=40, temperature=0.0, ignore_eos=True, logit_bias=dict.fromkeys(range(4), -100.0), logprobs=0
    )
    plain = run(_plain_core(), [Request("r", (5, 6, 7), letters)])["r"]
    stop = plain.text[12:14]  # a letter is a token
    end = plain.text.index(stop) + len(stop)
    notes = Notes()
    done = run(_agreeing_core(notes), [Request("r", (5, 6, 7), replace(letters, stop=(stop,)))])["r"]
    assert done.text == plain.text[: end - len(stop)]
    assert done.tokens == plain.tokens[:end]
    assert len(done.logprobs) == end
    assert 1 + sum(int(record.emitted.sum()) for record in notes.records) == end
    assert done.stats.accepted > 0


def test_max_depth_zero_never_drafts() -> None:
    """Opting out: a request with max_depth 0 pays for no draft."""
    draft = TableRunner(seed=1)
    policy = Dictated(("draft-model",), lambda n, size: [5] * size)
    core = make_core(_TOKENIZER, TableRunner(), [DraftModelDrafter(draft)], {"p": (policy, "coupled")})
    request = Request("r", (5, 6, 7), _sampled(0), SpeculationParams(max_depth=0))
    assert run(core, [request])["r"].stats.drafted == 0
    assert draft.fed == 0


def test_off_does_no_draft_work_and_coming_back_catches_up() -> None:
    """Tier 0 leaves the draft alone; the first draft after it feeds what was missed, and says so in the record."""
    draft = TableRunner(seed=1, blend=0.8)
    policy = Dictated(("draft-model",), lambda n, size: [0 if n < 8 else 3] * size)
    core = make_core(_TOKENIZER, TableRunner(), [DraftModelDrafter(draft)], {"p": (policy, "coupled")})
    core.add(Request("r", (5, 6, 7), SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)))
    while not policy.records or policy.records[-1].depths[:1].sum() == 0:
        assert draft.fed == 0
        core.step()
    assert policy.records[-1].caught_up > 0


def test_long_prompts_share_rounds_with_decoding() -> None:
    """Chunked prefill: while a long prompt is read, a running request gains a token every round."""
    policy = Dictated(("draft-model",), lambda n, size: [0] * size)
    drafter = DraftModelDrafter(TableRunner(seed=1))
    core = make_core(_TOKENIZER, TableRunner(), [drafter], {"p": (policy, "coupled")}, limits=EngineLimits(4, 8, 7))
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    core.add(Request("short", (5,), params))
    core.step()
    core.add(Request("long", tuple(range(2, 23)) * 3, params))
    for _ in range(8):
        ids = {delta.request_id for delta in core.step()}
        assert "short" in ids
    assert "long" in ids


def test_no_round_reads_more_of_prompts_than_it_may() -> None:
    """The budget is the round's, not a request's: prompts that come together share it, first come first served."""
    notes, policy = Notes(), Dictated(("ngram",), lambda n, size: [0] * size)
    policies, limits = {"p": (policy, "coupled")}, EngineLimits(max_rows=4, prefill_tokens=8)
    core = make_core(_TOKENIZER, TableRunner(), [NgramDrafter()], policies, sinks=[notes], limits=limits)
    params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    run(core, [Request(f"r{i}", tuple(range(2, 2 + size)), params) for i, size in enumerate((3, 20, 11))])
    read = [record.prefill_tokens for record in notes.records]
    assert read[:6] == [8, 8, 8, 8, 2, 0]
    assert not any(read[6:])


def _plain_core():  # type: ignore[no-untyped-def]
    return make_core(
        _TOKENIZER,
        TableRunner(),
        [DraftModelDrafter(TableRunner(seed=1))],
        {"off": (Dictated(("draft-model",), lambda n, size: [0] * size), "coupled")},
    )


_TOKENIZER: PreTrainedTokenizerFast


@pytest.fixture(autouse=True, scope="module")
def _shared_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    # hypothesis tests cannot take function fixtures, and a tokenizer costs more than a test.
    global _TOKENIZER  # noqa: PLW0603
    _TOKENIZER = tokenizer


@pytest.mark.parametrize("max_depth", [0, 7])
def test_speculation_drives_nobody_out(max_depth: int) -> None:
    """Short of room, drafts get what is left: running deep costs no more re-reading than not drafting at all."""
    fed = []
    for depth in (0, max_depth):
        target = TableRunner(capacity=100)
        policy = Dictated(("draft-model",), lambda n, size, d=depth: [d] * size)  # type: ignore[misc]
        drafter = DraftModelDrafter(TableRunner())
        limits = EngineLimits(4, 8, depth)
        core = make_core(_TOKENIZER, target, [drafter], {"p": (policy, "coupled")}, limits=limits)
        params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
        run(core, [Request(f"r{i}", (5, 6, 7 + i), params) for i in range(4)])
        fed.append(target.fed)
    plain, drafting = fed
    assert drafting <= plain + 4 * 8 * 2, "accepted drafts cost nothing; only what was cut at the end may"


def test_long_catch_up_is_read_in_pieces() -> None:
    """A draft model that must read a long prompt does so over several rounds, and the request goes on meanwhile."""
    draft = TableRunner(context=512)
    policy = Dictated(("draft-model",), lambda n, size: [3] * size)
    drafter = DraftModelDrafter(draft, catch_up_tokens=16)
    core = make_core(_TOKENIZER, TableRunner(context=512), [drafter], {"p": (policy, "coupled")})
    prompt = tuple(range(2, 23)) * 5
    done = run(core, [Request("r", prompt, SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True))])["r"]
    caught_up = [r.caught_up for r in policy.records]
    assert max(caught_up) <= 16
    assert sum(n > 0 for n in caught_up) >= len(prompt) // 16, "two tokens of each piece are a round's usual share"
    assert done.stats.drafted > 0


def test_tokens_the_draft_model_does_not_know_only_end_its_drafting() -> None:
    """A target with a wider vocabulary than its draft: such tokens are served, without speculation after them."""
    policy = Dictated(("draft-model",), lambda n, size: [3] * size)
    core = make_core(
        _TOKENIZER, TableRunner(), [DraftModelDrafter(TableRunner(vocab=20, seed=1))], {"p": (policy, "coupled")}
    )
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    done = run(core, [Request("r", (5, 22, 6), params), Request("s", (5, 6), params)])
    assert len(done["r"].tokens) == len(done["s"].tokens) == 12


class _Watching(Dictated):
    """Notes what a policy is told of free memory."""

    def decide(self, signals: BatchSignals) -> Decision:
        self.free = [*getattr(self, "free", []), signals.free_memory]
        return super().decide(signals)


def test_policies_see_how_much_of_the_cache_is_free() -> None:
    """A ceiling by free memory must see the target's cache, not a constant."""
    policy = _Watching(("ngram",), lambda n, size: [0] * size)
    core = make_core(_TOKENIZER, TableRunner(capacity=200), [NgramDrafter()], {"p": (policy, "coupled")})
    run(core, _requests([[2] * 20, [3] * 20], [SamplingParams(max_tokens=8, temperature=0.0)] * 2))
    assert 0.0 < min(policy.free) < max(policy.free) < 1.0
