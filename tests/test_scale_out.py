"""Examples of scale-out: what they say of vLLM, of policies and of our commands exists, and fits together."""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from adaptspec.commands.host_command import add_arguments
from adaptspec.control.host import Host, narrow
from adaptspec.control.language.loader import parse_policy_spec
from adaptspec.hosts.settings import PilotSettings
from adaptspec.hosts.vllm.serve_line import serve_line

EXAMPLES = Path(__file__).parents[1] / "examples"
MANIFESTS = {one["kind"]: one for one in yaml.safe_load_all((EXAMPLES / "kubernetes-vllm.yaml").read_text())}
NGINX = (EXAMPLES / "vllm-router" / "nginx.conf").read_text()
ROUTER = (EXAMPLES / "vllm-router" / "README.md").read_text()
SCHEDULER = "adaptspec.hosts.vllm.AdaptiveScheduler"


def _pod() -> dict[str, Any]:
    return dict(MANIFESTS["StatefulSet"]["spec"]["template"]["spec"])


def _arguments() -> dict[str, str]:
    (container,) = _pod()["containers"]
    return dict(argument.removeprefix("--").split("=", 1) for argument in container["args"])


def _of_ray() -> dict[str, Any]:
    """`engine_kwargs` of the example; its one name is a folder."""
    tree = ast.parse((EXAMPLES / "ray_serve_llm.py").read_text())
    (found,) = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "engine_kwargs"]
    return dict(eval(compile(ast.Expression(found), "engine_kwargs", "eval"), {"SHARED": "/shared"}))


def _of_router() -> dict[str, Any]:
    told = dict(re.findall(r"--(speculative-config|additional-config) '([^']*)'", ROUTER))
    (scheduler,) = re.findall(r"--scheduler-cls (\S+)", ROUTER)
    return {"scheduler_cls": scheduler, **{name.replace("-", "_"): json.loads(text) for name, text in told.items()}}


def _of_kubernetes() -> dict[str, Any]:
    told = _arguments()
    return {
        "scheduler_cls": told["scheduler-cls"],
        "speculative_config": json.loads(told["speculative-config"]),
        "additional_config": json.loads(told["additional-config"]),
    }


@pytest.mark.parametrize("example", [_of_ray, _of_router, _of_kubernetes], ids=lambda one: one.__name__)
def test_engines_are_told_what_a_pilot_understands(example: Any) -> None:
    told = example()
    assert told["scheduler_cls"] == SCHEDULER
    assert told["speculative_config"]["num_speculative_tokens"] >= 5
    settings = PilotSettings.of(told["additional_config"]["adaptspec"])
    assert settings.state_dir is not None
    assert len(settings.policy) == 1


@pytest.mark.parametrize("path", ["ray_serve_llm.py", "kubernetes-vllm.yaml", "vllm-router/README.md"])
def test_lines_by_hand_say_what_else_our_own_has(path: str, tmp_path: Path) -> None:
    """A table of depths, which has to fit the requests at once: the command that they name prints it."""
    text = (EXAMPLES / path).read_text()
    assert "num_speculative_tokens_per_batch_size" in text
    (words,) = re.findall(r"`adaptspec (host vllm [^`]*)`", text)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    told = parser.parse_args(words.replace(" N", " 256").split()[1:])
    policy = tmp_path / told.policy[0]
    policy.write_text(MANIFESTS["ConfigMap"]["data"]["goodput.yaml"])
    settings = PilotSettings(policy=(str(policy),))
    line, _ = serve_line(told.model, told.draft, settings, method=told.method, max_num_seqs=told.max_num_seqs, more=())
    table = json.loads(line[line.index("--speculative-config") + 1])["num_speculative_tokens_per_batch_size"]
    assert [depth for _, _, depth in table] == [5, 4, 3, 2, 1, 0]


def test_the_pod_finds_its_policy_and_may_write_what_it_learns() -> None:
    settings = PilotSettings.of(_of_kubernetes()["additional_config"]["adaptspec"])
    (container,), volumes = _pod()["containers"], {volume["name"]: volume for volume in _pod()["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    policy = Path(settings.policy[0])
    mount = mounts[str(policy.parent)]
    assert volumes[mount["name"]]["configMap"]["name"] == MANIFESTS["ConfigMap"]["metadata"]["name"]
    assert policy.name in MANIFESTS["ConfigMap"]["data"]
    learned = mounts[str(settings.state_dir)]
    claim = MANIFESTS["PersistentVolumeClaim"]
    assert not learned.get("readOnly", False)
    assert volumes[learned["name"]]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]  # engines on other nodes share it
    assert settings.metrics_port in [port["containerPort"] for port in container["ports"]]


def test_the_policy_of_the_config_map_holds_inside_vllm() -> None:
    (text,) = MANIFESTS["ConfigMap"]["data"].values()
    deepest = _of_kubernetes()["speculative_config"]["num_speculative_tokens"]
    spec, notes = narrow(parse_policy_spec(text, "goodput.yaml"), Host("vLLM", {"draft-model": "eagle3"}, deepest))
    assert spec.tiers[-1] == deepest
    assert not notes


def test_the_service_and_the_router_reach_the_engines() -> None:
    pod = MANIFESTS["StatefulSet"]["spec"]["template"]
    assert MANIFESTS["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    (port,) = MANIFESTS["Service"]["spec"]["ports"]
    assert port["targetPort"] in [one["name"] for one in pod["spec"]["containers"][0]["ports"]]
    assert re.findall(r"server 127\.0\.0\.1:(\d+)", NGINX) == ["8001", "8002"]
    assert "--port 800$((gpu + 1))" in ROUTER
    assert "proxy_buffering off;" in NGINX  # tokens come as they are written
