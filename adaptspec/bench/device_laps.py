"""Rounds without requests on a device, as they are captured there, timed by its own clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import product

import numpy as np
import torch

from adaptspec.gpu.device_decoder import DeviceDecoder
from adaptspec.gpu.round import DeviceRounds
from adaptspec.gpu.round_plan import RoundPlan
from adaptspec.gpu.staging import at_work
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.request import SamplingParams

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
