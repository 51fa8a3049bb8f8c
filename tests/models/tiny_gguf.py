"""Writes tiny GGUF files as converters do: a Llama model of a directory, and a recurrent one of random weights."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, quants
from safetensors.numpy import load_file

from adaptspec.models.llama_library import load_library

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_NORMAL, _CONTROL = 1, 3  # kinds of tokens
_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q4_K": 15, "BF16": 32}


def write_gguf(model: Path, path: Path, kind: str = "Q8_0") -> Path:
    """The model in `model`, its matrices in `kind`, such as F32 or Q8_0. Returns `path`."""
    config = json.loads((model / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    width = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_rope_dimension_count(width)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(_FILE_TYPES[kind])
    _add_vocabulary(writer, model, config["vocab_size"])
    for name, value in load_file(model / "model.safetensors").items():
        whole, _, part = name.removesuffix(".weight").rpartition(".layers.")
        if whole:
            layer, _, part = part.partition(".")
            target = f"blk.{layer}.{_NAMES[part]}.weight"
            if part.endswith(("q_proj", "k_proj")):
                value = _pairs_together(value, heads if part.endswith("q_proj") else kv_heads)  # noqa: PLW2901
        else:
            target = f"{_WHOLE[name.removesuffix('.weight')]}.weight"
        wide = value.astype(np.float32)
        if wide.ndim == 1:
            writer.add_tensor(target, wide)
        else:
            number = GGMLQuantizationType[kind]
            content = _k_quantized(wide, number) if kind.endswith("_K") else quants.quantize(wide, number)
            writer.add_tensor(target, content, raw_dtype=number)
    return _written(writer, path)


def _k_quantized(weight: npt.NDArray[np.float32], kind: GGMLQuantizationType) -> npt.NDArray[np.uint8]:
    """By llama.cpp itself: the gguf package only reads these types."""
    library = ctypes.CDLL(str(load_library().path))
    library.ggml_row_size.restype, library.ggml_row_size.argtypes = ctypes.c_size_t, (ctypes.c_int, ctypes.c_int64)
    quantize = library.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = (ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p)
    rows, width = weight.shape
    content = np.empty((rows, library.ggml_row_size(kind, width)), dtype=np.uint8)
    assert quantize(kind, weight.ctypes.data, content.ctypes.data, 0, rows, width, None) == content.nbytes
    return content


def write_mamba(model: Path, path: Path) -> Path:
    """A recurrent model of random weights, with the vocabulary of `model`. Returns `path`."""
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    hidden, inner, states, rank, kernel = 32, 64, 8, 2, 4
    writer = GGUFWriter(path, "mamba")
    writer.add_context_length(256)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(1)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(states)
    writer.add_ssm_time_step_rank(rank)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab_size)
    writer.add_file_type(_FILE_TYPES["F32"])
    _add_vocabulary(writer, model, vocab_size)
    shapes = {
        "token_embd.weight": (vocab_size, hidden),
        "output_norm.weight": (hidden,),
        "blk.0.attn_norm.weight": (hidden,),
        "blk.0.ssm_in.weight": (2 * inner, hidden),
        "blk.0.ssm_conv1d.weight": (inner, kernel),
        "blk.0.ssm_conv1d.bias": (inner,),
        "blk.0.ssm_x.weight": (rank + 2 * states, inner),
        "blk.0.ssm_dt.weight": (inner, rank),
        "blk.0.ssm_dt.bias": (inner,),
        "blk.0.ssm_a": (inner, states),
        "blk.0.ssm_d": (inner,),
        "blk.0.ssm_out.weight": (hidden, inner),
    }
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(name, random.standard_normal(shape, dtype=np.float32))
    return _written(writer, path)


def _written(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _pairs_together(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of dimension pairs (i, i + half), which rotate together, next to each other, as llama.cpp has them."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def _add_vocabulary(writer: GGUFWriter, model: Path, size: int) -> None:
    described = json.loads((model / "tokenizer.json").read_text())
    settings = json.loads((model / "tokenizer_config.json").read_text())
    ids = dict(described["model"]["vocab"]) | {one["content"]: one["id"] for one in described["added_tokens"]}
    controls = {one["id"] for one in described["added_tokens"]}
    words = {number: word for word, number in ids.items()}
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in described["model"]["merges"]]
    if not merges:  # llama.cpp takes no vocabulary without: a byte that no UTF-8 text has gives its place to a pair
        merges = ["a a"]
        words[ids["\u00ff"]] = "aa"
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([words.get(number, f"<unused{number}>") for number in range(size)])
    writer.add_token_types([_CONTROL if number in controls else _NORMAL for number in range(size)])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(ids[settings["eos_token"]])
    template = model / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text())
