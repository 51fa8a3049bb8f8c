"""Compiles the kernels as models launch them, without a GPU: `python -m tests.gpu.compiled 90` prints their sizes."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from adaptspec.gpu import kernels
from adaptspec.gpu.attention_plan import AttentionPlan, HeadNorm, Workspace
from adaptspec.gpu.device_sampling import PositionRules, RuleTables
from adaptspec.models.attention import Heads

TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32", torch.int64: "i64"}
SHARED = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # bytes of shared memory per processor
REGISTERS = 65_536
CANDIDATES = 4  # of a step that may branch
META = torch.device("meta")
TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@dataclass(frozen=True)
class Model:
    heads: Heads
    hidden: int
    mlp: int
    vocab: int


MODELS = {
    "Llama 8B": Model(Heads(32, 8, 128), 4096, 14_336, 128_256),
    "Qwen 0.5B": Model(Heads(14, 2, 64), 896, 4864, 151_936),
    "bundled target": Model(Heads(4, 4, 64), 256, 704, 4096),
    "bundled draft": Model(Heads(2, 2, 64), 128, 352, 4096),
}


@dataclass(frozen=True)
class Launch:
    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


@dataclass(frozen=True)
class Usage:
    """Resources of one program: registers per thread, bytes of stack (spilled) and of shared memory, threads.

    `sums` are the layouts of products and sums over the threads: programs with equal layouts add in the same order.
    """

    registers: int
    stack: int
    shared: int
    threads: int
    sums: tuple[str, ...]

    def at_once(self, target: int) -> int:
        """Programs on one processor."""
        return min(REGISTERS // (self.registers * self.threads), SHARED[target] // max(self.shared, 1))


def launches(model: Model, dtype: torch.dtype) -> list[Launch]:
    """Every kernel that a pass of `model` launches, with tensors that have no storage."""
    found: list[Launch] = []

    def run(self: Any, *arguments: Any, grid: object, warmup: object, **constants: Any) -> None:
        found.append(Launch(self, arguments, constants))

    heads, count = model.heads, 16
    width = heads.query * heads.dim
    i32, i64 = (torch.empty(count, dtype=kind, device=META) for kind in (torch.int32, torch.int64))
    floats, pool = (
        torch.empty(count, device=META),
        torch.empty(4096, 2 * heads.kv * heads.dim, dtype=dtype, device=META),
    )
    queries, lists = torch.empty(count, width, dtype=dtype, device=META), i32.new_empty(4096)
    plan = AttentionPlan(heads, 32, i32, i64, i64, i32, i32.new_empty(16, 3), lists, i32[:1])
    qkv, angles = queries.new_empty(count, width + pool.shape[1]), floats.new_empty(4096, heads.dim // 2)
    hidden, weight = queries.new_empty(count, model.hidden), queries.new_empty(model.hidden)
    norm = HeadNorm(queries.new_empty(heads.query + heads.kv, heads.dim), 1e-6)
    cuts, paths = floats.new_empty(count, 2), i32.new_empty(count, 7)
    rules = PositionRules(i64, floats, floats.new_empty(count, 3), i64, cuts, paths, i64)
    lines = floats.new_empty(count, model.vocab)
    tables = RuleTables(lines.int(), lines, i32.new_empty(count, model.vocab // 32))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(JITFunction, "run", run)
        kernels.attend(queries, pool, plan)
        kernels.attend(queries, pool, replace(plan, workspace=Workspace.of(count, heads, 8192, META), programs=9))
        kernels.rope_store(qkv, angles, angles, i32, i64, pool, norm)
        kernels.add_norm(hidden, hidden, weight, 1e-5)
        kernels.silu_mul(queries.new_empty(count, 2 * model.mlp))
        kernels.apply_rules(lines, rules, tables)
        for candidates in (1, CANDIDATES):
            kernels.choose(floats.new_empty(count, model.vocab), floats, i64, i64.new_empty(model.vocab), candidates)
    return found


def compiled(launch: Launch, target: int) -> Usage:
    """Compiles a launch for tensors whose addresses are multiples of 16, as torch's are."""
    names, constants = launch.kernel.arg_names, launch.constants
    options = {name: value for name, value in constants.items() if name not in names}
    # Triton's default is not the same in all versions, and a fused product is rounded differently.
    assert options["enable_fp_fusion"] is False
    signature, hints = dict.fromkeys(names, "constexpr"), {}
    for index, (name, value) in enumerate(zip(names, launch.arguments, strict=False)):
        tensor = isinstance(value, torch.Tensor)
        signature[name] = "*" + TYPES[value.dtype] if tensor else "fp32" if isinstance(value, float) else "i32"
        if tensor or (isinstance(value, int) and value % 16 == 0):
            hints[index,] = [["tt.divisibility", 16]]
    values = {(names.index(name),): value for name, value in constants.items() if name in names}
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=values, attrs=hints)
    program: Any = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(program.asm["cubin"])
        file.flush()
        output = subprocess.run([TOOL, "-res-usage", file.name], capture_output=True, text=True, check=True)
    usage = re.search(r"REG:(\d+) STACK:(\d+)", output.stdout + output.stderr)
    assert usage is not None
    threads = 32 * program.metadata.num_warps
    return Usage(int(usage[1]), int(usage[2]), program.metadata.shared, threads, sums(program.asm["ttgir"]))


def sums(code: str) -> tuple[str, ...]:
    """Every product of matrices and every sum or maximum along lines, with its layouts spelled out."""
    layouts = dict(re.findall(r"^(#\w+) = (#.*)$", code, re.MULTILINE))
    found = re.findall(r"(?:dot |mma |\}\) : \(tensor<\d+x\d+xf32).*", code)
    kept = (re.sub(r"%\w+|loc\(.*", "", line) for line in found)
    return tuple(re.sub(r"#\w+", lambda name: layouts.get(name[0], name[0]), line) for line in kept)


def usages(target: int) -> Iterator[tuple[str, Usage]]:
    """By model, dtype and kernel."""
    for dtype in (torch.bfloat16, torch.float32):
        for name, model in MODELS.items():
            for launch in launches(model, dtype):
                several = " of several" if launch.constants.get("CANDIDATES", 1) > 1 else ""
                kernel = launch.kernel.__name__.strip("_") + several
                yield f"{name:15}{TYPES[dtype]:6}{kernel}", compiled(launch, target)


def main(target: int) -> int:
    """The exit status is 1 if a kernel does not fit, spills where speed counts, or its forms add in other orders."""
    good, orders = True, dict[str, tuple[str, ...]]()
    for name, usage in usages(target):
        quick = "bf16" in name
        several = quick and usage.threads < 1024  # larger programs fill a processor alone
        fits = usage.at_once(target) >= (2 if several else 1) and usage.stack <= (64 if quick else 1024)
        if "attend" in name:
            assert usage.sums
            fits &= orders.setdefault(name.partition("attend")[0], usage.sums) == usage.sums
        good &= fits
        sys.stdout.write(
            f"{' ' if fits else '!'} sm_{target} {name:40} {usage.threads:4} threads {usage.registers:4} registers "
            f"{usage.stack:4} B stack {usage.shared:6} B shared {usage.at_once(target):3} at once\n"
        )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))
