"""Start SGLang with one configuration after the other: `started.py MODEL CASES`, where cases are options by name, in
JSON. What came of each, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import engine
import sglang.srt.model_executor.model_runner
import sglang.srt.speculative.eagle_worker_v2  # noqa: F401 - so that what is imported before a plugin is loaded follows it

import adaptspec.hosts.sglang.plugin


def main(model: str, cases: str) -> None:
    told = {}
    for name, options in json.loads(cases).items():
        told[name] = engine.apart(lambda name=name, options=options: _started(model, options, fail=name == "raises"))
    print(json.dumps(told))


def _started(model: str, options: list[str], fail: bool) -> dict[str, Any]:
    if fail:
        adaptspec.hosts.sglang.plugin.CONTRACT = None  # it raises where it looks there
    told = engine.start(model, *options)
    path = options[options.index("--speculative-adaptive-config") + 1] if options else None
    worker = engine.Worker(path, told["steps"])
    built = dict(sorted(worker.built.items()))
    asked = type(worker.adaptive_controller.params).__name__
    return told | {"rows": engine.rows_of_logits(), "asked": asked, "built": built}


main(*sys.argv[1:])
