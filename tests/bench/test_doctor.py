"""The doctor: forecasts follow from tape and costs, the verdict from the forecasts, and the policy is one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.bench.doctor import DoctorSettings, doctor_configs, doctor_report, recommended, run_doctor
from adaptspec.bench.try_drafts import Tried
from adaptspec.control.language.loader import parse_policy_spec
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.errors import ConfigError
from adaptspec.models.layers import has_products
from adaptspec.simulation.machine import Curve, DraftTimes, Grid, Machine
from adaptspec.simulation.tape import Tape
from adaptspec.tables import Table
from tests.conftest import MakeModel
from tests.models.tiny_gguf import write_gguf
from tests.policies.tapes import made_tape

CONFIG = EngineConfig("target")


def machine(step: float, further: float = 0.0) -> Machine:
    """A pass takes a second per row, and `further` seconds for each further token."""
    drafters = {
        "draft-model": DraftTimes(Curve((1.0,), (step,)), catch_up_per_token=step / 100),
        "ngram": DraftTimes(per_row=1e-5),
    }
    lines = tuple(Curve((1.0, 2.0), (rows, rows + rows * further)) for rows in (1.0, 2.0))
    return Machine("tested", Grid((1.0, 2.0), lines), drafters)


def agreeing(tasks: dict[str, float]) -> Tape:
    """Half of the tokens of lookup are wrong where it finds some; the draft agrees as often as told."""
    return made_tape(tasks, count=2, length=40)


def test_every_fast_data_type_of_a_checkpoint_is_tried(target_path: Path) -> None:
    """Those for which the CPU has fast products, unless one is named."""
    config = EngineConfig(str(target_path))
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
    configs = doctor_configs(EngineConfig(str(file), runner=runner))
    types = [name for name in ("float32", "bfloat16", "float16") if has_products(getattr(torch, name))]
    assert configs[0].runner == first
    assert {one.runner for one in configs[1:]} <= {"torch"}
    assert [one.dtype for one in configs] == (["auto", "auto"] if runner == "auto" else types)
    only = EngineConfig(str(file), runner="llama.cpp")
    assert doctor_configs(only) == [only]


def test_the_configuration_that_wrote_most_is_recommended() -> None:
    """Whichever policy it did that with, in the requests that all answered; what there is no time for is named."""
    configs = [replace(CONFIG, dtype=name) for name in ("float32", "bfloat16", "float16")]
    measured = {
        "float32": {"plain": {"a": (20, 1.0), "b": (90, 1.0)}, "goodput-ngram": {"a": (24, 1.0), "b": (90, 1.0)}},
        "bfloat16": {"plain": {"a": (25, 1.0)}, "goodput-ngram": {"a": (22, 1.0)}},
    }

    def answer(config: EngineConfig, draft: str | None, *rest: object, **more: object) -> Tried:
        if config.dtype == "float16":
            raise ConfigError("no memory")
        setup = {"dtype": config.dtype, "runner": "torch", "threads": 2}
        tape = agreeing({"code": 0.0})
        tape = replace(tape, views={"ngram": tape.views["ngram"]})
        return Tried(draft, tape, machine(1.0), {}, 10, setup=setup, measured=measured[config.dtype])

    result = run_doctor(configs, [None], {}, DoctorSettings(), lambda _: None, attempt=answer)
    assert (result["dtype"], result["setup"]["dtype"]) == ("bfloat16", "bfloat16")
    speeds = [{"plain": 20.0, "goodput-ngram": 24.0}, {"plain": 25.0, "goodput-ngram": 22.0}]
    assert [row["tokens_per_second"] for row in result["configurations"]] == speeds
    assert result["unusable"] == {"none in float16": "no memory"}
    said = [str(part) for part in doctor_report(result, "adaptspec serve")]
    assert "Fastest: bfloat16 on torch, 2 threads under plain, 25.0 tokens per second." in said
    measured["bfloat16"]["goodput-ngram"]["a"] = 51, 2.0  # 2 % more is no gain
    again = run_doctor(configs, [None], {}, DoctorSettings(), lambda _: None, attempt=answer)
    assert any("under plain, 25.0" in str(part) for part in doctor_report(again, "adaptspec serve"))
    measured["bfloat16"]["goodput-ngram"]["a"] = 30, 1.0
    again = run_doctor(configs, [None], {}, DoctorSettings(), lambda _: None, attempt=answer)
    assert any("under goodput-ngram, 30.0" in str(part) for part in doctor_report(again, "adaptspec serve"))
    late = run_doctor(configs, [None], {}, DoctorSettings(seconds=0.0), lambda _: None, attempt=answer)
    assert list(late["unusable"]) == ["none in bfloat16", "none in float16"]


def test_all_configurations_answer_in_one_length() -> None:
    """That which the first found time for."""
    lengths: list[tuple[int, bool]] = []

    def answer(
        config: EngineConfig, draft: str | None, work: object, tokens: int, tick: object, *, fixed: bool, **more: object
    ) -> Tried:
        lengths.append((tokens, fixed))
        tape = agreeing({"code": 0.0})
        return Tried(draft, replace(tape, views={"ngram": tape.views["ngram"]}), machine(1.0), {}, 10, tokens=48)

    configs = [replace(CONFIG, dtype=name) for name in ("float32", "bfloat16", "float16")]
    run_doctor(configs, [None], {}, DoctorSettings(128), lambda _: None, attempt=answer)
    assert lengths == [(128, False), (48, True), (48, True)]


def forecast(tried: Sequence[Tried | ConfigError], ticks: list[str] | None = None) -> dict[str, object]:
    """Of drafts a, b ... which meet this."""
    answers = dict(zip("abc", tried, strict=False))
    fallback = Tried(None, replace(agreeing({"code": 0.0}), views={}), machine(1.0), {}, 10)

    def answer(config: EngineConfig, draft: str | None, *rest: object, **more: object) -> Tried:
        one = fallback if draft is None else answers[draft]
        if isinstance(one, ConfigError):
            raise one
        return one

    told = [] if ticks is None else ticks
    return run_doctor([CONFIG], list(answers), {}, DoctorSettings(64), told.append, attempt=answer)


def test_the_better_draft_is_found_and_its_policy_written() -> None:
    """One that is right nine times in ten for a tenth of a pass, beside one that is never right."""
    never = Tried("a", agreeing({"code": 0.0, "json": 0.0}), machine(0.1), {}, 1000)
    often = Tried("b", agreeing({"code": 0.9, "json": 0.9}), machine(0.1), {}, 1000)
    ticks: list[str] = []
    result = forecast([never, often], ticks)
    assert result["worth"]
    assert result["best"]["draft"] == "b"  # type: ignore[index]
    means = {(row["draft"], *row["drafters"]): row["mean"] for row in result["drafters"]}  # type: ignore[attr-defined]
    # Four drafted tokens cost 1.4 and bring 1 + 0.9 + ... + 0.9^4 = 4.1 at best.
    assert 1.8 < means["b", "draft-model"] < 13 / 2.2  # what it earns at depth 12 if it is always right
    assert 0.9 < means["a", "draft-model"] <= 1.01
    assert len(ticks) == 2 * 2 + 1 + 3  # rows, lookup once, and what is imagined
    spec = parse_policy_spec(str(result["policy"]), "policy")
    assert set(spec.drafters) == set(result["best"]["drafters"])  # type: ignore[index]
    json.dumps(result, allow_nan=False)


def test_drafts_are_compared_on_the_tasks_that_all_had_time_for() -> None:
    """One that answered fewer prompts than the others made the report fail."""
    quick = Tried("a", agreeing({"code": 0.5, "json": 0.9}), machine(0.1), {}, 1000)
    slow = Tried("b", agreeing({"code": 0.5}), machine(0.2), {}, 1000)
    result = forecast([quick, slow])
    assert all(list(row["tasks"]) == ["code"] for row in result["drafters"])  # type: ignore[attr-defined]
    (table,) = (part for part in doctor_report(result, "adaptspec serve") if isinstance(part, Table))
    assert len(table.rows) == 1 + 2 + 2 + 1


def test_the_honest_answer_may_be_no() -> None:
    """A draft as slow as the target, passes that take as long as their tokens: then the policy is plain decoding."""
    poor = Tried("a", agreeing({"code": 0.3}), machine(1.0, further=1.0), {}, 1000)
    result = forecast([poor])
    assert not result["worth"]
    assert not parse_policy_spec(str(result["policy"]), "policy").drafts
    first, *rest = doctor_report(result, "adaptspec serve")
    assert str(first).startswith("No: ")
    assert any("no draft pays here" in str(part) for part in rest)


@pytest.mark.parametrize(
    ("further", "share", "pays"),
    [
        (0.0, "0%", "drafts pay where more than 0%"),
        (0.28, "28%", "drafts pay where more than 28%"),
        (0.9, "90%", "drafts pay where more than 90%"),
        (1.2, "120%", "no draft pays here"),
    ],
)
def test_the_cost_of_checking_a_draft_is_stated_as_the_acceptance_that_pays_for_it(
    further: float, share: str, pays: str
) -> None:
    """A pass of 1.84 x with the words "checking drafts costs little" contradicted itself."""
    result = forecast([Tried("a", agreeing({"code": 0.3}), machine(0.1, further), {}, 1000)])
    (sentence,) = (str(part) for part in doctor_report(result, "adaptspec serve") if "A pass of 4 tokens" in str(part))
    assert f"takes {1 + 3 * further:.2f} x as long" in sentence
    assert f"each drafted token adds {share} of a pass" in sentence
    assert pays in sentence


def test_drafts_that_cannot_be_used_are_left_out_with_the_reason() -> None:
    """The others are tried all the same."""
    good = Tried("b", agreeing({"code": 0.9}), machine(0.1), {}, 1000)
    result = forecast([ConfigError("no room for it"), good])
    assert result["unusable"] == {"a": "no room for it"}
    report = doctor_report(result, "adaptspec serve")
    assert "left out: a: no room for it" in report
    (table,) = (part for part in report if isinstance(part, Table))
    assert [row[0] for row in table.rows][1:] == ["draft-model", "draft-model + ngram", "ngram"]


@pytest.mark.parametrize(("faster", "width"), [(1.2, 8), (1.03, 1)])
def test_drafts_branch_where_that_earns_more_than_noise(faster: float, width: int) -> None:
    """As much more than chains as was seen; both are in the table."""
    tried = Tried("a", agreeing({"code": 0.6, "json": 0.6}), machine(0.1), {}, 1000, faster)
    result = forecast([tried])
    chains, trees = (row for row in result["drafters"] if row["drafters"] == ["draft-model", "ngram"])  # type: ignore[attr-defined]
    assert trees["mean"] == pytest.approx(faster * chains["mean"])
    assert result["best"]["width"] == width  # type: ignore[index]
    assert parse_policy_spec(str(result["policy"]), "policy").spec.max_width == width
    (table,) = (part for part in doctor_report(result, "adaptspec serve") if isinstance(part, Table))
    assert "draft-model + ngram, branching" in [row[0] for row in table.rows]


@pytest.mark.parametrize(("agrees", "draft"), [(0.2, None), (0.9, "quantized:int8")])
def test_a_draft_is_recommended_only_if_it_earns_clearly_more_than_lookup(agrees: float, draft: str | None) -> None:
    """A draft that earned one percent more than lookup was recommended, for all the memory it takes."""
    tried = Tried("quantized:int8", agreeing({"code": agrees, "json": agrees}), machine(0.05), {}, 1000)
    result = forecast([tried])
    means = {tuple(row["drafters"]): row["mean"] for row in result["drafters"]}  # type: ignore[attr-defined]
    assert means["draft-model", "ngram"] > means["ngram",]  # so the largest figure alone does not decide
    assert result["best"]["draft"] == draft  # type: ignore[index]


@given(
    st.floats(1.03, 3.0),
    st.lists(st.tuples(st.floats(0.5, 1.09), st.integers(1, 10**9), st.sampled_from([1, 8])), max_size=6),
)
def test_heavier_drafts_within_the_error_of_forecasts_never_replace_a_lighter_one(
    mean: float, heavier: list[tuple[float, int, int]]
) -> None:
    """In whatever order they were tried; one that earns twice as much always does."""
    tried = Tried(None, agreeing({"code": 0.0}), machine(1.0), {}, 10)
    light = {"drafters": ["ngram"], "memory": 0, "width": 1, "mean": mean}
    rows = [
        {"drafters": ["draft-model", "ngram"], "memory": memory, "width": width, "mean": mean * times}
        for times, memory, width in heavier
    ]
    for order in ([light, *rows], [*rows, light]):
        assert recommended([(row, tried) for row in order])[0] is light
        twice = {"drafters": ["draft-model"], "memory": 10**9, "width": 1, "mean": 2.2 * mean}
        assert recommended([(row, tried) for row in [*order, twice]])[0] is twice


def test_a_draft_that_pays_replaces_lookup_that_does_not() -> None:
    """However small its gain: else the verdict would be "No" above a row that is faster than plain decoding."""
    tried = Tried(None, agreeing({"code": 0.0}), machine(1.0), {}, 10)
    lookup = {"drafters": ["ngram"], "memory": 0, "width": 1, "mean": 0.97}
    draft = {"drafters": ["draft-model", "ngram"], "memory": 10**9, "width": 1, "mean": 1.06}
    assert recommended([(lookup, tried), (draft, tried)])[0] is draft
