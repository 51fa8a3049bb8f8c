"""Reading JSON with places, writing policies that are valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.control.importing.foreign import Imported, policy_text, read_foreign
from adaptspec.control.spec import parse_policy_spec
from adaptspec.errors import PolicyError


def test_json_with_tabs_is_read(tmp_path: Path) -> None:
    """YAML has no tabs, JSON does."""
    path = tmp_path / "c.json"
    path.write_text('{\n\t"a":\t[1, 2.5, true, null, "x"]\n}')
    assert read_foreign(path).data == {"a": [1, 2.5, True, None, "x"]}


@pytest.mark.parametrize(("text", "said"), [("[1]", "c.json:1:1: a mapping"), ("{", "c.json:1:2: not YAML")])
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(PolicyError, match=said):
        read_foreign(path)


def test_what_is_written_is_a_policy_with_completion() -> None:
    """Editors need the first line; readers the remarks."""
    text = policy_text(Imported("x", "y", {"choose": {"algorithm": "static", "depth": 2}}, ["Why."]))
    assert text.startswith("# yaml-language-server: $schema=./policy.schema.json\n# Why.\n")
    assert parse_policy_spec(text).name == "x"
