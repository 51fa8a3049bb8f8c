"""vLLM's own server, started by the command that we print: wishes, hostile ones too, faults, and its journal."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adaptspec.journal import RequestFinished, read_entries
from adaptspec.rounds import RoundRecord
from tests.hosts.vllm.conftest import ROOT
from tests.hosts.vllm.served import free_port, served, wait_for

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]

STORY = "Once upon a time there was a little girl who"
# Depths go by chance, so that a short run has rounds at all of them.
GUIDE = """\
apiVersion: adaptspec.dev/v1
kind: SpeculationPolicy
metadata: {name: logging}
spec:
  tiers: [0, 1, 3]
  drafters: [draft-model]
  choose: {algorithm: exp3, scope: global, dwell-rounds: 4, rate: 0.05}
"""


@dataclass(frozen=True)
class Server:
    """A running vLLM, and the files that it was given and that it writes."""

    url: str
    policy: Path
    journal: Path
    log: Path

    def ask(self, path: str = "/v1/completions", **body: Any) -> tuple[int, dict[str, Any]]:
        """Status and answer; a request is greedy, of 32 tokens, unless it says otherwise."""
        told = {"model": "m", "prompt": STORY, "max_tokens": 32, "temperature": 0, "ignore_eos": True, **body}
        request = urllib.request.Request(
            self.url + path, json.dumps(told).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=100) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, {"error": error.read().decode()}

    def asks(self, bodies: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
        """Several at once."""
        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(lambda body: self.ask(**body), bodies))


def text(answer: tuple[int, dict[str, Any]]) -> str:
    assert answer[0] == 200, answer
    return str(answer[1]["choices"][0]["text"])


def drafted(answer: tuple[int, dict[str, Any]]) -> int:
    return int(answer[1]["metrics"]["speculative_decoding"]["num_draft_tokens"])


@pytest.fixture(scope="module")
def server(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    made = Server(f"http://127.0.0.1:{port}", folder / "p.yaml", folder / "rounds.jsonl", folder / "log")
    made.policy.write_text(GUIDE)
    ours = ["--policy", str(made.policy), "--policy", "goodput", "--journal", str(made.journal)]
    theirs = ["--per-request-spec-decode-metrics", "summary"]
    with served(vllm_python, port, made.log, ours, theirs) as process:
        wait_for(made.url, process, made.log)
        yield made
        assert process.poll() is None, made.log.read_text()[-4000:]


def test_a_request_that_opts_out_has_no_drafts_and_the_same_text(server: Server) -> None:
    bodies: list[dict[str, Any]] = [{"vllm_xargs": {"adaptspec_policy": "goodput"}} for _ in range(8)]
    for _ in range(3):  # until the policy decides, depths go in turn
        many = server.asks(bodies)
    bodies[3] = {"vllm_xargs": {"adaptspec_max_depth": 0}}
    answers = server.asks(bodies)
    assert {text(answer) for answer in (*many, *answers)} == {text(answers[3])}
    assert drafted(answers[3]) == 0
    assert sum(map(drafted, answers)) > 0


HOSTILE: list[Any] = [
    *({"adaptspec_max_depth": value} for value in (-1, "x", "", 1.5, [1], ["a"], 10**18, -(10**18), "9" * 4000, "٣")),
    *({"adaptspec_max_depth": value} for value in ("0x5", "1e3", " 2 ", 99, 2**31, "-0", "nan", 0.0, "None", [[]])),
    *({"adaptspec_policy": value} for value in ("nobody", "", 3, [1, 2], "../../etc", "p" * 4000, "\x00", "goodput ")),
    *({"adaptspec_task": value} for value in ("", " ", "t" * 65, 7, ["code"], "\n", "new", "ok", "\u202e", "a/b")),
    *({f"adaptspec_{name}": 1} for name in ("", "depth", "maxdepth", "policy_", "x" * 3000)),
    {"adaptspec_max_depth": 0, "adaptspec_policy": 5, "adaptspec_task": [], "adaptspec_nothing": "x"},
    {"adaptspec": "text"},
    {"": 1},
    *({"adaptspec_task": f"mine{number}"} for number in range(40)),
]


def test_hostile_wishes_hurt_nobody(server: Server) -> None:
    """No status of 500, and who asks beside them gets the same text; the last ones want more tasks than there is."""
    assert len(HOSTILE) > 50
    plain = text(server.ask())
    for start in range(0, len(HOSTILE), 8):
        bodies = [{"vllm_xargs": extra} for extra in HOSTILE[start : start + 8]]
        *hostile, beside = server.asks([*bodies, {}])
        assert text(beside) == plain
        for extra, answer in zip(HOSTILE[start : start + 8], hostile, strict=True):
            assert answer[0] < 500, (extra, answer)
            if answer[0] == 200:
                assert text(answer) == plain
    assert "inside AdaptSpec" not in server.log.read_text()
    assert "AdaptSpec failed" not in server.log.read_text()


def test_a_policy_file_of_garbage_changes_nothing(server: Server) -> None:
    """Ten times a second, while requests run: the last good policy stays, and a good one is taken again."""
    chance, plain = random.Random(0), text(server.ask())
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(lambda: [answer for _ in range(6) for answer in server.asks([{}] * 4)])
        end = time.monotonic() + 4.0
        while time.monotonic() < end or not answers.done():
            server.policy.write_bytes(chance.randbytes(200) if chance.random() < 0.7 else GUIDE[:150].encode())
            time.sleep(0.1)
    assert {text(answer) for answer in answers.result()} == {plain}
    assert "the policy that was served before stays" in server.log.read_text()
    server.policy.write_text(GUIDE + "  tasks: {}\n")
    for _ in range(20):
        assert text(server.ask()) == plain
        if "was read again" in server.log.read_text():
            return
    raise AssertionError("the good policy was never taken")


def test_its_journal_is_read_by_whatever_reads_journals(server: Server) -> None:
    """Explained as the journal of a server of ours."""
    for number in range(16):
        server.asks([{"prompt": f"{STORY} {number}{row}", "max_tokens": 64} for row in range(4)])
    time.sleep(2.0)  # the journal is written on a thread of its own
    entries = list(read_entries(server.journal))
    assert sum(isinstance(one, RoundRecord) for one in entries) > 100
    finished = [one for one in entries if isinstance(one, RequestFinished)]
    assert {one.policy for one in finished} == {"logging", "goodput"}
    assert {one.finish for one in finished} == {"length"}
    told = policy("explain", "logging", "--json", journal=server.journal)
    assert told["rounds"] > 100


def policy(*words: str, journal: Path) -> dict[str, Any]:
    """What `adaptspec policy` prints of a journal."""
    line = [sys.executable, "-m", "adaptspec", "policy", *words, "--journal", str(journal)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))
