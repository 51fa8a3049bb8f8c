"""Reading YAML: plain data only, bounded, and every problem has a place."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from adaptspec.control.language.yaml_source import parse_yaml, read_yaml
from adaptspec.errors import PolicyError

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)
)


def test_data_and_places() -> None:
    source = parse_yaml("a:\n  b: [1, two, null, true, 2.5]\n", "f.yaml")
    assert source.data == {"a": {"b": [1, "two", None, True, 2.5]}}
    assert str(source.error(("a", "b", 1), "bad")) == "f.yaml:2:10: a.b.1: bad"
    assert str(source.error(("a", "b"), "bad", at_key=True)) == "f.yaml:2:3: a.b: bad"
    assert str(source.error(("a", "nowhere"), "bad")) == "f.yaml:2:3: a: bad"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f:1:1: the file is empty"),
        ("a: [1, 2", "not YAML"),
        ("a: 1\na: 2", "f:2:1: a: this key stands here twice"),
        ("a: !!python/object/apply:os.system [ls]", "f:1:4: a: 'python/object/apply:os.system' is not allowed"),
        ("a: !custom x", "'!custom' is not allowed"),
        ("a: 2026-11-21", "'timestamp' is not allowed"),
        ("? [1, 2]\n: x", "is not allowed here"),
        (BOMB, "too many"),
        ("[" * 40 + "]" * 40, "too deeply"),
        ("a: *nowhere", "undefined alias"),
        ("a: &x [*x]", "too deeply"),
        ("a: 1\n---\nb: 2", "not YAML"),
        ("a: \x00", "not YAML"),
        ("[" * 100_000, "f:1:"),
    ],
)
def test_problems_are_located(text: str, message: str) -> None:
    begun = time.process_time()
    with pytest.raises(PolicyError) as caught:
        parse_yaml(text, "f")
    assert message in str(caught.value)
    # Not a benchmark: an alias bomb or deep nesting would take minutes.
    assert time.process_time() - begun < 5.0


def test_files(tmp_path: Path) -> None:
    for content, message in ((b"\xff\xfe\x00", "not UTF-8"), (b"a" * (10 << 20), "larger than 64 KiB")):
        path = tmp_path / "p.yaml"
        path.write_bytes(content)
        with pytest.raises(PolicyError, match=message):
            read_yaml(path)
    with pytest.raises(PolicyError, match="cannot be read"):
        read_yaml(tmp_path / "missing.yaml")
    with pytest.raises(PolicyError, match="cannot be read"):
        read_yaml(tmp_path)
