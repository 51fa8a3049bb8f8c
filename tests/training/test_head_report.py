"""Agreement of a head is that of rounds which begin at each place, and counts like a draft model's."""

from __future__ import annotations

import numpy as np
import torch

from adaptspec.training.head_files import make_head
from adaptspec.training.head_modules import heard
from adaptspec.training.head_report import agreements
from adaptspec.training.measure import acceptance_length, conditional_acceptance
from tests.conftest import MakeModel
from tests.training.test_head_modules import DEPTH, FEW, random_head, teacher_of, text


def test_a_head_is_asked_from_where_the_target_has_read_to(make_model: MakeModel) -> None:
    """The first token of the output is drafted behind the last of the prompt, whose state is not known yet."""
    teacher, first = teacher_of(make_model(num_hidden_layers=4)), 6
    for vocabulary in (None, FEW):
        head, ids = random_head(teacher, "eagle", 1, vocabulary), text(20)
        found = agreements(head, teacher, ids, first, DEPTH)
        assert found.shape == (20 - first, DEPTH)
        states, _ = heard(teacher, ids, head)
        for start in range(20 - first - DEPTH):
            place = first + start - 2
            with torch.no_grad():
                logits = head(states[:, : place + 1], ids[:, : place + 1 + DEPTH], torch.tensor([place]))
            guesses = [int(each[0, 0].argmax()) for each in logits]
            guesses = guesses if vocabulary is None else vocabulary[guesses].tolist()
            wanted = ids[0, first + start : first + start + DEPTH].tolist()
            assert found[start].tolist() == [a == b for a, b in zip(guesses, wanted, strict=True)]


def test_the_targets_own_copy_agrees_with_its_greedy_text(make_model: MakeModel) -> None:
    teacher = teacher_of(make_model(num_hidden_layers=4))
    written = teacher.generate(text(5), max_new_tokens=10, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert agreements(teacher, teacher, written, 5, DEPTH).tolist() == [True] * 10


def test_rounds_of_both_shapes_count_alike() -> None:
    """A draft model's agreement does not depend on where the round began."""
    flat = np.random.default_rng(0).random(50) < 0.6
    deep = np.lib.stride_tricks.sliding_window_view(np.append(flat, [False] * 3), 4)
    assert acceptance_length([deep], 4) == acceptance_length([flat], 4)
    assert conditional_acceptance([deep], 4) == conditional_acceptance([flat], 4)


def test_medusa_says_nothing_of_a_vocabulary_of_its_own(make_model: MakeModel) -> None:
    """It drafts whatever the target can say."""
    teacher = teacher_of(make_model(num_hidden_layers=4))
    head = make_head("medusa", teacher, DEPTH, 1)
    assert agreements(head, teacher, text(20), 6, DEPTH).shape == (14, DEPTH)
