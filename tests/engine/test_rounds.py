"""The round loop: exact output under any depths, honest records, caches that hold what was kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.core import EngineLimits
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.types import FinishReason
from tests.engine.conftest import Dictated, Notes, make_core, run
from tests.fakes import TableRunner, plain_greedy

PROMPT = st.lists(st.integers(2, 23), min_size=1, max_size=20)


def _sampled(seed: int, **more: float) -> SamplingParams:
    return SamplingParams(max_tokens=24, temperature=0.9, seed=seed, **more)  # type: ignore[arg-type]


def _requests(prompts: list[list[int]], params: list[SamplingParams]) -> list[Request]:
    return [Request(f"r{i}", tuple(p), s) for i, (p, s) in enumerate(zip(prompts, params, strict=True))]


@settings(max_examples=40, deadline=None)
@given(prompts=st.lists(PROMPT, min_size=1, max_size=7), depths=st.lists(st.integers(0, 7), min_size=1, max_size=40))
def test_greedy_output_is_plain_decoding_under_any_depths(prompts: list[list[int]], depths: list[int]) -> None:
    """Exactness rule 1: neither depth, drafter, batch nor chunked prefill changes a token."""
    target = TableRunner()
    drafters = [DraftModelDrafter(TableRunner(seed=1, blend=0.8)), NgramDrafter(longest=2, shortest=1)]
    policy = Dictated(("draft-model", "ngram"), lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)])
    core = make_core(_TOKENIZER, target, drafters, {"p": (policy, "coupled")})
    done = run(core, _requests(prompts, [SamplingParams(max_tokens=24, temperature=0.0)] * len(prompts)))
    for i, prompt in enumerate(prompts):
        assert list(done[f"r{i}"].tokens) == plain_greedy(target, prompt, 24)


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(PROMPT, min_size=1, max_size=6),
    depths=st.lists(st.integers(0, 7), min_size=1, max_size=40),
    penalty=st.sampled_from([0.0, 0.7]),
    top_k=st.sampled_from([0, 5]),
)
def test_seeded_sampling_is_plain_decoding_under_any_depths(
    prompts: list[list[int]], depths: list[int], penalty: float, top_k: int
) -> None:
    """Coupled verification: a seed's tokens are the same at every depth, alone and in a batch, penalties included."""
    params = [
        SamplingParams(max_tokens=24, temperature=0.9, seed=i, frequency_penalty=penalty, top_k=top_k)
        for i in range(len(prompts))
    ]
    outputs = []
    for choose in (lambda n, size: [0] * size, lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)]):
        drafters = [DraftModelDrafter(TableRunner(seed=1, blend=0.8)), NgramDrafter(longest=2, shortest=1)]
        core = make_core(
            _TOKENIZER, TableRunner(), drafters, {"p": (Dictated(("draft-model", "ngram"), choose), "coupled")}
        )
        done = run(core, _requests(prompts, params))
        outputs.append([done[f"r{i}"].tokens for i in range(len(prompts))])
    alone = [run(_plain_core(), [Request("x", tuple(p), s)])["x"].tokens for p, s in zip(prompts, params, strict=True)]
    assert outputs[0] == outputs[1] == alone


@settings(max_examples=20, deadline=None)
@given(
    prompts=st.lists(PROMPT, min_size=1, max_size=6),
    depths=st.lists(st.integers(0, 7), min_size=1, max_size=40),
    edit=st.integers(0, 10),
)
def test_predictions_change_no_output_and_what_they_foretell_is_drafted(
    prompts: list[list[int]], depths: list[int], edit: int
) -> None:
    """Predicted outputs, right but for one token, beside requests without: the tokens stay; a lookup drafts from them,
    also after a request gave way and came back.
    """
    params = [SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)] * len(prompts)
    requests = _requests(prompts, params)
    plain = run(_plain_core(), requests)
    policy = Dictated(("ngram",), lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)])
    core = make_core(_TOKENIZER, TableRunner(capacity=70), [NgramDrafter()], {"p": (policy, "coupled")})
    for i, request in enumerate(requests):
        tokens = list(plain[request.id].tokens)
        tokens[edit] = 1
        if i % 2 == 0:
            requests[i] = replace(request, prediction=tuple(tokens))
    done = run(core, requests)
    for i, request in enumerate(requests):
        own = done[request.id]
        assert own.tokens == plain[request.id].tokens
        assert own.prediction_accepted + own.prediction_rejected == len(request.prediction)
        assert i % 2 or own.prediction_accepted >= 10
    if len(requests) == 1 and min(depths) >= 2:
        assert done["r0"].stats.accepted >= 8


@settings(max_examples=30, deadline=None)
@given(
    prompts=st.lists(PROMPT, min_size=1, max_size=6),
    depths=st.lists(st.integers(0, 7), min_size=1, max_size=40),
    method=st.sampled_from(["coupled", "rejection"]),
)
def test_records_add_up_to_what_requests_got(prompts: list[list[int]], depths: list[int], method: str) -> None:
    """Accounting: emitted, drafted and accepted tokens of all rounds equal those of all completions."""
    notes = Notes()
    policy = Dictated(("draft-model",), lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)])
    drafter = DraftModelDrafter(TableRunner(seed=1, blend=0.8))
    core = make_core(_TOKENIZER, TableRunner(), [drafter], {"p": (policy, method)}, sinks=[notes])
    done = run(core, _requests(prompts, [_sampled(i) for i in range(len(prompts))]))
    assert notes.completions == done
    in_rounds = sum(int(r.emitted.sum()) for r in notes.records)
    # The end of a prompt yields the first token in a row that is reading, not decoding.
    firsts = len(prompts)
    assert in_rounds + firsts == sum(len(c.tokens) for c in done.values())
    assert sum(int(r.drafted.sum()) for r in notes.records) == sum(c.stats.drafted for c in done.values())
    kept = sum(int(np.minimum(r.accepted, r.emitted).sum()) for r in notes.records)
    assert kept == sum(c.stats.accepted for c in done.values())
    assert [r.number for r in notes.records] == list(range(1, len(notes.records) + 1))
    for completion in done.values():
        stats = completion.stats
        assert sum(stats.accepted_per_position) == stats.accepted
        assert sum(n * count for n, count in enumerate(stats.acceptance_histogram)) == stats.accepted
        assert sum(stats.acceptance_histogram) == stats.draft_rounds
    for record in notes.records:
        assert (record.accepted <= record.drafted).all()
        assert (record.drafted <= record.depths).all()
        assert (record.emitted <= record.accepted + 1).all()
        assert (record.emitted >= 1).all()
    assert policy.live == set()


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
@given(prompts=st.lists(PROMPT, min_size=2, max_size=6), depth=st.integers(0, 7))
def test_a_short_cache_delays_but_never_changes_the_output(prompts: list[list[int]], depth: int) -> None:
    """Preemption: with memory for little more than one request, all end, with the same tokens."""
    target = TableRunner(capacity=64)
    policy = Dictated(("draft-model",), lambda n, size: [depth] * size)
    drafter = DraftModelDrafter(TableRunner(seed=1, blend=0.8, capacity=48))
    core = make_core(_TOKENIZER, target, [drafter], {"p": (policy, "coupled")})
    done = run(core, _requests(prompts, [SamplingParams(max_tokens=24, temperature=0.0)] * len(prompts)))
    for i, prompt in enumerate(prompts):
        assert list(done[f"r{i}"].tokens) == plain_greedy(target, prompt, 24)


def test_policies_with_different_methods_share_a_batch() -> None:
    """Rows verified by coupled keep their exact tokens beside rows verified by rejection."""
    drafters = [DraftModelDrafter(TableRunner(seed=1, blend=0.8)), NgramDrafter(longest=2, shortest=1)]
    policies = {
        "a": (Dictated(("draft-model",), lambda n, size: [3] * size), "coupled"),
        "b": (Dictated(("draft-model", "ngram"), lambda n, size: [4] * size), "rejection"),
    }
    core = make_core(_TOKENIZER, TableRunner(), drafters, policies)
    requests = [Request(f"r{i}", (5, 6, 7 + i), _sampled(i), SpeculationParams(policy="ab"[i % 2])) for i in range(6)]
    done = run(core, requests)
    for i in (0, 2, 4):
        alone = run(_plain_core(), [Request("x", (5, 6, 7 + i), _sampled(i))])["x"]
        assert done[f"r{i}"].tokens == alone.tokens
        assert done[f"r{i}"].stats.policy == "a"
    assert all(done[f"r{i}"].stats.drafted for i in (1, 3, 5))


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


@pytest.mark.parametrize("depth", [0, 1, 3, 7])
def test_the_context_limit_is_exact_at_every_depth(depth: int) -> None:
    """A request ends when prompt and output fill the context, to the token, however deep it drafts."""
    target = TableRunner(context=24)
    drafter = DraftModelDrafter(TableRunner(seed=1, blend=0.9, context=24))
    policy = Dictated(("draft-model",), lambda n, size: [depth] * size)
    core = make_core(_TOKENIZER, target, [drafter], {"p": (policy, "coupled")})
    params = SamplingParams(max_tokens=500, temperature=0.0, ignore_eos=True)
    done = run(core, [Request("r", (5, 6, 7), params)])["r"]
    assert len(done.tokens) == 21
    assert done.finish is FinishReason.LENGTH


@pytest.mark.parametrize("depth", [0, 3, 7])
def test_end_tokens_inside_the_window_end_the_output_there(depth: int) -> None:
    """EOS and stop tokens: nothing after them is emitted, though it was drafted and accepted."""
    target = TableRunner()
    reference = plain_greedy(target, [5, 6], 24)
    stop = reference[4]
    at = reference.index(stop)
    drafter = DraftModelDrafter(TableRunner())  # the target's own table: every draft is accepted
    policy = Dictated(("draft-model",), lambda n, size: [depth] * size)
    core = make_core(_TOKENIZER, target, [drafter], {"p": (policy, "coupled")})
    params = SamplingParams(max_tokens=24, temperature=0.0, stop_token_ids=(stop,))
    done = run(core, [Request("r", (5, 6), params)])["r"]
    assert list(done.tokens) == reference[: at + 1]
    assert done.finish is FinishReason.STOP


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
