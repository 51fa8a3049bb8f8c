"""How long a training run will take, from speeds that were measured on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.quantity import quantity
from adaptspec.training.answers import AnswerSpeed, Prompt
from adaptspec.training.status import duration
from adaptspec.training.students import Student
from adaptspec.training.trainer import WARMUP_STEPS


@dataclass(frozen=True)
class TimeEstimate:
    """The work that is left and the speeds. `answer_speed` is None if all answers are there.

    `answers`: all answers to train on, with `prompt_tokens` tokens of prompts; `missing_answers`: with those to measure
    on. `step_tokens`: tokens of a training step.
    """

    missing_answers: int
    max_tokens: int
    prompt_tokens: int
    answers: int
    answer_speed: AnswerSpeed | None
    training_seconds: float
    training_tokens_per_second: float
    step_tokens: int

    @property
    def answer_seconds(self) -> float:
        """At most: many answers end before `max_tokens`."""
        return 0.0 if self.answer_speed is None else self.answer_speed.seconds(self.missing_answers, self.max_tokens)

    def text(self) -> str:
        """Lines for the user."""
        training = self.training_tokens_per_second
        tokens = self.training_seconds * training
        most = self.prompt_tokens + self.answers * self.max_tokens
        total = duration(self.answer_seconds + self.training_seconds)
        lines = [f"this run takes about {total} at most, in addition to measuring the result:"]
        if self.answer_speed is not None:
            lines.append(
                f"  answers   {duration(self.answer_seconds)} at most: {self.missing_answers:,} of up to "
                f"{quantity(self.max_tokens, 'token')} at {self.answer_speed.tokens_per_second:.0f} tokens/s"
            )
        lines.append(
            f"  training  {duration(self.training_seconds)}: {tokens / 1e6:.2f} million tokens at {training:.0f} "
            f"tokens/s, the answers (at most {most / 1e6:.2f} million tokens) {tokens / most:.1f} times"
        )
        steps = tokens / self.step_tokens
        if 0 < steps < WARMUP_STEPS:
            needed = WARMUP_STEPS * self.step_tokens / training
            lines.append(
                f"warning: these are {steps:.0f} training steps, which is hardly enough to learn; give --minutes "
                f"{math.ceil(needed / 60)} or more, or a smaller --batch"
            )
        lines.append("to end sooner: " + ", or ".join(self._shorter()) + "; Ctrl-C stops, the same command continues")
        return "\n".join(lines)

    def _shorter(self) -> list[str]:
        fewer = max(1, self.answers // 4)
        shorter = [f"--minutes {self.training_seconds / 240:g}"]
        if self.answer_speed is not None and self.answers > 1:
            seconds = self.answer_speed.seconds(fewer, self.max_tokens)
            shorter.insert(0, f"--count {fewer} (answers in {duration(seconds)})")
        return shorter


def training_speed(
    student: Student,
    prompts: Sequence[Prompt],
    shape: tuple[int, int],
    device: torch.device,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Tokens per second of a training step on prompts, in batches of shape [batch, window]. Nothing is learned.

    The first step is not timed.
    """
    batch, window = shape
    tokens = np.resize(np.concatenate([np.array(prompt, np.int64) for prompt in prompts]), batch * (window + 1))
    ids = torch.from_numpy(tokens.reshape(batch, window + 1)).to(device)
    seconds = 0.0
    for _ in range(2):
        began = clock()
        value = student.loss(ids)
        value.backward()  # type: ignore[no-untyped-call]
        float(value.detach())  # waits for a GPU
        seconds = clock() - began
    student.module.zero_grad(set_to_none=True)
    return batch * window / seconds
