"""Line counts by folder, for information: `python -m tests.sizes`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print lines and files of the package and of the tests."""
    for top in ("adaptspec", "tests"):
        lines, files = Counter[str](), Counter[str]()
        for path in sorted((ROOT / top).rglob("*.py")):
            folder = path.relative_to(ROOT / top).parts[0] if path.parent != ROOT / top else "."
            lines[folder] += len(path.read_text(encoding="utf-8").splitlines())
            files[folder] += 1
        sys.stdout.write(f"{top}: {lines.total():,} lines in {files.total()} files\n")
        for folder, count in lines.most_common():
            sys.stdout.write(f"  {folder:14} {count:7,} in {files[folder]}\n")


if __name__ == "__main__":
    main()
