"""Models of other tokenizers than the target's: tiny random ones, and the bundled draft with its vocabulary changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import adaptspec
from adaptspec.config import model_path
from adaptspec.models.tokenization import load_tokenizer
from tests.conftest import write_tiny_model

TARGET, DRAFT = (Path(model_path("bundled", role)) for role in ("target", "draft"))
ALL = 1.1  # what tokenizers must write alike for their shared tokens to be used: more than there is


def _texts() -> list[str]:
    """Files that do not change: of others the vocabularies, and with them all drafts, would change with every edit."""
    package = Path(adaptspec.__file__).parent
    prompts, licence = package / "training" / "prompts.jsonl", package.parent / "LICENSE"
    return [licence.read_text(), *prompts.read_text().splitlines()]


def gpt2_like(size: int = 700, *, lower: bool = False, words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Byte-level BPE, that knows these `words` too. A `lower` one makes small letters of all text, and puts a space
    before it.
    """
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=lower)
    backend.decoder = decoders.ByteLevel()
    if lower:
        backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    end, letters = ["<|endoftext|>"], pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        [*_texts(), *words],
        trainers.BpeTrainer(vocab_size=size, special_tokens=end, initial_alphabet=letters, show_progress=False),
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=end[0], eos_token=end[0])


def metaspace(size: int = 900) -> PreTrainedTokenizerFast:
    """As SentencePiece has it: spaces are letters, one is put before the text, and unknown letters are bytes."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>"]
    octets = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special + octets, limit_alphabet=80, show_progress=False
    )
    backend.train_from_iterator(_texts(), trainer)
    described = json.loads(backend.to_str())
    described["added_tokens"] = [token for token in described["added_tokens"] if token["content"] in special]
    described["pre_tokenizer"] = None
    backend = Tokenizer.from_str(json.dumps(described))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    strip = decoders.Strip(" ", 1, 0)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def word_piece() -> PreTrainedTokenizerFast:
    """A vocabulary that marks where words go on, not where they begin."""
    vocabulary = {word: i for i, word in enumerate(["[UNK]", *"abcdefghijklmnopqrstuvwxyz", "the", "##s", "##e", "."])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


SPELLINGS: Mapping[str, Callable[[], PreTrainedTokenizerFast]] = {
    "gpt2": gpt2_like,
    "lower": lambda: gpt2_like(lower=True),
    "metaspace": metaspace,
}


def write_model(folder: Path, tokenizer: PreTrainedTokenizerFast, seed: int = 0, **config: Any) -> Path:
    """A tiny random model of this tokenizer."""
    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    write_tiny_model(folder, "llama", seed, {"vocab_size": len(tokenizer), "pad_token_id": None, **ends, **config})
    for file in folder.glob("*token*"):
        file.unlink()
    tokenizer.save_pretrained(folder)
    return folder


def respelled_draft(folder: Path, *, lost: float = 0.0) -> Path:
    """The bundled draft, its token ids in another order; this share of its longer tokens is never written any more."""
    shutil.copytree(DRAFT, folder)
    described = json.loads((folder / "tokenizer.json").read_text())
    rng, model = np.random.default_rng(0), described["model"]
    size = len(model["vocab"])
    moved = rng.permutation(size)
    gone = {word for word, token in model["vocab"].items() if token > 300 and rng.random() < lost}
    model["merges"] = [pair for pair in model["merges"] if gone.isdisjoint((*pair, "".join(pair)))]
    model["vocab"] = {
        word if word not in gone else f"lost {token}": int(moved[token]) for word, token in model["vocab"].items()
    }
    for token in described["added_tokens"]:
        token["id"] = int(moved[token["id"]])
    described["added_tokens"].sort(key=lambda token: token["id"])
    (folder / "tokenizer.json").write_text(json.dumps(described))
    weights = load_file(folder / "model.safetensors")
    name = "model.embed_tokens.weight"
    weights[name] = weights[name][torch.from_numpy(np.argsort(moved))].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for place in (folder / "config.json", folder / "generation_config.json"):
        config = json.loads(place.read_text())
        for key in ("eos_token_id", "pad_token_id"):
            config[key] = int(moved[config[key]])
        place.write_text(json.dumps(config))
    return folder


def translated_draft(folder: Path) -> Path:
    """The bundled draft with a GPT-2-like tokenizer: a token's weights are the mean of those that wrote its text."""
    before = load_tokenizer(str(DRAFT))
    tokenizer = gpt2_like(2300, words=[before.decode([token]) for token in range(300, len(before))] * 4)
    weights, name = load_file(DRAFT / "model.safetensors"), "model.embed_tokens.weight"
    rows = []
    for token in range(len(tokenizer)):
        text = tokenizer.decode([token])
        ids = (
            [before.eos_token_id] if token == tokenizer.eos_token_id else before.encode(text, add_special_tokens=False)
        )
        rows.append(weights[name][ids].mean(0))
    folder.mkdir()
    save_file(weights | {name: torch.stack(rows)}, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((DRAFT / "config.json").read_text()) | {"vocab_size": len(tokenizer), "pad_token_id": None}
    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    (folder / "config.json").write_text(json.dumps(config | ends))
    tokenizer.save_pretrained(folder)
    return folder
