"""The command line: help that leads somewhere, errors in one line, settings that reach what they name."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from adaptspec.cli import main


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_errors_are_one_line_that_says_what_to_do(target_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, no traceback."""
    for arguments, hint in [
        (["generate", "x", "--model", str(target_path), "--policy", "godput"], "did you mean"),
        (["generate", "x", "--model", str(target_path.parent / "nowhere")], "nowhere"),
        (["generate", "x", "--model", "nowhere", "--temperature", "-1"], "temperature is -1"),
        (["policy", "estimate", "off", "--journal", "rounds.jsonl"], "`adaptspec policy simulate --journal FILE"),
        (["policy", "tune", "goodput"], "`adaptspec policy simulate FILE --set spec.choose.depth=1,2,4`"),
        (["policy", "import", "vllm", "config.json"], "policies/README.md has a table"),
        (["policy", "diff", "off", "goodput"], "`adaptspec policy simulate A B`"),
        (["costs", "show"], "`adaptspec bench record --costs-out FILE`"),
        (
            ["trace", "export", "--journal", "rounds.jsonl"],
            "`adaptspec serve --otlp-traces-endpoint URL --trace-level round`",
        ),
        (["state", "merge", "a", "b", "-o", "c"], "a server saves what it learns in its --state-dir by itself"),
        (["serve", "--exact", "strict"], "--exact was removed; leave it out"),
        (["generate", "x", "--draft-device=cuda:1"], "--draft-device was removed; leave it out"),
        (["bench", "gpu", "--part", "bits"], "`python -m adaptspec.bench.gpu --out DIR`"),
        (["bench", "policies", "off", "goodput"], "`adaptspec bench speed --policy A --policy B`"),
        (["bench", "decisions"], "`/metrics` has the seconds"),
        (["bench", "trees"], "`adaptspec policy simulate A B`"),
        (["bench", "telemetry"], "no answer waits for a collector"),
        (["bench", "heads"], "`adaptspec bench speed --draft HEAD`"),
        (["train", "pair", "--corpus", "c.jsonl"], "`python -m examples.recipes.pair`"),
    ]:
        assert main(arguments) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("adaptspec: ")
        assert hint in error


def test_a_variable_of_a_removed_flag_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others that no flag has are passed over, but this one says what a text is to depend on."""
    monkeypatch.setenv("ADAPTSPEC_EXACT", "strict")
    assert main(["serve", "--show-config"]) == 2
    assert "ADAPTSPEC_EXACT was removed; leave it out" in capsys.readouterr().err


def test_removed_flags_and_variables_matter_only_where_they_were_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another engine's flags come after --, and a command without settings reads no variables."""
    monkeypatch.setenv("ADAPTSPEC_LIMIT", "3")
    assert main(["host", "vllm", "--model", "m", "--draft", "d", "--", "--limit", "3"]) == 0
    assert "--limit 3" in capsys.readouterr().out
    assert main(["policy", "validate", "off"]) == 0


def test_help_loads_no_model_library() -> None:
    """It answers at once; each command loads only what it needs itself."""
    code = "import sys; from adaptspec.cli import main\ntry: main({words})\nexcept SystemExit: pass\n"
    heavy = {"torch", "transformers", "sklearn", "scipy", "numpy", "pydantic", "aiohttp"}
    for words in (["--help"], ["serve", "--help"], ["bench", "speed", "--help"], ["policy", "simulate", "--help"]):
        program = code.format(words=words) + f"sys.exit(bool({heavy} & set(sys.modules)))"
        subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("adaptspec se", {"serve"}),
        ("adaptspec serve --max-w", {"--max-waiting"}),
        ("adaptspec serve --trace-level r", {"request", "round"}),
        ("adaptspec policy show goodput-n", {"goodput-ngram"}),
        ("adaptspec bench speed --policy goodput-n", {"goodput-ngram"}),
    ],
)
def test_shells_complete_commands_flags_and_policies(line: str, expected: set[str], tmp_path: Path) -> None:
    """As bash asks: `eval "$(register-python-argcomplete adaptspec)"` sets just this up. No model library is loaded."""
    told = tmp_path / "told"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(told),
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    code = (
        "import sys\nheavy = 'torch', 'transformers', 'sklearn', 'scipy', 'numpy', 'aiohttp'\n"
        "sys.modules.update(dict.fromkeys(heavy))\n"
        "from adaptspec.cli import main\nmain([])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **asked})
    assert {word.strip() for word in told.read_text().splitlines()} >= expected


def test_whoever_reads_no_further_ends_it_without_a_word() -> None:
    """`adaptspec policy schema | head -1`."""
    program = [sys.executable, "-m", "adaptspec", "policy", "schema"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 141


def test_ctrl_c_while_a_command_is_loaded_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loading takes seconds, in which somebody may think better of it."""

    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    name = "adaptspec.commands.serve_command"
    monkeypatch.setitem(sys.modules, name, Interrupted(name))
    try:
        status = main(["serve"])
    except KeyboardInterrupt:
        pytest.fail("it came through")
    assert status == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("first", "arguments"),
    [
        ("import triton; ", ["serve", "--host", "300.1.1.1"]),
        ("import triton; ", ["policy", "show", "godput"]),
        ("import torch._dynamo; ", ["serve", "--api-key-file", "/nowhere/keys"]),
    ],
)
def test_the_last_line_of_a_failed_start_is_our_error(first: str, arguments: list[str]) -> None:
    """Also where a library is loaded that prints pages about leaks at the interpreter's end."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    program = f"import sys; {first}sys.argv[1:] = {arguments!r}; from adaptspec.cli import run; run()"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith("adaptspec: ")
    assert "leaked" not in done.stderr


def test_what_is_registered_for_the_end_still_runs() -> None:
    """Files of a run are removed, and its threads joined, though Python is not taken apart."""
    program = (
        "import atexit, sys, threading, types; sys.modules.setdefault('triton', types.ModuleType('triton'))\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (threading.main_thread().join(), print('joined'))).start()\n"
        "sys.argv[1:] = ['policy', 'list']\nfrom adaptspec.cli import run\nrun()"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-2:] == ["joined", "at exit"]


def test_a_server_of_a_model_of_our_own_decoder_needs_no_compiler() -> None:
    """`torch._dynamo` takes seconds to import, and brings Triton."""
    program = "import sys, adaptspec.app; print(sorted({'triton', 'torch._dynamo'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
