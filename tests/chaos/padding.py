"""What `--pad-stream` costs, and what a watcher of the connection sees with and without it.

python -m tests.chaos.padding
"""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np

from tests.chaos.harness import CANARY, COMPLETIONS, post
from tests.e2e.conftest import Server, start_server

# Texts that speculation treats very differently: a story, and one that repeats its prompt.
PROMPTS = {
    "story": "Once upon a time, in a village by the sea,",
    "list": "apple, pear, plum, apple, pear, plum, apple, pear,",
}


@dataclass
class Seen:
    """One stream as a watcher of the connection sees it: when packets came, and how large they were."""

    first: float
    total: float
    sizes: list[int]
    gaps: list[float]


def watch(server: Server, prompt: str, tokens: int) -> Seen:
    """Stream one answer."""
    host, port = server.url.removeprefix("http://").split(":")
    body = CANARY | {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        began = time.monotonic()
        connection.sendall(post(COMPLETIONS, body))
        times, sizes, last = [], [], b""
        while b"data: [DONE]" not in last:
            part = connection.recv(65536)
            times.append(time.monotonic())
            sizes.append(len(part))
            last = last[-4096:] + part
    return Seen(times[0] - began, times[-1] - began, sizes[1:], np.diff(times[1:]).tolist())


def told_apart(seen: dict[str, list[Seen]]) -> float:
    """How often a watcher guesses the text right from the sizes of the first twenty packets, by the nearest mean."""
    features = {
        name: np.array([[np.mean(one.sizes[:20]), np.std(one.sizes[:20])] for one in streams])
        for name, streams in seen.items()
    }
    right = tried = 0
    for name, rows in features.items():
        for i, row in enumerate(rows):
            means = {n: np.delete(r, i, 0).mean(0) if n == name else r.mean(0) for n, r in features.items()}
            distances = {n: float(np.abs(row - mean).sum()) for n, mean in means.items()}
            best = min(distances.values())
            ties = [n for n, distance in distances.items() if distance == best]
            right += (name in ties) / len(ties)
            tried += 1
    return right / tried


def main(streams: int = 12, tokens: int = 96) -> None:
    """Say what was seen."""
    for options in ((), ("--pad-stream",)):
        server = start_server(*options)
        try:
            seen = {name: [watch(server, prompt, tokens) for _ in range(streams)] for name, prompt in PROMPTS.items()}
        finally:
            server.terminate()
        everything = [one for several in seen.values() for one in several]
        told = {
            "options": " ".join(options) or "none",
            "first_ms": round(1000 * float(np.median([one.first for one in everything])), 1),
            "total_ms": {
                n: round(1000 * float(np.median([one.total for one in several]))) for n, several in seen.items()
            },
            "bytes": {n: round(float(np.median([sum(one.sizes) for one in several]))) for n, several in seen.items()},
            "packet_sizes": len(Counter(size for one in everything for size in one.sizes)),
            "gap_ms": [
                round(1000 * float(np.percentile([g for one in everything for g in one.gaps], q)), 1)
                for q in (5, 50, 95)
            ],
            "texts_told_apart": round(told_apart(seen), 2),
        }
        print(json.dumps(told))


if __name__ == "__main__":
    main()
