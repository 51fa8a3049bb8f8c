"""The exactness matrix: whatever drafts, however deep and for whom, an answer is that of plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exactness.covering import Values, covering
from tests.exactness.drafters import DRAFTERS
from tests.exactness.harness import DEPTHS, KINDS, OVERLAPPING, SCRIPTS, SHAPES, Case, check
from tests.exactness.worlds import Worlds

AXES: dict[str, tuple[Any, ...]] = {
    "drafter": tuple(DRAFTERS),
    "runtime": ("lean", "paged", "transformers", "device", "strict"),
    "shape": tuple(SHAPES),
    "method": ("coupled", "rejection", "block"),
    "request": tuple(KINDS),
    "temperature": (0.0, 0.8),
    "script": tuple(SCRIPTS),
    "depths": tuple(DEPTHS),
    "chunk": (5, 16, 512),
}
OWN = [name for name, kind in DRAFTERS.items() if kind.is_own]
BUNDLED = [name for name, kind in DRAFTERS.items() if kind.target == "bundled"]
OF_LLAMAS = [*OWN, *(name for name, kind in DRAFTERS.items() if kind.target != "target"), "wider-vocabulary"]
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
    "only models draft on from nodes off the main chain, and no head does": (
        lambda case: case.get("shape") == "beam" and case.get("drafter", "draft-model") not in GROWING
    ),
    "lookahead learns in trees only": (lambda case: (case.get("drafter"), case.get("shape")) == ("lookahead", "chain")),
    "parts of a target, and models of several vocabularies, are Llama-like here": (
        lambda case: case.get("runtime") == "transformers" and case.get("drafter") in OF_LLAMAS
    ),
    "a row of this cache is one block: rows wait, and none gives way": (
        lambda case: (case.get("runtime"), case.get("script")) == ("lean", "preempted")
    ),
    "a round of a device is launched whole: its faults are tested on their own": (
        lambda case: case.get("script") == "failing" and case.get("runtime") in OVERLAPPING
    ),
    "no second row finds room beside one that fills the context": (
        lambda case: (case.get("script"), case.get("request")) == ("preempted", "context-limit")
    ),
    "a text of the bundled model takes seconds in bfloat16 on a CPU": (
        lambda case: case.get("runtime") in ("device", "strict") and case.get("drafter") in BUNDLED
    ),
}


def allowed(case: Values) -> bool:
    """Whether no rule is against the values, as far as they are given."""
    return not any(rule(case) for rule in RULES.values())


CASES = [Case(**values) for values in covering(AXES, allowed)]
ON_TABLES = AXES | {
    "drafter": ("draft-model", "wider-vocabulary", "narrower-vocabulary", "ngram", "counts", "lookahead", "prediction"),
    "runtime": ("table",),
    "chunk": (3, 8, 512),
}


def _drawn(**kept: tuple[object, ...]) -> st.SearchStrategy[Values]:
    axes = {name: st.sampled_from(values) for name, values in (ON_TABLES | kept).items()}
    return st.fixed_dictionaries(axes | {"seed": st.integers(0, 999)}).filter(allowed)


@settings(max_examples=200)
@given(_drawn(method=("coupled",)) | _drawn(shape=("chain",), temperature=(0.0,)))
def test_answers_on_tables_are_those_of_plain_decoding(worlds: Worlds, values: Values) -> None:
    """Any case whatever: models of a few lines take a few milliseconds."""
    check(Case(**values), worlds)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_answers_are_those_of_plain_decoding(worlds: Worlds, case: Case) -> None:
    """Every two features together at least once."""
    check(case, worlds)
