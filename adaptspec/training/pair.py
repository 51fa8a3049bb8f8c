"""The recipe for a target and a draft that share a tokenizer: tokenizer, target, distilled draft.

Every stage leaves its result in the work directory and is skipped or resumed when run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from adaptspec.training.corpus import Corpus, read_corpus
from adaptspec.training.loop import LoopSettings, train
from adaptspec.training.tokenizer import encode, train_tokenizer


@dataclass(frozen=True)
class Shape:
    """The size of one Llama-architecture model."""

    hidden: int
    layers: int
    heads: int
    mlp: int


@dataclass(frozen=True)
class PairSettings:
    """The recipe's numbers; the defaults are for two CPU cores."""

    target: Shape = Shape(hidden=256, layers=6, heads=4, mlp=704)
    draft: Shape = Shape(hidden=128, layers=1, heads=2, mlp=352)
    vocab_size: int = 4096
    context: int = 1024
    target_minutes: float = 90.0
    draft_minutes: float = 25.0
    target_learning_rate: float = 4e-3
    draft_learning_rate: float = 6e-3
    batch: int = 8
    window: int = 512
    device: str = "cpu"
    compile: bool = False
    source_weights: Mapping[str, float] = field(default_factory=dict)

    def loop(self, minutes: float, learning_rate: float) -> LoopSettings:
        """The loop settings of one stage."""
        return LoopSettings(minutes, learning_rate, batch=self.batch, window=self.window)


def train_pair(corpus_path: Path, work: Path, settings: PairSettings) -> None:
    """Run the recipe; `work` then holds `target/` and `draft/`, ordinary Hugging Face directories."""
    work.mkdir(parents=True, exist_ok=True)
    corpus = read_corpus(corpus_path, settings.source_weights)
    tokenizer = _tokenizer(work, corpus, settings)
    tokens = _tokens(work, corpus, tokenizer)
    target = _build(settings.target, settings, tokenizer)
    _train_stage(target, _next_token_loss(target), tokens, work, "target", settings)
    _export(target, tokenizer, work / "target")
    draft = _build(settings.draft, settings, tokenizer)
    _train_stage(draft, _distillation_loss(draft, target.eval()), tokens, work, "draft", settings)
    _export(draft, tokenizer, work / "draft")


def _train_stage(
    model: LlamaForCausalLM,
    loss: object,
    tokens: npt.NDArray[np.uint16],
    work: Path,
    name: str,
    settings: PairSettings,
) -> None:
    minutes = settings.target_minutes if name == "target" else settings.draft_minutes
    rate = settings.target_learning_rate if name == "target" else settings.draft_learning_rate
    step = torch.compile(loss) if settings.compile else loss
    train(model, step, tokens, settings.loop(minutes, rate), work / f"{name}.ckpt", name)


def _tokenizer(work: Path, corpus: Corpus, settings: PairSettings) -> PreTrainedTokenizerFast:
    folder = work / "tokenizer"
    if not folder.exists():
        # Every fourth record is plenty for 4,096 merges and keeps this stage under a minute.
        texts = (record.text for record in corpus.train[::4])
        train_tokenizer(texts, settings.vocab_size, settings.context).save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _tokens(work: Path, corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> npt.NDArray[np.uint16]:
    path = work / "tokens.npy"
    if not path.exists():
        order = np.random.default_rng(0).permutation(len(corpus.train))
        np.save(path, encode(tokenizer, [corpus.train[i].text for i in order]))
    return np.asarray(np.load(path), dtype=np.uint16)


def _build(shape: Shape, settings: PairSettings, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
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
    return LlamaForCausalLM(config).to(settings.device)


def _next_token_loss(model: LlamaForCausalLM):
    def loss(ids: torch.Tensor) -> torch.Tensor:
        logits = model(ids[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))

    return loss


def _distillation_loss(draft: LlamaForCausalLM, target: LlamaForCausalLM):
    """KL(target || draft) over the vocabulary: the draft learns the target's distribution, not the text."""

    def loss(ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            teacher = target(ids[:, :-1], use_cache=False).logits.float().log_softmax(-1)
        student = draft(ids[:, :-1], use_cache=False).logits.float().log_softmax(-1)
        return F.kl_div(student, teacher, reduction="sum", log_target=True) / ids[:, 1:].numel()

    return loss


def _export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model.to(torch.float32)
