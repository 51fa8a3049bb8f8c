"""Plain greedy decoding against another engine: `transformers` on the same weights, or a server of OpenAI's API.

Other engines sum in other orders. A difference counts as rounding where our two best logits are within the data type's
tie; each one is listed. Text that goes on where the other has ended has no gap, and is never rounding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.error import HTTPError

from transformers import PreTrainedTokenizerFast

from adaptspec.bench.exactness import TOP, first_difference, located
from adaptspec.bench.openai_server import error_text, first_model, opened, server_root
from adaptspec.bench.setup import described, title_of
from adaptspec.bench.transformers_decoding import TransformersDecoding, check_transformers
from adaptspec.bench.workloads import Workloads, encode
from adaptspec.config import EngineConfig
from adaptspec.engine.build import Built
from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ConfigError
from adaptspec.request import SamplingParams, SpeculationParams
from adaptspec.results import Completion
from adaptspec.tables import Table

TRANSFORMERS = "transformers"
# By how much the two best logits may differ where rounding alone can exchange them; `QUANTIZED` for other types.
TIES = {"float32": 1e-4, "float16": 0.05, "bfloat16": 0.5}
QUANTIZED = 0.5
_SECONDS = 600.0  # for an answer


@dataclass(frozen=True)
class Answer:
    """What another engine wrote: token ids, without that which ends the text; None where only the text is known."""

    text: str
    tokens: tuple[int, ...] | None = None


Ask = Callable[[tuple[int, ...]], Answer]


def check_against(engine: str, config: EngineConfig) -> None:
    """Raises ConfigError: "transformers" does not run the model, which is a GGUF file."""
    if engine == TRANSFORMERS:
        check_transformers(config, ", or the URL of a server as --against")


def run_against(
    engine: str, built: Built, config: EngineConfig, workloads: Workloads, tokens: int, *, tick: Callable[[str], None]
) -> dict[str, Any]:
    """Answer every prompt greedily here and by `engine` ("transformers" or a URL); `tick` is called after each.

    Raises:
        ConfigError, ModelError: the other engine cannot be used.
    """
    ask = _transformers(built, config, tokens) if engine == TRANSFORMERS else _server(engine, tokens)
    ours, tie = Engine(built.core, built.tokenizer, built.template), TIES.get(built.target.info.dtype, QUANTIZED)
    longest = built.target.info.context - tokens
    greedy = SamplingParams(tokens, 0.0, logprobs=TOP)
    differences = []
    prompts = [encode(built.template, prompt, longest) for prompts in workloads.values() for prompt in prompts]
    for number, prompt in enumerate(prompts):
        (expected,) = ours.generate([prompt], greedy, SpeculationParams(policy="off"))
        difference = compared(expected, ask(prompt), built.tokenizer, built.target.info.eos_token_ids)
        if difference is not None:
            differences.append({"prompt": number, **difference})
        tick(engine)
    return {
        "benchmark": "exactness",
        "setup": described(built, config),
        "against": engine,
        "prompts": len(prompts),
        "tie": tie,
        "different": len(differences),
        "unexplained": sum(one["gap"] is None or one["gap"] > tie for one in differences),
        "differences": differences,
    }


def compared(
    expected: Completion, answer: Answer, tokenizer: PreTrainedTokenizerFast, ends: Sequence[int]
) -> dict[str, Any] | None:
    """Where another engine's answer leaves ours, with both tokens (None: unknown) and our gap there; None: nowhere."""
    tokens = expected.tokens[:-1] if expected.tokens and expected.tokens[-1] in ends else expected.tokens
    if answer.tokens is not None:
        at = first_difference(tokens, answer.tokens)
        return None if at is None else located(expected, at, answer.tokens)
    character = first_difference(tokenizer.decode(list(tokens), skip_special_tokens=True), answer.text)
    if character is None:
        return None
    lengths = [len(tokenizer.decode(list(tokens[:end]), skip_special_tokens=True)) for end in range(len(tokens) + 1)]
    at = next((i for i, (_, end) in enumerate(pairwise(lengths)) if end > character), len(tokens))
    return located(expected, at, ())


def _transformers(built: Built, config: EngineConfig, tokens: int) -> Ask:
    decoding, ends = TransformersDecoding(built, config, tokens), built.target.info.eos_token_ids

    def ask(prompt: tuple[int, ...]) -> Answer:
        written = decoding.write(prompt)
        return Answer("", written[:-1] if written[-1] in ends else written)

    return ask


def _server(url: str, tokens: int) -> Ask:
    root = server_root(url)
    with _asking(f"{root}/v1/models"):
        model = first_model(root, seconds=_SECONDS)["id"]
    address = f"{root}/v1/completions"

    def ask(prompt: tuple[int, ...]) -> Answer:
        body = {"model": model, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "logprobs": 1}
        with _asking(address), opened(address, body, seconds=_SECONDS) as answer:
            choice = json.load(answer)["choices"][0]
            content = (choice.get("logprobs") or {}).get("content") or [{}]  # llama.cpp's form, which has ids
            ids = tuple(one["id"] for one in content) if "id" in content[0] else None
            return Answer(choice["text"], ids)

    return ask


@contextmanager
def _asking(url: str) -> Iterator[None]:
    """Raises ConfigError: there is no answer, or not one of OpenAI's API."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = f"{error}: {error_text(error)}" if isinstance(error, HTTPError) else str(error)
        raise ConfigError(f"{url} cannot be asked ({reason}); give the address of a server") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{url} does not answer as OpenAI's API does; give the address of such a server") from error


def against_report(result: Mapping[str, Any]) -> list[Table | str]:
    """The result for people."""
    table = Table("prompt", "position", "our token", "their token", "gap of our best two", title="first differences")
    for one in result["differences"]:
        ours, theirs = ("-" if token is None else str(token) for token in one["tokens"])
        gap = "-" if one["gap"] is None else f"{one['gap']:.4f}"
        table.add_row(str(one["prompt"]), str(one["position"]), ours, theirs, gap)
    same, close = result["prompts"] - result["different"], result["different"] - result["unexplained"]
    return [
        *([table] if result["differences"] else []),
        f"{same} of {result['prompts']} greedy texts are those of {result['against']}. First differences where our "
        f"best two logits are within {result['tie']:g}: {close}; elsewhere: {result['unexplained']}. "
        f"({title_of(result['setup'])})",
    ]
