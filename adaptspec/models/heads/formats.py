"""Heads as people have them: which one config.json is of, and its tensors by the names of either layout.

Layouts: that of the library `speculators`, and those of the projects that the heads come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from adaptspec.errors import ModelError
from adaptspec.models.config import MOST_LAYERS, DecoderConfig, count, inner, items
from adaptspec.models.gguf import is_gguf
from adaptspec.models.heads.block import (
    DFlashRunner,
    DFlashWeights,
    MarkovHead,
    MedusaRunner,
    MedusaWeights,
    PEagleRunner,
    Unknown,
)
from adaptspec.models.heads.eagle import EagleRunner, EagleWeights, Fusion
from adaptspec.models.heads.head_config import (
    SPECULATORS,
    block_attention,
    head_kind,
    markov_head_type,
    norm_before_residual,
    read_layers,
)
from adaptspec.models.heads.mtp_module import load_mtp_module
from adaptspec.models.heads.target_ends import TargetEnds
from adaptspec.models.kv_cache import CacheShape, KVCache
from adaptspec.models.layers import Linear, Norm
from adaptspec.models.loading import DTYPES, LoadedModel
from adaptspec.models.model_files import CONFIG, MASK_EMBEDDING, fingerprint, read_json
from adaptspec.models.runner import ModelInfo, Runner
from adaptspec.models.source import find_model
from adaptspec.models.weights import MTP, WeightReader, read_pickle

# What is left in checkpoints of training, or says again what another tensor does.
_IGNORED = (
    "t2d",
    "confidence_head.proj.weight",
    "confidence_head.proj.bias",
    "rotary_emb.inv_freq",
    "verifier_norm.weight",
    "verifier_lm_head.weight",
)
# Of multi-token prediction: norms of token and state, what joins them, the layer, its norm.
_MTP_NAMES = tuple(
    f"mtp_layers.0{part}" for part in (".token_layernorm", ".hidden_layernorm", ".input_proj", "", ".final_layernorm")
)
_OWN_MTP_NAMES = tuple(
    f"{MTP}{part}" for part in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "layers.0", "norm")
)
_SLOTS = 8  # that P-EAGLE drafts where its config does not say
_LAST = ("medusa", "mtp", None)  # take the target's last state
# The shape of its cache, what starts it, and the most tokens that it drafts.
Made = tuple[CacheShape, Callable[[ModelInfo, KVCache], Runner], int | None]


def is_head(path_or_hub_id: str) -> bool:
    """Whether a directory or hub id holds a head."""
    found = find_model(path_or_hub_id, gguf=True)
    return not is_gguf(found) and head_kind(read_json(found / CONFIG)) is not None


def load_head(path_or_hub_id: str, target: LoadedModel, *, pickles: bool = False) -> LoadedModel:
    """A head for this target, in its dtype and on its device, of pickles too if they are allowed.

    Of the target's own folder it is the layer for multi-token prediction that lies there.

    Raises ModelError: it cannot be used, or is another target's.
    """
    folder = find_model(path_or_hub_id, pickles=pickles)
    raw = read_json(folder / CONFIG)
    own = folder == target.folder
    if own and target.module is not None:
        return load_mtp_module(target)
    kind = "mtp" if own else str(head_kind(raw))
    if kind not in _MAKERS:
        raise ModelError(f"{folder}: heads of kind {kind} cannot draft here; there are: {', '.join(_MAKERS)}")
    files = HeadFiles(folder, raw, target, pickles=pickles)
    shape, start, deepest = _MAKERS[kind](files)
    files.reader.finish(_IGNORED, beside=("model.", "lm_head.") if own else ())
    parameters, dtype = files.reader.parameters, DTYPES[target.info.dtype]
    info = replace(
        target.info,
        name=kind if own else folder.resolve().name,
        architecture=kind,
        parameters=parameters,
        fingerprint=fingerprint(folder, pickles=pickles) + f"-{kind}" * own,
        deepest=deepest,
    )
    return LoadedModel(
        folder,
        info,
        target.device,
        shape.bytes_per_token(dtype),
        lambda info, plan: start(info, KVCache(shape, plan, dtype, target.device)),
        config=files.config,
        hears=len(files.states) * files.width,
    )


class HeadFiles:
    """One head's folder, and what all kinds say of themselves there.

    `states` of the target that it takes: see `Listener.layers`. `vocabulary` [n] are the tokens that it drafts.
    """

    def __init__(self, folder: Path, raw: Mapping[str, Any], target: LoadedModel, *, pickles: bool = False) -> None:
        """Raises ModelError: it is of another target, or says what cannot be."""
        self.folder, self.raw, self.target, self.saved = folder, raw, target, SPECULATORS in raw
        self.pickles = pickles
        self.ends = TargetEnds.of(target)
        self._own = self.ends.config
        self.config = self._decoder()
        # What takes the last state takes it as it is; others make it theirs.
        mine = self.config.hidden
        self.width = mine if head_kind(raw) in _LAST else count(raw, "target_hidden_size", mine)
        for what, mine, its in (
            ("hidden numbers", self.width, self._own.hidden),
            ("tokens", self.config.vocab_size, self._own.vocab_size),
        ):
            if mine != its:
                raise ModelError(
                    f"{folder} drafts for a target of {mine} {what}, {target.folder} has {its}: it is of another model"
                )
        dtype = DTYPES[target.info.dtype]
        self.reader = WeightReader(folder, self.config, dtype, target.device, pickles=pickles)
        self.states = self._states()

    def flag(self, name: str) -> bool:
        return bool(self.raw.get(name, self._described.get(name, False)))

    def embedding(self) -> torch.Tensor:
        """Its own, or the target's."""
        name = "embed_tokens.weight"
        if self.reader.has(name):
            return self.reader.take(name, (self.config.vocab_size, self.config.hidden))
        return self._borrowed(name, self.ends.embedding)

    def vocabulary(self) -> torch.Tensor | None:
        most = self.config.vocab_size
        size = count(self.raw, "draft_vocab_size", most, most=most)
        if size == most:
            return None
        return self.tokens("d2t", torch.arange(size) + self.reader.numbers("d2t", (size,)).long())

    def tokens(self, name: str, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens of the target that a tensor names, where they are to be."""
        most = self.config.vocab_size
        if int(tokens.min()) < 0 or int(tokens.max()) >= most:
            raise ModelError(f"{self.folder}: {name} names tokens beyond the target's {most}; save the head again")
        return tokens.long().to(self.target.device)

    def head(
        self, vocabulary: torch.Tensor | None, name: str = "lm_head.weight", *, tied: torch.Tensor | None = None
    ) -> Linear:
        """Its own, or for these tokens the one that it is `tied` to, or the target's."""
        size = self.config.vocab_size if vocabulary is None else len(vocabulary)
        if self.reader.has(name):
            matrix = self.reader.take(name, (size, self.config.hidden))
        else:
            matrix = self._borrowed(name, self.ends.head()) if tied is None else tied
            matrix = matrix if vocabulary is None else matrix[vocabulary]
        return Linear.of(matrix.t().contiguous())

    def _borrowed(self, name: str, matrix: torch.Tensor) -> torch.Tensor:
        """One of the target's in its place."""
        if matrix.shape != (self.config.vocab_size, self.config.hidden):
            raise ModelError(f"{self.folder} brings no {name}, and the target's is of another size; save it with one")
        return matrix

    def matrix(self, name: str, shape: tuple[int, int]) -> Linear:
        """A product [out, in] with a bias if it has one."""
        bias = self.reader.take(f"{name}.bias", shape[:1]) if self.reader.has(f"{name}.bias") else None
        return Linear.of(self.reader.take(f"{name}.weight", shape).t().contiguous(), bias)

    def fusion(self) -> Fusion:
        wide, each = len(self.states) * self.width, range(len(self.states))
        whole = self.reader.norm("input_norm.weight", width=wide) if self.flag("norm_before_fc") else None
        norms: list[Norm] = []
        if self.flag("fc_norm") or self.flag("use_aux_norm"):
            old = [f"aux_norm_{which}.weight" for which in ("low", "mid", "high")]
            names = old if self.reader.has(old[0]) else [f"fc_norm.{i}.weight" for i in each]
            norms = [self.reader.norm(name, width=self.width) for name in names]
        return Fusion(whole, norms, self.matrix("fc", (self.config.hidden, wide)))

    @property
    def _described(self) -> Mapping[str, Any]:
        return inner(self.raw, "eagle_config") or inner(self.raw, "dflash_config")

    def _decoder(self) -> DecoderConfig:
        if head_kind(self.raw) == "medusa":  # it has no such layers
            return self._own
        return read_layers(self.folder, self.raw, self._own.context)

    def _states(self) -> tuple[int, ...]:
        layers = self._own.layers
        names = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids")
        if head_kind(self.raw) in _LAST:  # None: in the target's own files
            return (layers,)
        said = (items(place, name, int) for place in (self.raw, self._described) for name in names)
        ids = next(filter(None, said), None)
        # `speculators` counts the layer that a state goes into, others the one that it comes out of.
        states = (2, layers // 2, layers - 3) if ids is None else tuple(i + (not self.saved) for i in ids)
        if not 0 <= states[0] <= states[-1] <= layers or list(states) != sorted(set(states)):
            raise ModelError(
                f"{self.folder} asks for states of layers {list(states)}, which must ascend; {self.target.folder} has "
                f"{layers} layers: it is of another model"
            )
        return states


def _eagle(files: HeadFiles) -> Made:
    config, weights = files.config, _eagle_weights(files)
    return config.cache_shape, lambda info, cache: EagleRunner(info, config, weights, cache), None


def _eagle_weights(files: HeadFiles) -> EagleWeights:
    reader, config, vocabulary = files.reader, files.config, files.vocabulary()
    prefix = "midlayer." if reader.has("midlayer.hidden_norm.weight") else "layers.0."
    first, embedding = reader.layer(prefix, width=2 * config.hidden), files.embedding()
    # Where `speculators` saves a head, this is what transformers' own configs say; it ties none.
    tied = embedding if not files.saved and files.raw.get("tie_word_embeddings") else None
    return EagleWeights(
        embedding,
        files.fusion(),
        first.attention_norm,
        reader.norm(f"{prefix}hidden_norm.weight"),
        None,
        (first, *(reader.layer(f"layers.{i}.") for i in range(1, config.layers))),
        reader.norm("norm.weight"),
        files.head(vocabulary, tied=tied),
        vocabulary,
        files.states,
        norm_before_residual(files.folder, files.raw),
        files.flag("norm_output"),
    )


def _peagle(files: HeadFiles) -> Made:
    config, weights = files.config, _eagle_weights(files)
    wide = len(files.states) * files.width
    state = weights.fusion(files.reader.take("mask_hidden", (1, 1, wide)).view(1, wide))
    methods = items(inner(files.raw, "speculators_config"), "proposal_methods", dict) or [{}]
    unknown = Unknown(_token(files, files.raw), state, count(methods[0], "speculative_tokens", _SLOTS))
    return config.cache_shape, lambda info, cache: PEagleRunner(info, config, weights, cache, unknown), unknown.slots


def _mtp(files: HeadFiles) -> Made:
    """In `speculators`' files, and in the target's own, of whose state it then takes the target's norm first."""
    reader, hidden, saved = files.reader, files.config.hidden, files.saved
    token, state, entry, layer, last = _MTP_NAMES if saved else _OWN_MTP_NAMES
    if not reader.has(f"{entry}.weight"):
        raise ModelError(
            f"{files.folder} brings no layer for multi-token prediction ({entry}.weight is missing); use another draft"
        )
    # One layer, whatever the target has; in `speculators`' files it sees all, whatever its config says.
    all_ = saved or "full_attention" in items(files.raw, "mtp_layer_types", str)
    config = replace(files.config, windows=(None,) if all_ else files.config.windows[-1:])
    weights = EagleWeights(
        files.embedding(),
        Fusion(None if saved else files.ends.norm(), (), None),
        reader.norm(f"{token}.weight"),
        reader.norm(f"{state}.weight"),
        files.matrix(entry, (hidden, 2 * hidden)),
        (reader.layer(f"{layer}."),),
        reader.norm(f"{last}.weight"),
        files.head(None),
        None,
        files.states,
        norm_output=True,
    )
    return config.cache_shape, lambda info, cache: EagleRunner(info, config, weights, cache), None


def _dflash(files: HeadFiles) -> Made:
    reader, config, vocabulary = files.reader, files.config, files.vocabulary()
    described = inner(files.raw, "dflash_config") or files.raw
    embedding, before_slots = files.embedding(), int(not files.flag("sample_from_anchor"))
    most = files.config.context
    block = count(files.raw, "block_size", count(described, "block_size", _SLOTS), most=most)
    if block <= before_slots:
        raise ModelError(
            f"{files.folder}: block_size is {block}, and its first slot drafts nothing; save the head again"
        )
    windows, causal, from_slots = block_attention(files.folder, files.raw, config)
    config = replace(config, windows=windows)
    weights = DFlashWeights(
        embedding,
        files.fusion(),
        reader.norm("hidden_norm.weight"),
        tuple(reader.layer(f"layers.{i}.", width=config.hidden) for i in range(config.layers)),
        reader.norm("norm.weight"),
        files.head(vocabulary),
        vocabulary,
        files.states,
        _mask(files, embedding, _token(files, described)),
        block,
        before_slots,
        causal,
        from_slots,
        markov=_markov(files, vocabulary),
    )
    return config.cache_shape, lambda info, cache: DFlashRunner(info, config, weights, cache), block - before_slots


def _markov(files: HeadFiles, vocabulary: torch.Tensor | None) -> MarkovHead | None:
    if not files.raw.get("markov_rank"):
        return None
    rank, hidden, whole = count(files.raw, "markov_rank"), files.config.hidden, files.config.vocab_size
    kind, prefix = markov_head_type(files.folder, files.raw), "markov_head."
    return MarkovHead(
        files.reader.take(f"{prefix}markov_w1.weight", (whole, rank)),
        files.matrix(f"{prefix}markov_w2", (whole if vocabulary is None else len(vocabulary), rank)),
        files.matrix(f"{prefix}gate_proj", (rank, hidden + rank)) if kind == "gated" else None,
        files.matrix(f"{prefix}joint_proj", (3 * rank, 2 * rank + hidden)) if kind == "rnn" else None,
    )


def _mask(files: HeadFiles, embedding: torch.Tensor, token: int) -> torch.Tensor:
    """What stands for tokens that are to be drafted [hidden]: the embedding of this one, or what lies beside it."""
    path = files.folder / MASK_EMBEDDING
    if not path.is_file():
        return embedding[token]
    if not files.pickles:
        raise ModelError(f"{path} is a pickle that this head drafts with; --allow-pickle reads plain tensors out of it")
    held = read_pickle(path)
    own, its = held.get("embedding"), held.get("mask_token_id", token)
    if not isinstance(own, torch.Tensor) or own.numel() != embedding.shape[1] or its != token:
        raise ModelError(f"{path} does not hold an embedding of mask_token_id {token}; download the head again")
    return own.flatten().to(embedding)


def _medusa(files: HeadFiles) -> Made:
    raw, hidden, reader = files.raw, files.config.hidden, files.reader
    number = count(raw, "medusa_num_heads", raw.get("num_heads"))
    deep = count(raw, "medusa_num_layers", raw.get("num_hidden_layers") or 1, most=MOST_LAYERS)
    prefix = "medusa_heads." if reader.has("medusa_heads.blocks.0.layers.0.weight") else ""
    own = not reader.has("0.0.linear.weight")
    vocabulary = None
    if reader.has("token_map"):
        vocabulary = files.tokens("token_map", reader.numbers("token_map", (count(raw, "truncated_vocab_size"),)))
    layers = []
    for i in range(number):
        parts = [f"{prefix}blocks.{i}.layers.{j}" if own else f"{i}.{j}.linear" for j in range(deep)]
        layers.append(tuple(files.matrix(part, (hidden, hidden)) for part in parts))
    each = [f"{prefix}lm_heads.{i}.weight" if own else f"{i}.{deep}.weight" for i in range(number)]
    missing = [name for name in each if not reader.has(name)]
    if 0 < len(missing) < number and not raw.get("original_lm_head"):
        raise ModelError(f"{files.folder} brings no {missing[0]}, and those of other depths; save it whole")
    names = ["lm_head.weight" if name in missing else name for name in each]
    made = {name: files.head(vocabulary, name) for name in dict.fromkeys(names)}  # one for all is there once
    heads = tuple(made[name] for name in names)
    weights = MedusaWeights(hidden, files.ends.norm(), tuple(layers), heads, vocabulary, files.states)
    # It caches nothing; rows are counted all the same, at two numbers a token.
    return CacheShape(1, 1, 1), lambda info, cache: MedusaRunner(info, weights, cache), number


def _token(files: HeadFiles, raw: Mapping[str, Any]) -> int:
    token = raw.get("mask_token_id")
    if type(token) is not int or not 0 <= token < files.config.vocab_size:
        raise ModelError(f"{files.folder}: mask_token_id is {token!r}; it must be one of the target's tokens")
    return token


_MAKERS: Mapping[str, Callable[[HeadFiles], Made]] = {
    "eagle3": _eagle,
    "peagle": _peagle,
    "mtp": _mtp,
    "dflash": _dflash,
    "dspark": _dflash,
    "medusa": _medusa,
}
