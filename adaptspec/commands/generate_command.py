"""`adaptspec generate`: one prompt, completed in the terminal."""

from __future__ import annotations

import argparse
import sys

from adaptspec.commands.arguments import add_models, engine_config, positive
from adaptspec.quantity import quantity
from adaptspec.settings import argument_type


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec generate`."""
    parser.usage = "adaptspec generate [--model MODEL] [--chat] [FLAG ...] PROMPT"
    number, whole = argument_type(float), argument_type(int)
    add = parser.add_argument
    add("prompt", metavar="PROMPT", help="the text to complete; - reads it from standard input")
    add("--chat", action="store_true", help="wrap the prompt in the model's chat template")
    add("--max-tokens", type=positive, default=128, metavar="N", help="most tokens (default: %(default)s)")
    add("--temperature", type=number, default=0.0, metavar="T", help="0 is greedy (default: %(default)s)")
    add("--top-p", type=number, default=1.0, metavar="P", help="(default: %(default)s)")
    add("--seed", type=whole, metavar="N", help="the same seed gives the same text")
    add("--max-depth", type=whole, metavar="N", help="deepest draft; 0 switches speculation off")
    add_models(parser)
    parser.set_defaults(run=_generate)


def _generate(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from adaptspec.start_status import StartStatus

    with StartStatus(Console(stderr=True), "loading libraries") as status:
        from adaptspec.engine.sync_engine import Engine
        from adaptspec.request import SamplingParams, SpeculationParams

        sampling = SamplingParams(
            max_tokens=arguments.max_tokens,
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            seed=arguments.seed,
        )
        speculation = SpeculationParams(max_depth=arguments.max_depth)
        engine = Engine.from_config(engine_config(arguments), status)
    text = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    prompt = engine.chat([{"role": "user", "content": text}]) if arguments.chat else text
    for delta in engine.stream(prompt, sampling, speculation):
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
