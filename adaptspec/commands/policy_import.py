"""Policies from other engines' configuration files: what SGLang and vLLM read for speculation, in their own names.

Sources: SGLang documentation, "Adaptive Speculative Decoding" (the JSON file of `--speculative-adaptive-config`); vLLM
documentation, "Speculative Decoding" and "Dynamic Speculative Decoding" (the JSON of `--speculative-config`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from adaptspec.control.algorithms.fixed_depths import SHIPPED
from adaptspec.control.language.loader import parse_policy_spec
from adaptspec.control.language.schema import validate
from adaptspec.control.language.spec import API_VERSION
from adaptspec.control.language.yaml_source import Source, dump_yaml, parse_yaml, read_text
from adaptspec.control.limits import DEEPEST, Ranges

_Steps = Annotated[list[Annotated[int, Field(ge=0, le=DEEPEST)]], Field(min_length=1, max_length=16)]
_Size = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}$")]


class _Foreign(BaseModel):
    """A mapping of another engine's configuration. An unknown key is an error: nothing is dropped in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class _Margins(_Foreign):
    down_hysteresis: float = -0.25
    up_hysteresis: float = 0.0
    ceiling_coeff: float = 0.0

    @field_validator("ceiling_coeff")
    @classmethod
    def _no_cap(cls, value: float) -> float:
        if value:
            raise ValueError("a cap by the expected length has no counterpart here; set it to 0 or leave it out")
        return value

    def ladder(self, steps: Sequence[int]) -> dict[str, Any]:
        margins = {"down-hysteresis": self.down_hysteresis, "up-hysteresis": self.up_hysteresis}
        return {"tiers": sorted(set(steps)), **{name: margin for name, margin in margins.items() if margin}}


class _Ladder(_Margins):
    candidate_steps: _Steps


class _Sglang(_Margins):
    """Three layouts are read: ladders by first batch size, one ladder, and ladders that differ in their tiers only."""

    ema_alpha: float = Field(default=0.2, gt=0.0, le=1.0)
    warmup_batches: int = Field(default=10, ge=0)
    update_interval: int = Field(default=5, ge=1)
    candidate_steps: _Steps | None = None
    batch_size_to_candidate_steps: dict[_Size, _Steps] | None = None
    ladders: dict[_Size, _Ladder] | None = Field(
        default=None, alias="a first batch size"
    )  # stands for all keys that are numbers

    @model_validator(mode="after")
    def _one_layout(self) -> _Sglang:
        ways = (self.candidate_steps, self.batch_size_to_candidate_steps, self.ladders)
        if sum(way is not None for way in ways) > 1:
            raise ValueError("give candidate_steps, batch_size_to_candidate_steps or keys by batch size, only one")
        sizes = self.batch_size_to_candidate_steps or self.ladders
        if sizes is not None and min(map(int, sizes)) != 1:
            raise ValueError("the first ladder must be for batch size 1, so that every batch size has one")
        return self

    def by_size(self) -> dict[int, dict[str, Any]]:
        """The policy's ladders by first batch size; as SGLang ships them if the file names none."""
        if self.ladders is not None:
            return {int(size): one.ladder(one.candidate_steps) for size, one in self.ladders.items()}
        if self.batch_size_to_candidate_steps is not None:
            return {int(size): self.ladder(steps) for size, steps in self.batch_size_to_candidate_steps.items()}
        if self.candidate_steps is not None:
            return {1: self.ladder(self.candidate_steps)}
        return {size: _Margins(down_hysteresis=one.down_hysteresis).ladder(one.tiers) for size, one in SHIPPED.items()}


class _Vllm(_Foreign):
    num_speculative_tokens: int | None = Field(default=None, ge=0, le=DEEPEST)
    num_speculative_tokens_per_batch_size: Ranges | None = None
    method: Literal["draft_model", "ngram"] | None = None
    model: str | None = None
    prompt_lookup_max: int | None = Field(default=None, ge=1)
    prompt_lookup_min: int | None = Field(default=None, ge=1)
    disable_by_batch_size: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _says_how_deep(self) -> _Vllm:
        if self.num_speculative_tokens is None and self.num_speculative_tokens_per_batch_size is None:
            raise ValueError("give num_speculative_tokens, num_speculative_tokens_per_batch_size or both")
        return self

    @property
    def lengths(self) -> bool:
        return self.prompt_lookup_max is not None or self.prompt_lookup_min is not None

    @property
    def looks_up(self) -> bool:
        """Whether n-grams propose: said, or meant by saying how long they are without a method."""
        return self.method == "ngram" or (self.method is None and (self.lengths or self.model == "[ngram]"))

    def choose(self) -> dict[str, Any]:
        """The depth, fixed or by batch size. A schedule never goes deeper than num_speculative_tokens."""
        deepest = DEEPEST if self.num_speculative_tokens is None else self.num_speculative_tokens
        schedule = self.num_speculative_tokens_per_batch_size
        if schedule is None:
            return {"algorithm": "static", "depth": deepest}
        capped = [[first, last, min(depth, deepest)] for first, last, depth in sorted(schedule)]
        return {"algorithm": "batch-table", "schedule": capped}


def import_sglang(path: Path) -> str:
    """The policy that decides as SGLang does with this file. Raises PolicyError: `file:line:column: path: what is
    wrong`, a line for each thing that is.
    """
    source, data = _read(path)
    sizes = {key: value for key, value in data.items() if str(key).isdecimal()}
    rest = {key: value for key, value in data.items() if key not in sizes}
    config = validate(_Sglang, {**rest, **({"a first batch size": sizes} if sizes else {})}, source)
    choose = {
        "algorithm": "ema-tiers",
        "alpha": config.ema_alpha,
        "warmup": config.warmup_batches,
        "interval": config.update_interval,
        "ladders": dict(sorted(config.by_size().items())),
    }
    remarks = [
        f"Imported from {path.name}, an adaptive speculation configuration of SGLang: it decides as it did there.",
        "It knows no costs, so it keeps trying where drafting loses: `never-slower: on` under `guard` prevents that.",
    ]
    spec = {"choose": choose, "guard": {"never-slower": "off"}}
    return policy_text("sglang-import", "SGLang's adaptive rule, imported", spec, remarks)


def import_vllm(path: Path) -> str:
    """The policy that drafts as deep as vLLM does with this file. Raises as `import_sglang` does."""
    source, data = _read(path)
    config = validate(_Vllm, data, source)
    spec: dict[str, Any] = {"drafters": ["ngram" if config.looks_up else "draft-model"], "choose": config.choose()}
    guard: dict[str, Any] = {"never-slower": "off"}
    if config.disable_by_batch_size is not None:
        guard["max-batch-size"] = config.disable_by_batch_size
    spec["guard"] = guard
    remarks = [
        f"Imported from {path.name}, a speculative configuration of vLLM: it drafts as deep as it did there.",
        "It goes on where drafting loses: `never-slower: on` under `guard` prevents that.",
    ]
    if config.model is not None and not config.looks_up:
        remarks.append(f"The draft model is not part of a policy; serve with --draft {config.model!r}.")
    if config.lengths:
        remarks.append("The lengths of looked-up n-grams are not part of a policy: the longest match counts here.")
    return policy_text("vllm-import", "vLLM's speculative configuration, imported", spec, remarks)


IMPORTERS: Mapping[str, Callable[[Path], str]] = {"sglang": import_sglang, "vllm": import_vllm}


def policy_text(name: str, description: str, spec: Mapping[str, Any], remarks: Sequence[str]) -> str:
    """A policy file, which is known to be valid, with remarks for whoever reads it."""
    body = {
        "apiVersion": API_VERSION,
        "kind": "SpeculationPolicy",
        "metadata": {"name": name, "description": description},
        "spec": dict(spec),
    }
    header = ["yaml-language-server: $schema=./policy.schema.json", *remarks]
    written = dump_yaml(body, sort_keys=False, default_flow_style=None, width=110)
    text = "".join(f"# {line}\n" for line in header) + written
    parse_policy_spec(text, name)
    return text


def _read(path: Path) -> tuple[Source, dict[Any, Any]]:
    """A JSON file with its places, and what it holds."""
    # JSON is YAML but for tabs, which JSON has between values only.
    source = parse_yaml(read_text(path).replace("\t", " "), str(path))
    if not isinstance(source.data, dict):
        raise source.error((), "a mapping is needed here, as the engine reads it")
    return source, source.data
