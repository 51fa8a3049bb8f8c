"""The numbers of the pair recipe, its presets, and the record in a training directory of what it was begun with."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from adaptspec.errors import ConfigError, FileError
from adaptspec.files import read_text, write_file
from adaptspec.training.corpus import SPECIAL_TOKENS, SYNTHETIC

MIN_VOCAB = 256 + len(SPECIAL_TOKENS)  # every byte must have a token of its own
MAX_VOCAB = 2**16 - 1  # tokens are kept as 16-bit numbers
PRESETS = ("auto", "cpu", "gpu")
RECORD = "recipe.json"  # beside the checkpoints


def check(name: str, value: object, good: bool, wanted: str) -> None:
    """Raise ConfigError, which says what a setting must be, unless it is good."""
    if not good:
        raise ConfigError(f"{name} is {value}; it must be {wanted}")


def check_device(name: str) -> None:
    """Raise ConfigError unless torch has this device."""
    kind, _, index = name.partition(":")
    check("--device", repr(name), kind in ("cpu", "cuda") and (index.isdecimal() or not index), "cpu, cuda or cuda:N")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and int(index or 0) >= found:
        raise ConfigError(f"--device is {name!r} but torch finds only {found} CUDA devices; use --device cpu")


@dataclass(frozen=True)
class Shape:
    """The size of one Llama-architecture model."""

    hidden: int
    layers: int
    heads: int
    mlp: int

    def __post_init__(self) -> None:
        check("a model's sizes", self, min(self.hidden, self.layers, self.heads, self.mlp) >= 1, "at least 1")
        whole = self.hidden % (2 * self.heads) == 0
        check("hidden / heads", f"{self.hidden} / {self.heads}", whole, "an even whole number")


@dataclass(frozen=True)
class PairSettings:
    """Everything that decides what the recipe makes. The defaults are for two CPU cores.

    `source_weights` maps a record's source to the share of its records to train on. `compile` needs a C++ compiler.
    `mixed_precision` computes in bfloat16 and keeps the weights in float32.
    """

    target: Shape = Shape(hidden=256, layers=6, heads=4, mlp=704)
    draft: Shape = Shape(hidden=128, layers=1, heads=2, mlp=352)
    vocab_size: int = 4096
    context: int = 1024
    target_minutes: float = 84.0
    draft_minutes: float = 24.0
    target_learning_rate: float = 6e-3
    draft_learning_rate: float = 8e-3
    batch: int = 8
    window: int = 512
    source_weights: Mapping[str, float] = field(default_factory=lambda: {SYNTHETIC: 0.6})
    named_sources: tuple[str, ...] = ()  # whose share was asked for: they must be in the corpus
    device: str = "cpu"
    mixed_precision: bool = False
    compile: bool = True

    def __post_init__(self) -> None:
        vocabulary = f"between {MIN_VOCAB} and {MAX_VOCAB}"
        check("--vocab-size", self.vocab_size, MIN_VOCAB <= self.vocab_size <= MAX_VOCAB, vocabulary)
        check("--window", self.window, 2 <= self.window <= self.context, f"between 2 and the context ({self.context})")
        check("--batch", self.batch, self.batch >= 1, "at least 1")
        for name in ("target_minutes", "draft_minutes", "target_learning_rate", "draft_learning_rate"):
            value = getattr(self, name)
            check(f"--{name.replace('_', '-')}", value, math.isfinite(value) and value > 0, "above 0")
        for source, weight in self.source_weights.items():
            check(f"the share of --source-weight {source}", weight, 0.0 <= weight <= 1.0, "between 0 and 1")
        check_device(self.device)

    def with_source_weights(self, given: Iterable[str]) -> PairSettings:
        """These settings with more source weights, each written SOURCE=SHARE.

        Raises:
            ConfigError: one is not written so, or its share is not between 0 and 1.
        """
        weights, named = dict(self.source_weights), list(self.named_sources)
        for text in given:
            source, _, share = text.rpartition("=")
            try:
                weights[source] = float(share)
            except ValueError as error:
                raise ConfigError(f"--source-weight {text}: must be SOURCE=SHARE, such as synthetic=0.6") from error
            check("the source of --source-weight", repr(source), bool(source), "named, as in synthetic=0.6")
            named.append(source)
        return replace(self, source_weights=weights, named_sources=tuple(dict.fromkeys(named)))

    @property
    def identity(self) -> dict[str, object]:
        """What must stay the same when a run is taken up again, as plain JSON values.

        Time may be added, and device, precision and compilation may change.
        """
        names = ("vocab_size", "context", "target_learning_rate", "draft_learning_rate", "batch", "window")
        shapes = {"target": vars(self.target), "draft": vars(self.draft)}
        weights = dict(sorted(self.source_weights.items()))
        return {**shapes, **{name: getattr(self, name) for name in names}, "source_weights": weights}


def preset(name: str) -> PairSettings:
    """The settings by name: `cpu` (under two hours on two cores), `gpu` (ten minutes), `auto` (whichever is here).

    Raises:
        ConfigError: there is no such preset, or no GPU for it.
    """
    check("preset", repr(name), name in PRESETS, f"one of {', '.join(PRESETS)}")
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return PairSettings()
    if not torch.cuda.is_available():
        raise ConfigError("--preset gpu needs a CUDA device and torch finds none; use --preset cpu")
    return PairSettings(
        target=Shape(hidden=384, layers=8, heads=6, mlp=1024),
        vocab_size=8192,
        target_minutes=8.0,
        draft_minutes=2.0,
        target_learning_rate=4e-3,
        draft_learning_rate=6e-3,
        batch=64,
        source_weights={},
        device="cuda",
        mixed_precision=True,
    )


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

    def save(self, work: Path, flag: str = "--out") -> None:
        """Write it down. Raises ConfigError: that is not possible in `work`, which `flag` names."""
        try:
            work.mkdir(parents=True, exist_ok=True)
            write_file(work / RECORD, (json.dumps(asdict(self), indent=2) + "\n").encode())
        except (FileError, OSError) as error:
            raise ConfigError(f"{work}: cannot be written to ({error}); give another {flag}") from error

    def check(self, work: Path, flag: str = "--out") -> None:
        """Make sure that `work`, which `flag` names, is new or was begun with the same settings and corpus.

        Raises:
            ConfigError: it was begun with others, or its record cannot be read.
        """
        if not (work / RECORD).exists():
            return
        earlier = load_record(work)
        names = sorted(self.identity.keys() | earlier.identity.keys())
        differing = [name for name in names if self.identity.get(name) != earlier.identity.get(name)]
        if self.corpus != earlier.corpus:
            differing.append("corpus")
        if differing:
            raise ConfigError(
                f"{work}: was begun with other settings ({', '.join(differing)}); "
                f"give the same ones to go on, or another {flag} to start afresh"
            )


def load_record(work: Path) -> RunRecord:
    """The record in `work`. Raises ConfigError: there is none, or it cannot be read."""
    path = work / RECORD
    try:
        fields = json.loads(read_text(path, 2**20))
        stages = {name: Stage(**stage) for name, stage in fields.pop("stages").items()}
        return RunRecord(**fields, stages=stages)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); delete it, or train into another directory") from error
