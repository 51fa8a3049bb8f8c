"""The tasks that acceptance is learned apart for. A request names one as a hint; without a hint it is unknown."""

from __future__ import annotations

REGIONS = ("prose", "code", "json")

TASKS = ("chat", "code", "instruction", "json", "math", "rag", "story", "summarize", "template", "translate")
