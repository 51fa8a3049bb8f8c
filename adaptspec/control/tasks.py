"""The tasks that acceptance is learned apart for, their detection in the text of a prompt, and numbers for their names.

A request names its task as a hint, else `TaskDetector` reads it off the prompt: by a few rules where the prompt states
its task outright, else from hashed character n-grams. Both give the same result on every machine: rules match text, and
n-grams are hashed from UTF-8 bytes in integer arithmetic. A task is a line in tables of counts, so there is room for
`MOST_OWN` further names; a task without a number counts as `OTHER`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.errors import ConfigError
from adaptspec.files import DAMAGE, read_arrays

TASKS = ("chat", "code", "instruction", "json", "math", "rag", "story", "summarize", "template", "translate")

OTHER = "other"  # number 0: whatever has no number of its own
MOST_OWN = 64  # names of tasks that users add

MIN_CONFIDENCE = 0.5  # below it a guess is more often wrong than right
SHIPPED = Path(__file__).parent / "data" / "tasks.npz"

_BITS = 15
SIZE = 2**_BITS  # different indices
HEAD, TAIL = 500, 300  # characters that are looked at: what to do is said at the beginning or at the end
_EDGE = 48  # bytes at either end whose n-grams count apart as well
_LONGEST = 5
_EVERYWHERE, _FIRST, _LAST = 0, 37, 74  # where an n-gram stands enters its hash

# Capitals, the value of numbers and the kind of white space tell little about a task.
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
    for part, place in ((folded, _EVERYWHERE), (folded[:_EDGE], _FIRST), (folded[-_EDGE:], _LAST)):
        for index in _indices(part, place):
            present[index] = True
    return np.flatnonzero(present)


def _excerpt(text: str) -> str:
    """The head and the tail of a long text."""
    return f"{text[:HEAD]}\n{text[-TAIL:]}" if len(text) > HEAD + TAIL else text


def _indices(part: npt.NDArray[np.uint8], place: int) -> list[_Hashes]:
    """h(b_1 ... b_n) = sum of (b_i + 1) m^(n - i) modulo 2^32, then bits mixed until the highest depend on all."""
    symbols = part.astype(np.uint32) + np.uint32(1)
    rolling, found = symbols, []
    for length in range(2, min(_LONGEST, len(part)) + 1):
        rolling = rolling[:-1] * np.uint32(0x9E3779B1) + symbols[length - 1 :]
        found.append(_mix(rolling, np.uint32((place + length) * 0x27D4EB2F % 2**32)))
    return found


def _mix(hashes: _Hashes, salt: np.uint32) -> _Hashes:
    """The finishing steps of MurmurHash3 (public domain), with shifts that suit 15 bits of result."""
    mixed = (hashes ^ salt) * np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(13)
    shortened: _Hashes = mixed >> np.uint32(32 - _BITS)
    return shortened


class Names:
    """Names and their numbers: `known` from 1 on, then others in the order they come, `room` of them.

    One thread adds names, any may read them.
    """

    def __init__(self, known: Iterable[str] = (), room: int = MOST_OWN) -> None:
        self._numbers = {name: 1 + i for i, name in enumerate(known)}
        self._known = len(self._numbers)
        self._room = room

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._numbers))

    def __contains__(self, name: str) -> bool:
        return name == OTHER or name in self._numbers

    @property
    def size(self) -> int:
        """Numbers that there may ever be, 0 included."""
        return 1 + self._known + self._room

    @property
    def left(self) -> int:
        """How many more names there is room for."""
        return self.size - 1 - len(self._numbers)

    @property
    def own(self) -> tuple[str, ...]:
        """Names that came beyond the known ones, in their order."""
        return tuple(self._numbers)[self._known :]

    def number(self, name: str | None) -> int:
        return self._numbers.get(name or OTHER, 0)

    def add(self, name: str) -> int:
        """The number of a name, which gets one if there is room; else 0."""
        if name not in self and self.left > 0:
            self._numbers[name] = 1 + len(self._numbers)
        return self.number(name)

    def forget(self, count: int) -> None:
        for name in self.own[count:]:
            del self._numbers[name]

    def follow(self, own: Sequence[str]) -> bool:
        """Add names as they once came; whether they have the numbers that they had then. If not, none is added."""
        before = len(self.own)
        done = all(self.add(name) == 1 + self._known + i for i, name in enumerate(own))
        if not done:
            self.forget(before)
        return done

    def copy(self) -> Names:
        twin = Names(self, 0)
        twin._known, twin._room = self._known, self._room
        return twin


@dataclass(frozen=True)
class Labels:
    """The numbers of one engine's task names."""

    tasks: Names = field(default_factory=lambda: Names(TASKS))

    def copy(self) -> Labels:
        return Labels(self.tasks.copy())

    @contextmanager
    def kept_if_done(self) -> Iterator[None]:
        """Names that are added inside stay only if nothing is raised there."""
        before = len(self.tasks.own)
        try:
            yield
        except BaseException:
            self.tasks.forget(before)
            raise
