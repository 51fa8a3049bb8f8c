"""The worlds, by name. `best` is the best fixed depth in hindsight; `python -m tests.policies --best` finds it anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adaptspec.control.cost_profile import CostProfile
from tests.policies.hosted import SLOW_DRAFT, USUAL, WIDE, HostedWorld
from tests.policies.tapes import Kind
from tests.policies.world import GPU, OFF, STEPPED, Clock, Phase, Setting, StartProfile, World

EASY, EVEN, HARD, WRONG = Kind(0.9), Kind(0.7), Kind(0.3), Kind(0.0, 0.0)
UNLIKE = (Kind(0.1), Kind(0.9))
TASKS = (Kind(0.9, task="code"), Kind(0.05, task="story"))


def priced(plain: float, tokens: float, drafting: float) -> StartProfile:
    """A profile that is wrong by factors: of passes of one token a row, of longer ones, and of draft steps."""

    def start(true: CostProfile, _: np.random.Generator) -> CostProfile:
        verify = tuple(tuple(s * (tokens if j else plain) for j, s in enumerate(line)) for line in true.verify)
        drafters = {
            name: replace(cost, step_seconds=tuple(s * drafting for s in cost.step_seconds))
            for name, cost in true.drafters.items()
        }
        return replace(true, verify=verify, drafters=drafters)

    return start


def _requests(kinds: tuple[Kind, ...] | Kind, requests: int, length: int = 128, prompt: int = 64) -> tuple[Phase, ...]:
    return (Phase(kinds if isinstance(kinds, tuple) else (kinds,), requests, length, prompt),)


def _asked(*kinds: Kind, requests: int) -> tuple[Phase, ...]:
    """Requests with short prompts."""
    return _requests(kinds, requests, prompt=16)


STEADY = (
    World("easy-1", _requests(EASY, 12), Setting(7)),
    World("even-1", _requests(EVEN, 12), Setting(2)),
    World("hard-1", _requests(HARD, 8), Setting(1)),
    World("even-4", _requests(EVEN, 24), Setting(2), (4,)),
    World("easy-16", _requests(EASY, 64), Setting(3), (16,)),
    World("hard-16", _requests(HARD, 40), OFF, (16,)),
    World("gpu-1", _requests(Kind(0.5), 12), Setting(3), machine=GPU),
    World("gpu-easy-4", _requests(EASY, 32), Setting(7), (4,), machine=GPU),
    World("stepped-2", _requests(EVEN, 16), Setting(1), (2,), machine=STEPPED),
    World("lookups-1", _requests((Kind(0.75, 0.92), Kind(0.75, 0.1)), 16), Setting(3), settled=0.2),
    World("mixed-1", _requests(UNLIKE, 16), Setting(1)),
    World("mixed-4", _requests(UNLIKE, 32), Setting(1), (4,)),
    World("crowd", _requests(EVEN, 60), Setting(2), (1, 16, 1)),
    World("trees", _requests(EVEN, 12), Setting(5), machine=GPU, candidates=True),
    World("bandits-even", _requests(EVEN, 24), Setting(2), settled=0.5),
    World("bandits-easy", _requests(Kind(0.95), 24), Setting(7), settled=0.5),
    World("bandits-8", _requests(Kind(0.6), 120, 60), Setting(1), (8,), settled=0.5),
    World("tasks", _requests(TASKS, 24), Setting(1), settled=0.3),
)
HOPELESS = (
    World("wrong-1", _requests(WRONG, 16), OFF),
    World("wrong-16", _requests(WRONG, 40), OFF, (16,)),
    World("wrong-long", _requests(WRONG, 1, 2000), OFF),
    World("wrong-late", _requests(WRONG, 26), OFF, settled=0.6),
)
SHIFTS = (
    World("up", (Phase((WRONG,), 8), Phase((EASY,), 12)), Setting(7), settled=0.45),
    World("down", (Phase((EASY,), 12), Phase((WRONG,), 8)), OFF, settled=0.65),
    World("up-within", _requests(Kind((0.0, 0.95), 0.0), 1, 3000), Setting(7), settled=0.6),
    World("down-within", _requests(Kind((0.9, 0.9, 0.0), 0.0), 1, 3000), OFF, settled=0.75),
)
CLOCKS = (
    World("stalls", _requests(EASY, 12), Setting(7), clock=Clock(0.02, 0.01, 20.0, (100, 300, 2.0))),
    World("stalls-wrong", _requests(WRONG, 12), OFF, clock=Clock(0.02, 0.01, 20.0, (200, 600, 2.0)), settled=0.3),
    World("too-cheap", _requests(Kind(0.2), 12), OFF, start=priced(1.2, 0.7, 0.5)),
    World("too-dear", _requests(EASY, 12), Setting(7), start=priced(1.0, 3.0, 3.0), settled=0.2),
)
PROMPTS = (
    World("prompts", _requests(EASY, 40, 48, 200), Setting(5), (4,), prefill=64),
    World("prompts-wrong", _requests(WRONG, 40, 48, 200), OFF, (4,), prefill=64),
)
LATE = (
    *(World(f"mixed-late-{lag}", _requests(UNLIKE, 32), Setting(1), (4,), lag=lag) for lag in (1, 2, 3)),
    *(World(f"wrong-late-{lag}", _requests(WRONG, 16), OFF, lag=lag) for lag in (1, 2, 3)),
    # A request of another task follows in the row while rounds of the last one are still to be learned from.
    World("short-late-3", _requests(TASKS, 100, 24), Setting(1), lag=3, settled=0.2),
)
_SHARED = replace(USUAL, name="shared", verify_ms=(4.2, 24.2))
HOSTED = (
    *(
        HostedWorld(f"{m.name}-{rate}-{rows}", _asked(Kind(rate), requests=8 * rows + 8), OFF, (rows,), m, settled=0.3)
        for m in (USUAL, WIDE, SLOW_DRAFT)
        for rate in (0.75, 0.4, 0.02)
        for rows in (1, 4, 16)
    ),
    HostedWorld("host-mixed", _asked(Kind(0.85), Kind(0.02), requests=100), OFF, (16,), _SHARED, settled=0.3),
    HostedWorld("host-busy", _asked(Kind(0.75), requests=60), OFF, (4,), USUAL, Clock(0.3, 0.2, 3.0), settled=0.3),
    HostedWorld("host-skip", _asked(Kind(0.02), requests=40), OFF, (4,), SLOW_DRAFT, settled=0.5, skip_draft=True),
    HostedWorld("host-skip-0.2", _asked(Kind(0.2), requests=40), OFF, (4,), SLOW_DRAFT, settled=0.5, skip_draft=True),
    HostedWorld("host-prompts", _requests(Kind(0.75), 200, 32, 300), OFF, (4,), USUAL, settled=0.3),
    HostedWorld("host-late-2", _asked(Kind(0.75), requests=60), OFF, (4,), USUAL, lag=2, settled=0.3),
    HostedWorld("host-late-3", _asked(Kind(0.75), requests=60), OFF, (4,), USUAL, lag=3, settled=0.3),
)
WORLDS = {world.name: world for world in (*STEADY, *HOPELESS, *SHIFTS, *CLOCKS, *PROMPTS, *LATE, *HOSTED)}
