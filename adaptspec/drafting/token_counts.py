"""Counts of what followed the last tokens of a text, in bounded memory, and whose counts may be used for whom."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from adaptspec.errors import StateError

LONGEST = 5  # tokens of a context at most
_FACTOR, _ALL = 0x9E3779B97F4A7C15, 2**64 - 1
# Different tokens counted after one context: more are drafted from worse, and each costs time.
_FOLLOWING = 8
# Where only one token ever followed, token and count are in one number: a tenth of a dictionary's memory.
COUNT_SHIFT = 32
TOKEN, _ONCE = 2**COUNT_SHIFT - 1, 2**COUNT_SHIFT

Followed = dict[int, "int | dict[int, int]"]
_Count = TypeVar("_Count", int, float)


def advanced(contexts: list[int], token: int) -> list[int]:
    """The hashes of the last 1, 2 ... `LONGEST` tokens of a text, one token on; of an empty text there are none."""
    more = token + 1
    return [(more * _FACTOR) & _ALL, *[((hash_ + more) * _FACTOR) & _ALL for hash_ in contexts[: LONGEST - 1]]]


def contexts_of(text: list[int], end: int) -> list[int]:
    """The same of the first `end` tokens of a text."""
    contexts: list[int] = []
    for token in text[max(end - LONGEST, 0) : end]:
        contexts = advanced(contexts, token)
    return contexts


def hashed(tokens: npt.NDArray[Any]) -> list[npt.NDArray[np.uint64]]:
    """The same for a whole text [N]: of n tokens, item i of array n - 1 is for those before place i; of use from n."""
    numbers = tokens.astype(np.uint64) + np.uint64(1)
    before: npt.NDArray[np.uint64] = np.zeros(len(tokens), dtype=np.uint64)
    hashes = []
    for _ in range(LONGEST):
        after = np.zeros_like(before)
        after[1:] = (before[:-1] + numbers[:-1]) * np.uint64(_FACTOR)
        hashes.append(after)
        before = after
    return hashes


def votes_of(followed: int | Mapping[int, _Count]) -> Iterable[tuple[int, int | _Count]]:
    """Tokens that followed one context, and how often."""
    return ((followed & TOKEN, followed >> COUNT_SHIFT),) if isinstance(followed, int) else followed.items()


class TokenCounts:
    """How often each token followed each context. What was not met for long is forgotten.

    Contexts are in two generations: when the younger one has `most`, it becomes the older one, and what was that is
    gone. What is met again is counted in the younger.
    """

    def __init__(self, most: int) -> None:
        self.young: Followed = {}
        self.old: Followed = {}
        self._most = most

    def __len__(self) -> int:
        """Contexts that are remembered."""
        return len(self.young) + len(self.old)

    def add(self, contexts: list[int], token: int) -> None:
        """A text that ended in these `contexts` went on with `token`."""
        young = self.young
        for context in contexts:
            followed = young.get(context)
            if followed is None:
                young[context] = token | _ONCE
            elif isinstance(followed, int):
                known = followed & TOKEN
                young[context] = followed + _ONCE if known == token else {known: followed >> COUNT_SHIFT, token: 1}
            elif token in followed:
                followed[token] += 1
            else:
                if len(followed) >= _FOLLOWING:
                    del followed[min(followed, key=followed.__getitem__)]
                followed[token] = 1
        if len(young) > self._most:
            self.old, self.young = young, {}


class Histories:
    """What was served before, apart for everyone who may not see the others': each scope has counts of its own.

    At most `most` contexts in all, a few for each token, and those of scopes that requests run in now; a scope has at
    most half of them. What goes first is the scope for which no request has come for longest.
    """

    def __init__(self, most: int = 2**18) -> None:
        self._most = most
        self._scopes: OrderedDict[str, TokenCounts] = OrderedDict()

    def __len__(self) -> int:
        """Contexts that are remembered."""
        return sum(map(len, self._scopes.values()))

    def of(self, scope: str) -> TokenCounts:
        """The counts of a scope, where a request begins."""
        counts = self._scopes.pop(scope, None)
        if counts is None:
            counts = TokenCounts(self._most // 4)
        self._scopes[scope] = counts
        self._forget()
        return counts

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All of it, to be kept: the scopes, and for each token that followed a context in one of them its count."""
        lines: list[tuple[int, ...]] = [
            (number, context, token, count)
            for number, counts in enumerate(self._scopes.values())
            for generation in (counts.old, counts.young)
            for context, followed in generation.items()
            for token, count in votes_of(followed)
        ]
        scope, context, token, count = zip(*lines, strict=True) if lines else ((),) * 4
        return {
            "scopes": np.array(list(self._scopes), dtype=np.str_),
            "scope": np.array(scope, dtype=np.uint32),
            "context": np.array(context, dtype=np.uint64),
            "token": np.array(token, dtype=np.uint32),
            "count": np.minimum(np.array(count, dtype=np.uint64), 2**32 - 1).astype(np.uint32),
        }

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], vocab_size: int) -> None:
        """Go on from what `arrays` once gave: before any request.

        Raises:
            StateError: they are none of these, or of another vocabulary; nothing has changed then.
        """
        try:
            names = [str(name) for name in arrays["scopes"]]
            columns = [arrays[name] for name in ("scope", "context", "token", "count")]
        except KeyError as error:
            raise StateError(f"{error} is missing") from error
        if {column.dtype.kind + str(column.ndim) for column in columns} != {"u1"} or len(set(map(len, columns))) > 1:
            raise StateError("its columns are not whole numbers of one length")
        scope, _, token, count = columns
        if (scope >= len(names)).any() or (token >= vocab_size).any() or not count.all():
            raise StateError("it has a token or a scope that does not exist")
        scopes = {name: TokenCounts(self._most // 4) for name in names}
        stores = list(scopes.values())
        for number, *line in zip(*(column.tolist() for column in columns), strict=True):
            _put(stores[number].old, *line)
        for counts in stores:
            for gone in list(counts.old)[: max(0, len(counts) - self._most // 4)]:
                del counts.old[gone]
        self._scopes = OrderedDict(scopes)
        self._forget()

    def _forget(self) -> None:
        while len(self._scopes) > 1 and len(self) > self._most:
            self._scopes.popitem(last=False)


def _put(into: Followed, context: int, token: int, count: int) -> None:
    followed = into.pop(context, None)  # what was met latest stands last, and stays longest
    if followed is None:
        into[context] = count << COUNT_SHIFT | token
    else:
        known = dict(votes_of(followed))
        known[token] = known.get(token, 0) + count
        into[context] = dict(sorted(known.items(), key=lambda one: -one[1])[:_FOLLOWING])
