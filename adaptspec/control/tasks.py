"""The tasks that acceptance is learned apart for, and telling them from the text of a prompt.

A request names its task as a hint, else `TaskDetector` reads it off the prompt. Knows nothing of how the detector was
trained (`training.tasks`), and nothing of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from adaptspec.control.array_file import DAMAGE, read_arrays
from adaptspec.control.ngrams import SIZE, ngrams
from adaptspec.errors import ConfigError
from adaptspec.types import FloatArray

TASKS = ("chat", "code", "instruction", "json", "math", "rag", "story", "summarize", "template", "translate")

MIN_CONFIDENCE = 0.5  # below it a guess is more often wrong than right
SHIPPED = Path(__file__).parent / "data" / "tasks.npz"


@dataclass(frozen=True)
class Detection:
    """The likeliest task and its probability; `task` is None where that is too low."""

    task: str | None
    confidence: float


@dataclass(frozen=True)
class TaskDetector:
    """A linear model over hashed n-grams: softmax(bias + scale * (sum of the rows of n present n-grams) / sqrt(n)).

    `weights` int8 [SIZE, T], `scale` and `bias` float32 [T]: one column for each name in `tasks`. The sum is one of
    integers, so that the same text is the same task everywhere.
    """

    tasks: tuple[str, ...]
    weights: npt.NDArray[np.int8]
    scale: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        width = (len(self.tasks),)
        for good, wanted in (
            (bool(self.tasks) and set(self.tasks) <= set(TASKS), f"only tasks of {', '.join(TASKS)}"),
            (
                self.weights.dtype == np.int8 and self.weights.shape == (SIZE, *width),
                f"int8 weights for {SIZE} n-grams",
            ),
            (self.scale.shape == width and bool(np.isfinite(self.scale).all()), "one finite scale per task"),
            (self.bias.shape == width and bool(np.isfinite(self.bias).all()), "one finite bias per task"),
        ):
            if not good:
                raise ConfigError(f"these weights cannot detect tasks: they need {wanted}; train them again")

    def probabilities(self, text: str) -> FloatArray:
        """How likely each of `tasks` is, [T]; equally, for an empty text."""
        index = ngrams(text)
        if not len(index):
            return np.full(len(self.tasks), 1.0 / len(self.tasks))
        total = self.weights[index].sum(axis=0, dtype=np.int64)
        scores = self.bias + self.scale * (total / np.sqrt(len(index)))
        odds = np.exp(scores - scores.max())
        chances: FloatArray = odds / odds.sum()
        return chances

    def detect(self, text: str) -> Detection:
        """The task of a prompt. Any text will do."""
        chances = self.probabilities(text)
        best = int(chances.argmax())
        confidence = float(chances[best])
        return Detection(self.tasks[best] if confidence >= MIN_CONFIDENCE else None, confidence)

    def save(self, path: Path) -> None:
        """Write plain arrays; `load` reads them back."""
        path.parent.mkdir(parents=True, exist_ok=True)
        names = np.array(self.tasks)
        np.savez_compressed(path, tasks=names, weights=self.weights, scale=self.scale, bias=self.bias)

    @classmethod
    def load(cls, path: Path = SHIPPED) -> TaskDetector:
        """Read a detector; the one that ships by default.

        Raises:
            ConfigError: the file is missing, damaged, or holds something else.
        """
        try:
            arrays = read_arrays(path)
            tasks = tuple(str(name) for name in arrays["tasks"])
            scale, bias = arrays["scale"].astype(np.float32), arrays["bias"].astype(np.float32)
            weights = np.asarray(arrays["weights"])
        except (OSError, *DAMAGE) as error:
            raise ConfigError(
                f"{path}: no task detector can be read from it ({error}); write one with `adaptspec train tasks`, "
                "or do without (--no-task-detection)"
            ) from error
        return cls(tasks, weights, scale, bias)
