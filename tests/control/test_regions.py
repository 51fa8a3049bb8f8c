"""Regions of an output: what they are, and that they do not depend on how the text came."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.regions import OutputRegion
from adaptspec.control.tasks import REGIONS

PIECES = st.sampled_from(
    [
        *'{}[]"\\\n\n:; #`\ta1',
        *("```", "~~~", "json", "def f(", " x = [", "    ", "return ", "import os", "<b>"),
        *("word ", "if (", "  ", "for x in y:", "()", "long " * 20),
    ]
)


def _after(text: str, before: str = "") -> str:
    return REGIONS[OutputRegion(before).read(text)]


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(PIECES, max_size=30), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_the_region_depends_on_the_text_alone(pieces: list[str], sizes: list[int]) -> None:
    """However a text is cut into pieces, and whatever part of it was the prompt."""
    text = "".join(pieces)
    expected = OutputRegion().read(text)
    region, end, found = OutputRegion(), 0, 0
    for turn in range(len(text)):
        end = min(len(text), end + sizes[turn % len(sizes)])
        found = region.read(text[:end])
    assert found == expected
    assert region.read(text) == expected
    assert OutputRegion(text[: end // 2]).read(text[end // 2 :]) == expected


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(), max_size=300))
def test_any_text_has_a_region(text: str) -> None:
    """Models write anything."""
    assert OutputRegion().read(text) in range(len(REGIONS))


@pytest.mark.parametrize(
    ("text", "region"),
    [
        ("", "prose"),
        ("Once upon a time", "prose"),
        ("Here it is:\n\n```python\nx", "code"),
        ("```\nanything at all", "code"),
        ("```python\nx = 1\n```", "prose"),
        ("```python\nx = 1\n```\nAs you see", "prose"),
        ("~~~\n```\nstill inside", "code"),
        ('```json\n{"a": 1}\n', "json"),
        ('{"a": [1, 2', "json"),
        ('{"a": "}"', "json"),
        ('{"a": "\\"}", "b', "json"),
        ('{"a": 1}', "prose"),
        ('{\n  "a": {\n    "b": 1\n  }\n', "json"),
        ('{"a": 1}\n{"b": ', "json"),
        ("[1, 2,\n 3", "json"),
        ("[1] A footnote", "prose"),
        ("[a link](http", "prose"),
        ("{{ name }} is", "prose"),
        ("def add(a, b):", "code"),
        ("def add(a, b):\n    total = a + b\n\n    ", "code"),
        ("def add(a, b):\n    return a + b\n\nThis function adds.\nIt", "prose"),
        ("import os\n", "code"),
        ("int main() {\n  int a = 3;\n", "code"),
        ("SELECT name FROM users", "code"),
        ("<ul>\n  <li>apple", "code"),
        ("48 / 2 = 24.\nThe answer is 24", "prose"),
        ("return to the village", "code"),
    ],
)
def test_what_a_text_is_in_the_middle_of(text: str, region: str) -> None:
    """Examples of every rule, and one of what they get wrong."""
    assert _after(text) == region


def test_an_output_goes_on_from_its_prompt() -> None:
    """A fence that the prompt left open, or the function it began, holds for the output."""
    assert _after("x", before="Complete this:\n```python\n") == "code"
    assert _after("    return", before='def f(x):\n    """Add one."""\n') == "code"
    assert _after("Sure", before="\n") == "prose"
    assert _after(' "b"', before='{"a":') == "json"
