"""`dictated`: an algorithm that draws depths and drafters at random, and policies of it as a YAML file has them."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import yaml
from pydantic import Field

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.algorithms.algorithm import Algorithm, AlgorithmSpec, Choice, Parts
from adaptspec.control.algorithms.goodput import Goodput, GoodputSettings
from adaptspec.control.language.spec import BodySpec, PolicySpec
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Reason, StopTable, Union
from adaptspec.rounds import RoundRecord

_CALIBRATION = (np.arange(10) + 0.5) / 10  # candidates are accepted as often as their confidence says


class DictatedSpec(AlgorithmSpec):
    """`choose: {algorithm: dictated}`, registered as an installed package registers an algorithm."""

    takes_drafters: ClassVar[bool] = True

    algorithm: Literal["dictated"]
    seed: int = Field(default=0, description="Of all that is drawn at random.")
    depths: list[int] = Field(min_length=1, description="Each row drafts as deep as one of these in each round.")
    learns: bool = Field(default=False, description="A goodput algorithm learns from the rounds, and is not obeyed.")
    beam: bool = Field(default=False, description="Nodes off the main chain are drafted on from while they are likely.")
    union: bool = Field(default=False, description="The last drafter adds its nodes to those of the first.")

    guarded: ClassVar[bool] = False  # its depths are run as drawn

    kind: type | None = Field(default=None, exclude=True, description="A test's own kind of `Dictated`.")

    def build(self, parts: Parts) -> Dictated:
        if not self.learns:
            made: Dictated = (self.kind or Dictated)(self, len(parts.drafters))
            return made
        settings = GoodputSettings(tuple(range(1, 1 + max(self.depths))), parts.drafters)
        return Learning(self, len(parts.drafters), Goodput(parts.cost, parts.max_rows, parts.tasks, settings))


class Dictated(Algorithm):
    """Each row of each round draws a depth and a drafter."""

    def __init__(self, spec: DictatedSpec, drafters: int) -> None:
        self.max_depth = max(spec.depths)
        self._spec, self._drafters = spec, drafters
        self._random = np.random.default_rng(spec.seed)

    def choose(self, signals: BatchSignals) -> Choice:
        rows, spec = signals.batch_size, self._spec
        depths = np.minimum(self._random.choice(spec.depths, rows), signals.limits)
        drafter = self._random.integers(0, self._drafters, rows)
        return Choice(
            depths,
            np.full(rows, int(Reason.FIXED)),
            drafter=np.zeros_like(drafter) if spec.union else drafter,
            stop=_while_likely(rows) if spec.beam else None,
            union=self._union(signals.limits) if spec.union else None,
        )

    def _union(self, limits: IntArray) -> Union:
        last = np.full_like(limits, self._drafters - 1)
        return Union(last, np.minimum(self._random.integers(0, 5, len(limits)), limits))


class Learning(Dictated):
    """Has another algorithm decide and learn, and draws depths at random all the same."""

    def __init__(self, spec: DictatedSpec, drafters: int, learner: Algorithm) -> None:
        super().__init__(spec, drafters)
        self._learner = learner

    @property
    def search_depth(self) -> int | None:
        return self._learner.search_depth

    def start(self, row: int) -> None:
        self._learner.start(row)

    def finish(self, row: int) -> None:
        self._learner.finish(row)

    def choose(self, signals: BatchSignals) -> Choice:
        return replace(super().choose(signals), memo=self._learner.choose(signals).memo)

    def learn(self, record: RoundRecord, memo: object = None) -> None:
        self._learner.learn(record, memo)

    def state(self) -> dict[str, FloatArray]:
        return self._learner.state()


def _while_likely(rows: int) -> StopTable:
    """Nodes are drafted on from while they are likelier than one in twenty."""
    one = np.ones((rows, 1))
    calibration = np.tile(_CALIBRATION, (rows, 1))
    return StopTable(survival=0.05 * one, calibration=calibration, unstated=one, worth=one, step=0.01 * one)


class _Body(BodySpec):
    choose: DictatedSpec  # type: ignore[assignment] # as the registry has it where the package is installed


class _DictatedPolicy(PolicySpec):
    spec: _Body


@functools.cache
def policy(text: str, name: str = "dictated", kind: type[Dictated] | None = None) -> PolicySpec:
    """The policy of a YAML body, such as `choose: {algorithm: dictated, depths: [3]}`; `kind` makes its algorithm."""
    body = yaml.safe_load(text)
    body["choose"]["kind"] = kind
    head = {"apiVersion": "adaptspec.dev/v1", "kind": "SpeculationPolicy", "metadata": {"name": name}}
    return _DictatedPolicy.model_validate(head | {"spec": body})
