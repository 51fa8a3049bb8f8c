"""The measures of `tests.sizes` are within their limits, and each of them can find what it looks for."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptspec.app import AsyncEngine
from tests.request_way import request_way
from tests.sizes import (
    ROOT,
    Source,
    functions,
    late_imports,
    measures,
    modules_in_cycles,
    mutable_globals,
    repeated_names,
    single_importers,
    swallowed_errors,
    table,
    way_measures,
)


def test_the_code_keeps_its_shape() -> None:
    """What breaks a limit is named; `python -m tests.sizes` prints all of it."""
    broken = [measure for measure in measures() if not measure.good]
    assert not broken, f"\n{table(broken)}"


async def test_the_way_of_a_request_is_short(target_path: Path, draft_path: Path, tmp_path: Path) -> None:
    """Modules from HTTP handler to verification, and the records that a round makes."""
    if sys.getprofile() is not None:
        pytest.skip("a profiler is at work")
    hops, records = await request_way(target_path, draft_path, tmp_path)
    assert hops[0].startswith("adaptspec.server.")
    assert hops[-1].startswith("adaptspec.verification.")
    assert AsyncEngine.__module__ in hops
    assert any(name.endswith(".RoundRecord") for name in records)
    broken = [measure for measure in way_measures(hops, records) if not measure.good]
    assert not broken, f"\n{table(broken)}"


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, set()),
        ({"a": {"b"}, "b": {"a"}}, {"a", "b"}),
        ({"a": {"a"}}, {"a"}),
        ({"top": {"a"}, "a": {"b"}, "b": {"c"}, "c": {"a", "leaf"}, "leaf": set()}, {"a", "b", "c"}),
    ],
)
def test_cycles_are_found(imports: dict[str, set[str]], expected: set[str]) -> None:
    assert modules_in_cycles(imports) == expected


def test_single_importers_are_found_and_lists_are_none() -> None:
    imports = {"p": set(), "p.a": {"p.b", "p.c"}, "p.d": {"p.c"}, "p.registry": {"p.e"}, "p.b": {"p"}}
    assert single_importers(imports) == {"p.b": "p.a"}


def source(text: str, name: str = "engine/x.py") -> Source:
    return Source(ROOT / name, text)


def test_lengths_of_functions_are_found() -> None:
    assert list(functions(source("def f():\n    def g():\n        pass\n    return g\n"))) == [
        ("engine/x.py:1 f", 4),
        ("engine/x.py:2 g", 2),
    ]


def test_repeated_names_are_found() -> None:
    files = [source("", name) for name in ("a/x.py", "b/x.py", "a/__init__.py", "b/__init__.py", "y.py")]
    assert repeated_names(files) == {"x.py": ["a/x.py", "b/x.py"]}


def test_late_imports_are_found() -> None:
    text = "import os\ndef f():\n    import matplotlib.pyplot\n    from json import loads\n"
    assert list(late_imports(source(text))) == ["engine/x.py:4 json"]
    assert list(late_imports(source(text, "commands/x_command.py"))) == []


@pytest.mark.parametrize(
    ("handler", "count"),
    [
        ("except:\n    pass", 1),
        ("except Exception:\n    pass", 1),
        ("except BaseException:\n    x = 1", 1),
        ("except KeyError:\n    pass", 0),
        ("except Exception:\n    log()", 0),
        ("except Exception:\n    raise", 0),
        ("except Exception as error:\n    x = error", 0),
    ],
)
def test_swallowed_errors_are_found(handler: str, count: int) -> None:
    assert len(list(swallowed_errors(source(f"try:\n    f()\n{handler}\n")))) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("A = []\ndef f():\n    A.append(1)\n", 1),
        ("A: dict[str, int] = {}\ndef f():\n    A['x'] = 1\n", 1),
        ("A = None\ndef f():\n    global A\n    A = 1\n", 1),
        ("import itertools\nA = itertools.count()\n", 1),
        ("A = {'x': 1}\ndef f():\n    return A['x']\n", 0),
        ("def f():\n    a = []\n    a.append(1)\n", 0),
    ],
)
def test_mutable_globals_are_found(text: str, count: int) -> None:
    assert len(list(mutable_globals(source(text)))) == count


def cut_docstrings(text: str) -> Iterator[str]:
    """Docstrings in which an empty line comes amid a sentence."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first, _, more = (ast.get_docstring(node) or "").partition("\n\n")
            if more and not first.endswith((".", ":", "?", "!")):
                yield first


def test_no_docstring_is_cut() -> None:
    """A summary that needs two lines has two lines."""
    cut = {str(path): list(cut_docstrings(path.read_text(encoding="utf-8"))) for path in ROOT.rglob("*.py")}
    assert {path: found for path, found in cut.items() if found} == {}
    assert list(cut_docstrings('"""This goes\n\non here."""'))
