"""vLLM's speculative decoding: the JSON of `--speculative-config`, as a policy.

Source: vLLM documentation, "Speculative Decoding" and "Dynamic Speculative Decoding".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from adaptspec.control.ceilings import DEEPEST, Ranges
from adaptspec.control.importing.foreign import Foreign, Imported, read_foreign, validated


class _Config(Foreign):
    num_speculative_tokens: int | None = Field(default=None, ge=0, le=DEEPEST)
    num_speculative_tokens_per_batch_size: Ranges | None = None
    method: Literal["draft_model", "ngram"] | None = None
    model: str | None = None
    prompt_lookup_max: int | None = Field(default=None, ge=1)
    prompt_lookup_min: int | None = Field(default=None, ge=1)
    disable_by_batch_size: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _says_how_deep(self) -> _Config:
        if self.num_speculative_tokens is None and self.num_speculative_tokens_per_batch_size is None:
            raise ValueError("give num_speculative_tokens, num_speculative_tokens_per_batch_size or both")
        return self

    @property
    def looks_up(self) -> bool:
        """Whether n-grams propose: said, or meant by saying how long they are without a model."""
        said = self.prompt_lookup_max is not None or self.prompt_lookup_min is not None or self.model == "[ngram]"
        return self.method == "ngram" or (self.method is None and said)

    def choose(self) -> dict[str, Any]:
        """The depth, fixed or by batch size. A schedule never goes deeper than num_speculative_tokens."""
        deepest = DEEPEST if self.num_speculative_tokens is None else self.num_speculative_tokens
        schedule = self.num_speculative_tokens_per_batch_size
        if schedule is None:
            return {"algorithm": "static", "depth": deepest}
        capped = [[first, last, min(depth, deepest)] for first, last, depth in sorted(schedule)]
        return {"algorithm": "batch-table", "schedule": capped}


def import_vllm(path: Path, name: str = "vllm-import") -> Imported:
    """
    Raises:
        PolicyError: `file:line:column: path: what is wrong`, a line for each thing that is.
    """
    source = read_foreign(path)
    config = validated(_Config, source.data, source)
    spec: dict[str, Any] = {"drafters": ["ngram" if config.looks_up else "draft-model"], "choose": config.choose()}
    if config.disable_by_batch_size is not None:
        spec["guard"] = {"max-batch-size": config.disable_by_batch_size}
    return Imported(name, "vLLM's speculative configuration, imported", spec, _remarks(path, config))


def _remarks(path: Path, config: _Config) -> list[str]:
    remarks = [
        f"Imported from {path.name}, a speculative configuration of vLLM: it drafts as deep as it did there.",
        "It runs on where drafting loses: `guard: {never-slower: {}}` prevents that.",
    ]
    if config.model is not None and not config.looks_up:
        remarks.append(f"The draft model is not part of a policy; serve with --draft {config.model!r}.")
    if config.prompt_lookup_max is not None or config.prompt_lookup_min is not None:
        remarks.append("The lengths of looked-up n-grams are not part of a policy: the longest match counts here.")
    return remarks
