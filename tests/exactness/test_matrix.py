"""The exactness matrix: whatever drafts, however deep and for whom, an answer is that of plain decoding."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.language.library import shipped_policies
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.request import SpeculationParams
from tests.exactness import dictated
from tests.exactness.covering import Values, covering
from tests.exactness.drafters import DRAFTERS
from tests.exactness.harness import (
    KINDS,
    OVERLAPPING,
    SCRIPTS,
    SHAPES,
    TOKENS,
    Case,
    Script,
    assert_accounts,
    assert_plain_answers_agree,
    assert_same,
    check,
    hold,
    plain,
    requests,
    run,
    serve,
)
from tests.exactness.worlds import Worlds
from tests.fakes import TableRunner, plain_greedy
from tests.gpu.pretend import PretendCuda

WHOLE = pytest.mark.whole

AXES: dict[str, tuple[Any, ...]] = {
    "drafter": tuple(DRAFTERS),
    "runtime": ("lean", "bfloat16", "float16", "paged", "transformers", "llama.cpp", "gpu-on-cpu"),
    "shape": SHAPES,
    "method": ("coupled", "rejection", "block"),
    "request": tuple(KINDS),
    "temperature": (0.0, 0.8),
    "script": tuple(SCRIPTS),
    "depths": ("0", "3", "7", "any"),
    "chunk": (5, 16, 512),
    "prefix": ("none", "hit"),
}
OWN = [name for name, kind in DRAFTERS.items() if kind.is_own]
BUNDLED = [name for name, kind in DRAFTERS.items() if kind.target == "bundled"]
OF_LLAMAS = [*OWN, *(name for name, kind in DRAFTERS.items() if kind.target != "target"), "wider-vocabulary"]
LEAN = ("lean", "bfloat16", "float16")
OF_LLAMA_CPP = ("draft-model", "copy", "ngram", "counts", "prediction")
GROWING = [name for name, kind in DRAFTERS.items() if kind.grows]
WEIGHING = ("rejection", "block")
# What does not go together, and why. Values of a case may be missing: None.
RULES: dict[str, Callable[[Values], bool]] = {
    "drawn texts differ under these methods, whose distribution is tested elsewhere": (
        lambda case: case.get("method") in WEIGHING and bool(case.get("temperature"))
    ),
    "only coupled judges trees": (
        lambda case: case.get("method") in WEIGHING and case.get("shape", "chain") != "chain"
    ),
    "drafts through text are chains": (
        lambda case: case.get("drafter") == "through-text" and case.get("shape") in ("comb", "beam", "union")
    ),
    "only models draft on from nodes off the main chain, and no head does": (
        lambda case: case.get("shape") == "beam" and case.get("drafter", "draft-model") not in GROWING
    ),
    "lookahead learns in trees only": (lambda case: (case.get("drafter"), case.get("shape")) == ("lookahead", "chain")),
    "parts of a target, and models of several vocabularies, are Llama-like here": (
        lambda case: case.get("runtime") == "transformers" and case.get("drafter") in OF_LLAMAS
    ),
    "llama.cpp runs chains, no parts of a target and no heads": (
        lambda case: (
            case.get("runtime") == "llama.cpp"
            and (case.get("shape", "chain") != "chain" or case.get("drafter") not in (*OF_LLAMA_CPP, None))
        )
    ),
    "a row of this cache is one block: rows wait, and none gives way": (
        lambda case: case.get("script") == "preempted" and case.get("runtime") in (*LEAN, "llama.cpp", "cuda")
    ),
    "a round of a device is launched whole: its faults are tested on their own": (
        lambda case: case.get("script") == "failing" and case.get("runtime") in OVERLAPPING
    ),
    "no second row finds room beside one that fills the context": (
        lambda case: (case.get("script"), case.get("request")) == ("preempted", "context-limit")
    ),
    "under penalties a random model repeats nothing, and n-grams of its own text find nothing": (
        lambda case: (
            (case.get("drafter"), case.get("request")) == ("ngram", "penalties")
            and case.get("runtime", "table") != "table"
        )
    ),
    "a text of the bundled model takes seconds in bfloat16 on a CPU": (
        lambda case: case.get("runtime") in ("gpu-on-cpu",) and case.get("drafter") in BUNDLED
    ),
}


def allowed(case: Values) -> bool:
    """Whether no rule is against the values, as far as they are given."""
    return not any(rule(case) for rule in RULES.values())


# Fewer values, for runtimes whose cases take a second or more.
FEWER = AXES | {
    "request": ("plain", "penalties", "lark", "logprobs"),
    "script": ("batch", "churn"),
    "depths": ("3", "any"),
    "chunk": (5, 512),
}
ON_PRETENDED = FEWER | {
    "drafter": ("draft-model", "wider-vocabulary", "through-text", "ngram", "lookahead", "eagle3.1", "dflash"),
    "runtime": ("pretend",),
}


def cases(axes: Mapping[str, Sequence[Any]], *marks: pytest.MarkDecorator, strength: int = 2) -> list[Any]:
    """Cases in which every two features meet, or (1) each feature is in one."""
    found = [Case(**values) for values in covering(axes, allowed, strength)]
    return [pytest.param(case, id=case.id, marks=marks) for case in found]


# Cases that once failed, and that the array of pairs may leave out.
KNOWN = [
    # Side nodes took the places of a chain that a stop rule had ended, and were not masked.
    Case("gpu-on-cpu", shape="beam", request="lark", script="batch", depths="3", chunk=512),
    # A tree of more nodes than a GPU's attention has bits for.
    Case("gpu-on-cpu", shape="comb", script="alone", depths="7", chunk=512, width=16, nodes=128),
]
CASES = [
    *(pytest.param(case, id=case.id) for case in KNOWN),
    *cases(AXES),
    *cases(ON_PRETENDED, WHOLE, strength=1),
    *cases(ON_PRETENDED | {"request": tuple(KINDS)}, pytest.mark.nightly),
    *(cases(AXES | {"runtime": ("cuda",)}, pytest.mark.gpu) if torch.cuda.is_available() else ()),
]
ON_TABLES = AXES | {
    "drafter": (
        "draft-model",
        "copy",
        "wider-vocabulary",
        "narrower-vocabulary",
        "ngram",
        "counts",
        "lookahead",
        "prediction",
    ),
    "runtime": ("table",),
    "chunk": (3, 8, 512),
    "width": (2, 4, 6),
    "nodes": (1, 4, 16, 64),
}


def _drawn(**kept: tuple[object, ...]) -> st.SearchStrategy[Values]:
    axes = {name: st.sampled_from(values) for name, values in (ON_TABLES | kept).items()}
    return st.fixed_dictionaries(axes | {"seed": st.integers(0, 999)}).filter(allowed)


@settings(max_examples=100)
@given(_drawn(method=("coupled",)) | _drawn(shape=("chain",), temperature=(0.0,)))
def test_answers_on_tables_are_those_of_plain_decoding(worlds: Worlds, values: Values) -> None:
    """Any case whatever: models of a few lines take a few milliseconds."""
    check(Case(**values), worlds)


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_plain_decoding(worlds: Worlds, case: Case) -> None:
    """Every two features together at least once."""
    with PretendCuda() if case.runtime == "pretend" else nullcontext():
        check(case, worlds)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runtime", ["paged", pytest.param("pretend", marks=pytest.mark.nightly)])
def test_runtimes_agree(worlds: Worlds, runtime: str, kind: str) -> None:
    """Without drafts, in float32: what runs a model decides nothing."""
    with PretendCuda() if runtime == "pretend" else nullcontext():
        assert_plain_answers_agree(worlds, runtime, kind)


@pytest.mark.parametrize("runtime", ["lean", "gpu-on-cpu"])
@pytest.mark.parametrize("policy", shipped_policies(), ids=lambda path: path.stem)
def test_answers_under_every_shipped_policy_are_those_of_plain_decoding(
    worlds: Worlds, policy: Path, runtime: str
) -> None:
    """Drawn and greedy rows that come and go."""
    world, script = worlds.of(runtime, "draft-model"), SCRIPTS["churn"]
    case = Case(runtime, request="penalties", temperature=0.8, script="churn", chunk=16)
    asked = requests(case, world, script)
    result = serve(case, world, script, asked, [load_policy_spec(policy)])
    hold(result, world, script)
    assert any(one.stats.drafted for one in result.done.values()) == (policy.stem != "off")


@pytest.mark.parametrize("seed", range(8))
def test_plain_decoding_is_what_the_table_says(worlds: Worlds, seed: int) -> None:
    """What all cases are held to is itself held to a loop of two lines."""
    world, case = worlds.of("table", "draft-model"), Case(seed=seed)
    assert isinstance(world.target, TableRunner)
    for request in requests(case, world, SCRIPTS["batch"]):
        if request.sampling.greedy:  # the loop ends at an end token
            found, expected = plain(world, request).tokens, plain_greedy(world.target, list(request.prompt), TOKENS)
            assert list(found[: len(expected)]) == expected


MIXED = {
    "trees": Case(shape="union", depths="any"),
    "chains": Case(method="rejection", depths="3"),
    "blocks": Case(method="block", depths="any"),
    "off": Case(depths="0"),
}


@settings(max_examples=30)
@given(seed=st.integers(0, 999), temperature=st.sampled_from((0.0, 0.8)))
def test_policies_and_methods_share_a_batch(worlds: Worlds, seed: int, temperature: float) -> None:
    """Rows of trees, of chains that other methods weigh, and of no drafts: only drawn texts of those methods differ."""
    world, script = worlds.of("table", "draft-model"), Script(requests=8)
    case = Case(temperature=temperature, seed=seed)
    specs = [dictated.policy(replace(one, seed=seed).policy, name) for name, one in MIXED.items()]
    names = itertools.cycle(MIXED)
    asked = [replace(one, speculation=SpeculationParams(policy=next(names))) for one in requests(case, world, script)]
    result = serve(case, world, script, asked, specs)
    for request in asked:
        own, name = result.done[request.id], request.speculation.policy
        assert own.stats.policy == name
        assert bool(own.stats.drafted) == (name != "off")
        if request.sampling.greedy or name not in ("chains", "blocks"):
            assert_same(own, plain(world, request))
    assert_accounts(result, whole=True)
    assert world.is_empty


@pytest.mark.whole
@pytest.mark.parametrize("shape", SHAPES)
def test_many_texts_in_bfloat16(worlds: Worlds, shape: str) -> None:
    """The last bit decides many ties: neither depth nor batch, cuts of prompts nor branches may change it."""
    script = Script(requests=40, rows=16, tokens=12)
    case = Case("gpu-on-cpu", "bundled", shape=shape, script="batch", depths="any", chunk=256, temperature=0.8)
    world = worlds.of("gpu-on-cpu", "bundled", rows=16)
    result = run(case, world, script)
    hold(result, world, script)
    assert sum(one.stats.accepted for one in result.done.values()) > 40
