"""Faults put into a running server: what they cost, and whom, timed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from adaptspec.engine.build import Built
from adaptspec.models.runner import Forward, Packed, Runner
from adaptspec.results import FinishReason
from tests.chaos.harness import CANARY, COMPLETIONS, Answer, Server, replaced, running

# The request whose work fails: the only one with so long a prompt.
VICTIM = CANARY | {"prompt": "zebra " * 12, "ignore_eos": True}
BESIDE = [CANARY | {"prompt": f"The {name} went home and"} for name in ("fox", "dog", "cat", "cow", "owl", "elk")]
DRAFTING = {"adaptspec": {"policy": "static-3"}}

Pass = Callable[[Packed], Forward]


@contextmanager
def failing(runner: Runner, fault: Callable[[Pass, Packed], Forward]) -> Iterator[None]:
    """While it lasts, passes go through `fault`, which gets the usual one."""
    with replaced(runner, "forward", lambda usual: lambda packed: fault(usual, packed)):
        yield


def of_victim(server: Server, packed: Packed) -> np.ndarray[Any, Any]:
    """Which packed rows are the victim's."""
    rows = {s.row for s in server.core.scheduler.running if len(s.request.prompt) > 20}
    return np.array([int(row) in rows for row in packed.rows])


def ask_all(server: Server, victim: dict[str, Any]) -> tuple[Answer, list[Answer]]:
    """The victim and those beside it at the same time."""
    with ThreadPoolExecutor(8) as pool:
        struck = pool.submit(server.ask, COMPLETIONS, victim)
        others = [pool.submit(server.ask, COMPLETIONS, body) for body in BESIDE]
        return struck.result(), [other.result() for other in others]


def raising(kind: type[Exception]) -> Callable[[Server], Callable[[Pass, Packed], Forward]]:
    """A pass that raises whenever the victim is in it, once it decodes."""

    def make(server: Server) -> Callable[[Pass, Packed], Forward]:
        def fault(usual: Pass, packed: Packed) -> Forward:
            mine = packed.rows[of_victim(server, packed)].tolist()
            if any(server.built.target.length(row) for row in mine):
                raise kind("injected")
            return usual(packed)

        return fault

    return make


def poisoned(server: Server) -> Callable[[Pass, Packed], Forward]:
    """Scores of the victim that are no numbers."""

    def fault(usual: Pass, packed: Packed) -> Forward:
        found = usual(packed)
        logits = found.logits.clone()
        logits[torch.from_numpy(np.repeat(of_victim(server, packed), packed.wanted))] = torch.nan
        return Forward(logits, found.hidden_states)

    return fault


@pytest.mark.parametrize(
    ("fault", "said"),
    [(raising(RuntimeError), "injected"), (raising(MemoryError), "MemoryError"), (poisoned, "not numbers")],
    ids=["raise", "memory", "nan"],
)
def test_a_fault_in_the_target_ends_one_request(
    server: Server, fault: Callable[[Server], Any], said: str, whole: bool
) -> None:
    """The victim gets 500 and the reason; all others get exactly their usual text."""
    usual = [server.ask(COMPLETIONS, body).text for body in BESIDE]
    before = server.baseline()
    slowest = 0.0
    with failing(server.built.target, fault(server)):
        for _ in range(20 if whole else 3):
            struck, others = ask_all(server, VICTIM)
            assert struck.status == 500
            assert said in struck.body["error"]["message"]
            assert [answer.text for answer in others] == usual
            slowest = max(slowest, struck.seconds)
    assert server.ask(COMPLETIONS, VICTIM).status == 200
    assert server.settled(before) == before
    print(f"\nthe victim's error came after at most {1000 * slowest:.0f} ms")


def draft_raises(usual: Forward, packed: Packed) -> torch.Tensor:
    raise RuntimeError("injected")


def draft_memory(usual: Forward, packed: Packed) -> torch.Tensor:
    raise MemoryError("injected")


def draft_nan(usual: Forward, packed: Packed) -> torch.Tensor:
    return usual(packed) * torch.nan


@pytest.mark.parametrize("fault", [draft_raises, draft_memory, draft_nan], ids=["raise", "memory", "nan"])
def test_a_fault_in_the_draft_costs_drafts_only(server: Server, fault: Any, whole: bool) -> None:
    """Every answer is the usual one while the draft is broken, and drafts come back by themselves."""
    usual = [server.ask(COMPLETIONS, body | DRAFTING).text for body in BESIDE]
    with failing(server.runners[1], fault):
        for _ in range(10 if whole else 2):
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda body: server.ask(COMPLETIONS, body | DRAFTING), BESIDE))
            assert [answer.text for answer in answers] == usual
            counts = [answer.body["metrics"]["speculative_decoding"] for answer in answers]
            assert sum(one["num_draft_tokens"] for one in counts) == 0
    began = time.monotonic()
    while not server.ask(COMPLETIONS, BESIDE[0] | DRAFTING).body["metrics"]["speculative_decoding"]["num_draft_tokens"]:
        assert time.monotonic() - began < 70.0
        time.sleep(0.1)
    print(f"\ndrafts came back after {time.monotonic() - began:.1f} s")


@pytest.mark.parametrize("which", [0, 1], ids=["target", "draft"])
def test_a_hang_is_noticed_reported_and_survived(built: Built, which: int, whole: bool) -> None:
    """Requests in flight get an error within 5 s, /health 503 within 10 s; when it ends, service goes on."""
    gate, hangs = threading.Event(), threading.Event()

    def hang(usual: Forward, packed: Packed) -> torch.Tensor:
        hangs.set()
        gate.wait(60.0)
        return usual(packed)

    patience = 4.0 if whole else 0.7
    with running(built, hang_seconds=patience) as server, ExitStack() as stack, ThreadPoolExecutor(8) as pool:
        usual = server.canary()
        stack.enter_context(failing(server.runners[which], hang))
        body = CANARY | DRAFTING | {"max_tokens": 60}
        asked = [pool.submit(server.ask, COMPLETIONS, body) for _ in range(8)]
        assert hangs.wait(10.0)
        began = time.monotonic()
        answers = [one.result(20.0) for one in asked]
        seconds = time.monotonic() - began
        health = server.ask("/health", method="GET")
        sick = time.monotonic() - began
        assert all(answer.status == 500 and "no progress" in answer.body["error"]["message"] for answer in answers)
        assert (health.status, health.body["status"]) == (503, "dead")
        assert server.ask("/ready", method="GET").status == 503
        assert server.ask(COMPLETIONS, CANARY).body["error"]["code"] == "engine_stopped"
        assert seconds < 5.0
        assert sick < 10.0
        gate.set()
        stack.close()
        while server.ask("/health", method="GET").status != 200:
            assert time.monotonic() - began < 30.0
            time.sleep(0.05)
        assert server.canary() == usual
        server.idle_within(5.0)
    print(f"\nerrors after {seconds:.2f} s, /health 503 after {sick:.2f} s")


def test_a_dead_engine_thread_is_reported(built: Built) -> None:
    """What nothing can catch ends the thread: who waits gets an error at once, /health says dead."""

    def die(usual: Forward, packed: Packed) -> torch.Tensor:
        raise SystemExit

    with running(built) as server:
        with failing(server.built.target, die), ThreadPoolExecutor(4) as pool:
            began = time.monotonic()
            answers = list(pool.map(lambda _: server.ask(COMPLETIONS, CANARY), range(4)))
            seconds = time.monotonic() - began
        assert {answer.status for answer in answers} <= {500, 503}
        assert seconds < 5.0
        assert server.ask("/health", method="GET").status == 503
        server.core.abort_all(FinishReason.ABORT, "its thread is dead")  # the core is shared with the tests to come
    print(f"\nerrors after {1000 * seconds:.0f} ms")


def test_a_full_server_refuses_at_once(built: Built) -> None:
    """429 with an integer Retry-After in under 100 ms while rows and queue are full; the others go on."""
    with running(built, max_waiting=2) as server, ThreadPoolExecutor(16) as pool:
        busy = CANARY | {"max_tokens": 250, "ignore_eos": True}
        held = [pool.submit(server.ask, COMPLETIONS, busy) for _ in range(10)]
        while server.engine.stats().running + server.engine.stats().waiting < 10:
            time.sleep(0.005)
        refused = [server.ask(COMPLETIONS, CANARY) for _ in range(5)]
        assert server.ask("/ready", method="GET").status == 503
        assert {answer.status for answer in refused} == {429}
        assert all(answer.headers["Retry-After"].isdecimal() for answer in refused)
        fastest = min(answer.seconds for answer in refused)
        assert fastest < 0.1
        assert {one.result().status for one in held} == {200}
    print(f"\nrefused after {1000 * fastest:.1f} ms")


def test_a_jumping_clock_changes_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours back and forth on the wall clock, in the middle of requests."""
    usual, shift = server.canary(), [0.0]
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + shift[0])
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(server.canary) for _ in range(24)]
        for hours in (5, -7, 0, 24 * 365 * 40, -30):
            shift[0] = 3600.0 * hours
            time.sleep(0.02)
        assert {one.result() for one in asked} == {usual}
