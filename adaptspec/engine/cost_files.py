"""Cost profiles as files: the folder of those measured on this machine, and their description of themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from adaptspec.control.cost_profile import MAX_FILE_BYTES, CostProfile
from adaptspec.errors import ConfigError
from adaptspec.files import cache_folder, read_text, write_file
from adaptspec.quantity import quantity

_AGES = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


@dataclass(frozen=True)
class CostFile:
    """A profile, its file, when it was measured (UTC), and `about`: the machine and the models."""

    path: Path
    profile: CostProfile
    measured: datetime
    about: Mapping[str, Any]

    def to_json(self, now: datetime) -> dict[str, Any]:
        """Plain data; its age at `now` is in seconds."""
        return {
            "path": str(self.path),
            "measured": self.measured.isoformat(timespec="seconds"),
            "age_seconds": round((now - self.measured).total_seconds()),
            "about": dict(self.about),
            "costs": json.loads(self.profile.to_json()),
        }

    def origin(self, now: datetime) -> str:
        """When it was measured, on which machine and of which models, in words."""
        about, when = self.about, f"{self.measured.astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
        words = f"measured {when}, {_age((now - self.measured).total_seconds())} ago"
        if not about.keys() >= {"device", "processor", "threads", "torch", "models", "max_rows"}:
            return f"{words}; the file does not say on what machine"
        place = about["processor"] if about["device"] == "cpu" else f"{about['device']} beside {about['processor']}"
        return (
            f"{words}, on {place} with {quantity(about['threads'], 'thread')} and torch {about['torch']}; models: "
            f"{' + '.join(map(str, about['models']))}, up to {quantity(about['max_rows'], 'row')}"
        )


def _age(seconds: float) -> str:
    size, unit = next(((size, unit) for size, unit in _AGES if seconds >= 2 * size), _AGES[-1])
    return f"{max(0.0, seconds) / size:.0f} {unit}"


NO_FOLDER = "there is no home directory to keep costs in; set XDG_CACHE_HOME to a folder"


def costs_folder() -> Path | None:
    """The folder of measured profiles: in the user's cache directory, if there is one."""
    root = cache_folder()
    return None if root is None else root / "adaptspec" / "costs"


def read_cost_file(path: Path) -> CostFile:
    """
    Raises:
        OSError: it cannot be read.
        ConfigError: it is no cost profile.
    """
    text = read_text(path, MAX_FILE_BYTES)
    profile = CostProfile.from_json(text)
    about = json.loads(text).get("about")
    about = about if isinstance(about, dict) else {}  # files of earlier versions have no such field
    try:
        measured = datetime.fromisoformat(about.get("measured", ""))
    except (TypeError, ValueError):
        measured = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    return CostFile(path, profile, measured, about)


def write_cost_file(path: Path, profile: CostProfile, about: Mapping[str, Any], now: datetime) -> None:
    """Keep a profile that was measured `now`. Raises OSError."""
    body = {"about": {"measured": now.isoformat(timespec="seconds"), **about}, **json.loads(profile.to_json())}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(body, indent=1).encode(), alone=False)


def cost_files() -> tuple[list[CostFile], list[str]]:
    """The profiles of `costs_folder`, newest first, and a line for each file that is none."""
    found, bad = [], []
    folder = costs_folder()
    for path in [] if folder is None else sorted(folder.glob("*.json")):
        try:
            found.append(read_cost_file(path))
        except (OSError, ConfigError, ValueError) as error:
            bad.append(f"{path}: cannot be used ({error}); it is measured again when it is needed")
    return sorted(found, key=lambda file: file.measured, reverse=True), bad
