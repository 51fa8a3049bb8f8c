"""`adaptspec generate`: one prompt, completed in the terminal."""

from __future__ import annotations

import argparse
import sys

from adaptspec.commands.arguments import add_models, engine_config, positive
from adaptspec.quantity import quantity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec generate`."""
    add = parser.add_argument
    add("prompt", help="the text to complete; - reads it from standard input")
    add("--chat", action="store_true", help="wrap the prompt in the model's chat template")
    add("--max-tokens", type=positive, default=128)
    add("--temperature", type=float, default=0.0, help="0 (the default) is greedy")
    add("--top-p", type=float, default=1.0)
    add("--seed", type=int)
    add("--max-depth", type=int, help="deepest draft; 0 switches speculation off")
    add_models(parser)
    parser.set_defaults(run=_generate)


def _generate(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from adaptspec.start_status import StartStatus

    with StartStatus(Console(stderr=True), "loading libraries") as status:
        from adaptspec.engine.sync_engine import Engine
        from adaptspec.request import SamplingParams, SpeculationParams

        engine = Engine.from_config(engine_config(arguments), status)
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
            nodes = f" (of {stats.nodes} nodes)" if stats.nodes > stats.drafted else ""
            print(
                f"\n\n[{quantity(len(delta.completion.tokens), 'token')} in {seconds:.2f} s, policy {stats.policy}: "
                f"{stats.accepted} of {stats.drafted} drafted tokens{nodes} accepted, "
                f"{stats.mean_acceptance_length:.2f} tokens per drafting round]",
                file=sys.stderr,
            )
    return 0
