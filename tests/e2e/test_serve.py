"""The whole thing as a user runs it: a server process on the bundled pair, real clients, the shipped examples."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Server, start_server

EXAMPLES = Path(__file__).parents[2] / "examples"


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def _chat(server: Server, **more: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "temperature": 0, **more}
    return _post(f"{server.url}/v1/chat/completions", body | {"max_tokens": body.get("max_tokens", 48)})


def test_it_says_where_it_listens_and_what_to_try(server: Server) -> None:
    """Start-up output: models, policy, and a curl that works as printed."""
    printed = "".join(server.printed)
    assert "goodput" in printed
    command = printed[printed.index("curl") :]
    out = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(out.stdout)["choices"][0]["message"]["content"].strip()


def test_threads_are_chosen_by_measurement(tmp_path: Path) -> None:
    """The faster of one and all, of which OMP_NUM_THREADS says how many there are; the banner and metrics show it."""
    server = start_server(OMP_NUM_THREADS="2", XDG_CACHE_HOME=str(tmp_path))
    try:
        printed = "".join(server.printed)
        found = re.search(r"^  threads    ([12]) of 2 \(chosen by measurement\)$", printed, re.MULTILINE)
        assert found is not None
        assert "comparing numbers of threads\n" in printed
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as response:
            assert f"adaptspec_compute_threads {found[1]}.0\n" in response.read().decode()
    finally:
        server.terminate()


def test_speculation_happens_and_changes_nothing(server: Server) -> None:
    """Exact: the default policy, a fixed depth, lookup and opting out give the same greedy text; the default drafts."""
    plain = _chat(server, adaptspec={"max_depth": 0})
    adaptive = _chat(server)
    others = [_chat(server, adaptspec={"policy": p}) for p in ("static-3", "goodput-ngram", "sglang-ema", "off")]
    texts = {answer["choices"][0]["message"]["content"] for answer in [plain, adaptive, *others]}
    assert len(texts) == 1
    assert plain["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    assert others[0]["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0


# Those of Ray want Ray: tests/test_scale_out.py holds them to what they can be held to without it.
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("[!r]*.py")))
def test_examples_run_as_shipped(server: Server, name: str) -> None:
    """Every example is a program that works when copied."""
    out = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"ADAPTSPEC_URL": f"{server.url}/v1"},
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.strip()
