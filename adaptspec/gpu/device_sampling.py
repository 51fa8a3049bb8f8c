"""Sampling on a device: penalties, biases, masks, truncation and the coupled choice for many positions at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from adaptspec.arrays import IntArray
from adaptspec.gpu.graphs import Download, current_device, host_memory
from adaptspec.models.async_runner import to_device
from adaptspec.models.sampling import Choices, PendingChoices, RowSampling, SamplingBatch
from adaptspec.request import SamplingParams

Columns = dict[str, npt.NDArray[Any]]


class Choice(NamedTuple):
    """The tokens chosen at N positions: the W largest of logits / temperature + noise, largest first.

    `confidence` is their softmax among all tokens of the same scores with noise; the entropy, in nats, is that of
    the scores without noise. It is NaN where a logit is not finite (but -inf, which removes a token).
    """

    token: torch.Tensor  # int32 [N, W]
    confidence: torch.Tensor  # float32 [N, W]
    entropy: torch.Tensor  # float32 [N]


class PositionRules(NamedTuple):
    """How the logits of N positions are changed before tokens are chosen."""

    lines: torch.Tensor  # int64 [N]: line of `RuleTables`; -1: the position is left as it is
    temperatures: torch.Tensor  # float32 [N]: top-p and min-p are about logits / temperature
    penalties: torch.Tensor  # float32 [N, 3]: repetition, frequency, presence
    top_k: torch.Tensor  # int64 [N]; 0: all
    cuts: torch.Tensor  # float32 [N, 2]: top-p, the logarithm of min-p
    paths: torch.Tensor  # int32 [N, D]: drafted tokens before the position, padded with -1
    masks: torch.Tensor  # int64 [N]: line of `RuleTables.masks`; -1: none


class RuleTables(NamedTuple):
    """Per line: twice the number of times that each token is in the output, + 1 if the prompt has it; and its bias.

    `masks` are bits of the tokens that may follow, 32 in a word.
    """

    counts: torch.Tensor  # int32 [lines, V]
    bias: torch.Tensor  # float32 [lines, V]
    masks: torch.Tensor  # int32 [M, words]


class _Pending:
    """Choices on their way to the host; `first` int64 [N] are the tokens on the device."""

    def __init__(self, choice: Choice) -> None:
        self.first = choice.token[:, 0].long()
        self._width = choice.token.shape[1]
        self._choices: Choices | None = None
        # Tokens travel as the bits of floats: one copy brings all.
        self._copy = Download(
            torch.cat((choice.token.view(torch.float32), choice.confidence, choice.entropy[:, None]), 1)
        )

    def wait(self) -> Choices:
        """See `PendingChoices`."""
        if self._choices is not None:
            return self._choices
        values = self._copy.wait()
        tokens = values[:, : self._width].contiguous().view(torch.int32).long().numpy()
        confidence, entropy = values[:, self._width : -1].double().numpy(), values[:, -1].double().numpy()
        self._choices = Choices(tokens, confidence, entropy)
        return self._choices


class DeviceSampler:
    """Chooses tokens from logits on a device; satisfies `models.sampling.Chooser`.

    Counts and biases of up to `rows` requests are kept on the device; only what is new is uploaded. Masks of grammars
    are made on the host while the device computes the logits.
    """

    def __init__(self, operators: ModuleType, rows: int, vocab_size: int, device: torch.device) -> None:
        """`operators` has `apply_rules` and `choose` (see `sampling_kernels`)."""
        self._operators, self._device = operators, device
        self._rows, self._vocab_size = rows, vocab_size
        lines = rows + 1, vocab_size  # the last line is of requests without counts and biases
        with torch.inference_mode():
            self._counts = torch.zeros(lines, dtype=torch.int32, device=device)
            self._bias = torch.zeros(lines, device=device)
            self._no_masks = torch.zeros((1, -(-vocab_size // 32)), dtype=torch.int32, device=device)
        self._lines: WeakKeyDictionary[RowSampling, int] = WeakKeyDictionary()
        self._counted: WeakKeyDictionary[RowSampling, int] = WeakKeyDictionary()  # tokens of each that are counted
        self._keys: dict[int, tuple[IntArray, torch.Tensor]] = {}  # of tokens, by the identity of the host's array
        if device.type == "cuda":
            self._compile()

    @torch.inference_mode()
    def start(
        self,
        logits: torch.Tensor,
        batch: SamplingBatch,
        index: IntArray,
        paths: Sequence[Sequence[int]],
        candidates: int = 1,
    ) -> PendingChoices:
        """See `Chooser`."""
        rows = [batch.rows[i] for i in index.tolist()]
        keys = batch.choice_keys(index, np.array(list(map(len, paths)), dtype=np.int64))
        temperatures = np.array([row.params.temperature for row in rows], dtype=np.float32)
        columns: Columns = {"keys": keys, "temperatures": temperatures}
        is_ruled = any(row.ruled for row in rows)
        if is_ruled:
            self._update_tables(rows)
            columns |= self._rules(rows, paths)
        on_device = upload(columns, self._device)
        with current_device(self._device):
            if is_ruled:
                rules = PositionRules(**{name: on_device[name] for name in PositionRules._fields})
                tables = RuleTables(self._counts, self._bias, on_device.get("mask_bits", self._no_masks))
                logits = logits.clone()  # log-probabilities are those before the rules
                self._operators.apply_rules(logits, rules, tables)
            words = self._token_keys(batch.words)
            # A power of two, of which each has a kernel of its own.
            most = min(1 << (candidates - 1).bit_length(), logits.shape[1], len(words))
            found = self._operators.choose(logits, on_device["temperatures"], on_device["keys"], words, most)
        return _Pending(found)

    @torch.inference_mode()
    def _compile(self) -> None:
        """Compile the kernels of rules and of the usual numbers of candidates, so that no request waits for it."""
        params = SamplingParams(temperature=1.0, top_k=2)
        batch = SamplingBatch([RowSampling(params, 0, [0], 1, ())], self._vocab_size)
        logits = torch.zeros((1, self._vocab_size), device=self._device)
        for candidates in (1, 2, 4):
            self.start(logits, batch, np.zeros(1, dtype=np.int64), [[]], candidates).wait()

    def _rules(self, rows: Sequence[RowSampling], paths: Sequence[Sequence[int]]) -> Columns:
        """The arrays of `PositionRules`, and masks."""
        masks: list[npt.NDArray[np.int32]] = []
        mask_lines = np.full(len(rows), -1, dtype=np.int64)
        # A multiple of 16, since Triton compiles a kernel anew for some numbers.
        longest = max(16, -(-max(map(len, paths), default=0) // 16) * 16)
        padded = np.full((len(rows), longest), -1, dtype=np.int32)
        for n, (row, path) in enumerate(zip(rows, paths, strict=True)):
            padded[n, : len(path)] = path
            allowed = row.allowed(path, self._vocab_size)
            if allowed is not None:
                mask_lines[n] = len(masks)
                bits = np.packbits(allowed, bitorder="little")
                masks.append(np.pad(bits, (0, 4 * self._no_masks.shape[1] - len(bits))).view(np.int32))
        columns: Columns = {
            "lines": np.array([self._line(row) for row in rows], dtype=np.int64),
            "penalties": np.array([row.penalties for row in rows], dtype=np.float32),
            "top_k": np.array([row.top_k for row in rows], dtype=np.int64),
            "cuts": np.array([row.cuts for row in rows], dtype=np.float32),
            "paths": padded,
            "masks": mask_lines,
        }
        return columns | ({"mask_bits": np.stack(masks)} if masks else {})

    def _line(self, row: RowSampling) -> int:
        return self._lines.get(row, self._rows) if row.ruled else -1

    def _update_tables(self, rows: Sequence[RowSampling]) -> None:
        """Give new requests their lines of the tables, and count the tokens that others have gained."""
        gained: list[int] = []
        counted: dict[RowSampling, int] = {}
        for row in dict.fromkeys(rows):
            if not (row.penalised or row.params.logit_bias):
                continue
            if row not in self._lines:
                self._start_line(row, self._free_line(rows))
                continue
            new = row.tokens[self._counted[row] :]
            gained += [self._lines[row] * self._vocab_size + token for token in new]
            counted[row] = len(row.tokens)
        if gained:
            at = to_device(np.array(gained, dtype=np.int64), self._device)
            self._counts.view(-1).index_add_(0, at, torch.full_like(at, 2, dtype=torch.int32))
        self._counted.update(counted)  # last: an error above must lose no tokens

    def _free_line(self, rows: Collection[RowSampling]) -> int:
        """A line of no living request, or else of one that is not among `rows`."""
        used = set(self._lines.values())
        free = next((line for line in range(self._rows) if line not in used), None)
        return self._lines.pop(next(row for row in self._lines if row not in rows)) if free is None else free

    def _start_line(self, row: RowSampling, line: int) -> None:
        """Write the counts and biases of a request to its line."""
        prompt, output = row.tokens[: row.prompt_length], row.tokens[row.prompt_length :]
        counts = 2 * np.bincount(np.array(output, dtype=np.int64), minlength=self._vocab_size)
        counts[np.unique(np.array(prompt, dtype=np.int64))] += 1
        bias = np.zeros(self._vocab_size, dtype=np.float32)
        bias[list(row.params.logit_bias)] = list(row.params.logit_bias.values())
        new = upload({"counts": counts.astype(np.int32), "bias": bias}, self._device)
        self._counts[line], self._bias[line] = new["counts"], new["bias"]
        self._lines[row], self._counted[row] = line, len(row.tokens)

    def _token_keys(self, words: IntArray) -> torch.Tensor:
        """The keys of all tokens for the noise, on the device."""
        known = self._keys.get(id(words))
        if known is None:
            known = self._keys[id(words)] = words, to_device(words, self._device)
        return known[1]


def upload(arrays: Columns, device: torch.device) -> dict[str, torch.Tensor]:
    """Copy arrays to the device in one copy."""
    offsets, size = {}, 0
    for name, array in arrays.items():
        offsets[name] = size
        size += -(-array.nbytes // 16) * 16
    host = host_memory(size, device)
    for name, array in arrays.items():
        host.numpy()[offsets[name] : offsets[name] + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
    whole = host.to(device, non_blocking=True)
    return {
        name: whole[offsets[name] : offsets[name] + array.nbytes]
        .view(torch.from_numpy(array[:0]).dtype)
        .view(array.shape)
        for name, array in arrays.items()
    }
