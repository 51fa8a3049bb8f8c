"""Which of the tokens that a draft model missed are judged, and how many at most."""

from __future__ import annotations

import torch

from adaptspec.drafting.catch_up import MOST_JUDGED
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob
from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch, SamplingRow
from adaptspec.types import SamplingParams
from tests.fakes import TableRunner, array, plain_greedy


def _draft(
    texts: list[list[int]],
    prompts: list[int],
    drafter: DraftModelDrafter,
    depths: list[int] | None = None,
    **params: float,
) -> Draft:
    made = SamplingParams(temperature=0.0, **params)  # type: ignore[arg-type]
    rows = [SamplingRow(made, i, text, prompts[i], (1,)) for i, text in enumerate(texts)]
    sampling = SamplingBatch(rows, 24, torch.device("cpu"))
    return drafter.propose(DraftJob(array(*range(len(texts))), texts, array(*(depths or [2] * len(texts))), sampling))


def _output(runner: TableRunner, count: int) -> list[int]:
    return plain_greedy(runner, [5, 6], count)


def test_a_draft_that_is_the_target_agrees_with_all_it_missed() -> None:
    """The prompt is read but not judged; the draft itself is what it is without any judging."""
    runner = TableRunner()
    output = _output(runner, 9)
    draft = _draft([[5, 6, *output]], [2], DraftModelDrafter(runner))
    assert draft.missed is not None
    assert draft.missed.judged.tolist() == [len(output)]
    assert draft.missed.agreed.tolist() == [len(output)]
    assert draft.tokens[0].tolist() == plain_greedy(TableRunner(), [5, 6, *output], 2)


def test_rows_are_judged_apart() -> None:
    """One row missed its own text, one somebody else's, one nothing worth the name."""
    runner = TableRunner()
    own, wrong = _output(runner, 6), [7, 7, 7, 7, 7, 7]
    draft = _draft([[5, 6, *own], [5, 6, *wrong], [5, 6]], [2, 2, 1], DraftModelDrafter(runner))
    assert draft.missed is not None
    assert draft.missed.judged.tolist() == [6, 6, 0]
    assert draft.missed.agreed[0] == 6
    assert draft.missed.agreed[1] < 6


def test_a_row_is_judged_alone_as_among_others() -> None:
    """Whichever place it has in the batch, and also beside one whose prompt is still being read."""
    runner = TableRunner()
    half = [*_output(runner, 3), 7, 7, 7]
    both = _draft([[5, 6, *half], [5, 6, *half]], [2, 2], DraftModelDrafter(runner)).missed
    alone = _draft([[9], [5, 6, *half], [9]], [1, 2, 1], DraftModelDrafter(TableRunner()), [0, 2, 0]).missed
    assert both is not None
    assert alone is not None
    agreed = both.agreed.tolist()[0]
    assert 0 < agreed < 6
    assert (alone.judged.tolist(), alone.agreed.tolist()) == ([0, 6, 0], [0, agreed, 0])
    short = DraftModelDrafter(TableRunner(context=64), catch_up_tokens=8)
    beside = _draft([[5, 6, *half], [5] * 40], [2, 40], short)
    assert beside.counts.tolist() == [2, 0]
    assert beside.missed is not None
    assert (beside.missed.judged.tolist(), beside.missed.agreed.tolist()) == ([6, 0], [agreed, 0])


def test_only_the_latest_are_judged() -> None:
    """Each costs a row of the output layer."""
    text = [5, 6] + [2 + i % 20 for i in range(90)]
    draft = _draft([text], [2], DraftModelDrafter(TableRunner(context=256)))
    assert draft.missed is not None
    assert draft.missed.judged.tolist() == [MOST_JUDGED]


def test_a_round_that_follows_the_last_judges_nothing() -> None:
    drafter = DraftModelDrafter(TableRunner())
    text = [5, 6, *_output(drafter.runner, 4)]  # type: ignore[arg-type]
    _draft([text], [2], drafter)
    drafter.commit(0, len(text))
    assert _draft([[*text, 9]], [2], drafter).missed is None


def test_penalties_leave_nothing_to_judge() -> None:
    draft = _draft([[5, 6, 7, 8, 9, 10]], [2], DraftModelDrafter(TableRunner()), presence_penalty=0.5)
    assert draft.missed is None
    assert draft.caught_up == 4
