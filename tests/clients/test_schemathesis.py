"""`openapi.json` is true: schemathesis finds nothing the server does that it does not say, nor the other way round."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.conftest import environment, run
from tests.e2e.conftest import start_server

# What fields allow together, what the context has room for and which ids exist, no schema can say: that is a 400.
_CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "404", "429"]
"""


@pytest.mark.parametrize(
    "examples", [pytest.param(4, marks=pytest.mark.clients), pytest.param(60, marks=pytest.mark.nightly)]
)
def test_schemathesis_finds_nothing(tmp_path: Path, examples: int) -> None:
    """Against a real server, whose context is short so that no example writes for long."""
    config = tmp_path / "schemathesis.toml"
    config.write_text(_CONFIG)
    server = start_server("--max-model-len", "24")
    try:
        run(
            environment("schemathesis", "schemathesis") / "schemathesis",
            *("--config-file", config, "run", f"{server.url}/openapi.json", "--checks", "all", "--workers", "2"),
            *(
                "--max-examples",
                str(examples),
                "--seed",
                "1",
                "--no-color",
                "--request-timeout",
                "60",
                "--max-response-time",
                "60",
            ),
            timeout=900,
        )
    finally:
        status = server.terminate()
    assert status == 0
