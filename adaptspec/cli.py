"""The command line: reads arguments, calls what they name, prints errors as one line."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from adaptspec import __version__
from adaptspec.app import ServeConfig, serve
from adaptspec.control.library import shipped_policies
from adaptspec.control.spec import load_policy_spec
from adaptspec.engine.build import AUTO, BUNDLED, EngineConfig
from adaptspec.engine.core import Limits
from adaptspec.engine.engine import Engine
from adaptspec.errors import AdaptSpecError
from adaptspec.training.pair import train_pair
from adaptspec.training.settings import PRESETS, preset
from adaptspec.types import SamplingParams, SpeculationParams


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, or 2 for an error of the user's to mend."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except AdaptSpecError as error:
        print(f"adaptspec: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="adaptspec",
        description="Serve language models with adaptive speculative decoding: the same text, sooner.",
        epilog="Start with `adaptspec serve`: it needs no arguments and serves the bundled model pair.",
    )
    parser.add_argument("--version", action="version", version=f"adaptspec {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands.add_parser("serve", help="start an OpenAI-compatible HTTP server"))
    _add_generate(commands.add_parser("generate", help="complete one prompt here in the terminal"))
    policy = commands.add_parser("policy", help="look at policies").add_subparsers(metavar="ACTION", required=True)
    listing = policy.add_parser("list", help="the policies that ship, and when to use them")
    listing.set_defaults(run=_policy_list)
    train = commands.add_parser("train", help="train models").add_subparsers(metavar="WHAT", required=True)
    _add_train_pair(train.add_parser("pair", help="train a target and a draft that share a tokenizer"))
    return parser


def _add_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    group.add_argument("--model", default=BUNDLED, help="directory or hub id of the target (default: the bundled one)")
    group.add_argument(
        "--draft",
        default=AUTO,
        help="directory or hub id of the draft model, or 'none' (default: the bundled one "
        "for the bundled target, none for any other)",
    )
    group.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help="a shipped policy or a YAML file; may be given again, the first is the default (default: goodput)",
    )
    group.add_argument("--device", default=AUTO, choices=[AUTO, "cpu", "cuda"])
    group.add_argument("--dtype", default=AUTO, choices=[AUTO, "float32", "bfloat16", "float16"])
    group.add_argument("--context", type=_positive, help="tokens per request (default: the model's own limit)")
    group.add_argument(
        "--max-rows", type=_positive, default=16, help="requests that run at once (default: %(default)s)"
    )


def _engine_config(arguments: argparse.Namespace) -> EngineConfig:
    return EngineConfig(
        model=arguments.model,
        draft=None if arguments.draft == "none" else arguments.draft,
        policies=tuple(arguments.policy),
        device=arguments.device,
        dtype=arguments.dtype,
        context=arguments.context,
        limits=Limits(max_rows=arguments.max_rows),
    )


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _add_models(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    group.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
    group.add_argument("--served-model-name", help="the name clients use (default: the model's own)")
    group.add_argument(
        "--max-waiting", type=_positive, default=1024, help="requests that may queue (default: %(default)s)"
    )
    group.add_argument("--drain-seconds", type=float, default=30.0, help="grace for running requests at shutdown")
    group.add_argument("--metrics-compat", choices=["vllm"], help="serve vLLM's metric names as well")
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    config = ServeConfig(
        engine=_engine_config(arguments),
        host=arguments.host,
        port=arguments.port,
        served_model_name=arguments.served_model_name,
        max_waiting=arguments.max_waiting,
        drain_seconds=arguments.drain_seconds,
        compat_vllm=arguments.metrics_compat == "vllm",
    )
    asyncio.run(serve(config, Console(stderr=True)))
    return 0


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help="the text to complete; - reads it from standard input")
    parser.add_argument("--chat", action="store_true", help="wrap the prompt in the model's chat template")
    parser.add_argument("--max-tokens", type=_positive, default=128)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (the default) is greedy")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--max-depth", type=int, help="deepest draft; 0 switches speculation off")
    _add_models(parser)
    parser.set_defaults(run=_generate)


def _generate(arguments: argparse.Namespace) -> int:
    config = _engine_config(arguments)
    engine = Engine.from_config(config)
    text = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    prompt = engine.chat([{"role": "user", "content": text}]) if arguments.chat else text
    sampling = SamplingParams(
        max_tokens=arguments.max_tokens, temperature=arguments.temperature, top_p=arguments.top_p, seed=arguments.seed
    )
    for delta in engine.stream(prompt, sampling, SpeculationParams(max_depth=arguments.max_depth)):
        print(delta.text, end="", flush=True)
        if delta.completion is not None:
            stats, timings = delta.completion.stats, delta.completion.timings
            seconds = timings.finished - timings.arrived
            print(
                f"\n\n[{len(delta.completion.tokens)} tokens in {seconds:.2f} s, policy {stats.policy}: "
                f"{stats.accepted} of {stats.drafted} drafted tokens accepted, "
                f"{stats.mean_acceptance_length:.2f} tokens per drafting round]",
                file=sys.stderr,
            )
    return 0


def _policy_list(_: argparse.Namespace) -> int:
    table = Table("policy", "algorithm", "drafters", "description")
    for path in shipped_policies():
        spec = load_policy_spec(path)
        table.add_row(spec.name, spec.spec.choose.algorithm, ", ".join(spec.drafters), spec.metadata.description)
    Console().print(table)
    return 0


def _add_train_pair(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Train a tokenizer and a target on a corpus, distil a draft from the target, measure both and write a model "
        "card. Run the same command again to go on where it stopped."
    )
    parser.add_argument(
        "--corpus", type=Path, required=True, help="JSONL, plain or .xz: task, src, and prompt + completion or text"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/pair"), help="work directory (default: %(default)s)")
    parser.add_argument("--prompts", type=Path, help="JSONL file or folder to measure on (default: held-out records)")
    parser.add_argument("--preset", choices=PRESETS, default="auto", help="sizes and times for a CPU or a GPU")
    parser.add_argument("--target-minutes", type=float, help="training time of the target (default: the preset's)")
    parser.add_argument("--draft-minutes", type=float, help="training time of the draft (default: the preset's)")
    for flag, kind, what in (
        ("--target-learning-rate", float, "peak learning rate of the target"),
        ("--draft-learning-rate", float, "peak learning rate of the draft"),
        ("--vocab-size", int, "entries of the tokenizer"),
        ("--batch", int, "windows per step"),
        ("--window", int, "tokens per window"),
        ("--device", str, "cpu, cuda or cuda:N"),
    ):
        parser.add_argument(flag, type=kind, help=f"{what} (default: the preset's)")
    parser.add_argument(
        "--source-weight",
        action="append",
        default=[],
        metavar="SOURCE=SHARE",
        help="train on this share (0 to 1) of a source's records; may be given again (default: the preset's)",
    )
    parser.set_defaults(run=_train_pair)


def _train_pair(arguments: argparse.Namespace) -> int:
    base = preset(arguments.preset)
    names = ("vocab_size", "batch", "window", "device", "target_learning_rate", "draft_learning_rate")
    given = {name: getattr(arguments, name) for name in ("target_minutes", "draft_minutes", *names)}
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = replace(base, **chosen).with_source_weights(arguments.source_weight)
    train_pair(arguments.corpus, arguments.out, settings, Console(stderr=True), arguments.prompts)
    return 0


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
