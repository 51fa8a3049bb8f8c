"""Drafting and verifying of whole rounds: mixed methods, grammars, draft temperatures, drafters that did not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.control.draft_temperature import DynamicTemperature
from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.decision_tables import CANDIDATES
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter, DraftJob
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.model_executor import cut_refused
from adaptspec.models.draft import Draft
from adaptspec.models.grammars import Constraint
from adaptspec.models.sampling import SamplingBatch
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.types import Completion, RoundRecord
from tests.engine.conftest import Dictated, make_core, run
from tests.fakes import TableRunner, array
from tests.models.matchers import VOCAB, Climb


class _Watched(DynamicTemperature):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(score_every=2)
        self.told: list[RoundRecord] = []

    def learn(self, record: RoundRecord) -> None:
        self.told.append(record)
        super().learn(record)


class _Warm(Dictated):
    """Dictated depths with a draft temperature that is tuned."""

    def __init__(self, drafters: tuple[str, ...], depth: int) -> None:
        super().__init__(drafters, lambda n, size: [depth] * size)
        self.temperature = _Watched()

    def decide(self, signals: BatchSignals) -> Decision:
        return replace(super().decide(signals), temperature=self.temperature.table(len(signals.rows)))

    def learn(self, record: RoundRecord) -> None:
        super().learn(record)
        if record.temperature_scores is not None:
            self.temperature.learn(record)


def _params(seed: int, temperature: float = 1.0) -> SamplingParams:
    return SamplingParams(max_tokens=40, temperature=temperature, seed=seed, ignore_eos=True)


def _requests(policies: Sequence[str], temperature: float = 1.0) -> list[Request]:
    return [
        Request(f"r{i}", (5, 6, 2 + i % 20), _params(i, temperature), SpeculationParams(policy=name))
        for i, name in enumerate(policies)
    ]


@pytest.mark.parametrize("method", ["coupled", "rejection", "block"])
def test_scores_reach_the_tuner_every_so_many_rounds(tokenizer: PreTrainedTokenizerFast, method: str) -> None:
    policy = _Warm(("draft-model",), 3)
    core = make_core(
        tokenizer, TableRunner(), [DraftModelDrafter(TableRunner(seed=1, blend=0.8))], {"p": (policy, method)}
    )
    run(core, _requests("ppp"))
    told = policy.temperature.told
    rounds = sum(1 for record in policy.records if record.drafted.any())
    assert 0 < len(told) <= rounds // 2 + 1
    for record in told:
        assert record.temperature_scores is not None
        assert record.temperature_scores.shape == (*record.entropy.shape, len(CANDIDATES))
        known = ~np.isnan(record.temperature_scores[:, :, 0])
        scores = record.temperature_scores[known]
        assert known.any()
        assert ((scores >= 0.0) & (scores <= 1.0 + 1e-6)).all()
        assert not np.isnan(record.entropy[known]).any()
        if method == "coupled":
            assert set(np.unique(scores)) <= {0.0, 1.0}


def test_coupled_tokens_do_not_depend_on_the_draft_temperature(tokenizer: PreTrainedTokenizerFast) -> None:
    """Beside rows of other methods and drafters, in rounds that are scored and others."""
    drafters: list[Drafter] = [DraftModelDrafter(TableRunner(seed=1, blend=0.8)), NgramDrafter(longest=2, shortest=1)]
    policies = {"a": (_Warm(("draft-model", "ngram"), 4), "coupled"), "b": (_Warm(("draft-model",), 3), "rejection")}
    done = run(make_core(tokenizer, TableRunner(), drafters, dict(policies)), _requests("abab"))
    plain = make_core(
        tokenizer, TableRunner(), drafters, {"a": (Dictated(("ngram",), lambda n, size: [0] * size), "coupled")}
    )
    alone = run(plain, _requests("aaa"))
    for name in ("r0", "r2"):
        assert done[name].tokens == alone[name].tokens
    assert policies["a"][0].temperature.told
    assert policies["b"][0].temperature.told


def test_rows_of_several_policies_draft_as_was_decided(tokenizer: PreTrainedTokenizerFast) -> None:
    """Methods that are equal are one method, whoever made them: with two drafters in a round nobody goes without."""
    drafters: list[Drafter] = [DraftModelDrafter(TableRunner(seed=1, blend=0.8)), NgramDrafter(longest=2, shortest=1)]
    names = ("draft-model", "ngram")
    policies = {name: (Dictated(names, lambda n, size: [3] * size), "coupled") for name in "ab"}
    run(make_core(tokenizer, TableRunner(), drafters, policies), _requests("abab", temperature=0.0))
    for policy, _ in policies.values():
        for record in policy.records:
            own = record.drafter == 0
            assert (record.drafted[own] == record.depths[own]).all()
    assert any((record.drafter == 1).any() for policy, _ in policies.values() for record in policy.records)


def test_greedy_batches_are_neither_tempered_nor_scored(tokenizer: PreTrainedTokenizerFast) -> None:
    policy = _Warm(("draft-model",), 3)
    core = make_core(tokenizer, TableRunner(), [DraftModelDrafter(TableRunner(seed=1))], {"p": (policy, "coupled")})
    run(core, _requests("pp", temperature=0.0))
    assert policy.temperature.told == []


def test_a_lossy_method_is_marked_in_the_statistics_and_its_neighbours_are_not(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    """And rows verified exactly in the same round keep their tokens."""
    drafter = DraftModelDrafter(TableRunner(seed=1, blend=0.8))
    three = Dictated(("draft-model",), lambda n, size: [3] * size)
    policies = {
        "exact": (three, "coupled"),
        "loose": (Dictated(("draft-model",), lambda n, size: [3] * size), "threshold"),
    }
    requests = _requests(("exact", "loose", "exact"))
    done = run(make_core(tokenizer, TableRunner(), [drafter], policies), requests)
    assert [done[f"r{i}"].stats.lossy for i in range(3)] == [False, True, False]
    off = {"exact": (Dictated(("draft-model",), lambda n, size: [0] * size), "coupled")}
    alone = run(make_core(tokenizer, TableRunner(), [drafter], off), [requests[0], requests[2]])
    assert done["r0"].tokens == alone["r0"].tokens
    assert done["r2"].tokens == alone["r2"].tokens


class _Flat(TableRunner):
    """The target's own table, too unsure of itself: at temperature 0.65 it would be the target."""

    def logits(self, tokens: list[int]) -> torch.Tensor:
        return 0.65 * super().logits(tokens)


@pytest.mark.parametrize("method", ["coupled", "rejection"])
def test_tuning_raises_the_acceptance_of_a_draft_that_is_too_flat(
    tokenizer: PreTrainedTokenizerFast, method: str
) -> None:
    """The candidate that makes the draft the target is found, and used where the draft is unsure."""
    warm, plain = _Warm(("draft-model",), 3), Dictated(("draft-model",), lambda n, size: [3] * size)
    rates = []
    for policy in (warm, plain):
        core = make_core(tokenizer, TableRunner(), [DraftModelDrafter(_Flat())], {"p": (policy, method)})
        done = run(core, _requests(["p"] * 24, temperature=1.5))
        late = [done[f"r{i}"].stats for i in range(8, 24)]
        rates.append(sum(s.accepted for s in late) / sum(s.drafted for s in late))
    assert rates[0] > rates[1] + 0.05
    assert 0.65 in warm.temperature.by_bin


def test_each_row_is_cut_by_its_own_grammar() -> None:
    """Rows without one stay as they are; a token that ends the text is the last."""
    tokens = np.array([[1, 2, 2, 3], [9, 9, 9, 9], [3, 0, 4, 5], [5, 1, 1, 0]])
    told = np.full((4, 4), 0.5)
    draft = Draft(tokens, np.array([4, 4, 4, 2]), told, told)
    constraints = [Constraint(Climb, VOCAB, (0,)), None, *(Constraint(Climb, VOCAB, (0,)) for _ in range(2))]
    cut = cut_refused(draft, constraints)
    assert cut.counts.tolist() == [2, 4, 2, 0]
    assert cut.tokens.tolist() == [[1, 2, 0, 0], [9, 9, 9, 9], [3, 0, 0, 0], [0, 0, 0, 0]]
    assert np.isnan(cut.confidence).sum(axis=1).tolist() == [2, 0, 2, 4]
    assert draft.counts.tolist() == [4, 4, 4, 2], "the drafter's own stays"


def test_a_draft_that_fits_is_left_alone() -> None:
    """No copy where nothing is cut."""
    draft = Draft(np.array([[1, 2]]), np.array([2]), np.zeros((1, 2)), np.zeros((1, 2)))
    assert cut_refused(draft, [Constraint(Climb, VOCAB, (0,))]) is draft


BOTH = ("draft-model", "ngram")


DRAFT = TableRunner(seed=1, blend=0.8)


def _serve(
    tokenizer: PreTrainedTokenizerFast,
    requests: Sequence[Request],
    choose: Callable[[int, int], Sequence[int]],
    drafters: tuple[str, ...] = BOTH,
    method: str = "coupled",
) -> tuple[list[RoundRecord], dict[str, Completion]]:
    policy = Dictated(drafters, choose)
    loaded: list[Drafter] = [DraftModelDrafter(TableRunner(seed=1, blend=0.8)), NgramDrafter(longest=2, shortest=1)]
    done = run(make_core(tokenizer, TableRunner(), loaded, {"p": (policy, method)}), requests)
    return policy.records, done


def _alike(count: int, temperature: float = 0.0, **more: float) -> list[Request]:
    goes_on = "min_tokens" not in more
    params = [
        SamplingParams(max_tokens=24, temperature=temperature, seed=i, ignore_eos=goes_on, **more)  # type: ignore[arg-type]
        for i in range(count)
    ]
    return [Request(f"r{i}", (5, 6, 7 + i), params[i]) for i in range(count)]


@settings(max_examples=15, deadline=None)
@given(depths=st.lists(st.integers(0, 5), min_size=1, max_size=20), temperature=st.sampled_from([0.0, 0.9]))
def test_a_score_is_what_the_drafter_gets_when_it_runs(
    tokenizer: PreTrainedTokenizerFast, depths: list[int], temperature: float
) -> None:
    """Exact at the depth that was emitted, accepted and drafted, from whatever round and beside whatever drafter."""
    requests = _alike(3, temperature)
    scored, _ = _serve(tokenizer, requests, lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)])
    played, done = _serve(tokenizer, requests, lambda n, size: [4] * size, ("ngram",))
    real = {}
    for record in played:
        for i, name in enumerate(record.request_ids):
            outcome = int(record.depths[i]), int(record.drafted[i]), int(record.accepted[i])
            real[name, int(record.context[i])] = outcome
    texts = {request.id: [*request.prompt, *done[request.id].tokens] for request in requests}
    compared = 0
    for record in scored:
        if record.shadow is None or record.shadow_drafted is None:
            continue
        assert (record.shadow[0] == -1).all(), "a draft model cannot be scored"
        for i, name in enumerate(record.request_ids):
            ran = record.drafter[i] == 1 and record.depths[i] > 0
            assert (record.shadow[1, i] == -1) == ran
            if ran:
                continue
            context, emitted = int(record.context[i]), int(record.emitted[i])
            drafted, accepted = int(record.shadow_drafted[1, i]), int(record.shadow[1, i])
            assert (drafted, accepted) == _would_get(texts[name], context, emitted)
            if (name, context) in real:
                depth = min(emitted, real[name, context][0])
                got = tuple(min(count, depth) for count in real[name, context][1:])
                assert (min(drafted, depth), min(accepted, depth)) == got
                compared += 1
    assert compared or not scored


def _would_get(text: list[int], context: int, depth: int) -> tuple[int, int]:
    sampling = SamplingBatch([], 24, torch.device("cpu"))
    draft = NgramDrafter(2, 1).propose(DraftJob(array(0), [text[:context]], array(depth), sampling))
    drafted = int(draft.counts[0])
    right = [a == b for a, b in zip(draft.tokens[0, :drafted].tolist(), text[context:], strict=False)]
    return drafted, right.index(False) if False in right else len(right)


def test_nothing_is_scored_where_nobody_asks(tokenizer: PreTrainedTokenizerFast) -> None:
    """A policy of one drafter, which cannot be scored: its rounds carry no scores and cost no lookups."""
    records, _ = _serve(tokenizer, _alike(2), lambda n, size: [n % 2] * size, ("draft-model",))
    assert all(record.shadow is None for record in records)
