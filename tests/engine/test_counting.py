"""Drafts by counts: what was served before helps the requests that a policy lets use it, and no others."""

from __future__ import annotations

from adaptspec.engine.core import EngineLimits
from adaptspec.request import Request, SamplingParams
from tests.exactness import dictated
from tests.exactness.harness import answers
from tests.exactness.worlds import table


def test_history_pays_where_it_may_be_used() -> None:
    """The same request again, of the same key, of another, and of none."""
    asked, accepted = SamplingParams(30, temperature=0.0, ignore_eos=True), {}
    for history in ("none", "key", "server"):
        body = f"{{choose: {{algorithm: dictated, depths: [5]}}, drafters: [counts], history: {history}}}"
        core = table("counts").engine([dictated.policy(body)], EngineLimits(max_rows=1))
        for name, key in (("first", "a"), ("own", "a"), ("other", "b"), ("nobody", None)):
            done = answers(core, [Request(name, (7, 9, 11), asked, key=key)])
            accepted[history, name] = done[name].stats.accepted
    alone = accepted["none", "first"]
    for stranger in (("none", "own"), ("none", "other"), ("key", "other"), ("key", "nobody")):
        assert accepted[stranger] == alone
    assert accepted["key", "own"] > alone
    assert accepted["server", "other"] > alone
