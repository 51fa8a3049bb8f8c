"""Trains a drafter for a target on the target's own answers: a small model, or a head.

Every stage leaves its result in the output directory, and is skipped or resumed when the same command runs again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from adaptspec.config import model_path
from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ConfigError, CorpusError
from adaptspec.files import read_text, write_file
from adaptspec.models.compute_threads import all_threads
from adaptspec.models.gguf import is_gguf
from adaptspec.models.loading import device_of
from adaptspec.models.model_files import CONFIG
from adaptspec.models.source import find_model
from adaptspec.models.tokenization import fingerprint, load_tokenizer
from adaptspec.models.transformers_runner import load_module
from adaptspec.quantity import quantity
from adaptspec.training.answers import Answers, Prompt, answer_engine, encode_prompts
from adaptspec.training.config import DistillConfig
from adaptspec.training.corpus import Corpus, Record, read_corpus, read_prompts, spread
from adaptspec.training.estimate import TimeEstimate, training_speed
from adaptspec.training.report import Report, measure
from adaptspec.training.students import STUDENTS, DraftModel, Student
from adaptspec.training.teacher import Teacher, load_teacher
from adaptspec.training.trainer import (
    LoopSettings,
    Windows,
    check_fills_batch,
    check_torch,
    keep_freed_pages,
    train,
    trained_seconds,
)

TRAINING = "training"  # the folder of the output directory with all that is not part of the model
SETTINGS, CHECKPOINT = "settings.json", "checkpoint.state"
MEASURED_PER_TASK = 8


def distill(config: DistillConfig, console: Console) -> Report | None:
    """Train, and write the drafter, its README and report.json to `config.out`; None after a dry run.

    All that can be refused is refused before the target answers, which may take hours.

    Raises:
        CorpusError: the corpus cannot be read, is too small, or has a conversation that the chat template refuses.
        ConfigError: the target can have no such drafter; `out` or `answers` was begun with other settings.
        ModelError: the target or the baseline cannot be loaded.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]  # those of transformers would interrupt ours
    run = _prepare(config, console)
    run.check()
    engine, seconds = run.start_engine(), run.training_seconds
    if engine is not None or seconds > 0:
        console.print(run.estimate(engine, seconds).text(), highlight=False, soft_wrap=True)
    if config.dry_run:
        return None
    run.save_settings()
    try:
        if engine is not None:
            run.greedy.write(engine, console)
            run.answers.write(engine, console)
            del engine
        return run.train()
    except KeyboardInterrupt:
        console.print("stopped; the same command continues here")
        raise


@dataclass(frozen=True)
class _Run:
    """The parts of a run. `answers` are trained on; `greedy` are those to the `measured` prompts."""

    config: DistillConfig
    console: Console
    corpus: Corpus
    teacher: Teacher
    student: Student
    baseline: Student | None
    answers: Answers
    measured: Sequence[tuple[Record, Prompt]]
    greedy: Answers

    @property
    def answer_settings(self) -> dict[str, object]:
        """What the answers depend on."""
        return {
            "target": self.teacher.fingerprint,
            "corpus": self.corpus.fingerprint,
            "count": self.config.answer_count(on_cpu=self.teacher.device.type == "cpu"),
            "max_tokens": self.config.max_tokens,
            "temperature": self.config.temperature,
            "prompts": _digest(self.greedy.prompts),
        }

    @property
    def settings(self) -> dict[str, object]:
        """What must stay the same when a run is resumed."""
        return {**self.answer_settings, **self.config.training_settings}

    def check(self) -> None:
        """Raises ConfigError: torch is too old, or a folder belongs to something else; CorpusError: too few tokens."""
        check_torch()
        most = sum(map(len, self.answers.prompts)) + len(self.answers.prompts) * self.config.max_tokens
        check_fills_batch(most, self.config.batch, self.config.window)
        out = self.config.out
        if out.exists() and not out.is_dir():
            raise ConfigError(f"--out {out} is a file; name a directory")
        if (out / CONFIG).exists() and not (out / TRAINING / SETTINGS).exists():
            raise ConfigError(f"--out {out} holds another model; name a new directory")
        _check_settings(out / TRAINING, self.settings, "--out")
        _check_settings(self.answers.folder, self.answer_settings, "--answers")

    def save_settings(self) -> None:
        """Write down what the folders belong to."""
        _save_settings(self.config.out / TRAINING, self.settings)
        _save_settings(self.answers.folder, self.answer_settings)

    def start_engine(self) -> Engine | None:
        """An engine for the answers; None if there are all."""
        if not (self.answers.missing or self.greedy.missing):
            return None
        self.console.print("measuring speeds")
        longest = max(map(len, [*self.answers.prompts, *self.greedy.prompts])) + self.config.max_tokens
        return answer_engine(self.teacher, self.config.device, longest, self.config.threads)

    @property
    def checkpoint(self) -> Path:
        return self.config.out / TRAINING / CHECKPOINT

    @property
    def training_seconds(self) -> float:
        """Training time that is left. Raises ConfigError: the checkpoint is damaged."""
        return max(0.0, self.config.minutes * 60 - trained_seconds(self.checkpoint))

    def estimate(self, engine: Engine | None, training_seconds: float) -> TimeEstimate:
        """Measure speeds on a few prompts and training steps."""
        to_answer = self.answers if self.answers.missing else self.greedy
        answer_speed = None if engine is None else to_answer.measure_speed(engine)
        _set_threads(self.config)  # the engine may have chosen another number
        window = (self.config.batch, self.config.window)
        return TimeEstimate(
            missing_answers=self.answers.missing_answers + self.greedy.missing_answers,
            max_tokens=self.config.max_tokens,
            prompt_tokens=sum(map(len, self.answers.prompts)),
            answers=len(self.answers.prompts),
            answer_speed=answer_speed,
            training_seconds=training_seconds,
            training_tokens_per_second=training_speed(self.student, self.answers.prompts, window, self.teacher.device),
            step_tokens=self.config.batch * self.config.window,
        )

    def train(self) -> Report:
        """Train on the answers, save and measure."""
        config, console, device = self.config, self.console, self.teacher.device
        _set_threads(config)
        if device.type == "cpu":
            keep_freed_pages()
        tokens = self.answers.tokens()
        self.student.restrict_vocabulary(tokens, config.draft_vocab)
        windows = Windows(tokens, config.batch, config.window)
        loop = LoopSettings(config.minutes, config.learning_rate)
        progress = train(self.student.module, self.student.loss, windows, loop, self.checkpoint, console=console)
        self.student.save(config.out)
        texts = [(record.task, *text) for (record, _), text in zip(self.measured, self.greedy.texts(), strict=True)]
        shown = ("count", "max_tokens", "temperature", *config.training_settings)
        report = Report(
            kind=config.kind,
            target=config.model,
            parameters=sum(parameter.numel() for parameter in self.student.module.parameters()),
            depth=self.student.depth,
            minutes=round(progress.seconds / 60, 1),
            tokens=windows.tokens_after(progress.step),
            settings={name: self.settings[name] for name in shown},
            corpus=self.corpus.fingerprint,
            sources=self.corpus.sources,
            hardware=_hardware(device),
            trained=measure(self.student, texts, device, console),
            baseline=() if self.baseline is None else measure(self.baseline, texts, device, console),
        )
        write_file(config.out / "report.json", report.to_json().encode())
        write_file(config.out / "README.md", report.to_markdown().encode())
        # llama.cpp returns no hidden states, which heads read.
        runner = " --runner torch" if is_gguf(self.teacher.path) and config.kind != "draft" else ""
        console.print(f"done: adaptspec serve --model {config.model} --draft {config.out}{runner}", soft_wrap=True)
        console.print(f"figures are in {config.out / 'README.md'}", soft_wrap=True)
        return report


def _set_threads(config: DistillConfig) -> None:
    """Compute with the configured threads from now on."""
    torch.set_num_threads(config.threads or all_threads())


def _prepare(config: DistillConfig, console: Console) -> _Run:
    """Read the corpus, load the target, make the student and encode all prompts."""
    device = device_of(config.device)
    _set_threads(config)
    corpus = read_corpus(config.corpus)
    held_out = corpus.held_out if config.prompts is None else _records(config.prompts)
    console.print(f"{quantity(len(corpus.train), 'record', form=',')} to train on; loading {config.model}")
    teacher = load_teacher(config.model, device)
    student = STUDENTS[config.kind](teacher, config.round_depth, config.num_layers)
    baseline = None if config.baseline is None else _load_baseline(config.baseline, teacher, config.round_depth)
    order = np.random.default_rng(0).permutation(len(corpus.train))
    chosen = spread([corpus.train[i] for i in order], config.answer_count(on_cpu=device.type == "cpu"))
    asked = [prompt for _, prompt in encode_prompts(teacher, chosen, config.max_tokens)]
    if not asked:
        raise CorpusError(
            f"no prompt of the corpus leaves room for {quantity(config.max_tokens, 'token')} in the target's context "
            f"of {teacher.context}; give shorter ones, or a smaller --max-tokens"
        )
    measured = encode_prompts(teacher, _by_task(held_out), config.max_tokens)
    folder = config.answers or config.out / TRAINING / "answers"
    answers = Answers(folder, asked, config.max_tokens, config.temperature)
    greedy = Answers(folder / "held-out", [prompt for _, prompt in measured], config.max_tokens, 0.0)
    return _Run(config, console, corpus, teacher, student, baseline, answers, measured, greedy)


def _records(path: Path) -> list[Record]:
    """Prompts of a file or folder as records."""
    return [
        Record(({"role": "user", "content": prompt.text},), "", prompt.task, prompt.source)
        for prompt in read_prompts(path)
    ]


def _by_task(records: Sequence[Record]) -> list[Record]:
    """At most `MEASURED_PER_TASK` records of each task."""
    tasks = sorted({record.task for record in records})
    return [record for task in tasks for record in spread([r for r in records if r.task == task], MEASURED_PER_TASK)]


def _load_baseline(name: str, teacher: Teacher, depth: int) -> Student:
    folder = find_model(model_path(name, "draft"))
    if fingerprint(load_tokenizer(str(folder))) != fingerprint(teacher.tokenizer):
        raise ConfigError(f"--baseline {name}: its tokens are not the target's; name a model with the same tokenizer")
    return DraftModel(load_module(folder, torch.float32, teacher.device), teacher, depth)


def _digest(prompts: Sequence[Prompt]) -> str:
    return hashlib.blake2b(json.dumps(list(prompts)).encode(), digest_size=8).hexdigest()


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return f"one GPU ({torch.cuda.get_device_name(device)})"
    return f"a CPU ({quantity(torch.get_num_threads(), 'thread')})"


def _check_settings(folder: Path, settings: Mapping[str, object], flag: str) -> None:
    """Raise ConfigError if a folder was begun with other settings, or cannot be used."""
    path = folder / SETTINGS
    if not path.exists():
        return
    try:
        earlier: dict[str, Any] = dict(json.loads(read_text(path, 2**20)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); delete it, or give another {flag}") from error
    different = sorted(name for name in {*earlier, *settings} if earlier.get(name) != settings.get(name))
    if different:
        names = ", ".join(name.replace("_", "-") for name in different)
        raise ConfigError(
            f"{folder}: was begun with other settings ({names}); give the same ones to continue, or another {flag}"
        )


def _save_settings(folder: Path, settings: Mapping[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / SETTINGS, (json.dumps(settings, indent=2) + "\n").encode())
