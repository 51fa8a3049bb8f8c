"""GGUF models run by llama.cpp: quantized weights, mapped from their file."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import weakref
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from adaptspec.arrays import IntArray
from adaptspec.errors import EngineError, ModelError
from adaptspec.models.gguf import GgufHeader
from adaptspec.models.kv_cache import BlockAllocator, CachePlan
from adaptspec.models.llama_library import BFLOAT16, FLOAT16, LlamaLibrary, TokenBatch
from adaptspec.models.runner import Forward, ModelInfo, Packed, without_padding
from adaptspec.progress import report_progress

ROUNDED = 256  # tokens: llama.cpp sizes a row's cache in multiples of them
WIDEST = 512  # tokens of one call
_LEAST, _PART = 2**24, 2**21  # bytes of a cache of which unused parts are given back, and of such a part
# By general.file_type (llama.h, llama_ftype).
_TYPES = {0: "float32", 1: "float16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 10: "q2_k", 11: "q3_k_s"}
_TYPES |= {12: "q3_k_m", 13: "q3_k_l", 14: "q4_k_s", 15: "q4_k_m", 16: "q5_k_s", 17: "q5_k_m", 18: "q6_k"}
_TYPES |= {19: "iq2_xxs", 20: "iq2_xs", 23: "iq3_xxs", 25: "iq4_nl", 26: "iq3_s", 30: "iq4_xs", 32: "bfloat16"}
# Types of weights (ggml_type, Q2_K to Q6_K) whose products have other bits from 4 tokens on if llama.cpp lays the
# weights out anew. As they lie in their file they have the same bits for up to 7 tokens.
_K_QUANTS = range(10, 15)
_MUCH_FASTER = (2, 20, 39)  # types whose products take two thirds of the time once laid out: Q4_0, IQ4_NL, MXFP4
_RECURRENT = "its states cannot be taken back when a draft is rejected"


class LlamaModel:
    """The weights of a GGUF file, mapped from it."""

    def __init__(self, library: LlamaLibrary, header: GgufHeader, gpu_layers: int = 0) -> None:
        """Raises ModelError: llama.cpp does not take the file, or the model cannot be served."""
        self.library = library
        params = library.llama_model_default_params()
        params.gpu_layers = gpu_layers
        # One setting for all of a file: usual files of Q4_0, whose last matrix alone is Q6_K, stay fast.
        params.use_extra_buffers = header.weights(_K_QUANTS) <= header.weights(_MUCH_FASTER)
        self.pointer = library.llama_model_load_from_file(str(header.path).encode(), params)
        if not self.pointer:
            raise ModelError(f"{header.path}: {library} does not load it ({library.reason()})")
        self._end = weakref.finalize(self, library.llama_model_free, self.pointer)
        self.vocab_size: int = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self.pointer))
        for function, why in (
            ("llama_model_is_recurrent", _RECURRENT),
            ("llama_model_is_hybrid", _RECURRENT),
            ("llama_model_is_diffusion", "it does not write one token after another"),
            ("llama_model_has_encoder", "it has an encoder, which chats and completions do not use"),
        ):
            if getattr(library, function)(self.pointer):
                raise ModelError(f"{header.path} ({header.architecture}) cannot be served: {why}")


class LlamaCppRunner:
    """One context of llama.cpp with a stream of its own per row; satisfies `Runner`.

    Keys are held in bfloat16, values in float16, and rows share no cells: then a token's logits do not depend on how
    the text before it was cut into passes, and not on other rows. (With keys in float16, too, llama.cpp has other
    kernels for single tokens from 512 cells on. With values in bfloat16 a token takes 12 % longer behind 1,000 others.)
    """

    def __init__(
        self, info: ModelInfo, model: LlamaModel, plan: CachePlan, *, bytes_per_token: int, threads: int
    ) -> None:
        """`plan` has blocks of whole rows. Raises ModelError: there is no memory for the cache."""
        self.info, self.device = info, torch.device("cpu")
        self._model, self._library = model, model.library
        rows = max(plan.tokens // plan.block_size, 1)
        params = self._library.llama_context_default_params()
        params.context = rows * -(-plan.block_size // ROUNDED) * ROUNDED
        params.sequences, params.outputs, params.outputs_per_sequence = rows, WIDEST, WIDEST
        params.batch = params.micro_batch = WIDEST
        params.threads = params.threads_batch = threads
        params.key_type, params.value_type = BFLOAT16, FLOAT16
        params.unified, params.full_windows = False, True
        self._pointer = self._library.llama_init_from_model(model.pointer, params)
        if not self._pointer:
            raise ModelError(
                f"{info.name}: llama.cpp makes no cache of {plan.tokens} tokens "
                f"({self._library.reason()}); choose a shorter --max-model-len or fewer --max-num-seqs"
            )
        self._end = weakref.finalize(self, self._library.llama_free, self._pointer)
        _give_back_zeros(params.context * bytes_per_token)
        self._memory = self._library.llama_get_memory(self._pointer)
        self._streams, self._lengths = BlockAllocator(rows, plan.block_size), dict[int, int]()
        self._tokens, self._places, self._owners = (np.zeros(WIDEST, dtype=np.int32) for _ in range(3))
        self._wanted, self._ones = np.zeros(WIDEST, dtype=np.int8), np.ones(WIDEST, dtype=np.int32)
        # The batch has a pointer to the number of each token's row.
        step = self._owners.itemsize
        self._owner_pointers = (ctypes.c_void_p * WIDEST)(*(self._owners.ctypes.data + step * i for i in range(WIDEST)))

    @property
    def free_memory(self) -> float:
        return self._streams.free_share

    def share_of(self, rows: Collection[int]) -> float:
        return self._streams.share_of(rows)

    def set_threads(self, count: int) -> None:
        """Compute with so many CPU threads from the next pass on."""
        self._library.llama_set_n_threads(self._pointer, count, count)

    def reserve(self, row: int, length: int) -> bool:
        return self._streams.reserve(row, length)

    def length(self, row: int) -> int:
        return self._lengths.get(row, 0)

    def truncate(self, row: int, length: int) -> None:
        """See `Runner.truncate`."""
        if length < self.length(row):
            self._cut(row, length)
            self._lengths[row] = length
        if not length:
            self._lengths.pop(row, None)
            self._streams.truncate(row, 0)

    def keep(self, row: int, base: int, places: Sequence[int]) -> None:
        """See `Runner.keep`; drafts are chains here, so that a path is their beginning."""
        assert list(places) == list(range(len(places)))
        self.truncate(row, base + len(places))

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        """See `Runner.copy_prefix`.

        Copies through host memory: llama.cpp's own copy covers the whole stream, used or not.
        """
        length = min(length, self.length(source))
        if source != target:
            if not length or not self._streams.reserve(target, length):
                return 0
            library, from_, to = self._library, self._stream(source), self._stream(target)
            state = np.empty(library.llama_state_seq_get_size(self._pointer, from_), dtype=np.uint8)
            where = self._pointer, state.ctypes.data, state.nbytes
            written = library.llama_state_seq_get_data(*where, from_)
            if not written or not library.llama_state_seq_set_data(*where, to):
                self._streams.free(target)
                return 0
            self._lengths[target] = self.length(source)
        self.truncate(target, length)
        return length

    def free(self, row: int) -> None:
        """See `Runner.free`."""
        self.truncate(row, 0)
        self._streams.free(row)

    def forward(self, packed: Packed) -> Forward:
        """See `Runner.forward`; llama.cpp returns no hidden states of layers."""
        rows, counts = packed.rows.tolist(), packed.counts
        for row, count in zip(rows, counts.tolist(), strict=True):
            self._streams.require(row, self.length(row) + count)
        starts = np.array([self.length(row) for row in rows], dtype=np.int64)
        within = np.arange(len(packed.tokens)) - np.repeat(np.cumsum(counts) - counts, counts)
        places = np.repeat(starts, counts) + within
        wanted = within >= np.repeat(counts - packed.wanted, counts)
        streams = np.repeat([self._stream(row) for row in rows], counts)
        found = np.empty((int(wanted.sum()), self.info.vocab_size), dtype=np.float32)
        try:
            at = 0
            for part in _slices(len(places), min(WIDEST, self.info.equal_passes or WIDEST)):
                report_progress()
                size = self._decode(packed.tokens[part], places[part], streams[part], wanted[part], found[at:])
                at += size
        except BaseException:
            for row, start in zip(rows, starts.tolist(), strict=True):
                self._cut(row, start)  # what was read of them is not counted
            raise
        for row, count in zip(rows, counts.tolist(), strict=True):
            self._lengths[row] = self.length(row) + count
        return Forward(without_padding(torch.from_numpy(found), self.info.drawn_tokens))

    def _decode(
        self, tokens: IntArray, places: IntArray, streams: IntArray, wanted: np.ndarray, out: np.ndarray
    ) -> int:
        """Run one call, and write the logits of the wanted tokens to the first rows of `out`; how many they are."""
        count = len(tokens)
        for array, values in (
            (self._tokens, tokens),
            (self._places, places),
            (self._owners, streams),
            (self._wanted, wanted),
        ):
            array[:count] = values
        pointers = (array.ctypes.data for array in (self._places, self._ones))
        batch = TokenBatch(
            count,
            self._tokens.ctypes.data,
            None,
            *pointers,
            ctypes.addressof(self._owner_pointers),
            self._wanted.ctypes.data,
        )
        status = self._library.llama_decode(self._pointer, batch)
        if status:
            raise EngineError(f"llama.cpp failed with status {status} ({self._library.reason()})")
        size = int(wanted.sum())
        if size:
            logits = self._library.llama_get_logits(self._pointer)
            out[:size] = np.ctypeslib.as_array(logits, (size, self.info.vocab_size))
        return size

    def _stream(self, row: int) -> int:
        return self._streams.held(row)[0]

    def _cut(self, row: int, length: int) -> None:
        held = self._streams.held(row)
        if held and not self._library.llama_memory_seq_rm(self._memory, held[0], length, -1):
            raise EngineError(f"llama.cpp cannot take back the tokens of row {row} from place {length} on")


def _give_back_zeros(size: int) -> None:
    """Give the system back what a new cache of so many bytes has written: it takes memory again once it is used.

    llama.cpp writes zeros to all of its cache, so that rows that are never used would take memory, too. A page that is
    given back reads as zeros. Pages are small ones from then on: a huge one would be taken by its first token.
    """
    if size < _LEAST or not hasattr(mmap, "MADV_NOHUGEPAGE"):  # small, or not Linux
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, length in _allocations():
        if not size <= length < size + _PART:
            continue
        advise(start, length, mmap.MADV_NOHUGEPAGE)
        for at in range(start, start + length - _PART + 1, _PART):
            if not np.ctypeslib.as_array((ctypes.c_uint64 * (_PART // 8)).from_address(at)).any():
                advise(at, _PART, mmap.MADV_DONTNEED)


def _allocations() -> Iterator[tuple[int, int]]:
    """Starts and lengths of large allocations, in whole pages, as glibc's allocator keeps them; nothing without glibc.

    Each begins with how far its data are from the beginning of its first page, and its size with a bit that says that
    it has pages of its own. Several lie one behind another in one mapping.
    """
    with Path("/proc/self/maps").open(encoding="utf-8") as lines, Path("/proc/self/mem").open("rb") as memory:
        for line in lines:
            addresses, access, _, _, inode, *name = line.split()
            if access != "rw-p" or inode != "0" or name:
                continue
            start, end = (int(one, 16) for one in addresses.split("-"))
            while start < end:
                words = struct.unpack("<10Q", os.pread(memory.fileno(), 80, start))
                lead = next((at for at in range(0, 9, 2) if words[at] == 8 * at and words[at + 1] & 2), None)
                length = 0 if lead is None else (words[lead + 1] & ~7) + 8 * lead
                if length % mmap.PAGESIZE or not 0 < length <= end - start:
                    break
                yield start, length
                start += length


def _slices(count: int, most: int) -> Iterator[slice]:
    for first, end in pairwise([*range(0, count, most), count]):
        yield slice(first, end)


def file_type(header: GgufHeader) -> str:
    """What most weights of a file are written in, such as q4_1, or "gguf" where that is not known."""
    return _TYPES.get(header.metadata.get("general.file_type", -1), "gguf")
