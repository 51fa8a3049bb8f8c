"""A start says what it does: a line that changes on a terminal, lines elsewhere, not too many of them."""

from __future__ import annotations

import io

from rich.console import Console

from adaptspec.start_status import EVERY_SECONDS, StartStatus


def test_a_pipe_gets_a_line_per_phase_and_one_from_time_to_time() -> None:
    now, out = [100.0], io.StringIO()
    with StartStatus(Console(file=out, width=20), "loading libraries", clock=lambda: now[0]) as status:
        status("reading weights of /a/rather/long/path")
        for step in range(1, 13):
            status(f"measuring costs ({step} of 12)")
            now[0] += EVERY_SECONDS / 5
        status("warming up")
        assert status.seconds == 12 * EVERY_SECONDS / 5
    assert out.getvalue().splitlines() == [
        "reading weights of /a/rather/long/path",
        "measuring costs (1 of 12)",
        "measuring costs (6 of 12)",
        "measuring costs (11 of 12)",
        "warming up",
    ]


def test_a_terminal_gets_a_status_that_goes_away() -> None:
    out = io.StringIO()
    status = StartStatus(Console(file=out, force_terminal=True, width=80), "loading libraries")
    status("measuring costs (7 of 24)")
    status.close()
    status.close()
    assert "measuring costs (7 of 24)" in out.getvalue()
    assert out.getvalue().endswith("\x1b[2K"), "the line is erased at the end"
