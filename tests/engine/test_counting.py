"""Drafting by counts changes no output, whatever was served before, alone and beside others, chains and trees."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.control.language.build import parse_policy_spec
from adaptspec.drafting.counts import CountsDrafter
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.task_methods import TaskMethods
from adaptspec.request import Request, SamplingParams
from tests.engine.branching import Branched, Shape
from tests.engine.conftest import Dictated, Notes, make_core, run
from tests.engine.policies import HEAD
from tests.fakes import TableRunner

PARAMS = st.sampled_from(
    [
        {"temperature": 0.0},
        {"temperature": 0.9},
        {"temperature": 1.4, "top_k": 5},
        {"temperature": 0.9, "presence_penalty": 0.7, "min_tokens": 8},
    ]
)
SHAPES = st.builds(Shape, width=st.integers(1, 4), nodes=st.sampled_from([0, 1, 4, 16]), union=st.booleans())
SCOPES = st.sampled_from(["none", "key", "server"])


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(2, 23), min_size=1, max_size=20), min_size=1, max_size=8),
    shape=SHAPES,
    params=PARAMS,
    history=SCOPES,
)
def test_text_is_plain_decodings(
    tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]], shape: Shape, params: dict[str, Any], history: Any
) -> None:
    """Requests are served twice, so that the second time drafts come from what was served the first."""
    requests = [
        Request(f"{turn}{i}", tuple(prompt), SamplingParams(max_tokens=24, seed=i, **params), key="ab"[i % 2])
        for turn in "xy"
        for i, prompt in enumerate(prompts)
    ]
    plain = make_core(tokenizer, TableRunner(), [], {"p": (Dictated((), lambda n, size: [0] * size), "coupled")})
    notes = Notes()
    drafters: list[Drafter] = [CountsDrafter(24, (1,)), DraftModelDrafter(TableRunner(seed=1, blend=0.8), (1,))]
    policy = Branched(("counts", "draft-model"), lambda n, size: [(n + i) % 6 for i in range(size)], shape)
    limits = EngineLimits(max_rows=8, prefill_tokens=8)
    core = make_core(tokenizer, TableRunner(), drafters, {"p": (policy, "coupled")}, sinks=[notes], limits=limits)
    usual = core.methods["p"]
    core.methods["p"] = TaskMethods(usual.usual, history=history)
    done, expected = run(core, requests), run(plain, requests)
    for request in requests:
        assert done[request.id].tokens == expected[request.id].tokens


def test_history_pays_where_it_may_be_used(tokenizer: PreTrainedTokenizerFast) -> None:
    """The same request again: its key's own is drafted whole, another key's not."""
    accepted = {}
    for history in ("none", "key", "server"):
        notes = Notes()
        policy = Dictated(("counts",), lambda n, size: [5] * size)
        core = make_core(tokenizer, TableRunner(), [CountsDrafter(24)], {"p": (policy, "coupled")}, sinks=[notes])
        core.methods["p"] = TaskMethods(core.methods["p"].usual, history=history)
        asked = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
        for name in ("first", "own", "other"):
            key = "b" if name == "other" else "a"
            run(core, [Request(name, (7, 9, 11), asked, key=key)])
        stats = {name: completion.stats for name, completion in notes.completions.items()}
        accepted[history] = {name: stats[name].accepted for name in stats}
    none, key, server = accepted["none"], accepted["key"], accepted["server"]
    assert none["own"] == none["other"] == none["first"] == key["other"]
    assert key["own"] > none["own"]
    assert server["other"] > none["other"]


def test_a_policy_says_whose_text_it_drafts_from() -> None:
    text = HEAD % ("p", "x") + "  choose: {algorithm: goodput}\n  drafters: [counts]\n"
    scopes = {
        history: [TaskMethods.of(parse_policy_spec(text + more)).scope(key) for key in (None, "a", "b")]
        for history, more in (("", ""), *((name, f"  history: {name}\n") for name in ("none", "key", "server")))
    }
    assert scopes["none"] == [None] * 3
    assert scopes["key"] == scopes[""] == [None, "key a", "key b"]
    assert scopes["server"] == ["server"] * 3
