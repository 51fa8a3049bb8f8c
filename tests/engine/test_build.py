"""Putting an engine together: what is chosen when left out, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.engine.build import EngineConfig, build
from adaptspec.engine.core import Limits
from adaptspec.engine.engine import Engine
from adaptspec.errors import ConfigError, ModelError, PairError, PolicyError
from adaptspec.types import SamplingParams, SpeculationParams

SMALL = Limits(max_rows=2)
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_pair_and_its_shipped_policies(target_path: Path, draft_path: Path) -> None:
    """All shipped policies can be asked for by name, and every one gives the same greedy text."""
    engine = Engine.from_config(EngineConfig(str(target_path), str(draft_path), limits=SMALL))
    assert engine.core.default_policy == "goodput"
    assert {"off", "static-3", "goodput-ngram", "sglang-ema", "vllm-batch-table"} <= set(engine.core.policies)
    outputs = {
        policy: engine.generate(["Hello there"], GREEDY, SpeculationParams(policy=policy))[0].tokens
        for policy in engine.core.policies
    }
    assert len(set(outputs.values())) == 1, outputs


def test_without_a_draft_model_lookup_is_the_default(target_path: Path) -> None:
    """Left out, the draft of a model of one's own is none, and policies that need one are not offered."""
    engine = Engine.from_config(EngineConfig(str(target_path), limits=SMALL))
    assert engine.core.default_policy == "goodput-ngram"
    assert "goodput" not in engine.core.policies
    assert "off" in engine.core.policies
    assert len(engine.generate(["Hello"], GREEDY)[0].tokens) == 12


def test_a_policy_of_ones_own_comes_from_its_file(target_path: Path, draft_path: Path, tmp_path: Path) -> None:
    """A YAML path is as good as a shipped name."""
    file = tmp_path / "mine.yaml"
    file.write_text(
        "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\n"
        "spec: {choose: {algorithm: static, depth: 2}}\n"
    )
    config = EngineConfig(str(target_path), str(draft_path), (str(file),), limits=SMALL)
    done = Engine.from_config(config).generate(["Hello"], GREEDY)[0]
    assert done.stats.policy == "mine"
    assert done.stats.drafted > 0


def test_a_policy_without_its_drafter_says_what_to_load(target_path: Path) -> None:
    """Missing draft: the message names the policy, the drafter and the way out."""
    with pytest.raises(ConfigError, match=r"goodput drafts with draft-model.*--draft"):
        build(EngineConfig(str(target_path), policies=("goodput",), limits=SMALL))


def test_tokenizers_that_differ_are_refused(target_path: Path, draft_path: Path, tmp_path: Path) -> None:
    """A draft with another vocabulary cannot draft; the error says so before anything runs."""
    other = tmp_path / "other"
    other.mkdir()
    for file in draft_path.iterdir():
        text = file.read_bytes()
        (other / file.name).write_bytes(text.replace(b'"a"', b'"aa"') if file.name == "tokenizer.json" else text)
    with pytest.raises(PairError, match="cannot draft for"):
        build(EngineConfig(str(target_path), str(other), limits=SMALL))


def test_unknown_policies_and_models_are_named(target_path: Path, tmp_path: Path) -> None:
    """Typos get a suggestion; a directory that is no model says what is missing."""
    with pytest.raises(PolicyError, match="did you mean goodput"):
        build(EngineConfig(str(target_path), policies=("goodputt",), limits=SMALL))
    with pytest.raises(ModelError, match=r"config\.json"):
        build(EngineConfig(str(tmp_path), limits=SMALL))
