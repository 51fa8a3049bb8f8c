"""The engine: queue, rounds, and the ways in (`Engine` for Python, `AsyncEngine` for servers)."""

from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.sync_engine import Engine
from adaptspec.request import SamplingParams, SpeculationParams

__all__ = ["AsyncEngine", "Engine", "SamplingParams", "SpeculationParams"]
