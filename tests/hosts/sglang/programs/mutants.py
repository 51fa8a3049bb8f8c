"""Start a copy of SGLang in which something has another name: `mutants.py MODEL POLICY CHANGES`, where changes are
[file, text, other text] by name, in JSON; a file of "" is the version. What came of each, as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import engine

# Loaded once for all copies: what takes long of what SGLang imports.
for name in ("torch._inductor.config", "torchvision", "transformers", "transformers.models.auto", "fastapi", "scipy"):
    importlib.import_module(name)
WHEEL = Path(sysconfig.get_paths()["purelib"], "sglang")


def main(model: str, policy: str, changes: str) -> None:
    told = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "sglang")
        shutil.copytree(WHEEL, copy, copy_function=os.symlink, ignore=shutil.ignore_patterns("test", "multimodal_gen"))
        sys.path.insert(0, folder)
        for name, (file, old, new) in json.loads(changes).items():
            if file:
                text = (WHEEL / file).read_text()
                assert old in text, f"{file} has no {old}"
                (copy / file).unlink()
                (copy / file).write_text(text.replace(old, new))
                told[name] = engine.apart(lambda: _started(model, policy))
                (copy / file).unlink()
                (copy / file).symlink_to(WHEEL / file)
            else:
                about = Path(folder, f"sglang-{new}.dist-info")
                about.mkdir()
                (about / "METADATA").write_text(f"Name: sglang\nVersion: {new}\n")
                told[name] = engine.apart(lambda: _started(model, policy))
                shutil.rmtree(about)
    print(json.dumps(told))


def _started(model: str, policy: str) -> dict[str, Any]:
    told = engine.start(model, "--speculative-adaptive-config", policy)
    import sglang

    return told | {"from": str(Path(sglang.__file__).parent)}


main(*sys.argv[1:])
