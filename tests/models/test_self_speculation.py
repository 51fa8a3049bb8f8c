"""A model's first layers draft for it, or a layer for it in its own files: weights are shared."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from adaptspec.config import EngineConfig
from adaptspec.engine.build import build
from adaptspec.engine.load_models import decoder, load_models
from adaptspec.errors import ConfigError
from adaptspec.models.loading import MakeDecoder
from tests.conftest import MakeModel
from tests.exactness.worlds import reference_decoder

CONFIG = EngineConfig(policy=("static-3",), device="cpu", max_num_seqs=4)


@pytest.mark.parametrize(("make", "dtype"), [(decoder, "float32"), (reference_decoder, "bfloat16")])
def test_no_weight_is_held_twice(make: MakeDecoder, dtype: str) -> None:
    """The first layers are the target's own tensors, and so are its norm and head; on a device, too."""
    config = replace(CONFIG, draft="first-layers:2", max_model_len=64, dtype=dtype)
    target, draft = load_models(config, 3, make=make)
    assert draft is not None
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


@pytest.mark.parametrize("name", ["first-layers:0", "first-layers:2", "first-layers:x", "first-layers:"])
def test_layers_that_there_are_not_are_refused(make_model: MakeModel, name: str) -> None:
    with pytest.raises(ConfigError, match="of the model's 2 layers 1 to 1 can draft"):
        build(replace(CONFIG, model=str(make_model("llama")), draft=name))
