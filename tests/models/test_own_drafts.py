"""A model's first layers draft for it, or a layer for it in its own files: text stays, and weights are shared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file, save_file

from adaptspec.control.cost import CostTable
from adaptspec.engine import assembly, model_set
from adaptspec.engine.assembly import build
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig, model_place
from adaptspec.engine.model_set import decoder
from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ConfigError
from adaptspec.gpu.device_decoder import device_decoder
from adaptspec.models.own_drafts import is_own
from adaptspec.request import SamplingParams
from tests.conftest import MakeModel
from tests.engine.policies import COSTS
from tests.engine.test_heads import GREEDY, PROMPTS, SAMPLED


@pytest.fixture(autouse=True)
def _cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "warm_up", lambda *_: None)


CONFIG = EngineConfig(policies=("static-3",), device="cpu", limits=EngineLimits(max_rows=4))


def texts(config: EngineConfig, sampling: SamplingParams) -> tuple[list[tuple[int, ...]], int]:
    """Of the prompts, and how many tokens were drafted."""
    built = build(config, costs=lambda *_: CostTable(COSTS))
    answers = Engine(built.core, built.tokenizer).generate(PROMPTS, sampling)
    return [one.tokens for one in answers], sum(one.stats.drafted for one in answers)


@pytest.mark.parametrize(("family", "make"), [("llama", decoder), ("qwen3", decoder), ("llama", device_decoder)])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_first_layers_leave_the_text(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, family: str, make: object, sampling: SamplingParams
) -> None:
    """Beside other rows, on a CPU and by the code for devices."""
    monkeypatch.setattr(model_set, "decoder", make)
    config = replace(CONFIG, model=str(make_model(family, num_hidden_layers=4)), draft="first-layers:3")
    wanted, _ = texts(replace(config, draft=None, policies=("off",)), sampling)
    found, drafted = texts(config, sampling)
    assert found == wanted
    assert drafted


@pytest.mark.parametrize(("make", "dtype"), [(decoder, "float32"), (device_decoder, "bfloat16")])
def test_no_weight_is_held_twice(make: object, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layers are the target's own tensors, and so are its norm and head; on a device, too."""
    monkeypatch.setattr(model_set, "decoder", make)
    places = [model_place("bundled", "target")] * 2
    target, draft = model_set.load_models(
        replace(CONFIG, draft="first-layers:2", dtype=dtype, context=64), places, lambda: 3
    )
    mine, its = (set(map(id, flat(runner._weights))) for runner in (draft, target))  # type: ignore[attr-defined]
    assert mine
    assert mine < its
    assert draft.info.fingerprint != target.info.fingerprint


def flat(part: object) -> list[torch.Tensor]:
    """All tensors in weights."""
    if isinstance(part, torch.Tensor):
        return [part]
    inner = part if isinstance(part, tuple) else [getattr(part, name) for name in getattr(part, "__slots__", ())]
    return [tensor for one in inner for tensor in flat(one)]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_layer_in_the_targets_own_files_leaves_the_text(
    make_model: MakeModel, tmp_path: Path, sampling: SamplingParams
) -> None:
    """Loaded without a draft the model leaves it out."""
    folder = tmp_path / "target"
    copytree(make_model("qwen3"), folder)
    write_mtp(folder)
    wanted, _ = texts(replace(CONFIG, model=str(folder), draft=None, policies=("off",)), sampling)
    found, drafted = texts(replace(CONFIG, model=str(folder), draft="mtp"), sampling)
    assert found == wanted
    assert drafted


def write_mtp(folder: Path) -> None:
    """Add a random layer for multi-token prediction to a Qwen 3 of one file."""
    tensors = load_file(folder / "model.safetensors")
    hidden = tensors["model.norm.weight"].numel()
    norms = {
        f"mtp.{name}.weight": torch.ones(hidden) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    }
    layer = {
        name.replace("model.layers.0.", "mtp.layers.0."): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith("model.layers.0.")
    }
    save_file(
        tensors | norms | layer | {"mtp.fc.weight": torch.randn(hidden, 2 * hidden) / 8}, folder / "model.safetensors"
    )


@pytest.mark.parametrize("name", ["first-layers:0", "first-layers:2", "first-layers:x", "first-layers:"])
def test_layers_that_there_are_not_are_refused(make_model: MakeModel, name: str) -> None:
    with pytest.raises(ConfigError, match="of the model's 2 layers 1 to 1 can draft"):
        build(replace(CONFIG, model=str(make_model("llama")), draft=name))


def test_parts_of_the_target_are_told_from_folders() -> None:
    """A folder called mtp is ./mtp."""
    assert [is_own(name) for name in ("mtp", "first-layers:2", "quantized:int8")] == [True] * 3
    assert [is_own(name) for name in ("./mtp", "org/mtp", "first-layers")] == [False] * 3
