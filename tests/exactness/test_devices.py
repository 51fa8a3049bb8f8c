"""Drafts on a device are those of a CPU: what branches, is tempered or reads states is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.exactness import dictated
from tests.exactness.harness import SCRIPTS, Case, requests, serve
from tests.exactness.worlds import Worlds
from tests.gpu.pretend import PretendCuda

pytestmark = pytest.mark.whole
# A device drafts the token of the step that was under way, too.
STOPS = "{choose: {algorithm: dictated, depths: [7]}, drafters: [draft-model], stop: {rule: entropy, threshold: 3}}"
ON_DEVICES = {
    "chains": Case(),
    "combs": Case(shape="comb", request="penalties", temperature=0.8),
    "eagle3.1": Case(drafter="eagle3.1", request="bias"),
    "dflash": Case(drafter="dflash", request="bias", temperature=0.8),
    "mtp": Case(drafter="mtp", request="bias"),
    "medusa": Case(drafter="medusa", request="bias"),
    "temperature": (
        "{choose: {algorithm: dictated, depths: [3]}, drafters: [draft-model], "
        "draft-temperature: {mode: fixed, value: 0.5}}"
    ),
}


@pytest.mark.parametrize("name", ON_DEVICES)
def test_devices_draft_as_cpus_do(worlds: Worlds, name: str) -> None:
    """As many nodes, tokens and accepted tokens for each request, in float32 on pretended CUDA."""
    found = []
    how = ON_DEVICES[name]
    case, specs = (how, ()) if isinstance(how, Case) else (Case(temperature=0.8), [dictated.policy(how)])
    with PretendCuda():
        for runtime in ("lean", "pretend"):
            world = worlds.of(runtime, case.drafter)
            one = replace(case, runtime=runtime, depths="5", chunk=512)
            result = serve(one, world, SCRIPTS["alone"], requests(one, world, SCRIPTS["alone"]), specs)
            found.append({name: one.stats for name, one in result.done.items()})
    assert found[0] == found[1]
    assert sum(one.accepted for one in found[0].values())


def test_devices_report_the_work_that_ran(worlds: Worlds) -> None:
    """A stop rule ends drafts one step later than on a CPU: costs are learned by the steps that ran."""
    case, script = Case("pretend", temperature=0.8, chunk=512), SCRIPTS["batch"]
    with PretendCuda():
        world = worlds.of(case.runtime, case.drafter)
        result = serve(case, world, script, requests(case, world, script), [dictated.policy(STOPS)])
    records = [record for record in result.notes.records if len(record.rows) == script.requests]
    for record in records:
        assert record.drafted.max() <= record.draft_steps <= record.drafted.max() + 1
        assert record.target_tokens == record.nodes.sum() + script.requests + record.prefill_tokens
    assert any(record.draft_steps < record.depths.max() for record in records)
