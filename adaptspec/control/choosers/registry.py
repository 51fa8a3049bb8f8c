"""Which chooser the `algorithm` of a policy file means. To add one: its spec class, in the union below."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from adaptspec.control.choosers.batch_table import BatchTableSpec
from adaptspec.control.choosers.ema_tiers import EmaTiersSpec
from adaptspec.control.choosers.goodput import GoodputSpec
from adaptspec.control.choosers.static import StaticSpec

ChooseSpec = Annotated[
    StaticSpec | BatchTableSpec | EmaTiersSpec | GoodputSpec,
    Field(discriminator="algorithm"),
]
