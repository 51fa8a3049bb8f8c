"""AdaptSpec: an adaptive speculation control plane for serving language models."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptspec.engine import Engine, SamplingParams, SpeculationParams

__all__ = ["Engine", "SamplingParams", "SpeculationParams"]
__version__ = "0.1.0"

# OpenMP threads that wait for each other spin: by default 300,000 turns (5 to 20 ms), in which another program, or the
# very thread they wait for, does not get the core. This bound costs nothing on a quiet machine and removes half of the
# slowdown on a busy one. OMP_WAIT_POLICY=passive would make passes 1.85 x slower on a quiet machine. libgomp reads the
# variable when torch is imported. Values that the user has set are kept.
if "torch" not in sys.modules and not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
    os.environ["GOMP_SPINCOUNT"] = "100000"


def __getattr__(name: str) -> Any:
    """The Python API, imported when it is asked for: it brings torch, and `adaptspec --help` must not wait for that."""
    if name in __all__:
        return getattr(import_module("adaptspec.engine"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
