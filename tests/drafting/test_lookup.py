"""Lookup drafting: what followed most often, never in another key's text; with the target's own noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.decision import TreeTable
from adaptspec.draft_tree import DraftTree
from adaptspec.drafting.drafter import DraftJob, RowStart
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.drafting.ngram_index import Histories, NgramIndex, advance
from adaptspec.drafting.prediction import Prediction
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.request import SamplingParams
from tests.fakes import array

V = 500
NO_SAMPLING = SamplingBatch([], V)
TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=40)
TEMPERATURES = st.sampled_from([0.0, 0.7, 1.3])


def _start(
    temperature: float = 0.0, scope: str | None = None, seed: int = 3, prediction: tuple[int, ...] = ()
) -> RowStart:
    followed = Prediction(prediction, 1) if prediction else None
    return RowStart(RowSampling(SamplingParams(temperature=temperature), seed, [], 1, ()), followed, scope)


def _counts(vocab_size: int = V, eos_token_ids: tuple[int, ...] = ()) -> LookupDrafter:
    """A lookup that knows earlier requests of the same scope."""
    return LookupDrafter(vocab_size, eos_token_ids, name="counts", histories=Histories())


def _made(start: RowStart | None = None, ends: tuple[int, ...] = ()) -> LookupDrafter:
    drafter = _counts(V, ends)
    drafter.start(0, start or _start())
    return drafter


def _mixed(six: int, seven: int) -> list[int]:
    """A text that ends in 5, which 6 and 7 have followed so often; nothing before it was met before."""
    text = [token for i in range(six + seven) for token in (100 + i, 5, 6 if i < six else 7)]
    return [*text, 99, 5]


def _draft(
    drafter: LookupDrafter, tokens: list[int], depth: int, row: int = 0, table: TreeTable | None = None
) -> DraftTree:
    return drafter.propose(DraftJob(array(row), [tokens], array(depth), NO_SAMPLING, tree=table)).tree


def propose(drafter: LookupDrafter, tokens: list[int], depth: int, row: int = 0) -> list[int]:
    drafted: list[int] = _draft(drafter, tokens, depth, row).token.tolist()
    return drafted


def test_what_followed_most_often_is_drafted_and_surer_by_longer_contexts() -> None:
    assert propose(_made(), [9, 2, 3, 9, 2, 3, 9, 2, 4, 9, 2], 1) == [3]
    draft = _draft(_made(), [9, 2, 3, 9, 2, 3, 9, 2], 1)
    once = _draft(_made(), [2, 3, 7, 8, 2], 1)
    assert 0.0 < once.confidence[0] < draft.confidence[0] < 1.0
    assert propose(_made(), [1, 2, 3, 4, 5], 7) == []


def test_of_equal_counts_the_longer_context_decides() -> None:
    """5 followed (3, 4) and 9 followed (2, 3, 4); then 5 was met twice, and what followed it."""
    assert propose(_made(), [2, 3, 4, 9, 9, 3, 4, 5, 7, 2, 3, 4], 1) == [9]
    assert propose(_made(), [3, 4, 5, 7, 8, 3, 4], 3) == [5, 7, 8]


def test_a_draft_stops_at_the_end_of_the_text() -> None:
    """A prompt holds end tokens between its turns: what followed one there does not follow this answer."""
    assert propose(_made(ends=(4,)), [1, 2, 3, 4, 5, 6, 1, 2], 7) == [3, 4]
    assert propose(_made(), [1, 2, 3, 4, 5, 6, 1, 2], 7)[:3] == [3, 4, 5]


def test_an_unlikely_draft_is_not_continued() -> None:
    """Nothing is drafted where any of twelve tokens may follow; a text that has repeated itself is followed further."""
    text = [token for i in range(12) for token in (7, 100 + i)]
    assert propose(_made(), [*text, 7], 3) == []
    assert len(propose(_made(), [1, 2, 3, 4, 5, 6] * 6, 7)) == 7


def test_a_freed_row_is_forgotten() -> None:
    """Rows are reused: nothing of one request may leak into the next."""
    for drafter in (LookupDrafter(V), _counts()):
        assert propose(drafter, [1, 2, 3, 4, 1, 2], 2) == [3, 4]
        drafter.leave(0)
        assert propose(drafter, [9, 9, 1, 2], 2) == []


@given(TEXTS, st.integers(0, 6), st.integers(1, 8), TEMPERATURES)
def test_a_lookup_is_the_following_draft(tokens: list[int], most: int, depth: int, temperature: float) -> None:
    """Of an offer any part may be taken, or more asked for: the draft is the one made without looking first."""
    start = _start(temperature)
    looked = _made(start)
    offered = len(looked.look_up(0, tokens, most))
    draft = propose(looked, tokens, depth)
    assert offered == (len(propose(_made(start), tokens, most)) if most else 0)
    assert draft == propose(_made(start), tokens, depth)
    assert len(draft) >= min(offered, depth)


@given(TEXTS, st.integers(1, 6), st.integers(1, 6))
def test_an_outdated_lookup_is_never_drafted(tokens: list[int], more: int, most: int) -> None:
    """Rounds in which it was left: by the next one there is more text, and what was found is found anew."""
    looked = _made()
    looked.look_up(0, tokens[: max(1, len(tokens) - more)], most)
    assert propose(looked, tokens, most) == propose(_made(), tokens, most)


def test_without_histories_a_request_has_only_its_own_text() -> None:
    drafter = LookupDrafter(V)
    drafter.start(0, _start(scope="key a"))
    drafter.look_up(0, [1, 2, 3, 4, 1], 1)
    drafter.leave(0)
    drafter.start(0, _start(scope="key a"))
    assert propose(drafter, [1, 2, 3], 1) == []


@given(TEXTS, st.integers(1, 7), TEMPERATURES)
def test_the_same_text_gives_the_same_draft_however_it_came(tokens: list[int], most: int, temperature: float) -> None:
    """Read at once or bit by bit, offered before or not, scored meanwhile or not."""
    start = _start(temperature)
    whole, bits = _made(start), _made(start)
    expected = _draft(whole, tokens, most)
    for end in range(1, len(tokens), 3):
        bits.look_up(0, tokens[:end], 2)
        bits.score(0, tokens[: end + 2], end)
    offered = bits.look_up(0, tokens, most)
    draft = _draft(bits, tokens, most)
    assert draft.token.tolist() == expected.token.tolist()
    assert draft.confidence.tolist() == expected.confidence.tolist() == offered
    assert all(0.0 < sure <= 1.0 for sure in offered)


@given(TEXTS, st.integers(1, 6), st.integers(1, 6), TEMPERATURES)
def test_a_score_is_that_of_the_draft_not_made(tokens: list[int], first: int, more: int, temperature: float) -> None:
    start = max(1, len(tokens) - more)
    would = propose(_made(_start(temperature)), tokens[:start], len(tokens) - start)
    right = [guess == token for guess, token in zip(would, tokens[start:], strict=False)]
    accepted = right.index(False) if False in right else len(right)
    assert _made(_start(temperature)).score(0, tokens, start) == (len(would), accepted)


def test_sampled_drafts_agree_more_often_with_the_target_than_the_likeliest_token_does() -> None:
    """The text is drawn from the very distribution that is counted: each is right as often as sharing noise allows."""
    text = _mixed(20, 20)
    scores = np.full((1, V), -np.inf, dtype=np.float32)
    scores[0, [6, 7]] = np.log(0.5)
    right = {True: 0, False: 0}
    for seed in range(200):
        drafter = _made(_start(1.0, seed=seed))
        row = RowSampling(SamplingParams(temperature=1.0), seed, text, 1, ())
        target = SamplingBatch([row], V).choose(scores, array(0), array(0)).item()
        for shares in (True, False):
            job = DraftJob(array(0), [text], array(1), NO_SAMPLING, shares_noise=shares)
            right[shares] += drafter.propose(job).tree.token.tolist() == [target]
    assert right[True] > 180
    assert right[False] < 130


def test_each_drafted_token_meets_the_noise_of_its_own_position() -> None:
    """Two tokens follow equally often at both of two positions: the draft is right where its noise is the target's."""
    text = [token for i in range(40) for token in (100 + i, 5, 6 + i % 2, 8 + i // 2 % 2)] + [99, 5]
    scores = np.full((1, V), -np.inf, dtype=np.float32)
    scores[0, [8, 9]] = np.log(0.5)
    right = []
    for seed in range(100):
        drafted = propose(_made(_start(1.0, seed=seed)), text, 2)
        if len(drafted) == 2:
            row = RowSampling(SamplingParams(temperature=1.0), seed, text, 1, ())
            target = SamplingBatch([row], V).choose(scores, array(0), array(1)).item()
            right.append(drafted[1] == target)
    assert len(right) > 50
    assert np.mean(right) > 0.85


def test_history_of_an_api_key_is_used_for_its_requests_only() -> None:
    """While it is served and afterwards: tokens that only the other key has had are in no draft."""
    drafter = _counts()
    secret = [11, 12, 13, 14, 15, 16, 17]
    drafter.start(0, _start(scope="key a"))
    drafter.start(1, _start(scope="key b"))
    drafter.start(2, _start())
    for row in range(3):
        drafter.look_up(row, [1, 2, 3], 1)
    drafter.look_up(0, [1, 2, 3, *secret], 1)
    for row in (1, 2):
        assert propose(drafter, [1, 2, 3, 11, 12, 13], 7, row) == []
    for row in range(3):
        drafter.leave(row)
    drafter.start(3, _start(scope="key a"))
    assert propose(drafter, [11, 12, 13], 4, 3) == [14, 15, 16, 17][: len(propose(drafter, [11, 12, 13], 4, 3))] != []
    drafter.start(4, _start(scope="key b"))
    assert 14 not in propose(drafter, [11, 12, 13], 4, 4)


def test_the_text_of_a_request_outweighs_earlier_requests() -> None:
    """After the same tokens 11 came once in each of two earlier requests, and 21 once in this one."""
    drafter = _counts()
    for row in range(3):
        drafter.start(row, _start(scope="key"))
        drafter.look_up(row, [1, 2, 3] if row == 2 else [1, 2, 3, 11], 1)
    assert propose(drafter, [1, 2, 3], 1, 2) == [11]
    assert propose(drafter, [1, 2, 3, 21, 1, 2, 3], 1, 2) == [21]


def test_a_prediction_is_followed_and_draws_end_texts() -> None:
    drafter = _made(_start(prediction=(5, 6, 9, 6)), ends=(9,))
    assert propose(drafter, [1], 4) == [5, 6, 9]
    drafter.leave(0)
    assert propose(drafter, [1], 4) == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_trees_have_the_next_likely_tokens_as_siblings_of_the_chain(temperature: float) -> None:
    text = _mixed(4, 3)
    table = TreeTable(array(3), array(6), np.zeros(1), np.ones((1, 1, 1)))
    chain, comb = (_draft(_made(_start(temperature)), text, 3, table=each) for each in (None, table))
    count = len(chain.token)
    assert comb.chain.tolist() == [count]
    assert comb.token[:count].tolist() == chain.token.tolist()
    assert count < len(comb.token) <= 6
    assert {6, 7} <= set(comb.token[comb.parent == -1].tolist())
    assert (comb.confidence[count:] > 0.0).all()


def test_long_prompts_are_read_from_their_end_only() -> None:
    """Reading is bounded: what was 60,000 tokens before is not found."""
    rng = np.random.default_rng(0)
    drafter = _counts(1000)
    drafter.start(0, _start())
    text = [1, 2, 3, 4, 5, *rng.integers(10, 1000, 60_000).tolist(), 1, 2, 3]
    assert drafter.look_up(0, text, 1) == []


def test_a_prompt_is_read_a_part_in_each_round() -> None:
    """Reading all of it at once would keep the other rows of a round waiting. What comes late in it is found later."""
    drafter = _counts(2000)
    text = [*range(100, 700), 5, 6, *range(700, 1000)]
    assert [propose(drafter, text + [5] * rounds, 1) for rounds in (1, 2)] == [[], [6]]


def test_lookup_drafters_count_the_text_of_a_request_together() -> None:
    """What one of them has counted of a long prompt, the others draft from at once."""
    start, text = _start(), [*range(100, 700), 5, 6, *range(700, 1000), 5]
    drafted = []
    for drafter in (LookupDrafter(2000), _counts(2000)):
        drafter.start(0, start)
        drafted.append(propose(drafter, text, 1))
    assert drafted == [[], [6]]


def test_a_scope_counts_the_end_of_a_text_without_lookups() -> None:
    """What it does when a request ends is bounded, too."""
    drafter, live = _counts(), [1]
    drafter.start(0, RowStart(RowSampling(SamplingParams(), 3, live, 1, ()), None, "key a"))
    drafter.look_up(0, live, 1)
    live += [2, 3, *np.random.default_rng(0).integers(10, 400, 5000).tolist(), 7, 8, 9]
    drafter.leave(0)
    drafter.start(1, _start(scope="key a"))
    assert propose(drafter, [1, 2], 1, 1) == []
    drafter.start(2, _start(scope="key a"))
    assert propose(drafter, [7, 8], 1, 2) == [9]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=300),
    st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.booleans()), max_size=12),
)
def test_a_scope_counts_every_text_once(text: list[int], rounds: list[tuple[int, bool, bool]]) -> None:
    """However long the prompt is, whoever gave way and came back, and whatever came in the last round."""
    drafter, live = _counts(), text[:1]
    start = RowStart(RowSampling(SamplingParams(), 3, live, 1, ()), None, "key a")
    drafter.start(0, start)
    for more, looks, leaves in rounds:
        live += text[len(live) : len(live) + more]
        if looks:
            drafter.look_up(0, live, 2)
        if leaves:
            drafter.leave(0)
            drafter.start(0, start)
    drafter.look_up(0, live, 1)
    live += text[len(live) :]
    drafter.leave(0)
    once = NgramIndex(10_000)
    contexts: list[int] = []
    for token in text:
        once.add(contexts, token)
        contexts = advance(contexts, token)
    assert drafter.histories is not None
    assert sorted(drafter.histories.index_of("key a").entries()) == sorted(once.entries())
