"""The doctor: it recommends what it measured, the lighter within noise, and its policy is one of the language."""

from __future__ import annotations

import json
import shlex
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.analysis.intervals import Ratio
from adaptspec.bench.core import Result
from adaptspec.bench.doctor import (
    Candidate,
    DoctorSettings,
    Trial,
    diagnose,
    doctor_configs,
    doctor_drafts,
    doctor_report,
    policy_text,
    preferred,
    would_help,
)
from adaptspec.commands import train_command
from adaptspec.config import EngineConfig
from adaptspec.control.cost_model import CostModel
from adaptspec.control.cost_profile import CostProfile
from adaptspec.control.language.loader import parse_policy_spec
from adaptspec.errors import ConfigError
from adaptspec.models.layers import has_products
from adaptspec.settings import load
from adaptspec.tables import Table
from adaptspec.training.config import DistillConfig
from tests.conftest import MakeModel
from tests.models.tiny_gguf import write_gguf

Speeds = Mapping[tuple[str, ...], float]
SETUP = {"dtype": "float32", "runner": "torch", "threads": 2}


def costs(further: float = 0.0) -> CostModel:
    """A pass takes a second, and `further` seconds for each token after its first."""
    return CostModel(CostProfile((1,), (1, 16), ((1.0, 1.0 + 15 * further),)))


def result(name: str, speed: float, plain: float, noise: float = 0.0) -> Result:
    """Ten groups at this speed, as multiples of plain decoding of another configuration."""
    drawn = np.exp(np.random.default_rng(len(name)).normal(0.0, noise, 10)) if noise else np.ones(10)
    drawn /= np.exp(np.log(drawn).mean())  # noise is in the interval only
    ratio = Ratio.of_groups(drawn * speed / plain)
    by_group = {number: 1.0 / (speed * factor) for number, factor in enumerate(drawn)}
    return Result(name, 100, 100 / speed, 0.1, 0, True, ratio, {"chat": ratio}, by_group)


def trial(config: EngineConfig, speeds: Speeds, memory: int = 0, noise: float = 0.0) -> Trial:
    """What was measured of a configuration, plain decoding first."""
    setup = {**SETUP, "dtype": config.dtype}
    candidates = [
        Candidate(
            config, setup, drafters, memory, result("+".join(drafters), speed, speeds[()], noise if drafters else 0)
        )
        for drafters, speed in speeds.items()
    ]
    return Trial(candidates, costs(0.1), 1000, "equal bits", 64)


def diagnosed(
    trials: Mapping[str | None, Speeds | ConfigError], dtypes: tuple[str, ...] = ("float32",), **more: Any
) -> tuple[dict[str, Any], list[str]]:
    """The diagnosis where configurations, by their draft or data type, measure this; and the lines meanwhile."""
    lines: list[str] = []

    def attempt(config: EngineConfig, *_: Any, **__: Any) -> Trial:
        found = trials[config.draft or config.dtype]
        if isinstance(found, ConfigError):
            raise found
        return trial(config, found, memory=1000 if config.draft else 0)

    configs = [EngineConfig(model="bundled", dtype=dtype) for dtype in dtypes]
    drafts = [name for name in trials if name not in dtypes]
    settings = DoctorSettings(64, **more)
    found = diagnose(configs, [str(name) for name in drafts], {}, settings, lines.append, attempt=attempt)
    json.dumps(found, allow_nan=False)
    return found, lines


def test_what_was_measured_fastest_is_recommended_with_its_policy() -> None:
    """A line for each configuration when it is done; the drafts are tried in the fastest."""
    found, lines = diagnosed(
        {
            "float32": {(): 20.0, ("ngram",): 22.0},
            "bfloat16": {(): 30.0, ("ngram",): 36.0},
            "draft": {(): 30.0, ("draft-model", "ngram"): 60.0},
        },
        ("float32", "bfloat16"),
    )
    assert found["worth"]
    assert (found["dtype"], found["best"]["draft"]) == ("bfloat16", "draft")
    assert set(parse_policy_spec(found["policy"]).drafters) == {"draft-model", "ngram"}
    assert lines[0].startswith("float32 on torch, 2 threads: plain 20.0 tokens/s; ngram: 1.10 (")
    assert lines[2].startswith(
        "bfloat16 on torch, 2 threads with draft: plain 30.0 tokens/s; draft-model + ngram: 2.00 ("
    )
    report = [str(part) for part in doctor_report(found, "adaptspec serve")]
    assert report[0].startswith("Speculate with draft-model + ngram (draft): bundled runs 2.00 (2.00 to 2.00) x")
    assert "60.0 tokens per second, 30.0 without speculation" in report[1]
    (table,) = (part for part in doctor_report(found, "adaptspec serve") if isinstance(part, Table))
    assert len(table.rows) == 6


def test_the_honest_answer_may_be_no() -> None:
    """Gains below 3 % are none: then the policy is plain decoding, in the fastest configuration."""
    found, _ = diagnosed({"float32": {(): 20.0, ("ngram",): 20.4}, "draft": {(): 20.0, ("draft-model", "ngram"): 15.0}})
    assert not found["worth"]
    assert not parse_policy_spec(found["policy"]).drafts
    assert str(doctor_report(found, "adaptspec serve")[0]).startswith("Do not speculate: ")


@given(
    st.floats(1.1, 3.0),
    st.lists(st.tuples(st.floats(0.7, 1.3), st.sampled_from(["counts", "draft-model"])), min_size=1, max_size=4),
)
def test_a_heavier_candidate_within_noise_never_replaces_a_lighter_one(
    gain: float, heavier: list[tuple[float, str]]
) -> None:
    """One that is faster by far always does."""
    noise = 0.5
    config = EngineConfig(model="bundled")
    light = trial(config, {(): 1.0, ("ngram",): gain}).candidates
    heavy = [trial(config, {(): 1.0, (name,): gain * times}, 1, noise).candidates[1] for times, name in heavier]
    assert preferred([*light, *heavy]) is light[1]
    twice = trial(config, {(): 1.0, ("draft-model",): 2.0 * gain}, 1).candidates[1]
    assert preferred([*light, *heavy, twice]) is twice


def test_what_cannot_be_used_is_left_out_with_the_reason() -> None:
    """The others are tried all the same; what there is no time for is named."""
    plain = {(): 20.0, ("ngram",): 30.0}
    found, _ = diagnosed({"float32": plain, "a": ConfigError("no room"), "b": plain})
    assert found["unusable"] == {"draft a": "no room"}
    assert "left out: draft a: no room" in doctor_report(found, "adaptspec serve")
    with pytest.raises(ConfigError, match="no such model"):
        diagnosed({"float32": ConfigError("no such model")})
    late, _ = diagnosed({"float32": plain, "a": plain}, seconds=-1.0)
    assert late["unusable"] == {"draft a": "there was no time left; give more --seconds"}


@pytest.mark.parametrize(
    ("further", "share", "pays"),
    [
        (0.0, "0%", "drafts pay where more than 0%"),
        (0.28, "28%", "drafts pay where more than 28%"),
        (1.2, "120%", "no draft pays here"),
    ],
)
def test_the_cost_of_checking_a_draft_is_stated_as_the_acceptance_that_pays_for_it(
    further: float, share: str, pays: str
) -> None:
    found, _ = diagnosed({"float32": {(): 20.0, ("ngram",): 30.0}})
    found["four_tokens_over_one"] = 1.0 + 3 * further
    (sentence,) = (str(part) for part in doctor_report(found, "serve") if "A pass of 4 tokens" in str(part))
    assert f"takes {1 + 3 * further:.2f} x as long" in sentence
    assert f"each drafted token adds {share} of a pass" in sentence
    assert pays in sentence


def test_what_would_help_follows_from_the_cost_of_passes_and_names_commands() -> None:
    """Tokens that cost nothing to check: 1 / (1 - 0.7) at most. Tokens that each cost a pass: nothing helps."""
    free, dear = (would_help(costs(further), 1_000_000, "m") for further in (0.0, 1.0))
    assert 3.0 < free[0]["over_plain"] <= 1 / 0.3
    assert free[0]["command"] == "adaptspec train counts --model m --corpus FILE --out counts.npz"
    assert all(row["over_plain"] <= 1.0 for row in dear)
    found, _ = diagnosed({"float32": {(): 20.0, ("ngram",): 30.0}})
    assert any(
        "`adaptspec train draft --model bundled --corpus FILE --out DIR`" in str(part)
        for part in doctor_report(found, "serve")
    )
    assert any("would help: checking" in str(part) for part in doctor_report({**found, "would_help": dear}, "serve"))


def test_the_commands_that_would_help_can_be_run() -> None:
    """They lack nothing; a model's path may hold spaces."""
    parser = ArgumentParser()
    train_command.add_arguments(parser)
    for row in would_help(costs(), 1_000_000, "my models/m"):
        program, train, *words = shlex.split(row["command"])
        assert (program, train) == ("adaptspec", "train")
        given = parser.parse_args(words)
        if words[0] == "counts":
            assert given.model == "my models/m"
        else:
            assert load(DistillConfig, given.settings, kind=words[0]).model == "my models/m"


@pytest.mark.parametrize("drafters", [(), ("ngram",), ("draft-model", "ngram")])
def test_its_policy_is_one_of_the_language(drafters: tuple[str, ...]) -> None:
    spec = parse_policy_spec(policy_text(drafters))
    assert tuple(spec.drafters) == drafters
    assert spec.drafts == bool(drafters)


def test_every_fast_data_type_of_a_checkpoint_is_tried(target_path: Path) -> None:
    """Those for which the CPU has fast products, unless one is named."""
    config = EngineConfig(model=str(target_path))
    configs = doctor_configs(config)
    assert [one.runner for one in configs] == ["auto"] * len(configs)
    assert {one.dtype for one in configs} >= {"float32"}
    assert all(has_products(getattr(torch, one.dtype)) for one in configs)
    named = replace(config, dtype="bfloat16")
    assert doctor_configs(named) == [named]


@pytest.mark.parametrize(("runner", "first"), [("auto", "auto"), ("torch", "torch")])
def test_a_gguf_file_is_tried_as_it_is_and_on_torch(
    make_model: MakeModel, tmp_path: Path, runner: Literal["auto", "torch"], first: str
) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(make_model("llama"), file, "F32")
    configs = doctor_configs(EngineConfig(model=str(file), runner=runner))
    types = [name for name in ("float32", "bfloat16", "float16") if has_products(getattr(torch, name))]
    assert configs[0].runner == first
    assert {one.runner for one in configs[1:]} <= {"torch"}
    assert [one.dtype for one in configs] == (["auto", "auto"] if runner == "auto" else types)
    only = EngineConfig(model=str(file), runner="llama.cpp")
    assert doctor_configs(only) == [only]
    assert doctor_drafts(only, []) == doctor_drafts(only, ["none"]) == []


def test_three_prompts_are_too_few_for_advice() -> None:
    """Three equal ratios have no interval that means anything."""
    (plain, fast) = trial(EngineConfig(model="bundled"), {(): 1.0, ("ngram",): 3.0}).candidates
    few = replace(fast.result, by_group={number: fast.result.by_group[number] for number in range(3)})
    assert preferred([plain, fast]) is fast
    assert preferred([plain, replace(fast, result=few)]) is plain
