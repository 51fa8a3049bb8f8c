"""What a training directory was made from: the settings, the corpus, the machine, how far each stage came.

Kept as `recipe.json` beside the checkpoints, so that a run is only ever taken up with its own settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from adaptspec.errors import ConfigError
from adaptspec.files import read_text, write_file

FILE = "recipe.json"


@dataclass(frozen=True)
class Stage:
    """How long one model was trained, and on how many tokens."""

    minutes: float
    tokens: int


@dataclass(frozen=True)
class RunRecord:
    """One training run. `identity` is `PairSettings.identity`, `sources` counts records by source tag."""

    identity: Mapping[str, object]
    corpus: str
    sources: Mapping[str, int]
    hardware: str
    stages: Mapping[str, Stage] = field(default_factory=dict)

    def save(self, work: Path) -> None:
        """Write it into `work`, whole or not at all."""
        write_file(work / FILE, (json.dumps(asdict(self), indent=2) + "\n").encode())

    def check(self, work: Path) -> None:
        """Make sure that `work` is new or was begun with the same settings and corpus.

        Raises:
            ConfigError: it was begun with others, or its record cannot be read.
        """
        path = work / FILE
        if not path.exists():
            return
        earlier = load(work)
        names = sorted(self.identity.keys() | earlier.identity.keys())
        differing = [name for name in names if self.identity.get(name) != earlier.identity.get(name)]
        if self.corpus != earlier.corpus:
            differing.append("corpus")
        if differing:
            raise ConfigError(
                f"{work}: was begun with other settings ({', '.join(differing)}); "
                "give the same ones to go on, or another --out to start afresh"
            )


def load(work: Path) -> RunRecord:
    """The record in `work`.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    path = work / FILE
    try:
        fields = json.loads(read_text(path, 2**20))
        stages = {name: Stage(**stage) for name, stage in fields.pop("stages").items()}
        return RunRecord(**fields, stages=stages)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); delete it, or train into another directory") from error
