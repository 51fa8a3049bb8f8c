"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.command_line import Parser
from adaptspec.commands.arguments import add_models, engine_config, new_file


def _parser() -> Parser:
    parser = Parser()
    add_models(parser)
    return parser


def test_names_of_other_engines_are_understood() -> None:
    """Command lines made for vLLM go on working."""
    config = engine_config(_parser().parse_args(["--max-model-len", "512", "--max-num-seqs", "3"]))
    assert (config.context, config.limits.max_rows) == (512, 3)


@pytest.mark.parametrize(
    "line",
    [
        "doctor --write",
        "train counts --corpus c --out",
        "train tasks --corpus c --out",
        "bench record --out",
        "bench record --costs-out",
        "policy tune p --out",
        "policy simulate --plot",
    ],
)
def test_where_to_write_is_known_before_the_work(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a folder that is there; a folder is no file."""
    for place in (tmp_path, tmp_path / "no" / "file.yaml"):
        with pytest.raises(SystemExit, match="2"):
            main([*line.split(), str(place)])
        assert f"{place}: name a file, in a folder that is there" in capsys.readouterr().err
    assert new_file(str(tmp_path / "file")) == tmp_path / "file"
