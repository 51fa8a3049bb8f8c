"""`adaptspec policy ...`: look at policies, check them, compare them, bring them from elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path

from adaptspec.command_line import add_table_forms, later
from adaptspec.commands.arguments import complete_policies
from adaptspec.commands.policy_analysis import (
    add_estimate_arguments,
    add_explain_arguments,
    add_simulate_arguments,
    add_tune_arguments,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec policy`."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    one = actions.add_parser("list", help="the policies that ship, and when to use them")
    add_table_forms(one)
    one.set_defaults(run=later("adaptspec.commands.run_policy:run_list"))
    one = actions.add_parser("show", help="print a policy file")
    complete_policies(one.add_argument("policy", metavar="NAME|FILE", help="a shipped policy or a YAML file"))
    one.set_defaults(run=later("adaptspec.commands.run_policy:run_show"))
    one = actions.add_parser("validate", help="check policy files: says what is wrong, and where")
    complete_policies(
        one.add_argument("policies", metavar="NAME|FILE", nargs="+", help="a shipped policy or a YAML file")
    )
    one.set_defaults(run=later("adaptspec.commands.run_policy:run_validate"))
    one = actions.add_parser("schema", help="print the JSON Schema of policy files, for editors")
    one.set_defaults(run=later("adaptspec.commands.run_policy:run_schema"))
    one = actions.add_parser("diff", help="what differs between two policies, defaults filled in")
    complete_policies(one.add_argument("left", metavar="A", help="a shipped policy or a YAML file"))
    complete_policies(one.add_argument("right", metavar="B", help="a shipped policy or a YAML file"))
    one.set_defaults(run=later("adaptspec.commands.run_policy:run_diff"))
    add_simulate_arguments(actions.add_parser("simulate", help="what policies would have earned on recorded requests"))
    add_explain_arguments(actions.add_parser("explain", help="why a policy chose what it did, from a server's journal"))
    add_estimate_arguments(
        actions.add_parser("estimate", help="what a policy would have earned, from the journal of one that explores")
    )
    add_tune_arguments(
        actions.add_parser("tune", help="search a policy's parameters on tapes; held-out prompts decide")
    )
    one = actions.add_parser("import", help="make a policy of another engine's configuration")
    one.add_argument("engine", choices=["sglang", "vllm"], help="whose configuration it is")
    one.add_argument("file", type=Path, help="its JSON file")
    one.add_argument("-o", "--output", type=Path, help="file to write; an existing one is kept (default: print it)")
    one.set_defaults(run=later("adaptspec.commands.run_policy:run_import"))
