"""Heads in training compute what heads that draft do, and read no later token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from adaptspec.errors import ConfigError
from adaptspec.models.loading import load_model
from adaptspec.training.head_files import make_head, save_head
from adaptspec.training.heads import TrainedHead, target_states
from adaptspec.training.teacher import load_teacher
from tests.conftest import MakeModel
from tests.models.heads.golden import drafted as drafted_by
from tests.models.heads.golden import head_runner
from tests.models.test_runner import states_of

LENGTH, DEPTH = 24, 3
FEW = torch.arange(0, 260, 3)
Kind = tuple[str, int, torch.Tensor | None]
KINDS: list[Kind] = [
    ("eagle", 1, None),
    ("eagle", 1, FEW),
    ("medusa", 2, None),
    ("dflash", 2, None),
    ("dflash", 1, FEW),
]


def teacher_of(folder: Path) -> Any:
    return load_teacher(str(folder), torch.device("cpu")).module


def random_head(teacher: Any, kind: str, layers: int, vocabulary: torch.Tensor | None) -> TrainedHead:
    """As it would be saved, in bfloat16."""
    head = make_head(kind, teacher, DEPTH, layers)
    if vocabulary is not None:
        head.draft_only(vocabulary)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).bfloat16())
    return head.eval()


def text(length: int = LENGTH + DEPTH) -> torch.Tensor:
    return torch.randint(4, 260, (1, length), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def drafted(head: TrainedHead, teacher: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    states, _ = target_states(teacher, ids, head)
    return list(head(states[:, :LENGTH], ids, torch.arange(LENGTH)))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("of", KINDS)
def test_a_saved_head_drafts_what_it_has_learned(make_model: MakeModel, tmp_path: Path, family: str, of: Kind) -> None:
    """Logits of all depths, after texts of several lengths: states, positions, masks, norms and names are the same."""
    vocabulary = of[2]
    folder = make_model(family, num_hidden_layers=4, hidden_size=32)
    teacher, target = teacher_of(folder), load_model(str(folder))
    head = random_head(teacher, *of)
    save_head(head, teacher, tmp_path / "head", "target")
    ids = text()
    expected, tokens = drafted(head, teacher, ids), ids[0].tolist()
    for place in (1, 7, LENGTH - 1):
        runner = head_runner(tmp_path / "head", target)
        states = states_of(folder, tokens[: place + 1], layers=runner.spec.capture)
        runner.on_hidden_states([0], [0], [place + 1], states)
        for depth in range(DEPTH):
            got = drafted_by(runner, tokens[: place + 2 + depth])
            own = got if vocabulary is None else got[vocabulary]
            torch.testing.assert_close(own, expected[depth][0, place], atol=1e-4, rtol=1e-4)
            assert vocabulary is None or int(got.argmax()) in vocabulary


@pytest.mark.parametrize(("kind", "layers", "vocabulary"), KINDS)
def test_drafts_depend_on_nothing_that_comes_later(
    make_model: MakeModel, kind: str, layers: int, vocabulary: torch.Tensor | None
) -> None:
    """What depth j says from a place knows the tokens up to j + 1 places on, and no more."""
    teacher = teacher_of(make_model(num_hidden_layers=4))
    head, ids, place = random_head(teacher, kind, layers, vocabulary), text(), 9
    before = drafted(head, teacher, ids)
    for depth in range(DEPTH):
        known = place + 2 + (depth if kind == "eagle" else 0)
        changed = ids.clone()
        changed[:, known:] = (changed[:, known:] + 7) % 256
        torch.testing.assert_close(drafted(head, teacher, changed)[depth][:, place], before[depth][:, place])


def test_what_cannot_be_made_is_refused(make_model: MakeModel) -> None:
    """Too few layers to take states of; layers of another kind, whatever head it is."""
    with pytest.raises(ConfigError, match="2 layers"):
        make_head("eagle", teacher_of(make_model()), DEPTH, 1)
    other = GPT2LMHeadModel(GPT2Config(vocab_size=260, n_embd=8, n_layer=4, n_head=2))
    for kind in ("eagle", "dflash", "medusa"):
        with pytest.raises(ConfigError, match="not gpt2"):
            make_head(kind, other, DEPTH, 1)
