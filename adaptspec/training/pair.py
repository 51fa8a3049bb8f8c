"""The recipe for a target and a draft that share a tokenizer: tokenizer, target, distilled draft, report, card.

Every stage leaves its result in the work directory and is skipped or resumed when run again.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import io
import os
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from adaptspec.errors import ConfigError, CorpusError
from adaptspec.files import open_file, write_file
from adaptspec.training.corpus import Corpus, choose_prompts, read_corpus
from adaptspec.training.loop import LoopSettings, keep_freed_pages, train
from adaptspec.training.optimizer import Loss, distillation_loss, next_token_loss
from adaptspec.training.pair_report import PairReport, model_card, report_pair
from adaptspec.training.pair_settings import PairSettings, RunRecord, Shape, Stage
from adaptspec.training.tokenizer_training import Windows, encode, train_tokenizer

TARGET, DRAFT = "target", "draft"


def train_pair(
    corpus_path: Path, work: Path, settings: PairSettings, console: Console, prompts: Path | None = None
) -> PairReport:
    """Run the recipe. `work` then holds `target/` and `draft/`, ordinary Hugging Face directories in bfloat16.

    Beside them lie the model card (`README.md`) and the report (`report.json`, `report.md`), which measures
    acceptance on `prompts` (a JSONL file or a folder of them), or else on held-out records. Run
    again with the same settings it goes on where it stopped; a draft of a target that has changed starts anew.

    Raises:
        CorpusError: the corpus cannot be read or is too small.
        ConfigError: `work` was begun with other settings, or is not a directory; a source is not in the corpus.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]  # those of transformers run into ours
    console.print(f"reading {corpus_path}")
    corpus = read_corpus(corpus_path, settings.source_weights)
    # A share of a source that is not there is a slip of the pen, and would go unnoticed.
    unknown = [source for source in settings.named_sources if source not in corpus.tags]
    if unknown:
        has = ", ".join(corpus.tags)
        raise ConfigError(f"--source-weight {unknown[0]}: the corpus has no such source; it has: {has}")
    questions = choose_prompts(prompts, corpus.held_out)
    record = RunRecord(settings.identity, corpus.fingerprint, corpus.sources, hardware(settings.device))
    record.check(work)
    record.save(work)
    record = dataclasses.replace(record, stages=_Recipe(work, settings, console, corpus).run())
    record.save(work)
    console.print("measuring the pair")
    report = report_pair(work / TARGET, work / DRAFT, corpus.held_out, questions, console, device=settings.device)
    (work / "report.json").write_text(report.to_json() + "\n", encoding="utf-8")
    (work / "report.md").write_text(report.to_markdown(), encoding="utf-8")
    (work / "README.md").write_text(model_card(record, report), encoding="utf-8")
    console.print(f"done: {work / TARGET} and {work / DRAFT}; figures in {work / 'report.md'}")
    return report


def hardware(device: str) -> str:
    """What the training runs on, in words."""
    if torch.device(device).type == "cuda":
        return f"one GPU ({torch.cuda.get_device_name(device)})"
    return f"CPU ({torch.get_num_threads()} threads)"


class _Recipe:
    """The stages up to the two models, and what they share."""

    def __init__(self, work: Path, settings: PairSettings, console: Console, corpus: Corpus) -> None:
        self._work, self._settings, self._console = work, settings, console
        self._compile = settings.compile and can_compile(console)
        self._tokenizer = _tokenizer(work, corpus, settings, console)
        tokens = _tokens(work, corpus, self._tokenizer, console)
        self._windows = Windows(tokens, settings.batch, settings.window)
        if settings.device == "cpu":
            keep_freed_pages()

    def run(self) -> dict[str, Stage]:
        settings = self._settings
        target = _build(settings.target, settings, self._tokenizer)
        loss = next_token_loss(target, settings.mixed_precision)
        loop = LoopSettings(settings.target_minutes, settings.target_learning_rate)
        reached = {TARGET: self._stage(TARGET, target, loss, loop)}
        # The teacher is what ships: the exported weights, rounded to bfloat16.
        teacher = AutoModelForCausalLM.from_pretrained(self._work / TARGET, dtype=torch.float32)
        nn.Module.to(teacher, settings.device)
        draft = _build(settings.draft, settings, self._tokenizer)
        loss = distillation_loss(draft, teacher, settings.mixed_precision)
        loop = LoopSettings(settings.draft_minutes, settings.draft_learning_rate)
        reached[DRAFT] = self._stage(DRAFT, draft, loss, loop, weights_hash(teacher))
        return reached

    def _stage(self, name: str, model: PreTrainedModel, loss: Loss, loop: LoopSettings, origin: str = "") -> Stage:
        compiled: Loss = torch.compile(loss) if self._compile else loss
        path, console = self._work / f"{name}.ckpt", self._console
        progress = train(model, compiled, self._windows, loop, path, console=console, origin=origin)
        export(model, self._tokenizer, self._work / name)
        return Stage(round(progress.seconds / 60, 1), self._windows.tokens_after(progress.step))


def weights_hash(model: nn.Module) -> str:
    """A name for the weights as they are, whatever device they are on and however their file is laid out."""
    digest = hashlib.blake2b(digest_size=16)
    for name, weights in sorted(model.named_parameters()):
        digest.update(f"{name} {list(weights.shape)} {weights.dtype} ".encode())
        digest.update(weights.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def can_compile(console: Console) -> bool:
    """Whether torch.compile finds what it needs; told if it does not."""
    if any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++")):
        return True
    console.print("no C++ compiler found: training without torch.compile, which is slower")
    return False


def _tokenizer(work: Path, corpus: Corpus, settings: PairSettings, console: Console) -> PreTrainedTokenizerFast:
    folder = work / "tokenizer"
    if not folder.exists():
        console.print(f"training a tokenizer of {settings.vocab_size:,} entries")
        # Every fourth record is plenty for some thousand merges and keeps this stage under a minute.
        texts = (record.text for record in corpus.train[::4])
        fresh = train_tokenizer(texts, settings.vocab_size, settings.context)
        if len(fresh) < settings.vocab_size:
            raise CorpusError(
                f"the corpus yields a vocabulary of only {len(fresh)} entries; "
                f"give more text, or --vocab-size {len(fresh)}"
            )
        partial = work / "tokenizer.partial"
        fresh.save_pretrained(partial)
        partial.replace(folder)
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    if len(tokenizer) != settings.vocab_size:
        raise ConfigError(f"{folder}: has {len(tokenizer)} entries, not {settings.vocab_size}; give another --out")
    return tokenizer


def _tokens(work: Path, corpus: Corpus, tokenizer: PreTrainedTokenizerFast, console: Console) -> npt.NDArray[np.uint16]:
    path = work / "tokens.npy"
    if not path.exists():
        console.print(f"encoding {len(corpus.train):,} records")
        order = np.random.default_rng(0).permutation(len(corpus.train))
        packed = io.BytesIO()
        np.save(packed, encode(tokenizer, [corpus.train[i].text for i in order]))
        write_file(path, packed.getbuffer())
    with open(open_file(path), "rb") as file:
        return np.asarray(np.load(file), dtype=np.uint16)


def _build(shape: Shape, settings: PairSettings, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=settings.vocab_size,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=settings.context,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    return nn.Module.to(model, settings.device)


def export(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a model and its tokenizer as a directory in bfloat16."""
    # A copy: casting the model itself there and back would also round its rotary frequencies.
    copy.deepcopy(model).bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
