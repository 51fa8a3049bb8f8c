"""Copies of vLLM in which one name is another: each must be refused, by that name. Prints those that are not.

Of each module that the contract speaks of, the text is copied, one of the names that it relies on is written otherwise
throughout, and the copy takes the module's place.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

from adaptspec.errors import ConfigError
from adaptspec.hosts.vllm import contract


def names() -> Iterator[tuple[str, str]]:
    """Module and name, of all that the contract relies on."""
    for place, (parameters, own) in (contract.SCHEDULING | contract.SKIPPING).items():
        module, _, path = place.partition(":")
        told = set(parameters.split()) - {"self", "..."}
        yield from ((module, name) for name in (*path.split(".")[1:], *told, *own.split()))


def refused(module: ModuleType, name: str) -> str:
    """What is said of a copy where the name is another; nothing if it is taken for the real one."""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    lines = (  # what it imports, it imports from others
        line if line.lstrip().startswith("from ") else re.sub(rf"\b{name}\b", f"{name}_renamed", line)
        for line in text.splitlines(keepends=True)
    )
    copy = ModuleType(module.__name__)
    copy.__file__ = module.__file__
    sys.modules[module.__name__] = copy
    try:
        exec(compile("".join(lines), str(module.__file__), "exec"), vars(copy))
        contract.check_names()
        contract.check_names(contract.SKIPPING)
    except ConfigError as error:
        return str(error)
    finally:
        sys.modules[module.__name__] = module
    return ""


def main() -> None:
    """Prints one JSON object."""
    contract.check_names()
    contract.check_names(contract.SKIPPING)
    wanted = sorted({(module, name) for module, name in names() if not name.startswith("__")})
    said = {f"{module} {name}": refused(import_module(module), name) for module, name in wanted}
    missed = [one for one, text in said.items() if one.split()[1] not in text]
    print(json.dumps({"mutants": len(said), "missed": missed, "example": next(iter(said.values()))}))


if __name__ == "__main__":
    main()
