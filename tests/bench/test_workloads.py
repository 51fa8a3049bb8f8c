"""Workloads: built in or from files, spread over sources, encoded as one chat turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.bench.workloads import read_workloads
from adaptspec.errors import CorpusError


def test_an_empty_folder_says_what_to_give(tmp_path: Path) -> None:
    """No prompts: an error that names the format."""
    with pytest.raises(CorpusError, match="task, source and prompt"):
        read_workloads(tmp_path, 1)
