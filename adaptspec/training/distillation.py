"""Training what drafts for a given target on the target's own answers: a small model, or a head.

Every stage leaves its result in the work directory and is skipped or resumed when run again.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from rich.console import Console
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from adaptspec.errors import ConfigError
from adaptspec.models.model_files import resolve_model
from adaptspec.models.tokenization import load_tokenizer
from adaptspec.training.corpus import SYNTHETIC, Corpus, choose_prompts, read_corpus
from adaptspec.training.head_files import make_head, save_head
from adaptspec.training.head_modules import TrainedHead, heard
from adaptspec.training.head_report import HeadReport, head_card, report_head
from adaptspec.training.loop import LoopSettings, keep_freed_pages, train
from adaptspec.training.measure import load_transformers
from adaptspec.training.optimizer import Loss, distillation_loss
from adaptspec.training.pair import can_compile, export, hardware, weights_hash
from adaptspec.training.pair_settings import RunRecord, Stage, check, check_device
from adaptspec.training.teacher_answers import AnswerSettings, regenerate
from adaptspec.training.tokenizer_training import Windows

DRAFT = "draft"
DEPTHS = {DRAFT: 7, "eagle": 4, "medusa": 4, "dflash": 7}  # by kind, where none is asked for
LAYERS = {DRAFT: 1, "eagle": 1, "medusa": 1, "dflash": 2}
_DECAY = 0.8  # what a depth counts of what the one before it does: it is reached less often
_LARGE = 32_000  # tokens of a vocabulary beyond which the frequent ones are enough


@dataclass(frozen=True)
class DistillationSettings:
    """What is trained, for how long and how. `depth`, `layers` None: what suits the kind.

    `draft_vocab`: the most frequent tokens that a head drafts; None: all, of large vocabularies 32,000.
    """

    kind: str
    target: str
    minutes: float = 60.0
    depth: int | None = None
    layers: int | None = None
    draft_vocab: int | None = None
    answers: AnswerSettings = field(default_factory=AnswerSettings)
    learning_rate: float = 8e-3
    batch: int = 4
    window: int = 512
    device: str = "cpu"
    compile: bool = True

    def __post_init__(self) -> None:
        for name, value in (("minutes", self.minutes), ("learning-rate", self.learning_rate)):
            check(f"--{name}", value, math.isfinite(value) and value > 0, "above 0")
        check("--temperature", self.answers.temperature, 0 <= self.answers.temperature <= 100, "between 0 and 100")
        least = 3 * self.drafted + 2
        check("--window", self.window, self.window >= least, f"at least {least} for {self.drafted} drafted tokens")
        check_device(self.device)

    @property
    def mixed_precision(self) -> bool:
        """Whether products are computed in bfloat16: where that is faster."""
        able: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
        return self.device != "cpu" or bool(able.get("avx512_bf16") or able.get("amx_bf16"))

    @property
    def drafted(self) -> int:
        return self.depth or DEPTHS[self.kind]

    @property
    def identity(self) -> dict[str, object]:
        """What must stay the same when a run is taken up again."""
        names = ("kind", "draft_vocab", "learning_rate", "batch", "window")
        sizes = {"depth": self.drafted, "layers": self.layers or LAYERS[self.kind]}
        return sizes | {name: getattr(self, name) for name in names}


def distil(
    corpus_path: Path,
    work: Path,
    settings: DistillationSettings,
    console: Console,
    *,
    answers: Path | None = None,
    prompts: Path | None = None,
    beside: Path | None = None,
) -> HeadReport:
    """Run the recipe. `work` then holds a folder named after the kind, a report and a model card.

    The target's answers are kept in `answers` (None: in `work`), which several runs may share. The report measures on
    `prompts` as `train_pair` does, with the figures of the draft model `beside` if one is given.

    Raises:
        CorpusError: the corpus cannot be read or is too small.
        ConfigError: `work` or `answers` were begun with other settings.
        ModelError: the target cannot be loaded.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]  # those of transformers run into ours
    console.print(f"reading {corpus_path}")
    corpus = read_corpus(corpus_path, {SYNTHETIC: 0.6})  # as the bundled pair's; of most corpora it thins nothing
    questions = choose_prompts(prompts, corpus.held_out)
    folder, answers = resolve_model(settings.target), answers or work / "answers"
    teacher = load_transformers(folder, torch.float32, torch.device(settings.device))
    taught = {"target": weights_hash(teacher)}
    _begin(answers, taught | dataclasses.asdict(settings.answers), corpus, settings.device)
    record = _begin(work, taught | settings.identity, corpus, settings.device)
    tokens = regenerate(answers, str(folder), corpus.train, settings.answers, console, device=settings.device)
    if settings.device == "cpu":
        keep_freed_pages()
    student, loss = _student(settings, teacher, tokens)
    windows = Windows(tokens, settings.batch, settings.window)
    loop = LoopSettings(settings.minutes, settings.learning_rate)
    if settings.compile and can_compile(console):
        loss = torch.compile(loss)
    progress = train(student, loss, windows, loop, work / f"{settings.kind}.ckpt", console=console)
    place = work / settings.kind
    if isinstance(student, TrainedHead):
        save_head(student, teacher, place, settings.target)
    else:
        export(student, load_tokenizer(str(folder)), place)
    stage = Stage(round(progress.seconds / 60, 1), windows.tokens_after(progress.step))
    record = dataclasses.replace(record, stages={settings.kind: stage})
    record.save(work)
    console.print("measuring")
    report = report_head(folder, student, settings.drafted, questions, console, beside=beside, device=settings.device)
    (work / "report.json").write_text(report.to_json() + "\n", encoding="utf-8")
    (work / "README.md").write_text(head_card(record, report), encoding="utf-8")
    console.print(f"done: {place}; figures in {work / 'README.md'}")
    return report


def _begin(folder: Path, identity: dict[str, object], corpus: Corpus, device: str) -> RunRecord:
    record = RunRecord(identity, corpus.fingerprint, corpus.sources, hardware(device))
    record.check(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made a directory ({error}); give another") from error
    record.save(folder)
    return record


def _student(settings: DistillationSettings, teacher: Any, tokens: npt.NDArray[np.uint32]) -> tuple[Any, Loss]:
    mixed, layers = settings.mixed_precision, settings.layers or LAYERS[settings.kind]
    if settings.kind == DRAFT:
        torch.manual_seed(0)
        config: Any = _draft_config(teacher.config, layers)
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        return model.to(settings.device), distillation_loss(model, teacher, mixed)
    whole = int(teacher.config.vocab_size)
    size = settings.draft_vocab or (_LARGE if whole > 2 * _LARGE and settings.kind != "medusa" else whole)
    vocabulary = None
    if size < whole:
        frequent = np.bincount(tokens, minlength=whole).argsort(kind="stable")[::-1][:size]
        vocabulary = torch.from_numpy(np.sort(frequent)).to(settings.device)
    head = make_head(settings.kind, teacher, settings.drafted, layers, vocabulary).to(settings.device)
    return head, head_loss(head, teacher, mixed)


def head_loss(head: TrainedHead, teacher: Any, mixed_precision: bool = False) -> Loss:
    """KL(target || head) over the head's vocabulary, nats, mean over places and depths; these weigh less the deeper."""

    def loss(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=mixed_precision):
            states, wanted = heard(teacher, ids, head)
            places = head.learned_places(ids)
            drafted = head(states[:, : ids.shape[1] - head.depth], ids, places)
        total = torch.zeros((), device=ids.device)
        for depth, logits in enumerate(drafted):
            target = wanted[:, places + 1 + depth].float().log_softmax(-1)
            spread = F.kl_div(logits.float().log_softmax(-1), target, reduction="sum", log_target=True)
            total = total + _DECAY**depth * spread / (len(ids) * len(places))
        return total / sum(_DECAY**depth for depth in range(len(drafted)))

    return loss


def _draft_config(target: Any, layers: int) -> Any:
    """A model of the target's family, half as wide."""
    config = copy.deepcopy(target)
    for name in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        setattr(config, name, max(1, getattr(target, name) // 2))
    config.num_hidden_layers, config.tie_word_embeddings = layers, True
    config.layer_types = (getattr(target, "layer_types", None) or [])[:layers] or None
    return config
