"""Tokens per second inside vLLM: a policy against fixed depths and vLLM's own table, in turn, in one process.

`goodput.py [--policy NAME] [--target DIR] [--useless | --mixed] [--skip-draft] [--batches 1,4,16] [--laps N]`: all
write the same greedy texts, lap by lap, the second time in reverse order. Seconds are those of the engine's thread on
its core, steps that took more than twice the median counted as that: other programs stall it. `own us` is what the
pilot takes of a step. `--target`: a folder in place of the bundled one. `--useless`: the draft's weights are noise.
`--mixed`: every other request is drawn at temperature 2, where hardly a draft is kept. `--skip-draft`: the policy
may leave the draft out, and vLLM without a draft is `none`.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from engines import DEEPEST, MODELS, make, prompts, scheduler_of
from safetensors.torch import load_file, save_file
from vllm import SamplingParams

ROWS, TOKENS, WARM = 16, 96, 300
TABLE = [0, *[5] * 4, *[3] * 4, *[1] * 8]  # depth by batch size
REQUESTS = {1: 4, 4: 12, 16: 48}
HOT = 2.0  # a temperature at which one draft in ten is kept
SKIPPING = {"worker_extension_cls": "adaptspec.hosts.vllm.skip_draft.SkipDraft", "enable_prefix_caching": False}
Mode = int | str


def noise(folder: Path) -> Path:
    """A draft of the bundled one's shape that has learned nothing."""
    shutil.copytree(MODELS / "draft", folder)
    chance = torch.Generator().manual_seed(0)
    weights = load_file(folder / "model.safetensors")
    drawn = {name: torch.randn(value.shape, generator=chance).to(value.dtype) * 0.02 for name, value in weights.items()}
    save_file(drawn, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class Runs:
    """One engine that a policy steers, one of plain vLLM whose depth is set from outside, and one without a draft."""

    def __init__(self, policy: str, target: Path, draft: Path, *, skip: bool, mixed: bool) -> None:
        drafts = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": DEEPEST}
        usual: dict[str, Any] = {"speculative_config": drafts, "dtype": "float32", "model": str(target)}
        settings = {"policy": policy, "skip-draft": skip}
        self.ours = make(ROWS, adaptive=settings, **usual, **(SKIPPING if skip else {}))
        self.plain = make(ROWS, **usual)
        self.none = make(ROWS, deepest=0, dtype="float32", model=str(target)) if skip else None
        self.pilot = scheduler_of(self.ours)._pilot
        self.pilot._clock = time.thread_time
        self.steps, self.own = 0, 0.0  # of `ours`: steps, and seconds that they took of the pilot
        for name in ("enter", "leave", "decide", "learn"):
            setattr(self.pilot, name, self.timed(getattr(self.pilot, name)))
        self.asked = 0
        self.temperatures = (0.0, HOT) if mixed else (0.0,)

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same, its time added to `own`."""

        def run(*given: Any, **named: Any) -> Any:
            begun = time.thread_time()
            try:
                return call(*given, **named)
            finally:
                self.own += time.thread_time() - begun

        return run

    def run(self, mode: Mode, batch: int, texts: list[str], steps: int = 10**9) -> float:
        """Tokens per second of a mode: `ours`, `none`, `table`, or a fixed depth."""
        engine = (self.ours if mode == "ours" else self.none if mode == "none" else self.plain).llm_engine
        if mode not in ("ours", "none"):
            scheduler_of(self.plain).dynamic_sd_lookup = TABLE if mode == "table" else [mode] * (ROWS + 1)
        left, live, tokens, seconds = list(texts), 0, 0, list[float]()
        kinds = [SamplingParams(max_tokens=TOKENS, temperature=t, ignore_eos=True) for t in self.temperatures]
        while live or (left and len(seconds) < steps):
            while left and live < batch and len(seconds) < steps:
                engine.add_request(str(self.asked), left.pop(), kinds[self.asked % len(kinds)])
                live, self.asked = live + 1, self.asked + 1
            begun = time.thread_time()
            ended = [output for output in engine.step() if output.finished]
            seconds.append(time.thread_time() - begun)
            live, tokens = live - len(ended), tokens + TOKENS * len(ended)
        self.steps += len(seconds) * (mode == "ours")
        most = 2 * statistics.median(seconds)
        return tokens / sum(min(one, most) for one in seconds)


def main() -> None:
    """Prints a JSON object for each batch size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", default="goodput")
    parser.add_argument("--target", type=Path, default=MODELS / "target")
    parser.add_argument("--useless", action="store_true")
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--skip-draft", action="store_true")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--laps", type=int, default=10)
    told = parser.parse_args()
    modes: list[Mode] = ["ours", 0, 1, 3, 5, "table", *(["none"] if told.skip_draft else [])]
    with tempfile.TemporaryDirectory() as folder:
        draft = noise(Path(folder) / "draft") if told.useless else MODELS / "draft"
        runs = Runs(told.policy, told.target, draft, skip=told.skip_draft, mixed=told.mixed)
        texts = prompts(2000, random.Random(0))
        for batch in map(int, told.batches.split(",")):
            for mode in modes:
                runs.run(mode, batch, texts[: WARM * batch], WARM if mode == "ours" else 20)
            found: dict[Mode, list[float]] = {mode: [] for mode in modes}
            runs.steps, runs.own = 0, 0.0
            for lap in range(told.laps):
                lot = texts[lap * REQUESTS[batch] :][: REQUESTS[batch]]
                for mode in modes[:: 1 - 2 * (lap % 2)]:
                    found[mode].append(runs.run(mode, batch, lot))
            middle = {mode: statistics.median(rates) for mode, rates in found.items()}
            best = max(modes[1:], key=lambda mode: middle[mode])
            ratio = statistics.median(a / b for a, b in zip(found["ours"], found[best], strict=True))
            rates = {str(mode): round(rate) for mode, rate in middle.items()}
            told_of = {"batch": batch, "best": best, "of the best": round(ratio, 3), "rates": rates}
            print(json.dumps(told_of | {"own us": round(1e6 * runs.own / runs.steps)}), flush=True)
        print(json.dumps({"errors": runs.pilot.errors}))


if __name__ == "__main__":
    main()
