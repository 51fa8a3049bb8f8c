"""Files are old or new whatever happens while they are written, and who writes them at the same time."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import adaptspec
from adaptspec.commands.serve_command import add_arguments
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.control.learned_state import StateStore, read_state
from adaptspec.control.task_detector import TaskDetector
from adaptspec.errors import AdaptSpecError, FileError, ModelError, StateError
from adaptspec.files import check_regular, open_file, read_bytes, read_text, write_file
from adaptspec.journal import read_entries
from adaptspec.models.heads.head_checkpoint import load_head
from adaptspec.models.loading import load_model
from adaptspec.models.source import find_model
from adaptspec.models.tokenization import load_tokenizer
from adaptspec.models.weights import read_pickle
from adaptspec.simulation.machine import load_machine
from adaptspec.simulation.tape_file import load_tape
from adaptspec.telemetry.journal_writer import RotatingFile
from adaptspec.training.corpus import read_objects
from adaptspec.training.trainer import Optimizer, resume
from tests.conftest import MakeModel
from tests.models.heads.golden import HEADS, golden_target

KILLS = """
import itertools, os, random, signal, sys, time
from pathlib import Path
from adaptspec.files import write_file
path = Path(sys.argv[1])
contents = [bytes([65 + i]) * 30_000 for i in range(8)]
write_file(path, contents[0])
landed = set()
dice = random.Random(0)
for turn in range(100):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        ends = time.monotonic() + 5.0  # in case no process is left to kill it
        for number in itertools.count(turn):
            write_file(path, contents[number % len(contents)])
            if number == turn:
                os.write(writer, b".")
            if time.monotonic() > ends:
                os._exit(0)
    if turn % 4:  # the others are killed in their first save, or before it
        os.read(reader, 1)
    time.sleep(dice.uniform(0.0, 0.004))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    found = path.read_bytes()
    assert found in contents, (turn, len(found))
    landed.add(found[0])
print(len(landed))
"""


def test_killed_100_times_while_saving_the_file_is_always_old_or_new(tmp_path: Path) -> None:
    """A real process, real kills at random moments of a loop that does nothing but save."""
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(tmp_path / "file")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1, "the kills never hit a loop that was saving"


class Stopped(BaseException):
    """The machine stops: nothing that comes after it in the program runs."""


STEPS = ("open", "write", "fsync", "close", "replace")


def failing(monkeypatch: pytest.MonkeyPatch, step: int, after: bool, error: BaseException) -> list[str]:
    """Let the calls to the system go through until number `step`, then none; returns the list of their names."""
    calls: list[str] = []

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if len(calls) > step and isinstance(error, Stopped):
                raise error
            calls.append(name)
            if len(calls) - 1 == step and not after:
                raise error
            if name == "write":  # a disk may take less than it is given
                args = (args[0], bytes(args[1][:1000]))
            result = real(*args, **options)
            if len(calls) - 1 == step:
                raise error
            return result

        return call

    for name in STEPS:
        monkeypatch.setattr(os, name, wrapped(name, getattr(os, name)))
    return calls


@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_stopped_before_or_after_any_step_the_file_is_old_or_new(tmp_path: Path, stops: bool, after: bool) -> None:
    """Every call to the system, one by one: power loss there, or an error from it."""
    old, new = b"o" * 2500, b"n" * 3500
    steps = 0
    while True:
        path = tmp_path / f"{steps}"
        write_file(path, old)
        error: BaseException = Stopped() if stops else OSError(errno.ENOSPC, "No space left on device")
        with pytest.MonkeyPatch.context() as patch:
            calls = failing(patch, steps, after, error)
            try:
                write_file(path, new)
                break
            except (Stopped, OSError):
                renamed = "replace" in (calls if after else calls[:-1])
        assert path.read_bytes() == (new if renamed else old), calls
        write_file(path, b"later")
        assert path.read_bytes() == b"later", "what a failed save leaves behind must not be in the way"
        steps += 1
    assert set(calls) == set(STEPS)
    assert steps == len(calls) >= 10


def test_a_folder_that_cannot_be_synced_is_an_error_but_the_file_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller gets the error; the rename is not undone."""
    path, real = tmp_path / "file", os.fsync
    write_file(path, b"old")

    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(OSError, match="Input/output"):
        write_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_writers_that_are_not_alone_do_not_share_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers that start at once and cache their costs: half of one file must not be renamed by the other."""
    opened: list[str] = []
    real = os.open

    def noted(path: Any, *args: Any) -> int:
        opened.append(Path(path).name)
        return real(path, *args)

    monkeypatch.setattr(os, "open", noted)
    for process in (7, 8):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        write_file(tmp_path / "costs", b"%d" % process, alone=False)
    assert [name for name in opened if name != tmp_path.name] == ["costs.7.tmp", "costs.8.tmp"]
    assert [path.name for path in tmp_path.iterdir()] == ["costs"]
    assert (tmp_path / "costs").read_bytes() == b"8"


def odd_files(folder: Path) -> dict[str, Path]:
    """What is no regular file, by what it is called."""
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(folder)  # the path of a socket may not be long
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
    return {
        "a pipe": folder / "pipe",
        "a directory": folder / "folder",
        "a socket": folder / "socket",
        "a device": Path("/dev/zero"),
    }


def test_what_is_no_regular_file_is_neither_opened_nor_replaced(tmp_path: Path) -> None:
    """At once, with or without a process at the other end, and the error names the kind."""
    for kind, path in odd_files(tmp_path).items():
        for act in (
            lambda path=path: read_bytes(path, 100),
            lambda path=path: open_file(path, os.O_WRONLY | os.O_CREAT),
            lambda path=path: check_regular(path),
            lambda path=path: write_file(path, b"x"),
        ):
            with pytest.raises(FileError, match=f"it is {kind}, not a regular file") as caught:
                act()
            assert isinstance(caught.value, OSError)
            assert str(path) in str(caught.value)
    os.mkfifo(tmp_path / "file.tmp")
    with pytest.raises(FileError, match="a pipe"):
        write_file(tmp_path / "file", b"x")


def test_a_file_is_read_up_to_a_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes("ä\r\nb".encode())
    assert (read_bytes(path, 5), read_text(path, 5)) == ("ä\r\nb".encode(), "ä\nb")
    with pytest.raises(FileError, match="larger than"):
        read_bytes(path, 4)
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "nothing", 4)


def _model(name: str) -> Callable[[Path], object]:
    """A model directory with a pipe of this name in it."""

    def load(pipe: Path) -> object:
        folder = pipe.with_name("model")
        shutil.copytree(Path(adaptspec.__file__).parent / "models" / "bundled" / "target", folder)
        (folder / name).unlink(missing_ok=True)
        (folder / name).parent.mkdir(exist_ok=True)
        os.mkfifo(folder / name)
        load_tokenizer(str(folder))
        return load_model(str(folder))

    return load


def _state(pipe: Path) -> object:
    folder = pipe.with_name("state")
    folder.mkdir()
    os.mkfifo(folder / "learned.json")
    store = StateStore(folder, "pair")
    try:
        assert store.load() is None
        assert store.quarantined == 1
        raise StateError("a pipe was put aside")
    finally:
        store.close()


def _file_of_keys(pipe: Path) -> object:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args(["--admin-key-file", str(pipe), "--show-config"])
    return arguments.run(arguments)


# Names that the start may open in the folder of a target or a draft model, directly or by a library.
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "model.safetensors",
    "model-00001-of-00002.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "bpe.codes",
    "spiece.model",
    "source.spm",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/tools.jinja",
    "counts.npz",
)

READERS: dict[str, Callable[[Path], object]] = {
    "policy": lambda pipe: load_policy_spec(find_policy(str(pipe))),
    "state": read_state,
    "state directory": _state,
    "costs": lambda pipe: load_machine(str(pipe)),
    "tape": load_tape,
    "task detector": TaskDetector.load,
    "journal to read": lambda pipe: list(read_entries(pipe)),
    "journal to write": RotatingFile,
    "prompts": lambda pipe: list(read_objects(pipe)),
    "keys": _file_of_keys,
    "checkpoint": lambda pipe: resume(pipe, torch.nn.Linear(1, 1), Optimizer(torch.nn.Linear(1, 1), 0.1)),
    **{f"model's {name}": _model(name) for name in MODEL_FILES},
}


def _error_at_once(read: Callable[[], object]) -> BaseException | None:
    """The error that a call ends with; fails if it has not ended within a minute. It has a thread of its own."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            read()
            ended.append(None)
        except BaseException as error:  # noqa: BLE001 - the caller looks at it
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60.0)
    assert ended, "it still waits"
    return ended[0]


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_in_place_of_a_file_is_an_error_at_once(tmp_path: Path, reader: str) -> None:
    """Nothing a user can name keeps its reader waiting, nor therefore a server from ending."""
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    error = _error_at_once(lambda: READERS[reader](pipe))
    assert isinstance(error, AdaptSpecError), error
    assert "a pipe" in str(error)


@pytest.mark.parametrize("pickles", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "head.pt",
        "medusa_lm_head.pth",
        "mask_embedding.pt",
    ],
)
def test_a_pipe_in_place_of_a_heads_file_is_an_error_at_once(
    make_model: MakeModel, tmp_path: Path, name: str, pickles: bool
) -> None:
    """With and without --allow-pickle: torch would open a pickle by its name, and wait for a writer of the pipe."""
    target, folder = golden_target(make_model), tmp_path / "head"
    shutil.copytree(HEADS / "dflash", folder)
    if Path(name).suffix != ".json" and name != "mask_embedding.pt":
        (folder / "model.safetensors").unlink()  # weights are looked for under other names only without these
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    error = _error_at_once(lambda: load_head(str(folder), target, pickles=pickles))
    assert isinstance(error, ModelError), error
    assert f"{folder / name}: it is a pipe, not a regular file; give a regular file" in str(error)


def test_a_pickle_that_becomes_a_pipe_is_an_error_at_once(tmp_path: Path) -> None:
    """The check of the folder comes earlier; the read does not rely on it."""
    os.mkfifo(tmp_path / "pytorch_model.bin")
    error = _error_at_once(lambda: read_pickle(tmp_path / "pytorch_model.bin"))
    assert isinstance(error, ModelError), error
    assert "it is a pipe, not a regular file" in str(error)


def test_hidden_files_of_a_model_folder_are_not_checked(tmp_path: Path) -> None:
    """Git keeps sockets in `.git`, where no library looks for a model."""
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git" / "fsmonitor--daemon.ipc")
    os.mkfifo(tmp_path / ".lock")
    assert find_model(str(tmp_path)) == tmp_path


def test_what_was_written_is_on_the_disk_before_it_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else power loss could leave the new name on a file without content, where the old one was whole."""
    steps: list[tuple[str, int]] = []

    def noted(name: str, file: Callable[..., int]) -> None:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            steps.append((name, file(*args)))
            return real(*args, **options)

        monkeypatch.setattr(os, name, call)

    noted("write", lambda descriptor, _: os.fstat(descriptor).st_ino)
    noted("fsync", lambda descriptor: os.fstat(descriptor).st_ino)
    noted("replace", lambda source, _: os.stat(source).st_ino)
    path = tmp_path / "file"
    write_file(path, b"new")
    file, folder = path.stat().st_ino, tmp_path.stat().st_ino
    assert steps == [("write", file), ("fsync", file), ("replace", file), ("fsync", folder)]


@pytest.mark.parametrize("raw", [b"a\nb\n", b"\xef\xbb\xbfa\nb\n", b"a\r\nb\r\n", b"\xef\xbb\xbfa\r\nb\r\n", b"a\rb\r"])
def test_text_of_any_editor_is_the_same(tmp_path: Path, raw: bytes) -> None:
    """JSON files, keys and templates are read by this."""
    (tmp_path / "f").write_bytes(raw)
    assert read_text(tmp_path / "f", 100) == "a\nb\n"
