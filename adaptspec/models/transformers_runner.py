"""Any causal language model through transformers' own forward, behind the `Runner` protocol: correct before fast.

Each row has a cache of its own and rows run one after another. Only models whose cache can be cut back exactly
are taken, and that is tried out at load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer

from adaptspec.errors import ModelError
from adaptspec.models.blocks import BlockAllocator
from adaptspec.models.checkpoint import eos_token_ids, fingerprint
from adaptspec.models.kv_cache import CacheShape
from adaptspec.models.memory import CacheLimits, plan_cache, require_room
from adaptspec.models.runner import ModelInfo, Packed

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # a type only here, and seconds to import

BLOCK = 16  # tokens; memory is only counted in blocks here, transformers allocates as it goes
PROBE = 6  # tokens of the trial run at load
UNSTABLE_ROPE = ("dynamic", "longrope")


class TransformersRunner:
    """One model with a `DynamicCache` per row; satisfies `Runner`."""

    def __init__(self, info: ModelInfo, model: PreTrainedModel, tokens: int) -> None:
        self._info = info
        self._model = model
        self._blocks = BlockAllocator(tokens // BLOCK, BLOCK)
        self._caches: dict[int, DynamicCache] = {}

    @property
    def info(self) -> ModelInfo:
        """What the model is."""
        return self._info

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        device: torch.device = self._model.device
        return device

    @property
    def free_memory(self) -> float:
        """See `Runner.free_memory`."""
        return self._blocks.free_share

    def reserve(self, row: int, length: int) -> bool:
        """Make room for `length` tokens in all in `row`."""
        return self._blocks.reserve(row, length)

    def length(self, row: int) -> int:
        """Tokens cached in `row`."""
        cache = self._caches.get(row)
        return 0 if cache is None else int(cache.get_seq_length())

    def truncate(self, row: int, length: int) -> None:
        """Forget the cached tokens from `length` on."""
        surplus = self.length(row) - length
        if length == 0:
            self._caches.pop(row, None)
        elif surplus > 0:
            self._caches[row].crop(-surplus)  # a negative number is how many to remove
        self._blocks.truncate(row, min(length, self.length(row)))

    def free(self, row: int) -> None:
        """Forget the row."""
        self._caches.pop(row, None)
        self._blocks.release(row)

    @torch.inference_mode()
    def forward(self, packed: Packed) -> torch.Tensor:
        """Logits [sum(wanted), vocab] in float32: an inference tensor, to be changed in inference mode only."""
        parts = torch.split(torch.from_numpy(packed.tokens).to(self.device), packed.counts.tolist())
        logits = [
            self._run(row, tokens, wanted)
            for row, tokens, wanted in zip(packed.rows.tolist(), parts, packed.wanted.tolist(), strict=True)
        ]
        return torch.cat(logits)

    def _run(self, row: int, tokens: torch.Tensor, wanted: int) -> torch.Tensor:
        require_room(self._blocks.reserve(row, self.length(row) + len(tokens)), row)
        cache = self._caches.setdefault(row, DynamicCache())
        # 0 would mean every position to transformers, so at least one is asked for.
        keep = max(wanted, 1)
        out = self._model(tokens[None], past_key_values=cache, use_cache=True, logits_to_keep=keep)
        logits: torch.Tensor = out.logits[0, -keep:].float()
        return logits[keep - wanted :]


@dataclass(frozen=True)
class TransformersWeights:
    """A model that transformers has loaded and that has no cache yet; satisfies `LoadedModel`."""

    folder: Path
    raw: Mapping[str, Any]
    model: PreTrainedModel
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """What one cached token takes."""
        return self._shape.bytes_per_token(self.dtype)

    def runner(self, limits: CacheLimits) -> TransformersRunner:
        """With a cache."""
        config = self._config
        longest = int(getattr(config, "max_position_embeddings", 2048))
        limits = replace(limits, block_size=BLOCK)
        plan = plan_cache(self.folder, self._shape, self.dtype, self.device, longest=longest, limits=limits)
        info = ModelInfo(
            name=self.folder.resolve().name,
            architecture=str(self.raw["model_type"]),
            parameters=self.model.num_parameters(),
            vocab_size=config.vocab_size,
            context=plan.context,
            fingerprint=fingerprint(self.folder),
            eos_token_ids=eos_token_ids(self.folder, self.raw, config.vocab_size),
            dtype=str(self.dtype).removeprefix("torch."),
        )
        return TransformersRunner(info, self.model, plan.tokens)

    @property
    def _config(self) -> Any:
        return self.model.config.get_text_config(decoder=True)

    @property
    def _shape(self) -> CacheShape:
        config = self._config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return CacheShape(config.num_hidden_layers, heads, head_dim)


def load_through_transformers(
    folder: Path, raw: Mapping[str, Any], dtype: torch.dtype, device: torch.device
) -> TransformersWeights:
    """Load with `AutoModelForCausalLM`; ModelError for what it does not know, or whose cache cannot be cut back."""
    _check_rope(folder, raw)
    model = _load(folder, dtype, device)
    _check_rollback(folder, model)
    return TransformersWeights(folder, raw, model, dtype, device)


def _load(folder: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # its code for each family raises whatever a strange config leads to
        raise ModelError(f"transformers cannot load {folder}: {error}") from error
    model, report = loaded
    for problem in ("missing_keys", "mismatched_keys"):
        if report.get(problem):
            raise ModelError(f"{folder}: {problem.replace('_', ' ')}: {list(report[problem])[:3]}; download it again")
    model.to(device).eval()
    return cast("PreTrainedModel", model)


def _check_rope(folder: Path, raw: Mapping[str, Any]) -> None:
    settings = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = settings.get("rope_type") or settings.get("type") if isinstance(settings, Mapping) else None
    if kind in UNSTABLE_ROPE:
        raise ModelError(
            f"{folder}: RoPE scaling {kind!r} rotates differently as text grows, so cached tokens cannot be kept "
            "exactly; remove the scaling to use the model within its original context"
        )


@torch.inference_mode()
def _check_rollback(folder: Path, model: PreTrainedModel) -> None:
    """Try a rollback: a model with recurrent state, or a cache that forgets, cannot do it."""
    hint = f"{folder}: {type(model).__name__} cannot be served"
    declared = DynamicCache(config=model.config)
    if any(type(layer) is not DynamicLayer for layer in declared.layers):
        raise ModelError(f"{hint}: its cache keeps a sliding window or a recurrent state, which cannot be rolled back")
    tokens = torch.arange(1, PROBE + 1, device=model.device)[None]
    cache = DynamicCache()
    try:
        whole = model(tokens, past_key_values=cache, use_cache=True).logits[0, -1]
        cache.crop(-PROBE // 2)
        grown = cache.get_seq_length()
        again = model(tokens[:, grown:], past_key_values=cache, use_cache=True).logits[0, -1]
    except (TypeError, ValueError, AttributeError, RuntimeError, NotImplementedError, IndexError) as error:
        raise ModelError(f"{hint}: it does not work with an ordinary key-value cache ({error})") from error
    exact = grown == PROBE - PROBE // 2 and cache.get_seq_length() == PROBE
    if not exact or not torch.allclose(whole.float(), again.float(), atol=0.1, rtol=0.02):
        raise ModelError(f"{hint}: its cache does not come back exactly after a rollback")
