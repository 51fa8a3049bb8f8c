"""Several answers to one prompt: which seed each draws with."""

from __future__ import annotations

# SplitMix64's own step from one stream to the next; the engine mixes seeds well, so any odd step would do.
_STEP = 0x9E3779B97F4A7C15


def seed_of_choice(seed: int | None, choice: int) -> int | None:
    """The seed of answer number `choice` (from 0) to a request with `seed`: (seed + choice * STEP) mod 2^63.

    Choice 0 has the request's own seed, and so is the answer of a request for one. No seed stays none: the engine then
    draws one for each.
    """
    if seed is None or choice == 0:
        return seed
    return (seed + choice * _STEP) % 2**63
