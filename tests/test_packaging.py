"""The wheel: what `pip install` brings is complete, policies and the bundled pair included."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
BUNDLED = "adaptspec/models/bundled"
PAIR_LIMIT = 45_000_000  # bytes

SHOW = """
import adaptspec
from adaptspec.control.library import shipped_policies

print(adaptspec.__file__)
print(adaptspec.__version__)
print(shipped_policies()[0])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    subprocess.run([*PIP, *options], check=True)
    (built,) = folder.glob("adaptspec-*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh directory that the wheel is installed into."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([*PIP, "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel)], check=True)
    return folder


def _run(site: Path, *arguments: str) -> str:
    """Output of Python with the installed copy first, far from the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=site.parent, env=environment, capture_output=True, text=True, check=True).stdout


def test_the_wheel_is_pure_python_and_carries_every_policy(wheel: Path) -> None:
    """Nothing to compile, and each policy of the checkout is inside."""
    assert wheel.name.endswith("-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"adaptspec/policies/{path.name}" for path in (ROOT / "policies").iterdir()} <= names
    assert "adaptspec/py.typed" in names
    assert {
        "adaptspec/control/data/tasks.npz",
        "adaptspec/control/data/tasks.md",
        "adaptspec/training/phrasings.yaml",
    } <= names
    page = ROOT / "adaptspec" / "server" / "page"
    assert {f"adaptspec/server/page/{path.name}" for path in page.iterdir()} <= names
    assert any(name.endswith("/LICENSE") for name in names)


def test_the_wheel_carries_the_bundled_pair_and_its_card(wheel: Path) -> None:
    """`adaptspec serve` needs no download; together the pair stays under its limit."""
    sizes = {i.filename: i.file_size for i in zipfile.ZipFile(wheel).infolist() if i.filename.startswith(BUNDLED)}
    files = ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja")
    for path in ("README.md", *(f"{role}/{file}" for role in ("target", "draft") for file in files)):
        assert sizes.get(f"{BUNDLED}/{path}", 0) > 0, f"{path} is missing"
    assert sum(sizes.values()) < PAIR_LIMIT


def test_the_installed_copy_runs_without_the_checkout(site: Path) -> None:
    """Its own code, version and policies are found; its dependencies are those already installed."""
    code, version, policy = _run(site, "-c", SHOW).splitlines()
    assert Path(code).is_relative_to(site)
    assert Path(policy).is_relative_to(site)
    (metadata,) = site.glob("adaptspec-*.dist-info")
    assert metadata.name == f"adaptspec-{version}.dist-info"


def test_the_command_is_there_and_so_is_the_module(site: Path) -> None:
    """`adaptspec` and `python -m adaptspec` are the same program."""
    assert (site / "bin" / "adaptspec").exists()
    assert "serve" in _run(site, "-m", "adaptspec", "--help")
