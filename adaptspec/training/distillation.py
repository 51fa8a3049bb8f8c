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
from adaptspec.models.source import find_model
from adaptspec.models.tokenization import fingerprint, load_tokenizer
from adaptspec.training.corpus import SYNTHETIC, choose_prompts, read_corpus
from adaptspec.training.head_files import make_head, save_head
from adaptspec.training.head_modules import TrainedHead, heard
from adaptspec.training.head_report import HeadReport, head_card, report_head
from adaptspec.training.loop import LoopSettings, keep_freed_pages, train
from adaptspec.training.measure import MeasuredTarget, load_transformers
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
    beside: str | None = None,
) -> HeadReport:
    """Run the recipe. `work` then holds a folder named after the kind, a report and a model card.

    The target's answers are kept in `answers` (None: in `work`), which several runs may share. The report measures on
    `prompts` as `train_pair` does, with the figures of the draft model `beside` if one is given.

    Raises:
        CorpusError: the corpus cannot be read or is too small.
        ConfigError: `work` or `answers` cannot be used; the target can have no such drafter; `beside` has other tokens.
        ModelError: the target or `beside` cannot be loaded.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]  # those of transformers run into ours
    console.print(f"reading {corpus_path}")
    corpus = read_corpus(corpus_path, {SYNTHETIC: 0.6})  # as the bundled pair's; of most corpora it thins nothing
    questions = choose_prompts(prompts, corpus.held_out)
    flag, answers = ("--out", work / "answers") if answers is None else ("--answers", answers)
    folder = find_model(settings.target)
    target = MeasuredTarget(folder, settings.device)
    # Whatever cannot be used is to be known before hours of answers and training.
    if beside is not None:
        _other_draft(beside, folder, settings.device)  # and not held meanwhile
    student = _student(settings, target.model)
    asked = {"target": weights_hash(target.model)} | dataclasses.asdict(settings.answers)
    of_answers = RunRecord(asked, corpus.fingerprint, corpus.sources, hardware(settings.device))
    record = dataclasses.replace(of_answers, identity=asked | settings.identity)
    record.check(work)
    of_answers.check(answers, flag)
    of_answers.save(answers, flag)
    record.save(work)
    tokens = regenerate(answers, str(folder), corpus.train, settings.answers, console, device=settings.device)
    if settings.device == "cpu":
        keep_freed_pages()
    loss = _loss(settings, student, target.model, tokens)
    windows = Windows(tokens, settings.batch, settings.window)
    loop = LoopSettings(settings.minutes, settings.learning_rate)
    if settings.compile and can_compile(console):
        loss = torch.compile(loss)
    progress = train(student, loss, windows, loop, work / f"{settings.kind}.ckpt", console=console)
    place = work / settings.kind
    if isinstance(student, TrainedHead):
        save_head(student, target.model, place, settings.target)
    else:
        export(student, load_tokenizer(str(folder)), place)
    stage = Stage(round(progress.seconds / 60, 1), windows.tokens_after(progress.step))
    record = dataclasses.replace(record, stages={settings.kind: stage})
    record.save(work)
    console.print("measuring")
    other = None if beside is None else _other_draft(beside, folder, settings.device)
    report = report_head(target, student, settings.drafted, questions, console, beside=other, device=settings.device)
    (work / "report.json").write_text(report.to_json() + "\n", encoding="utf-8")
    (work / "README.md").write_text(head_card(record, report), encoding="utf-8")
    console.print(f"done: {place}; figures in {work / 'README.md'}")
    return report


def _other_draft(place: str, target: Path, device: str) -> Any:
    if fingerprint(load_tokenizer(place)) != fingerprint(load_tokenizer(str(target))):
        raise ConfigError(
            f"--beside {place}: its tokens are not the target's; name a draft model with the same tokenizer"
        )
    return load_transformers(place, torch.float32, torch.device(device))


def _student(settings: DistillationSettings, teacher: Any) -> Any:
    """What is to be trained; ConfigError if there can be no such thing for the target."""
    layers = settings.layers or LAYERS[settings.kind]
    if settings.kind != DRAFT:
        return make_head(settings.kind, teacher, settings.drafted, layers).to(settings.device)
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(_draft_config(teacher.config, layers), dtype=torch.float32)  # type: ignore[no-untyped-call]
    return model.to(settings.device)


def _loss(settings: DistillationSettings, student: Any, teacher: Any, tokens: npt.NDArray[np.uint32]) -> Loss:
    """What a student learns by. Where that is asked for, a head drafts the frequent ones of these tokens alone."""
    if not isinstance(student, TrainedHead):
        return distillation_loss(student, teacher, settings.mixed_precision)
    whole = int(teacher.config.vocab_size)
    size = settings.draft_vocab or (_LARGE if whole > 2 * _LARGE else whole)
    if size < whole and settings.kind != "medusa":
        frequent = np.bincount(tokens, minlength=whole).argsort(kind="stable")[::-1][:size]
        student.draft_only(torch.from_numpy(np.sort(frequent)).to(settings.device))
    return head_loss(student, teacher, settings.mixed_precision)


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
        if not hasattr(target, name):
            raise ConfigError(
                f"the target is a {target.model_type}, whose config.json has no {name}; train a pair instead"
            )
        setattr(config, name, max(1, getattr(target, name) // 2))
    for whole, part in (("hidden_size", "num_attention_heads"), ("num_attention_heads", "num_key_value_heads")):
        while getattr(config, whole) % getattr(config, part):
            setattr(config, part, getattr(config, part) - 1)
    config.num_hidden_layers, config.tie_word_embeddings = layers, True
    config.layer_types = (getattr(target, "layer_types", None) or [])[:layers] or None
    return config
