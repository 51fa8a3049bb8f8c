"""A policy that names no drafters uses all that the server has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from adaptspec.control.cost_model import CostModel
from adaptspec.control.host import Host, narrow
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import build_policy, load_policy_spec, parse_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.engine.build import assemble
from adaptspec.engine.core import EngineLimits
from adaptspec.errors import PolicyError
from adaptspec.request import Request, SamplingParams
from tests.engine.conftest import run
from tests.engine.policies import COSTS
from tests.fakes import TableRunner

HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\nspec:\n"
GOODPUT, UCB = "{algorithm: goodput}", "{algorithm: ucb}"
STATIC = "{algorithm: static, depth: 2}"
WITH_MODEL = ("draft-model", "ngram", "counts", "lookahead")
WITHOUT = ("ngram", "counts", "lookahead")


def read(choose: str, here: Sequence[str] | None, more: str = "") -> PolicySpec:
    return parse_policy_spec(f"{HEAD}  choose: {choose}\n{more}", "p", available=here)


@pytest.mark.parametrize(
    ("choose", "here", "expected"),
    [
        (GOODPUT, WITH_MODEL, ("draft-model", "ngram", "counts")),
        (GOODPUT, WITHOUT, ("ngram", "counts")),
        (STATIC, WITH_MODEL, ("draft-model",)),
        (STATIC, WITHOUT, ("ngram",)),
        (UCB, WITHOUT, ("ngram",)),
        ("{algorithm: ucb, arms: [{depth: 2, drafter: counts}, {depth: 0}]}", WITHOUT, ("ngram", "counts")),
        (GOODPUT, ("lookahead",), ()),
    ],
)
def test_drafters_default_to_those_of_the_server(choose: str, here: Sequence[str], expected: Sequence[str]) -> None:
    spec = read(choose, here)
    assert spec.drafters == expected
    policy = build_policy(spec, CostModel(COSTS), 2)
    assert tuple(policy.wanted) == expected
    assert (policy.max_depth > 0) == bool(expected)


def test_drafts_branch_only_with_a_drafter_that_prices_branches() -> None:
    assert read(GOODPUT, WITH_MODEL, "  max-width: 4\n").spec.max_width == 4
    assert read(GOODPUT, WITHOUT, "  max-width: 4\n").spec.max_width == 1


def test_a_missing_drafter_is_answered_with_what_to_write() -> None:
    with pytest.raises(PolicyError) as refused:
        read(GOODPUT, WITHOUT, "  drafters: [draft-model, ngram]\n")
    assert str(refused.value) == (
        "p:6:14: spec.drafters.0: drafts with draft-model, which this server does not have; this server has: ngram, "
        "counts, lookahead; write `drafters: [ngram, counts]` or leave `drafters` out; or start it with a draft model "
        "(--draft DIR)"
    )
    with pytest.raises(PolicyError, match=r"write `drafters: \[ngram\]` or leave"):
        read(STATIC, WITHOUT, "  drafters: [draft-model]\n")
    with pytest.raises(PolicyError, match=r"^p:5:\d+: spec.choose.arms.0.drafter: drafts with draft-model"):
        read("{algorithm: ucb, arms: [{depth: 2, drafter: draft-model}, {depth: 0}]}", WITHOUT)
    with pytest.raises(PolicyError, match=r"^p:6:\d+: spec.when.0.use: slo drafts with draft-model.*has: ngram"):
        read(GOODPUT, WITHOUT, "  when: [{prompt-tokens: {at-least: 2}, use: slo}]\n")


@pytest.mark.parametrize(
    "spec",
    [
        f"{HEAD}  choose: {GOODPUT}\n  tiers: [off, 1, 3]\n  stop: {{rule: marginal-goodput}}\n"
        "  tasks: {code: {tiers: [off, 1]}, story: {max-depth: 2}}\n  guard: {never-slower: {}, max-batch-size: 4}\n",
        f"{HEAD}  choose: {UCB}\n",
        f"{HEAD}  choose: {STATIC}\n  max-width: 2\n  draft-temperature: {{mode: dynamic, range: [0.8, 1.2]}}\n",
        f"{HEAD}  choose: {{algorithm: slo, time-per-output-token-ms: 40}}\n",
    ],
)
def test_an_engine_without_drafters_decodes_plainly(spec: str, tokenizer: PreTrainedTokenizerFast) -> None:
    target = TableRunner(context=64)
    core = assemble(
        target,
        [],
        tokenizer,
        specs=[parse_policy_spec(spec)],
        costs=CostModel(COSTS),
        limits=EngineLimits(max_rows=2),
    )
    done = run(core, [Request("r", (5, 6, 7), SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True))])["r"]
    tokens = [5, 6, 7]
    for _ in range(8):
        tokens.append(int(target.logits(tokens).argmax()))
    assert list(done.tokens) == tokens[3:]
    assert done.stats.drafted == 0


def test_a_host_drafts_with_its_own_method() -> None:
    for method in ("draft-model", "ngram"):
        spec, notes = narrow(read(GOODPUT, None), Host("vLLM", {method: "its own"}, 8))
        assert spec.drafters == ("draft-model",), "what policies call the method of any host"
        assert not notes


def test_files_are_found_next_to_the_file_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere = tmp_path / "policies", tmp_path / "elsewhere"
    for path in (folder, elsewhere):
        path.mkdir()
        (path / "promise.yaml").write_text(find_policy("static-3").read_text().replace("static-3", path.name))
    outer = folder / "outer.yaml"
    outer.write_text(f"{HEAD}  choose: {GOODPUT}\n  when: [{{prompt-tokens: {{at-least: 2}}, use: promise.yaml}}]\n")
    monkeypatch.chdir(elsewhere)
    for name in (outer, Path("../policies/outer.yaml")):
        assert load_policy_spec(name).used["promise.yaml"].name == "policies"
    (folder / "promise.yaml").unlink()
    with pytest.raises(PolicyError, match=rf"outer.yaml:6:\d+: .*{folder / 'promise.yaml'}: no such file"):
        load_policy_spec(outer)
    assert parse_policy_spec(outer.read_text()).used["promise.yaml"].name == "elsewhere", "text has no folder"
