"""The hostile drafter: pays for drafting, and is never right."""

from __future__ import annotations

import numpy as np
import torch

from adaptspec.bench.hostile import WrongDrafter
from adaptspec.drafting.drafter import DraftJob
from adaptspec.models.sampling import SamplingBatch, SamplingRow
from adaptspec.types import SamplingParams
from tests.fakes import TableRunner, array, plain_greedy


def test_it_proposes_what_the_target_would_not_say() -> None:
    """Its first guess differs from the model's own, at the cost of as many passes."""
    runner = TableRunner()
    row = SamplingRow(SamplingParams(temperature=0.0), 0, [5, 6], 2, (1,))
    sampling = SamplingBatch([row], 24, torch.device("cpu"))
    draft = WrongDrafter(runner).propose(DraftJob(np.arange(1), [[5, 6]], array(4), sampling))
    assert draft.steps == 4
    assert draft.tokens[0, 0] != plain_greedy(runner, [5, 6], 1)[0]
