"""Which stop the `rule` of a policy file means. To add one: its spec class, in the union below."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from adaptspec.control.stopping.adaedl import AdaEdlStopSpec
from adaptspec.control.stopping.marginal import MarginalGoodputStopSpec
from adaptspec.control.stopping.stop import NoStopSpec
from adaptspec.control.stopping.thresholds import ConfidenceStopSpec, EntropyStopSpec, SvipStopSpec

StopSpec = Annotated[
    NoStopSpec | ConfidenceStopSpec | EntropyStopSpec | AdaEdlStopSpec | SvipStopSpec | MarginalGoodputStopSpec,
    Field(discriminator="rule"),
]
