"""Detects the task of a prompt from its text.

A few rules find prompts that state their task outright; a linear model over hashed character n-grams judges the others.
Both give the same result on every machine: rules match text, and n-grams are hashed from UTF-8 bytes in integer
arithmetic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.tasks import TASKS
from adaptspec.errors import ConfigError
from adaptspec.files import DAMAGE, read_arrays

MIN_CONFIDENCE = 0.5  # below it a guess is more often wrong than right
SHIPPED = Path(__file__).parent / "data" / "tasks.npz"

_BITS = 15
SIZE = 2**_BITS  # different indices
HEAD, TAIL = 500, 300  # characters that are looked at: what to do is said at the beginning or at the end
_EDGE = 48  # bytes at either end whose n-grams count apart as well
_LONGEST = 5
_EVERYWHERE, _FIRST, _LAST = 0, 37, 74  # where an n-gram stands enters its hash

# Capitals, the value of numbers and the kind of white space say little about a task.
_FOLD = bytes.maketrans(bytes(range(65, 91)) + b"123456789\t\r", bytes(range(97, 123)) + b"0" * 9 + b" \n")
# Chat templates leave these behind when their special tokens are dropped.
_ROLE_LINE = re.compile(r"^ *(?:system|user|assistant|model|developer) *$", re.MULTILINE)

# System messages that chat templates add by themselves say nothing of the task.
_DEFAULT_SYSTEM = re.compile(
    r"^ *(?:you are [\w-]+, (?:created|made|trained) by [\w ]+\. *)?"
    r"you are an? (?:(?:helpful|friendly|ai),? )*assistant(?: named \w+)?"
    r"(?:,? (?:created|made|trained) by [\w ]+)?\.? *$",
    re.MULTILINE | re.IGNORECASE,
)
_LABEL = r"^\W{0,8}(?:text|context|passage|paragraph|document|article|source|excerpt)s?(?: ?\d+)? *:"
_QUESTION = r"(?:question|q) *:"
_START = r"(?:^|[.!?:;,]\s{1,4}|\band\s+)\W{0,8}(?:please\s+|only\s+)?"  # where an instruction may begin
_CODE_LANGUAGE = r"(?:python|java|javascript|typescript|rust|go|ruby|bash|sql|c|c\+\+|c#)"
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (task, re.compile("|".join(patterns), re.MULTILINE | re.IGNORECASE))
    for task, patterns in (
        (
            "code",
            (
                r"^ {0,40}(?:```|def \w+\(|class \w+[:({]|import \w+$|from [\w.]+ import |#include )",
                r"^\W{0,8}(?:please\s+)?(?:write|implement|create|define)\s+(?:\S+\s+){0,3}?(?:function|unit tests?)\b",
                rf"\b{_CODE_LANGUAGE} (?:function|script|program|class|method|code)\b",
            ),
        ),
        (
            "json",
            (
                rf"{_START}(?:reply|respond|answer|output|return)\b[^.?!\n]{{0,60}}\bjson\b",
                rf"{_START}(?:give|provide|format|list|extract|describe|create|write|generate|produce)\b[^.?!\n]{{0,80}}"
                r"\b(?:(?:as|in|valid)\s+(?:an?\s+)?json|json\s+(?:object|array|list|document))\b",
                rf"{_START}(?:convert|turn)\b[^.?!\n]{{0,80}}\b(?:to|into)\s+json\b",
                r"\b(?:must|should) be (?:\w+ ){0,2}json\b",
            ),
        ),
        ("rag", (rf"{_LABEL}[\s\S]*(?:^|[.!?]\s{{1,4}}){_QUESTION}", rf"^\W{{0,8}}{_QUESTION}[\s\S]*{_LABEL}")),
        (
            "summarize",
            (r"^\W{0,8}(?:please\s+|(?:can|could) you\s+)?(?:briefly\s+)?summari[sz]e\b", r"^\W{0,8}tl;?\s?dr\b"),
        ),
    )
)

_Hashes = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Detection:
    """The likeliest task and its probability; `task` is None where that is too low."""

    task: str | None
    confidence: float


@dataclass(frozen=True)
class TaskDetector:
    """Rules for prompts that state their task outright, and for others a linear model over hashed n-grams.

    The model is softmax(bias + scale * (sum of the rows of n present n-grams) / sqrt(n)).
    `weights` int8 [SIZE, T], `scale` and `bias` float32 [T]: one column for each name in `tasks`. The sum is one of
    integers, so that the same text is the same task everywhere.
    """

    tasks: tuple[str, ...]
    weights: npt.NDArray[np.int8]
    scale: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        width = (len(self.tasks),)
        known = bool(self.tasks) and set(self.tasks) <= set(TASKS)
        fits = self.weights.dtype == np.int8 and self.weights.shape == (SIZE, *width)
        if not (known and fits and all(v.shape == width and np.isfinite(v).all() for v in (self.scale, self.bias))):
            raise ConfigError(
                f"these weights cannot detect tasks: they need tasks of {', '.join(TASKS)}, int8 weights for {SIZE} "
                "n-grams, and one finite scale and bias per task; train them again"
            )

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
        text = _DEFAULT_SYSTEM.sub("", _ROLE_LINE.sub("", _excerpt(text)))
        stated = next((task for task, rule in _RULES if task in self.tasks and rule.search(text)), None)
        if stated is not None:
            return Detection(stated, 1.0)
        chances = self.probabilities(text)
        best = int(chances.argmax())
        confidence = float(chances[best])
        return Detection(self.tasks[best] if confidence >= MIN_CONFIDENCE else None, confidence)

    def save(self, path: Path) -> None:
        names = np.array(self.tasks)
        np.savez_compressed(path, tasks=names, weights=self.weights, scale=self.scale, bias=self.bias)

    @classmethod
    def load(cls, path: Path = SHIPPED) -> TaskDetector:
        """Read a detector; raises ConfigError if the file is missing, damaged, or holds something else."""
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


def ngrams(text: str) -> IntArray:
    """Indices (ascending, each once, 0 <= index < SIZE) of the n-grams of 2 to 5 bytes in the text's head and tail.

    Every n-gram counts once; those of the first and the last 48 bytes have one more index for being there. Lone
    surrogates count as question marks. An empty text has none.
    """
    text = _ROLE_LINE.sub("", _excerpt(text)).strip()
    if not text:
        return np.zeros(0, dtype=np.int64)
    folded = np.frombuffer(b"\n" + text.encode("utf-8", "replace").translate(_FOLD) + b"\n", np.uint8)
    present = np.zeros(SIZE, dtype=np.bool_)
    for part, region in ((folded, _EVERYWHERE), (folded[:_EDGE], _FIRST), (folded[-_EDGE:], _LAST)):
        for index in _indices(part, region):
            present[index] = True
    return np.flatnonzero(present)


def _excerpt(text: str) -> str:
    """The head and the tail of a long text."""
    return f"{text[:HEAD]}\n{text[-TAIL:]}" if len(text) > HEAD + TAIL else text


def _indices(part: npt.NDArray[np.uint8], region: int) -> list[_Hashes]:
    """h(b_1 ... b_n) = sum of (b_i + 1) m^(n - i) modulo 2^32, then bits mixed until the highest depend on all."""
    symbols = part.astype(np.uint32) + np.uint32(1)
    rolling, found = symbols, []
    for length in range(2, min(_LONGEST, len(part)) + 1):
        rolling = rolling[:-1] * np.uint32(0x9E3779B1) + symbols[length - 1 :]
        found.append(_mix(rolling, np.uint32((region + length) * 0x27D4EB2F % 2**32)))
    return found


def _mix(hashes: _Hashes, salt: np.uint32) -> _Hashes:
    """The finishing steps of MurmurHash3 (public domain), with shifts that suit 15 bits of result."""
    mixed = (hashes ^ salt) * np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(13)
    shortened: _Hashes = mixed >> np.uint32(32 - _BITS)
    return shortened
