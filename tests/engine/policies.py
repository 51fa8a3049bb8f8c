"""Texts of policies, and costs that a test has at hand."""

from __future__ import annotations

from adaptspec.control.cost_profile import CostProfile, DrafterCost

HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: %s, description: %s}\nspec:\n"
COSTS = CostProfile(
    (1, 4),
    (1, 8),
    ((1e-3, 1.2e-3), (1.1e-3, 1.5e-3)),
    {"draft-model": DrafterCost((1, 4), (1e-4, 1e-4), 1e-6), "ngram": DrafterCost()},
    overhead=1e-4,
)


def static(name: str, depth: int, more: str = "") -> str:
    """A policy of one depth; `more` are further lines of its spec."""
    return HEAD % (name, f"depth {depth}") + f"  choose: {{algorithm: static, depth: {depth}}}\n{more}"


def goodput(name: str, more: str = "") -> str:
    """A policy that learns."""
    return HEAD % (name, "learns") + f"  choose: {{algorithm: goodput}}\n{more}"
