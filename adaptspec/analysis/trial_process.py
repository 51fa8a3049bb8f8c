"""`python -m adaptspec.analysis.trial_process`: a trial in its own process, so that a server can wait or give up.

Reads {"journal", "policy", "against", "served"} as JSON from standard input, and writes {"trial": ...} or
{"error": ...}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from adaptspec.analysis.policy_trial import try_policy
from adaptspec.errors import AdaptSpecError


def main() -> int:
    """Answer one question; the exit status is 0 also where the answer is what is wrong with the policy."""
    os.nice(5)  # whoever is served now comes first
    asked, answer = json.load(sys.stdin), dict[str, Any]()
    try:
        journal = Path(asked["journal"])
        answer = {"trial": try_policy(journal, asked["policy"], asked["against"], asked["served"]).to_json()}
    except AdaptSpecError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout, allow_nan=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
