"""What to serve and how, as the command line and files say it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from adaptspec.engine.core import EngineLimits
from adaptspec.models.own_drafts import is_own

BUNDLED = "bundled"
AUTO = "auto"


@dataclass(frozen=True)
class EngineConfig:
    """What to serve and how. `model` and `draft` are directories, GGUF files, hub ids, "smollm2" or
    "bundled".

    `draft` "quantized:int8" or "quantized:int4" is the model itself in fewer bits, "first-layers:N" its first layers,
    "mtp" the head in its own files; "auto" is the bundled draft for the bundled model and none for any other.
    `policies` are names of shipped policies or paths of YAML files; the first is the default for requests that name
    none (left empty: `goodput`, or `goodput-ngram` without a draft model), and every shipped policy whose drafters
    are at hand can be asked for by name. `counts` is a file of a corpus's counts for the counts drafter; "auto" is
    that in the model's folder, if there is one. `detect_tasks`: the task of a request that names none is read off its
    prompt. `eager`: no CUDA graphs are captured. `draft_device`: where the draft model is, if not with the target.
    `tensor_parallel_size`: devices that share the target, from this one on. `exact`: on CUDA, "depths" keeps texts
    the same whatever is drafted beside up to 64 rows, "strict" beside more. `allow_pickle`: heads that draft may have
    their tensors in pickles. `threads`: CPU threads of a forward pass, for all of this process; None: the faster of one
    and all of them, see `ComputeThreads`. `gpu_layers`: how many layers of a GGUF file llama.cpp computes on a GPU, if
    its library was built for one. `runner`: "auto" is llama.cpp for a GGUF file and torch for a directory; torch, which
    has heads and trees, takes both.
    `chat_template` is a file with the template in place of the model's own, "none" is no template;
    `chat_template_kwargs` are its variables where a request does not set them. `sanitize_control_tokens`: text of
    messages that reads like a control token stays text.
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
    draft_device: str | None = None
    tensor_parallel_size: int = 1
    exact: Literal["depths", "strict"] = "depths"
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
    def own_draft(self) -> str | None:
        """What of the model itself drafts for it, if it does."""
        name = self.draft_model
        return name if name is not None and is_own(name) else None

    @property
    def policy_names(self) -> tuple[str, ...]:
        return self.policies or (self.default_policy,)

    @property
    def default_policy(self) -> str:
        """What serves requests that name no policy, if no live one is asked for."""
        return "goodput" if self.draft_model is not None else "goodput-ngram"


def model_place(name: str, role: str) -> str:
    """The directory of the bundled `role` ("target" or "draft") for "bundled", any other name as it is."""
    return str(Path(__file__).parents[1] / "models" / "bundled" / role) if name == BUNDLED else name
