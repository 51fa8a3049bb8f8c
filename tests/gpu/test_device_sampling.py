"""Sampling on a device chooses what the CPU chooses by the same rules, position by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.arrays import BoolArray
from adaptspec.gpu import device_sampling
from adaptspec.gpu.device_sampling import DeviceSampler
from adaptspec.models.noise import token_keys
from adaptspec.models.sampling import RowSampling, SamplingBatch, entropies, leading
from adaptspec.request import SamplingParams
from tests.gpu import reference
from tests.gpu.sampling_params import PARAMS, VOCAB

LINES, EOS = 3, 1


class Remainders:
    """A grammar: the token after `drafted` tokens leaves another remainder than their number, divided by three."""

    def mask(self, drafted: Sequence[int]) -> BoolArray:
        allowed: BoolArray = np.arange(VOCAB) % 3 != len(drafted) % 3
        return allowed


def sampler() -> DeviceSampler:
    return DeviceSampler(reference, LINES, VOCAB, torch.device("cpu"))


def row(
    params: SamplingParams, tokens: Sequence[int] = (5, 6, 7, 8), *, seed: int = 3, masked: bool = False
) -> RowSampling:
    constraint = Remainders() if masked else None
    return RowSampling(params, seed, list(tokens), len(tokens), (EOS,), constraint)  # type: ignore[arg-type]


def assert_equal(
    chooser: DeviceSampler,
    logits: torch.Tensor,
    batch: SamplingBatch,
    paths: Sequence[Sequence[Sequence[int]]],
    width: int,
) -> None:
    """Hold choices behind the `paths` of each row to those of the CPU, which are made by other code."""
    index = np.repeat(np.arange(len(paths)), [len(own) for own in paths])
    flat = [path for own in paths for path in own]
    before = logits.clone()
    pending = chooser.start(logits, batch, index, flat, width)
    found = pending.wait()
    assert torch.equal(logits.nan_to_num(), before.nan_to_num()), "log-probabilities are those before the rules"
    scores = batch.process(logits, index, flat)
    offsets = np.array(list(map(len, flat)), dtype=np.int64)
    tokens, confidence = leading(batch.perturbed(scores, index, offsets), width)
    likely = confidence > 1e-30  # tokens that rules have removed come in any order
    assert found.tokens.shape == tokens.shape
    assert (found.tokens == tokens)[likely].all()
    np.testing.assert_allclose(found.confidence, confidence, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(found.entropy, entropies(scores), atol=1e-4, rtol=1e-4)
    assert (found.tokens[:, 0] == batch.next_tokens(logits, index, flat)).all()
    assert pending.first.tolist() == found.tokens[:, 0].tolist()


@settings(max_examples=60)
@given(st.data(), st.integers(0, 2**31), st.sampled_from([VOCAB, VOCAB + 8, VOCAB - 5]), st.sampled_from([1, 1, 4]))
def test_choices_are_those_of_the_cpu(data: st.DataObject, seed: int, columns: int, width: int) -> None:
    """Of requests that come and go, more of them than the device has lines for; they gain tokens between rounds.

    Logits may have columns for more tokens than there are, or for fewer.
    """
    numbers, chooser = np.random.default_rng(seed), sampler()

    def started() -> RowSampling:
        tokens = numbers.integers(0, VOCAB, 5).tolist()
        return row(data.draw(PARAMS), tokens, seed=int(numbers.integers(99)), masked=data.draw(st.booleans()))

    living = [started() for _ in range(LINES + 2)]
    for _ in range(4):
        members = [living[i] for i in numbers.permutation(len(living))[: data.draw(st.integers(1, LINES))].tolist()]
        drafted = numbers.integers(0, VOCAB, (len(members), 3)).tolist()
        paths = [[own[:depth] for depth in range(4)] for own in drafted]
        logits = torch.from_numpy(numbers.normal(0, 3, (4 * len(members), columns)).astype(np.float32))
        assert_equal(chooser, logits, SamplingBatch(members, VOCAB), paths, width)
        for member in living:
            member.tokens.extend(numbers.integers(0, VOCAB, data.draw(st.sampled_from([0, 1, 4]))).tolist())
        living[int(numbers.integers(len(living)))] = started()


def test_tokens_that_are_counted_one_by_one_count_as_those_counted_at_once() -> None:
    params = SamplingParams(60, 0.0, frequency_penalty=0.5, repetition_penalty=1.5)
    early, chooser = row(params), sampler()
    logits = torch.linspace(2.0, 0.0, VOCAB)[None]
    for _ in range(12):
        late = row(params)
        late.tokens.extend(early.tokens[4:])
        found = [
            one.start(logits, SamplingBatch([member], VOCAB), np.zeros(1, dtype=np.int64), [()]).wait()
            for one, member in ((chooser, early), (sampler(), late))
        ]
        assert found[0].tokens.item() == found[1].tokens.item()
        np.testing.assert_array_equal(found[0].confidence, found[1].confidence)
        early.tokens.append(int(found[0].tokens.item()))
    assert len(set(early.tokens[4:])) > 3


def test_an_error_while_tokens_are_counted_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round runs again, and penalties are those of the whole text."""
    device, member = sampler(), row(SamplingParams(temperature=0.0, frequency_penalty=1.0))
    batch, at = SamplingBatch([member], VOCAB, chooser=device), np.zeros(1, dtype=np.int64)
    logits = torch.zeros(1, VOCAB)
    logits[0, 9] = 1.5
    assert device.start(logits, batch, at, [[]]).wait().tokens.tolist() == [[9]]
    member.tokens += [9, 9]
    with monkeypatch.context() as patch:
        patch.setattr(device_sampling, "upload", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            device.start(logits, batch, at, [[]])
    expected = SamplingBatch([member], VOCAB).next_tokens(logits, at, [[]])
    assert expected != 9
    assert device.start(logits, batch, at, [[]]).wait().tokens[0] == expected


def test_keys_of_tokens_are_those_of_the_batch() -> None:
    """A draft of another tokenizer draws with the noise of the target's tokens, in turn with the target."""
    members, chooser = [row(SamplingParams(60, 1.0)), row(SamplingParams(60, 0.8), seed=9)], sampler()
    words = token_keys(VOCAB)[::-1].copy()
    logits = torch.from_numpy(np.random.default_rng(0).normal(0, 1, (2, VOCAB)).astype(np.float32))
    for batch in (SamplingBatch(members, VOCAB), SamplingBatch(members, VOCAB, words), SamplingBatch(members, VOCAB)):
        assert_equal(chooser, logits, batch, [[()], [()]], 2)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize("params", [SamplingParams(60, 0.0), SamplingParams(60, 0.9, top_p=0.9, presence_penalty=0.5)])
def test_logits_that_are_not_numbers_show_in_the_entropy(params: SamplingParams, broken: float) -> None:
    """At this position alone, and the token is still one of the vocabulary."""
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    logits[1, 4] = broken
    batch = SamplingBatch([row(params)], VOCAB)
    found = sampler().start(logits, batch, np.zeros(3, dtype=np.int64), [(), (5,), (5, 6)]).wait()
    assert np.isnan(found.entropy).tolist() == [False, True, False]
    assert ((found.tokens >= 0) & (found.tokens < VOCAB)).all()
