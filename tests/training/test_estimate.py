"""A run reports how long it will take, and how to make it shorter, before it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from adaptspec.training.answers import AnswerSpeed
from adaptspec.training.estimate import TimeEstimate, training_speed
from adaptspec.training.students import STUDENTS
from adaptspec.training.teacher import load_teacher

ESTIMATE = TimeEstimate(
    missing_answers=1_000,
    max_tokens=256,
    prompt_tokens=44_000,
    answers=1_000,
    answer_speed=AnswerSpeed(prompt_seconds=0.44, tokens_per_second=100.0),
    training_seconds=3_600,
    training_tokens_per_second=150.0,
    step_tokens=1_024,
)


def test_answers_and_training_are_added_up_with_ways_to_end_sooner() -> None:
    assert ESTIMATE.text().splitlines() == [
        "this run takes about 1 h 50 min at most, in addition to measuring the result:",
        "  answers   50 min at most: 1,000 of up to 256 tokens at 100 tokens/s",
        "  training  60 min: 0.54 million tokens at 150 tokens/s, the answers (at most 0.30 million tokens) 1.8 times",
        "to end sooner: --count 250 (answers in 12 min), or --minutes 15; Ctrl-C stops, the same command continues",
    ]


def test_answers_that_are_there_take_no_time() -> None:
    lines = replace(ESTIMATE, answer_speed=None, missing_answers=0).text().splitlines()
    assert lines[0].startswith("this run takes about 60 min at most")
    assert not any("--count" in line or line.startswith("  answers") for line in lines)


def test_too_little_time_to_learn_is_reported_before_it_is_spent() -> None:
    warning = replace(ESTIMATE, training_seconds=60).text().splitlines()[3]
    assert warning.startswith("warning: these are 9 training steps")
    assert "give --minutes 12 or more, or a smaller --batch" in warning


def test_measuring_the_speed_trains_nothing(target_path: Path) -> None:
    """Two steps, of which the second one is timed: 2 x 16 tokens in four seconds."""
    teacher = load_teacher(str(target_path), torch.device("cpu"))
    student = STUDENTS["draft"](teacher, 3, 1)
    before = {name: weights.clone() for name, weights in student.module.state_dict().items()}
    times = iter([0.0, 9.0, 10.0, 14.0])
    assert training_speed(student, [(5, 6, 7)], (2, 16), teacher.device, clock=lambda: next(times)) == 8.0
    assert all(torch.equal(weights, before[name]) for name, weights in student.module.state_dict().items())
    assert all(parameter.grad is None for parameter in student.module.parameters())
