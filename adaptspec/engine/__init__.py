"""The engine: scheduler, rounds, and the entry points `Engine` (synchronous) and `AsyncEngine` (for servers)."""

from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.sync_engine import Engine
from adaptspec.request import SamplingParams, SpeculationParams

__all__ = ["AsyncEngine", "Engine", "SamplingParams", "SpeculationParams"]
