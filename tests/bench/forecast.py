"""The doctor's forecasts for the bundled pair beside what `bench policies` measures under the same policies.

`python -m tests.bench.forecast [--tokens N] [--repeats N]`, where nothing else runs: the doctor first, then a run of
the benchmark per row of its table. The exit status is 1 where the best row's mean is off by more than 15 %, or the
doctor took more than 90 seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from adaptspec.bench.doctor import policy_text

MOST_OFF, MOST_SECONDS = 0.15, 90.0


def told(*words: str) -> dict[str, Any]:
    """What a command of ours says as JSON."""
    line = [sys.executable, "-m", "adaptspec", *words, "--json"]
    return dict(json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout))


def measured(row: dict[str, Any], result: dict[str, Any], tokens: str, repeats: str) -> dict[str, float]:
    """Times plain decoding, by task, with the policy for a row's drafters, in the doctor's data type and runner."""
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.yaml"
        policy.write_text(policy_text(row["drafters"], row["width"]), encoding="utf-8")
        words = ["bench", "policies", "off", str(policy), "--model", "bundled"]
        words += ["--dtype", result["dtype"], "--runner", result["runner"]]
        found = told(*words, "--tokens", tokens, "--repeats", repeats)
    return {task: ratio["mean"] for task, ratio in found["policies"][1]["tasks"].items()}


def compared(row: dict[str, Any], found: dict[str, float]) -> tuple[str, float]:
    """A line to read, and by how much the mean was off, of the tasks that the doctor had time for."""
    forecast = {task: one["over_plain"] for task, one in row["tasks"].items()}
    found = {task: found[task] for task in forecast}
    off = row["mean"] / (sum(found.values()) / len(found)) - 1.0
    cells = ", ".join(f"{task} {forecast[task]:.2f}/{ratio:.2f}" for task, ratio in found.items())
    name = " + ".join(row["drafters"]) + (f", {row['width']} wide" if row["width"] > 1 else "")
    return f"{name}: {row['mean']:.2f} forecast, {row['mean'] / (1.0 + off):.2f} measured ({off:+.0%}); {cells}", off


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default="128")
    parser.add_argument("--repeats", default="5")
    given, began = parser.parse_args(), time.monotonic()
    result = told("doctor", "--tokens", given.tokens)
    took, say = time.monotonic() - began, sys.stdout.write
    say(f"the doctor took {took:.0f} s; threads: {result['machine']['threads']}\n")
    good = took <= MOST_SECONDS
    for row in result["drafters"]:
        if row["draft"] in (None, "bundled"):  # what `bench policies` runs
            line, off = compared(row, measured(row, result, given.tokens, given.repeats))
            best = row == result["best"]
            good &= not best or abs(off) <= MOST_OFF
            say(f"{line}{' <- best' if best else ''}\n")
            sys.stdout.flush()
    return not good


if __name__ == "__main__":
    sys.exit(main())
