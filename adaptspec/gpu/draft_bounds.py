"""Stop tables and draft temperatures on the device: which rows of a draft go on, without asking the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from adaptspec.decision import UNSURE, StopTable

BINS = 100  # of confidence, by which a table says how likely a token is accepted; coarser tables are repeated
_COLUMNS = {"confidence": 0.0, "entropy": np.inf, "survival": 0.0, "worth": 0.0, "step": -1.0}


class Bounds(NamedTuple):
    """The arrays of a `StopTable` for B rows and D steps, a column for each; what does not stop a row is unbound."""

    confidence: torch.Tensor  # [B, D]
    entropy: torch.Tensor
    survival: torch.Tensor
    worth: torch.Tensor
    step: torch.Tensor
    calibration: torch.Tensor  # [B, BINS]
    draft_temperature: torch.Tensor  # [B, 2] ends of `draft_temperatures`

    def goes_on(
        self, step: torch.Tensor, asked: torch.Tensor, sure: torch.Tensor, spread: torch.Tensor, alive: torch.Tensor
    ) -> torch.Tensor:
        """Which of the rows `asked` [B] go on after drafted token `step` [1], from 0: see `StopTable.continues`.

        `sure` and `spread` [B] are the confidence and entropy of that token; `alive` [B], the chance that all so far
        are accepted, is kept in place.
        """
        least, highest, floor, worth, price = (column.index_select(1, step).squeeze(1) for column in self[:5])
        which = (sure * BINS).long().clamp(0, BINS - 1).unsqueeze(1)
        alive.mul_(torch.where(asked, self.calibration.gather(1, which).squeeze(1), 1.0))
        passing = asked & (sure >= least) & (spread <= highest)
        above = torch.where(passing, alive - floor, 0.0).clamp(min=0.0)
        together = (above * worth).sum()
        return passing & (above > 0.0) & (together > price)

    def temperatures(self, entropy: torch.Tensor) -> torch.Tensor:
        """Of the next tokens [B], by the entropy [B] of what they would be drawn from: see `draft_temperatures`."""
        low, high = self.draft_temperature.unbind(1)
        return low + (high - low) * (entropy / UNSURE).clamp(max=1.0)


def layout(rows: int, steps: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """What `write` fills, for `staging.Block`."""
    columns = dict.fromkeys(_COLUMNS, (torch.float32, (rows, steps)))
    return {**columns, "calibration": (torch.float32, (rows, BINS)), "draft_temperature": (torch.float32, (rows, 2))}


def write(
    host: Mapping[str, npt.NDArray[Any]], stop: StopTable | None, temperature: npt.NDArray[np.float64] | None, rows: int
) -> None:
    """Write the tables, which are of the first rows, for `rows` rows; what has no table is never stopped."""
    columns = {} if stop is None else stop.columns()
    for name, unbound in _COLUMNS.items():
        column = host[name]
        column[:rows] = unbound
        values = columns.get(name)
        if values is not None:
            own, wide = column[: len(values)], min(values.shape[1], column.shape[1])
            own[:, :wide], own[:, wide:] = values[:, :wide], values[:, wide - 1 : wide]
    host["calibration"][:rows] = host["draft_temperature"][:rows] = 1.0
    calibration = columns.get("calibration")
    if calibration is not None:
        repeated = np.repeat(calibration, BINS // calibration.shape[1], axis=1)
        host["calibration"][: len(calibration)] = repeated
    if temperature is not None:
        host["draft_temperature"][: len(temperature)] = temperature
