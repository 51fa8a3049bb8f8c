"""Watching policy files: changes are served, and no broken file ever costs a request anything."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

from adaptspec.engine.policy_watch import PolicyWatch
from tests.engine.desk import asking, desk_of
from tests.engine.policies import goodput, static
from tests.files.policies import broken_files


async def test_a_file_that_changes_is_served(tmp_path: Path) -> None:
    """Within a look; a file that is saved by renaming another over it, too; one that is touched changes nothing."""
    async with desk_of(tmp_path, [static("main", 3), goodput("other")]) as one:
        watch, file = PolicyWatch(one.desk), one.files["main"]
        looking = asyncio.create_task(watch.run(0.01))
        file.write_text(static("main", 1, "  guard: {max-batch-size: 64}\n"))
        for _ in range(2000):
            if one.desk.served[0].text == file.read_text():
                break
            await asyncio.sleep(0.01)
        looking.cancel()
        draft = tmp_path / "draft"
        draft.write_text(static("main", 2))
        os.replace(draft, file)
        await asyncio.to_thread(watch.look)
        assert one.desk.served[0].text == static("main", 2)
        before = one.desk.served[0]
        os.utime(file, (1.0, 1.0))
        await asyncio.to_thread(watch.look)
        assert one.desk.served[0] is before
        assert await one.served(asking(1)) == "main"


async def test_a_file_that_another_uses_is_served_with_it(tmp_path: Path) -> None:
    used = tmp_path / "used.yaml"
    used.write_text(static("used", 1))
    user = static("main", 3, f"  when: [{{prompt-tokens: {{at-least: 1}}, use: {used}}}]\n")
    async with desk_of(tmp_path, [user]) as one:
        watch = PolicyWatch(one.desk)
        assert await one.served(asking(1)) == "used"
        before = one.desk.served
        await asyncio.to_thread(watch.look)
        assert one.desk.served == before
        used.write_text(static("used", 2))
        await asyncio.to_thread(watch.look)
        assert [policy.spec.spec.choose.depth for policy in one.desk.served] == [3, 2]
        used.unlink()
        await asyncio.to_thread(watch.look)
        assert await one.served(asking(2)) == "used"


async def test_what_was_sent_stays_until_its_file_changes_or_a_reload_is_asked_for(tmp_path: Path) -> None:
    """A policy that came over HTTP is not undone by a look, and is by SIGHUP."""
    async with desk_of(tmp_path, [static("main", 3)]) as one:
        watch = PolicyWatch(one.desk)
        await asyncio.to_thread(one.desk.apply, static("main", 2))
        await asyncio.to_thread(watch.look)
        assert one.desk.served[0].text == static("main", 2)
        await asyncio.to_thread(watch.reload)
        assert one.desk.served[0].text == static("main", 3)


async def test_a_broken_file_is_logged_once(tmp_path: Path, caplog: Any) -> None:
    """And one that is gone; the policy stays, and comes back with its file."""
    async with desk_of(tmp_path, [static("main", 3)]) as one:
        watch, file = PolicyWatch(one.desk), one.files["main"]
        file.write_text("spec: 7")
        for _ in range(3):
            await asyncio.to_thread(watch.look)
        assert caplog.text.count("stays") == 1
        assert "0.yaml:1:1: " in caplog.text
        file.unlink()
        for _ in range(3):
            await asyncio.to_thread(watch.look)
        assert caplog.text.count("stays") == 2
        file.write_text(static("main", 2))
        await asyncio.to_thread(watch.look)
        assert one.desk.served[0].text == static("main", 2)


async def test_a_file_that_is_written_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: Any) -> None:
    """The mark of a file is older than what was read of it, so a later look notices the change."""
    async with desk_of(tmp_path, [static("main", 3)]) as one:
        watch, file, later = (
            PolicyWatch(one.desk),
            one.files["main"],
            static("main", 1, "  guard: {max-batch-size: 64}\n"),
        )
        apply_file = one.desk.apply_file

        def read_and_write(path: Path) -> Any:
            applied = apply_file(path)
            file.write_text(later)
            return applied

        file.write_text(static("main", 2))
        with monkeypatch.context() as patched:
            patched.setattr(one.desk, "apply_file", read_and_write)
            await asyncio.to_thread(watch.look)
        assert one.desk.served[0].text == static("main", 2)
        await asyncio.to_thread(watch.look)
        assert one.desk.served[0].text == later


async def test_a_hundred_broken_files_under_load_fail_no_request(tmp_path: Path, caplog: Any) -> None:
    """While they are reloaded one after another, every answer is whole and exact, under the policy of before."""
    async with desk_of(tmp_path, [goodput("main")]) as one:
        watch, file, before = PolicyWatch(one.desk), one.files["main"], one.desk.served
        broken = [*broken_files(), bytes(100_000)]
        done: list[str] = []
        over = asyncio.Event()

        async def load(lane: int) -> None:
            number = lane
            while not over.is_set():
                done.append(await one.served(asking(number)))
                number += 4

        lanes = [asyncio.create_task(load(lane)) for lane in range(4)]
        for content in broken:
            file.write_bytes(content)
            await asyncio.to_thread(watch.reload)
        over.set()
        await asyncio.gather(*lanes)
        assert one.desk.served == before
        assert set(done) == {"main"}
        assert caplog.text.count("stays") == len(broken) >= 100


async def test_a_pipe_in_place_of_a_file_is_a_line_in_the_log(tmp_path: Path, caplog: Any) -> None:
    """The look ends at once, though nobody writes into it; the policy stays."""
    async with desk_of(tmp_path, [static("main", 3)]) as one:
        watch, file = PolicyWatch(one.desk), one.files["main"]
        file.unlink()
        os.mkfifo(file)
        look = threading.Thread(target=watch.look, daemon=True)
        look.start()
        await asyncio.to_thread(look.join, 30.0)
        assert not look.is_alive()
        assert "it is a pipe" in caplog.text
        assert await one.served(asking(1)) == "main"
