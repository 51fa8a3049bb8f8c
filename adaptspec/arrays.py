"""Names of the arrays that everything is written in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

EMPTY_INT: IntArray = np.empty(0, dtype=np.int64)  # of no rows; shared, since it has no value to change
