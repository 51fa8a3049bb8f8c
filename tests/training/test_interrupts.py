"""Ctrl-C inside a block that must not be left half done: late, but not lost."""

from __future__ import annotations

import signal

import pytest

from adaptspec.training.interrupts import held_back


def test_ctrl_c_takes_effect_at_the_end_of_the_block() -> None:
    """Half an optimizer step must not be saved."""
    usual, done = signal.getsignal(signal.SIGINT), []

    def block() -> None:
        with held_back():
            signal.raise_signal(signal.SIGINT)
            done.append("whole")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["whole"]
    assert signal.getsignal(signal.SIGINT) is usual
