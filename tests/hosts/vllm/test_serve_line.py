"""The command that starts vLLM: as deep as the policy goes, with a graph for each depth, and nothing that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaptspec.errors import ConfigError
from adaptspec.hosts.settings import PilotSettings
from adaptspec.hosts.vllm.contract import EXTENSION
from adaptspec.hosts.vllm.serve_line import serve_line

STATIC = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {{name: p}}\nspec: {spec}\n"


def flags(*policies: str, method: str = "draft_model", rows: int = 256, **settings: Any) -> dict[str, str]:
    """The flags of the command, by name."""
    told = PilotSettings(policy=policies, **settings)
    words, _ = serve_line("m", "d", told, method=method, max_num_seqs=rows, more=["--port", "1"])
    at = words.index("--speculative-config")
    names = [place for place in range(at, len(words)) if words[place].startswith("--")]
    return {words[place]: "" if place + 1 in names else words[place + 1] for place in names}


@pytest.mark.parametrize(
    ("spec", "depths"),
    [
        ("{tiers: [0, 1, 3, 7], choose: {algorithm: goodput}}", [7, 3, 1, 0]),
        ("{max-depth: 2, choose: {algorithm: goodput}}", [2, 1, 0]),
        ("{choose: {algorithm: static, depth: 3}}", [3, 2, 1, 0]),
    ],
)
def test_every_depth_has_graphs_and_nearly_all_batches_the_deepest(
    tmp_path: Path, spec: str, depths: list[int]
) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text(STATIC.format(spec=spec))
    speculative = json.loads(flags(str(policy))["--speculative-config"])
    table = speculative["num_speculative_tokens_per_batch_size"]
    assert speculative["num_speculative_tokens"] == depths[0]
    assert [depth for _, _, depth in table] == depths
    assert [size for first, last, _ in table for size in range(first, last + 1)] == [*range(1, 257)]
    assert table[0][1] == 256 - len(depths) + 1


def test_settings_are_told_with_paths_that_hold_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.yaml").write_text(STATIC.format(spec="{choose: {algorithm: static, depth: 3}}"))
    monkeypatch.chdir(tmp_path)
    told = json.loads(flags("p.yaml", "goodput", journal=Path("/j"))["--additional-config"])
    assert told == {"adaptspec": {"policy": [str(tmp_path / "p.yaml"), "goodput"], "journal": "/j"}}


def test_traces_are_told_as_they_were_asked_for() -> None:
    """And only what of them was."""
    asked = PilotSettings.of({"traces": {"endpoint": "http://c:4318", "level": "round"}}).traces
    told = json.loads(flags("goodput", traces=asked)["--additional-config"])["adaptspec"]
    assert told["traces"] == {"endpoint": "http://c:4318", "level": "round"}
    assert PilotSettings.of(told).traces == asked


def test_skipping_the_draft_needs_the_workers_too() -> None:
    assert flags("goodput")["--port"] == "1"
    assert "--worker-extension-cls" not in flags("goodput")
    skipping = flags("goodput", skip_draft=True)
    assert skipping["--worker-extension-cls"] == EXTENSION
    assert "--no-enable-prefix-caching" in skipping


@pytest.mark.parametrize(
    ("policies", "rows", "words"),
    [(["off"], 8, "without a draft"), (["goodput"], 8, "--max-num-seqs"), (["x"], 8, "x")],
)
def test_what_cannot_be_started_is_refused(policies: list[str], rows: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        flags(*policies, rows=rows)
