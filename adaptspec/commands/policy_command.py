"""`adaptspec policy ...`: look at policies, check them, compare them, bring them from elsewhere."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptspec.command_line import add_table_forms, later
from adaptspec.commands.arguments import POLICY, add_policies, add_policy, new_file
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
    add_table_forms(one)
    one.set_defaults(run=_list)
    one = actions.add_parser("show", help="print a policy file")
    add_policy(one, "policy")
    one.set_defaults(run=_show)
    one = actions.add_parser("validate", help="check policy files: says what is wrong, and where")
    add_policy(one, "policies", nargs="+")
    one.set_defaults(run=_validate)
    one = actions.add_parser("schema", help="print the JSON Schema of policy files, for editors")
    one.set_defaults(run=_schema)
    one = actions.add_parser("diff", help="what differs between two policies, defaults filled in")
    add_policy(one, "left", metavar="A")
    add_policy(one, "right", metavar="B")
    one.set_defaults(run=_diff)
    add_simulate_arguments(actions.add_parser("simulate", help="what policies would have earned on recorded requests"))
    _add_explain(actions.add_parser("explain", help="why a policy chose what it did, from a server's journal"))
    _add_tune(actions.add_parser("tune", help="search a policy's parameters on tapes; held-out prompts decide"))
    one = actions.add_parser("import", help="make a policy of another engine's configuration")
    one.add_argument("engine", choices=["sglang", "vllm"], help="whose configuration it is")
    one.add_argument("file", type=Path, help="its JSON file")
    one.add_argument("-o", "--output", type=Path, help="file to write; an existing one is kept (default: print it)")
    one.set_defaults(run=_import)


def add_simulate_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `policy simulate`."""
    parser.description = (
        "Replay policies over tapes of recorded requests, round by round, and compare what they would have earned with "
        "plain decoding, every fixed depth and an oracle that knows which drafts are right. Deterministic; needs no "
        "model."
    )
    add_policy(parser, "policies", nargs="*", default=[], help=f"policies to compare: {POLICY} (default: goodput)")
    _add_source(parser)
    # All of the bundled tape at batch sizes 1, 4, 16 and 64 takes minutes; the defaults take under half a minute.
    cost = "all that ship for the tape's model; with --journal, that of its rounds"
    _add_recorded(parser, cost=cost, batch="1,16", requests=20)
    add = parser.add_argument
    add_policies(parser, "; the same as one without --policy")
    add("--mixed", action="store_true", help="only streams that mix all tasks, not each task by itself")
    add("--temperature", type=float, help="only requests recorded at this temperature")
    add("--prefill", type=int, default=0, metavar="TOKENS", help="prompt tokens read per round; 0: free")
    add("--noise", type=float, default=0.0, help="sigma of log-normal noise on times (default: none)")
    add("--seed", type=int, default=0, help="of the noise, and of draws under rejection")
    add_table_forms(parser, json=True)
    add("--plot", type=new_file, metavar="FILE", help="draw the cells into a .png, .svg or .pdf")
    parser.set_defaults(run=later("adaptspec.commands.run_simulation:run_simulate"))


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
    add("--rounds", type=int, metavar="N", help="also print the last N rounds")
    add_table_forms(parser, json=True)
    parser.set_defaults(run=later("adaptspec.commands.run_journal_analysis:run_explain"))


def _add_tune(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Search a policy's parameters on tapes, or on what a journal tells. Half of the prompts are searched on, the "
        "others decide: what they do not confirm is not claimed, and the original is kept. Deterministic for a seed."
    )
    add = parser.add_argument
    add_policy(parser, "policy", help="the policy to start from")
    _add_source(parser)
    _add_recorded(
        parser,
        cost="the first that ships for the tape's model; with --journal, that of its rounds",
        batch="1",
        requests=24,
    )
    add(
        "--set",
        action="append",
        default=[],
        dest="space",
        metavar="PATH=LOW..HIGH",
        help="what to search, such as spec.choose.optimism=0..1 or spec.choose.scope=request|task; may be given again "
        "(default: every number but the guards', within a factor of four of its value and the schema's bounds)",
    )
    add("--budget", type=int, default=24, help="candidates to try (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the search (default: %(default)s)")
    add("--out", type=new_file, metavar="FILE", help="write the policy here, comments kept")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=later("adaptspec.commands.run_simulation:run_tune"))


def _add_recorded(parser: argparse.ArgumentParser, *, cost: str, batch: str, requests: int) -> None:
    """The requests to replay, and the machines to replay them on; `cost` describes the default."""
    add = parser.add_argument
    add(
        "--cost",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help=f"the machine that times the rounds: {', '.join(MACHINES)}, or a JSON file, such as `bench record "
        f"--costs-out` writes; may be given again (default: {cost})",
    )
    add(
        "--batch",
        default=batch,
        help="batch sizes, comma-separated; dashes for stages of one stream, as in 1-16-1 (default: %(default)s)",
    )
    add(
        "--requests",
        type=int,
        default=requests,
        metavar="N",
        help="at most so many requests of each task, spread over the tape; 0: all (default: %(default)s)",
    )


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
        help="the journal of a server (`serve --journal`) in place of a tape, with costs as its rounds tell. A journal "
        "knows only what was drafted: where the server drafted less than a policy would, agreement is drawn from like "
        "positions, so results for deeper drafts are guesses; a tape knows them all",
    )


def _list(arguments: argparse.Namespace) -> int:
    from adaptspec.control.language.loader import load_policy_spec
    from adaptspec.tables import Table, show

    table = Table("policy", "algorithm", "drafters", "description")
    for path in shipped_policies():
        spec = load_policy_spec(path)
        drafters = ", ".join(spec.drafters) or ("those of the server" if spec.drafts else "none")
        table.add_row(spec.name, spec.spec.choose.algorithm, drafters, spec.metadata.description)
    show([table], arguments.form)
    return 0


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


def _diff(arguments: argparse.Namespace) -> int:
    from adaptspec.control.language.loader import load_policy_spec

    left, right = (load_policy_spec(find_policy(name)) for name in (arguments.left, arguments.right))
    print("\n".join(differences(left, right)) or "the two mean the same")
    return 0


def differences(left: PolicySpec, right: PolicySpec) -> list[str]:
    """Every difference of meaning once defaults are filled in, by path: names and descriptions too, layout not."""
    one, other = (dict(_leaves(spec.model_dump(by_alias=True), "")) for spec in (left, right))
    found = {path: (one.get(path), other.get(path)) for path in {**one, **other}}
    return [_told(path, *both) for path, both in found.items() if both[0] != both[1]]


def _told(path: str, left: object, right: object) -> str:
    if left is None:
        return f"{path}: + {right}"
    return f"{path}: - {left}" if right is None else f"{path}: {left} -> {right}"


def _leaves(value: Mapping[Any, object], path: str) -> Iterator[tuple[str, object]]:
    for key, below in value.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(below, dict):
            yield from _leaves(below, here)
        else:
            yield here, below


def _import(arguments: argparse.Namespace) -> int:
    from adaptspec.commands.policy_import import IMPORTERS

    text = IMPORTERS[arguments.engine](arguments.file)
    if arguments.output is None:
        print(text, end="")
        return 0
    try:
        with arguments.output.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{arguments.output}: cannot be written ({error.strerror}); choose another file") from error
    return 0
