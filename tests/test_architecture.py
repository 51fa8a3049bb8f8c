"""The shape of the code: no import cycles, imports inside functions and for types only counted."""

from __future__ import annotations

from collections.abc import Mapping, Set

import grimp
import pytest


def modules_in_cycles(imports: Mapping[str, Set[str]]) -> set[str]:
    """Modules that import each other in a circle, and those that lead from one circle to another."""
    left = {module: set(targets) for module, targets in imports.items()}
    while True:
        importing = {module for module, targets in left.items() if targets & left.keys()}
        imported = {target for targets in left.values() for target in targets}
        kept = importing & imported
        if kept == left.keys():
            return kept
        left = {module: left[module] & kept for module in kept}


def test_no_module_imports_itself_in_a_circle() -> None:
    """A cycle makes modules impossible to read, test or move one by one."""
    graph = grimp.build_graph("adaptspec", exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert modules_in_cycles(imports) == set()


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, set()),
        ({"a": {"b"}, "b": {"a"}}, {"a", "b"}),
        ({"a": {"a"}}, {"a"}),
        ({"top": {"a"}, "a": {"b"}, "b": {"c"}, "c": {"a", "leaf"}, "leaf": set()}, {"a", "b", "c"}),
    ],
)
def test_the_check_finds_cycles(imports: dict[str, set[str]], expected: set[str]) -> None:
    """The check itself can fail."""
    assert modules_in_cycles(imports) == expected
