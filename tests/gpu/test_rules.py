"""Rules of rows on a device change logits as the CPU's processors do, whoever had a line before and whatever is new."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.arrays import IntArray
from adaptspec.gpu import ops, rules
from adaptspec.gpu.ops import RuledPositions, RuledRows
from adaptspec.gpu.staging import Block
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.request import SamplingParams

CPU = torch.device("cpu")
VOCAB, STEPS, LINES = 40, 3, 4
TOKENS = st.integers(0, VOCAB - 1)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(60),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([0, 0, 1, 5, 50]),
    top_p=st.sampled_from([1.0, 1.0, 0.3, 0.95]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.dictionaries(TOKENS, st.sampled_from([-100.0, 3.5]), max_size=3),
    min_tokens=st.sampled_from([0, 0, 2, 6]),
    stop_token_ids=st.sampled_from([(), (3, 7)]),
)


class Bench:
    """A book of rules, the block it writes, and who has which line."""

    def __init__(self) -> None:
        layout = {**rules.layout(LINES, STEPS), "temperatures": (torch.float32, (LINES,))}
        self.block, self.book = Block(layout, CPU), rules.RuleBook(LINES, STEPS, VOCAB, CPU)

    def changed(self, logits: torch.Tensor, at: RuledPositions, drafted: IntArray, members: list[RowSampling]) -> None:
        """Change the logits of a round whose first rows have lines in reverse order."""
        sampling, count = SamplingBatch(members, VOCAB), len(members)
        self.block.host["temperatures"][:count] = sampling.temperatures
        self.book.write(self.block.host, np.arange(LINES)[::-1][:count], sampling)
        self.block.send()
        self.book.send_masks(None, None)
        self.book.send_masks(drafted, np.full(count, STEPS))
        if self.book.ruled:
            sent, slots = self.block.device, self.block.device["masks"][at.rows]
            masks = torch.where(slots >= 0, slots + at.before * self.book.masked, -1)
            self.book.count(sent)
            own = RuledRows(**{name: sent[name] for name in RuledRows._fields[:-1]}, drafted=torch.from_numpy(drafted))
            ops.apply_rules(logits, at._replace(masks=masks), own, self.book.tables)


@given(st.data(), st.integers(0, 2**31))
def test_rules_are_those_of_the_processors(data: st.DataObject, seed: int) -> None:
    bench, draw = Bench(), np.random.default_rng(seed)

    def fresh() -> RowSampling:
        prompt = draw.integers(0, VOCAB, 5).tolist()
        return RowSampling(data.draw(PARAMS), 3, prompt, len(prompt), (1,))

    members = [fresh() for _ in range(data.draw(st.integers(1, LINES)))]
    for _ in range(4):
        drafted = draw.integers(0, VOCAB, (len(members), STEPS))
        index, offsets = (one.ravel() for one in np.mgrid[: len(members), : STEPS + 1])
        logits = torch.from_numpy(draw.normal(0, 3, (len(index), VOCAB)).astype(np.float32))
        logits[::2, ::5] = -torch.inf
        paths = [drafted[row, :offset].tolist() for row, offset in zip(index, offsets, strict=True)]
        sampling = SamplingBatch(members, VOCAB)
        want = torch.from_numpy(sampling.process(logits, index, paths))
        where = RuledPositions(*map(torch.from_numpy, (index, offsets, np.full_like(index, -1), index)))
        bench.changed(logits, where, drafted, members)
        heat = torch.from_numpy(sampling.temperatures).float()[where.rows].unsqueeze(1)
        torch.testing.assert_close(logits / torch.where(heat > 0, heat, 1.0), want, atol=1e-5, rtol=1e-5)
        for member in members:  # a round, or several that were run part by part
            member.tokens.extend(draw.integers(0, VOCAB, data.draw(st.sampled_from([0, 1, 4, 9]))).tolist())
        if data.draw(st.booleans()):
            members[int(draw.integers(len(members)))] = fresh()
