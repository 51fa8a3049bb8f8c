"""The command that starts vLLM with a policy: its scheduler, and drafts and CUDA graphs as deep as the policy goes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from adaptspec.control.host import VLLM, drafters_of
from adaptspec.control.language.library import find_policy
from adaptspec.errors import ConfigError
from adaptspec.hosts.rounds import costs_of_steps
from adaptspec.hosts.served_policies import ServedPolicies
from adaptspec.hosts.settings import PilotSettings
from adaptspec.hosts.vllm import SCHEDULER
from adaptspec.hosts.vllm.contract import EXTENSION, check_start

# As `vllm serve`, which finds its version under the name `vllm` alone, and builds of another name do not start.
_START = ("python", "-m", "vllm.entrypoints.openai.api_server", "--model")


def serve_line(
    model: str, draft: str | None, settings: PilotSettings, *, method: str, max_num_seqs: int, more: Sequence[str]
) -> tuple[list[str], Sequence[str]]:
    """The words of the command, and what of the policies does not hold there, a line each.

    `draft` None: the method needs no model of its own. `more` are vLLM's own flags, which come last.
    Raises ConfigError: a policy or a method cannot be used inside vLLM, or `max_num_seqs` is too few for all depths.
    """
    check_start(method, draft, skip=settings.skip_draft)
    host = replace(VLLM, drafters=drafters_of(method))
    policies = ServedPolicies(settings.policy, host, max_num_seqs)
    depths = _depths(policies)
    speculative = {
        "method": method,
        **({} if draft is None else {"model": draft}),
        "num_speculative_tokens": depths[-1],
        "num_speculative_tokens_per_batch_size": _ladder(depths, max_num_seqs),
    }
    told = settings.model_dump(by_alias=True, mode="json", exclude_defaults=True)
    told["policy"] = [_found(name) for name in settings.policy]  # by name or path: vLLM compiles anew for other text
    words = [*_START, model, "--speculative-config", json.dumps(speculative), "--scheduler-cls", SCHEDULER]
    words += ["--additional-config", json.dumps({"adaptspec": told}), "--max-num-seqs", str(max_num_seqs)]
    if settings.skip_draft:
        words += ["--worker-extension-cls", EXTENSION, "--no-enable-prefix-caching"]
    return [*words, *more], policies.notes


def _found(name: str) -> str:
    """A file by a path that holds wherever vLLM is started; a policy that ships by its name."""
    path = Path(name)
    return str(path.absolute()) if path.suffix in (".yaml", ".yml") and find_policy(name) == path else name


def _depths(policies: ServedPolicies) -> list[int]:
    """All depths that the policies may ask for, ascending."""
    built = policies.controller(costs_of_steps()).policies
    depths = set()
    for name, spec in policies.specs.items():
        most = built[name].max_depth
        free = spec.tiers if spec.spec.choose.takes_tiers else range(1, most + 1)
        depths |= {depth for depth in free if depth <= most}
    if not depths:
        raise ConfigError("none of these policies ever drafts: start vLLM without a draft, which is faster")
    return sorted(depths)


def _ladder(depths: Sequence[int], rows: int) -> list[tuple[int, int, int]]:
    """A table of all depths by batch size, the deepest for nearly all.

    Nobody decides by it: vLLM captures CUDA graphs for depths in its table, and for no others.
    """
    lower = [*reversed(depths[:-1]), 0]
    most = rows - len(lower)
    if most < 1:
        raise ConfigError(f"--max-num-seqs {rows} is too few for depths 0, {', '.join(map(str, depths))}: give more")
    return [(1, most, depths[-1]), *((most + at, most + at, depth) for at, depth in enumerate(lower, start=1))]
