"""A head that we have trained, inside vLLM: it loads, texts stay what they were, and as much is accepted as here.

`python -m tests.hosts.vllm.test_heads PYTHON HEAD METHOD DEPTH [PROMPTS]` prints the same of any head for the bundled
target, with the Python that has vLLM, on up to 60 prompts of a file or folder.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptspec.config import BUNDLED, EngineConfig, model_path
from adaptspec.engine.sync_engine import Engine
from adaptspec.models.chat.chat_template import ChatTemplate
from adaptspec.models.tokenization import load_tokenizer
from adaptspec.request import SamplingParams
from adaptspec.training.corpus import BUILT_IN, read_prompts, spread
from adaptspec.training.students import STUDENTS
from adaptspec.training.teacher import load_teacher
from tests.hosts.vllm.conftest import Program, run_program

DEPTH, STEPS, LENGTH = 3, 32, 96
TOKENS, LONGEST = 160, 200  # vLLM also counts what it accepts beyond the end: long texts have few of those
TARGET = model_path(BUNDLED, "target")


def asked(prompts: Path = BUILT_IN, longest: int = LONGEST) -> list[list[int]]:
    template = ChatTemplate(load_tokenizer(TARGET))
    turns = [template.encode_turn(one.text) for one in spread(read_prompts(prompts), 60)]
    return [tokens for tokens in turns if len(tokens) <= longest]


def ours(prompts: list[list[int]], folder: Path, head: Path, depth: int) -> tuple[list[list[int]], list[float]]:
    """What our engine writes, and the share of drafted tokens accepted at each depth: of all rounds."""
    policy = folder / "static.yaml"
    spec = f"spec: {{choose: {{algorithm: static, depth: {depth}}}}}"
    policy.write_text(f"apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {{name: static}}\n{spec}\n")
    config = EngineConfig(model=BUNDLED, draft=str(head), policy=(str(policy),), detect_tasks=False, counts=None)
    done = Engine.from_config(config).generate(prompts, SamplingParams(TOKENS, temperature=0.0, ignore_eos=True))
    rounds = sum(one.stats.draft_rounds for one in done)
    accepted = zip_longest(*(one.stats.accepted_per_position for one in done), fillvalue=0)
    return [list(one.tokens) for one in done], [sum(counts) / rounds for counts in accepted]


def compared(
    program: Callable[..., dict[str, Any]], head: Path, method: str, depth: int, prompts: list[list[int]]
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompts.json"
        file.write_text(json.dumps(prompts))
        told = program("heads", head, method, file, depth, TOKENS, timeout=500)
        texts, accepted = ours(prompts, Path(folder), head, depth)
    theirs = sum(a != b for a, b in zip(told.pop("plain"), texts, strict=True))
    return {"texts": len(texts), **told, "differing from ours": theirs, "accepted here": accepted}


@pytest.fixture(scope="module")
def eagle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An EAGLE-3 head as `train eagle` saves it, after as much training on short answers as makes it right at times."""
    prompts, folder = asked(longest=LENGTH // 2), tmp_path_factory.mktemp("eagle")
    texts, _ = ours(prompts, folder, Path(model_path(BUNDLED, "draft")), DEPTH)
    ids = torch.tensor([[*prompt, *text][:LENGTH] for prompt, text in zip(prompts, texts, strict=True)])
    head = STUDENTS["eagle"](load_teacher(BUNDLED, torch.device("cpu")), DEPTH, 1)
    optimizer = torch.optim.AdamW(head.module.parameters(), lr=5e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        head.loss(ids).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    head.save(folder / "head")
    return folder / "head"


@pytest.mark.hosts
@pytest.mark.timeout(600)
def test_a_trained_head_drafts_in_vllm_as_here(program: Program, eagle: Path) -> None:
    told = compared(program, eagle, "eagle3", DEPTH, asked())
    assert told["texts"] > 5
    assert told["differing"] == told["differing from ours"] == 0
    assert told["accepted"][0] > 0.1  # one that is never right would show nothing
    assert told["accepted"] == pytest.approx(told["accepted here"], abs=0.02)


if __name__ == "__main__":
    python, head, method, depth, *prompts = sys.argv[1:]
    found = asked(*map(Path, prompts))
    told = compared(partial(run_program, Path(python)), Path(head), method, int(depth), found)
    sys.stdout.write(f"{json.dumps(told)}\n")
