"""Run a policy of your own: the YAML file beside this program, next to one that always drafts 3 tokens.

The text is the same under every policy; what differs is how much was drafted for it. Run:
    python examples/my_policy.py [policy.yaml]
"""

from __future__ import annotations

import sys
from pathlib import Path

from adaptspec.engine import Engine
from adaptspec.request import SamplingParams

MINE = sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).with_name("my_policy.yaml"))
PROMPT = "The old captain looked at the map and said,"

for policy in (MINE, "static-3"):
    engine = Engine.from_pretrained("bundled", draft="bundled", policy=policy)
    (completion,) = engine.generate([PROMPT], SamplingParams(max_tokens=64, temperature=0.8, seed=3))
    stats = completion.stats
    print(f"{stats.policy}: {stats.drafted} drafted, {stats.accepted} accepted, {stats.rounds} rounds")
    print(f"{PROMPT}{completion.text}\n")
