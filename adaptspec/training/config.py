"""Settings of the commands that train a drafter. Imports nothing that takes time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt, Le

from adaptspec.errors import ConfigError
from adaptspec.settings import Setting

CPU_ANSWERS, GPU_ANSWERS = 1_000, 12_000


class Kind(NamedTuple):
    """A kind of drafter: its name in sentences, and what it is trained with by default."""

    title: str
    depth: int  # tokens of a round
    layers: int


KINDS: Mapping[str, Kind] = {
    "draft": Kind("a small draft model", 7, 1),
    "eagle": Kind("an EAGLE-3 head", 4, 1),
    "medusa": Kind("Medusa heads", 4, 1),
    "dflash": Kind("a DFlash head", 7, 2),
}


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """What is trained, on what, and for how long."""

    kind: Annotated[str, Setting(flag=False)]
    """The drafter: draft, eagle, medusa or dflash."""

    corpus: Annotated[Path, Setting(group="Data", metavar="FILE")]
    """JSONL (or .xz) of messages, prompts or texts, or a text file."""

    out: Annotated[Path, Setting(metavar="DIR")]
    """Directory for the drafter, which serve --draft takes."""

    model: Annotated[str, Setting(aliases=("target",))] = "bundled"
    """The target: directory, GGUF file, hub id or smollm2."""

    prompts: Annotated[Path | None, Setting(metavar="FILE")] = None
    """JSONL file or folder of prompts to measure on.

    By default 0.5 % of the corpus, which is held out.
    """

    baseline: Annotated[str | None, Setting(metavar="DRAFT", aliases=("beside",))] = None
    """Another draft model to measure as well.

    It has the target's tokenizer.
    """

    answers: Annotated[Path | None, Setting(group="Answers of the target", metavar="DIR")] = None
    """Folder for the answers; runs may share it (default: in OUT)."""

    count: Annotated[int | None, Ge(1), Setting(metavar="N")] = None
    """Prompts to answer (default: 1,000 on a CPU, else 12,000)."""

    max_tokens: Annotated[int, Ge(1), Setting(metavar="N", aliases=("tokens",))] = 256
    """Longest answer in tokens."""

    temperature: Annotated[float, Ge(0), Le(100), Setting(metavar="T")] = 0.8
    """Temperature of every second answer; others are greedy."""

    minutes: Annotated[float, Gt(0), Setting(group="Training", metavar="N")] = 60.0
    """Training time, over all parts of a run that was resumed."""

    depth: Annotated[int | None, Ge(1), Setting(metavar="N")] = None
    """Tokens of a round to train for (default: by the kind)."""

    layers: Annotated[int | None, Ge(1), Setting(metavar="N")] = None
    """Layers of the drafter (default: by the kind)."""

    draft_vocab: Annotated[int | None, Ge(1), Setting(metavar="N")] = None
    """Draft the N most frequent tokens only.

    By default all; of more than 64,000 it is 32,000.
    """

    learning_rate: Annotated[float, Gt(0), Setting(metavar="X")] = 8e-3
    """Peak learning rate."""

    batch: Annotated[int, Ge(1), Setting(metavar="N")] = 4
    """Windows per step."""

    window: Annotated[int, Ge(8), Setting(metavar="N")] = 256
    """Tokens per window."""

    device: Annotated[str, Setting(pattern=r"auto|cpu|cuda(:[0-9]+)?", what="auto, cpu, cuda or cuda:N")] = "auto"
    """auto, cpu, cuda or cuda:N."""

    threads: Annotated[int | None, Ge(1), Setting(metavar="N")] = None
    """CPU threads (default: all)."""

    dry_run: bool = False
    """Measure speeds, print how long the run would take, and end."""

    def __post_init__(self) -> None:
        needed = 3 * self.round_depth + 2
        if self.window < needed:
            raise ConfigError(
                f"--window is {self.window}; it must be at least {needed} for drafts of {self.round_depth} tokens"
            )

    @property
    def round_depth(self) -> int:
        return self.depth or KINDS[self.kind].depth

    @property
    def num_layers(self) -> int:
        return self.layers or KINDS[self.kind].layers

    def answer_count(self, *, on_cpu: bool) -> int:
        return self.count or (CPU_ANSWERS if on_cpu else GPU_ANSWERS)

    @property
    def training_settings(self) -> dict[str, object]:
        """Settings of the training that must stay the same when a run is resumed."""
        names = ("kind", "draft_vocab", "learning_rate", "batch", "window")
        return {**{name: getattr(self, name) for name in names}, "depth": self.round_depth, "layers": self.num_layers}
