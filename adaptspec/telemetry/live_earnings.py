"""What speculation earned, for the live feed: sums over time as plain data, and how much of them is new.

Knows estimates of `telemetry.earnings`; it does not make any.
"""

from __future__ import annotations

from typing import Any

from adaptspec.telemetry.earnings import EarningsSnapshot, TierEarnings

# Over rounds that no prompt was read in: tokens, their seconds, and the seconds they would have taken without
# speculation and at the fixed depth that is the best one so far.
COMPARED_COLUMNS = ("tokens", "seconds", "off_seconds", "best_seconds")


def earned(now: EarningsSnapshot) -> dict[str, Any]:
    """Everything since the server began."""
    best, calibration = now.best_static, now.calibration
    return {
        "speedup": round(now.speedup, 4),
        "best_static": None if best is None else {"depth": best.tier.depth, "drafter": best.tier.drafter},
        "regret": round(now.regret, 4),
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
    earlier = {one.tier: one.seconds for one in before.tiers}

    def more(one: TierEarnings | None) -> float:
        return 0.0 if one is None else round(one.seconds - earlier.get(one.tier, 0.0), 6)

    return [
        now.compared_tokens - before.compared_tokens,
        round(now.compared_seconds - before.compared_seconds, 6),
        more(now.off),
        more(now.best_static),
    ]
