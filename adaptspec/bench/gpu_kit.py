"""What to run when a GPU is at hand: five parts, each within minutes, without a file but the code.

Every piece of a part is written down as soon as it is there, and one that fails costs no other. What there was no time
for is named. The engine's pieces need pydantic beside torch, Triton, numpy and transformers; grammars need llguidance.
"""

from __future__ import annotations

import json
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from adaptspec.bench.random_models import FULL, TINY, Sizes

PARTS: Mapping[str, str] = {
    "bits": "adaptspec.bench.device_bits",
    "kernels": "adaptspec.bench.kernel_accuracy",
    "bandwidth": "adaptspec.bench.device_bandwidth",
    "goodput": "adaptspec.bench.device_goodput",
    "soak": "adaptspec.bench.device_soak",
}
SECONDS = 470.0  # of a part


class Bench:
    """One part under way: its pieces, and the time that it has left."""

    def __init__(self, part: str, device: torch.device, sizes: Sizes, seconds: float, out: Path) -> None:
        self.device, self.sizes = device, sizes
        self.seconds, self._end = seconds, time.monotonic() + seconds
        self._path = out / f"gpu-{part}.json"
        self.result: dict[str, Any] = {
            "benchmark": f"gpu {part}",
            "machine": machine(device),
            "pieces": {},
            "seconds": {},
            "failed": {},
            "left_out": [],
        }

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def has(self, what: str, seconds: float = 0.0) -> bool:
        """Whether there is time for what takes about so long at full size; what there is none for is noted."""
        if self.left > (seconds if self.sizes is FULL else 0.0):
            return True
        self.result["left_out"].append(what)
        return False

    def piece(self, name: str, run: Callable[[], Any], seconds: float = 0.0) -> Any:
        """Run it, unless there is no time, and write down what it found, or how it failed. What it found, or None."""
        if not self.has(name, seconds):
            return None
        start, found = time.monotonic(), None
        try:
            found = run()
            if found is not None:
                self.result["pieces"][name] = found
        except Exception:  # noqa: BLE001 - time on a device is short: the others are to run all the same
            self.result["failed"][name] = traceback.format_exc()
        self.result["seconds"][name] = round(time.monotonic() - start, 1)
        sys.stderr.write(f"{name}: {self.result['seconds'][name]} s{' FAILED' * (name in self.result['failed'])}\n")
        self.write()
        return found

    def write(self) -> None:
        """As JSON, and as a report beside it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.result, indent=1), encoding="utf-8")
        self._path.with_suffix(".md").write_text(report(self.result), encoding="utf-8")


def run_gpu_kit(
    parts: Sequence[str], out: Path, *, device: str = "auto", tiny: bool = False, seconds: float = SECONDS
) -> dict[str, Any]:
    """Run these parts, or all of them, in turn, and write `gpu-PART.json` and `.md` into `out`.

    `good` in the result: nothing failed, and what was to hold did.
    """
    place = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    results = []
    for part in parts or PARTS:
        bench = Bench(part, place, TINY if tiny else FULL, seconds, out)
        bench.piece(part, lambda bench=bench, part=part: import_module(PARTS[part]).run(bench))  # type: ignore[misc]
        bench.write()
        results.append(bench.result)
        if place.type == "cuda":
            torch.cuda.empty_cache()
    good = not any(one["failed"] or _wrong(one["pieces"]) for one in results)
    return {"benchmark": "gpu", "good": good, "parts": results}


def machine(device: torch.device) -> dict[str, Any]:
    """What it ran on."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: version(name) for name in ("triton", "transformers", "numpy") if find_spec(name)},
        "device": device.type,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        facts |= {"name": torch.cuda.get_device_name(device), "free_gb": free / 1e9, "total_gb": total / 1e9}
        facts["capability"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return facts


def report(result: Mapping[str, Any]) -> str:
    """In Markdown: lists of alike things as tables, all else as lines."""
    facts = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    lines = [f"# {result['benchmark']}", "", facts, ""]
    for name, found in result["pieces"].items():
        if found:
            lines += [f"## {name} ({result['seconds'].get(name, '')} s)", "", *_shown(found), ""]
    for name, error in result["failed"].items():
        lines += [f"## {name} failed", "", "```", error.rstrip(), "```", ""]
    if result["left_out"]:
        lines += ["No time was left for: " + "; ".join(result["left_out"]), ""]
    return "\n".join(lines)


def _shown(found: Any) -> list[str]:
    if isinstance(found, list) and found and all(isinstance(one, dict) for one in found):
        names = list(dict.fromkeys(name for one in found for name in one))
        rows = [[_cell(one.get(name, "")) for name in names] for one in found]
        return [f"| {' | '.join(row)} |" for row in (names, ["---:"] * len(names), *rows)]
    if isinstance(found, dict):
        return [line for name, one in found.items() for line in _named(name, one)]
    return [_cell(found)]


def _named(name: str, one: Any) -> list[str]:
    if isinstance(one, (list, dict)) and one and not isinstance(one, str):
        return [f"**{name}**", "", *_shown(one), ""]
    return [f"- {name}: {_cell(one)}"]


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "/").replace("\n", " ")


def _wrong(found: Any) -> bool:
    """Whether something that was to hold does not: it is called `good`."""
    if isinstance(found, dict):
        return found.get("good") is False or any(map(_wrong, found.values()))
    return isinstance(found, list) and any(map(_wrong, found))
