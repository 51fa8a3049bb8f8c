"""Opt one request out of speculation (`max_depth: 0`) and compare: the text is the same, only the work differs.

Plain HTTP with the standard library. Needs a server (`adaptspec serve`). Run:
    python examples/opt_out.py [http://127.0.0.1:8000/v1]
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ADAPTSPEC_URL", "http://127.0.0.1:8000/v1")


def complete(**extra: Any) -> tuple[str, dict[str, Any]]:
    """A sampled completion with a fixed seed: its text, and what speculation did."""
    body = {"prompt": "The best thing about winter is", "max_tokens": 64, "temperature": 0.8, "seed": 7} | extra
    request = urllib.request.Request(
        f"{BASE_URL}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer = json.load(response)
    return answer["choices"][0]["text"], answer["metrics"]["speculative_decoding"]


speculated, with_drafts = complete()
plain, without_drafts = complete(adaptspec={"max_depth": 0})

print(plain)
print("\nserver's policy:", with_drafts)
print("max_depth 0:    ", without_drafts)
if speculated != plain:
    sys.exit("The texts differ: that should not happen, please report it.")
print("\nThe texts are the same.")
