"""Checks the whole table of promises, or measures it anew.

python -m tests.policies                     # every promise over five seeds; 1 where one is broken
python -m tests.policies --only goodput --rows   # lines for the table, with floors by its rule
python -m tests.policies --best              # the best fixed depth of every world
python -m tests.policies --clocks 300        # draws of wrong clocks, summed up
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.policies.promises import PROMISES, SEEDS, Measured, Promise, broken, floor, measured
from tests.policies.world import OFF
from tests.policies.worlds import WORLDS
from tests.policies.wrong_clocks import draw, summary


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="promises whose policy or world has this in its name")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: %(default)s)")
    parser.add_argument("--rows", action="store_true", help="print lines for the table")
    parser.add_argument("--best", action="store_true", help="print each world's fixed depths, best first")
    parser.add_argument("--clocks", type=int, metavar="N", help="draw N worlds with wrong clocks")
    asked = parser.parse_args(arguments)
    with ProcessPoolExecutor(asked.jobs) as pool:
        if asked.best:
            for line in pool.map(best, [name for name in WORLDS if asked.only in name]):
                _print(line)
            return 0
        if asked.clocks:
            runs = list(pool.map(partial(draw, asked.only or "goodput"), range(asked.clocks)))
            _print(json.dumps(summary(runs), indent=1))
            return 0
        wanted = [promise for promise in PROMISES if asked.only in promise.policy or asked.only in promise.world]
        found = pool.map(partial(measured, seeds=asked.seeds), wanted)
        failed = list(_checked(wanted, found, rows=asked.rows))
    return int(bool(failed))


def best(name: str) -> str:
    """The settings of a world over plain decoding, best first."""
    world = WORLDS[name]
    shares = {setting: world.fixed(setting) / world.fixed(OFF) for setting in world.settings}
    first = sorted(shares, key=shares.__getitem__, reverse=True)[:3]
    return f"{name:20} " + "  ".join(f"{s.drafter} {s.depth}: {shares[s]:.3f}" for s in first)


def row(promise: Promise, mean: Measured, deviation: Measured) -> str:
    """The line of the table for a measurement; bounds on drafting and switches stay."""
    floors = f"{floor(mean.best, deviation.best):g}, {floor(mean.off, deviation.off):g}"
    more = "" if promise.drafting == (0.0, 1.0) else f", drafting={promise.drafting}"
    more += "" if promise.switches == float("inf") else f", switches={promise.switches}"
    comment = f"{mean.best:.3f} ± {deviation.best:.3f}, {mean.off:.3f} ± {deviation.off:.3f}"
    return f'    Promise("{promise.policy}", "{promise.world}", {floors}{more}),  # {comment}'


def _checked(wanted: Sequence[Promise], found: Iterator[tuple[Measured, Measured]], *, rows: bool) -> Iterator[str]:
    for promise, (mean, deviation) in zip(wanted, found, strict=True):
        problems = broken(promise, mean)
        line = (
            f"{promise!s:42} {mean.best:.3f} {mean.off:.3f}  {mean.drafting:.3f} drafting  {mean.switches:.0f} switches"
        )
        _print(row(promise, mean, deviation) if rows else "\n".join([line, *(f"  BROKEN {one}" for one in problems)]))
        yield from problems


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
