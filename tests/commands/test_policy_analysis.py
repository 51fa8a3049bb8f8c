"""Arguments that are told without loading what they stand for say what is there."""

from __future__ import annotations

from adaptspec.command_line import Parser
from adaptspec.commands.policy_analysis import MACHINES
from adaptspec.commands.policy_command import add_arguments
from adaptspec.commands.policy_import import IMPORTERS
from adaptspec.simulation.cost_profiles import shipped_costs
from adaptspec.simulation.tape_file import BUNDLED


def test_names_of_what_ships_are_true() -> None:
    assert ", ".join(shipped_costs()) == MACHINES
    parser = Parser()
    add_arguments(parser)
    assert parser.parse_args(["simulate"]).tape == parser.parse_args(["tune", "off"]).tape == [BUNDLED]
    for engine in IMPORTERS:
        assert parser.parse_args(["import", engine, "f.json"]).engine == engine
