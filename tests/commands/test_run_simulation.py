"""`policy simulate`: what it prints, and what it refuses before any work."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from adaptspec.commands.policy_command import MACHINES, add_simulate_arguments
from adaptspec.errors import AdaptSpecError, ConfigError, PolicyError, TapeError
from adaptspec.journal import RequestFinished, RequestStarted, read_entries, to_line
from adaptspec.simulation.scenarios import Schedule, stream
from adaptspec.simulation.simulator import static_spec
from adaptspec.simulation.tape_file import load_tape, save_tape
from adaptspec.start_status import EVERY_SECONDS
from tests.analysis.logs import write_journal
from tests.policies.cells import tape as smollm2_tape
from tests.policies.tapes import made_tape


def _run(line: str) -> int:
    parser = argparse.ArgumentParser()
    add_simulate_arguments(parser)
    arguments = parser.parse_args(line.split())
    return int(arguments.run(arguments))


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    path = tmp_path / "tape.npz"
    save_tape(made_tape({"code": 0.6, "json": 0.9}, count=1, length=20), path)
    return path


def test_it_prints_one_object(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two tapes joined, a shipped table, a shipped policy and one from a file, mixed streams of two sizes."""
    own = tape.with_name("own.yaml")
    own.write_text(
        "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: own}\n"
        "spec: {choose: {algorithm: static, depth: 2}}\n"
    )
    line = f"--tape {tape} {tape} --cost cpu-2-cores --policy goodput --policy {own} --batch 1,1-2-1 --mixed --json"
    assert _run(line) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data["policies"]) == ["goodput", "own"]
    assert [(cell["machine"], cell["simulated"], cell["batch"]) for cell in data["cells"]] == [
        ("cpu-2-cores", False, batch) for batch in ("1", "1", "1-2-1", "1-2-1")
    ]


@pytest.mark.parametrize(
    ("line", "policies"),
    [
        ("off static-3", ["off", "static-3"]),
        ("--batch 1 off static-3", ["off", "static-3"]),
        ("off --policy static-3", ["off", "static-3"]),
        ("off --policy off", ["off"]),
    ],
)
def test_policies_need_no_option(
    line: str, policies: list[str], tape: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names and files come before or after other options; those of `--policy` follow."""
    assert _run(f"{line} --tape {tape} --cost cpu-2-cores --mixed --batch 1 --json") == 0
    assert list(json.loads(capsys.readouterr().out)["policies"]) == policies


def test_it_explains_its_columns_and_what_no_tape_shows(
    tape: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each column of both tables has a line; the GPU is labelled; where standard error is piped, progress is lines."""
    monkeypatch.delenv("COLUMNS", raising=False)
    begun = time.monotonic()
    assert _run(f"off --tape {tape} --cost gpu-8b --batch 1") == 0
    shown = capsys.readouterr()
    headers = [line for line in shown.out.splitlines() if line.startswith("┃")]
    assert len(headers) == 2
    columns = [cell.strip() for header in headers for cell in header.strip("┃").split("┃")]
    legend = shown.out.partition("columns:")[2]
    explained = [line.strip().partition(": ")[0] for line in legend.splitlines() if line.startswith("  ")]
    assert explained == [name for name in columns if name != "policy"]
    assert shown.out.count("gpu-8b (simulated)") == shown.out.count("gpu-8b") == 3
    assert "cannot show other texts" in shown.out.splitlines()[-1]
    lines = [line for line in shown.err.splitlines() if line.startswith("simulate (")]
    assert lines[0] == "simulate (1 of 3)"
    assert len(lines) <= 1 + (time.monotonic() - begun) / EVERY_SECONDS


def test_without_a_machine_of_its_model_a_tape_is_replayed_on_others_and_it_says_so(
    tape: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(f"off --tape {tape} --batch 1 --mixed --json") == 0
    shown = capsys.readouterr()
    assert {cell["machine"] for cell in json.loads(shown.out)["cells"]} == {"cpu-2-cores", "gpu-8b"}
    assert "no machine of the tape's model ships" in shown.err
    assert "--cost FILE" in shown.err
    known = load_tape(tape)
    save_tape(replace(known, about={"target": smollm2_tape().about["target"]}), tape)
    assert _run(f"off --tape {tape} --batch 1 --mixed --json") == 0
    shown = capsys.readouterr()
    assert {cell["machine"] for cell in json.loads(shown.out)["cells"]} == {
        name for name in MACHINES if name.startswith("smollm2-")
    }
    assert "no machine" not in shown.err


def test_a_journal_replays_the_default_policy_and_says_without_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A journal cannot replay n-grams: the policy is simulated without them, as a trial on the page is."""
    journal, tape = tmp_path / "j", made_tape(count=3)
    write_journal(journal, static_spec(4), stream(tape, Schedule((1,))))
    for one in [entry for entry in read_entries(journal) if isinstance(entry, RequestStarted)]:
        length = int(tape.lengths[tape.ids.index(one.id.partition("#")[0])])
        with journal.open("a") as file:
            file.write(to_line(RequestFinished(one.id, "x", "stop", length, 1, 0, 0, 0.1, 0.0, 0.05, 0.1)) + "\n")
    assert _run(f"--journal {journal} --batch 1 --mixed goodput static-3 --json") == 0
    shown = capsys.readouterr()
    assert list(json.loads(shown.out)["policies"]) == ["goodput", "static-3"]
    assert [line for line in shown.err.splitlines() if "without" in line] == [
        "policy goodput is simulated without ngram: a journal can replay only drafts of draft-model"
    ]
    with pytest.raises(ConfigError, match="goodput-ngram drafts with ngram only"):
        _run(f"goodput-ngram --journal {journal} --batch 1 --mixed")


@pytest.mark.parametrize("line", ["--seed -1", "--noise -1", "--noise nan", "--prefill -5", "--requests -1"])
def test_numbers_that_cannot_be_are_refused_by_their_flag(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        _run(line)
    assert f"argument {line.split()[0]}: give a" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "--cost abacus",
        "--policy goodputt",
        "--cost cpu-2-cores off off",
        "--policy off --policy off",
        "--batch many",
        "--temperature 0.7",
    ],
)
def test_what_cannot_be_simulated_is_refused(line: str, tape: Path) -> None:
    with pytest.raises(AdaptSpecError):
        _run(f"--tape {tape} {line}")


POLICY = """# why
apiVersion: adaptspec.dev/v1
kind: SpeculationPolicy
metadata: {name: made}
spec:
  choose: {algorithm: static, depth: 7}  # too deep
"""


@pytest.fixture
def swept(tmp_path: Path) -> str:
    """A policy that drafts far too deep, and a tape where half of the drafted tokens are right."""
    tape, policy = tmp_path / "tape.npz", tmp_path / "deep.yaml"
    save_tape(made_tape({"code": 0.5, "chat": 0.5}, count=8, length=48), tape)
    policy.write_text(POLICY)
    return f"{policy} --tape {tape} --cost cpu-2-cores --batch 1"


def test_a_sweep_compares_values_with_intervals(
    swept: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every combination against the policy as it is, which is unchanged where the values are its own."""
    monkeypatch.delenv("COLUMNS", raising=False)  # parallel runs of pytest set it, and a narrow table folds sentences
    assert _run(f"{swept} --set spec.choose.depth=1,7 --set spec.guard.never-slower=off --json") == 0
    own, shallow, same = json.loads(capsys.readouterr().out)["candidates"]
    assert (own["values"], own["verdict"]) == ({}, "as it is")
    assert shallow["values"] == {"spec.choose.depth": 1, "spec.guard.never-slower": "off"}
    assert shallow["verdict"] == "faster"
    assert 1.0 < shallow["over_original"]["low"] < shallow["over_original"]["mean"] < shallow["over_original"]["high"]
    assert shallow["over_plain"] > own["over_plain"] == same["over_plain"]
    assert same["verdict"] == "no difference outside noise"
    assert _run(f"{swept} --set spec.choose.depth=1,7") == 0
    shown = capsys.readouterr().out
    assert "Fastest: spec.choose.depth=1, " in shown
    assert "no difference outside noise" in shown


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("spec.choose.depth", "give a path and values, such as"),
        ("=1,2", "give a path and values, such as"),
        ("spec.choose.depth=[1", "is no list of YAML values"),
        ("spec.choose.depth=99", "--set spec.choose.depth=99: {file}:6:38: spec.choose.depth: "),
        ("spec.choose.dpth=1", "(did you mean 'depth'?)"),
        ("spec.choose.depth.deeper=1", "{file}:6:38: spec.choose.depth: is no mapping"),
        ("spec.guard.margin=1,2", "{file}:7:"),
        ("spec.choose.depth=1 --set spec.choose.depth=2", "is given twice"),
        (f"spec.choose.depth={','.join(map(str, range(65)))}", "makes 65 candidates; give at most 64"),
        ("spec.choose.depth=1 --mixed", "--set always mixes all tasks; leave --mixed out"),
        ("spec.choose.depth=1 --policy off", "--set compares values of one policy"),
    ],
)
def test_values_that_cannot_be_are_refused_with_their_place(
    swept: str, tmp_path: Path, settings: str, said: str
) -> None:
    """In the file, by line and column."""
    policy = tmp_path / "deep.yaml"
    policy.write_text(POLICY + "  guard: {never-slower: off}\n")
    with pytest.raises((ConfigError, PolicyError)) as error:
        _run(f"{swept} --set {settings}")
    assert said.format(file=policy) in str(error.value)


def test_a_value_that_an_alias_repeats_is_refused(swept: str, tmp_path: Path) -> None:
    """To set one of the two would set both in the file."""
    text = POLICY.replace("depth: 7}", "depth: 7}\n  tasks: {code: &same {max-depth: 2}, json: *same}")
    (tmp_path / "deep.yaml").write_text(text)
    with pytest.raises(PolicyError, match=r"deep.yaml:7:\d+: spec.tasks.code: an alias repeats this value"):
        _run(f"{swept} --set spec.tasks.code.max-depth=1,2")


def test_figures_without_an_interval_are_not_given(tape: Path) -> None:
    with pytest.raises(TapeError, match="at least 4 prompts"):
        _run(f"static-3 --tape {tape} --cost cpu-2-cores --batch 1 --set spec.choose.depth=1,2")
