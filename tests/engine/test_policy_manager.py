"""Changing policies while the engine runs: checked first, swapped between rounds, never at a request's cost."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.loader import build_policy, load_policy_spec, parse_policy_spec
from adaptspec.control.rollout import Reloads
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.policy_manager import PolicyManager, adopt_policy
from adaptspec.errors import ConfigError, EngineStoppedError, PolicyError, UnknownModelError
from adaptspec.request import SpeculationParams
from tests.engine.desk import asking, desk_of
from tests.engine.policies import COSTS, goodput, static
from tests.exactness.harness import Notes
from tests.exactness.worlds import table


async def test_a_policy_is_replaced_while_requests_run(tmp_path: Path) -> None:
    """Those that run move to it at the next round, their text unchanged; what it learned comes along."""
    async with desk_of(tmp_path, [goodput("main"), static("other", 2)]) as one:
        running = [asyncio.create_task(one.served(asking(i))) for i in range(8)]
        await asyncio.sleep(0.01)
        before = (await asyncio.to_thread(one.desk.learned))["main"].arrays["acceptance"].sum()
        text = goodput("main", "  guard: {max-batch-size: 64}\n")
        applied = await asyncio.to_thread(one.desk.apply, text)
        assert (applied.name, applied.replaced, applied.carried) == ("main", True, True)
        assert await asyncio.gather(*running) == ["main"] * 8
        after = (await asyncio.to_thread(one.desk.learned))["main"].arrays["acceptance"].sum()
        assert after > before
        assert {policy.name: policy.text for policy in one.desk.served}["main"] == text
        assert one.desk.default == "main"


async def test_other_arms_learn_anew_and_other_methods_judge(tmp_path: Path) -> None:
    """Counts of other depths or another verification would mislead; running requests go on exactly all the same."""
    async with desk_of(tmp_path, [goodput("main")]) as one:
        running = [asyncio.create_task(one.served(asking(i))) for i in range(4)]
        await asyncio.sleep(0.02)
        for more in ("  max-depth: 5\n", "  max-depth: 5\n  verification: {method: rejection}\n"):
            applied = await asyncio.to_thread(one.desk.apply, goodput("main", more))
            assert (applied.replaced, applied.carried) == (True, False)
        assert await asyncio.gather(*running) == ["main"] * 4
        await one.served(asking(9))


def test_text_that_a_lossy_method_judged_stays_marked_after_a_swap() -> None:
    """Its client must learn that the text may differ; one without a token yet is judged by the new method alone."""
    lossy, exact = (
        parse_policy_spec(static("main", 3, f"  verification: {{method: {method}}}\n"), "text")
        for method in ("threshold, lossy: true", "coupled")
    )
    notes, world = Notes(), table("draft-model")
    core = replace(world, drafters=world.drafters[:1]).engine([lossy], EngineLimits(max_rows=1), [notes])
    core.add(asking(0))
    core.add(asking(1))
    while not any(delta.tokens for delta in core.step()):
        pass
    policy = build_policy(exact, CostModel(COSTS), core.limits.max_rows, core.controller.task_names)
    adopt_policy(core, exact, policy)
    assert not notes.completions, "the first request has more to come"
    while not core.idle:
        core.step()
    assert {name: done.stats.lossy for name, done in notes.completions.items()} == {"r0": True, "r1": False}


async def test_only_requests_of_a_lossy_policy_are_marked(tmp_path: Path) -> None:
    """Side by side in one batch: those that `when` leads to it, not those of the exact default."""
    lossy = tmp_path / "lossy.yaml"
    lossy.write_text(static("lossy", 3, "  verification: {method: threshold, lossy: true}\n"))
    exact = parse_policy_spec(static("exact", 3, f"  when: [{{task: code, use: {lossy}}}]\n"), "text")
    notes, world = Notes(), table("draft-model")
    core = replace(world, drafters=world.drafters[:1]).engine([exact], EngineLimits(max_rows=2), [notes])
    core.add(replace(asking(0), speculation=SpeculationParams(task="code")))
    core.add(replace(asking(1), speculation=SpeculationParams(task="json")))
    while not core.idle:
        core.step()
    assert {name: (done.stats.policy, done.stats.lossy) for name, done in notes.completions.items()} == {
        "r0": ("lossy", True),
        "r1": ("exact", False),
    }


async def test_a_new_name_is_a_new_policy(tmp_path: Path) -> None:
    """It can be asked for at once."""
    async with desk_of(tmp_path, [static("main", 3)]) as one:
        applied = await asyncio.to_thread(one.desk.apply, static("fresh", 1))
        assert (applied.replaced, applied.carried) == (False, False)
        assert one.front.policies == ("main", "fresh")
        assert await one.served(asking(1, "fresh")) == "fresh"
        assert await one.served(asking(2)) == "main"


async def test_what_is_sent_uses_what_is_served(tmp_path: Path) -> None:
    """By name, before what ships under it; what uses others itself cannot be used: none nest without end."""
    async with desk_of(tmp_path, [static("main", 3), static("off", 2)]) as one:
        using = static("using", 1, "  when: [{prompt-tokens: {at-least: 1}, use: off}]\n")
        assert one.desk.check(using) == "using"
        await asyncio.to_thread(one.desk.apply, using)
        assert one.desk.served[-1].spec.used["off"].spec.choose.model_dump()["depth"] == 2
        other = using.replace("name: using", "name: other").replace("use: off", "use: using")
        with pytest.raises(PolicyError, match="using uses off, so no other policy can use it"):
            await asyncio.to_thread(one.desk.apply, other)
        for name in ("using", "fresh"):
            text = static(name, 1, f"  when: [{{prompt-tokens: {{at-least: 1}}, use: {name}}}]\n")
            with pytest.raises(PolicyError, match="a policy cannot use itself"):
                await asyncio.to_thread(one.desk.apply, text)


async def test_a_used_policy_uses_no_other(tmp_path: Path) -> None:
    """As at the start, so after a reload of its file, and where it is sent."""
    (tmp_path / "used.yaml").write_text(static("used", 1))
    when = "  when: [{prompt-tokens: {at-least: 1}, use: %s}]\n"
    async with desk_of(tmp_path, [static("main", 3, when % "used.yaml")]) as one:
        text = static("used", 2, when % "off")
        (tmp_path / "used.yaml").write_text(text)
        problem = r":6:3: spec\.when: main uses this policy, so it cannot use others itself"
        with pytest.raises(PolicyError, match=problem):
            await asyncio.to_thread(one.desk.apply_file, tmp_path / "used.yaml")
        for ask in (one.desk.apply, one.desk.check):
            with pytest.raises(PolicyError, match=problem):
                await asyncio.to_thread(ask, text)
        assert [policy.spec.spec.choose.depth for policy in one.desk.served] == [3, 1]
        assert await one.served(asking(1)) == "used"


@pytest.mark.parametrize("name", ["main", "used"])
async def test_a_file_keeps_the_name_of_its_policy(tmp_path: Path, name: str) -> None:
    """Routes lead to policies by their names."""
    (tmp_path / "used.yaml").write_text(static("used", 1))
    async with desk_of(tmp_path, [static("main", 3, "  when: [{task: code, use: used.yaml}]\n")]) as one:
        before = one.desk.served
        file = {policy.name: policy.path for policy in before}[name]
        assert file is not None
        file.write_text(static("fresh", 1))
        with pytest.raises(ConfigError, match=f"it was called {name}, and fresh now; give it its name back"):
            await asyncio.to_thread(one.desk.apply_file, file)
        assert one.desk.served == before


async def test_a_used_policy_learns_from_its_requests_and_keeps_that_on_reload(tmp_path: Path) -> None:
    """Requests that a task leads to it are those it learns from; the policy that uses it sees none of them."""
    used = tmp_path / "used.yaml"
    used.write_text(goodput("used"))
    async with desk_of(tmp_path, [goodput("main", "  when: [{task: code, use: used.yaml}]\n")]) as one:
        requests = [replace(asking(i), speculation=SpeculationParams(task="code")) for i in range(4)]
        assert await asyncio.gather(*(one.served(request) for request in requests)) == ["used"] * 4
        before = await asyncio.to_thread(one.desk.learned)
        assert before["used"].arrays["acceptance"].any()
        assert not before["main"].arrays["acceptance"].any()
        used.write_text(goodput("used", "  guard: {max-batch-size: 64}\n"))
        applied = await asyncio.to_thread(one.desk.apply_file, used)
        assert applied is not None
        assert (applied.name, applied.replaced, applied.carried) == ("used", True, True)
        after = await asyncio.to_thread(one.desk.learned)
        assert (after["used"].arrays["acceptance"] == before["used"].arrays["acceptance"]).all()
        assert await one.served(replace(requests[0], id="again")) == "used"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nonsense", "sent:1:1: "),
        (static("main", 3, "  rollout: {mode: canary, percent: 5}\n"), "default policy"),
        (static("x", 3, "  rollout: {mode: shadow}\n"), "no mode 'shadow' any more; .*policy simulate --journal"),
        (
            static("x", 3, "  when: [{prompt-tokens: {at-least: 2}, use: 1.yaml}]\n"),
            "sent:6:46: .*by their names",
        ),
        (static("main", 12, "  tasks: {acme: {off: true}}\n"), "up to 12 tokens.*restart"),
        (static("main", 3, "  rollout: {mode: canary, percent: 5}\n  tasks: {acme: {off: true}}\n"), "default policy"),
        (static("x", 3, "  when: [{api-key: gold, use: nothing}]\n"), "there is no policy 'nothing'"),
    ],
)
async def test_what_cannot_be_used_changes_nothing(tmp_path: Path, text: str, problem: str) -> None:
    """The error says what is wrong and where; the last good policy stays, and new names leave no trace."""
    async with desk_of(tmp_path, [static("main", 3), goodput("other")]) as one:
        before = one.desk.served
        with pytest.raises(ConfigError, match=problem):
            await asyncio.to_thread(one.desk.apply, text, "sent")
        assert one.desk.served == before
        assert one.desk.reloads == Reloads(refused=1)
        assert one.core.controller.task_names.added == ()
        assert await one.served(asking(1)) == "main"


async def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    """They would take turns; a text that was sent may replace either, and the file still brings it anew."""
    async with desk_of(tmp_path, [static("main", 3), static("other", 2)]) as one:
        file = one.files["other"]
        file.write_text(static("main", 1))
        with pytest.raises(ConfigError, match=r"0\.yaml and .*1\.yaml both hold"):
            await asyncio.to_thread(one.desk.apply_file, file)
        await asyncio.to_thread(one.desk.apply, static("main", 1))
        assert one.desk.served[0].path == one.files["main"]
        applied = await asyncio.to_thread(one.desk.apply_file, one.files["main"])
        assert applied is not None
        before = one.desk.reloads
        assert (before.applied, before.refused) == (2, 1)
        assert before.last_applied is not None
        assert time.time() - 60.0 < before.last_applied <= time.time()
        assert await asyncio.to_thread(one.desk.apply_file, one.files["main"]) is None
        with pytest.raises(PolicyError, match="cannot be read"):
            await asyncio.to_thread(one.desk.apply_file, tmp_path / "gone.yaml")
        assert one.desk.reloads == replace(before, refused=2), "a file that says what is served is no reload"


async def test_canaries_take_their_share(tmp_path: Path) -> None:
    """From the whole engine's side: who served a request stands in its answer."""
    canary = static("new", 5, "  rollout: {mode: canary, percent: 50}\n")
    async with desk_of(tmp_path, [canary, static("main", 3)]) as one:
        assert one.desk.default == "main", "the first live one"
        served = await asyncio.gather(*(one.served(asking(i)) for i in range(20)))
        assert 4 < served.count("new") < 16
        assert one.front.policies == ("new", "main")
        assert [policy.mode for policy in one.desk.served] == ["canary", "live"]


async def test_a_request_keeps_the_policy_it_was_given(tmp_path: Path) -> None:
    """Shares may change while it waits or runs; its rounds, statistics and verification stay of one policy."""
    canary = "  rollout: {mode: canary, percent: %d}\n"
    async with desk_of(tmp_path, [static("main", 3), static("new", 1, canary % 100)]) as one:
        running = [asyncio.create_task(one.served(asking(i))) for i in range(12)]
        await asyncio.sleep(0.01)
        await asyncio.to_thread(one.desk.apply, static("new", 1, canary % 1))
        assert await asyncio.gather(*running) == ["new"] * 12
        assert (await asyncio.gather(*(one.served(asking(i)) for i in range(8)))).count("main") >= 6


async def test_states_are_restored_where_they_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Policies that are gone are left alone. One whose state is of other arms or impossible learns anew; the others go
    on.
    """
    texts = [goodput("main"), goodput("deep", "  max-depth: 5\n"), static("fixed", 2)]
    async with desk_of(tmp_path, texts) as one:
        await asyncio.gather(*(one.served(asking(i, name)) for i, name in enumerate(("main", "deep", "fixed") * 2)))
        learned = await asyncio.to_thread(one.desk.learned)
        assert set(learned) == {"main", "deep"}
    async with desk_of(tmp_path, [goodput("main"), goodput("deep", "  max-depth: 4\n")]) as two:
        assert await asyncio.to_thread(two.desk.restore, {**learned, "gone": learned["deep"]}) == ["main"]
        again = await asyncio.to_thread(two.desk.learned)
        assert np.array_equal(again["main"].arrays["acceptance"], learned["main"].arrays["acceptance"])
        assert not again["deep"].arrays["acceptance"].any()
        assert "what policy deep had learned is not used (its depths, drafters or verification" in caplog.text
    async with desk_of(tmp_path, texts) as three:
        learned["deep"].arrays["calibration"][:] = -1.0  # type: ignore[index]
        assert await asyncio.to_thread(three.desk.restore, learned) == ["main"]
        assert "what policy deep had learned is not used ('calibration' has a negative count" in caplog.text
        again = await asyncio.to_thread(three.desk.learned)
        assert np.array_equal(again["main"].arrays["acceptance"], learned["main"].arrays["acceptance"])
        assert not any(array.any() for array in again["deep"].arrays.values())


async def test_an_engine_that_has_stopped_says_so(tmp_path: Path) -> None:
    """Nobody waits for a round that never comes."""
    async with desk_of(tmp_path, [static("main", 3)]) as one:
        await asyncio.to_thread(one.front.close)
        with pytest.raises(EngineStoppedError, match="stopped"):
            await asyncio.to_thread(one.desk.apply, static("main", 2))
        with pytest.raises(EngineStoppedError, match="stopped"):
            await asyncio.to_thread(one.desk.learned)


async def test_a_policy_can_go_and_those_that_run_keep_it(tmp_path: Path) -> None:
    """Running and waiting ones; nobody can come to it any more, and its place is taken by another in time."""
    async with desk_of(tmp_path, [static("main", 3), static("other", 2)]) as one:
        running = [asyncio.create_task(one.served(asking(i, "other"))) for i in range(8)]  # of which 4 wait
        await asyncio.sleep(0.02)
        await asyncio.to_thread(one.desk.remove, "other")
        assert one.front.policies == ("main",)
        assert [policy.name for policy in one.desk.served] == ["main"]
        with pytest.raises(UnknownModelError, match="there is no policy 'other'"):
            await one.front.generate(asking(9, "other"))
        await asyncio.to_thread(one.desk.apply, static("third", 1))
        assert await one.served(asking(9, "third")) == "third"
        assert await asyncio.gather(*running) == ["other"] * 8
        for number in range(3):
            await asyncio.to_thread(one.desk.apply, static(f"new-{number}", number))
            assert await one.served(asking(10 + number, f"new-{number}")) == f"new-{number}"
            await asyncio.to_thread(one.desk.remove, f"new-{number}")
        assert set(await asyncio.to_thread(one.desk.learned)) == set()
        await asyncio.to_thread(one.desk.apply, static("other", 1))
        assert await one.served(asking(20, "other")) == "other"


async def test_the_default_cannot_go(tmp_path: Path) -> None:
    """Nothing has changed then; canaries can go."""
    async with desk_of(tmp_path, [static("main", 3), static("other", 2)]) as one:
        await asyncio.to_thread(one.desk.apply, static("few", 1, "  rollout: {mode: canary, percent: 100}\n"))
        before = one.desk.served
        with pytest.raises(ConfigError, match="default policy"):
            await asyncio.to_thread(one.desk.remove, "main")
        with pytest.raises(UnknownModelError, match="nobody"):
            await asyncio.to_thread(one.desk.remove, "nobody")
        assert one.desk.served == before
        assert await one.served(asking(1)) == "few"
        for name in ("few", "other"):
            await asyncio.to_thread(one.desk.remove, name)
        assert await one.served(asking(2)) == "main"


async def test_only_so_many_policies_are_served(tmp_path: Path) -> None:
    """Each takes memory; those that there are can be replaced."""
    async with desk_of(tmp_path, [static("main", 3)]) as one:
        specs = [load_policy_spec(one.files["main"])]
        desk = PolicyManager(one.front, one.core, CostModel(COSTS), specs, one.files, max_policies=2)
        await asyncio.to_thread(desk.apply, static("second", 1))
        for ask in (desk.apply, desk.check):
            with pytest.raises(ConfigError, match="no more than 2 may be; delete one"):
                await asyncio.to_thread(ask, static("third", 1))
        assert (await asyncio.to_thread(desk.apply, static("second", 2))).replaced
        await asyncio.to_thread(desk.remove, "second")
        await asyncio.to_thread(desk.apply, static("third", 1))
