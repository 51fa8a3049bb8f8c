"""Words for problems: which keys there are where, and what stands in a message."""

from __future__ import annotations

import pytest

from adaptspec.control.language.build import parse_policy_spec
from adaptspec.control.language.spec import schema
from adaptspec.control.language.spec_errors import known_keys
from adaptspec.errors import PolicyError
from tests.policies.world import HEADER


@pytest.mark.parametrize(
    ("where", "some"),
    [
        ((), {"apiVersion", "kind", "metadata", "spec"}),
        (("spec",), {"choose", "tiers", "guard"}),
        (("spec", "choose", "static"), {"algorithm", "depth"}),
        (("spec", "guard", "never-slower"), {"margin"}),
        (("spec", "tasks", "code"), {"stop", "max-depth", "off"}),
        (("spec", "tasks", "code", "stop", "confidence"), {"rule", "threshold"}),
        (("spec", "choose", "ema-tiers", "ladders", 1), {"tiers"}),
    ],
)
def test_the_keys_of_every_place_are_known(where: tuple[object, ...], some: set[str]) -> None:
    """Through references, optional parts, variants and mappings by any name."""
    assert some <= set(known_keys(schema(), where))


@pytest.mark.parametrize("where", [("nowhere",), ("spec", "tiers", 0), ("spec", "choose"), (3, None)])
def test_where_there_are_none_there_are_none(where: tuple[object, ...]) -> None:
    """An error about an error would help nobody."""
    assert known_keys(schema(), where) == []


def test_an_algorithm_that_is_gone_says_what_to_write_instead() -> None:
    """Policy files of others stay, when an algorithm goes."""
    with pytest.raises(PolicyError, match=r"<policy>:5:\d+: .*no algorithm 'hedge' any more; write .*goodput"):
        parse_policy_spec(HEADER + "  choose: {algorithm: hedge, scope: request}\n  drafters: [draft-model, ngram]\n")
