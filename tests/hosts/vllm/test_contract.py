"""What is refused at the start, and by which words: what vLLM is not, and what it is not set up for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from adaptspec.errors import ConfigError
from adaptspec.hosts.engine_contract import ANY_VERSION
from adaptspec.hosts.vllm.contract import EXTENSION, check_config, check_skipping, check_version
from tests.hosts.vllm.conftest import Program


@pytest.mark.hosts
@pytest.mark.timeout(300)
def test_every_name_that_is_another_is_refused_by_its_name(program: Program) -> None:
    told = program("mutants")
    assert told["mutants"] > 50
    assert told["missed"] == []


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1rc1", "0.33.0+cpu"])
def test_known_versions(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.31.4", "0.34.0", "1.0.0", "0.3.2", "0.320.1", "dev"])
def test_other_versions_only_if_asked_for(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=ANY_VERSION):
        check_version(version)
    monkeypatch.setenv(ANY_VERSION, "1")
    check_version(version)


def config(**changes: Any) -> SimpleNamespace:
    """What is read of vLLM's configuration, with `section__field=value` in place of what can be served."""
    sections: dict[str, Any] = {
        "speculative_config": SimpleNamespace(
            method="draft_model", enable_adaptive_verification=False, parallel_drafting=False
        ),
        "parallel_config": SimpleNamespace(
            data_parallel_size=1, pipeline_parallel_size=1, worker_extension_cls=EXTENSION
        ),
        "cache_config": SimpleNamespace(enable_prefix_caching=False),
        "use_v2_model_runner": False,
    }
    for place, value in changes.items():
        section, _, field = place.partition("__")
        if field:
            setattr(sections[section], field, value)
        else:
            sections[section] = value
    return SimpleNamespace(**sections)


def test_what_can_be_served() -> None:
    check_config(config())
    check_skipping(config())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculative_config": None}, "--speculative-config"),
        ({"parallel_config__data_parallel_size": 2}, "data-parallel"),
        ({"parallel_config__pipeline_parallel_size": 2}, "--pipeline-parallel-size"),
        ({"speculative_config__method": "custom_class"}, "custom_class"),
        ({"speculative_config__method": "suffix"}, "suffix"),
        ({"speculative_config__parallel_drafting": True}, "in parallel"),
        ({"speculative_config__enable_adaptive_verification": True}, "enable_adaptive_verification"),
    ],
)
def test_what_cannot_be_served(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_config(config(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculative_config__method": "eagle3"}, "draft models and MTP"),
        ({"use_v2_model_runner": True}, "V1 runner"),
        ({"cache_config__enable_prefix_caching": True}, "--no-enable-prefix-caching"),
        ({"parallel_config__worker_extension_cls": ""}, "--worker-extension-cls"),
    ],
)
def test_where_the_draft_cannot_be_skipped(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_skipping(config(**changes))
