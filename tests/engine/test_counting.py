"""Drafting by counts changes no output, whatever was served before, alone and beside others, chains and trees."""

from __future__ import annotations

from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.control.language.build import parse_policy_spec
from adaptspec.drafting.counts import CountsDrafter
from adaptspec.engine.task_methods import TaskMethods
from adaptspec.request import Request, SamplingParams
from tests.engine.branching import Shape
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
