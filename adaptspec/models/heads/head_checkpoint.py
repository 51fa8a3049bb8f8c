"""Loads heads: which head a config.json describes, and its tensors by the names of either layout.

There are two layouts: that of the library `speculators`, and those of the projects that the heads come from. A setting
that is not computed here is refused by name: left out, it would cost acceptance and show nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from adaptspec.errors import ModelError
from adaptspec.models.config import (
    FAMILIES,
    MOST_LAYERS,
    DecoderConfig,
    count,
    inner,
    items,
    read_decoder_config,
    uncomputed,
)
from adaptspec.models.gguf import is_gguf
from adaptspec.models.heads.block_heads import DFlashHead, DFlashWeights, MedusaHead, MedusaWeights
from adaptspec.models.heads.head_runner import Fusion, HeadRunner, HeadSpec
from adaptspec.models.heads.recurrent_head import RecurrentHead, RecurrentWeights
from adaptspec.models.heads.target_tensors import TargetTensors
from adaptspec.models.kv_cache import CachePlan, CacheShape, KVCache
from adaptspec.models.layers import Embedding, Linear, RmsNorm, computed_in, head_linear, linear
from adaptspec.models.loading import DTYPES, LoadedModel
from adaptspec.models.model_files import CONFIG, MASK_EMBEDDING, fingerprint, read_json
from adaptspec.models.runner import ModelInfo
from adaptspec.models.source import find_model
from adaptspec.models.weights import MTP, WeightReader, read_pickle

SPECULATORS = "speculators_model_type"  # in config.json of heads that the library `speculators` has saved
_SLIDING, _FULL = "sliding_attention", "full_attention"
_BLOCK = 8  # tokens of DFlash's blocks if config.json does not state them
# Tensors of training, and copies of others.
_IGNORED = (
    "t2d",
    "rotary_emb.inv_freq",
    "verifier_norm.weight",
    "verifier_lm_head.weight",
)
# Multi-token prediction: the norms of token and state, what joins them, the layer, its norm.
_MTP_NAMES = tuple(
    f"mtp_layers.0{part}" for part in (".token_layernorm", ".hidden_layernorm", ".input_proj", "", ".final_layernorm")
)
_OWN_MTP_NAMES = tuple(
    f"{MTP}{part}" for part in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "layers.0", "norm")
)
_READ_LAST = ("medusa", "mtp")  # kinds that read what enters the target's final norm
_REFUSED: Mapping[str, str] = {
    "peagle": "P-EAGLE heads cannot draft here; use an EAGLE-3 or DFlash head of the same target",
    "dspark": "DSpark heads cannot draft here: their Markov head is not computed; use a DFlash or EAGLE-3 head of the "
    "same target",
}


class HeadMakers(NamedTuple):
    """The classes for the device of a head: its cache, and a head that runs token by token."""

    cache: Callable[[CacheShape, CachePlan, torch.dtype, torch.device], KVCache]
    recurrent: Callable[[ModelInfo, HeadSpec, DecoderConfig, RecurrentWeights, KVCache], RecurrentHead]


PLAIN_HEADS = HeadMakers(KVCache, RecurrentHead)


class Head(NamedTuple):
    """A head without its cache: the cache's shape, how to make its runner, and the most tokens that it drafts."""

    shape: CacheShape
    make: Callable[[ModelInfo, KVCache], HeadRunner]
    max_depth: int | None


def is_head(path_or_hub_id: str) -> bool:
    """Whether a directory or hub id holds a head."""
    found = find_model(path_or_hub_id, gguf=True)
    return not is_gguf(found) and head_kind(read_json(found / CONFIG)) is not None


def head_kind(raw: Mapping[str, Any]) -> str | None:
    """The kind of head of a config.json, in `speculators`' words; None for a language model. Raises ModelError."""
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


def load_head(
    path_or_hub_id: str, target: LoadedModel, *, pickles: bool = False, makers: HeadMakers = PLAIN_HEADS
) -> LoadedModel:
    """A head for this target, in its dtype and on its device; `pickles` of plain tensors are read if allowed.

    The head in the target's own folder is its layer for multi-token prediction. `makers` are those for the device.

    Raises ModelError: it cannot be used, or belongs to another target.
    """
    folder = find_model(path_or_hub_id, pickles=pickles)
    raw = read_json(folder / CONFIG)
    own = folder == target.folder
    if own and target.module is not None:
        raise ModelError(
            f"{folder} is run by transformers, where its layer for multi-token prediction cannot draft; use an EAGLE-3 "
            "head, a draft model, or leave --draft out and take a policy that drafts from the text"
        )
    kind = "mtp" if own else str(head_kind(raw))
    if kind in _REFUSED:
        raise ModelError(f"{folder}: {_REFUSED[kind]}")
    if kind not in _LOADERS:
        raise ModelError(f"{folder}: heads of kind {kind} cannot draft here; there are: {', '.join(_LOADERS)}")
    files = HeadFiles(folder, raw, target, kind, pickles=pickles, makers=makers)
    head = _LOADERS[kind](files)
    files.reader.finish(_IGNORED, other_models=("model.", "lm_head.") if own else ())
    info = replace(
        target.info,
        name=kind if own else folder.resolve().name,
        architecture=kind,
        parameters=files.reader.parameters,
        fingerprint=fingerprint(folder, pickles=pickles) + f"-{kind}" * own,
        deepest=head.max_depth,
    )
    return LoadedModel(
        folder,
        info,
        target.device,
        head.shape.bytes_per_token(files.computed),
        lambda info, plan: head.make(info, makers.cache(head.shape, plan, files.computed, target.device)),
        config=files.config,
        state_width=files.width,
    )


class HeadFiles:
    """One head's folder: its settings, and readers for the tensors that several kinds have."""

    def __init__(
        self,
        folder: Path,
        raw: Mapping[str, Any],
        target: LoadedModel,
        kind: str,
        *,
        pickles: bool = False,
        makers: HeadMakers = PLAIN_HEADS,
    ) -> None:
        """Raises ModelError: it belongs to another target, or its settings are impossible."""
        self.folder, self.raw, self.pickles, self.makers = folder, raw, pickles, makers
        self.by_speculators = SPECULATORS in raw
        self.target = TargetTensors.of(target)
        self.dtype = DTYPES[target.info.dtype]
        self.computed = computed_in(self.dtype, target.device)
        its = self.target.config
        self.config = its if kind == "medusa" else _read_layers(folder, raw, its.context)
        # Kinds that read the last state take it as it is; others project it.
        hidden = self.config.hidden
        hidden = hidden if kind in _READ_LAST else count(raw, "target_hidden_size", hidden)
        for what, own, other in (
            ("hidden numbers", hidden, its.hidden),
            ("tokens", self.config.vocab_size, its.vocab_size),
        ):
            if own != other:
                raise ModelError(
                    f"{folder} drafts for a target of {own} {what}, {target.folder} has {other}: it is of another model"
                )
        self.capture = (its.layers,) if kind in _READ_LAST else self._capture(target.folder, its.layers)
        self.width = len(self.capture) * hidden
        self.reader = WeightReader(folder, self.config, self.dtype, target.device, pickles=pickles)

    def spec(self, vocabulary: torch.Tensor | None) -> HeadSpec:
        return HeadSpec(self.capture, self.width, vocabulary, self.computed)

    def flag(self, name: str) -> bool:
        return bool(self.raw.get(name, self._described.get(name, False)))

    def embedding(self) -> Embedding:
        """Its own, or the target's."""
        name = "embed_tokens.weight"
        if self.reader.has(name):
            return self.reader.embedding(name)
        self._check_borrowed(name, self.target.embedding.table)
        return self.target.embedding

    def vocabulary(self) -> torch.Tensor | None:
        """Tokens of the target that it drafts, by its own ids; None for all. `d2t` holds differences of the two ids."""
        most = self.config.vocab_size
        size = count(self.raw, "draft_vocab_size", most, most=most)
        if size == most:
            return None
        return self.token_ids("d2t", torch.arange(size) + self.reader.numbers("d2t", (size,)).long())

    def token_ids(self, name: str, tokens: torch.Tensor) -> torch.Tensor:
        """Ids of the target that a tensor holds, on the device."""
        most = self.config.vocab_size
        if int(tokens.min()) < 0 or int(tokens.max()) >= most:
            raise ModelError(f"{self.folder}: {name} names tokens beyond the target's {most}; save the head again")
        return tokens.long().to(self.target.embedding.device)

    def lm_head(
        self, vocabulary: torch.Tensor | None, name: str = "lm_head.weight", *, tied: Embedding | None = None
    ) -> Linear:
        """Its own; else that which it is `tied` to, or the target's, for the tokens of its vocabulary."""
        size = self.config.vocab_size if vocabulary is None else len(vocabulary)
        if self.reader.has(name):
            return head_linear(self.reader.take(name, (size, self.config.hidden)))
        shared = self.target.lm_head
        if tied is None and vocabulary is None and shared is not None:
            self._check_borrowed(name, self.target.embedding.table)
            return shared
        table = self.target.lm_head_table() if tied is None else tied.table
        self._check_borrowed(name, table)
        return head_linear((table if vocabulary is None else table[vocabulary]).to(self.dtype))

    def matrix(self, name: str, shape: tuple[int, int]) -> Linear:
        """A product with a matrix [out, in], and a bias if it has one."""
        bias = self.reader.vector(f"{name}.bias", shape[:1]) if self.reader.has(f"{name}.bias") else None
        return linear(self.reader.take(f"{name}.weight", shape), bias)

    def fusion(self) -> Fusion:
        number = len(self.capture)
        norm = self.reader.norm("input_norm.weight", width=self.width) if self.flag("norm_before_fc") else None
        norms: list[RmsNorm] = []
        if self.flag("fc_norm") or self.flag("use_aux_norm"):
            names = [f"aux_norm_{which}.weight" for which in ("low", "mid", "high")]
            if not self.reader.has(names[0]):
                names = [f"fc_norm.{i}.weight" for i in range(number)]
            norms = [self.reader.norm(name, width=self.width // number) for name in names]
        return Fusion(norm, norms, self.matrix("fc", (self.config.hidden, self.width)))

    def mask_token(self, raw: Mapping[str, Any]) -> int:
        token = raw.get("mask_token_id")
        if type(token) is not int or not 0 <= token < self.config.vocab_size:
            raise ModelError(f"{self.folder}: mask_token_id is {token!r}; it must be one of the target's tokens")
        return token

    @property
    def _described(self) -> Mapping[str, Any]:
        return inner(self.raw, "eagle_config") or inner(self.raw, "dflash_config")

    def _check_borrowed(self, name: str, matrix: torch.Tensor) -> None:
        if matrix.shape != (self.config.vocab_size, self.config.hidden):
            raise ModelError(f"{self.folder} brings no {name}, and the target's is of another size; save it with one")

    def _capture(self, target: Path, layers: int) -> tuple[int, ...]:
        names = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids")
        stated = (items(place, name, int) for place in (self.raw, self._described) for name in names)
        ids = next(filter(None, stated), None)
        # `speculators` counts the layer that a state enters, others the layer that it leaves.
        capture = (2, layers // 2, layers - 3) if ids is None else tuple(i + (not self.by_speculators) for i in ids)
        if not 0 <= capture[0] <= capture[-1] <= layers or list(capture) != sorted(set(capture)):
            raise ModelError(
                f"{self.folder} asks for states of layers {list(capture)}, which must ascend; {target} has {layers} "
                "layers: it is of another model"
            )
        return capture


def _read_layers(folder: Path, raw: Mapping[str, Any], context: int) -> DecoderConfig:
    """A head's layers, in either layout, for positions up to `context`. Raises ModelError."""
    layers = inner(raw, "transformer_layer_config") if SPECULATORS in raw else {**raw, **inner(raw, "dflash_config")}
    if not layers:
        raise ModelError(f"{folder}: config.json has no transformer_layer_config; save the head again")
    if what := uncomputed(layers):
        raise ModelError(
            f"{folder}: config.json has {what}; heads have layers here as those of {', '.join(FAMILIES)} usually are: "
            "use another head, or a draft model"
        )
    # Positions reach as far as the target's, whatever the head was trained for.
    return read_decoder_config({**layers, "max_position_embeddings": context})


def _load_eagle(files: HeadFiles) -> Head:
    reader, config, vocabulary = files.reader, files.config, files.vocabulary()
    prefix = "midlayer." if reader.has("midlayer.hidden_norm.weight") else "layers.0."
    first, embedding = reader.layer(prefix, width=2 * config.hidden), files.embedding()
    # Of `speculators`' heads the flag is left over from a default of transformers: their LM head is never tied.
    tied = embedding if not files.by_speculators and files.raw.get("tie_word_embeddings") else None
    weights = RecurrentWeights(
        embedding,
        files.fusion(),
        first.attention_norm,
        reader.norm(f"{prefix}hidden_norm.weight"),
        None,
        (first, *(reader.layer(f"layers.{i}.") for i in range(1, config.layers))),
        reader.norm("norm.weight"),
        files.lm_head(vocabulary, tied=tied),
        _norm_before_residual(files.folder, files.raw),
        files.flag("norm_output"),
    )
    spec = files.spec(vocabulary)
    return Head(
        config.cache_shape, lambda info, cache: files.makers.recurrent(info, spec, config, weights, cache), None
    )


def _norm_before_residual(folder: Path, raw: Mapping[str, Any]) -> bool:
    """Whether EAGLE's first layer adds to the normed state. Raises ModelError: vLLM and `speculators` would not agree.

    The first heads never did so. `speculators` always writes it, and takes False; vLLM takes True for EAGLE-3 alone.
    """
    stated = raw.get("norm_before_residual", inner(raw, "eagle_config").get("norm_before_residual"))
    if stated is None and raw.get(SPECULATORS) == "eagle3":
        raise ModelError(
            f"{folder}: config.json does not say norm_before_residual, for which vLLM takes true and `speculators` "
            "false; add it as the head was trained"
        )
    return bool(stated)


def _load_mtp(files: HeadFiles) -> Head:
    """From `speculators`' files, or the target's own: these apply the target's final norm to the state first."""
    reader, hidden, saved = files.reader, files.config.hidden, files.by_speculators
    token, state, entry, layer, last = _MTP_NAMES if saved else _OWN_MTP_NAMES
    if not reader.has(f"{entry}.weight"):
        raise ModelError(
            f"{files.folder} brings no layer for multi-token prediction ({entry}.weight is missing); use another draft"
        )
    # It is one layer; in `speculators`' files it has no window, whatever its config says.
    full = saved or "full_attention" in items(files.raw, "mtp_layer_types", str)
    config = replace(files.config, windows=(None,) if full else files.config.windows[-1:])
    weights = RecurrentWeights(
        files.embedding(),
        Fusion(None if saved else files.target.norm, (), None),
        reader.norm(f"{token}.weight"),
        reader.norm(f"{state}.weight"),
        files.matrix(entry, (hidden, 2 * hidden)),
        (reader.layer(f"{layer}."),),
        reader.norm(f"{last}.weight"),
        files.lm_head(None),
        norm_output=True,
    )
    spec = files.spec(None)
    return Head(
        config.cache_shape, lambda info, cache: files.makers.recurrent(info, spec, config, weights, cache), None
    )


def _load_dflash(files: HeadFiles) -> Head:
    reader, config, vocabulary = files.reader, files.config, files.vocabulary()
    described = inner(files.raw, "dflash_config") or files.raw
    embedding, first_slot = files.embedding(), int(not files.flag("sample_from_anchor"))
    most = files.config.context
    block = count(files.raw, "block_size", count(described, "block_size", _BLOCK), most=most)
    if block <= first_slot:
        raise ModelError(
            f"{files.folder}: block_size is {block}, and its first slot drafts nothing; save the head again"
        )
    attention = _block_attention(files.folder, files.raw, config)
    config = replace(config, windows=attention.windows)
    weights = DFlashWeights(
        embedding,
        files.fusion(),
        reader.norm("hidden_norm.weight"),
        tuple(reader.layer(f"layers.{i}.") for i in range(config.layers)),
        reader.norm("norm.weight"),
        files.lm_head(vocabulary),
        _mask_embedding(files, embedding, files.mask_token(described)),
        block,
        first_slot,
        attention.causal,
        attention.slot_windows,
    )
    spec, slots = files.spec(vocabulary), block - first_slot
    return Head(config.cache_shape, lambda info, cache: DFlashHead(info, spec, config, weights, cache), slots)


class _BlockAttention(NamedTuple):
    """By layer: `DecoderConfig.windows`, and the settings of `DFlashWeights`."""

    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    slot_windows: bool


def _block_attention(folder: Path, raw: Mapping[str, Any], config: DecoderConfig) -> _BlockAttention:
    """What DFlash's slots attend to. Raises ModelError: it is not stated, or libraries would not agree.

    In `speculators`' layout only sliding layers may be causal. Elsewhere `is_causal` is about all layers, else `causal`
    is, else layers that slide by `layer_types` are causal; with `use_swa` all layers slide if none does by these.
    """
    windows = config.windows
    if SPECULATORS in raw:
        both = raw.get("sliding_window_non_causal")
        if both is None and any(windows):
            raise ModelError(
                f"{folder}: config.json does not say sliding_window_non_causal, for which vLLM takes true and "
                "`speculators` false; add it as the head was trained"
            )
        causal = tuple(window is not None and not both for window in windows)
        return _BlockAttention(windows, causal, slot_windows=False)
    stated = {**raw, **inner(raw, "dflash_config")}
    kinds = items(stated, "layer_types", str) or [_SLIDING if window else _FULL for window in windows]
    if len(kinds) != config.layers or not set(kinds) <= {_SLIDING, _FULL}:
        raise ModelError(f"{folder}: layer_types must name {_FULL} or {_SLIDING} for {config.layers} layers")
    slides = [kind == _SLIDING for kind in kinds]
    every = bool(stated.get("use_swa")) and not any(slides)
    size = count(stated, "swa_window_size") if stated.get("swa_window_size") is not None else None
    if every and size is None:
        size = count(stated, "sliding_window")
    if size is not None:
        windows = tuple(size if every or slide else None for slide in slides)
    one = next((bool(stated[name]) for name in ("is_causal", "causal") if stated.get(name) is not None), None)
    return _BlockAttention(windows, tuple(slides) if one is None else (one,) * len(windows), slot_windows=True)


def _mask_embedding(files: HeadFiles, embedding: Embedding, token: int) -> torch.Tensor:
    """What stands for tokens that are to be drafted [hidden]: this token's embedding, or a file next to the weights."""
    path = files.folder / MASK_EMBEDDING
    if not path.is_file():
        return embedding(torch.tensor([token], device=embedding.device))[0]
    if not files.pickles:
        raise ModelError(f"{path} is a pickle that this head drafts with; --allow-pickle reads plain tensors out of it")
    held = read_pickle(path)
    mask, its = held.get("embedding"), held.get("mask_token_id", token)
    if not isinstance(mask, torch.Tensor) or mask.numel() != files.config.hidden or its != token:
        raise ModelError(f"{path} does not hold an embedding of mask_token_id {token}; download the head again")
    return mask.flatten().to(device=embedding.device, dtype=files.computed)


def _load_medusa(files: HeadFiles) -> Head:
    raw, hidden, reader = files.raw, files.config.hidden, files.reader
    number = count(raw, "medusa_num_heads", raw.get("num_heads"))
    deep = count(raw, "medusa_num_layers", raw.get("num_hidden_layers") or 1, most=MOST_LAYERS)
    prefix = "medusa_heads." if reader.has("medusa_heads.blocks.0.layers.0.weight") else ""
    vllm = not reader.has("0.0.linear.weight")  # vLLM's names, or those of Medusa's own project
    vocabulary = None
    if reader.has("token_map"):
        vocabulary = files.token_ids("token_map", reader.numbers("token_map", (count(raw, "truncated_vocab_size"),)))
    layers = []
    for i in range(number):
        parts = [f"{prefix}blocks.{i}.layers.{j}" if vllm else f"{i}.{j}.linear" for j in range(deep)]
        layers.append(tuple(files.matrix(part, (hidden, hidden)) for part in parts))
    names = [f"{prefix}lm_heads.{i}.weight" if vllm else f"{i}.{deep}.weight" for i in range(number)]
    weights = MedusaWeights(files.target.norm, tuple(layers), _medusa_lm_heads(files, names, vocabulary))
    spec = files.spec(vocabulary)
    # It caches nothing; rows are counted all the same, at two numbers a token.
    return Head(CacheShape(1, 1, 1), lambda info, cache: MedusaHead(info, spec, weights, cache), number)


def _medusa_lm_heads(files: HeadFiles, names: Sequence[str], vocabulary: torch.Tensor | None) -> tuple[Linear, ...]:
    """Each head's own, or one that all share, which is held once: it may take a gigabyte."""
    missing = [name for name in names if not files.reader.has(name)]
    if 0 < len(missing) < len(names) and not files.raw.get("original_lm_head"):
        raise ModelError(f"{files.folder} brings no {missing[0]}, and those of other depths; save it whole")
    used = ["lm_head.weight" if name in missing else name for name in names]
    lm_heads = {name: files.lm_head(vocabulary, name) for name in dict.fromkeys(used)}
    return tuple(lm_heads[name] for name in used)


_LOADERS: Mapping[str, Callable[[HeadFiles], Head]] = {
    "eagle3": _load_eagle,
    "mtp": _load_mtp,
    "dflash": _load_dflash,
    "medusa": _load_medusa,
}
