"""Stop rules: after each drafted token, whether a row drafts one more. They decide no depths.

`StopSpec` is what a policy file may say, by its `rule`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from adaptspec.control.stopping.marginal import MarginalGoodputStopSpec
from adaptspec.control.stopping.rules import (
    AdaEdlStopSpec,
    ConfidenceStopSpec,
    EntropyStopSpec,
    NoStopSpec,
    SvipStopSpec,
)

StopSpec = Annotated[
    NoStopSpec | ConfidenceStopSpec | EntropyStopSpec | AdaEdlStopSpec | SvipStopSpec | MarginalGoodputStopSpec,
    Field(discriminator="rule"),
]
