"""The whole thing as a user runs it: a server process on the bundled pair, real clients, the shipped examples."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
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


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [((), r"[12] of 2 \(chosen by measurement\)"), (("--threads", "2"), "2"), (("--threads", "1"), "1")],
)
def test_threads_are_chosen_or_given(arguments: Sequence[str], shown: str, tmp_path: Path) -> None:
    """The faster of one and all, of which OMP_NUM_THREADS says how many there are; the banner and metrics show it."""
    server = start_server(*arguments, OMP_NUM_THREADS="2", XDG_CACHE_HOME=str(tmp_path))
    try:
        found = re.search(rf"^  threads    ({shown})$", "".join(server.printed), re.MULTILINE)
        assert found is not None
        assert ("comparing numbers of threads\n" in server.printed) == (not arguments)
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as response:
            assert f"adaptspec_compute_threads {found[1][0]}.0\n" in response.read().decode()
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


def test_seeded_sampling_repeats_alone_and_in_a_crowd(server: Server) -> None:
    """A seed fixes the text, whatever else runs beside it."""
    alone = _chat(server, temperature=0.8, seed=7)["choices"][0]["message"]["content"]
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(_chat, server, temperature=0.8, seed=7 if i % 2 else 100 + i) for i in range(8)]
        answers = [job.result()["choices"][0]["message"]["content"] for job in jobs]
    assert answers[1::2] == [alone] * 4
    assert len(set(answers[::2])) > 1


def test_openai_client_streams_what_it_answers(server: Server) -> None:
    """The `openai` package: models, chat, completions, streaming with usage."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused")
    model = client.models.list().data[0].id
    messages: Any = [{"role": "user", "content": "Write a short poem."}]
    whole = client.chat.completions.create(model=model, messages=messages, max_tokens=40, temperature=0)
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        max_tokens=40,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    pieces, usage = [], None
    for chunk in stream:
        usage = chunk.usage or usage
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert usage == whole.usage
    completion = client.completions.create(model=model, prompt=["Once upon a time", "The sea"], max_tokens=8)
    assert len(completion.choices) == 2


def test_bad_requests_harm_nobody(server: Server) -> None:
    """While bad requests are refused, a good one beside them gives its usual text."""
    good = _chat(server)["choices"][0]["message"]["content"]
    bad: list[dict[str, Any]] = [
        {"temperature": -1}, {"max_tokens": 0}, {"adaptspec": {"policy": "nope"}}, {"model": "nope"}, {"colour": "red"},
        {"messages": [{"role": "user", "content": "word " * 3000}]},
    ]  # fmt: skip
    with ThreadPoolExecutor(4) as pool:
        running = pool.submit(_chat, server)
        for more in bad:
            with pytest.raises(urllib.error.HTTPError) as caught:
                _chat(server, **more)
            error = json.load(caught.value)["error"]
            assert 400 <= caught.value.code < 500
            assert error["message"]
        assert running.result()["choices"][0]["message"]["content"] == good


def test_metrics_count_what_was_served(server: Server) -> None:
    """Prometheus: drafted and accepted tokens grow by exactly what the response says."""

    def counter(name: str) -> float:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))

    names = ("adaptspec_spec_decode_draft_tokens_total", "adaptspec_spec_decode_accepted_tokens_total")
    before = [counter(name) for name in names]
    answer = _chat(server, adaptspec={"policy": "static-3"})["metrics"]["speculative_decoding"]
    after = [counter(name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [
        answer["num_draft_tokens"],
        answer["num_accepted_draft_tokens"],
    ]


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


def test_sigterm_lets_the_running_request_finish() -> None:
    """Drain: a request in flight is answered whole, the port closes, the exit status is 0."""
    running = start_server("--max-rows", "2")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(_chat, running, max_tokens=600, adaptspec={"max_depth": 0})
        while _metric_running(running) == 0:
            assert not answer.done()
        assert running.terminate() == 0
        assert answer.result()["usage"]["completion_tokens"] > 0


def _metric_running(server: Server) -> int:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("adaptspec_requests_running"))


def test_a_port_in_use_is_one_clear_line(server: Server) -> None:
    """Errors for users are one line that says what to do, not a traceback."""
    port = server.url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "adaptspec", "serve", "--port", port]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert out.returncode == 2
    assert "--port" in out.stderr
    assert "Traceback" not in out.stderr
