"""Stop rules: after each drafted token, whether a row drafts one more. They decide no depths."""

from adaptspec.control.stopping.marginal import MarginalGoodputStop
from adaptspec.control.stopping.split import SplitStop, StopPart, TaskStops
from adaptspec.control.stopping.stop import NoStop, StopRule
from adaptspec.control.stopping.thresholds import ConfidenceStop, EntropyStop

__all__ = [
    "ConfidenceStop",
    "EntropyStop",
    "MarginalGoodputStop",
    "NoStop",
    "SplitStop",
    "StopPart",
    "StopRule",
    "TaskStops",
]
