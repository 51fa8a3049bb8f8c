"""The draft model under training: what is served of it, what it learns, and what training leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from adaptspec.drafting import draft_student
from adaptspec.drafting.draft_student import Student, Window
from adaptspec.errors import ConfigError
from tests.conftest import MakeModel
from tests.models.packing import feed, load_runner, random_tokens

TOKENS = random_tokens(40)


def said(places: list[int], tokens: list[int], share: float = 0.9) -> Window:
    """A target that finds one token likely at each place."""
    log = torch.full((len(places), 1), share).log()
    return Window(torch.tensor(TOKENS), torch.tensor(places), torch.tensor(tokens).unsqueeze(1), log)


@pytest.mark.parametrize(
    ("family", "more"),
    [("llama", {}), ("llama", {"tie_word_embeddings": False}), ("qwen2", {}), ("qwen3", {}), ("mistral", {})],
)
def test_what_is_served_is_what_was_loaded(make_model: MakeModel, family: str, more: dict[str, bool]) -> None:
    """Before anything is learned the same logits come out, to the bit, also after swapping there and back."""
    folder = make_model(family, **more)
    runner, student = load_runner(folder, max_rows=4), Student(folder, "float32")
    before = feed(runner, 0, TOKENS)
    former = runner.adopt(student.served(student.copied()))
    assert torch.equal(feed(runner, 1, TOKENS), before)
    runner.adopt(former)
    assert torch.equal(feed(runner, 2, TOKENS), before)


def test_it_learns_what_the_target_said_and_keeps_what_it_serves(draft_path: Path) -> None:
    """Training moves towards the target at its places, and touches neither what is kept nor what was handed out."""
    student = Student(draft_path, "float32")
    runner = load_runner(draft_path, max_rows=4)
    handed = student.copied()
    runner.adopt(student.served(handed))
    before = feed(runner, 0, TOKENS).clone()
    window = said([10, 20, 30], [7, 8, 9])

    def likely() -> torch.Tensor:
        with torch.no_grad():
            return student._said(window.tokens, 1, None)[window.places].gather(1, window.ids)

    first = likely()
    for _ in range(5):
        student.learn(window)
        student.step(1.0)
    assert (likely() > first + 0.01).all()
    assert torch.equal(feed(runner, 1, TOKENS), before)
    for name, tensor in student.kept.items():
        assert torch.equal(handed[name], tensor)
    student.begin()
    assert torch.equal(likely(), first)


def test_elsewhere_it_stays_what_it_was(draft_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that learned only where it was wrong would forget where it was right."""
    student = Student(draft_path, "float32")
    window, speaks = said([10, 20, 30], [7, 8, 9]), student._said

    def moved() -> float:
        student.begin()
        for _ in range(20):
            student.learn(window)
            student.step(1.0)
        with torch.no_grad():
            now, before = (speaks(window.tokens, 1, tensors) for tensors in (None, student.kept))
        others = [place for place in range(len(TOKENS)) if place not in window.places]
        return float((now - before)[others].abs().mean())

    held = moved()
    monkeypatch.setattr(student, "_said", lambda tokens, first, _: speaks(tokens, first, None))
    assert held < 0.7 * moved()  # without anything to hold it


def test_gains_are_counted_against_what_is_kept(draft_path: Path) -> None:
    """In nats, of the tokens asked about and no others; none before anything is learned."""
    student = Student(draft_path, "float32")
    tokens = torch.tensor(TOKENS)
    assert student.gained(tokens, 1) == 0
    window = said([24], [TOKENS[25]], 0.999)
    for _ in range(60):
        student.learn(window)
        student.step(1.0)
    with torch.no_grad():
        before, now = (float(student._said(tokens, 25, held)[0, TOKENS[25]]) for held in (student.kept, None))
    assert student.gained(tokens[:26], 25) == pytest.approx(now - before)
    assert now - before > 1.0
    assert student.gained(tokens, 26) < now - before


def test_a_draft_too_large_to_learn_between_requests_is_refused(
    draft_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests would wait for pieces of training that take long."""
    monkeypatch.setattr(draft_student, "LONGEST_SECONDS", 0.0)
    with pytest.raises(ConfigError, match=r"--learn-draft: a piece of training of the draft .* requests would wait"):
        Student(draft_path, "float32")
