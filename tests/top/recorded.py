"""A feed that was recorded from a real server under mixed traffic: its snapshot, and three updates after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adaptspec.top.feed import LiveState


def recorded() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The snapshot, and the updates."""
    told = json.loads(Path(__file__).with_name("recorded.json").read_text())
    return told["snapshot"], told["updates"]


def state() -> LiveState:
    """After all of it."""
    snapshot, updates = recorded()
    made = LiveState.of(snapshot)
    for update in updates:
        made.update(update)
    return made
