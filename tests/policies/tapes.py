"""Synthetic tapes of known acceptance: small ones for unit tests, and the texts of `tests.policies.world`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from adaptspec.arrays import FloatArray
from adaptspec.simulation.tape import UNRANKED, DraftView, Tape, join, recorded, run_lengths

Rate = float | tuple[float, ...]
TASKS = {"code": 0.6, "json": 0.88, "rag": 0.4}
_SHARPNESS = 2.0  # of the beta distribution that the chances of single tokens are drawn from
_LOOKUP_REACH = 8  # tokens that a lookup proposes


@dataclass(frozen=True)
class Kind:
    """Texts of one kind: the chance that a drafter's token is the target's, by drafter.

    A tuple gives one chance for each of as many equal parts of the text. `counts` agrees as `lookup` does.
    """

    model: Rate
    lookup: Rate = 0.1
    task: str = ""


def written(name: str, kind: Kind, length: int, *, prompt: int = 64, seed: int = 0) -> Tape:
    """One request of `length` tokens after its first, with a draft model, a lookup and counts.

    How likely a draft token is right varies from token to token; the confidence of a draft is a noisy view of it. A
    draft that is never right is as confident as others.
    """
    rng = np.random.default_rng(seed)
    chance = _chances(kind.model, length + 1, rng)
    model = DraftView.of_agreement(rng.random(length + 1) < chance, *_confidence(chance, rng))
    found = _chances(kind.lookup, length + 1, rng)
    lookup = DraftView.of_agreement(rng.random(length + 1) < found)
    lookup = replace(lookup, run=np.minimum(lookup.run, _LOOKUP_REACH), reach=np.minimum(lookup.reach, _LOOKUP_REACH))
    confidence, _ = _confidence(found, rng)
    counts = replace(lookup, confidence=confidence, top=confidence[:, None])
    views = {"draft-model": model, "ngram": lookup, "counts": counts}
    return recorded(name, prompt, length + 1, views, kind.task, seed=seed)


def agreements(rate: Rate, length: int, seed: int = 0) -> np.ndarray:
    """Whether a draft model agrees with a text, token by token [length]."""
    return written("only", Kind(rate), length, seed=seed).views["draft-model"].agreed[1:]


def _chances(rate: Rate, length: int, rng: np.random.Generator) -> FloatArray:
    """The chance of each token [length], drawn around the rate of its part of the text."""
    parts = rate if isinstance(rate, tuple) else (rate,)
    mean = np.array(parts)[np.arange(length) * len(parts) // length]
    drawn = rng.beta(np.maximum(mean * _SHARPNESS, 1e-9), np.maximum((1 - mean) * _SHARPNESS, 1e-9))
    return np.where(mean > 0.0, drawn, 0.0)


def _confidence(chance: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """How sure a drafter is of its tokens, and its entropy in nats, both [length]."""
    noisy = np.clip(chance + rng.normal(0.0, 0.2, len(chance)), 0.02, 0.999)
    confidence = np.where(chance > 0.0, noisy, rng.uniform(0.2, 1.0, len(chance)))
    return confidence, 2.0 * (1.0 - confidence)


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
    """The same tape with further candidates of the draft model.

    Where its first one is wrong, the target's token is its next candidates with the chances `ranks`.
    """
    rng, view = np.random.default_rng(seed), tape.views["draft-model"]
    drawn = rng.choice(len(ranks) + 1, len(view.run), p=[*ranks, 1.0 - sum(ranks)]) + 1
    rank = np.where(view.agreed, 0, np.where(drawn > len(ranks), UNRANKED, drawn))
    first = np.where(np.isnan(view.confidence), 0.5, view.confidence)[:, None]
    top = np.hstack((first, (1.0 - first) * 0.5 ** np.arange(1, most)))
    return replace(tape, views={**tape.views, "draft-model": replace(view, rank=rank, top=top)})
