"""A controller that learns of rounds late, as inside engines that decide one or several rounds ahead."""

from __future__ import annotations

from collections import deque
from typing import Any

from adaptspec.control.controller import Controller
from adaptspec.rounds import RoundRecord


def late(lag: int) -> type[Controller]:
    """A controller that has made `lag` further decisions when it learns of a round."""

    class Late(Controller):
        """See `late`."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._waiting = deque[RoundRecord]()

        def learn(self, record: RoundRecord) -> None:
            self._waiting.append(record)
            if len(self._waiting) > lag:
                super().learn(self._waiting.popleft())

    return Late
