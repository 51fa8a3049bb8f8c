"""What an engine refuses to put together, since the text would no longer be the target's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.policy_manager import adopt_policy, check_policy
from adaptspec.engine.task_methods import TaskMethods
from adaptspec.errors import ConfigError
from adaptspec.models.draft import Draft
from adaptspec.request import Request, SamplingParams
from adaptspec.verification import make_method
from tests.engine.conftest import Dictated, make_core, run
from tests.fakes import TableRunner

A, B = 5, 6
WEIGHING = ["rejection", "block"]


class Coin(TableRunner):
    """A model that says A or B, whatever came before."""

    def __init__(self, heads: float) -> None:
        super().__init__()
        self._coin = torch.full((self.info.vocab_size,), -torch.inf)
        self._coin[[A, B]] = torch.tensor([heads, 1.0 - heads]).log()

    def logits(self, tokens: list[int]) -> torch.Tensor:
        return self._coin


class Choosy(DraftModelDrafter):
    """Drops every B that it drew."""

    non_anticipating = False

    def propose(self, job: DraftJob) -> Draft:
        draft = super().propose(job)
        return draft.cut(np.where((draft.tokens == B).any(axis=1), 0, draft.counts))


class Lying(Choosy):
    non_anticipating = True


def _share_of_a(tokenizer: PreTrainedTokenizerFast, drafter: DraftModelDrafter, how: str) -> float:
    """How often the second token of a fair target is an A, drafted by one that prefers them."""
    limits = EngineLimits(max_rows=64, max_depth=1)
    policies = {"p": (Dictated((drafter.name,), lambda n, size: [1] * size), how)}
    core = make_core(tokenizer, Coin(0.5), [drafter], policies, limits=limits)
    requests = [Request(f"r{i}", (A,), SamplingParams(max_tokens=3, seed=i, ignore_eos=True)) for i in range(1000)]
    return float(np.mean([one.tokens[1] == A for one in run(core, requests).values()]))


@pytest.mark.parametrize("how", WEIGHING)
def test_a_drafter_that_drops_what_it_drew_would_bias_the_text(tokenizer: PreTrainedTokenizerFast, how: str) -> None:
    """The example of `Drafter.propose`; one that only ends its drafts there changes nothing."""
    biased = _share_of_a(tokenizer, Lying(Coin(0.625)), how)
    exact = _share_of_a(tokenizer, DraftModelDrafter(Coin(0.625), ends=(B,)), how)
    assert abs(biased - 0.6875) < 0.05
    assert abs(exact - 0.5) < 0.05


@pytest.mark.parametrize("how", WEIGHING)
def test_methods_that_weigh_refuse_such_a_drafter(tokenizer: PreTrainedTokenizerFast, how: str) -> None:
    """When the engine is built and when a policy comes later; `coupled` takes it, and says the same text."""
    with pytest.raises(ConfigError, match=f"policy p: spec.verification: {how} .* draft-model .* use coupled"):
        _share_of_a(tokenizer, Choosy(Coin(0.625)), how)
    assert abs(_share_of_a(tokenizer, Choosy(Coin(0.625)), "coupled") - 0.5) < 0.05
    late = Dictated(("draft-model",), lambda n, size: [1] * size)
    core = make_core(tokenizer, Coin(0.5), [Choosy(Coin(0.625))], {"p": (late, "coupled")})
    only_code = TaskMethods(make_method("coupled"), {"code": make_method(how)})
    for refuse in (check_policy, adopt_policy):
        with pytest.raises(ConfigError, match=r"policy later: spec\.tasks\.code\.verification"):
            refuse(core, "later", late, only_code)
    assert list(core.controller.policies) == ["p"]


def test_a_policy_that_never_drafts_with_it_is_none_of_its_business(tokenizer: PreTrainedTokenizerFast) -> None:
    """What is at hand but not used biases nothing."""
    off = Dictated(("draft-model",), lambda n, size: [0] * size)
    off.max_depth = 0
    core = make_core(tokenizer, Coin(0.5), [Choosy(Coin(0.625))], {"p": (off, "rejection")})
    assert list(core.controller.policies) == ["p"]
