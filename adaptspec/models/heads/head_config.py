"""What a head's config.json says: which head it is of, and settings whose defaults differ from one layout to another.

What is said and not computed here is refused by name: left out, it would cost acceptance and show nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from adaptspec.errors import ModelError
from adaptspec.models.config import FAMILIES, DecoderConfig, count, inner, items, read_decoder_config, uncomputed

SPECULATORS = "speculators_model_type"  # in config.json of heads that the library `speculators` has saved
MARKOV_HEADS = ("vanilla", "gated", "rnn")
_SLIDING, _FULL = "sliding_attention", "full_attention"


def head_kind(raw: Mapping[str, Any]) -> str | None:
    """Which head a config.json is of, in `speculators`' words; None for a language model. Raises ModelError."""
    names = items(raw, "architectures", str)
    kind = raw.get(SPECULATORS)
    if kind is None and ("dflash_config" in raw or any(name.startswith("DFlash") for name in names)):
        second = any(name.startswith("DFlash2") for name in names)
        kind = "dflash2" if second else "dspark" if raw.get("markov_rank") else "dflash"
    elif kind is None and ("medusa_num_heads" in raw or raw.get("model_type") == "medusa"):
        kind = "medusa"
    elif kind is None and ("draft_vocab_size" in raw or any(name.endswith("Eagle3") for name in names)):
        kind = "eagle3"  # the first such heads call themselves Llama models of a vocabulary of their own
    return None if kind is None else str(kind)


def read_layers(folder: Path, raw: Mapping[str, Any], context: int) -> DecoderConfig:
    """A head's layers, in whichever layout, for positions up to `context`. Raises ModelError."""
    layers = inner(raw, "transformer_layer_config") if SPECULATORS in raw else {**raw, **inner(raw, "dflash_config")}
    if not layers:
        raise ModelError(f"{folder}: config.json has no transformer_layer_config; save the head again")
    if what := uncomputed(layers):
        raise ModelError(
            f"{folder}: config.json has {what}; heads have layers here as those of {', '.join(FAMILIES)} usually are: "
            "use another head, or a draft model"
        )
    # Positions are as far as the target's, whatever was trained.
    return read_decoder_config({**layers, "max_position_embeddings": context})


def norm_before_residual(folder: Path, raw: Mapping[str, Any]) -> bool:
    """Whether EAGLE's first layer adds to the normed state. Raises ModelError: vLLM and `speculators` would not agree.

    The first heads never did so. `speculators` always writes it, and takes False; vLLM takes True for EAGLE-3 alone.
    """
    said = raw.get("norm_before_residual", inner(raw, "eagle_config").get("norm_before_residual"))
    if said is None and raw.get(SPECULATORS) == "eagle3":
        raise ModelError(
            f"{folder}: config.json does not say norm_before_residual, for which vLLM takes true and `speculators` "
            "false; add it as the head was trained"
        )
    return bool(said)


class BlockAttention(NamedTuple):
    """By layer: see `DecoderConfig.windows` and `DFlashWeights`."""

    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    from_slots: bool


def block_attention(folder: Path, raw: Mapping[str, Any], config: DecoderConfig) -> BlockAttention:
    """What DFlash's slots see. Raises ModelError: it is not said, or libraries would not agree.

    In `speculators`' layout sliding layers alone may be causal. Elsewhere `is_causal` is of all layers, else `causal`,
    else those that slide by `layer_types` are; `use_swa` has all layers slide where none does by these.
    """
    windows = config.windows
    if SPECULATORS in raw:
        both = raw.get("sliding_window_non_causal")
        if both is None and any(windows):
            raise ModelError(
                f"{folder}: config.json does not say sliding_window_non_causal, for which vLLM takes true and "
                "`speculators` false; add it as the head was trained"
            )
        return BlockAttention(windows, tuple(window is not None and not both for window in windows), from_slots=False)
    said = {**raw, **inner(raw, "dflash_config")}
    kinds = items(said, "layer_types", str) or [_SLIDING if window else _FULL for window in windows]
    if len(kinds) != config.layers or not set(kinds) <= {_SLIDING, _FULL}:
        raise ModelError(f"{folder}: layer_types must name {_FULL} or {_SLIDING} for {config.layers} layers")
    slides = [kind == _SLIDING for kind in kinds]
    every = bool(said.get("use_swa")) and not any(slides)
    own = count(said, "swa_window_size") if said.get("swa_window_size") is not None else None
    if every and own is None:
        own = count(said, "sliding_window")
    if own is not None:
        windows = tuple(own if every or slide else None for slide in slides)
    causal = next((bool(said[name]) for name in ("is_causal", "causal") if said.get(name) is not None), None)
    return BlockAttention(windows, tuple(slides) if causal is None else (causal,) * len(windows), from_slots=True)


def markov_head_type(folder: Path, raw: Mapping[str, Any]) -> str:
    """Which of `MARKOV_HEADS`. Raises ModelError for another."""
    kind = raw.get("markov_head_type", "vanilla")
    if kind not in MARKOV_HEADS:
        raise ModelError(
            f"{folder}: markov_head_type is {kind!r}; there are: {', '.join(MARKOV_HEADS)}. Use another head"
        )
    return str(kind)
