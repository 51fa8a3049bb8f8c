"""How fast a model is here under policies, next to plain decoding, fixed depths and `transformers`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adaptspec.bench.contenders import EngineContender, policy_engine
from adaptspec.bench.core import Answers, CompareSettings, Contender, Group, compare, comparison_table, groups_of
from adaptspec.bench.setup import described, title_of
from adaptspec.bench.transformers_decoding import TransformersDecoding, check_transformers
from adaptspec.bench.workloads import Workloads, encode
from adaptspec.config import EngineConfig
from adaptspec.control.language.spec import PolicySpec
from adaptspec.drafters import default_drafters
from adaptspec.engine.build import Built
from adaptspec.errors import ConfigError
from adaptspec.request import SamplingParams
from adaptspec.simulation.simulator import static_spec
from adaptspec.tables import Table


@dataclass(frozen=True)
class SpeedSettings:
    """`batch` prompts of a task run at once, `repeats` times, with at most `tokens` tokens each.

    `depths` are those of the fixed policies; `transformers`: plain decoding by its `generate` is compared, too.
    """

    tokens: int = 128
    batch: int = 1
    temperature: float = 0.0
    repeats: int = 1
    depths: Sequence[int] = ()
    transformers: bool = False

    def __post_init__(self) -> None:
        if self.tokens < 2 or self.batch < 1 or self.repeats < 1:
            raise ConfigError("a timing needs at least 2 tokens (--tokens), a batch of 1 (--batch) and 1 repeat")
        if self.transformers and (self.batch > 1 or self.temperature):
            raise ConfigError("transformers is compared one at a time and greedy; leave out --batch and --temperature")
        SamplingParams(temperature=self.temperature)  # raises RequestError for one that no request can have


def speed_config(config: EngineConfig, settings: SpeedSettings) -> EngineConfig:
    """The configuration to build. Raises ConfigError: `transformers` does not run the model, which is a GGUF file."""
    if settings.transformers:
        check_transformers(config)
    return replace(config, max_num_seqs=settings.batch)


def compare_speed(
    built: Built, config: EngineConfig, workloads: Workloads, settings: SpeedSettings, progress: Callable[[], None]
) -> dict[str, Any]:
    """Run every prompt under plain decoding, the policies of the configuration and fixed depths, in turn.

    Returns the result for JSON. `progress` is called after each group of prompts.
    """
    sampling = SamplingParams(max_tokens=settings.tokens, temperature=settings.temperature)
    contenders: list[Contender] = [
        EngineContender(spec.name, policy_engine(built, config, spec, settings.batch), built, sampling)
        for spec in _specs(built, config, settings)
    ]
    if settings.transformers:
        contenders.append(TransformersContender(built, config, settings.tokens))
    found = compare(contenders, groups_of(workloads, settings.batch), CompareSettings(settings.repeats), progress)
    return {
        "benchmark": "speed",
        "setup": described(built, config),
        "settings": {
            "batch": settings.batch,
            "temperature": settings.temperature,
            "tokens": settings.tokens,
            "repeats": settings.repeats,
            "prompts": {task: len(prompts) for task, prompts in workloads.items()},
        },
        "contenders": found.to_json(),
    }


def speed_report(result: dict[str, Any]) -> list[Table | str]:
    """The result for people."""
    settings = result["settings"]
    how = f"batch {settings['batch']}, temperature {settings['temperature']:g}"
    return [comparison_table(result["contenders"], f"{how}: {title_of(result['setup'])}")]


def _specs(built: Built, config: EngineConfig, settings: SpeedSettings) -> list[PolicySpec]:
    """Plain decoding, fixed depths of the first drafter, and the configuration's policies or the default one."""
    asked = built.specs[: len(config.policy) or 1]
    first = default_drafters([drafter.name for drafter in built.drafters])[0]
    specs = [static_spec(0, first, name="off"), *(static_spec(depth, first) for depth in settings.depths), *asked]
    return list({spec.name: spec for spec in specs}.values())


class TransformersContender:
    """Plain greedy decoding by `transformers` on the same weights."""

    name = "transformers"

    def __init__(self, built: Built, config: EngineConfig, tokens: int) -> None:
        self._template, self._longest = built.template, built.target.info.context - tokens
        self._decoding = TransformersDecoding(built, config, tokens)

    def run(self, group: Group) -> Answers:
        (prompt,) = group.prompts
        ids = encode(self._template, prompt, self._longest)
        started = time.perf_counter()
        text = self._decoding.write(ids)
        seconds = time.perf_counter() - started
        return Answers(seconds, [text], len(text), [seconds / len(text)])
