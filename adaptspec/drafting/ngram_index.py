"""N-gram indexes: which tokens followed the last 1 to 5 tokens of a text, and how often.

`NgramIndex` grows with a text, in bounded memory; `CountedText` adds the text to it. `Histories` has one index per
scope. `CorpusTable` is read from a file and never changes. All of them identify contexts by the same hashes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptspec.errors import ConfigError, StateError
from adaptspec.files import DAMAGE, read_arrays

MAX_CONTEXT = 5  # tokens
CORPUS_FILE, CORPUS_VERSION = "counts.npz", 1  # in a model's folder
_FACTOR, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1
_MAX_FOLLOWERS = 8  # different tokens counted after one context
_MAX_TEXT = 4096  # maximum uncounted tokens at the end of a text; earlier ones are skipped
_MAX_TEXT_CONTEXTS = 2**15  # per generation of the index of a text
# If only one token followed a context, token and count are packed into one number: a tenth of a dictionary's memory.
_COUNT_SHIFT = 32
_TOKEN, _ONCE = 2**_COUNT_SHIFT - 1, 2**_COUNT_SHIFT
# All followers of a context in a corpus together weigh as much as this many tokens of a text.
_CORPUS_WEIGHT = 4.0
_RECORD_AGAIN = "make it again with adaptspec train counts"

_Followers = dict[int, "int | dict[int, int]"]
_NO_FOLLOWERS: Mapping[int, int] = {}


def advance(contexts: list[int], token: int) -> list[int]:
    """Append `token` to a text: from the hashes of its last 1, 2 ... `MAX_CONTEXT` tokens to the new ones."""
    number = token + 1
    return [
        (number * _FACTOR) & _MASK,
        *[((context + number) * _FACTOR) & _MASK for context in contexts[: MAX_CONTEXT - 1]],
    ]


def contexts_at(tokens: list[int], end: int) -> list[int]:
    """Hashes of the last 1, 2 ... `MAX_CONTEXT` of the first `end` tokens of a text; none for an empty text."""
    contexts: list[int] = []
    for token in tokens[max(end - MAX_CONTEXT, 0) : end]:
        contexts = advance(contexts, token)
    return contexts


def all_contexts(tokens: npt.NDArray[Any]) -> list[npt.NDArray[np.uint64]]:
    """Context hashes at every position of a text [N]: item i of array n - 1 is that of the n tokens before position i.

    Items 0 to n - 1 of array n - 1 are undefined.
    """
    numbers = tokens.astype(np.uint64) + np.uint64(1)
    before: npt.NDArray[np.uint64] = np.zeros(len(tokens), dtype=np.uint64)
    hashes = []
    for _ in range(MAX_CONTEXT):
        after = np.zeros_like(before)
        after[1:] = (before[:-1] + numbers[:-1]) * np.uint64(_FACTOR)
        hashes.append(after)
        before = after
    return hashes


class NgramIndex:
    """Counts how often each token followed each context.

    Contexts are in two generations. When the younger one exceeds `max_contexts`, it becomes the older one, and the
    previous older one is dropped. A context that occurs again is counted in the younger generation.
    """

    def __init__(self, max_contexts: int) -> None:
        self._young: _Followers = {}
        self._old: _Followers = {}
        self._max_contexts = max_contexts

    def __len__(self) -> int:
        """The number of contexts."""
        return len(self._young) + len(self._old)

    def add(self, contexts: list[int], token: int) -> None:
        """Count `token` after each of these contexts."""
        young = self._young
        for context in contexts:
            followers = young.get(context)
            if followers is None:
                young[context] = token | _ONCE
            elif isinstance(followers, int):
                known = followers & _TOKEN
                if known == token:
                    young[context] = followers + _ONCE
                else:
                    young[context] = {known: followers >> _COUNT_SHIFT, token: 1}
            elif token in followers:
                followers[token] += 1
            else:
                if len(followers) >= _MAX_FOLLOWERS:
                    del followers[min(followers, key=followers.__getitem__)]
                followers[token] = 1
        if len(young) > self._max_contexts:
            self._old, self._young = young, {}

    def followers(self, context: int) -> Mapping[int, int]:
        """How often each token followed a context; empty if the context is unknown."""
        young, old = self._young.get(context), self._old.get(context)
        if old is None:
            return _NO_FOLLOWERS if young is None else _unpacked(young)
        followers = dict(_unpacked(old))
        if young is not None:
            for token, count in _unpacked(young).items():
                followers[token] = followers.get(token, 0) + count
        return followers

    def entries(self) -> Iterable[tuple[int, int, int]]:
        """All (context, token, count), the oldest first."""
        for generation in (self._old, self._young):
            for context, followers in generation.items():
                for token, count in _unpacked(followers).items():
                    yield context, token, count

    def restore(self, entries: Iterable[tuple[int, int, int]]) -> None:
        """Add the result of `entries`. Contexts beyond `max_contexts` are omitted, the oldest ones first."""
        old = self._old
        for context, token, count in entries:
            followers = old.pop(context, None)  # a context of both generations moves to the end: it is a recent one
            if followers is None:
                old[context] = count << _COUNT_SHIFT | token
            else:
                counts = dict(_unpacked(followers))
                counts[token] = counts.get(token, 0) + count
                most_frequent = sorted(counts.items(), key=lambda pair: -pair[1])[:_MAX_FOLLOWERS]
                old[context] = dict(most_frequent)
        for context in list(old)[: max(0, len(old) - self._max_contexts)]:
            del old[context]


class CountedText:
    """Counts a text in an index as it grows: of a long text its end, a part at a time."""

    def __init__(self, index: NgramIndex | None = None, num_counted: int = 0) -> None:
        """The first `num_counted` tokens are in the index already. Without `index` the text gets a new one."""
        self.index = NgramIndex(_MAX_TEXT_CONTEXTS) if index is None else index
        self.num_counted = num_counted
        self._contexts: list[int] = []  # after the counted tokens; empty where unknown

    def count(self, tokens: list[int], end: int, max_tokens: int) -> None:
        """Count the tokens before `end`, at most `max_tokens` in this call; later calls count the rest."""
        begin = max(self.num_counted, end - _MAX_TEXT)
        end = min(end, begin + max_tokens)
        if begin >= end:
            return
        contexts = self._contexts if begin == self.num_counted else []
        contexts = contexts or contexts_at(tokens, begin)
        for token in tokens[begin:end]:
            self.index.add(contexts, token)
            contexts = advance(contexts, token)
        self._contexts, self.num_counted = contexts, end

    def contexts(self, tokens: list[int], end: int) -> list[int]:
        """See `contexts_at`."""
        return self._contexts if end == self.num_counted and self._contexts else contexts_at(tokens, end)


class Histories:
    """N-gram indexes of earlier requests, one per scope. Scopes share nothing.

    They have at most `max_contexts` contexts in total, and one scope has at most half of them. Beyond that, the scope
    whose latest request started first is dropped; running requests of it keep their index.
    """

    def __init__(self, max_contexts: int = 2**18) -> None:
        self._max_contexts = max_contexts
        self._scopes: OrderedDict[str, NgramIndex] = OrderedDict()

    def __len__(self) -> int:
        """The number of contexts."""
        return sum(map(len, self._scopes.values()))

    def index_of(self, scope: str) -> NgramIndex:
        """The index of the scope of a request that starts."""
        index = self._scopes.pop(scope, None)
        self._scopes[scope] = index = self._new_index() if index is None else index
        self._forget()
        return index

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All scopes as arrays: their names, and columns with an entry for each follower of each context."""
        entries = [(number, *entry) for number, index in enumerate(self._scopes.values()) for entry in index.entries()]
        scope, context, token, count = zip(*entries, strict=True) if entries else ((),) * 4
        return {
            "scopes": np.array(list(self._scopes), dtype=np.str_),
            "scope": np.array(scope, dtype=np.uint32),
            "context": np.array(context, dtype=np.uint64),
            "token": np.array(token, dtype=np.uint32),
            "count": np.minimum(np.array(count, dtype=np.uint64), 2**32 - 1).astype(np.uint32),
        }

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], vocab_size: int) -> None:
        """Replace all scopes by the result of `arrays`. Must be called before the first request.

        Raises:
            StateError: the arrays are malformed, or of another vocabulary. Nothing has changed then.
        """
        try:
            names = [str(name) for name in arrays["scopes"]]
            columns = [arrays[name] for name in ("scope", "context", "token", "count")]
        except KeyError as error:
            raise StateError(f"{error} is missing") from error
        if {column.dtype.kind + str(column.ndim) for column in columns} != {"u1"} or len(set(map(len, columns))) > 1:
            raise StateError("its columns are not unsigned integers of one length")
        scope, _, token, count = columns
        if len(set(names)) < len(names):
            raise StateError("it has two scopes of one name")
        if (scope >= len(names)).any() or (token >= vocab_size).any() or not count.all():
            raise StateError("it has an unknown token or a scope without a name, or a count of 0")
        entries: list[list[tuple[int, int, int]]] = [[] for _ in names]
        for number, *entry in zip(*(column.tolist() for column in columns), strict=True):
            entries[number].append((entry[0], entry[1], entry[2]))
        self._scopes = OrderedDict((name, self._new_index()) for name in names)
        for index, of_scope in zip(self._scopes.values(), entries, strict=False):
            index.restore(of_scope)
        self._forget()

    def _new_index(self) -> NgramIndex:
        return NgramIndex(self._max_contexts // 4)

    def _forget(self) -> None:
        while len(self._scopes) > 1 and len(self) > self._max_contexts:
            self._scopes.popitem(last=False)


class CorpusTable:
    """Followers of the most informative contexts of a corpus, for one tokenizer."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """`contexts` uint64 [C], ascending; `following` uint8 [C], the number of their followers; `tokens` [N] and
        `shares` uint8 [N], the followers of all contexts and their shares in units of 1/255.

        Raises ValueError or LookupError if the arrays are malformed.
        """
        contexts, following, tokens, shares = (arrays[name] for name in ("contexts", "following", "tokens", "shares"))
        kinds = [array.dtype.kind + str(array.ndim) for array in (contexts, following, tokens, shares)]
        if kinds != ["u1"] * 4 or (contexts[1:] <= contexts[:-1]).any() or contexts.dtype.itemsize != 8:
            raise ValueError("its columns have wrong types or an unsorted context")
        if len(following) != len(contexts) or following.sum() != len(tokens) or len(shares) != len(tokens):
            raise ValueError("its columns have inconsistent lengths")
        self.max_token = int(tokens.max(initial=0))
        self._number = dict(zip(contexts.tolist(), range(len(contexts)), strict=True))
        # Reading an element of a memoryview takes a third of the time of an array's, and needs less memory than a list.
        self._offsets = np.concatenate(([0], np.cumsum(following))).astype(np.int32).data
        self._tokens = tokens.astype(np.uint32).data
        self._counts = (shares.astype(np.float32) * np.float32(_CORPUS_WEIGHT / 255.0)).data

    def __len__(self) -> int:
        """The number of contexts."""
        return len(self._number)

    def followers(self, context: int) -> Mapping[int, float]:
        """The tokens that follow a context with their counts; empty if the context is unknown."""
        number = self._number.get(context)
        if number is None:
            return _NO_FOLLOWERS
        begin, end = self._offsets[number], self._offsets[number + 1]
        return dict(zip(self._tokens[begin:end], self._counts[begin:end], strict=True))


def read_corpus_table(path: Path, tokenizer: str, vocab_size: int) -> CorpusTable:
    """Read a corpus table for the tokenizer of this fingerprint.

    Raises:
        ConfigError: the file cannot be read, is malformed, or is of another tokenizer; the message says what to do.
    """
    try:
        arrays = read_arrays(path)
        version, made_for = int(arrays["version"]), str(arrays["tokenizer"])
        if version != CORPUS_VERSION:
            raise ConfigError(
                f"{path}: has format version {version}, but this program reads {CORPUS_VERSION}; {_RECORD_AGAIN}"
            )
        if made_for != tokenizer:
            raise ConfigError(
                f"{path}: is of another tokenizer ({made_for}, the target's is {tokenizer}), whose token ids differ; "
                f"{_RECORD_AGAIN}, or serve without it (--counts none)"
            )
        table = CorpusTable(arrays)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); {_RECORD_AGAIN}") from error
    except DAMAGE as error:
        raise ConfigError(f"{path}: is not a counts file, or is damaged ({error}); {_RECORD_AGAIN}") from error
    if table.max_token >= vocab_size:
        raise ConfigError(f"{path}: has token id {table.max_token}, which the target does not have; {_RECORD_AGAIN}")
    return table


def _unpacked(followers: int | dict[int, int]) -> Mapping[int, int]:
    return {followers & _TOKEN: followers >> _COUNT_SHIFT} if isinstance(followers, int) else followers
