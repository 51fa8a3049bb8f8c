"""Chats of several turns: savings of the prefix cache, whether speculation costs hits, and whether either changes text.

Four engines over one model serve the same chats, with and without the prefix cache, with and without drafts. Then the
time to the first token is measured behind histories of several lengths, and next to a long prompt.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from adaptspec.bench.contenders import complete, policy_engine
from adaptspec.bench.setup import described, title_of
from adaptspec.bench.workloads import Workloads
from adaptspec.config import EngineConfig
from adaptspec.engine.build import Built
from adaptspec.engine.core import EngineCore
from adaptspec.engine.prefix_cache import Mode
from adaptspec.errors import ConfigError
from adaptspec.models.chat.chat_template import ChatTemplate
from adaptspec.request import Request, SamplingParams
from adaptspec.results import Completion
from adaptspec.simulation.simulator import static_spec
from adaptspec.tables import Table

TURNS = (4, 8)  # of a chat, at least and at most
TEMPERATURES = (0.0, 0.8)  # of chats in turn
CACHES: tuple[Mode, ...] = ("off", "key")
ROWS = 8  # of an engine, at least: fewer than there are chats
SYSTEMS = 3  # system prompts, each of a third of the chats
HISTORIES = (500, 1000, 2000)  # tokens before the new turn
TURN_TOKENS = 32  # of a new turn
GAP_TOKENS = 24  # of the stream next to a long prompt, and of the rounds that measure its usual gap


@dataclass(frozen=True)
class ChatSettings:
    """`chats` of `TURNS` turns whose answers have up to `tokens` tokens; times are medians of `repeats`."""

    chats: int = 60
    tokens: int = 32
    batches: tuple[int, ...] = (1, 8)
    repeats: int = 3


@dataclass
class Chat:
    """A conversation: the user's message of each turn, and all messages so far."""

    number: int
    system: str
    turns: Sequence[str]
    messages: list[dict[str, Any]] = field(default_factory=list)
    answers: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return len(self.answers) == len(self.turns)

    def request(self, template: ChatTemplate, tokens: int, longest: int) -> Request:
        """The next turn."""
        if not self.messages:
            self.messages.append({"role": "system", "content": self.system})
        self.messages.append({"role": "user", "content": self.turns[len(self.answers)]})
        prompt = template.encode(template.render(self.messages))[-longest:]
        sampling = SamplingParams(tokens, temperature=TEMPERATURES[self.number % len(TEMPERATURES)], seed=self.number)
        return Request(f"{self.number}-{len(self.answers)}", tuple(prompt), sampling)

    def take(self, done: Completion) -> None:
        """Add the answer to the last request."""
        self.answers.append(done.tokens)
        self.messages.append({"role": "assistant", "content": done.text})


def check_prompts(workloads: Workloads) -> None:
    """Raises ConfigError: there are too few prompts for system prompts."""
    if sum(map(len, workloads.values())) < SYSTEMS:
        raise ConfigError(f"chats need at least {SYSTEMS} prompts; give more --prompts, or a larger --workloads")


def chats_of(workloads: Workloads, count: int) -> list[Chat]:
    """Chats about the prompts of a workload, each of another task in turn."""
    prompts = [[prompt.text for prompt in prompts] for prompts in workloads.values()]
    whole = [text for task in prompts for text in task]
    systems = [f"You are assistant {i}. " + " ".join(whole[i].split()[:120]) for i in range(SYSTEMS)]
    chance, made = random.Random(0), []
    for number in range(count):
        texts = prompts[number % len(prompts)]
        turns = [" ".join(chance.choice(texts).split()[:60]) for _ in range(chance.randint(*TURNS))]
        made.append(Chat(number, systems[number % SYSTEMS], turns))
    return made


def run_chats(
    built: Built, config: EngineConfig, workloads: Workloads, settings: ChatSettings, tick: Callable[[str], None]
) -> dict[str, Any]:
    """Serve the chats with all four engines and measure first tokens; the first policy of `built` drafts.

    `tick` is called after each engine at each batch size, and after each measurement.
    """
    drafting, rows, texts = built.specs[0], list[dict[str, Any]](), list[list[Chat]]()
    count = max(*settings.batches, ROWS)  # of all engines: they follow each other in the same rows
    for batch in settings.batches:
        for cache, policy in itertools.product(CACHES, (static_spec(0, "ngram"), drafting)):
            core = policy_engine(built, config, policy, count, cache)
            chats = chats_of(workloads, settings.chats)
            done = serve_chats(core, built, chats, settings.tokens, batch)
            texts.append(chats)
            rows.append(
                {
                    "batch": batch,
                    "cache": cache,
                    "policy": policy.name,
                    "turns": len(done),
                    "different": different(texts[0], chats),
                    "prompt_tokens": sum(one.prompt_tokens for one in done),
                    "cached_tokens": core.scheduler.prefixes.stats.hits,
                    "drafted": sum(one.stats.drafted for one in done),
                    "first_token_seconds": median(first_seconds(one) for one in done),
                }
            )
            tick(f"batch {batch}, cache {cache}, {policy.name}")
    cached = policy_engine(built, config, drafting, count, "key")
    room = built.target.info.context - TURN_TOKENS
    histories = [length for length in HISTORIES if length < room]
    first = [first_tokens(cached, workloads, built.template, length, settings.repeats) for length in histories]
    tick("first tokens")
    effect = next_to_long_prompt(cached, workloads, built.template, min(HISTORIES[-1], room))
    tick("next to a long prompt")
    return {
        "benchmark": "chats",
        "setup": described(built, config),
        "chats": settings.chats,
        "arms": rows,
        "first_tokens": first,
        "next_to_long_prompt": effect,
    }


def different(expected: Sequence[Chat], found: Sequence[Chat]) -> int:
    """How many answers differ."""
    pairs = ((ours.answers, its.answers) for ours, its in zip(expected, found, strict=True))
    return sum(a != b for ours, its in pairs for a, b in zip(ours, its, strict=True))


def serve_chats(core: EngineCore, built: Built, chats: Sequence[Chat], tokens: int, batch: int) -> list[Completion]:
    """Serve all turns of all chats, `batch` at a time.

    The order is the same in every run with one chat at a time.
    """
    chance, longest = random.Random(1), built.target.info.context - tokens
    open_, running, done = list(chats), dict[str, Chat](), list[Completion]()
    while open_ or running:
        while open_ and len(running) < batch:
            chat = open_.pop(chance.randrange(len(open_)))
            request = chat.request(built.template, tokens, longest)
            running[request.id] = chat
            _add(core, request)
        for delta in core.step():
            if delta.completion is not None:
                chat = running.pop(delta.request_id)
                chat.take(delta.completion)
                done.append(delta.completion)
                if not chat.ended:
                    open_.append(chat)
    return done


def first_seconds(done: Completion) -> float:
    """Seconds from its arrival to the first token of an answer."""
    return (done.timings.first_token or done.timings.finished) - done.timings.arrived


def first_tokens(
    core: EngineCore, workloads: Workloads, template: ChatTemplate, length: int, repeats: int
) -> dict[str, Any]:
    """Seconds to the first token of a new turn after a history of `length` tokens: cached, read whole, and alone."""
    texts = tokens_of(workloads, template)
    sampling = SamplingParams(1, temperature=0.0, ignore_eos=True)
    found: dict[str, list[float]] = {"cached": [], "whole": [], "alone": []}
    for number in range(repeats):
        history, turn = take(texts, length), take(texts, TURN_TOKENS)
        complete(core, [Request(f"history-{length}-{number}", history, sampling)])
        asked = {"cached": (*history, *turn), "whole": (*history, *turn), "alone": turn}
        for name, prompt in asked.items():
            request = Request(f"{name}-{length}-{number}", prompt, sampling, prefix_cache=name == "cached")
            (done,) = complete(core, [request])
            found[name].append(first_seconds(done))
    return {"history": length, **{name: median(seconds) for name, seconds in found.items()}}


def next_to_long_prompt(core: EngineCore, workloads: Workloads, template: ChatTemplate, length: int) -> dict[str, Any]:
    """Effect of a prompt of `length` tokens on a running stream, and on a short chat that arrives right after it.

    Seconds between two rounds of the stream: the median alone, and the maximum during the prompt. Seconds to the first
    token of the short chat: alone, and during the prompt.
    """
    texts = tokens_of(workloads, template)
    long, short, other = take(texts, length), take(texts, TURN_TOKENS), take(texts, TURN_TOKENS)
    one = SamplingParams(1, temperature=0.0, ignore_eos=True)
    (alone,) = complete(core, [Request("alone", short, one, prefix_cache=False)])
    stream = replace(one, max_tokens=100_000)
    _add(core, Request("stream", other, stream, prefix_cache=False))
    gaps: list[float] = []
    for _ in range(GAP_TOKENS):
        gaps.append(_seconds(core.step))
    _add(core, Request("long", long, one, prefix_cache=False))
    _add(core, Request("short", short, one, prefix_cache=False))
    during, done = [], dict[str, Completion]()
    while len(done) < 2:
        began = time.perf_counter()
        deltas = core.step()
        during.append(time.perf_counter() - began)
        done |= {delta.request_id: delta.completion for delta in deltas if delta.completion is not None}
    core.abort("stream")
    return {
        "tokens": length,
        "gap_alone": median(gaps[2:]),
        "gap_during": max(during),
        "first_alone": first_seconds(alone),
        "first_during": first_seconds(done["short"]),
        "long": first_seconds(done["long"]),
    }


def _add(core: EngineCore, request: Request) -> None:
    """Queue a request. Raises RequestError: it cannot be served, such as one that is longer than the context."""
    core.check(request)
    core.add(request)


def _seconds(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def tokens_of(workloads: Workloads, template: ChatTemplate) -> Iterator[int]:
    """Tokens of the prompts, again and again, each round with another number before it."""
    texts = [prompt.text for prompts in workloads.values() for prompt in prompts]
    for number in itertools.count():
        for text in texts:
            yield from template.encode(f"{number} {text}")


def take(tokens: Iterator[int], count: int) -> tuple[int, ...]:
    """The next so many tokens."""
    return tuple(itertools.islice(tokens, count))


def chats_report(result: Mapping[str, Any]) -> list[Table | str]:
    """The result for people."""
    title = f"{result['chats']} chats: {title_of(result['setup'])}"
    columns = ("turns", "texts that differ", "prompt tokens", "of them cached", "drafted", "first token (s)")
    arms = Table("at once", "prefix cache", "policy", *columns, title=title)
    for row in result["arms"]:
        share = row["cached_tokens"] / row["prompt_tokens"]
        cells = (row["turns"], row["different"], row["prompt_tokens"], f"{share:.1%}", row["drafted"])
        arms.add_row(
            str(row["batch"]), row["cache"], row["policy"], *map(str, cells), f"{row['first_token_seconds']:.3f}"
        )
    first = Table("history (tokens)", "cached (s)", "read whole (s)", "new turn alone (s)", "cached / alone")
    for row in result["first_tokens"]:
        seconds = (f"{row[name]:.3f}" for name in ("cached", "whole", "alone"))
        first.add_row(str(row["history"]), *seconds, f"{row['cached'] / row['alone']:.2f}")
    effect = result["next_to_long_prompt"]
    return [
        arms,
        first,
        f"Next to a prompt of {effect['tokens']} tokens (read in {effect['long']:.2f} s): the first token of a short "
        f"chat after {effect['first_during']:.3f} s ({effect['first_alone']:.3f} alone), the longest gap of a stream "
        f"{effect['gap_during']:.3f} s ({effect['gap_alone']:.3f} alone).",
    ]
