"""Turns what a user calls a model, a directory or a hub id, into a directory on disk."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from adaptspec.errors import FileError, ModelError
from adaptspec.files import check_regular

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# Weights as safetensors, settings, tokenizer: nothing that can run code is even downloaded.
PATTERNS = ["*.safetensors", "*.json", "tokenizer*", "*.model", "*.jinja", "merges.txt", "vocab.txt"]


def resolve_model(path_or_hub_id: str) -> Path:
    """The model's directory, downloaded first if it is a hub id; ModelError if there is none."""
    folder = Path(path_or_hub_id).expanduser()
    if path_or_hub_id and folder.is_dir():
        _check_files(folder)
        return folder
    if path_or_hub_id and folder.exists():
        raise ModelError(f"{path_or_hub_id} is a file; name the directory that holds config.json")
    if not HUB_ID.fullmatch(path_or_hub_id):
        raise ModelError(f"there is no directory {path_or_hub_id!r}; name a model directory or a hub id like org/name")
    try:
        return Path(snapshot_download(path_or_hub_id, allow_patterns=PATTERNS))
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"there is no directory {path_or_hub_id}, and it cannot be fetched from the hub ({first_line}); "
            "check the name, the network, and HF_TOKEN for gated models"
        ) from error


def _check_files(folder: Path) -> None:
    """Libraries open these by name, and would wait for ever for what a pipe may bring. Raises ModelError."""
    try:
        for path in (path for pattern in ("*", "*/*") for path in folder.glob(pattern)):
            if any(fnmatch(path.name, pattern) for pattern in PATTERNS) and not path.is_dir():
                check_regular(path)
    except FileError as error:
        raise ModelError(str(error)) from error
    except OSError as error:
        raise ModelError(f"{folder}: cannot be read ({error.strerror}); check the path and its permissions") from error
