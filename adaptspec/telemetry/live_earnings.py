"""What speculation earned, for the live feed: sums over time as plain data, and how much of them is new.

Knows estimates of `telemetry.earnings`; it does not make any.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from adaptspec.telemetry.earnings import EarningsSnapshot, Estimate
from adaptspec.telemetry.static_tiers import TierEarnings

# Over rounds that are compared with plain decoding: tokens, their seconds, and seconds without speculation; over those
# that are compared with the fixed depth that is best so far: their seconds, and those at it.
COMPARED_COLUMNS = ("tokens", "seconds", "off_seconds", "best_compared_seconds", "best_seconds")


def earned(now: EarningsSnapshot) -> dict[str, Any]:
    """Everything since the server began. What is not known yet is None."""
    best, calibration = now.best_static, now.calibration
    return {
        "speedup": _told(now.speedup),
        "best_static": None if best is None else {"depth": best.tier.depth, "drafter": best.tier.drafter},
        "regret": _told(now.regret),
        "costs_unsure": now.unsure,
        "saved_tokens": now.saved_tokens,
        "wasted_tokens": now.wasted_tokens,
        "depth_switches": now.depth_switches,
        "drafter_switches": now.drafter_switches,
        "guard_switches": now.guard_switches,
        "probes": now.probes,
        "probes_won": now.probes_won,
        "predicted_over_realised": round(calibration.goodput_ratio, 4),
    }


def compared(before: EarningsSnapshot, now: EarningsSnapshot) -> list[float]:
    """What `now` has over `before`, by COMPARED_COLUMNS."""
    earlier = {one.tier: one for one in before.tiers}

    def more(one: TierEarnings | None, *fields: str) -> list[float]:
        if one is None:
            return [0.0] * len(fields)
        old = earlier.get(one.tier, TierEarnings(one.tier))
        return [round(getattr(one, field) - getattr(old, field), 6) for field in fields]

    return [*more(now.off, "tokens", "against", "seconds"), *more(now.best_static, "against", "seconds")]


def _told(found: Estimate | None) -> dict[str, float] | None:
    return None if found is None else {name: round(value, 4) for name, value in asdict(found).items()}
