"""The engine: queue, rounds, and the ways in (`Engine` for Python, `AsyncEngine` for servers)."""

from adaptspec.engine.engine import Engine
from adaptspec.engine.front import AsyncEngine
from adaptspec.types import SamplingParams, SpeculationParams

__all__ = ["AsyncEngine", "Engine", "SamplingParams", "SpeculationParams"]
