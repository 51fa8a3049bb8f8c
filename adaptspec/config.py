"""All settings of an engine and of a server. Each is declared here once; `settings` reads them and describes them.

Imports nothing that takes time: `adaptspec serve --help` is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from adaptspec.control.language.library import is_file_name
from adaptspec.settings import Setting

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
BUNDLED = "bundled"
AUTO: Literal["auto"] = "auto"
NONE = "none"
ANY_NAME = "*"  # among the served names: every name is served


def _check_template_values(values: dict[str, Any]) -> None:
    from adaptspec.models.chat.template_values import check_values  # noqa: PLC0415 - brings torch

    check_values(values)


def _is_template_file(name: str) -> bool:
    return name != NONE


def _is_counts_file(name: str) -> bool:
    return name != AUTO


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The models, policies and limits of an engine."""

    model: Annotated[str, Setting(group="Model", metavar="MODEL")] = BUNDLED
    """The target: directory, GGUF file, hub id or smollm2.

    A hub id is org/name, or org/name:Q4_K_M for one of its GGUF files. smollm2 is fetched once. `bundled` is the small
    model that is part of AdaptSpec.
    """
    draft: Annotated[str | None, Setting(metavar="DRAFT", none=True)] = AUTO
    """The draft: a model, a head, quantized:int8 or none.

    The directory, GGUF file or hub id of a draft model of any tokenizer, or of a head for the target (EAGLE-3, DFlash,
    MTP, Medusa). Of the target itself: quantized:int8 or quantized:int4 (in fewer bits), first-layers:N (its first
    layers) or mtp (the head in its own files). `none`: no draft model. `auto`: the bundled draft for the bundled
    target, none for others.
    """
    runner: Literal["auto", "llama.cpp", "torch"] = "auto"
    """What runs the model.

    `auto` is llama.cpp for a GGUF file, and torch, which has heads and trees, for others.
    """
    device: Annotated[str, Setting(pattern=r"auto|cpu|cuda(:[0-9]+)?", what="auto, cpu, cuda or cuda:N")] = AUTO
    """Device: auto, cpu, cuda or cuda:N.

    `auto` is a GPU if there is one.
    """
    dtype: Dtype = AUTO
    """Data type of weights and caches.

    `auto`: what suits the device and the model.
    """
    tensor_parallel_size: Annotated[int, Ge(1), Setting(metavar="N")] = 1
    """Devices that share the target, from --device on."""
    max_model_len: Annotated[int | None, Ge(1), Setting(metavar="N", aliases=("context",))] = None
    """Tokens per request (default: the model's limit)."""
    cache_tokens: Annotated[int | None, Ge(1), Setting(metavar="N")] = None
    """Tokens in the KV cache (default: what fits)."""
    enforce_eager: Annotated[bool, Setting(aliases=("eager",))] = False
    """Capture no CUDA graphs: starts sooner, runs slower."""
    threads: Annotated[int | None, Ge(1), Setting(metavar="N")] = None
    """CPU threads of a pass (default: the faster of 1 and all).

    Without it, a short measurement chooses at the start, and again between requests.
    """
    gpu_layers: Annotated[int, Ge(0), Setting(metavar="N")] = 0
    """Layers of a GGUF file that a GPU computes.

    llama.cpp's library must have been built for one.
    """
    allow_pickle: bool = False
    """Read plain tensors from a head's .bin or .pt files."""

    policy: Annotated[
        tuple[str, ...],
        Setting(group="Policies and batches", metavar="NAME|FILE", is_file=is_file_name),
    ] = ()
    """A shipped policy or a YAML file; may be repeated.

    The first is the default for requests that name none. Without any: goodput, or goodput-ngram where there is no draft
    model. Requests can also name every shipped policy whose drafters there are.
    """
    counts: Annotated[str | None, Setting(metavar="FILE", none=True, is_file=_is_counts_file)] = AUTO
    """Counts of a corpus to draft from, or none.

    A file of `adaptspec train counts`. `auto`: counts.npz in the model's folder, if it is there.
    """
    detect_tasks: Annotated[bool, Setting(aliases=("task_detection",))] = True
    """Detect the tasks of requests from their prompts.

    A request that names a task keeps it. Policies can have settings per task.
    """
    task_detector: Annotated[Path | None, Setting(metavar="FILE")] = None
    """A detector of your tasks, from adaptspec train tasks.

    Without it, the detector that ships detects tasks.
    """
    max_num_seqs: Annotated[int, Ge(1), Setting(metavar="N", aliases=("max_rows",))] = 16
    """Requests that run at once."""
    prefix_cache: Literal["off", "key", "shared"] = "key"
    """Which requests share cached prompts.

    `off`: no requests reuse each other's cached prompts. `key`: those of one API key, or all where there are no keys.
    `shared`: all.
    """
    prefill_seconds: Annotated[float, Gt(0.0), Setting(metavar="S")] = 0.2
    """Longest time that a round reads prompts.

    While other requests decode, so that they do not stall.
    """
    prefill_tokens: Annotated[int, Ge(0), Setting(metavar="N")] = 0
    """Most prompt tokens of a round; 0 suits the device."""

    chat_template: Annotated[str | None, Setting(group="Chats", metavar="FILE", is_file=_is_template_file)] = None
    """A Jinja template to replace the model's, or none.

    `none`: /v1/completions only.
    """
    default_chat_template_kwargs: Annotated[
        dict[str, Any],
        Setting(metavar="JSON", aliases=("chat_template_kwargs",), check=_check_template_values),
    ] = field(default_factory=dict)
    """Variables of the chat template, as a JSON object.

    Such as `{"enable_thinking": false}`; those of a request win.
    """
    sanitize_control_tokens: bool = False
    """Read control tokens in clients' texts as plain text.

    Such as <|im_end|> in messages, tools and template variables: clients cannot end their turn then.
    """

    @property
    def draft_model(self) -> str | None:
        if self.draft == AUTO:
            return BUNDLED if self.model == BUNDLED else None
        return self.draft

    @property
    def self_speculation(self) -> str | None:
        """The kind of self-speculation, if the draft is made from the model itself."""
        from adaptspec.models.self_speculation import is_self_speculation  # noqa: PLC0415 - brings torch

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
        return self.policy or (self.default_policy,)

    @property
    def default_policy(self) -> str:
        """The policy of requests that name none, if no live policy is configured."""
        return "goodput" if self.draft_model is not None else "goodput-ngram"


@dataclass(frozen=True, kw_only=True)
class ServeConfig(EngineConfig):
    """Settings of `adaptspec serve`: an engine and its HTTP server."""

    host: Annotated[str, Setting(group="Server", metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Ge(0), Le(65535), Setting(metavar="N")] = 8000
    """Port to listen on.

    0: a free one.
    """
    served_model_name: Annotated[tuple[str, ...], Setting(metavar="NAME", several=True)] = ()
    """Names that clients use; * allows any.

    The first is in answers. Without any: the model's own names.
    """
    max_waiting: Annotated[int, Ge(1), Setting(metavar="N")] = 1024
    """Requests that may queue."""
    shutdown_timeout: Annotated[float, Ge(0.0), Setting(metavar="S", aliases=("drain_seconds",))] = 30.0
    """Seconds for running requests at shutdown."""
    reasoning_format: Literal["auto", "none", "think", "seed", "kimi", "thought"] = "auto"
    """How the model marks its reasoning.

    Chats return it as reasoning_content, responses as an item. `auto`: as the chat template does. `none`: it stays in
    the answer. think: <think>...</think>; seed, kimi and thought: the marks of Seed-OSS, Kimi-VL and EXAONE.
    """

    api_key: Annotated[
        tuple[str, ...],
        Setting(group="Security", metavar="KEY", aliases=("api_keys",), secret=True, rival="api_key_file"),
    ] = field(default=(), repr=False)
    """A key that clients must send; may be repeated.

    Other users of the machine can see flags: prefer ADAPTSPEC_API_KEY (a key in each line) or --api-key-file. `KEY #
    NAME` gives a key a name, which policies can use.
    """
    api_key_file: Annotated[Path | None, Setting(metavar="FILE", rival="api_key")] = None
    """The keys of clients, one per line.

    `KEY # NAME` gives a key a name, which policies can use. Lines that begin with # are comments.
    """
    admin_key: Annotated[str | None, Setting(flag=False, secret=True, rival="admin_key_file")] = field(
        default=None, repr=False
    )
    """The key of /admin routes; without one there are no such routes."""
    admin_key_file: Annotated[Path | None, Setting(metavar="FILE", rival="admin_key")] = None
    """The key of /admin routes (or ADAPTSPEC_ADMIN_KEY).

    Without a key there are no such routes. Lines that begin with # are comments.
    """
    insecure: bool = False
    """Listen on a public address without any key."""
    allowed_hosts: Annotated[tuple[str, ...], Setting(metavar="NAME", aliases=("allow_host",))] = ()
    """A host name of this server; may be repeated.

    Without keys, requests to names other than these, localhost and addresses are refused (DNS rebinding).
    """
    allowed_origins: Annotated[tuple[str, ...], Setting(metavar="ORIGIN", aliases=("allow_origin",))] = ()
    """An origin whose pages may call it; may be repeated.

    Such as http://localhost:3000; * is any. By default none.
    """

    state_dir: Annotated[Path | None, Setting(group="State and telemetry", metavar="DIR")] = None
    """Keep what policies learn here, across restarts."""
    keep_history: bool = False
    """Also keep counts of served tokens there.

    For the counts drafter (a policy's `history`). Texts can be pieced together from them.
    """
    journal: Annotated[Path | None, Setting(metavar="FILE")] = None
    """Write every round to this file, as JSON lines.

    At 64 MiB it goes on in a new file; FILE.1 to FILE.3 are those before.
    """
    otlp_traces_endpoint: Annotated[
        str | None,
        Setting(
            metavar="URL",
            aliases=("otlp_endpoint",),
            pattern=r"https?://.*",
            what="a URL such as http://localhost:4318",
        ),
    ] = None
    """Collector for traces, such as http://localhost:4318.

    By OTLP over HTTP. The OTEL_* variables work, too.
    """
    trace_level: Literal["off", "request", "phase", "round"] = "phase"
    """What has a span of its own.

    `phase` includes requests, `round` both.
    """
    trace_slow_seconds: Annotated[float | None, Ge(0.0), Setting(metavar="S")] = None
    """Slower requests have a span per round.

    In seconds, at trace level `phase`.
    """
    trace_content: bool = False
    """Send prompts and answers with traces."""

    @property
    def name(self) -> str | None:
        """The model's name in answers; None for the name of its directory or file."""
        given = [name for name in self.served_model_name if name != ANY_NAME]
        if given:
            return given[0]
        return None if Path(self.model).expanduser().exists() else self.model


def model_path(name: str, role: str) -> str:
    """The directory of the bundled `role` ("target" or "draft") for "bundled"; other names are returned unchanged."""
    return str(Path(__file__).parent / "models" / "bundled" / role) if name == BUNDLED else name
