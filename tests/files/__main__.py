"""Records contracts anew and prints the difference to what was recorded before.

    python -m tests.files [NAME ...]    # all contracts, or those that are named

Look at the difference before you commit it: a contract is recorded anew for an intended change only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import torch

from tests.conftest import write_tiny_model
from tests.files.contracts import differences, flattened
from tests.files.registry import CONTRACTS, Place, opened


async def _record(names: Sequence[str], folder: Path) -> None:
    target, draft = folder / "target", folder / "draft"
    write_tiny_model(target, "llama", 0, {})
    write_tiny_model(draft, "llama", 1, {"num_hidden_layers": 1})
    async with opened(Place(target, draft, folder)) as place:
        for contract in CONTRACTS:
            if names and contract.name not in names:
                continue
            before = contract.recorded()
            found = await contract.record(place, before)
            contract.write(found)
            changes = list(differences(flattened(before), flattened(found)))
            sys.stdout.write("\n".join([f"{contract.name}: {len(changes)} differences", *changes]) + "\n")


def main() -> int:
    """The exit status is 0: whether a difference is intended is for its reader to say."""
    torch.set_num_threads(1)
    logging.disable()  # servers log what they refuse
    with tempfile.TemporaryDirectory() as name, mock.patch.dict(os.environ, {"XDG_CACHE_HOME": f"{name}/cache"}):
        asyncio.run(_record(sys.argv[1:], Path(name)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
