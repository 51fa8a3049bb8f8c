"""A drafter that one line registers is named in policies, measured, chosen and judged like those that ship."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptspec.config import EngineConfig
from adaptspec.control.language.loader import parse_policy_spec
from adaptspec.control.language.spec import schema
from adaptspec.drafters import DRAFTERS, Entry, Kind
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Loaded
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.engine.build import build
from adaptspec.errors import PolicyError
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.loading import load_model
from adaptspec.request import Request, SamplingParams, SpeculationParams
from tests.engine.conftest import Notes, run

HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: three}\n"


PLACES: list[str] = []  # where the toy model is


class ToyModel(DraftModelDrafter):
    """A model of its own choice: here the target's weights once more, so that every guess is right."""

    name = "toy-model"

    @classmethod
    def make(cls, loaded: Loaded) -> ToyModel:
        return cls(load_model(PLACES[0]).runner(CacheLimits(2)), loaded.eos_token_ids)


class ToyLookup(LookupDrafter):
    """A lookup of its own name."""

    name = "toy-lookup"

    @classmethod
    def make(cls, loaded: Loaded) -> ToyLookup:
        return cls(loaded.target.info.vocab_size, loaded.eos_token_ids, name=cls.name)


@pytest.fixture
def _toys(monkeypatch: pytest.MonkeyPatch, target_path: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    PLACES[:] = [str(target_path)]
    for toy, kind in ((ToyModel, Kind.MODEL), (ToyLookup, Kind.MODEL_FREE)):
        monkeypatch.setitem(DRAFTERS, toy.name, Entry(toy.name, kind, f"{__name__}:{toy.__name__}.make"))


@pytest.mark.usefixtures("_toys")
def test_goodput_chooses_among_three_drafters(target_path: Path, draft_path: Path, tmp_path: Path) -> None:
    """Nothing else was touched for two of them: each has its turn, and the text stays the target's."""
    file = tmp_path / "three.yaml"
    file.write_text(f"{HEAD}spec: {{choose: {{algorithm: goodput}}, drafters: [draft-model, toy-model, toy-lookup]}}\n")
    notes = Notes()
    config = EngineConfig(
        model=str(target_path), draft=str(draft_path), policy=(str(file),), max_num_seqs=2, detect_tasks=False
    )
    built = build(config, [notes])
    names = [drafter.name for drafter in built.drafters]
    assert names == ["draft-model", "ngram", "counts", "lookahead", "toy-model", "toy-lookup"]
    assert set(built.costs.profile.drafters) == {"draft-model", "toy-model"}
    asked = [_request(f"{i}") for i in range(6)]
    drafted = run(built.core, asked)
    by = {name: sum(int(r.drafted[r.drafter == i].sum()) for r in notes.records) for i, name in enumerate(names)}
    right = {name: sum(int(r.accepted[r.drafter == i].sum()) for r in notes.records) for i, name in enumerate(names)}
    assert by["draft-model"] > 0, "tried at least"
    assert right["toy-model"] == by["toy-model"] > 0, "as dear as the target, so it is only tried"
    assert by["toy-lookup"] > 0
    assert by["ngram"] == by["counts"] == 0, "the policy does not name them"
    plain = run(built.core, [_request(f"{i}", policy="off") for i in range(6)])
    assert {name: done.tokens for name, done in drafted.items()} == {name: done.tokens for name, done in plain.items()}


def _request(name: str, **wishes: Any) -> Request:
    sampling = SamplingParams(max_tokens=96, temperature=0.0, ignore_eos=True)
    return Request(name, tuple(range(40, 52)), sampling, SpeculationParams(**wishes))


@pytest.mark.usefixtures("_toys")
def test_policies_and_their_schema_know_what_is_registered() -> None:
    names = schema()["$defs"]["BodySpec"]["properties"]["drafters"]["anyOf"][0]["items"]["enum"]
    assert names == ["draft-model", "ngram", "counts", "lookahead", "toy-model", "toy-lookup"]
    text = HEAD + "spec:\n  choose: {algorithm: goodput}\n  drafters: [ngram, toy-modl]\n"
    with pytest.raises(PolicyError, match=r"^p:6:21: spec.drafters.1: 'toy-modl' is not supported .*'toy-model'"):
        parse_policy_spec(text, "p")


def test_an_unavailable_drafter_is_reported_at_its_line() -> None:
    text = HEAD + "spec:\n  choose: {algorithm: goodput}\n  drafters: [ngram, draft-model]\n"
    parse_policy_spec(text, "p", available=("ngram", "draft-model"))
    with pytest.raises(
        PolicyError, match=r"^p:6:21: spec.drafters.1: drafts with draft-model.*has: ngram;.*--draft DIR\)$"
    ):
        parse_policy_spec(text, "p", available=("ngram",))
    assert (
        parse_policy_spec(text.replace("goodput", "static, depth: 0").replace("ngram, ", ""), "p", available=()).needed
        == {}
    )
