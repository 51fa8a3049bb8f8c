"""What `adaptspec generate` does: loads an engine, and prints what it writes."""

from __future__ import annotations

import argparse
import sys

from adaptspec.commands.engine_settings import engine_config
from adaptspec.engine.engine import Engine
from adaptspec.types import SamplingParams, SpeculationParams


def run_generate(arguments: argparse.Namespace) -> int:
    """Complete the prompt; the exit status is 0."""
    config = engine_config(arguments)
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
