"""Reasons as arrays of one, to be spread over rows: made once, since a round is short."""

from __future__ import annotations

import numpy as np

from adaptspec.types import IntArray, Reason

CEILING: IntArray = np.array([int(Reason.CEILING)])
OFF: IntArray = np.array([int(Reason.OFF)])
POLICY: IntArray = np.array([int(Reason.POLICY)])
