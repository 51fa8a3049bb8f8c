"""The target's answers to the prompts of a corpus, which drafters learn from: made once, kept in a folder."""

from __future__ import annotations

import io
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from adaptspec.config import EngineConfig
from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ConfigError, EngineError
from adaptspec.files import DAMAGE, read_arrays, write_file
from adaptspec.request import Request, SamplingParams
from adaptspec.training.conversations import rendered
from adaptspec.training.corpus import Record
from adaptspec.training.status import Status
from adaptspec.training.teacher import Teacher

SHARD = 64  # answers in a file
ROWS = 32
QUEUED = 2 * ROWS  # requests in the engine, so that no row is idle
OPENING = 64  # tokens of running text that the target continues
SAMPLED_TOKENS = 16  # of each answer in a measurement of the speed
Prompt = tuple[int, ...]


def encode_prompts(teacher: Teacher, records: Sequence[Record], max_tokens: int) -> list[tuple[Record, Prompt]]:
    """Token ids of the conversations and of the openings of texts. Those that leave no room for an answer are left out.

    Raises CorpusError: the model's chat template does not take a conversation.
    """
    room = teacher.context - max_tokens
    encoded = ((record, _encode(teacher, record)) for record in records)
    return [(record, prompt) for record, prompt in encoded if 0 < len(prompt) <= room]


def _encode(teacher: Teacher, record: Record) -> Prompt:
    template = teacher.template
    if record.prompt is None:
        return tuple(teacher.tokenizer.encode(record.completion)[:OPENING])
    if template.source is None:
        return tuple(template.encode_turn(record.prompt))
    return tuple(template.encode(rendered(template, record, record.messages, answer=True)))


@dataclass(frozen=True)
class AnswerSpeed:
    """Measured with the real prompts, as many at a time as later: seconds to read a prompt, and tokens per second."""

    prompt_seconds: float
    tokens_per_second: float

    def seconds(self, count: int, tokens: int) -> float:
        """For `count` answers of so many tokens each."""
        return count * (self.prompt_seconds + tokens / self.tokens_per_second)


@dataclass(frozen=True)
class Answers:
    """Answers of at most `max_tokens` to prompts, greedy and at `temperature` in turn, in files of `SHARD` answers."""

    folder: Path
    prompts: Sequence[Prompt]
    max_tokens: int
    temperature: float

    @property
    def missing(self) -> list[int]:
        """The numbers of the shards that are not there yet."""
        return [shard for shard in self._shards if not self._path(shard).exists()]

    @property
    def _shards(self) -> range:
        return range(-(-len(self.prompts) // SHARD))

    @property
    def missing_answers(self) -> int:
        return sum(len(self._numbers(shard)) for shard in self.missing)

    def measure_speed(self, engine: Engine, clock: Callable[[], float] = time.perf_counter) -> AnswerSpeed:
        """Answer the first prompts that are missing, with few tokens."""
        prompts = [self.prompts[number] for number in self._numbers(self.missing[0])[:ROWS]]
        began = clock()
        engine.generate(prompts, SamplingParams(1, ignore_eos=True))
        read = clock()
        tokens = min(SAMPLED_TOKENS, self.max_tokens) + 1
        engine.generate(prompts, SamplingParams(tokens, ignore_eos=True))
        reading, both = read - began, clock() - read
        # The prompts are read again, which must not count as decoding; noise must not make it free.
        decoding = max(both - reading, 0.1 * both)
        return AnswerSpeed(reading / len(prompts), len(prompts) * (tokens - 1) / decoding)

    def write(self, engine: Engine, console: Console) -> None:
        """Write the missing shards, each when its last answer ends. An interruption loses those in progress.

        Raises EngineError: an answer ends in an error.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        waiting = deque(number for shard in self.missing for number in self._numbers(shard))
        total, began, tokens = len(waiting), time.monotonic(), 0
        running: dict[str, int] = {}
        answers: dict[int, tuple[int, ...]] = {}
        with Status(console, "answers", total) as status:
            while waiting or running:
                while waiting and len(running) < QUEUED:
                    request = self._request(waiting.popleft())
                    running[request.id] = int(request.id)
                    engine.core.check(request)
                    engine.core.add(request)
                for delta in engine.core.step():
                    if delta.completion is None:
                        continue
                    number = running.pop(delta.request_id)
                    if delta.completion.error is not None:
                        raise EngineError(f"the answer to prompt {number + 1} fails: {delta.completion.error}")
                    answers[number] = tuple(delta.completion.tokens)
                    tokens += len(answers[number])
                    if all(one in answers for one in self._numbers(number // SHARD)):
                        self._save(number // SHARD, answers)
                    done, speed = total - len(waiting) - len(running), tokens / (time.monotonic() - began)
                    status.update(done, f"{done:,} of {total:,} at {speed:.0f} tokens/s")

    @cached_property
    def _texts(self) -> list[tuple[Prompt, Prompt]]:
        texts = []
        for shard in self._shards:
            path, prompts = self._path(shard), [self.prompts[number] for number in self._numbers(shard)]
            try:
                arrays = read_arrays(path)
                answers = np.split(arrays["tokens"].astype(np.uint32), np.cumsum(arrays["lengths"])[:-1])
                texts += [(prompt, tuple(answer.tolist())) for prompt, answer in zip(prompts, answers, strict=True)]
            except (OSError, *DAMAGE) as error:
                raise ConfigError(f"{path}: is damaged ({error}); delete it, and it is written again") from error
        return texts

    def texts(self) -> list[tuple[Prompt, Prompt]]:
        """Each prompt with its answer. Raises ConfigError: a shard is damaged."""
        return self._texts

    def tokens(self) -> npt.NDArray[np.uint32]:
        """Token ids [N] of prompts with their answers, one after another."""
        return np.array([token for prompt, answer in self._texts for token in (*prompt, *answer)], dtype=np.uint32)

    def _path(self, shard: int) -> Path:
        return self.folder / f"{shard * SHARD:07d}.npz"

    def _numbers(self, shard: int) -> range:
        """The numbers of the prompts of a shard."""
        return range(shard * SHARD, min((shard + 1) * SHARD, len(self.prompts)))

    def _request(self, number: int) -> Request:
        temperature = self.temperature * (number % 2)
        sampling = SamplingParams(self.max_tokens, temperature=temperature, seed=number)
        return Request(str(number), self.prompts[number], sampling)

    def _save(self, shard: int, answers: Mapping[int, Sequence[int]]) -> None:
        chosen = [answers[number] for number in self._numbers(shard)]
        packed = io.BytesIO()
        np.savez(
            packed,
            tokens=np.array([token for answer in chosen for token in answer], dtype=np.uint32),
            lengths=np.array([len(answer) for answer in chosen], dtype=np.int64),
        )
        write_file(self._path(shard), packed.getbuffer())


def answer_engine(teacher: Teacher, device: str, longest: int, threads: int | None) -> Engine:
    """An engine for the target that answers `ROWS` prompts at a time; with an answer they have `longest` tokens."""
    context = min(longest, teacher.context)
    config = EngineConfig(
        model=teacher.name,
        draft=None,
        device=device,
        max_num_seqs=ROWS,
        prefix_cache="off",
        max_model_len=context,
        cache_tokens=ROWS * context,  # the rest of a GPU's memory is for training
        detect_tasks=False,
        threads=threads,
    )
    return Engine.from_config(config)
