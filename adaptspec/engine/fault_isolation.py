"""Finds the request that makes rounds fail, by running fewer and fewer of those that were in one that did."""

from __future__ import annotations

from adaptspec.engine.sequence import Sequence


class FaultBisection:
    """Finds the request that makes rounds fail: who was in such a round runs again in halves, at last each by itself.

    The first group runs until each of it has read its tokens and decoded once; a group of one that fails is it. A
    failure that goes away by itself thus harms nobody. One that takes several requests together (memory that is short
    for so many at once) is nobody's either: `bearable` says how many were seen to run well.
    """

    def __init__(self) -> None:
        self._groups: list[list[Sequence]] = []
        self._marks: dict[int, int] = {}
        self._found = False
        self.bearable: int | None = None

    @property
    def group(self) -> list[Sequence] | None:
        """Who may run, in the order they came; None when nobody is under suspicion."""
        return self._groups[0] if self._groups else None

    def failed(self, ran: list[Sequence]) -> Sequence | None:
        """A round of these has failed. Returns the culprit, if it is known now."""
        if not self._groups:
            self._found, self.bearable = False, None
        rest = self._groups[1:]
        if len(ran) < 2:
            self._found = True
            self._groups = rest
            return ran[0] if ran else None
        half = len(ran) // 2
        self._groups = [list(ran[:half]), list(ran[half:]), *rest]
        self._marks |= {id(sequence): len(sequence.tokens) for sequence in ran}
        return None

    def clear(self, sequence: Sequence) -> None:
        """Suspect it no longer."""
        groups = [[one for one in group if one is not sequence] for group in self._groups]
        self._groups = [group for group in groups if group]
        self._marks.pop(id(sequence), None)

    def went_well(self) -> bool:
        """A round has gone well. Returns whether that has just cleared the last suspects, and found no culprit."""
        group = self._groups[0]
        # One token comes from reading what it had again; what fails may fail in decoding only.
        if any(one.finish is None and len(one.tokens) < self._marks[id(one)] + 2 for one in group):
            return False
        self._groups.pop(0)
        self.bearable = max(len(group), self.bearable or 1)
        if self._groups:
            return False
        self._marks.clear()
        return not self._found
