"""Training the draft model between requests: it drafts better afterwards, and no text depends on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from adaptspec.control.cost import CostTable
from adaptspec.engine.assembly import build
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.draft_learner import fell, rose
from adaptspec.engine.engine_config import BUNDLED, EngineConfig, model_place
from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ConfigError
from adaptspec.request import Request, SamplingParams
from tests.engine.policies import COSTS
from tests.exactness.harness import answers

CONFIG = EngineConfig(policies=("static-3",), device="cpu", threads=1, limits=EngineLimits(max_rows=4))
ASKED = ("Tell me a story about {}.", "Write an email to a friend about {}.", "Make a CSV table of {}.")
SUBJECTS = (
    *("a small fox", "the moon", "two old friends", "a broken clock", "my garden", "rain", "a lost dog", "the sea"),
    *("birds", "a train to Paris", "bread", "a brave girl", "winter", "the market", "a red car", "music"),
    *("a secret door", "school", "the blue house", "a long walk", "cakes", "a robot", "the king", "summer"),
)


def damaged(folder: Path) -> Path:
    """The bundled draft with noise on its weights."""
    copytree(model_place(BUNDLED, "draft"), folder)
    random, path = torch.Generator().manual_seed(0), folder / "model.safetensors"
    noisy = {
        name: one + 0.5 * one.float().std() * torch.randn(one.shape, generator=random) if one.ndim == 2 else one
        for name, one in load_file(path).items()
    }
    save_file(noisy, path, {"format": "pt"})
    return folder


@pytest.mark.whole
def test_a_damaged_draft_is_mended_while_serving(tmp_path: Path) -> None:
    """More is accepted of the second half of the requests than without training; the texts are the same."""
    draft, texts, rates = str(damaged(tmp_path / "draft")), [], []
    for learns in (False, True):
        config = replace(CONFIG, draft=draft, learn_draft=learns)
        built = build(config, costs=lambda *_: CostTable(COSTS))
        sampling = SamplingParams(max_tokens=48, temperature=0.0, ignore_eos=True)
        prompts = [one.format(what) for what in SUBJECTS for one in ASKED]
        done = []
        for number, prompt in enumerate(prompts):
            request = Request(f"r{number}", tuple(built.tokenizer.encode(prompt)), sampling)
            done.append(answers(built.core, [request])[request.id])
            while built.spare():
                pass
        late = [one.stats for one in done[len(done) // 2 :]]
        texts.append([one.tokens for one in done])
        rates.append(sum(one.accepted for one in late) / sum(one.drafted for one in late))
        assert built.pair.endswith("+learning") == learns, "what policies learned holds for other weights"
    assert texts[0] == texts[1]
    assert rates[1] > 1.5 * rates[0]


@pytest.mark.parametrize(
    ("draft", "why"), [(None, "there is no draft model that reads"), ("quantized:int8", "by weights that it shares")]
)
def test_drafts_that_cannot_be_trained_are_named(draft: str | None, why: str, target_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--learn-draft trains Llama-like draft models .* {why}"):
        build(replace(CONFIG, model=str(target_path), draft=draft, policies=("off",), learn_draft=True))
    with pytest.raises(ConfigError, match="learn_draft trains between the requests of a server; leave it out here"):
        Engine.from_config(replace(CONFIG, learn_draft=True))


def test_judgements_err_as_seldom_as_they_say() -> None:
    """Without any difference at most one in twenty updates is taken for better, or for worse; a real one is seen."""
    random = np.random.default_rng(0)
    tasks = [("p", name) for name in ("code", "story", "chat")]

    def rates(count: int, shift: float) -> list[tuple[tuple[str, str | None], float]]:
        kinds = random.integers(3, size=count)
        return [(tasks[kind], random.normal(0.3 + 0.3 * kind + shift, 0.1)) for kind in kinds]

    def judged(count: int, gain: float, drop: float) -> Any:
        each = range(count)
        better = np.mean([rose(random.normal(gain, 3, 16).tolist()) for _ in each])
        return np.array([better, np.mean([fell(rates(40, drop), rates(40, 0)) for _ in each])])

    assert (judged(1000, 0.0, 0.0) < 0.07).all()
    assert (judged(200, 2.0, 0.1) > 0.75).all()
