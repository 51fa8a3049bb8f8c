"""Arguments that several commands share, and what is made of them. Loads nothing that takes time.

Each command has a module here, NAME_command, with its arguments and its functions. Their imports stand in the functions
where they take time, so that help and completion in a shell need none of it.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptspec.command_line import TEXT, given_values
from adaptspec.control.language.library import shipped_policies

if TYPE_CHECKING:
    from adaptspec.engine.engine_config import EngineConfig
    from adaptspec.tables import Table


_LIMITS = ("max_rows", "prefix_cache", "prefill_seconds")
_AS_GIVEN = (
    "model",
    "device",
    "tensor_parallel_size",
    "dtype",
    "context",
    "eager",
    "allow_pickle",
    "threads",
    "gpu_layers",
    "runner",
    "chat_template",
    "chat_template_kwargs",
    "sanitize_control_tokens",
)


def add_engine(parser: argparse.ArgumentParser, default_model: str = "bundled") -> argparse._ArgumentGroup:
    """Which models to load, and what computes them. `default_model` says in the help what is loaded without --model."""
    group = parser.add_argument_group("models")
    add = group.add_argument
    add(
        "--model",
        default="bundled",
        help="the target: a directory, a GGUF file, a hub id (org/name, or org/name:Q4_K_M for one of its GGUF files), "
        f"or smollm2, which is fetched once (default: {default_model})",
    )
    add(
        "--draft",
        default="auto",
        help="directory, GGUF file or hub id of the draft model, of whatever tokenizer, or of a head for the target "
        "(EAGLE-3, DFlash, MTP, Medusa); of the target itself quantized:int8 or :int4 (in fewer "
        "bits), first-layers:N (those alone) or mtp (the layer for it in the target's own files); or 'none' "
        "(default: the bundled one for the bundled target, none for any other)",
    )
    add("--allow-pickle", action="store_true", help="read plain tensors out of a head's .bin or .pt files")
    add(
        "--counts",
        default="auto",
        metavar="FILE",
        help="counts of a corpus to draft from (adaptspec train counts), or 'none' (default: counts.npz in the model's "
        "folder, if it is there)",
    )
    add(
        "--device",
        type=device,
        default="auto",
        metavar="DEVICE",
        help="auto, cpu, cuda or cuda:N (default: %(default)s)",
    )
    add(
        "--tensor-parallel-size",
        type=positive,
        default=1,
        metavar="N",
        help="devices that share the target, from --device on (default: %(default)s)",
    )
    add(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="of weights and caches (default: %(default)s, what suits device and model)",
    )
    add("--eager", "--enforce-eager", action="store_true", help="capture no CUDA graphs: slower, and starts sooner")
    add(
        "--context",
        "--max-model-len",
        type=positive,
        metavar="TOKENS",
        help="tokens per request (default: the model's own limit)",
    )
    add_threads(group)
    add(
        "--gpu-layers",
        type=natural,
        default=0,
        metavar="N",
        help="layers of a GGUF file that a GPU computes, where llama.cpp's library was built for one (default: "
        "%(default)s)",
    )
    add_runner(group)
    _add_templates(group)
    add(
        "--no-task-detection", action="store_true", help="take a request's task from its hint only, not from its prompt"
    )
    return group


def add_models(parser: argparse.ArgumentParser) -> None:
    """Which models and policies to load, and how many requests run at once."""
    group = add_engine(parser)
    add_policies(group)
    group.add_argument(
        "--max-rows",
        "--max-num-seqs",
        type=positive,
        default=16,
        metavar="N",
        help="requests that run at once (default: %(default)s)",
    )
    group.add_argument(
        "--prefix-cache",
        choices=["off", "key", "shared"],
        default="key",
        help="requests that reuse each other's cached prompts: none (off), those of one API key (key; all requests if "
        "there are no keys), or all (shared) (default: %(default)s)",
    )
    group.add_argument(
        "--prefill-seconds",
        type=seconds,
        default=0.2,
        metavar="S",
        help="longest time that a round reads prompts while other requests decode (default: %(default)s)",
    )


def _add_templates(parser: argparse._ActionsContainer) -> None:
    """How conversations become prompts."""
    add = parser.add_argument
    add(
        "--chat-template",
        metavar="FILE",
        help="a Jinja template in place of the model's own, or 'none' (default: the model's)",
    )
    add(
        "--chat-template-kwargs",
        "--default-chat-template-kwargs",
        type=template_values,
        metavar="JSON",
        help="variables of the chat template where a request does not set them, such as "
        "'{\"enable_thinking\": false}' (default: none)",
    )
    add(
        "--sanitize-control-tokens",
        action="store_true",
        help="read <|im_end|> and the like in messages, tools and template variables of requests as plain text, so "
        "clients cannot write control tokens",
    )


def add_threads(parser: argparse._ActionsContainer) -> None:
    """`--threads`, of every command that computes on a CPU."""
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="CPU threads per forward pass (default: one or all, whichever a short measurement finds faster; a server "
        "measures again between requests)",
    )


def add_runner(parser: argparse._ActionsContainer) -> None:
    """`--runner`, of every command that may load a GGUF file."""
    parser.add_argument(
        "--runner",
        default="auto",
        choices=["auto", "llama.cpp", "torch"],
        help="what runs the model: llama.cpp (GGUF files), or torch, which has heads and trees (default: llama.cpp for "
        "a GGUF file)",
    )


POLICY = "a shipped policy or a YAML file"
_FIRST = ", the first is the default (default: goodput)"


def add_policies(parser: argparse._ActionsContainer, more: str = _FIRST) -> None:
    """`--policy` for any number of them; `more` ends its help."""
    add_policy(parser, "--policy", action="append", default=[], help=f"{POLICY}; may be given again{more}")


def add_policy(parser: argparse._ActionsContainer, *names: str, **more: Any) -> None:
    """An argument that names policies; shells complete it with those that ship, and with YAML files."""
    action = parser.add_argument(*names, **{"metavar": "NAME|FILE", "help": POLICY, **more})

    def known(prefix: str, **more: Any) -> list[str]:
        from argcomplete.completers import FilesCompleter

        files = FilesCompleter(("yaml", "yml"))(prefix, **more)
        return [path.stem for path in shipped_policies()] + list(files)

    action.completer = known  # type: ignore[attr-defined]


def engine_config(arguments: argparse.Namespace, base: EngineConfig | None = None) -> EngineConfig:
    """What `add_models` or `add_engine` was given, over `base` or the defaults."""
    from adaptspec.engine.engine_config import EngineConfig

    given, config = given_values(arguments), base or EngineConfig()
    changes: dict[str, Any] = {name: given[name] for name in _AS_GIVEN if name in given}
    for name in ("draft", "counts"):
        if name in given:
            changes[name] = None if given[name] == "none" else given[name]
    if "policy" in given:
        changes["policies"] = tuple(given["policy"])
    limits = {name: given[name] for name in _LIMITS if name in given}
    if limits:
        changes["limits"] = replace(config.limits, **limits)
    if "no_task_detection" in given:
        changes["detect_tasks"] = not given["no_task_detection"]
    return replace(config, **changes)


def tell(arguments: argparse.Namespace, result: Any, parts: Iterable[Table | str]) -> int:
    """Print what a command found: one JSON object, or sentences and tables in the form that was asked for."""
    from adaptspec.tables import show

    if arguments.json:
        print(json.dumps(result, indent=1, allow_nan=False))
    else:
        show(parts, getattr(arguments, "form", TEXT))
    return 0


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar on standard error, or lines where that is no terminal.

    Yields a function to be called after each step, with a word on it or without; with `advance=0` it shows a word only.
    """
    from rich.console import Console
    from rich.progress import Progress

    from adaptspec.start_status import StartStatus

    console = Console(stderr=True)
    if not console.is_terminal:
        status, done = StartStatus(console, what), 0

        def step(said: str = what, advance: int = 1) -> None:
            nonlocal done
            done += advance
            status(f"{said} ({done} of {total})")

        yield step
        return
    with Progress(console=console) as bar:
        work = bar.add_task(what, total=total)
        yield lambda said=what, advance=1: bar.update(work, advance=advance, description=said)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def natural(text: str) -> int:
    """A whole number of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be at least 0")
    return value


def new_file(text: str) -> Path:
    """A file to write at the end of long work, in a folder that is there: better known before it."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path}: name a file, in a folder that is there")
    return path


def device(text: str) -> str:
    """A device by its name; whether it is there is seen when a model is loaded."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"must be auto, cpu, cuda or cuda:N, not {text!r}")
    return text


def template_values(text: str) -> dict[str, Any]:
    """Variables of a chat template, as a JSON object."""
    from adaptspec.models.chat.template_values import check_values

    try:
        return check_values(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object of template variables: {error}") from error


def seconds(text: str) -> float:
    """A time of at least 0."""
    value = float(text)
    if not (math.isfinite(value) and value >= 0.0):
        raise argparse.ArgumentTypeError("must be at least 0")
    return value


def share(text: str) -> float:
    """A share, from 0 to 1."""
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError("must be between 0 and 1")
    return value
