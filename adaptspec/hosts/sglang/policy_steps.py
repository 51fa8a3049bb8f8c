"""A policy as SGLang asks for it: steps for the whole batch, before each decode, and what was accepted after it.

SGLang tells neither which requests are in a batch, nor what else a step did: rows have no names, and no more is known
of them than what was accepted.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from adaptspec.control.host import SGLANG, narrow
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.limits import DEEPEST
from adaptspec.errors import ConfigError
from adaptspec.hosts.pilot import Pilot
from adaptspec.hosts.rounds import Plan
from adaptspec.hosts.settings import PilotSettings

SETTINGS = "ADAPTSPEC_HOST"
# SGLang captures graphs and keeps buffers for each depth, so a policy that may take any gets those that SGLang climbs.
_LADDER = (1, 3, 5, 7)
# Far beyond what it decodes at once: 48 requests where it speculates, unless it is told otherwise.
_MAX_ROWS = 1024
# Decisions that wait: one whose outcome is on its way, one that is being run. What is older was never told of.
_MOST_WAITING = 2

_log = logging.getLogger(__name__)


def is_policy(path: object) -> bool:
    """Whether a `--speculative-adaptive-config` is ours: SGLang's own are JSON."""
    return str(path).endswith((".yaml", ".yml"))


def candidate_steps(path: str) -> list[int]:
    """The depths that SGLang prepares for a policy, 0 first. Raises PolicyError for what SGLang cannot follow."""
    spec, _ = narrow(load_policy_spec(path), SGLANG)
    return sorted({0, *_depths(spec)})


def _depths(spec: PolicySpec) -> set[int]:
    choose, every = spec.spec.choose, range(DEEPEST + 1)
    own = {depth for depth in every[1:] if choose.kept_to([one for one in every if one != depth]) != choose}
    free = spec.tiers if choose.takes_tiers and spec.drafts else ()
    chosen = free if spec.spec.tiers is not None or len(free) <= len(_LADDER) else set(free) & set(_LADDER)
    return own.union(chosen)


class PolicySteps:
    """SGLang's protocol `AdaptiveSpecPolicy`, answered by a policy file."""

    def __init__(
        self,
        initial_steps: int,
        path: str,
        models: Mapping[str, str],
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`initial_steps`: what it does once the policy has failed for good. `models`: as `Pilot` has them. What else
        there is to say is in the environment variable ADAPTSPEC_HOST: `PilotSettings` in JSON.

        Raises AdaptSpecError for what cannot be used here.
        """
        self.candidate_steps = candidate_steps(path)
        self._initial = initial_steps
        host = replace(SGLANG, deepest=self.candidate_steps[-1], tiers=tuple(self.candidate_steps))
        self._clock = clock or time.perf_counter
        self._idle, self._asked = 0.0, self._clock()
        self._ended = self._asked
        self.pilot = Pilot(_settings(path), host, _MAX_ROWS, models=models, clock=self._busy)
        self._waiting: deque[tuple[Plan, list[str], int]] = deque()
        self._rows: list[str] = []
        self._batches = 0
        self._graph_sizes: list[int] | None = None
        for note in self.pilot.notes:
            _log.warning("%s", note)
        _log.info("drafts follow %s, at most %d tokens deep", path, host.deepest)
        atexit.register(self.pilot.close)

    def set_cuda_graph_bs(self, cuda_graph_bs: Sequence[int] | None) -> None:
        """Batch sizes that graphs are captured for."""
        self._graph_sizes = sorted(cuda_graph_bs) if cuda_graph_bs else None

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:  # noqa: ARG002 - any at any size
        """Those among them that a depth may be taken at."""
        return self._graph_sizes

    def get_steps_for_batch(self, batch_size: int) -> int:
        """How deep to draft now."""
        now = self._clock()
        others = len(self._rows) != batch_size
        if not self._waiting:  # since the last step nobody decoded: there was nobody, or prompts were read
            self._idle += now - self._ended
            others |= now - self._ended > self._ended - self._asked
        self._asked = now
        if others:  # after a pause of more than a step, too, whoever is here may be new: nobody knows
            self._batches += 1
            gone, self._rows = self._rows, [f"{self._batches}.{row}" for row in range(batch_size)]
            self._leave(gone)
        plan = self.pilot.decide(self._rows)
        steps = self._initial if self.pilot.detached else plan.depth
        if len(self._waiting) == _MOST_WAITING:
            self._leave(self._waiting.popleft()[1])
        self._waiting.append((plan, self._rows, steps))
        return steps

    def on_verify_complete(self, num_correct_drafts_per_req: Sequence[int], batch_size: int) -> None:
        """How many drafted tokens were kept for each row; under overlap the next decision was made before."""
        while self._waiting:
            plan, rows, steps = self._waiting.popleft()
            if len(rows) == batch_size:
                accepted = list(num_correct_drafts_per_req)
                self.pilot.learn(plan, rows, [steps] * batch_size, accepted, [kept + 1 for kept in accepted])
                self._leave(rows)
                break
            self._leave(rows)
        self._ended = self._clock()

    def _leave(self, rows: list[str]) -> None:
        """Rows of a batch that is over, once nothing of it is to be learned any more."""
        if rows is not self._rows and all(rows is not waiting for _, waiting, _ in self._waiting):
            for row in rows:
                self.pilot.leave(row)

    def _busy(self) -> float:
        """Seconds, but for those in which no step ran."""
        return self._clock() - self._idle


def _settings(path: str) -> PilotSettings:
    text = os.environ.get(SETTINGS, "{}")
    try:
        return PilotSettings.of({**json.loads(text), "policy": path})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f'{SETTINGS} is {text!r}: give an object in JSON, such as {{"journal": "a.jsonl"}}'
        ) from error
