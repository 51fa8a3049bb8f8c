"""Making the drafters that `adaptspec.drafters` names, from the models that were loaded."""

from __future__ import annotations

import pkgutil

from adaptspec.drafters import DRAFTERS, at_hand
from adaptspec.drafting.drafter import Drafter, Loaded


def make_drafters(loaded: Loaded) -> list[Drafter]:
    """Every drafter that there is what it needs for."""
    names = at_hand(draft=loaded.draft is not None)
    return [pkgutil.resolve_name(DRAFTERS[name].maker)(loaded) for name in names]
