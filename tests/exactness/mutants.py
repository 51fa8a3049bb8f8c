"""Mutation tests: which tests fail when one line of the package is wrong.

`python -m tests.exactness.mutants` copies the repository into a temporary folder, applies one edit of `mutant_table`,
runs pytest there and prints the tests that fail. A mutant that fails no test is reported as SURVIVED.

Exit status: 0 if all mutants are killed, 1 if one survives (or, with `--compare`, is no longer killed), 2 if an edit
does not apply or the tests fail without a mutant.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

from tests.exactness.mutant_table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
TIME_OUT = "time-out"  # stands for a test file in a record
CRASH = "crash"
MAX_IDS = 8  # test ids that are printed of one mutant
_OWN_TESTS = "tests/exactness/test_mutants.py"  # they run this command
_FAILED = re.compile(r"^(tests/\S+?\.py\S*.*?) (?:FAILED|ERROR)\b")
_NOT_COLLECTED = re.compile(r"^ERROR (tests/\S+?\.py)(?: - .*)?$")
_TESTS_FAILED, _INTERRUPTED = 1, 2  # pytest's exit statuses; 2 is also that of tests that cannot be imported

Kills = dict[str, int]
"""Number of failing tests by test file."""


class MutantError(Exception):
    """A mutant does not apply, or the tests fail without one."""


@dataclass(frozen=True)
class Outcome:
    """One run of pytest: ids of the tests that failed, and how the run ended if it did not end by itself."""

    failed: tuple[str, ...]
    seconds: float
    ended: str | None = None  # TIME_OUT or CRASH

    @property
    def kills(self) -> Kills:
        files = Counter(test.partition("::")[0] for test in self.failed)
        if self.ended is not None:
            files[self.ended] = 1
        return dict(sorted(files.items()))


def edited(text: str, mutant: Mutant) -> str:
    """The source with the edit. Raises MutantError if `old` does not occur exactly once."""
    found = text.count(mutant.old)
    if found != 1:
        raise MutantError(f"{mutant.name} does not apply: its text occurs {found} times in {mutant.file}")
    return text.replace(mutant.old, mutant.new)


def copy_repository(target: Path) -> None:
    """Copy all files that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():  # a deleted file is listed until that is committed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


@contextmanager
def applied(mutant: Mutant, folder: Path) -> Iterator[None]:
    """Apply the edit to the copy in `folder`, and take it back afterwards."""
    source = folder / mutant.file
    original = source.read_text(encoding="utf-8")
    try:
        _rewrite(source, edited(original, mutant))
        yield
    finally:
        _rewrite(source, original)


def _rewrite(source: Path, text: str) -> None:
    source.write_text(text, encoding="utf-8")
    # Bytecode is matched by the time and size of its source: an edit within a second may have neither changed.
    Path(cache_from_source(str(source))).unlink(missing_ok=True)


def run_tests(folder: Path, paths: Sequence[str], *, whole: bool, first_only: bool, limit: float) -> Outcome:
    """Run pytest on `paths` of the copy in `folder`, for at most `limit` seconds.

    `whole`: include tests marked `whole`. `first_only`: stop at the first failure.
    """
    marked = "not clients and not hosts and not nightly" if whole else "not whole"
    options = ["-n0", "-v", "-rE", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-m", marked]
    options += ["-p", "tests.exactness.without_shrinking"]
    options += ["-x"] if first_only else []
    options += [f"--ignore={_OWN_TESTS}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *paths],
            cwd=folder,
            env=environment | {"PYTHONPATH": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the tests' own processes end with it
        )
        ended = None
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            ended = TIME_OUT
        finally:
            _end(process)
        output.seek(0)
        lines = output.read().splitlines()
    failed = tuple(dict.fromkeys(match[1] for line in lines if (match := _FAILED.match(line))))
    failed += tuple(match[1] for line in lines if (match := _NOT_COLLECTED.match(line)))
    if ended is None and process.returncode != (_TESTS_FAILED if failed else 0):
        if process.returncode >= 0 and not (failed and process.returncode == _INTERRUPTED):
            raise MutantError(f"pytest ended with status {process.returncode}:\n" + "\n".join(lines[-20:]))
        ended = CRASH if process.returncode < 0 else None
    return Outcome(failed, time.monotonic() - begun, ended)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def chosen(only: Sequence[str], sample: int | None, seed: int) -> list[Mutant]:
    """The mutants to run, in the order of the table. A sample is drawn from the quick ones. Raises MutantError."""
    unknown = set(only) - {mutant.name for mutant in MUTANTS}
    if unknown:
        raise MutantError(f"there is no mutant {', '.join(sorted(unknown))}")
    some = [mutant for mutant in MUTANTS if not only or mutant.name in only]
    if sample is None:
        return some
    quick = [mutant for mutant in some if mutant.quick]
    drawn = random.Random(seed).sample(quick, min(sample, len(quick)))
    return [mutant for mutant in some if mutant in drawn]


def tests_of(mutant: Mutant, options: argparse.Namespace) -> tuple[str, ...]:
    """The paths that pytest is given for a mutant. A sample runs the first path alone, which kills a quick mutant."""
    if options.all_tests:
        return ("tests",)
    if options.tests:
        return tuple(options.tests)
    return mutant.tests[:1] if options.sample is not None else mutant.tests


def say(line: str) -> None:
    """Print a line at once: a run of all mutants takes long."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def report(mutant: Mutant, outcome: Outcome) -> None:
    """Print which tests fail."""
    kills = outcome.kills
    if not kills:
        say(f"SURVIVED {mutant.name} ({outcome.seconds:.0f} s): {mutant.why}")
        return
    files = ", ".join(f"{file} {count}" for file, count in kills.items())
    say(f"killed   {mutant.name} ({outcome.seconds:.0f} s): {files}")
    for test in outcome.failed[:MAX_IDS]:
        say(f"           {test}")
    if len(outcome.failed) > MAX_IDS:
        say(f"           and {len(outcome.failed) - MAX_IDS} more")


def no_longer_killed(before: Mapping[str, Kills], now: Mapping[str, Kills]) -> list[str]:
    """Mutants that a test failed on before, and none does now. Mutants that did not run now are left out."""
    return [name for name, kills in before.items() if kills and name in now and not now[name]]


def read_record(path: Path) -> dict[str, Kills]:
    """What `--record` wrote: test files and numbers of failing tests by mutant; an empty entry is a survivor."""
    record: dict[str, Kills] = json.loads(path.read_text(encoding="utf-8"))
    return record


def write_record(path: Path, kills: Mapping[str, Kills]) -> None:
    """Write it in the order of the table. Mutants that did not run keep their entry."""
    known = read_record(path) if path.exists() else {}
    merged = known | dict(kills)
    lines = [
        f"  {json.dumps(name)}: {json.dumps(merged[name])}" for mutant in MUTANTS if (name := mutant.name) in merged
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def check_baseline(folder: Path, mutants: Sequence[Mutant], options: argparse.Namespace) -> None:
    """Run all tests without a mutant. Raises MutantError if one fails."""
    for whole in (False, True):
        some = [mutant for mutant in mutants if (options.whole or mutant.whole) == whole]
        paths = list(dict.fromkeys(path for mutant in some for path in tests_of(mutant, options)))
        if paths:
            outcome = run_tests(folder, paths, whole=whole, first_only=True, limit=len(paths) * options.limit)
            if outcome.kills:
                raise MutantError(f"tests fail without a mutant: {', '.join(outcome.failed) or outcome.ended}")
            say(f"{len(paths)} paths pass without a mutant ({outcome.seconds:.0f} s)")


def run(mutants: Sequence[Mutant], options: argparse.Namespace) -> dict[str, Kills]:
    """Run all mutants. Raises MutantError if one does not apply, or if the tests fail without a mutant."""
    for mutant in mutants:
        edited((ROOT / mutant.file).read_text(encoding="utf-8"), mutant)
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        copy_repository(folder)
        if not options.no_baseline:
            check_baseline(folder, mutants, options)
        kills: dict[str, Kills] = {}
        for mutant in mutants:
            with applied(mutant, folder):
                outcome = run_tests(
                    folder,
                    tests_of(mutant, options),
                    whole=options.whole or mutant.whole,
                    first_only=options.exitfirst,
                    limit=options.limit,
                )
            kills[mutant.name] = outcome.kills
            report(mutant, outcome)
            if options.record is not None:
                write_record(options.record, kills)
    return kills


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.exactness.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these mutants alone")
    parser.add_argument("--sample", type=int, metavar="N", help="so many quick mutants, each with its first path alone")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="these in place of each mutant's own")
    parser.add_argument("--all-tests", action="store_true", help="the whole folder tests/ for each mutant")
    parser.add_argument("--whole", action="store_true", help="tests marked whole, too")
    parser.add_argument("-x", "--exitfirst", action="store_true", help="stop a run at the first test that fails")
    parser.add_argument("--limit", type=float, default=900.0, metavar="SECONDS", help="of each run; then: time-out")
    parser.add_argument("--no-baseline", action="store_true", help="the tests are known to pass without a mutant")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the number of failing tests by file")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="fail if a mutant killed there is not killed now")
    options = parser.parse_args(arguments)
    try:
        kills = run(chosen(options.only, options.sample, options.seed), options)
    except MutantError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    survivors = [name for name, files in kills.items() if not files]
    lost = no_longer_killed(read_record(options.compare), kills) if options.compare is not None else []
    say(f"{len(kills) - len(survivors)} of {len(kills)} mutants are killed")
    for name in lost:
        say(f"no longer killed: {name}")
    return 1 if survivors or lost else 0


if __name__ == "__main__":
    sys.exit(main())
