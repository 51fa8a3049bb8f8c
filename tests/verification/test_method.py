"""Methods by name, the packed layout of a verify pass, and the run of tokens that agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.arrays import FloatArray
from adaptspec.errors import ConfigError
from adaptspec.models.sampling import SamplingBatch
from adaptspec.request import SamplingParams
from adaptspec.verification import METHODS, make_method

from .tables import VOCAB, make_rows, point_draft


def _drawn_from(method: str, p: FloatArray, q: FloatArray, tokens: list[int], accepted: int) -> FloatArray:
    """Weights [V] that the token after `accepted` drafted ones is drawn with, by the definitions in `rejection.py`.

    `p` [n + 1, V] and `q` [n, V] are the distributions that the `tokens` [n] were judged by.
    """
    if accepted == len(tokens) or method not in ("rejection", "block"):
        return np.asarray(p[accepted])
    weight = 1.0
    if method == "block":
        for n, token in enumerate(tokens[:accepted]):
            weight = min(1.0, weight * p[n, token] / q[n, token])
    return np.asarray(np.maximum(weight * p[accepted] - q[accepted], 0.0))


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), counts=st.lists(st.integers(0, 4), min_size=1, max_size=5), point=st.booleans())
def test_the_token_after_a_draft_has_the_noise_of_its_position_alone(
    name: str, seed: int, counts: list[int], point: bool
) -> None:
    """Correction or bonus: plain decoding that has come as far draws with the same noise, whatever was drafted."""
    random, deepest = np.random.default_rng(seed), max(counts)
    rows = make_rows(SamplingParams(), random.integers(0, 2**40, len(counts)).tolist())
    for row in rows:
        row.tokens.extend(random.integers(0, VOCAB, int(random.integers(0, 3))).tolist())
    tokens = random.integers(0, VOCAB, (len(counts), deepest))
    q = np.eye(VOCAB)[tokens] if point else random.dirichlet(np.ones(VOCAB), tokens.shape)
    draft = point_draft(tokens, None if point else q.astype(np.float32), counts)
    p = random.dirichlet(np.full(VOCAB, 2.0), sum(counts) + len(counts))
    logits = torch.from_numpy(np.log(p)).float()
    result = make_method(name).verify(logits, draft, SamplingBatch(rows, VOCAB))
    start = 0
    for i, (row, count) in enumerate(zip(rows, counts, strict=True)):
        mine, accepted = tokens[i, :count].tolist(), int(result.accepted[i])
        weights = _drawn_from(name, p[start : start + count + 1], q[i], mine, accepted)
        alone = replace(row, tokens=[*row.tokens, *mine[:accepted]])
        here = np.zeros(1, dtype=np.int64)
        with np.errstate(divide="ignore"):
            scores = np.log(weights).astype(np.float32)[None]
        noisy = SamplingBatch([alone], VOCAB).perturbed(scores, here, here)[0]
        assert noisy[int(result.following[i])] >= noisy.max() - 1e-3, (i, accepted, count)
        start += count + 1


def test_every_method_is_found_by_its_own_name_and_says_whether_it_is_lossy() -> None:
    lossy = {name: make_method(name).lossy for name in METHODS}
    assert lossy == {"coupled": False, "rejection": False, "block": False, "threshold": True, "typical": True}
    assert all(make_method(name).name == name for name in METHODS)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'copuled'; use one of: block, coupled, rejection, threshold, typical"):
        make_method("copuled")


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(ConfigError, match="'coupled' cannot be built with high"):
        make_method("coupled", {"high": 0.5})
