"""Finds the request that makes rounds fail, by bisection; and the failures that no request is to blame for."""

from __future__ import annotations

import torch

from adaptspec.engine.sequence import Sequence

# After an illegal access or a device assertion every later call on the device fails, until the process is restarted.
# A lack of memory is another error.
DEVICE_FAILURES: tuple[type[Exception], ...] = (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()


class FaultBisection:
    """The requests of a failed round run again in halves, then in quarters, until one fails alone.

    A group is cleared once all its requests have read their tokens and decoded once. A transient failure ends no
    request. If no request fails alone, `safe_batch_size` is the largest number that ran together without a failure.
    """

    def __init__(self) -> None:
        self._groups: list[list[Sequence]] = []
        self._marks: dict[int, int] = {}
        self._found = False
        self.safe_batch_size: int | None = None

    @property
    def group(self) -> list[Sequence] | None:
        """Requests that may run, in order of arrival; None if no bisection is in progress."""
        return self._groups[0] if self._groups else None

    def failed(self, ran: list[Sequence]) -> Sequence | None:
        """Split the requests of a failed round. Returns the culprit, if it is known."""
        if not self._groups:
            self._found, self.safe_batch_size = False, None
        rest = self._groups[1:]
        if len(ran) < 2:
            self._found = True
            self._groups = rest
            if not rest:
                self._marks.clear()
            return ran[0] if ran else None
        half = len(ran) // 2
        self._groups = [list(ran[:half]), list(ran[half:]), *rest]
        self._marks |= {id(sequence): len(sequence.tokens) for sequence in ran}
        return None

    def clear(self, sequence: Sequence) -> None:
        """Remove a request from the bisection."""
        groups = [[other for other in group if other is not sequence] for group in self._groups]
        self._groups = [group for group in groups if group]
        self._marks.pop(id(sequence), None)

    def succeeded(self) -> bool:
        """Handle a successful round. Returns whether the bisection has just ended without a culprit."""
        group = self._groups[0]
        # The first new token comes from reading; a request may fail in decoding only.
        if any(one.finish is None and len(one.tokens) < self._marks[id(one)] + 2 for one in group):
            return False
        self._groups.pop(0)
        self.safe_batch_size = max(len(group), self.safe_batch_size or 1)
        if self._groups:
            return False
        self._marks.clear()
        return not self._found
