"""The layer for multi-token prediction of a target that transformers runs, by its own module: DeepSeek's, GLM's.

It lies in the target's files behind its last layer (`model.layers.N.eh_proj`), and is of that layer's kind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import transformers
from transformers import DynamicCache

from adaptspec.errors import ModelError
from adaptspec.models.attention import Span, additive
from adaptspec.models.config import DecoderConfig
from adaptspec.models.heads.eagle import EagleRunner, EagleWeights, Fusion
from adaptspec.models.heads.hearing import Text
from adaptspec.models.heads.target_ends import TargetEnds
from adaptspec.models.kv_cache import CacheShape, KVCache
from adaptspec.models.layers import Linear
from adaptspec.models.loading import DTYPES, LoadedModel
from adaptspec.models.runner import ModelInfo

TRIAL = 2  # tokens that are read at load, to see what they take


class MtpModuleRunner(EagleRunner):
    """A cache of transformers per row; rows run one after another. Of its own cache it has the bookkeeping alone."""

    def __init__(
        self, info: ModelInfo, config: DecoderConfig, weights: EagleWeights, cache: KVCache, module: Any
    ) -> None:
        super().__init__(info, config, weights, cache)
        self._module = module
        self._caches: dict[int, DynamicCache] = {}

    def _cut(self, row: int, text: Text, length: int) -> None:
        super()._cut(row, text, length)
        cache = self._caches.get(row)
        surplus = 0 if cache is None else cache.get_seq_length() - max(0, length - self.shift)
        if cache is not None and surplus == cache.get_seq_length():
            del self._caches[row]
        elif cache is not None and surplus > 0:
            cache.crop(-surplus)  # a negative number is how many to remove

    def _uncache(self, row: int) -> None:
        super()._uncache(row)
        self._caches.pop(row, None)

    def _pass(self, tokens: torch.Tensor, states: torch.Tensor, spans: list[Span], wanted: list[int]) -> torch.Tensor:
        sizes, behind = [span.size for span in spans], []
        parts = zip(spans, torch.split(tokens, sizes), torch.split(states, sizes), wanted, strict=True)
        for span, own, told, count in parts:
            out = _step(self._module, self._caches.setdefault(span.row, DynamicCache()), span, own, told)
            behind.append(out[span.size - count :])
        return torch.cat(behind)


def load_mtp_module(target: LoadedModel) -> LoadedModel:
    """That of this target, which transformers runs. Raises ModelError: it has none, or one of another kind."""
    module = _module(target)
    ends, dtype, model = TargetEnds.of(target), DTYPES[target.info.dtype], "mtp"
    layers, plain = ends.config.layers, torch.nn.Identity()  # its own norms are the module's
    weights = EagleWeights(
        ends.embedding,
        Fusion(ends.norm(), (), None),
        plain,
        plain,
        None,
        (),
        plain,
        Linear.of(ends.head().t(), copied=False),
        None,
        (layers,),
        norm_output=True,
    )
    cache = DynamicCache()
    states = torch.zeros(TRIAL, ends.config.hidden, dtype=dtype, device=target.device)
    try:
        with torch.inference_mode():
            _step(module, cache, Span(0, 0, TRIAL), torch.arange(TRIAL, device=target.device), states)
    except Exception as error:  # a module of another kind
        raise ModelError(
            f"{target.folder}: its layer for multi-token prediction cannot be run here "
            f"({type(error).__name__}: {error}); use another draft"
        ) from error
    held: Any = cache.layers
    info = replace(
        target.info,
        name=model,
        architecture=model,
        parameters=sum(part.numel() for part in module.layers.parameters()),
        fingerprint=f"{target.info.fingerprint}-{model}",
        deepest=None,
    )
    counted = CacheShape(1, 1, 1)
    return LoadedModel(
        target.folder,
        info,
        target.device,
        sum(part.nbytes for layer in held for part in (layer.keys, layer.values)) // TRIAL,
        lambda info, plan: MtpModuleRunner(
            info, ends.config, weights, KVCache(counted, plan, dtype, target.device), module
        ),
        config=ends.config,
        hears=ends.config.hidden,
    )


def _module(target: LoadedModel) -> Any:
    main: Any = target.module
    name, make = type(main).__name__, getattr(transformers.modeling_layers, "MtpModel", None)
    config = main.config.get_text_config(decoder=True)
    number, last = getattr(config, "num_mtp_layers", None), config.num_hidden_layers
    kinds = set(getattr(config, "mtp_layer_types", None) or ["full_attention"])
    if make is None or number != 1 or kinds != {"full_attention"}:
        raise ModelError(
            f"{target.folder}: layers for multi-token prediction of {name} are not computed here "
            f"({number or 'none known'}, {', '.join(sorted(kinds))}); one of full attention is, with transformers 5.23"
        )
    main._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{last}\."]  # by which it finds them in the files
    try:
        return make.from_pretrained(main).to(target.device).eval()
    except Exception as error:  # its code raises whatever strange files lead to
        raise ModelError(
            f"{target.folder} brings no layer for multi-token prediction that transformers loads "
            f"({type(error).__name__}: {' '.join(str(error).split())[:400]}); use another draft"
        ) from error


def _step(module: Any, cache: DynamicCache, span: Span, tokens: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """States [n, hidden] behind the layer and its norm, of tokens [n] and the states before them."""
    embedded, positions = module.embed_tokens(tokens)[None], torch.from_numpy(span.positions)[None].to(tokens.device)
    out: torch.Tensor = module.layers[0](
        embedded,
        states[None],
        position_embeddings=module.rotary_emb(embedded, position_ids=positions),
        attention_mask=additive(span.visible(0, None), 1)[None, None].to(embedded.device, embedded.dtype),
        position_ids=positions,
        past_key_values=cache,
    )
    return out[0]
