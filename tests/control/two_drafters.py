"""Worlds with a draft model and a lookup on one text: tapes of known acceptance, served by the simulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptspec.control.language.build import parse_policy_spec
from adaptspec.simulation.cost_profiles import of_profile
from adaptspec.simulation.draft_view import DraftView
from adaptspec.simulation.replay import Tally, replay
from adaptspec.simulation.scenarios import Schedule, Stream
from adaptspec.simulation.tape import Tape, join, recorded
from adaptspec.types import FloatArray
from tests.control.simulator import HEADER, Machine

GOODPUT = HEADER + "  choose: {algorithm: goodput}\n  drafters: [%s]\n"
OFF = HEADER + "  choose: {algorithm: static, depth: 0}\n"
_COSTS = of_profile("small", Machine().profile())


def request(name: str, model: FloatArray | float, lookup: FloatArray | float, length: int, seed: int) -> Tape:
    """A request whose draft model and lookup agree with these probabilities, by position."""
    rng = np.random.default_rng(seed)
    chances = {"draft-model": np.broadcast_to(model, length), "ngram": np.broadcast_to(lookup, length)}
    views = {drafter: DraftView.of_agreement(rng.random(length) < chance) for drafter, chance in chances.items()}
    return recorded(name, 64, length, views)


def alike(model: float, lookup: float, count: int, length: int = 300) -> Tape:
    """Requests of the same acceptance."""
    return join([request(f"r{i}", model, lookup, length, i) for i in range(count)])


def serve(policy: str, tape: Tape, batch: int = 1) -> Tally:
    """Serve a tape, `batch` requests at a time, with its records kept."""
    stream = Stream(tape, tuple(range(len(tape))), Schedule((batch,)))
    return replay(parse_policy_spec(policy), stream, _COSTS, keep=True)


def best(tape: Tape, batch: int, drafters: Sequence[str] = ("draft-model", "ngram")) -> float:
    """Goodput of the best of: goodput with one of the drafters, and off."""
    policies = [OFF, *(GOODPUT % drafter for drafter in drafters)]
    return max(serve(policy, tape, batch).goodput for policy in policies)
