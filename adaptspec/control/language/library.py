"""Finds the files of policies: shipped ones by name, others by path.

The command line completes names with it, so it imports nothing that takes time.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from adaptspec.errors import PolicyError


def shipped_policies() -> list[Path]:
    """The YAML files that ship, by name. Installed they lie in the package, in a checkout next to it."""
    package = Path(__file__).parents[2]
    for folder in (package / "policies", package.parent / "policies"):
        found = sorted(folder.glob("*.yaml"))
        if found:
            return found
    raise PolicyError(f"no shipped policies in {package / 'policies'}; install the package again")


def is_file_name(name: str) -> bool:
    """Whether the name of a policy is a path, and not the name of a shipped or served policy."""
    path = Path(name)
    return path.suffix in (".yaml", ".yml") or path.parent != Path()


def find_policy(name: str, folder: Path = Path()) -> Path:
    """The file of a policy: `name` is a path, relative to `folder`, or the name of a shipped policy.

    Raises PolicyError if there is none.
    """
    if is_file_name(name):
        path = folder / name
        if not path.exists():
            raise PolicyError(f"{path}: no such file")
        return path
    shipped = {path.stem: path for path in shipped_policies()}
    if name in shipped:
        return shipped[name]
    raise unknown_policy(name, shipped, f"shipped are: {', '.join(shipped)}; or give a YAML file")


def unknown_policy(name: str, known: Iterable[str], there: str) -> PolicyError:
    """The error for a name that is none; `there` says what to write."""
    close = difflib.get_close_matches(name[:80], list(known), n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return PolicyError(f"there is no policy {name[:80]!r}{hint}; {there}")
