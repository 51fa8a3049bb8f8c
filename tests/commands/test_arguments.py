"""Arguments that several commands share."""

from __future__ import annotations

import argparse

from adaptspec.commands.arguments import complete_policies
from adaptspec.control.language.library import shipped_policies


def test_policies_are_completed_by_name() -> None:
    """Those that ship; files are the shell's own."""
    action = argparse.ArgumentParser().add_argument("policy")
    complete_policies(action)
    assert {path.stem for path in shipped_policies()} <= set(action.completer("g"))  # type: ignore[attr-defined]
