"""vLLM copied with one name written otherwise in all of its files, and started: each is to be refused, by that name.

Such a copy serves as vLLM does if it is started without our scheduler, which the first of them shows. Prints the names
of which a start said nothing. What vLLM imports of others is imported once, for all of them.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

OURS = ("vllm", "adaptspec", "engines", "__main__")

RENAMED = (
    "_free_request",
    "_update_after_schedule",
    "dynamic_sd_lookup",
    "get_finished_reason",
    "num_invalid_spec_tokens",
    "num_output_placeholders",
    "num_spec_tokens_to_schedule",
    "use_v2_model_runner",
)


def copy(to: Path, name: str) -> None:
    """The package with a name that has another one throughout; files without it are links to those that are there."""
    package = Path(str(find_spec("vllm").origin)).parent  # type: ignore[union-attr]
    word = re.compile(rf"\b{name}\b")
    for folder, _, files in os.walk(package):
        here = to / "vllm" / Path(folder).relative_to(package)
        here.mkdir(parents=True)
        for file in files:
            source = Path(folder, file)
            text = source.read_text(encoding="utf-8") if file.endswith(".py") else ""
            if word.search(text):
                (here / file).write_text(word.sub(f"{name}_renamed", text), encoding="utf-8")
            else:
                (here / file).symlink_to(source)


def forked(what: Callable[[], object], told: Path) -> bool:
    """Run in a process that has all of this one's modules; what it says is in a file. Whether it went well."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    with told.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        what()
    except BaseException:  # noqa: BLE001 - what a process says that ends by it
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def imports() -> None:
    """All modules that vLLM needs which are not its own."""
    import_module("engines")
    print("modules:", *(name for name in sys.modules if name.partition(".")[0] not in OURS))


def start(folder: str, settings: dict[str, str] | None) -> None:
    """As its users do: the model is loaded, the scheduler made, and a request served."""
    sys.path.insert(0, folder)
    import_module("engines").make(2, adaptive=settings).generate("a", use_tqdm=False)


def started(name: str, settings: dict[str, str] | None) -> str:
    """What a start of a copy says; nothing if it serves."""
    with tempfile.TemporaryDirectory() as folder:
        copy(Path(folder), name)
        told = Path(folder, "told")
        return "" if forked(lambda: start(folder, settings), told) else told.read_text(encoding="utf-8")


def main() -> None:
    """Prints one JSON object."""
    with tempfile.NamedTemporaryFile() as file:
        forked(imports, Path(file.name))
        needed = Path(file.name).read_text(encoding="utf-8").partition("modules:")[2].split()
    for module in needed:
        with suppress(Exception):
            import_module(module)
    said = {name: started(name, {"policy": "static-3"}) for name in RENAMED}
    missed = [name for name, text in said.items() if not re.search(rf"ConfigError: .*\b{name}\b", text)]
    plain = started(RENAMED[0], None)
    print(json.dumps({"refused": len(said) - len(missed), "missed": missed, "plain": plain[-2000:]}))


if __name__ == "__main__":
    main()
