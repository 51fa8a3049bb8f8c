"""Which chooser the `algorithm` of a policy file means. To add one: its spec class, in the union below.

Algorithms of installed packages follow, with the same errors and the same place in the schema.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from adaptspec.control.bandits.algorithms import Exp3Spec, LinUcbSpec, NightjarSpec, ThompsonSpec, UcbSpec
from adaptspec.control.choosers.batch_table import BatchTableSpec
from adaptspec.control.choosers.ema_tiers import EmaTiersSpec
from adaptspec.control.choosers.goodput_spec import GoodputSpec
from adaptspec.control.choosers.installed import INSTALLED
from adaptspec.control.choosers.slo import SloSpec
from adaptspec.control.choosers.static import StaticSpec

Shipped = (
    StaticSpec
    | BatchTableSpec
    | EmaTiersSpec
    | GoodputSpec
    | UcbSpec
    | ThompsonSpec
    | Exp3Spec
    | LinUcbSpec
    | NightjarSpec
    | SloSpec
)
if TYPE_CHECKING:
    _Every = Shipped
else:
    _Every = functools.reduce(operator.or_, INSTALLED.specs.values(), Shipped)

ChooseSpec = Annotated[_Every, Field(discriminator="algorithm")]
