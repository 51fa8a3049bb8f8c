"""The wheel: what `pip install` brings is complete, policies and the bundled pair included."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
BUNDLED = "adaptspec/models/bundled"
PAIR_LIMIT = 45_000_000  # bytes
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
# What the packages of these names are called where they are imported.
MODULES = {
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}
# Other engines that people have in the same environment, and what their packages ask for of what we ask for, too.
ENGINES = {
    "vllm 0.33.0": {
        "torch": "2.14.0",
        "transformers": "5.20.2",
        "llguidance": "1.7.6",
        "tokenizers": "0.23.3",
        "aiohttp": "3.14.5",
        "pydantic": "2.14.3",
    },
    "sglang 0.5.23": {"torch": "2.14.1", "transformers": "5.19.0", "tokenizers": "0.23.2", "llguidance": "1.9.1"},
}

SHOW = """
import adaptspec
from adaptspec.control.language.library import shipped_policies

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
        "adaptspec/training/prompts.jsonl",
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


@pytest.fixture(scope="module")
def metadata(site: Path) -> importlib.metadata.Distribution:
    """What the wheel says of itself."""
    (found,) = importlib.metadata.distributions(path=[str(site)])
    return found


@pytest.fixture(scope="module")
def requirements(metadata: importlib.metadata.Distribution) -> list[Requirement]:
    """What the wheel asks for, extras included."""
    return [Requirement(text) for text in metadata.requires or ()]


def _plain(requirements: list[Requirement]) -> dict[str, Requirement]:
    return {canonicalize_name(each.name): each for each in requirements if each.marker is None}


def _extras(requirements: list[Requirement], *, but: str) -> Iterator[tuple[str, str]]:
    """Each extra other than `but`, with each package that it names."""
    for each in requirements:
        found = re.search(r"extra == ['\"]([^'\"]+)", str(each.marker))
        if found is not None and found[1] != but:
            yield found[1], canonicalize_name(each.name)


def _imported() -> set[str]:
    """The top-level modules that the package's code imports, by statement or by `import_module("name")`."""
    found: set[str] = set()
    for path in (ROOT / "adaptspec").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module or "")
            elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
                found |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    return {name.partition(".")[0] for name in found}


def test_every_dependency_has_a_tested_version(requirements: list[Requirement]) -> None:
    """The README's commands and .ci/run install what was tested, on every Python that is supported."""
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if line and not line.startswith("#")]
    pinned = [Requirement(line) for line in lines]
    for version in ("3.10", "3.11", "3.12", "3.13"):
        environment = {**default_environment(), "python_version": version}
        chosen = [each for each in pinned if each.marker is None or each.marker.evaluate(environment)]
        versions = {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in chosen}
        assert len(versions) == len(chosen), "a package is pinned twice"
        for wanted in requirements:
            assert wanted.specifier.contains(versions[canonicalize_name(wanted.name)]), wanted


@pytest.mark.parametrize("engine", ENGINES)
def test_it_can_be_installed_beside_other_engines(requirements: list[Requirement], engine: str) -> None:
    """They pin torch and more; what we ask for allows their versions."""
    wanted = _plain(requirements)
    clashes = {name: version for name, version in ENGINES[engine].items() if version not in wanted[name].specifier}
    assert not clashes


def test_what_the_readme_shows_needs_no_extra(requirements: list[Requirement]) -> None:
    """All that the code imports is installed with it, but for what an extra names; schemas and tools are not extra.

    Triton comes with the builds of torch that can use it. Inside another engine, the engine is there.
    """
    own = {*sys.stdlib_module_names, "adaptspec", "triton", "vllm"}
    extra = {name for _, name in _extras(requirements, but="dev")}
    given = {MODULES.get(name, name).replace("-", "_") for name in _plain(requirements)}
    assert _imported() - own - given <= extra
    assert "llguidance" in given
