"""Trains a tokenizer, a target and a draft that is distilled from it, as the bundled pair was made.

    python -m examples.recipes.pair --corpus corpus.jsonl --out runs/pair

Each stage leaves its result in the output directory, and is skipped or resumed when the same command runs again.
"""

from __future__ import annotations

import argparse
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from adaptspec.errors import AdaptSpecError, ConfigError, CorpusError
from adaptspec.files import open_file, write_file
from adaptspec.training.answers import Answers, answer_engine, encode_prompts
from adaptspec.training.corpus import SYNTHETIC, Corpus, Record, read_corpus, spread
from adaptspec.training.report import DepthFigures, measure
from adaptspec.training.students import DraftModel, export, logits_of
from adaptspec.training.teacher import load_teacher
from adaptspec.training.trainer import LoopSettings, Loss, Windows, keep_freed_pages, train
from examples.recipes.pair.tokenizer import encode, markup, train_tokenizer

CONTEXT, DEPTH = 1024, 7
MEASURED, MEASURED_TOKENS = 160, 160


@dataclass(frozen=True)
class Shape:
    """The size of one Llama-architecture model."""

    hidden: int
    layers: int
    heads: int
    mlp: int


@dataclass(frozen=True)
class Preset:
    """Sizes and training times. `synthetic_share` of the records made by a program are used."""

    target: Shape
    draft: Shape
    vocab_size: int
    target_minutes: float
    draft_minutes: float
    target_learning_rate: float
    draft_learning_rate: float
    batch: int
    window: int
    synthetic_share: float
    device: str


PRESETS = {
    "cpu": Preset(Shape(256, 6, 4, 704), Shape(128, 1, 2, 352), 4096, 84, 24, 6e-3, 8e-3, 8, 512, 0.6, "cpu"),
    "gpu": Preset(Shape(384, 8, 6, 1024), Shape(128, 1, 2, 352), 8192, 8, 2, 4e-3, 6e-3, 64, 512, 1.0, "cuda"),
    # A few seconds, to see that everything runs.
    "tiny": Preset(Shape(16, 2, 2, 32), Shape(8, 1, 1, 16), 300, 0.01, 0.01, 6e-3, 8e-3, 2, 32, 1.0, "cpu"),
}


def train_pair(corpus_path: Path, out: Path, preset: Preset, console: Console) -> tuple[DepthFigures, ...]:
    """Run the recipe. `out` then holds `target/` and `draft/`, Hugging Face directories in bfloat16, and report.json.

    Raises:
        CorpusError: the corpus cannot be read or is too small.
        ConfigError: `out` was begun with other settings.
    """
    corpus = read_corpus(corpus_path)
    _check_settings(out, {**asdict(preset), "corpus": corpus.fingerprint})
    keep_freed_pages()
    records = [r for r in corpus.train if r.source != SYNTHETIC or _share(r) < preset.synthetic_share]
    tokenizer = _tokenizer(out, records, preset, console)
    windows = Windows(_tokens(out, records, tokenizer, console), preset.batch, preset.window)
    mixed = preset.device != "cpu"

    target = _build(preset.target, preset, tokenizer)
    settings = LoopSettings(preset.target_minutes, preset.target_learning_rate)
    reached = {
        "target": train(
            target, next_token_loss(target, mixed), windows, settings, out / "target.state", console=console
        )
    }
    export(target, tokenizer, out / "target")

    # The teacher is the exported target, with its rounded weights.
    teacher = load_teacher(str(out / "target"), torch.device(preset.device))
    draft = DraftModel(_build(preset.draft, preset, tokenizer), teacher, DEPTH)
    settings = LoopSettings(preset.draft_minutes, preset.draft_learning_rate)
    # A draft of another target starts anew.
    checkpoint = out / f"draft-{teacher.fingerprint[:8]}.state"
    reached["draft"] = train(draft.module, draft.loss, windows, settings, checkpoint, console=console)
    draft.save(out / "draft")

    figures = _measure(draft, out, corpus, console)
    stages = {
        name: {"minutes": progress.seconds / 60, "tokens": windows.tokens_after(progress.step)}
        for name, progress in reached.items()
    }
    report = {
        **{"settings": asdict(preset), "corpus": corpus.fingerprint, "sources": corpus.sources, "stages": stages},
        "acceptance": [asdict(row) for row in figures],
    }
    write_file(out / "report.json", (json.dumps(report, indent=2) + "\n").encode())
    return figures


def next_token_loss(module: nn.Module, mixed_precision: bool = False) -> Loss:
    """Cross-entropy of the next token in nats, mean over all positions."""

    def loss(ids: torch.Tensor) -> torch.Tensor:
        logits = logits_of(module, ids[:, :-1], mixed_precision)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))

    return loss


def _share(record: Record) -> float:
    """A number in [0, 1) of the record that is independent of which records are held out."""
    return int.from_bytes(record.digest[4:], "big") / 2**32


def _tokenizer(out: Path, records: list[Record], preset: Preset, console: Console) -> PreTrainedTokenizerFast:
    folder = out / "tokenizer"
    if not folder.exists():
        console.print(f"training a tokenizer of {preset.vocab_size:,} entries")
        # Every fourth record is enough for some thousand merges, and takes less than a minute.
        fresh = train_tokenizer(map(markup, records[::4]), preset.vocab_size, CONTEXT)
        if len(fresh) < preset.vocab_size:
            raise CorpusError(f"the corpus yields a vocabulary of only {len(fresh)} entries; give more text")
        partial = out / "tokenizer.partial"
        fresh.save_pretrained(partial)
        partial.replace(folder)
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer


def _tokens(
    out: Path, records: list[Record], tokenizer: PreTrainedTokenizerFast, console: Console
) -> npt.NDArray[np.uint16]:
    path = out / "tokens.npy"
    if not path.exists():
        console.print(f"encoding {len(records):,} records")
        order = np.random.default_rng(0).permutation(len(records))
        packed = io.BytesIO()
        np.save(packed, encode(tokenizer, [markup(records[i]) for i in order]))
        write_file(path, packed.getbuffer())
    with open(open_file(path), "rb") as file:
        return np.asarray(np.load(file), dtype=np.uint16)


def _build(shape: Shape, preset: Preset, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=preset.vocab_size,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    return nn.Module.to(model, preset.device)


def _measure(draft: DraftModel, out: Path, corpus: Corpus, console: Console) -> tuple[DepthFigures, ...]:
    """Acceptance on greedy answers to held-out prompts."""
    teacher = load_teacher(str(out / "target"), next(draft.module.parameters()).device)
    asked = [record for record in corpus.held_out if record.messages]
    prompts = encode_prompts(teacher, spread(asked, MEASURED), MEASURED_TOKENS)
    answers = Answers(out / f"held-out-{teacher.fingerprint[:8]}", [ids for _, ids in prompts], MEASURED_TOKENS, 0.0)
    if answers.missing:
        answers.write(answer_engine(teacher, str(teacher.device), CONTEXT, None), console)
    texts = [(record.task, *text) for (record, _), text in zip(prompts, answers.texts(), strict=True)]
    return measure(draft, texts, teacher.device, console)


def _check_settings(out: Path, settings: dict[str, object]) -> None:
    path = out / "settings.json"
    if path.exists() and json.loads(path.read_text()) != settings:
        raise ConfigError(f"{out}: was begun with other settings or another corpus; give another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(settings, indent=2).encode())


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.recipes.pair", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="JSONL, plain or .xz")
    parser.add_argument("--out", type=Path, required=True, help="directory for target, draft and report.json")
    preset = "sizes and times (default: gpu if there is one, else cpu)"
    parser.add_argument("--preset", choices=PRESETS, default="gpu" if torch.cuda.is_available() else "cpu", help=preset)
    arguments = parser.parse_args()
    try:
        train_pair(arguments.corpus, arguments.out, PRESETS[arguments.preset], Console(stderr=True))
    except AdaptSpecError as error:
        parser.exit(2, f"{error}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
