"""What trees rest on: how often the target's token is among a draft's candidates, and what is emitted then."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine.core import EngineLimits
from adaptspec.models.processors import SamplingRow
from adaptspec.models.sampling import SamplingBatch, leading
from adaptspec.request import Request, SamplingParams
from adaptspec.types import FloatArray
from tests.engine.branching import Branched, Shape
from tests.engine.conftest import make_core, run
from tests.fakes import TableRunner

CPU = torch.device("cpu")
WIDTHS = (1, 2, 4, 8)
VOCAB, OUT, REQUESTS = 16, 3, 6000
PROMPT = (5, 6)


def _pairs(count: int, vocab: int) -> tuple[FloatArray, FloatArray]:
    """Random distributions of target and draft, [count, vocab], sharp and flat, alike and unlike."""
    random = np.random.default_rng(0)
    sharpness = random.uniform(0.3, 4.0, (count, 1))
    alike = random.uniform(0.0, 1.0, (count, 1))
    target = sharpness * random.normal(size=(count, vocab))
    draft = alike * target + (1.0 - alike) * sharpness * random.normal(size=(count, vocab))
    return tuple(np.exp(logits) / np.exp(logits).sum(1, keepdims=True) for logits in (target, draft))  # type: ignore[return-value]


def _misses(p: FloatArray, q: FloatArray) -> FloatArray:
    """m [count, vocab]: how likely one candidate misses each token of the target; a bound for several."""
    ratio_q, ratio_p = q[:, None, :] / q[:, :, None], p[:, None, :] / p[:, :, None]
    unlike = np.maximum(0.0, ratio_q - ratio_p).sum(2)
    return np.asarray(p * unlike / (1.0 + p * unlike))


def test_candidates_hit_at_least_as_often_as_the_bound_says() -> None:
    """P(the target's token is among k) >= sum p_i (1 - m_i^k) over 10^5 random pairs, in groups of like agreement.

    With equality for one candidate (Daliri et al. 2024). One draw per pair; groups differ by noise at most.
    """
    p, q = _pairs(100_000, 12)
    positions = np.arange(len(p))
    row = SamplingRow(SamplingParams(temperature=1.0), 7, [1], 1, ())
    sampling, index = SamplingBatch([row], p.shape[1], CPU), np.zeros_like(positions)
    scores = [torch.from_numpy(np.log(shares)).float() for shares in (p, q)]
    own = sampling.choose(scores[0], index, positions).numpy()
    candidates, _ = leading(sampling.perturbed(scores[1], index, positions), max(WIDTHS))
    misses = _misses(p, q)
    groups = np.array_split(np.argsort((np.minimum(p, q)).sum(1)), 10)
    for width in WIDTHS:
        hit = (candidates[:, :width] == own[:, None]).any(1)
        bound = (p * (1.0 - misses**width)).sum(1)
        for group in groups:
            noise = np.sqrt((bound[group] * (1.0 - bound[group])).sum()) / len(group)
            above = hit[group].mean() - bound[group].mean()
            assert above > -4.0 * noise
            assert width > 1 or above < 4.0 * noise


def _joint(runner: TableRunner) -> FloatArray:
    """Exact probability of every sequence of `OUT` tokens after the prompt."""
    joint = []
    for sequence in product(range(VOCAB), repeat=OUT):
        text, probability = list(PROMPT), 1.0
        for token in sequence:
            probability *= float(runner.logits(text).double().softmax(0)[token])
            text.append(token)
        joint.append(probability)
    return np.array(joint)


@pytest.mark.parametrize("shape", [Shape(width=3, nodes=12), Shape(width=4, nodes=16, beam=True)])
def test_trees_emit_the_targets_own_distribution(tokenizer: PreTrainedTokenizerFast, shape: Shape) -> None:
    """Three tokens together, whichever node they came from: a chi-square test at a vocabulary of 16."""
    target, policy = TableRunner(vocab=VOCAB), Branched(("draft-model",), lambda n, size: [2] * size, shape)
    drafter = DraftModelDrafter(TableRunner(vocab=VOCAB, seed=1, blend=0.8))
    limits = EngineLimits(max_rows=256, prefill_tokens=2048)
    core = make_core(tokenizer, target, [drafter], {"p": (policy, "coupled")}, limits=limits)
    params = [SamplingParams(max_tokens=4, temperature=1.0, seed=seed, ignore_eos=True) for seed in range(REQUESTS)]
    done = run(core, [Request(f"r{i}", PROMPT, one) for i, one in enumerate(params)])
    tokens = np.array([done[f"r{i}"].tokens[:OUT] for i in range(REQUESTS)])
    observed = np.bincount(tokens @ VOCAB ** np.arange(OUT)[::-1], minlength=VOCAB**OUT)
    expected = _joint(target) * REQUESTS
    common = expected >= 5.0
    seen = np.append(observed[common], observed[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    assert len(seen) > 50
    assert stats.chisquare(seen, wanted).pvalue > 1e-4
    assert any(record.branches is not None for record in policy.records)
