"""The doctor: forecasts follow from tape and costs, the verdict from the forecasts, and the policy is one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.bench.doctor import doctor_report, recommended, run_doctor
from adaptspec.bench.try_drafts import Tried
from adaptspec.control.language.build import parse_policy_spec
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.errors import ConfigError
from adaptspec.simulation.cost_profiles import Curve, DraftCosts, MachineCosts
from adaptspec.simulation.tape import Tape
from adaptspec.tables import Table
from tests.policies.tapes import made_tape

CONFIG = EngineConfig("target")


def machine(step: float, further: float = 0.0) -> MachineCosts:
    """A pass takes a second, `further` seconds for each further token."""
    drafters = {
        "draft-model": DraftCosts(Curve((1.0, 2.0), (step, step)), catch_up_per_token=step / 100),
        "ngram": DraftCosts(per_row=1e-5),
    }
    return MachineCosts("tested", lambda rows, tokens: rows + further * (tokens - rows), drafters)


def agreeing(tasks: dict[str, float]) -> Tape:
    """Half of the tokens of lookup are wrong where it finds some; the draft agrees as often as told."""
    return made_tape(tasks, count=2, length=40)


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
    return run_doctor(CONFIG, list(answers), {}, 64, told.append, attempt=answer)


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


@pytest.mark.parametrize(("agrees", "draft"), [(0.05, None), (0.9, "quantized:int8")])
def test_a_draft_is_recommended_only_if_it_earns_clearly_more_than_lookup(agrees: float, draft: str | None) -> None:
    """A draft that earned one percent more than lookup was recommended, for all the memory it takes."""
    tried = Tried("quantized:int8", agreeing({"code": agrees, "json": agrees}), machine(0.001), {}, 1000)
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
