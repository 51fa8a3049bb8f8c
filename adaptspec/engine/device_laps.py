"""Rounds without requests on a device, as they are captured there, timed by its own clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import product

import numpy as np
import torch

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import ModelDrafter
from adaptspec.gpu.device_decoder import DeviceDecoder
from adaptspec.gpu.round import DeviceRounds
from adaptspec.gpu.round_plan import RoundPlan
from adaptspec.gpu.staging import at_work
from adaptspec.models.runner import Runner
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.request import SamplingParams

CONTEXTS = (512, 8192, 32_768)  # tokens that rows hold, as far as there is room
SHORT = 128  # contexts below are too short to be measured at the same number of tokens
TURNS = 5
_LIKELIEST = RowSampling(SamplingParams(temperature=0.0), 0, [0], 1, ())


class DeviceLaps:
    """Rounds of up to `rows` rows that verify up to `widest` tokens of each, as they run in service.

    All rows must be free, and stay so.
    """

    @torch.inference_mode()
    def __init__(self, models: Sequence[DeviceDecoder], rows: int, widest: int) -> None:
        """`models`: the target and, if there is one, its draft."""
        self._models, target = models, models[0]
        for model in models:
            for layer in model.cache.pool:
                layer.zero_()  # what nobody has written may be no number, and stop a draft
        self._steps = max(widest - 1, 1)
        self._rounds = DeviceRounds(target, models[1] if len(models) > 1 else None, rows, self._steps, ())
        if target.device.type == "cuda" and not target.info.eager:
            self._rounds.capture()

    @torch.inference_mode()
    def seconds(self, count: int, context: int, width: int, *, drafts: bool = False) -> tuple[float, float] | None:
        """Median seconds that `count` rows, which hold `context` tokens each, take to draft and to verify `width` each.

        None where a cache has no room for them. Without `drafts` what is verified comes from elsewhere.
        """
        models = self._models[: 1 + drafts]
        drafts = len(models) > 1
        if context + width > min(model.info.context for model in models):
            return None
        try:
            if all(m.reserve(row, context + width) for m, row in product(models, range(count))):
                plan = self._plan(count, context, width - 1, drafts=drafts)
                turns = [self._time(plan) for _ in range(TURNS + 1)][1:]
                draft, verify = map(statistics.median, zip(*turns, strict=True))
                return (draft if drafts else 0.0), verify
            return None
        finally:
            for model, row in product(models, range(count)):
                model.free(row)

    def _time(self, plan: RoundPlan) -> tuple[float, float]:
        start = time.perf_counter()
        with at_work(self._rounds.target.device):
            self._rounds.launch(plan)
            self._rounds.end()
        # Without a clock of its own, drafting and verifying are one.
        return self._rounds.result(plan).seconds or (0.0, time.perf_counter() - start)

    def _plan(self, count: int, context: int, depth: int, *, drafts: bool) -> RoundPlan:
        each = np.ones(count, dtype=np.int64)
        return RoundPlan(
            rows=np.arange(count, dtype=np.int64),
            lengths=context * each,
            newest=np.zeros((count, 2), dtype=np.int64),
            unread=each,
            depths=each * (depth if drafts else 0),
            given=np.zeros((count, depth), dtype=np.int64),
            counts=each * (0 if drafts else depth),
            sampling=SamplingBatch([_LIKELIEST] * count, self._models[0].info.vocab_size),
            told=-each,
            decoding=count,
            stop=None,
            draft_temperature=None,
            nodes=each * (depth if drafts else 0),
            tree=None,
        )


def on_device(target: Runner, drafters: Sequence[ModelDrafter], rows: int, widest: int) -> DeviceLaps | None:
    """Laps of the target if its rounds run on a device that has a clock, and of a draft that is part of them."""
    runners = [target, *(one.runner for one in drafters if isinstance(one, DraftModelDrafter))]
    here = [one for one in runners if isinstance(one, DeviceDecoder) and one.device == target.device]
    if target.device.type == "cpu" or target not in here or min(one.info.context for one in here) < SHORT:
        return None
    return DeviceLaps(here, rows, widest)


def device_laps(
    laps: DeviceLaps, axes: tuple[Sequence[int], Sequence[int]], context: int, drawn: Sequence[int]
) -> list[tuple[list[float], list[float]]]:
    """What drafting and verifying take, for each number of rows and by the width; `axes` are both.

    A draft model has room for so many rows as are in `drawn`.
    """
    table = []
    for count in axes[0]:
        found = [laps.seconds(count, context, width, drafts=count in drawn and width > 1) for width in axes[1]]
        table.append(([one[0] for one in found if one], [one[1] for one in found if one]))
    return table


def per_cached_token(laps: DeviceLaps, rows: Sequence[int], context: int) -> float:
    """Seconds that a pass of one token per row takes more for each token that its rows hold beyond `context` each.

    The line through rounds of all these numbers of rows and all contexts for which there is room.
    """
    more, longer = [0.0], [0.0]
    for count in rows:
        start = laps.seconds(count, context, 1)
        for length in CONTEXTS:
            found = laps.seconds(count, length, 1) if length > context else None
            if start is not None and found is not None:
                more.append(float(count * (length - context)))
                longer.append(found[1] - start[1])
    tokens, seconds = np.array(more), np.array(longer)
    return max(0.0, float(tokens @ seconds) / max(float(tokens @ tokens), 1.0))


def device_name(target: Runner) -> str:
    """What costs are measured on."""
    name = torch.cuda.get_device_name(target.device) if target.device.type == "cuda" else "cpu"
    parts = target.group.part.size if isinstance(target, DeviceDecoder) else 1
    return name if parts == 1 else f"{parts} x {name}"
