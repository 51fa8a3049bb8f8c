"""Verification by task: each request is judged as its task has it, and marked as what that was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from adaptspec.request import Request
from tests.engine.desk import asking, desk_of
from tests.engine.policies import static

LOOSE = "  tasks: {story: {verification: {method: threshold, lossy: true, high: 0.1, low: 0.0, top: 9}}}\n"


async def test_requests_of_a_lossy_task_are_marked_and_others_stay_exact(tmp_path: Path) -> None:
    """In one batch; and a policy that comes anew brings the methods of its tasks along."""

    def asked(number: int, task: str | None) -> Request:
        request = asking(number)
        return replace(request, speculation=replace(request.speculation, task=task))

    async with desk_of(tmp_path, [static("main", 3, LOOSE)]) as one:
        requests = [asked(i, task) for i, task in enumerate(("story", None, "code"))]
        done = [await one.front.generate(request) for request in requests]
        assert [completion.stats.lossy for completion in done] == [True, False, False]
        for request in requests[1:]:
            await one.served(replace(request, id=f"{request.id}-again"))  # text compared with plain decoding's
        one.desk.apply(static("main", 3, LOOSE.replace("story", "code")))
        done = [await one.front.generate(replace(request, id=f"new-{request.id}")) for request in requests]
        assert [completion.stats.lossy for completion in done] == [False, False, True]
