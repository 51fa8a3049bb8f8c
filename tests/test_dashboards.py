"""dashboards/: queries and rules about metrics that exist, and a compose file that finds everything it mounts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.telemetry.exported import exported, unknown

FOLDER = Path(__file__).parents[1] / "dashboards"


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def panels() -> list[dict[str, Any]]:
    whole = json.loads((FOLDER / "adaptspec.json").read_text())
    return [panel for panel in whole["panels"] if panel["type"] != "row"]


async def test_queries_and_rules_ask_for_what_there_is(
    target_path: Path, draft_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A panel or rule about a metric or label of another name stays empty, and nobody would notice."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = await exported(target_path, draft_path, tmp_path)
    queries = [(target["expr"], target["legendFormat"]) for panel in panels() for target in panel["targets"]]
    for expr, legend in queries:
        assert not unknown(expr, known), expr
        grouped = {label for part in re.findall(r"by \(([^)]*)\)", expr) for label in re.findall(r"\w+", part)}
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= grouped, legend
        assert "$job" in expr
    assert len(queries) > 25
    rules = [rule for group in read("rules.yml")["groups"] for rule in group["rules"]]
    known |= {rule["record"]: {"policy"} for rule in rules if "record" in rule}
    for rule in rules:
        assert not unknown(rule["expr"], known), rule["expr"]


def test_every_alert_says_what_to_do_and_every_rule_is_tested() -> None:
    """promtool runs the tests; here it is that none was forgotten."""
    tested = (FOLDER / "rules_test.yml").read_text()
    for group in read("rules.yml")["groups"]:
        for rule in group["rules"]:
            assert rule.get("record", rule.get("alert")) in tested, rule
            if "alert" in rule:
                assert rule["labels"]["severity"] in ("critical", "warning")
                assert all(rule["annotations"][name] for name in ("summary", "description"))


def test_the_compose_file_mounts_what_is_here_and_pins_what_it_runs() -> None:
    """A path that does not exist becomes an empty folder; an image without a version becomes another one next month."""
    compose = read("compose.yml")
    for service in compose["services"].values():
        assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+", service["image"])
        assert service["network_mode"] == "host"
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert (FOLDER / source).is_file() if source.startswith(".") else source in compose["volumes"]


def test_services_find_each_other_on_loopback() -> None:
    receiver = read("tempo.yml")["distributor"]["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert f"--otlp-traces-endpoint http://{receiver}" in (FOLDER / "compose.yml").read_text()
    assert receiver.startswith("127.0.0.1:")
    sources = {source["type"]: source["url"] for source in read("grafana/datasources.yml")["datasources"]}
    command = read("compose.yml")["services"]["prometheus"]["command"]
    assert f"--web.listen-address={sources['prometheus'].removeprefix('http://')}" in command
    server = read("tempo.yml")["server"]
    assert sources["tempo"] == f"http://{server['http_listen_address']}:{server['http_listen_port']}"
