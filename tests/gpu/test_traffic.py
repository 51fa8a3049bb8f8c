"""What a round costs on a device besides kernels: copies, times that the host waits, and graphs that are replayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from adaptspec.config import EngineConfig
from adaptspec.engine.build import Built
from adaptspec.request import Grammar, SamplingParams
from adaptspec.results import FinishReason
from tests.exactness.harness import Case
from tests.gpu.engines import CHAINS, COMBS, DRAWN, GREEDY, PLAIN, RULED, core_of, on_both, requests
from tests.gpu.pretend import PretendCuda

pytestmark = pytest.mark.whole
ROUNDS = 4
LETTERS = Grammar("start: /[a-z ]{9,}/", "lark")


class Traffic(NamedTuple):
    """Per round, at most. A copy to the host that is waited for is one download and one wait."""

    uploads: float
    downloads: float
    waits: float
    replays: float


# A pass is one upload and two replays (layers and LM head), a choice one upload and one download. The host waits for
# the tokens of the round, and for those of each draft step, which it reads while the next one runs; then for the two
# times of the round, which are there by then.
ROUND = Traffic(uploads=2, downloads=1, waits=3, replays=2)
STEP = Traffic(uploads=2, downloads=1, waits=1, replays=2)


def of(steps: int, **more: float) -> Traffic:
    """The traffic of a round with so many draft steps, and what else it takes."""
    counts = {name: count + steps * getattr(STEP, name) for name, count in ROUND._asdict().items()}
    return Traffic(**{name: count + more.get(name, 0) for name, count in counts.items()})


CASES: dict[str, tuple[Case, SamplingParams, Traffic]] = {
    "plain": (PLAIN, GREEDY, of(0)),
    "plain, with rules": (PLAIN, RULED, of(0, uploads=1)),  # tokens that penalties count
    "depth 3": (CHAINS, GREEDY, of(3)),
    "depth 3, top-p": (CHAINS, replace(DRAWN, top_p=0.9), of(3)),
    "depth 3, with rules": (CHAINS, RULED, of(3, uploads=1)),
    "comb": (COMBS, GREEDY, of(3, uploads=1)),  # moves of kept tokens
    "logprobs": (CHAINS, replace(DRAWN, logprobs=2), of(3)),
    "grammar": (CHAINS, replace(DRAWN, ignore_eos=False, grammar=LETTERS), of(3)),
}


@pytest.fixture(scope="module")
def cuda() -> Iterator[PretendCuda]:
    with PretendCuda() as device:
        yield device


@pytest.fixture(scope="module")
def device(cuda: PretendCuda) -> Built:
    """The bundled models on the device."""
    return on_both(EngineConfig(policy=("static-3",)))[1]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_traffic_of_a_round(device: Built, cuda: PretendCuda, name: str, rows: int) -> None:
    """The same for one row and for three, but for log-probabilities, which rows take one by one."""
    case, params, most = CASES[name]
    others = rows if params.logprobs else 0
    core, notes = core_of(device, case, eager=False)
    for request in requests(device, *[replace(params, max_tokens=64)] * rows):
        core.add(request)
    for _ in range(5):  # prompts are read
        core.step()
    cuda.clear()
    notes.records.clear()
    for _ in range(ROUNDS):
        core.step()
    counts = (cuda.uploads, cuda.downloads, cuda.syncs, cuda.replays)
    found = Traffic(*(count.total() / ROUNDS for count in counts))
    core.abort_all(FinishReason.ABORT, "counted")
    assert len(notes.records) == ROUNDS
    assert cuda.blocking.total() <= 2 * others * ROUNDS, "a copy from or to memory that is not pinned"
    most = Traffic(*(count + more for count, more in zip(most, (2 * others, others, 3 * others, 0), strict=True)))
    assert all(now <= then for now, then in zip(found, most, strict=True)), (found, most, counts)
    assert found.replays > 0
