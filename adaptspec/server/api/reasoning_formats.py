"""Marks of reasoning by the names of `--reasoning-format`. The command line imports this, so it loads no libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from adaptspec.request import Reasoning

FormatName = Literal["auto", "none", "think", "seed", "kimi", "thought"]
AUTO: FormatName = "auto"
# A template that has the closing mark in its text is of that family.
FORMATS: Mapping[FormatName, Reasoning] = {
    "think": Reasoning("<think>", "</think>"),  # DeepSeek R1, Qwen 3, QwQ, SmolLM 3, GLM 4.5, MiniMax M2, Nemotron ...
    "seed": Reasoning("<seed:think>", "</seed:think>"),  # Seed-OSS
    "kimi": Reasoning("◁think▷", "◁/think▷"),  # Kimi-VL Thinking
    "thought": Reasoning("<thought>", "</thought>"),  # EXAONE Deep
}
