"""Small synthetic tapes for the tests of replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from adaptspec.simulation.draft_view import UNRANKED, DraftView, run_lengths
from adaptspec.simulation.tape import Tape, join, recorded

TASKS = {"code": 0.6, "json": 0.88, "rag": 0.4}


def made_tape(
    tasks: dict[str, float] | None = None,
    count: int = 4,
    length: int = 40,
    *,
    prompt: int = 24,
    seed: int = 0,
    beyond: int = 0,
    most: int = 0,
) -> Tape:
    """Requests with a draft model of known agreement and a lookup that finds something now and then."""
    rng = np.random.default_rng(seed)
    tapes = []
    for task, acceptance in (TASKS if tasks is None else tasks).items():
        for i in range(count):
            size = length + beyond
            chance = rng.beta(2 * acceptance, 2 * (1 - acceptance), size) if 0 < acceptance < 1 else acceptance
            agreed = rng.random(size) < chance
            sure = np.clip(chance + rng.normal(0.0, 0.1, size), 0.01, 0.99)
            reach = np.where(rng.random(size) < 0.4, rng.integers(1, 6, size), 0)
            run = np.minimum(run_lengths(rng.random(size) < 0.5), reach)
            unknown = np.full(size, np.nan)
            views = {
                "draft-model": DraftView.of_agreement(agreed, sure, 1.0 - sure, np.broadcast_to(chance, size).copy()),
                "ngram": DraftView(run, reach, np.where(run > 0, 0, UNRANKED), unknown, unknown, (run > 0) * 0.5),
            }
            one = recorded(f"{task}-{i}", prompt, length, views, task, source="made", max_tokens=most or length, seed=i)
            tapes.append(one)
    return join(tapes, {"made": "here"})


def one_request(agreed: Sequence[int], *, prompt: int = 8, confidence: Sequence[float] | None = None) -> Tape:
    """One request: the token of the prompt, then one that the draft agrees with or not for each entry."""
    flags = np.array([0, *agreed], dtype=np.bool_)
    sure = None if confidence is None else np.array([np.nan, *confidence])
    return recorded("only", prompt, len(flags), {"draft-model": DraftView.of_agreement(flags, sure)})


def with_candidates(tape: Tape, ranks: Sequence[float] = (0.5, 0.25, 0.1), seed: int = 0, most: int = 4) -> Tape:
    """The same, where the draft model is wrong, the target's token is its next candidates with these chances."""
    rng, view = np.random.default_rng(seed), tape.views["draft-model"]
    drawn = rng.choice(len(ranks) + 1, len(view.run), p=[*ranks, 1.0 - sum(ranks)]) + 1
    rank = np.where(view.agreed, 0, np.where(drawn > len(ranks), UNRANKED, drawn))
    first = np.where(np.isnan(view.confidence), 0.5, view.confidence)[:, None]
    top = np.hstack((first, (1.0 - first) * 0.5 ** np.arange(1, most)))
    return replace(tape, views={**tape.views, "draft-model": replace(view, rank=rank, top=top)})
