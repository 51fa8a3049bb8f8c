"""Which parts of an output a drafter has proposed: for requests that want to know.

Knows tokens only by how long the text was after each; it does not know models, nor why a draft was accepted.
"""

from __future__ import annotations

from collections import deque

from adaptspec.types import Piece


class Origins:
    """One request's. `add` every token as it is committed; `take` the pieces of the text that goes out."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, str | None]] = deque()  # where the text of a token ends, and its drafter
        self._taken = 0

    def add(self, end: int, drafter: str | None) -> None:
        """One token, after which the text was `end` characters long; `drafter` None: the target's own."""
        self._waiting.append((end, drafter))

    def take(self, text: str) -> tuple[Piece, ...]:
        """The pieces of the text that follows what was taken before, a token each.

        A token without text of its own (of a character still incomplete, or an end) makes no piece. What no token
        vouches for, such as a character cut short at the end, is the target's own.
        """
        pieces, done, end = [], 0, self._taken + len(text)
        while done < len(text) and self._waiting:
            upto, drafter = self._waiting[0]
            size = min(upto, end) - self._taken - done
            if size > 0:
                pieces.append(Piece(text[done : done + size], drafter))
                done += size
            if upto > end:
                break  # the rest of its text is held back
            self._waiting.popleft()
        if done < len(text):
            pieces.append(Piece(text[done:], None))
        self._taken = end
        return tuple(pieces)
