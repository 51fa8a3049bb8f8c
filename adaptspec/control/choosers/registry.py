"""Which chooser the `algorithm` of a policy file means. To add one: its spec class, in the union below."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from adaptspec.control.choosers.batch_table import BatchTableSpec
from adaptspec.control.choosers.ema_tiers import EmaTiersSpec
from adaptspec.control.choosers.exp3 import Exp3Spec
from adaptspec.control.choosers.goodput_spec import GoodputSpec
from adaptspec.control.choosers.linucb import LinUcbSpec
from adaptspec.control.choosers.nightjar import NightjarSpec
from adaptspec.control.choosers.slo import SloSpec
from adaptspec.control.choosers.static import StaticSpec
from adaptspec.control.choosers.thompson import ThompsonSpec
from adaptspec.control.choosers.ucb import UcbSpec

ChooseSpec = Annotated[
    StaticSpec
    | BatchTableSpec
    | EmaTiersSpec
    | GoodputSpec
    | UcbSpec
    | ThompsonSpec
    | Exp3Spec
    | LinUcbSpec
    | NightjarSpec
    | SloSpec,
    Field(discriminator="algorithm"),
]
