"""The inflated target says what the bundled one says, so that its acceptance is real."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.inflated import TARGET, inflate
from tests.models.packing import feed, load_runner, random_tokens


def test_a_wider_target_has_the_same_logits(tmp_path: Path) -> None:
    wide = inflate(tmp_path / "wide", 2)
    tokens = random_tokens(24)
    one, other = (feed(load_runner(str(place), max_rows=1), 0, tokens) for place in (TARGET, wide))
    torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-4)
