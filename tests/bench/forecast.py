"""What the doctor expects of its best candidate next to what `bench speed` measures under the same policy.

`python -m tests.bench.forecast [--model NAME] [--repeats N]`, where nothing else runs. The exit status is 1 where the
gain over plain decoding is off by more than 15 %, or the doctor took more than 95 seconds.
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

MOST_OFF, MOST_SECONDS = 0.15, 95.0


def result_of(*words: str) -> dict[str, Any]:
    """The JSON that a command of ours prints."""
    line = [sys.executable, "-m", "adaptspec", *words, "--json"]
    return dict(json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout))


def measured(candidate: dict[str, Any], result: dict[str, Any], model: str, repeats: str) -> float:
    """The gain of a candidate's policy over plain decoding, in the doctor's data type, runner and length of answers."""
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.yaml"
        policy.write_text(policy_text(candidate["drafters"]), encoding="utf-8")
        words = ["bench", "speed", "--policy", str(policy), "--depths", "--model", model, "--repeats", repeats]
        words += ["--dtype", result["dtype"], "--runner", result["runner"], "--tokens", str(result["tokens"])]
        found = result_of(*words, "--draft", candidate["draft"] or "none")
    return float(found["contenders"][1]["over_first"]["mean"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--repeats", default="3")
    given, began = parser.parse_args(), time.monotonic()
    result = result_of("doctor", "--model", given.model)
    took = time.monotonic() - began
    sys.stdout.write(f"the doctor took {took:.0f} s; its advice: {result['serve']}\n")
    speculating = [one for one in result["candidates"] if one["drafters"] and one["setup"] == result["best"]["setup"]]
    best = result["best"] if result["worth"] else max(speculating, key=lambda one: one["over_first"]["mean"])
    found = measured(best, result, given.model, given.repeats)
    off = best["over_first"]["mean"] / found - 1.0
    forecast = f"{' + '.join(best['drafters'])}: {best['over_first']['mean']:.2f} expected"
    sys.stdout.write(f"{forecast}, {found:.2f} measured ({off:+.0%})\n")
    return took > MOST_SECONDS or abs(off) > MOST_OFF


if __name__ == "__main__":
    sys.exit(main())
