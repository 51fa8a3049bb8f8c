"""Heads of one pass a draft: layouts of the projects that they come from, Medusa as it is written down."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob
from adaptspec.models.heads.block import BlockRunner, MedusaRunner
from adaptspec.models.heads.formats import load_head
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.loading import load_model
from adaptspec.models.processors import SamplingRow
from adaptspec.models.sampling import SamplingBatch
from adaptspec.request import SamplingParams
from tests.conftest import MakeModel
from tests.models.heads.golden import HEADS, Text, golden_target, head_of
from tests.models.packing import TOLERANCE, pack
from tests.models.test_runner import states_of

HIDDEN, VOCAB = 16, 260


def test_the_layout_of_dflashs_own_project(make_model: MakeModel, tmp_path: Path) -> None:
    """A Qwen 3 config with a `dflash_config`, layers counted by what comes out of them; none of its code runs."""
    folder = tmp_path / "z"
    copytree(HEADS / "dflash", folder)
    raw = json.loads((folder / "config.json").read_text())
    described = {
        **raw["transformer_layer_config"],
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": raw["block_size"],
        "draft_vocab_size": raw["draft_vocab_size"],
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": [i - 1 for i in raw["aux_hidden_state_layer_ids"]]},
    }
    (folder / "config.json").write_text(json.dumps(described))
    target = golden_target(make_model)
    own, saved = load_head(str(folder), target), load_head(str(HEADS / "dflash"), target)
    texts = [Text(head.runner(CacheLimits(2, context=64)), "dflash") for head in (own, saved)]  # type: ignore[arg-type]
    for text in texts:
        text.hear(9)
        assert list(text.runner.layers) == [1, 3]
    for upto in (10, 11, 12):
        torch.testing.assert_close(texts[0].read(upto), texts[1].read(upto), rtol=0, atol=0)


def medusa(folder: Path, own: bool, heads: int = 3) -> dict[str, torch.Tensor]:
    """A Medusa of random weights by the names of its project, or by vLLM's."""
    torch.manual_seed(2)
    names = ("blocks.{}.layers.0", "lm_heads.{}") if own else ("{}.0.linear", "{}.1")
    tensors = {}
    for i in range(heads):
        tensors[f"{names[0].format(i)}.weight"] = torch.randn(HIDDEN, HIDDEN) * 0.3
        tensors[f"{names[0].format(i)}.bias"] = torch.randn(HIDDEN) * 0.3
        tensors[f"{names[1].format(i)}.weight"] = torch.randn(VOCAB, HIDDEN)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    about: dict[str, Any] = {"medusa_num_heads": heads, "medusa_num_layers": 1}
    if own:
        about = {"model_type": "medusa", "num_heads": heads, "num_hidden_layers": 1, "hidden_size": HIDDEN}
    (folder / "config.json").write_text(json.dumps(about))
    return tensors


@pytest.mark.parametrize("own", [False, True], ids=["its project's", "vllm's"])
def test_medusa_guesses_from_the_last_state(make_model: MakeModel, tmp_path: Path, own: bool) -> None:
    """Head i: h + silu(W h + b), and a vocabulary of its own; h is the target's state behind its last norm."""
    tensors = medusa(tmp_path / "medusa", own)
    place = make_model("llama", hidden_size=HIDDEN, num_hidden_layers=4)
    runner = load_head(str(tmp_path / "medusa"), golden_target(make_model)).runner(CacheLimits(2, context=64))
    assert isinstance(runner, MedusaRunner)
    text = [5, 9, 30, 31, 77, 12]
    states = states_of(place, text[:-1], layers=(4,))
    runner.heard(pack((0, text[:-1], 0)), [0], states)
    norm = load_file(place / "model.safetensors")["model.norm.weight"]
    last = F.rms_norm(states[-1], (HIDDEN,), norm, 1e-6)
    assert runner.reserve(0, 20)
    found = [runner.forward(pack((0, text, 1)))[0]]
    found += [runner.forward(pack((0, [token], 1)))[0] for token in (40, 41)]
    names = ("blocks.{}.layers.0", "lm_heads.{}") if own else ("{}.0.linear", "{}.1")
    for i, logits in enumerate(found):
        inner, outer = names[0].format(i), names[1].format(i)
        hidden = last + F.silu(last @ tensors[f"{inner}.weight"].T + tensors[f"{inner}.bias"])
        torch.testing.assert_close(logits, hidden @ tensors[f"{outer}.weight"].T, **TOLERANCE)


def test_a_draft_ends_with_the_block(make_model: MakeModel, tmp_path: Path) -> None:
    """Whoever asks for more gets what one pass has drafted."""
    runner = head_of(make_model, "dflash", tmp_path)
    assert isinstance(runner, BlockRunner)
    text = Text(runner, "dflash")
    text.hear(6)
    row = SamplingRow(SamplingParams(temperature=0.0), 0, text.tokens[:7], 7, ())
    sampling = SamplingBatch([row], VOCAB, torch.device("cpu"))
    job = DraftJob(np.zeros(1, dtype=np.int64), [row.tokens], np.array([9]), sampling)
    assert DraftModelDrafter(runner).propose(job).counts.tolist() == [3]


def test_a_pass_of_all_slots_finds_room_up_to_the_contexts_end(make_model: MakeModel, tmp_path: Path) -> None:
    """However few of them are asked for, or there are still places for."""
    folder = tmp_path / "peagle"
    copytree(HEADS / "peagle", folder)
    raw = json.loads((folder / "config.json").read_text())
    raw["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 8
    (folder / "config.json").write_text(json.dumps(raw))
    runner = load_head(str(folder), golden_target(make_model)).runner(CacheLimits(1, context=20, block_size=4))
    text = Text(runner, "peagle")  # type: ignore[arg-type]
    text.tokens = text.tokens[:20]
    for upto in range(6, 20):
        text.hear(upto)
        assert text.read(upto + 1).shape == (VOCAB,)
        runner.truncated(0, upto)  # type: ignore[attr-defined]


def test_medusa_is_timed_in_the_targets_own_numbers(make_model: MakeModel, tmp_path: Path) -> None:
    """A row that no target has read is profiled in 16 bits, too."""
    medusa(tmp_path / "medusa", own=True)
    target = load_model(str(make_model("llama", hidden_size=HIDDEN, num_hidden_layers=4)), dtype="bfloat16")
    runner = load_head(str(tmp_path / "medusa"), target).runner(CacheLimits(2, context=64))
    assert runner.reserve(0, 8)
    assert runner.forward(pack((0, [5, 6, 7], 1))).dtype == torch.float32
