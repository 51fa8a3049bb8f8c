"""Reading YAML: plain data only, bounded, and every problem has a place."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.language.yaml_source import dump_yaml, parse_yaml, read_yaml
from adaptspec.errors import PolicyError


def test_data_and_places() -> None:
    source = parse_yaml("a:\n  b: [1, two, null, true, 2.5]\n", "f.yaml")
    assert source.data == {"a": {"b": [1, "two", None, True, 2.5]}}
    assert str(source.error(("a", "b", 1), "bad")) == "f.yaml:2:10: a.b.1: bad"
    assert str(source.error(("a", "b"), "bad", at_key=True)) == "f.yaml:2:3: a.b: bad"
    assert str(source.error(("a", "nowhere"), "bad")) == "f.yaml:2:3: a: bad"


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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12), ("-3", -3), ("+7", 7), ("010", 10), ("0o17", 15), ("0x1F", 31), ("0", 0),
        ("1.5", 1.5), ("1e3", 1000.0), ("1e-3", 0.001), ("2.", 2.0), (".5", 0.5), ("-1.5E+2", -150.0),
        (".inf", math.inf), ("-.INF", -math.inf), ("+.Inf", math.inf), ("!!float 3", 3.0), ("!!int 0o17", 15),
        ("'1:30'", "1:30"), ('"0o17"', "0o17"), ("!!str 12", "12"),
        ("1.2.3", "1.2.3"), ("0o18", "0o18"), ("1e", "1e"), ("0xfg", "0xfg"), ("v1:30", "v1:30"), ("1:3x", "1:3x"),
        ("yes", "yes"), ("off", "off"), ("~", None), ("True", True),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    """Numbers of the core schema; text that looks like one in no version of YAML stays text."""
    data = parse_yaml(f"a: {text}", "f").data
    assert data == {"a": value}
    assert type(data["a"]) is type(value)  # type: ignore[index]


NEARLY_NUMBERS = st.text("0123456789_:.eExob+-naifNI ~", max_size=6)
WORDS = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NEARLY_NUMBERS | WORDS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4), max_leaves=8)


@given(VALUES)
def test_what_is_written_is_read_back(value: object) -> None:
    """Text that YAML 1.1 or 1.2 would read as a number is written in quotes."""
    assert parse_yaml(dump_yaml({"a": value}), "f").data == {"a": value}


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_files_of_any_editor_are_read(tmp_path: Path, mark: bytes, end: bytes) -> None:
    """With a byte order mark or without, and with the line ends of any system; places stay right."""
    path = tmp_path / "p.yaml"
    path.write_bytes(mark + b"# of ours" + end + b"a: 1" + end + b"b: [x, 2]" + end)
    source = read_yaml(path)
    assert source.data == {"a": 1, "b": ["x", 2]}
    assert str(source.error(("b", 1), "bad")) == f"{path}:3:8: b.1: bad"
