"""Clients that leave at any moment take nothing with them: rows, blocks, tasks and descriptors come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.chaos.harness import ADMIN, CHAT, COMPLETIONS, Server, chance, post, vanish

LONG = {"prompt": "The fox ran. " * 60, "max_tokens": 400, "temperature": 0, "ignore_eos": True}
ENDLESS = {"prompt": "A fox", "max_tokens": 900, "temperature": 0, "ignore_eos": True}
TALK = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 300, "stream": True}

Phase = Callable[[Server, float], Any]


def read_some(server: Server, sent: bytes, wait: float) -> Any:
    """Leave in the middle of a stream."""
    connection = server.connect(sent)
    with suppress(TimeoutError):  # it has waited in the queue for longer than it cares to
        connection.recv(1 + int(3000 * wait))
    return connection


def after(server: Server, sent: bytes, wait: float) -> Any:
    """Leave some time after sending."""
    connection = server.connect(sent)
    time.sleep(wait)
    return connection


PHASES: dict[str, Phase] = {
    "connected": lambda server, wait: server.connect(b""),
    "in the headers": lambda server, wait: after(server, b"POST /v1/completions HTTP/1.1\r\nHo", wait / 20),
    "in the body": lambda server, wait: after(server, post(COMPLETIONS, LONG, short=10), wait / 20),
    "just sent": lambda server, wait: server.connect(post(COMPLETIONS, LONG)),
    "in the prompt": lambda server, wait: after(server, post(COMPLETIONS, LONG), wait / 20),
    "decoding": lambda server, wait: after(server, post(COMPLETIONS, ENDLESS), wait / 5),
    "streaming": lambda server, wait: read_some(server, post(COMPLETIONS, ENDLESS | {"stream": True}), wait),
    "streaming chat": lambda server, wait: read_some(server, post(CHAT, TALK), wait),
    "many prompts, some of them queued": lambda server, wait: after(
        server, post(COMPLETIONS, ENDLESS | {"prompt": ["a fox", "a dog"] * 8, "stream": True}), wait / 5
    ),
    "answered": lambda server, wait: read_some(server, post(COMPLETIONS, ENDLESS | {"max_tokens": 1}), wait),
    "two at once": lambda server, wait: after(server, post(COMPLETIONS, ENDLESS) * 2, wait / 10),
}


def test_a_thousand_clients_leave_nothing_behind(server: Server, whole: bool) -> None:
    """Every phase in turn; each time the engine lets go within a second, and in the end all is as it was."""
    luck, usual = chance(1), server.canary()
    before = server.baseline()
    names = list(PHASES)
    slowest, took = 0.0, dict.fromkeys(names, 0.0)
    for cycle in range(1000 if whole else 44):
        name = names[cycle % len(names)]
        vanish(PHASES[name](server, luck.random()), politely=luck.random() < 0.5)
        seconds = server.idle_within(1.0)
        took[name] = max(took[name], seconds)
        slowest = max(slowest, seconds)
    assert server.canary() == usual
    assert server.settled(before) == before
    print(
        f"\nslowest to let go: {slowest * 1000:.0f} ms; by phase (ms):", {n: round(1000 * s) for n, s in took.items()}
    )


def storm(server: Server, clients: int, seed: int) -> None:
    """So many clients at the same time, each of which leaves when it likes."""
    luck = chance(seed)
    plans = [(luck.choice(list(PHASES.values())), luck.random(), luck.random() < 0.5) for _ in range(clients)]

    def one(phase: Phase, wait: float, politely: bool) -> None:
        with suppress(ConnectionError):  # one too many at once
            vanish(phase(server, wait), politely=politely)

    threads = [threading.Thread(target=one, args=plan) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()


def test_an_abort_storm_while_policies_reload(server: Server, whole: bool) -> None:
    """500 clients at once, policies ten times a second, good ones and broken ones: afterwards all is as it was."""
    usual = server.canary()
    before, stop = server.baseline(), threading.Event()
    good = next(policy.text for policy in server.policies.served if policy.name == server.policies.default)
    statuses: list[int] = []

    def reload() -> None:
        while not stop.wait(0.1):
            text = good if len(statuses) % 2 else good.replace("goodput", "godput", 1) + "\n  nonsense: [1"
            answer = server.ask("/admin/policies", text.encode(), Authorization=f"Bearer {ADMIN}")
            statuses.append(answer.status)

    reloading = threading.Thread(target=reload)
    reloading.start()
    began = time.monotonic()
    storm(server, 500 if whole else 60, seed=2)
    while whole and time.monotonic() - began < 10.0:
        storm(server, 100, seed=int(time.monotonic()))
    seconds = server.idle_within(5.0)
    stop.set()
    reloading.join(20.0)
    assert set(statuses) <= {200, 400}
    assert statuses.count(200) >= len(statuses) // 2 - 1
    assert server.canary() == usual
    after_it = server.settled(before)
    assert after_it == before
    print(f"\n{len(statuses)} reloads; the engine was idle {1000 * seconds:.0f} ms after the last client")
