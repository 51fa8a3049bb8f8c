"""Mixed rounds: draft temperatures, their scores, and lossy methods beside exact ones, in a whole engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from adaptspec.control.draft_temperature import DynamicTemperature
from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.draft_tables import CANDIDATES
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.types import Request, RoundRecord, SamplingParams, SpeculationParams
from tests.engine.conftest import Dictated, make_core, run
from tests.fakes import TableRunner


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
