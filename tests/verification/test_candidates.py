"""Trees under `coupled`: the emitted tokens have the target's distribution."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats
from transformers import PreTrainedTokenizerFast

from adaptspec.arrays import FloatArray
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine.core import EngineLimits
from adaptspec.request import Request, SamplingParams
from tests.engine.branching import Branched, Shape
from tests.engine.conftest import make_core, run
from tests.fakes import TableRunner

VOCAB, OUT, REQUESTS = 16, 3, 6000
PROMPT = (5, 6)


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
def test_trees_emit_the_targets_distribution(tokenizer: PreTrainedTokenizerFast, shape: Shape) -> None:
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
