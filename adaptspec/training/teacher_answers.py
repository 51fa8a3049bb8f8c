"""What a target answers to a corpus's prompts, for those who learn to draft for it: written once, kept in a folder."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track

from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ConfigError, CorpusError
from adaptspec.files import DAMAGE, open_file, write_file
from adaptspec.request import SamplingParams
from adaptspec.training.corpus import Record, spread

_SHARD = 256  # prompts that are answered at a time: what is lost when it is stopped
_ROWS = 64


@dataclass(frozen=True)
class AnswerSettings:
    """`count` prompts, answered with at most `tokens` each; every second greedily, the others at `temperature`."""

    count: int = 12_000
    tokens: int = 256
    temperature: float = 0.8


def regenerate(
    folder: Path,
    target: str,
    records: Sequence[Record],
    settings: AnswerSettings,
    console: Console,
    *,
    device: str = "cpu",
) -> npt.NDArray[np.uint32]:
    """Token ids [N] of prompts with the target's answers, one after another. What `folder` has is not answered again.

    The engine may speculate meanwhile, which changes no text.

    Raises:
        CorpusError: no record has a prompt that leaves room for an answer.
        ConfigError: a file in the folder is damaged.
        ModelError: the target cannot be loaded.
    """
    asked = [record for record in records if record.prompt is not None]
    order = np.random.default_rng(0).permutation(len(asked))
    chosen = spread([asked[i] for i in order], settings.count)
    paths = [folder / f"{start:07d}.npy" for start in range(0, len(chosen), _SHARD)]
    missing = [i for i, path in enumerate(paths) if not path.exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        limits = EngineLimits(max_rows=_ROWS)
        engine = Engine.from_config(EngineConfig(target, None, device=device, limits=limits, detect_tasks=False))
        for i in track(missing, "answers", console=console):
            packed = io.BytesIO()
            first = i * _SHARD
            np.save(packed, _answered(engine, chosen[first : first + _SHARD], settings, first))
            write_file(paths[i], packed.getbuffer())
    tokens = np.concatenate([np.zeros(0, np.uint32), *map(_read, paths)])
    if not len(tokens):
        raise CorpusError("the corpus has no prompts that fit the target's context; give records with shorter ones")
    return tokens


def _read(path: Path) -> npt.NDArray[np.uint32]:
    try:
        with open(open_file(path), "rb") as file:
            return np.asarray(np.load(io.BytesIO(file.read())), dtype=np.uint32)
    except DAMAGE as error:
        raise ConfigError(f"{path}: is damaged ({error}); delete it, and it is written again") from error


def _answered(
    engine: Engine, records: Sequence[Record], settings: AnswerSettings, first: int
) -> npt.NDArray[np.uint32]:
    prompts = [engine.template.encode_turn(str(record.prompt)) for record in records]
    room = engine.core.inputs.info.context - settings.tokens
    numbered = [(first + i, ids) for i, ids in enumerate(prompts) if len(ids) <= room]
    sampling = [
        SamplingParams(settings.tokens, temperature=settings.temperature * (number % 2), seed=number)
        for number, _ in numbered
    ]
    completions = engine.generate([ids for _, ids in numbered], sampling)
    texts = [[*ids, *done.tokens] for (_, ids), done in zip(numbered, completions, strict=True)]
    return np.array([token for text in texts for token in text], dtype=np.uint32)
