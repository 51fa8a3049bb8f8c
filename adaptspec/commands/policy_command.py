"""`adaptspec policy ...`: look at policies, check them, simulate them, explain what they did."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from adaptspec.command_line import lazy
from adaptspec.commands.arguments import POLICY, add_policies, add_policy, natural, non_negative
from adaptspec.commands.output import add_json, print_result
from adaptspec.control.language.library import find_policy, shipped_policies
from adaptspec.errors import ConfigError, PolicyError

if TYPE_CHECKING:
    from adaptspec.control.language.spec import PolicySpec

# The machines that ship.
MACHINES = (
    "cpu-2-cores",
    "gpu-8b",
    "smollm2-bfloat16-xeon",
    "smollm2-float16-epyc",
    "smollm2-float32-epyc",
    "smollm2-q4_1-epyc",
    "smollm2-q4_1-xeon",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec policy`."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    one = actions.add_parser("list", help="the policies that ship, and when to use them")
    add_json(one)
    one.set_defaults(run=_list)
    one = actions.add_parser("show", help="print a policy file")
    add_policy(one, "policy")
    one.set_defaults(run=_show)
    one = actions.add_parser("validate", help="check policy files: says what is wrong, and where")
    add_policy(one, "policies", nargs="+")
    one.set_defaults(run=_validate)
    one = actions.add_parser("schema", help="print the JSON Schema of policy files, for editors")
    one.set_defaults(run=_schema)
    add_simulate_arguments(actions.add_parser("simulate", help="what policies would have earned on recorded requests"))
    _add_explain(actions.add_parser("explain", help="why a policy chose what it did, from a server's journal"))


def add_simulate_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `policy simulate`."""
    parser.description = (
        "Replay policies over tapes of recorded requests, round by round, and compare what they would have earned with "
        "plain decoding, every fixed depth and an oracle that knows which drafts are right. Deterministic; needs no "
        "model."
    )
    add_policy(parser, "policies", nargs="*", default=[], help=f"policies to compare: {POLICY} (default: goodput)")
    _add_source(parser)
    add = parser.add_argument
    add(
        "--cost",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help=f"the machine that times the rounds: {', '.join(MACHINES)}, or a JSON file, such as `bench record "
        "--costs-out` writes; may be given again (default: all that ship for the tape's model; with --journal, that of "
        "its rounds)",
    )
    # All of the bundled tape at batch sizes 1, 4, 16 and 64 takes minutes; the defaults take under half a minute.
    add(
        "--batch",
        default="1,16",
        help="batch sizes, comma-separated; dashes for stages of one stream, as in 1-16-1 (default: %(default)s)",
    )
    add(
        "--requests",
        type=natural,
        default=20,
        metavar="N",
        help="at most so many requests of each task, spread over the tape; 0: all (default: %(default)s)",
    )
    add_policies(parser, "; the same as one without --policy")
    add(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="PATH=A,B,...",
        help="compare values of a parameter of one policy, such as spec.choose.depth=1,2,4; may be given again "
        "for all combinations",
    )
    add("--mixed", action="store_true", help="only streams that mix all tasks, not each task by itself")
    add("--temperature", type=float, help="only requests recorded at this temperature")
    add("--prefill", type=natural, default=0, metavar="TOKENS", help="prompt tokens read per round; 0: free")
    add("--noise", type=non_negative, default=0.0, help="sigma of log-normal noise on times (default: none)")
    add("--seed", type=natural, default=0, help="of the noise, and of draws under rejection")
    add_json(parser)
    parser.set_defaults(run=lazy("adaptspec.commands.run_simulation:run_simulate"))


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say why a policy chose the depths it did, from the journal of a server (`serve --journal FILE`), summed up or "
        "round by round. Only rounds that this policy decided are explained, where the journal has others too."
    )
    add = parser.add_argument
    add(
        "policy",
        nargs="?",
        metavar="NAME|FILE",
        help="a policy that was served: its name or its YAML file (default: the request's with --request, else the "
        "journal's default policy, or who served most requests where that one served none)",
    )
    add("--journal", type=Path, required=True, metavar="FILE", help="the file given to serve --journal")
    add("--request", metavar="ID", help="only this request (the id in its response), round by round")
    add("--rounds", type=natural, metavar="N", help="also print the last N rounds")
    add_json(parser)
    parser.set_defaults(run=lazy("adaptspec.commands.run_journal_analysis:run_explain"))


def _add_source(parser: argparse.ArgumentParser) -> None:
    """Where recorded requests come from."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--tape",
        nargs="+",
        default=["bundled"],
        metavar="NAME|FILE",
        help="tapes, as `bench record` writes them; 'bundled' is of the bundled pair (default: %(default)s)",
    )
    source.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="the journal of a server (`serve --journal`) in place of a tape, with the costs of its rounds. A journal "
        "knows only what was drafted: where the server drafted less than a policy would, agreement is drawn from like "
        "positions, so results for deeper drafts are guesses; a tape knows them all",
    )


def _list(arguments: argparse.Namespace) -> int:
    from adaptspec.control.language.loader import load_policy_spec
    from adaptspec.tables import table_of

    rows = []
    for path in shipped_policies():
        spec = load_policy_spec(path)
        drafters = ", ".join(spec.drafters) or ("those of the server" if spec.drafts else "none")
        row = {"policy": spec.name, "algorithm": spec.spec.choose.algorithm, "drafters": drafters}
        rows.append({**row, "description": spec.metadata.description})
    return print_result(arguments, rows, [table_of(rows)])


def _show(arguments: argparse.Namespace) -> int:
    from adaptspec.control.language.loader import load_policy_spec
    from adaptspec.control.language.yaml_source import read_text

    path = find_policy(arguments.policy)
    load_policy_spec(path)
    print(read_text(path), end="")
    return 0


def _validate(arguments: argparse.Namespace) -> int:
    """The exit status is 2 if a file is not valid."""
    status = 0
    for name in arguments.policies:
        try:
            for note in _check(find_policy(name)).notes():
                print(f"note: {note}", file=sys.stderr)
            print(f"{name}: ok")
        except PolicyError as error:
            print(error, file=sys.stderr)
            status = 2
    return status


def _check(path: Path) -> PolicySpec:
    """Read it and build it once, as a server would."""
    from adaptspec.control.language.loader import build_for_checks, load_policy_spec
    from adaptspec.control.routing import with_used
    from adaptspec.control.tasks import TaskNames

    task_names = TaskNames()
    spec = load_policy_spec(path, task_names)
    try:
        for one in with_used([spec]):
            build_for_checks(one, task_names=task_names)
    except ConfigError as error:
        raise PolicyError(f"{path}:1:1: {error}") from error
    return spec


def _schema(_: argparse.Namespace) -> int:
    from adaptspec.control.language.spec import schema

    print(json.dumps(schema(), indent=2))
    return 0
