"""Any causal language model through transformers' own forward, behind the `Runner` protocol: correct before fast.

Each row has a cache of its own and rows run one after another. The cache keeps every token, also those that have left
a sliding window (the model's own masks hide them), so it can be cut back; that this is exact is tried out at load.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from adaptspec.arrays import BoolArray
from adaptspec.errors import ModelError
from adaptspec.models.attention import Span, additive
from adaptspec.models.kv_cache import BlockAllocator
from adaptspec.models.layers import Float32Head
from adaptspec.models.runner import Forward, ModelInfo, Packed, without_padding
from adaptspec.progress import report_progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # a type only here, and seconds to import

BLOCK = 16  # tokens; memory is only counted in blocks here, transformers allocates as it goes
TRIAL, KEPT = 10, 4  # tokens of the trial at load, and how many of them come before its first rollback
# How far logits may lie from those of one whole pass, of their own spread. Rounding takes up to 1e-5 of it in float32,
# and 2e-3 in 16 bits; a BERT, whose cached tokens have seen the drafts, is 0.5 off.
ROUNDING = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.1}
LAYERS, NORMS = ("layers", "h", "blocks"), ("norm", "final_layer_norm", "ln_f", "norm_f")  # as families call them
GROWING_ROPE = ("dynamic", "longrope")  # rotate differently once text is longer than what was trained first


class TransformersRunner:
    """One model with a `DynamicCache` per row; satisfies `Runner`."""

    def __init__(self, info: ModelInfo, model: PreTrainedModel, tokens: int) -> None:
        self.info = info
        self.device: torch.device = model.device
        self._model = model
        self._blocks = BlockAllocator(tokens // BLOCK, BLOCK)
        self._caches: dict[int, DynamicCache] = {}
        self._captured: tuple[int, ...] = ()

    @property
    def free_memory(self) -> float:
        return self._blocks.free_share

    def share_of(self, rows: Collection[int]) -> float:
        return self._blocks.share_of(rows)

    def reserve(self, row: int, length: int) -> bool:
        return self._blocks.reserve(row, length)

    def length(self, row: int) -> int:
        cache = self._caches.get(row)
        return 0 if cache is None else int(cache.get_seq_length())

    def capture_states(self, layers: Sequence[int]) -> None:
        """See `CapturingRunner`."""
        self._captured = tuple(layers)

    def truncate(self, row: int, length: int) -> None:
        """See `Runner.truncate`."""
        surplus = self.length(row) - length
        if length == 0:
            self._caches.pop(row, None)
        elif surplus > 0:
            self._caches[row].crop(-surplus)  # a negative number is how many to remove
        self._blocks.truncate(row, min(length, self.length(row)))

    def keep(self, row: int, base: int, places: Sequence[int]) -> None:
        """See `Runner.keep`."""
        if base + len(places) > 0:
            _keep(self._caches[row], base, places, self.device)
        self.truncate(row, base + len(places))

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        """See `Runner.copy_prefix`. The whole cache of `source` is copied, then cut."""
        length = min(length, self.length(source))
        if source != target:
            if not length or not self._blocks.reserve(target, length):
                return 0
            self._caches[target] = copy.deepcopy(self._caches[source])
        self.truncate(target, length)
        return length

    def free(self, row: int) -> None:
        self._caches.pop(row, None)
        self._blocks.free(row)

    @torch.inference_mode()
    def forward(self, packed: Packed) -> Forward:
        """See `Runner.forward`. They are inference tensors, to be changed in inference mode only."""
        parts = torch.split(torch.from_numpy(packed.tokens).to(self.device), packed.counts.tolist())
        rows = zip(packed.rows.tolist(), parts, packed.wanted.tolist(), packed.seen or [None] * len(parts), strict=True)
        results = [self._run(*row) for row in rows]
        logits = without_padding(torch.cat([one.logits for one in results]), self.info.drawn_tokens)
        states = [one.hidden_states for one in results if one.hidden_states is not None]
        return Forward(logits, torch.cat(states) if states else None)

    def _run(self, row: int, tokens: torch.Tensor, wanted: int, seen: BoolArray | None) -> Forward:
        report_progress()
        self._blocks.require(row, self.length(row) + len(tokens))
        cache = self._caches.setdefault(row, DynamicCache())
        with _states(self._model, self._captured) as states:
            logits = _logits(self._model, cache, tokens, wanted, seen)
        return Forward(logits, torch.cat(states, 1) if states else None)


@contextmanager
def _states(model: PreTrainedModel, captured: Sequence[int]) -> Iterator[list[torch.Tensor]]:
    """The inputs [N, hidden] of these layers in a forward pass (see `CapturingRunner.capture_states`)."""
    states: list[torch.Tensor] = []
    layers = _part(model, LAYERS) if captured else []

    def before(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states.append((args[0] if args else kwargs["hidden_states"])[0])

    def behind(_: object, __: object, out: Any) -> None:
        states.append((out[0] if isinstance(out, tuple) else out)[0])

    hooks = [layers[i].register_forward_pre_hook(before, with_kwargs=True) for i in captured if i < len(layers)]
    hooks += [layers[-1].register_forward_hook(behind) for i in captured if i == len(layers)]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def count_layers(model: PreTrainedModel, hidden: int) -> int:
    """Its layers, whose states are `hidden` numbers a token; ModelError if they are not, so that no head can read them.

    Tried out with a few tokens.
    """
    layers, text = _part(model, LAYERS), torch.arange(1, TRIAL + 1, device=model.device)
    with _states(model, (0, len(layers))) as states:
        _logits(model, DynamicCache(), text, 1)
    if [state.shape for state in states] != [(TRIAL, hidden)] * 2:
        raise ModelError(f"{type(model).__name__} keeps states of a kind that no head drafts from; use a draft model")
    return len(layers)


def last_norm(model: PreTrainedModel) -> Any:
    """The module behind its last layer; ModelError if it has none."""
    return _part(model, NORMS)


def _part(model: PreTrainedModel, names: Sequence[str]) -> Any:
    whole: Any = model
    part = next((part for name in names if (part := getattr(whole.get_decoder(), name, None)) is not None), None)
    if part is None:
        raise ModelError(f"{type(model).__name__} has no {names[0]} that a head could draft from; use a draft model")
    return part


def load_through_transformers(folder: Path, dtype: torch.dtype, device: torch.device) -> tuple[PreTrainedModel, int]:
    """The model, and the bytes that a token takes in its cache.

    Raises ModelError for what `AutoModelForCausalLM` does not know, or whose cache cannot be cut back.
    """
    model: Any = load_module(folder, dtype, device)
    head = model.get_output_embeddings()
    if dtype != torch.float32 and type(head) is torch.nn.Linear:
        model.set_output_embeddings(Float32Head(head))
    try:
        return model, _try_rollback(model)
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError) as error:
        raise ModelError(
            f"{folder}: {type(model).__name__} cannot be served: rejected drafts cannot be taken back from its cache "
            f"({type(error).__name__}: {' '.join(str(error).split())}), as with recurrent, linear-attention or "
            "convolution states; choose a model with attention in every layer"
        ) from error


def load_module(folder: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The model as `transformers` has it; ModelError for what it cannot load, or only by code that comes along."""
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        options = {"use_safetensors": True, "trust_remote_code": False, "output_loading_info": True}
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype, **options)
    except Exception as error:  # its code for each family raises whatever a strange config leads to
        raise ModelError(f"transformers cannot load {folder}: {error}") from error
    model, report = loaded
    for problem in ("missing_keys", "mismatched_keys"):
        if report.get(problem):
            raise ModelError(f"{folder}: {problem.replace('_', ' ')}: {list(report[problem])[:3]}; download it again")
    return cast("PreTrainedModel", model.to(device).eval())


def longest_context(config: Any) -> int:
    """Tokens up to which a model knows positions, and its rotations of cached tokens stay as they are."""
    longest = int(getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None) or 2048)
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for scaling in (settings, *(inner for inner in settings.values() if isinstance(inner, Mapping))):
        if (scaling.get("rope_type") or scaling.get("type")) in GROWING_ROPE:
            original = scaling.get("original_max_position_embeddings")
            longest = min(longest, original or getattr(config, "original_max_position_embeddings", None) or longest)
    return longest


def _logits(
    model: PreTrainedModel, cache: DynamicCache, tokens: torch.Tensor, wanted: int, seen: BoolArray | None = None
) -> torch.Tensor:
    """Logits [wanted, vocab] of the last of `tokens` in float32; the cache grows by all of them.

    `seen` as in `Packed`.
    """
    # 0 would mean every position to transformers, so at least one is asked for, where a model can be asked.
    keep = max(wanted, 1)
    asked: dict[str, Any] = {"logits_to_keep": keep} if "logits_to_keep" in signature(model.forward).parameters else {}
    if seen is not None:
        start = cache.get_seq_length()
        asked |= _branching(model, Span(0, start, start + len(tokens), seen))
    out = model(tokens[None], past_key_values=cache, use_cache=True, **asked)
    logits: torch.Tensor = out.logits[0, -keep:].float()
    return logits[keep - wanted :]


@torch.inference_mode()
def _try_rollback(model: PreTrainedModel) -> int:
    """Read a text with drafts in between that are taken back: it must be as if they had never been there.

    Returns the bytes that a token takes in the cache. A model that cannot do it raises what it likes, or ValueError.
    """
    text, cache = torch.arange(1, TRIAL + 1, device=model.device), DynamicCache()
    _logits(model, cache, torch.cat([text[:KEPT], text[:3]]), 0)
    cache.crop(-3)  # a negative number is how many to remove
    parts = [_logits(model, cache, text[KEPT : KEPT + 1], 1)]
    _logits(model, cache, text[-2:], 2)
    cache.crop(-2)
    parts.append(_logits(model, cache, text[KEPT + 1 :], TRIAL - KEPT - 1))
    if cache.get_seq_length() != TRIAL:
        raise ValueError(f"its cache holds {cache.get_seq_length()} of {TRIAL} tokens")
    off = _off(torch.cat(parts), _logits(model, DynamicCache(), text, TRIAL - KEPT))
    if not off <= ROUNDING[model.dtype]:
        raise ValueError(f"logits are {off:.1%} off after a rollback")
    layers: list[Any] = cache.layers
    held: list[torch.Tensor | None] = [part for layer in layers for part in (layer.keys, layer.values)]
    return sum(part.nbytes for part in held if part is not None) // TRIAL


def _off(mine: torch.Tensor, its: torch.Tensor) -> float:
    """How far logits lie from those they should be, of the spread of these."""
    return float((mine - its).norm() / (its - its.mean(-1, keepdim=True)).norm())


@torch.inference_mode()
def can_branch(model: PreTrainedModel) -> bool:
    """Whether the model takes trees: masks and positions from outside, tried out with two branches of a text.

    A family that computes positions from the mask itself (ALiBi) or attends in chunks does not; drafts stay chains.
    """
    text, wrong = (
        torch.arange(1, TRIAL + 1, device=model.device),
        torch.arange(TRIAL + 1, TRIAL + 3, device=model.device),
    )
    cache, base = DynamicCache(), KEPT + 1
    # After the newest token two branches of two tokens each, of which the second is the text.
    nodes = torch.stack([wrong, text[base : base + 2]], dim=1).flatten()
    seen = np.array(
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 1]], dtype=np.bool_
    )
    try:
        _logits(model, cache, text[:KEPT], 0)
        parts = [_logits(model, cache, torch.cat([text[KEPT:base], nodes]), 5, seen)[[0, 2, 4]]]
        _keep(cache, base, [1, 3], model.device)
        parts.append(_logits(model, cache, text[base + 2 :], TRIAL - base - 2))
        return _off(torch.cat(parts), _logits(model, DynamicCache(), text, TRIAL - KEPT)) <= ROUNDING[model.dtype]
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError):
        return False


def _branching(model: PreTrainedModel, span: Span) -> dict[str, Any]:
    """What tells a model who sees whom in `span`: positions, and a mask for each kind of its layers.

    transformers takes a mask [1, 1, new, cached] as it is, so the mask has to know windows too.
    """
    config: Any = model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention" if window is None else "sliding_attention"])
    windows = {"full_attention": None, "sliding_attention": window}
    masks = {
        kind: additive(span.visible(0, windows[kind]), 1)[None, None].to(model.device, model.dtype) for kind in kinds
    }
    positions = torch.from_numpy(span.positions)[None].to(model.device)
    return {"position_ids": positions, "attention_mask": masks if len(masks) > 1 else masks.popitem()[1]}


def _keep(cache: DynamicCache, base: int, places: Sequence[int], device: torch.device) -> None:
    """Of the tokens from `base` on those at `places` stay (see `Runner.keep`)."""
    kept = torch.tensor([*range(base), *(base + place for place in places)], device=device)
    layers: list[Any] = cache.layers
    for layer in layers:
        if layer.is_initialized:  # a layer that shares another's keys holds none
            layer.keys, layer.values = layer.keys.index_select(-2, kept), layer.values.index_select(-2, kept)
