"""Two processes, each with half of the target: answers are those of plain decoding, and of one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.exactness.harness import KINDS, Case, assert_plain_answers_agree, check
from tests.exactness.test_matrix import FEWER, cases
from tests.exactness.worlds import Worlds

pytestmark = pytest.mark.whole
AXES = FEWER | {"drafter": ("draft-model", "ngram", "eagle3.1"), "runtime": ("ranks",)}


@pytest.fixture(scope="module", autouse=True)
def _end_ranks(worlds: Worlds) -> Iterator[None]:
    """A process runs one model on several devices at a time: other tests may want to."""
    yield
    worlds.close()


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_agree_with_one_process(worlds: Worlds, kind: str) -> None:
    """Without drafts, in float32."""
    assert_plain_answers_agree(worlds, "ranks", kind)


@pytest.mark.parametrize("case", sorted(cases(AXES), key=lambda case: str(case.id).startswith("eagle")))
def test_answers_are_those_of_plain_decoding(worlds: Worlds, case: Case) -> None:
    """Every two features together at least once."""
    check(case, worlds)
