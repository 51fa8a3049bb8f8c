"""Arguments that several commands share."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.commands.arguments import add_engine, engine_config, new_file


def test_a_variable_of_a_flag_that_a_command_does_not_have_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that serves with ADAPTSPEC_POLICY may measure other policies."""
    monkeypatch.setenv("ADAPTSPEC_POLICY", "off")
    monkeypatch.setenv("ADAPTSPEC_MAX_MODEL_LEN", "64")
    parser = ArgumentParser()
    add_engine(parser)
    config = engine_config(parser.parse_args(["--model", "m"]))
    assert (config.model, config.max_model_len, config.policy) == ("m", 64, ())


@pytest.mark.parametrize(
    "line",
    [
        "doctor --write",
        "train counts --corpus c --out",
        "train tasks c --out",
        "bench record --out",
        "bench record --costs-out",
    ],
)
def test_where_to_write_is_known_before_the_work(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a folder that is there; a folder is no file."""
    for place in (tmp_path, tmp_path / "no" / "file.yaml"):
        with pytest.raises(SystemExit, match="2"):
            main([*line.split(), str(place)])
        assert f"{place}: name a file, in a folder that is there" in capsys.readouterr().err
    assert new_file(str(tmp_path / "file")) == tmp_path / "file"
