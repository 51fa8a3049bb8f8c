"""Finding policies: shipped ones by name, others by path, mistakes with a suggestion."""

from __future__ import annotations

import pytest

from adaptspec.control.language.library import find_policy, shipped_policies
from adaptspec.errors import PolicyError


def test_every_shipped_policy_is_found_by_its_name() -> None:
    """Names are file names without the ending."""
    for path in shipped_policies():
        assert find_policy(path.stem) == path


@pytest.mark.parametrize(
    ("name", "hint"), [("godput", "did you mean goodput"), ("zzz", "shipped are"), ("x.yaml", "no such file")]
)
def test_mistakes_say_what_there_is(name: str, hint: str) -> None:
    """A typo must not need the documentation."""
    with pytest.raises(PolicyError, match=hint):
        find_policy(name)
