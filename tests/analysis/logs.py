"""Journals for tests: of a simulated server, whose truth is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from adaptspec.control.language.loader import parse_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.tasks import TASKS
from adaptspec.journal import JournalHeader, RequestStarted, to_line
from adaptspec.rounds import RoundRecord
from adaptspec.simulation.machine import Machine, load_machine
from adaptspec.simulation.scenarios import Stream
from adaptspec.simulation.simulator import replay

DRAFTERS = ("draft-model", "ngram")


def policy(body: str, name: str = "made") -> PolicySpec:
    """A policy of this `spec:`, in flow style."""
    return parse_policy_spec(
        f"apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {{name: {name}}}\nspec: {body}\n"
    )


def header(costs: Machine, names: Sequence[str]) -> JournalHeader:
    """What a server would write of this machine."""
    profile = json.loads(costs.profile().to_json())
    return JournalHeader("0", {}, "pair", DRAFTERS, names, names[0], TASKS, profile)


def write_journal(path: Path, spec: PolicySpec, stream: Stream, machine: str = "cpu-2-cores") -> list[RoundRecord]:
    """The journal of a server that served this stream under one policy; its rounds, too."""
    costs, tape = load_machine(machine), stream.tape
    records = replay(spec, stream, costs, keep=True).records
    lines, known = [to_line(header(costs, [spec.name]))], set()
    for record in records:
        for name in record.request_ids:
            if name not in known:
                known.add(name)
                i = tape.ids.index(name.partition("#")[0])
                prompt, most = int(tape.prompt_tokens[i]), int(tape.max_tokens[i])
                lines.append(to_line(RequestStarted(name, spec.name, tape.tasks[i], prompt, most, None, 0.0)))
        lines.append(to_line(record))
    path.write_text("\n".join(lines) + "\n")
    return records
