"""Policies on a virtual GPU: models compute on the CPU, and a clock says when a GPU would have been ready.

    python -m tests.gpu.virtual_gpu --rows 1 4 16 --temperature 0 0.8
    python -m tests.gpu.virtual_gpu --draft useless

A pass is launched at once and runs when the passes before it have ended; the host goes on, and waits only where the
engine does. So drafts that look one step behind, steps in vain, and the host's work between rounds take the time that
they would take. By default passes are those of an 8B target and a 0.5B draft model in bfloat16 on an H100.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from adaptspec.arrays import IntArray
from adaptspec.bench.workloads import encode, read_workloads
from adaptspec.config import EngineConfig
from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.library import shipped_policies
from adaptspec.control.language.loader import load_policy_spec, parse_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter, ModelDrafter
from adaptspec.engine.build import Built, assemble, build
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.engine.warm_up import warm_up
from adaptspec.models.async_runner import drawn_tokens
from adaptspec.models.runner import Forward, Packed, Runner
from adaptspec.models.sampling import Choices, SamplingBatch, entropies, leading
from adaptspec.request import Request, SamplingParams
from adaptspec.results import FinishReason
from tests.engine.policies import COSTS

FIXED = (1, 2, 3, 5, 7)
MAX_DEPTH = 12


@dataclass
class VirtualGpu:
    """The times, in seconds, at which the host is now and at which the device has run all that was launched."""

    host: float = 0.0
    device: float = 0.0

    def launch(self, seconds: float, host: float = 60e-6) -> None:
        """Launch work of so many seconds, which takes the host `host` seconds."""
        self.host += host
        self.device = max(self.device, self.host) + seconds

    def wait(self, point: float) -> None:
        self.host = max(self.host, point)

    def read(self) -> float:
        """The host's clock, for the engine; each look takes some of its time, as does what is between two looks."""
        self.host += 40e-6
        return self.host


@dataclass(frozen=True)
class Point:
    """See `Mark`."""

    gpu: VirtualGpu
    time: float

    def seconds_since(self, earlier: Point) -> float:
        self.gpu.wait(self.time)
        return self.time - earlier.time


class Pending:
    """Choices that are known, and may be read once the device is ready."""

    def __init__(self, gpu: VirtualGpu, choices: Choices) -> None:
        self._gpu, self._choices, self._ready = gpu, choices, gpu.device
        self.first = torch.from_numpy(choices.tokens[:, 0].copy())

    def wait(self) -> Choices:
        self._gpu.wait(self._ready)
        return self._choices


class VirtualChooser:
    """Chooses as the CPU does; see `Chooser`."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu = gpu

    def start(
        self,
        logits: torch.Tensor,
        batch: SamplingBatch,
        index: IntArray,
        paths: Sequence[Sequence[int]],
        candidates: int = 1,
    ) -> Pending:
        self._gpu.launch(50e-6)
        scores = batch.process(logits, index, paths)
        offsets = np.array(list(map(len, paths)), dtype=np.int64)
        tokens, confidence = leading(batch.perturbed(scores, index, offsets), candidates)
        return Pending(self._gpu, Choices(tokens, confidence, entropies(scores)))


class VirtualRunner:
    """A runner of the CPU whose passes take the time of a GPU; satisfies `AsyncTarget`."""

    widest = None

    def __init__(self, inner: Runner, gpu: VirtualGpu, first: float, each: float, free: int) -> None:
        """A pass takes `first` seconds, and `each` more for every token beyond `free` of them."""
        self._inner, self._gpu, self._costs = inner, gpu, (first, each, free)
        self.drawn = torch.zeros(1, dtype=torch.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, packed: Packed) -> Forward:
        first, each, free = self._costs
        self._gpu.launch(first + each * max(0, len(packed.tokens) - free))
        if packed.tokens[0] < 0:
            packed = replace(packed, tokens=drawn_tokens(torch.from_numpy(packed.tokens), self.drawn).numpy())
        return self._inner.forward(packed)

    def make_chooser(self, rows: int) -> VirtualChooser:
        return VirtualChooser(self._gpu)

    def mark(self) -> Point:
        return Point(self._gpu, max(self._gpu.device, self._gpu.host))


class Useless:
    """A draft model whose tokens are never right: its likeliest tokens are other ones."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, packed: Packed) -> Forward:
        return Forward(-self._inner.forward(packed).logits.roll(7, 1))


class Tokens:
    """A sink that counts the tokens of rounds, with the time at which each ended."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.rounds: list[tuple[float, int, int, int]] = []
        self._gpu = gpu

    def emit(self, record: Any) -> None:
        passes = max((len(work.passes) for work in record.work.drafts), default=0)
        self.rounds.append((self._gpu.host, int(record.emitted.sum()), int(record.depths.max(initial=0)), passes))

    def started(self, request: Any) -> None: ...

    def finished(self, request: Any, completion: Any) -> None: ...


# Policies that draft with the draft model alone: `goodput-model`, and each fixed depth.
WITH_MODEL = {"goodput-model": "choose: goodput, max-depth: 12"} | {
    f"static-{depth}": f"choose: {{algorithm: static, depth: {depth}}}" for depth in range(1, MAX_DEPTH + 1)
}


def policies(names: Sequence[str]) -> list[PolicySpec]:
    """The shipped policies, and those of `WITH_MODEL`."""
    shipped = {path.stem: path for path in shipped_policies()}
    head = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\n"
    return [
        parse_policy_spec(
            f"{head}metadata: {{name: {name}}}\nspec: {{drafters: [draft-model], {WITH_MODEL[name]}}}\n", name
        )
        if name in WITH_MODEL
        else load_policy_spec(shipped[name])
        for name in names
    ]


def serve(
    built: Built, spec: PolicySpec, rows: int, temperature: float, arguments: argparse.Namespace
) -> tuple[float, float, float]:
    """Tokens per second in the second half of the rounds; mean planned depth, and draft passes, of a round."""
    gpu = VirtualGpu()
    target = VirtualRunner(built.target, gpu, arguments.target_ms * 1e-3, 6.5e-6, 64)
    drafters: list[Drafter] = []
    for drafter in built.drafters:
        if not isinstance(drafter, ModelDrafter):
            drafters.append(drafter)
            continue
        inner: Any = Useless(drafter.runner) if arguments.draft == "useless" else drafter.runner
        runner: Any = VirtualRunner(inner, gpu, arguments.draft_ms * 1e-3, 1e-6, 64)
        drafters.append(DraftModelDrafter(runner, drafter.eos_token_ids))
    limits = EngineLimits(max_rows=rows, max_depth=MAX_DEPTH).settled(cpu=True)
    executor = ModelExecutor(target, drafters, rows)
    costs = warm_up(executor, InputProcessor(built.target.info, built.tokenizer), limits, timer=gpu.read)
    counted = Tokens(gpu)
    core = assemble(
        target,
        drafters,
        built.tokenizer,
        specs=[spec],
        costs=costs,
        sinks=[counted],
        limits=limits,
        executor=executor,
        timer=gpu.read,
    )
    prompts = [prompt for some in read_workloads(None, 8).values() for prompt in some]
    texts = [encode(built.template, prompt, 200) for prompt in prompts]
    params = SamplingParams(arguments.tokens, temperature, ignore_eos=True)
    wanted, sent = rows * arguments.tokens_per_row, 0
    while sum(tokens for _, tokens, _, _ in counted.rounds) < wanted:
        while len(core.scheduler.running) + len(core.scheduler.waiting) < rows:
            core.add(Request(f"r{sent}", texts[sent % len(texts)], replace(params, seed=sent)))
            sent += 1
        core.step()
    core.abort_all(FinishReason.ABORT, "enough")
    core.scheduler.prefixes.clear()  # the next engine has the same caches
    rounds = counted.rounds[len(counted.rounds) // 2 :]
    seconds = rounds[-1][0] - rounds[0][0]
    depth, passes = (float(np.mean([one[at] for one in rounds])) for at in (2, 3))
    return sum(tokens for _, tokens, _, _ in rounds[1:]) / seconds, depth, passes


def main(arguments: argparse.Namespace) -> int:
    """Print tokens per second relative to `off`; the exit status is 1 if a promise is broken."""
    torch.set_num_threads(1)
    draft = EngineConfig().draft if arguments.draft in ("useless", "auto") else arguments.draft
    config = EngineConfig(
        model=arguments.model,
        draft=draft,
        device="cpu",
        dtype="float32",
        policy=("off",),
        max_model_len=1024,
        threads=1,
        max_num_seqs=max(arguments.rows),
        detect_tasks=False,
        runner=arguments.runner,
    )
    built = build(config, costs=CostModel(COSTS))
    fixed = () if arguments.draft == "useless" else FIXED
    names = arguments.policies or ["off", *(f"static-{depth}" for depth in fixed), "goodput", "goodput-model"]
    broken = 0
    for rows in arguments.rows:
        for temperature in arguments.temperature:
            found = {}
            for spec in policies(names):
                found[spec.name] = serve(built, spec, rows, temperature, arguments)
            plain = found["off"][0]
            best = max((found[name][0] for name in found if name.startswith("static")), default=0.0)
            line = "  ".join(f"{name} {one[0] / plain:.3f} ({one[1]:.1f}/{one[2]:.1f})" for name, one in found.items())
            sys.stdout.write(f"rows {rows} temperature {temperature}: {line}\n")
            sys.stdout.flush()
            least = 0.98 * plain if arguments.draft == "useless" else best
            broken += any(one[0] < least for name, one in found.items() if name.startswith("goodput"))
    return 1 if broken else 0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0])
    parser.add_argument("--policies", nargs="+")
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--draft", default="auto", help="`useless`, or what --draft of the server takes")
    parser.add_argument("--runner", default="auto", help="`torch` for a GGUF file whose first layers draft")
    parser.add_argument("--target-ms", type=float, default=6.5)
    parser.add_argument("--draft-ms", type=float, default=1.1)
    parser.add_argument("--tokens", type=int, default=96, help="of a request")
    parser.add_argument("--tokens-per-row", type=int, default=1500, help="that are served in all")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main(parse()))
