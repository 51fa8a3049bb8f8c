"""The configuration of an engine, from the command line and files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from adaptspec.engine.core import EngineLimits
from adaptspec.models.self_speculation import is_self_speculation

BUNDLED = "bundled"
AUTO = "auto"


@dataclass(frozen=True)
class EngineConfig:
    """The models, policies and limits of an engine.

    `model` and `draft` are directories, GGUF files, hub ids, "smollm2" or "bundled". `draft` "quantized:int8" or
    "quantized:int4" is the model itself in fewer bits, "first-layers:N" its first layers, "mtp" the head in its own
    files; "auto" is the bundled draft for the bundled model and none for others.
    `policies` are names of shipped policies or paths of YAML files. The first is the default for requests that name
    none; if empty, `goodput`, or `goodput-ngram` without a draft model. Requests can also name every shipped policy
    whose drafters are available. `counts` is a corpus file for the counts drafter; "auto" is the one in the model's
    folder, if there is one. `detect_tasks`: detect the task of a request that names none from its prompt.
    `eager`: capture no CUDA graphs. `tensor_parallel_size`: number of devices that share the target, starting at this
    one. `allow_pickle`: allow drafting heads with pickled tensors. `threads`: CPU threads of a forward pass, for the
    whole process; None: the faster of one and all, see `ComputeThreads`. `gpu_layers`: layers of a GGUF file that
    llama.cpp computes on a GPU, if its library supports one. `runner`: "auto" is llama.cpp for a GGUF file and torch
    for a directory; torch supports both, and also heads and trees.
    `chat_template` is a template file that replaces the model's template, "none" is no template;
    `chat_template_kwargs` are default values of its variables. `sanitize_control_tokens`: encode text of messages that
    looks like a control token as ordinary text.
    """

    model: str = BUNDLED
    draft: str | None = AUTO
    policies: tuple[str, ...] = ()
    device: str = AUTO
    dtype: str = AUTO
    context: int | None = None
    cache_tokens: int | None = None
    limits: EngineLimits = EngineLimits()
    detect_tasks: bool = True
    counts: str | None = AUTO
    eager: bool = False
    tensor_parallel_size: int = 1
    allow_pickle: bool = False
    threads: int | None = None
    gpu_layers: int = 0
    runner: Literal["auto", "llama.cpp", "torch"] = "auto"
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    sanitize_control_tokens: bool = False

    @property
    def draft_model(self) -> str | None:
        if self.draft == AUTO:
            return BUNDLED if self.model == BUNDLED else None
        return self.draft

    @property
    def self_speculation(self) -> str | None:
        """The kind of self-speculation, if the draft is made from the model itself."""
        name = self.draft_model
        return name if name is not None and is_self_speculation(name) else None

    @property
    def target_path(self) -> str:
        """The directory, file or hub id of the target."""
        return model_path(self.model, "target")

    @property
    def draft_path(self) -> str | None:
        """The directory, file or hub id of the draft, which is the target's for self-speculation."""
        if self.self_speculation is not None:
            return self.target_path
        return None if self.draft_model is None else model_path(self.draft_model, "draft")

    @property
    def policy_names(self) -> tuple[str, ...]:
        return self.policies or (self.default_policy,)

    @property
    def default_policy(self) -> str:
        """The policy of requests that name none, if no live policy is configured."""
        return "goodput" if self.draft_model is not None else "goodput-ngram"


def model_path(name: str, role: str) -> str:
    """The directory of the bundled `role` ("target" or "draft") for "bundled"; other names are returned unchanged."""
    return str(Path(__file__).parents[1] / "models" / "bundled" / role) if name == BUNDLED else name
