"""A controller that hears of rounds late, as it does inside engines that decide a round or several ahead."""

from __future__ import annotations

from collections import deque

from adaptspec.control.controller import Controller
from adaptspec.types import RoundRecord


def late(lag: int) -> type[Controller]:
    """One that has made `lag` more decisions before it learns what became of one."""

    class Late(Controller):
        """See `late`."""

        def learn(self, record: RoundRecord) -> None:
            waiting = self.__dict__.setdefault("_waiting", deque[RoundRecord]())
            waiting.append(record)
            if len(waiting) > lag:
                super().learn(waiting.popleft())

    return Late
