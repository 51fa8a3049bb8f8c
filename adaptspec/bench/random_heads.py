"""What heads cost that are never right: policies over plain decoding, with heads of random weights for a target.

"hearing" keeps the target's states for a head that it never asks: what a head costs at rest. "goodput" is the default
policy with nothing else to draft with: it has to learn to leave the head, and decides and tries beside. Ratios are of
tokens per second of the engine's thread, in CPU time, which a busy machine disturbs least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from adaptspec.analysis.journal_tape import DRAFTER
from adaptspec.bench.doctor import policy_text
from adaptspec.bench.policies import PolicySettings, policy_config, run_policies
from adaptspec.bench.workloads import Workloads
from adaptspec.engine.build import build
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.tables import Table
from adaptspec.training.distillation import DEPTHS, LAYERS
from adaptspec.training.head_files import make_head, save_head
from adaptspec.training.measure import load_transformers

KINDS = ("eagle", "medusa", "dflash")
# Asks for a draft in batches that are never run.
_HEARING = """\
apiVersion: adaptspec.dev/v1
kind: SpeculationPolicy
metadata: {name: hearing}
spec:
  choose: {algorithm: batch-table, schedule: [[1, 511, 0], [512, 512, 1]]}
"""
_POLICIES = {
    "off": policy_text((), name='"off"'),  # a bare `off` is no name in YAML
    "hearing": _HEARING,
    "goodput": policy_text((DRAFTER,), name="goodput"),
}


def write_random_head(kind: str, target: str, folder: Path) -> None:
    """A checkpoint of a head for the target in a directory, whose guesses are any tokens."""
    model = load_transformers(target, torch.float32, torch.device("cpu"))
    head = make_head(kind, model, DEPTHS[kind], LAYERS[kind])
    for parameter in head.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    save_head(head, model, folder, target)


def run_random_heads(
    config: EngineConfig, workloads: Workloads, settings: PolicySettings, tick: Callable[[], None]
) -> dict[str, Any]:
    """`run_policies` of plain decoding, with captured states, and the default policy with each kind of head in turn."""
    results = {}
    with TemporaryDirectory() as folder:
        files = [Path(folder, f"{name}.yaml") for name in _POLICIES]
        for file, text in zip(files, _POLICIES.values(), strict=True):
            file.write_text(text)
        settings = replace(settings, cpu_time=True)
        for kind in KINDS:
            write_random_head(kind, config.target_path, Path(folder, kind))
            with_head = replace(config, draft=str(Path(folder, kind)), device="cpu")
            with_head = policy_config(with_head, [str(file) for file in files], settings.batch)
            results[kind] = run_policies(build(with_head), with_head, workloads, settings, tick)
    first = results[KINDS[0]]
    return {
        "benchmark": "heads",
        "setup": first["setup"],
        "settings": first["settings"],
        "heads": {kind: result["policies"] for kind, result in results.items()},
    }


def random_heads_report(result: dict[str, Any]) -> list[Table | str]:
    """The result for people."""
    title = f"random heads: CPU seconds of plain decoding over those of a policy (batch {result['settings']['batch']})"
    table = Table("head", "policy", "all", "95 %", "drafted of", "same text", title=title)
    for kind, policies in result["heads"].items():
        for row in policies[1:]:
            over, spread = row["over_first"], "{low:.3f}-{high:.3f}".format(**row["over_first"])
            share, same = f"{row['drafted']} of {row['tokens']}", "yes" if row["same_text"] else "NO"
            table.add_row(kind, row["name"], f"{over['mean']:.3f}", spread, share, same)
    return [table]
