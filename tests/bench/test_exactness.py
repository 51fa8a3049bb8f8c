"""The exactness benchmark finds what it is there to find."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adaptspec.bench.contenders import policy_engine
from adaptspec.bench.exactness import (
    BATCHES,
    KINDS,
    EngineSetup,
    compared,
    exactness_report,
    exactness_requests,
    exactness_settings,
    run_exactness,
)
from adaptspec.bench.workloads import read_workloads
from adaptspec.config import EngineConfig
from adaptspec.control.language.loader import parse_policy_spec
from adaptspec.engine.build import Built, build
from adaptspec.request import Request, SamplingParams
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings, TokenLogprob
from tests.policies.world import HEADER

TOKENS = 10
LOSSY = f"""{HEADER}  choose: {{algorithm: static, depth: 4}}
  drafters: [draft-model]
  verification: {{method: threshold, lossy: true, high: 0.0, low: 0.0}}
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def config(target_path: Path, draft_path: Path) -> EngineConfig:
    return EngineConfig(model=str(target_path), draft=str(draft_path), max_num_seqs=16)


def asked(built: Built) -> list[Request]:
    """One request of each kind."""
    workloads = dict(list(read_workloads(None, 1).items())[: len(KINDS)])
    return exactness_requests(built, workloads, TOKENS)


def test_the_engine_passes(config: EngineConfig) -> None:
    """Tiny random pair: no answer differs in any setting, at any batch size; drafts are accepted and rejected."""
    built, ticks = build(config), list[str]()
    settings, requests = exactness_settings(built, config), asked(built)
    result = run_exactness(built, config, settings, requests, ticks.append)
    assert result["compared"] == "tokens and log-probabilities"
    assert result["different"] == 0
    assert len(ticks) == len(requests) + len(BATCHES) * len(settings)
    assert [row["setting"] for row in result["settings"]][:4] == ["off", "off", "off", "goodput"]
    named = {(row["setting"], row["drafters"]) for row in result["settings"]}
    for chains in ("static-3", "static-7", "random depths"):
        assert {(chains, one) for one in ("draft-model", "ngram", "counts")} < named
    assert {("random trees", one) for one in ("draft-model", "draft-model + ngram", "lookahead")} < named
    assert all(1 <= row["most_at_once"] <= row["batch"] for row in result["settings"])
    assert {row["most_at_once"] for row in result["settings"] if row["batch"] == 4} == {4}
    assert all(row["drafted"] == 0 for row in result["settings"] if row["setting"] == "off")
    drafting = [row for row in result["settings"] if row["drafters"] == "draft-model"]
    assert all(row["requests_with_rejections"] and row["accepted"] < row["drafted"] for row in drafting)
    assert sum(row["accepted"] for row in drafting) > 0
    json.dumps(result, allow_nan=False)


def test_without_a_draft_model_lookups_draft(config: EngineConfig) -> None:
    """The default policy is then that of lookups; a runner without trees has none here."""
    alone = replace(config, draft=None)
    built = build(alone)
    built.target.info = replace(built.target.info, takes_trees=False)
    named = [setting.name for setting in exactness_settings(built, alone)]
    assert list(dict.fromkeys(named)) == ["off", "goodput-ngram", "static-3", "static-7", "random depths"]


def test_a_wrong_verification_is_caught(config: EngineConfig) -> None:
    """A policy that accepts every draft changes answers, and each difference is located."""
    built = build(config)
    plain_decoding = exactness_settings(built, config)[0]
    lossy = EngineSetup(
        "lossy", "draft-model", partial(policy_engine, built, config, parse_policy_spec(LOSSY, "lossy"))
    )
    result = run_exactness(built, config, [plain_decoding, lossy], asked(built), lambda _: None)
    plain, wrong = result["settings"][: len(BATCHES)], result["settings"][len(BATCHES) :]
    assert not any(row["different"] for row in plain)
    for row in wrong:
        assert row["different"] > 0
        for one in row["differences"]:
            assert one["what"] == "token"
            expected, found = one["tokens"]
            assert expected != found
            assert one["gap"] is None or one["gap"] >= 0.0
    assert any('"gap"' in str(part) for part in exactness_report(result))


def done(*tokens: int, logprob: float = -1.0) -> Completion:
    """An answer of these tokens, each with its log-probability and that of a less likely one."""
    said = tuple(TokenLogprob(token, logprob, ((token, logprob), (9, -3.0))) for token in tokens)
    times = Timings(0.0, 0.0, 0.0, 0.0)
    return Completion("r", "", tokens, 2, FinishReason.LENGTH, SpeculationStats(), times, logprobs=said)


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        (done(7, 8), None),
        (done(7, 6), {"what": "token", "position": 1, "tokens": [8, 6], "gap": 2.0}),
        (done(7), {"what": "token", "position": 1, "tokens": [8, None], "gap": 2.0}),
        (done(7, 8, 5), {"what": "token", "position": 2, "tokens": [None, 5], "gap": None}),
        (replace(done(7, 8), finish=FinishReason.STOP), {"what": "end: length, stop"}),
    ],
)
def test_a_difference_is_located(found: Completion, difference: dict[str, Any] | None) -> None:
    """By the position, both tokens, and how close the choice was; beyond the reference's end nothing is known."""
    request = Request("r", (1, 2), SamplingParams(logprobs=2))
    row = compared([request], {"r": done(7, 8)}, {"r": found}, bits=True)
    assert row["different"] == (difference is not None)
    assert row["differences"] == ([] if difference is None else [{"request": "r", **difference}])


@pytest.mark.parametrize(("bits", "logprobs", "different"), [(True, 2, 1), (False, 2, 0), (True, None, 0)])
def test_log_probabilities_are_held_to_their_bits_where_the_model_has_a_pass_range(
    bits: bool, logprobs: int | None, different: int
) -> None:
    """A difference in the last bit counts; not where passes agree up to rounding, or none were asked for."""
    request = Request("r", (1, 2), SamplingParams(logprobs=logprobs))
    nearly = done(7, 8, logprob=-1.0000001)
    row = compared([request], {"r": done(7, 8)}, {"r": nearly}, bits=bits)
    assert row["different"] == different
    if different:
        (one,) = row["differences"]
        assert (one["what"], one["position"], one["logprobs"]) == ("log-probability", 0, [-1.0, -1.0000001])
