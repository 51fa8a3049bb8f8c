"""What SGLang's plugin loader calls (entry point `sglang.srt.plugins`), in each of its processes.

Nothing changes unless `--speculative-adaptive-config` names a policy. Where it does, nothing but the policy will do:
the loader logs what fails in a plugin and goes on, so that whatever keeps the policy from being used is kept until the
configuration is read, and refuses it there. Should even that fail, SGLang reads the file as JSON, and stops.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from importlib.metadata import version
from operator import attrgetter
from typing import Any

from adaptspec.errors import ConfigError
from adaptspec.hosts.engine_contract import Contract, broken, strange_version
from adaptspec.hosts.sglang.policy_steps import PolicySteps, candidate_steps, is_policy

VERSIONS = ("0.5.23",)  # that were tried
_HOOKS, _OVERRIDES = "sglang.srt.plugins.hook_registry", "sglang.srt.arg_groups.overrides"
PARAMS, REPLACED = "sglang.srt.speculative.adaptive_spec_params", "AdaptiveSpeculativeParams"
_RUNTIME, _CONTEXT = "sglang.srt.speculative.adaptive_runtime_state", "sglang.srt.runtime_context"
# What we replace, wrap, answer or call.
CONTRACT: Contract = {
    f"{_HOOKS}:HookRegistry.register": ("cls target hook hook_type source", ""),
    f"{_OVERRIDES}:resolving_view": ("server_args", ""),
    f"{_CONTEXT}:get_server_args": ("", ""),
    f"{PARAMS}:{REPLACED}.__init__": ("self initial_steps cfg_path", ""),
    f"{PARAMS}:resolve_candidate_steps_from_config": ("cfg_path", ""),
    f"{PARAMS}:adaptive_unsupported_reason": ("server_args", ""),
    f"{_RUNTIME}:AdaptiveController.__init__": ("self worker policy", ""),
    f"{_RUNTIME}:AdaptiveController.activate_step_by_batch": ("self batch_size", ""),
    f"{_RUNTIME}:AdaptiveController.on_verify_complete": ("self num_correct_drafts_per_req batch_size", ""),
    f"{_RUNTIME}:AdaptiveSpecPolicy.set_cuda_graph_bs": ("self cuda_graph_bs", ""),
    f"{_RUNTIME}:AdaptiveSpecPolicy.get_steps_for_batch": ("self batch_size", ""),
    f"{_RUNTIME}:AdaptiveSpecPolicy.on_verify_complete": ("self num_correct_drafts_per_req batch_size", ""),
    f"{_RUNTIME}:AdaptiveSpecPolicy.cuda_graph_bs_for_step": ("self step", ""),
}
# Each rank would decide by its own clock, and ranks that draft to other depths wait for each other for ever.
_RANKS = ("tp_size", "pp_size", "dp_size")

_log = logging.getLogger(__name__)


def register() -> None:
    """Have SGLang ask us for steps where it is given a policy."""
    problem = broken_contract()
    if problem:
        _log.error("policies are refused here: %s", problem)
    hooks, params = _Hooks(problem), importlib.import_module(PARAMS)
    here: dict[str, tuple[Callable[..., Any], str]]
    here = {name: (hook, "AROUND") for name, hook in hooks.around.items() if hasattr(params, name)}
    if hasattr(params, REPLACED):
        here[REPLACED] = (hooks.params(getattr(params, REPLACED)), "REPLACE")
    for name, (hook, kind) in here.items():
        _of(_HOOKS, "HookRegistry").register(f"{PARAMS}.{name}", hook, _of(_HOOKS, "HookType")[kind])


def broken_contract() -> str:
    """What of this SGLang is other than what was tried, by name; empty if nothing is."""
    strange = strange_version("SGLang", version("sglang"), VERSIONS)
    if strange:
        return strange
    otherwise = [*broken(CONTRACT)]
    if not otherwise:
        asked = {name for name in vars(_of(_RUNTIME, "AdaptiveSpecPolicy")) if not name.startswith("_")}
        unknown = asked - set(dir(PolicySteps)) - {"candidate_steps"}
        otherwise = [f"AdaptiveSpecPolicy asks for {name}" for name in sorted(unknown)]
    use = f"install SGLang {', '.join(VERSIONS)}, or give a JSON configuration of SGLang's own"
    return f"{'; '.join(otherwise)}; {use}" if otherwise else ""


def _of(module: str, name: str) -> Any:
    return attrgetter(name)(importlib.import_module(module))


class _Hooks:
    """What stands in place of SGLang's own; `problem` keeps policies, and nothing else, from being used."""

    def __init__(self, problem: str) -> None:
        self._problem = problem
        self.around: dict[str, Callable[..., Any]] = {
            "resolve_candidate_steps_from_config": self.resolve,
            "adaptive_unsupported_reason": self.unsupported,
        }

    def resolve(self, original: Callable[[str | None], list[int]], cfg_path: str | None = None) -> list[int]:
        """In all processes, before anything is sized."""
        if not is_policy(cfg_path):
            return original(cfg_path)
        self._check(cfg_path)
        return candidate_steps(str(cfg_path))

    def unsupported(self, original: Callable[[Any], str | None], server_args: Any) -> str | None:
        """SGLang goes on without its adaptation where it cannot be had; with a policy, it does not start."""
        told, reason = _of(_OVERRIDES, "resolving_view")(server_args), original(server_args)
        path = told.speculative_adaptive_config
        if not is_policy(path):
            return reason
        self._check(path)
        many = [f"{name}={getattr(told, name)}" for name in _RANKS if getattr(told, name) > 1]
        if many:
            reason = f"its ranks would decide apart ({', '.join(many)}); run a server per GPU behind a router"
        if reason:
            raise ConfigError(f"SGLang cannot follow {path}: {reason}")
        return None

    def params(self, original: type) -> type:
        """The class that chooses steps: SGLang's own, unless it is told of a policy."""
        check = self._check

        class AdaptiveSpeculativeParams(original):  # type: ignore[misc]
            def __new__(cls, initial_steps: int, cfg_path: str | None = None) -> Any:
                if not is_policy(cfg_path):
                    return super().__new__(cls)
                check(cfg_path)
                served = _of(_CONTEXT, "get_server_args")()
                models = {
                    "target": served.model_path,
                    "draft": served.speculative_draft_model_path or served.model_path,
                }
                return PolicySteps(initial_steps, str(cfg_path), models)

        return AdaptiveSpeculativeParams

    def _check(self, path: object) -> None:
        if self._problem:
            raise ConfigError(f"SGLang cannot follow {path}: {self._problem}")
