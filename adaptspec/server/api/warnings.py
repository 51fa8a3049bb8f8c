"""Warnings of one request: what was dropped from it, or has no effect. The answer lists them, the log has each once."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from typing import Literal, get_args

# field: an unknown key within a message, part, tool or call, or a known field without effect here. item, tool: one that
# this server cannot use. schema: a word of a JSON schema. template: what the chat template cannot render.
Kind = Literal["field", "item", "tool", "schema", "template"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MAX_WARNINGS = 16  # distinct texts of one request; the rest is counted
MAX_LOGGED = 1024  # distinct texts in the log of one process
_MAX_LENGTH = 300  # characters
_PLAIN = re.compile(r"[\w.$:/+-]{1,60}", re.ASCII)
_logger = logging.getLogger(__name__)


def name_of(key: str) -> str:
    """A client's key as warnings and the log may quote it: keys that are no plain names are described by length."""
    return key if _PLAIN.fullmatch(key) else f"<{len(key)} characters>"


class Warnings:
    """Distinct texts in the order in which they came, at most `MAX_WARNINGS`; and how often each kind came."""

    def __init__(self) -> None:
        self.counts: Counter[Kind] = Counter()
        self._texts: dict[str, None] = {}
        self._left_out = 0

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, kind: Kind, text: str) -> None:
        """Record one. `text` is one sentence that names the field; keys of clients go through `name_of`."""
        self.counts[kind] += 1
        text = text[:_MAX_LENGTH]
        if len(self._texts) < MAX_WARNINGS:
            self._texts[text] = None
        elif text not in self._texts:
            self._left_out += 1

    @property
    def texts(self) -> list[str]:
        """As the log has them."""
        return list(self._texts)

    def written(self) -> dict[str, list[str]]:
        """The field `warnings` of an answer; nothing if there are none."""
        more = [f"{self._left_out} more"] if self._left_out else []
        return {"warnings": [*self._texts, *more]} if self._texts else {}


class WarningLog:
    """Logs each distinct text once per process, up to `MAX_LOGGED` texts, and counts warnings by kind.

    The log says once that it is full: clients choose keys, so one client can fill it.
    """

    def __init__(self, count: Callable[[Kind, int], None] = lambda *_: None) -> None:
        """`count` is called with a kind and how many there were."""
        self._count = count
        for kind in KINDS:
            count(kind, 0)  # so that rates see the first one
        self._logged: set[str] = set()

    def report(self, warnings: Warnings) -> None:
        """Take the warnings of a request that was accepted."""
        for kind, number in warnings.counts.items():
            self._count(kind, number)
        for text in warnings.texts:
            if text in self._logged or len(self._logged) >= MAX_LOGGED:
                continue
            self._logged.add(text)
            _logger.warning("A request was changed: %s", text)
            if len(self._logged) == MAX_LOGGED:
                _logger.warning(
                    "%d kinds of changed requests were logged; further ones are only counted, in the metric "
                    "adaptspec_request_warnings_total, and named in the answers",
                    MAX_LOGGED,
                )
