"""The README: its first commands install what is tested, its links lead somewhere, its headings are headings."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from adaptspec.control.language.loader import load_policy_spec

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(
        page
        for part in ("adaptspec", "dashboards", "examples", "policies", "tests")
        for page in sorted((ROOT / part).rglob("README.md"))
    ),
    *sorted((ROOT / ".github").glob("*.md")),
]


def _prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))


def test_what_installs_from_the_checkout_takes_tested_versions() -> None:
    """Both commands that the README begins with."""
    commands = re.findall(r"(?m)^pip install .*$", (ROOT / "README.md").read_text(encoding="utf-8"))
    installs = [command for command in commands if re.search(r" '?\.(\[dev\]')? &&", command)]
    assert len(installs) == 2
    assert all("-c .ci/constraints.txt " in command for command in installs)
    assert "structured]" not in (ROOT / "README.md").read_text(encoding="utf-8"), "there is no such extra"


@pytest.mark.parametrize("page", [ROOT / "README.md"], ids=lambda path: path.name)
def test_policies_that_are_shown_are_whole_files(page: Path, tmp_path: Path) -> None:
    """A reader who pastes one into a file and validates it got "'metadata' is missing"."""
    blocks = re.findall(r"(?ms)^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"))
    assert blocks
    for number, block in enumerate(blocks):
        file = tmp_path / f"{number}.yaml"
        file.write_text(block, encoding="utf-8")
        assert load_policy_spec(file).name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_headings_stand_alone(page: Path) -> None:
    """Without an empty line before it, a heading is part of the paragraph for some readers."""
    lines = _prose(page).splitlines()
    assert [line for before, line in itertools.pairwise(lines) if line.startswith("#") and before] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_local_links_lead_to_files_and_headings(page: Path) -> None:
    """Those without a scheme, from where the page is."""
    for target in re.findall(r"\]\(([^):]+)\)", _prose(page)):
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        if heading:
            text = file.read_text(encoding="utf-8")
            titles = [title.lower().replace(" ", "-") for title in re.findall(r"(?m)^#+ (.*)$", text)]
            assert heading in {*titles, *re.findall(r'<a id="(\w+)">', text)}
