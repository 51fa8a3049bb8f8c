"""Counts of a corpus for one tokenizer: what follows the contexts that say most, read from a file, never written on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptspec.errors import ConfigError
from adaptspec.files import DAMAGE, read_arrays

VERSION = 1
FILE = "counts.npz"  # in a model's folder
_MAKE = "make it anew (adaptspec train counts)"
# All of a context's tokens together count as much as so many of the history's.
_WORTH = 16.0
# Answers that are remembered at most: texts come back to the same contexts, and one is found in 2 us.
_LATELY = 2**14


class CorpusCounts:
    """Of each context (a hash as `token_counts` makes it) the tokens that followed, and what share of 255 each had."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """`contexts` uint64 [C], ascending; `following` uint8 [C], how many tokens; `tokens` and `shares` uint8 [N].

        Raises ValueError or LookupError where they are none of these.
        """
        contexts, following, tokens, shares = (arrays[name] for name in ("contexts", "following", "tokens", "shares"))
        kinds = [array.dtype.kind + str(array.ndim) for array in (contexts, following, tokens, shares)]
        if kinds != ["u1"] * 4 or (contexts[1:] <= contexts[:-1]).any() or contexts.dtype.itemsize != 8:
            raise ValueError("its columns are not what they should be")
        if len(following) != len(contexts) or following.sum() != len(tokens) or len(shares) != len(tokens):
            raise ValueError("its columns do not fit together")
        self.largest = int(tokens.max(initial=0))
        self._lately: dict[int, dict[int, float]] = {}
        self._contexts = dict(zip(contexts.tolist(), range(len(contexts)), strict=True))
        # Elements of a memoryview are read in a third of the time of an array's, and need no objects of their own.
        self._places = np.concatenate(([0], np.cumsum(following))).astype(np.int32).data
        self._tokens = tokens.astype(np.uint32).data
        self._votes = (shares.astype(np.float32) * np.float32(_WORTH / 255.0)).data

    def __len__(self) -> int:
        return len(self._contexts)

    def get(self, context: int) -> dict[int, float] | None:
        """What followed a context, and how much each counts; None where it is not known."""
        votes = self._lately.get(context)
        if votes is not None:
            return votes
        at = self._contexts.get(context)
        if at is None:
            return None
        if len(self._lately) >= _LATELY:
            self._lately.clear()
        begin, end = self._places[at], self._places[at + 1]
        votes = self._lately[context] = dict(zip(self._tokens[begin:end], self._votes[begin:end], strict=True))
        return votes


def read_corpus_counts(path: Path, tokenizer: str, vocab_size: int) -> CorpusCounts:
    """The counts in a file, for the tokenizer of this fingerprint.

    Raises:
        ConfigError: it cannot be read, is no such file, or is of another tokenizer; says what to do.
    """
    try:
        arrays = read_arrays(path)
        version, made_for = int(arrays["version"]), str(arrays["tokenizer"])
        if version != VERSION:
            raise ConfigError(f"{path}: counts of version {version}, this program reads {VERSION}; {_MAKE}")
        if made_for != tokenizer:
            raise ConfigError(
                f"{path}: counts of another tokenizer ({made_for}, the target's is {tokenizer}): token ids mean "
                f"something else there; {_MAKE}, or serve without (--counts none)"
            )
        counts = CorpusCounts(arrays)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be used ({error.strerror}); {_MAKE}") from error
    except DAMAGE as error:
        raise ConfigError(f"{path}: no counts, or damaged ({error}); {_MAKE}") from error
    if counts.largest >= vocab_size:
        raise ConfigError(f"{path}: it has token id {counts.largest}, which the target does not; {_MAKE}")
    return counts
