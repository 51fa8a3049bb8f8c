"""A journal that is written inside another engine is one like any other; metrics have a port of their own."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.control.composed_policy import ComposedPolicy
from adaptspec.control.language.library import find_policy
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Decision
from adaptspec.errors import ConfigError
from adaptspec.hosts.pilot import Pilot
from adaptspec.hosts.settings import NOT_SERVED, UNKNOWN, PilotSettings, read_wishes
from adaptspec.journal import RequestFinished, RequestStarted, read_entries
from adaptspec.request import SpeculationParams
from tests.policies.hosted import USUAL, VLLM, HostEngine, HostRequest, serve
from tests.policies.tapes import agreements
from tests.records import read_journal
from tests.telemetry.otlp import collecting

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def served(folder: Path, policy: str, steps: int = 400, batch: int = 4, *, lag: int = 1, reading: float = 0.0) -> Path:
    journal = folder / "rounds.jsonl"
    world = HostEngine(USUAL, lag=lag, reading=reading)
    settings, host = PilotSettings(policy=policy, journal=journal), replace(VLLM, lag=lag)
    world.pilot = Pilot(settings, host, 8, models={"target": "t", "draft": "d"}, clock=world.time)
    world.add(HostRequest("mine", agreements(0.8, 60), SpeculationParams(task="code", max_depth=2)))
    serve(world, (0.75, 0.2), batch, steps, length=64)
    world.pilot.close()
    assert not world.pilot.errors
    return journal


@pytest.mark.parametrize("reading", [0.0, 0.0005])
@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("policy", ["static-3", "thompson"])
def test_the_journal_says_what_was_done(
    policy: str, lag: int, reading: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds with what drafts came to, contexts that go on from round to round, requests with their sums.

    A round has the depths that were decided for its drafts, also where the next decision has other depths, and where
    one decision serves several steps, which are learned from together.
    """
    decisions: list[Decision] = []
    decide = ComposedPolicy.decide

    def noted(made: ComposedPolicy, signals: BatchSignals) -> Decision:
        decisions.append(decide(made, signals))
        return decisions[-1]

    monkeypatch.setattr(ComposedPolicy, "decide", noted)
    journal = served(tmp_path, policy, lag=lag, reading=reading)
    entries = list(read_entries(journal))
    started = {entry.id: entry for entry in entries if isinstance(entry, RequestStarted)}
    assert (started["mine"].policy, started["mine"].task, started["mine"].max_depth) == (policy, "code", 2)
    context: dict[str, int] = {}
    records = list(read_journal(journal))
    assert (len(decisions) < len(records) // 2) == (reading > 0.0)
    for record in records:
        assert (record.accepted <= record.drafted).all()
        assert (record.drafted <= record.depths).all()
        assert (record.emitted <= record.accepted + 1).all()
        assert record.timing.total > 0.0
        for name, before, emitted in zip(record.request_ids, record.context, record.emitted, strict=True):
            assert context.setdefault(name, before) == before
            context[name] = before + emitted
    ended = [entry for entry in entries if isinstance(entry, RequestFinished)]
    assert ended
    assert all(entry.finish == "stop" and entry.tokens == (60 if entry.id == "mine" else 64) for entry in ended)


@pytest.mark.whole
def test_it_is_read_as_any_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`policy explain` and `simulate` say something of it."""
    journal = served(tmp_path, "exp3", 3000, 1)
    assert main(["policy", "explain", "--journal", str(journal)]) == 0
    assert "drafted" in capsys.readouterr().out
    assert main(["policy", "simulate", "--policy", "static-3", "--journal", str(journal)]) == 0
    assert "static-3" in capsys.readouterr().out


def scraped(port: int) -> dict[str, float]:
    """What a port of metrics serves, by name and labels."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def test_metrics_have_a_port(tmp_path: Path) -> None:
    """They are those of a server of our own; a port that is taken is refused at the start."""
    port = free_port()
    world = HostEngine(USUAL)
    world.pilot = Pilot(PilotSettings(policy="static-3", metrics_port=port), VLLM, 8, clock=lambda: world.now)
    serve(world, (0.75,), 4, 200)
    with pytest.raises(ConfigError, match=f"metrics-port {port}"):
        Pilot(PilotSettings(metrics_port=port), VLLM, 8)
    while scraped(port)["adaptspec_spec_decode_accepted_tokens_total"] <= 100.0:
        time.sleep(0.05)
    world.pilot.close()


@pytest.mark.parametrize("level", ["phase", "round"])
def test_requests_have_traces(level: str) -> None:
    """Below whoever asked: queue, prefill and decode with what was decided, and at level `round` all rounds."""
    world = HostEngine(USUAL)
    with collecting() as collector:
        settings = PilotSettings.of({"policy": "static-3", "traces": {"endpoint": collector.url, "level": level}})
        pilot = world.pilot = Pilot(settings, VLLM, 8, models={"target": "t"}, clock=lambda: world.now)
        serve(world, (0.75,), 4, 100)
        pilot.enter("mine", SpeculationParams(task="code"), waited=2.0, headers={"traceparent": PARENT}, max_tokens=40)
        world.running.append(HostRequest("mine", agreements(0.8, 40)))
        while any(one.name == "mine" for one in world.running):
            world.step()
        pilot.close()
    (root,) = (span for span in collector.spans if span.attributes.get("adaptspec.task") == "code")
    assert (root.name, root.trace_id, root.parent) == ("text_completion t", *PARENT.split("-")[1:3])
    assert root.attributes["gen_ai.usage.output_tokens"] == 40
    assert "http.response.status_code" not in root.attributes
    assert root.attributes["gen_ai.request.max_tokens"] == 40
    assert "gen_ai.request.top_p" not in root.attributes
    below = {span.name: span for span in collector.spans if span.parent == root.span_id}
    assert list(below) == ["queue", "prefill", "decode"]
    assert (below["queue"].end - below["queue"].start) / 1e9 == pytest.approx(2.0, abs=0.1)
    drafted = json.loads(below["decode"].attributes["adaptspec.spec.drafted"])
    assert set(drafted) <= {0, 1, 2, 3}
    assert len(drafted) > 5
    rounds = [span for span in collector.spans if span.parent == below["decode"].span_id]
    assert len(rounds) == (len(drafted) if level == "round" else 0)
    assert not pilot.errors


def test_a_first_request_leaves_its_trace_and_its_journal(tmp_path: Path) -> None:
    """Sixteen tokens, then the end: what steps take is not known by then, and no policy has decided anything."""
    world, journal = HostEngine(USUAL), tmp_path / "rounds.jsonl"
    with collecting() as collector:
        told = {"traces": {"endpoint": collector.url}, "journal": str(journal)}
        pilot = world.pilot = Pilot(PilotSettings.of(told), VLLM, 8, models={"target": "t"}, clock=lambda: world.now)
        world.add(HostRequest("first", agreements(0.0, 16)))
        while world.running:
            world.step()
        for _ in range(2):
            pilot.close()
    assert "text_completion t" in {span.name for span in collector.spans}
    entries = [type(entry).__name__ for entry in read_entries(journal)]
    assert entries == ["JournalHeader", "RequestStarted", "RequestFinished"]
    assert not pilot.errors


def test_traces_that_nobody_can_have_are_refused() -> None:
    """Texts, where they are not told; and whatever is of requests, where these are not told apart."""
    with pytest.raises(ConfigError, match="leave content out"):
        Pilot(PilotSettings.of({"traces": {"content": True}}), VLLM, 8)
    with pytest.raises(ConfigError, match="does not report which requests are in a batch"):
        Pilot(PilotSettings.of({"traces": {"endpoint": "http://127.0.0.1:9"}}), replace(VLLM, requests=False), 8)
    with pytest.raises(ConfigError, match=r"traces\.slow"):
        PilotSettings.of({"traces": {"slow": 1.0}})


def test_the_standard_variables_ask_for_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the engine has names for its requests."""
    for host in (VLLM, replace(VLLM, requests=False)):
        with collecting() as collector:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
            pilot = Pilot(PilotSettings(), host, 8)
            pilot.enter("one")
            pilot.leave("one")
            pilot.close()
        assert bool(collector.spans) == host.requests


def test_metrics_say_what_did_not_go_as_asked(tmp_path: Path) -> None:
    """Wishes that were ignored, by one of few reasons; opt-outs, texts that are no policies, and failures."""
    policy, port = tmp_path / "p.yaml", free_port()
    policy.write_text(find_policy("static-3").read_text())
    pilot = Pilot(PilotSettings(policy=str(policy), metrics_port=port), VLLM, 8)
    assert {value for name, value in scraped(port).items() if name.startswith("adaptspec_host_")} == {0.0}
    for number, extra in enumerate([{"adaptspec_max_depth": 0}, {"adaptspec_policy": "x"}, {"adaptspec_a{}": 1}] * 2):
        wishes, ignored = read_wishes(extra)
        for name, reason in ignored.items():
            pilot.ignore(reason, name)
        pilot.enter(str(number), wishes)
    policy.write_text("garbage: [")
    pilot.look()
    pilot.enter("bad", max_tokens=-1)
    told = scraped(port)
    pilot.close()
    ignored = {name: value for name, value in told.items() if "ignored_wishes_total" in name and value}
    assert ignored == {f'adaptspec_host_ignored_wishes_total{{reason="{one}"}}': 2.0 for one in (NOT_SERVED, UNKNOWN)}
    assert told["adaptspec_host_opted_out_requests_total"] == 2.0
    assert told['adaptspec_policy_reloads_total{result="failure"}'] == 1.0
    assert (told["adaptspec_host_failures_total"], told["adaptspec_host_detached"]) == (1.0, 0.0)
