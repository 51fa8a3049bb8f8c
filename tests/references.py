"""What policies are held against, kept from run to run: the goodput of fixed rules on fixed texts.

    python -m tests.references

computes all that the tests ask for and writes it down anew (some minutes). A figure is found by a digest of all that
goes into it: texts, costs, settings and rule. Whoever changes one of these finds nothing here, and has it computed
(`tests/test_references.py` fails then: keep them anew); whoever changes what the simulator makes of them is told by the
figures that are computed all the same, one in so many.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptspec.control.language.build import parse_policy_spec
from adaptspec.simulation.cost_profiles import MachineCosts
from adaptspec.simulation.replay import replay
from adaptspec.simulation.scenarios import Stream
from adaptspec.simulation.simulator import SimulatorSettings

FILE = Path(__file__).with_name("references.json")
CHECKED = 64  # thirty of them
ASKING = ("tests/simulation/test_goodput_on_tapes.py",)


class References:
    """Figures by digest. `asked` holds those of this run where all are to be computed, else it is None."""

    def __init__(self, kept: Mapping[str, float]) -> None:
        self._kept = kept
        self.asked: dict[str, float] | None = None

    def get(self, compute: Callable[[], float], *inputs: object) -> float:
        """The figure that `compute` makes of these inputs and nothing else."""
        key = digest(*inputs)
        if self.asked is not None:
            self.asked[key] = float(f"{compute():.12g}")
            return self.asked[key]
        kept = self._kept.get(key)
        if kept is None:
            return compute()
        if int(key, 16) % CHECKED == 0:
            assert compute() == pytest.approx(kept, rel=1e-9), (
                "what the simulator says of a fixed rule has changed; if it should have: python -m tests.references"
            )
        return kept


def digest(*inputs: object) -> str:
    """Of values, arrays, and dataclasses and containers of them."""
    made = hashlib.sha256()
    for one in inputs:
        _feed(made, one)
    return made.hexdigest()[:16]


def _feed(made: Any, one: object) -> None:
    made.update(type(one).__name__.encode() + b"(")
    if isinstance(one, np.ndarray):
        made.update(f"{one.dtype}{one.shape}".encode() + np.ascontiguousarray(one).tobytes())
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            _feed(made, getattr(one, field.name))
    elif isinstance(one, Mapping):
        for key in sorted(one):
            _feed(made, key)
            _feed(made, one[key])
    elif isinstance(one, list | tuple):
        for part in one:
            _feed(made, part)
    else:
        assert one is None or isinstance(one, str | int | float | bool), f"what is a {type(one).__name__} made of?"
        made.update(repr(one).encode())
    made.update(b")")


def goodput(rule: str, stream: Stream, costs: MachineCosts, settings: SimulatorSettings = SimulatorSettings()) -> float:
    """What a policy, given as YAML, delivers: for rules that learn nothing, or are not what is under test."""
    spec = parse_policy_spec(rule)
    of_costs = (costs.name, costs.overhead, costs.per_cached_token, costs.drafters, costs.profile())
    return REFERENCES.get(
        lambda: replay(spec, stream, costs, settings).goodput, "goodput", rule, stream, of_costs, settings
    )


def fixed_goodput(
    depth: int, drafter: str, stream: Stream, costs: MachineCosts, settings: SimulatorSettings = SimulatorSettings()
) -> float:
    """The same of one depth of one drafter throughout."""
    return goodput(STATIC % (depth, drafter), stream, costs, settings)


STATIC = (
    "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: fixed}\n"
    "spec: {choose: {algorithm: static, depth: %d}, drafters: [%s]}\n"
)
REFERENCES = References(json.loads(FILE.read_text()) if FILE.exists() else {})


def main() -> None:
    """Have the tests ask for all of them, and keep the answers."""
    from tests.references import REFERENCES as shared

    shared.asked = {}
    # What the simulator imports is there already, and pytest would warn that it cannot rewrite that.
    if status := pytest.main(["-n0", "-q", "-W", "ignore::pytest.PytestAssertRewriteWarning", *ASKING]):
        raise SystemExit(status)
    FILE.write_text(json.dumps(shared.asked, sort_keys=True, indent=0) + "\n")


if __name__ == "__main__":
    main()
