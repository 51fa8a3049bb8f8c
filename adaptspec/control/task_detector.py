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
from adaptspec.control.tasks import MAX_ADDED, OTHER, TASKS
from adaptspec.errors import ConfigError
from adaptspec.files import DAMAGE, read_arrays
from adaptspec.request import LABEL_WORDS, is_label

MIN_CONFIDENCE = 0.5  # below it a guess is more often wrong than right
SHIPPED = Path(__file__).parent / "data" / "tasks.npz"

_BITS = 15
SIZE = 2**_BITS  # different indices
HEAD, TAIL = 500, 300  # characters that are used: instructions stand at the beginning or at the end
_EDGE = 48  # bytes at either end whose n-grams count apart as well
_LONGEST = 5
_EVERYWHERE, _FIRST, _LAST = 0, 37, 74  # the region of an n-gram is part of its hash

# Capitals, the value of numbers and the kind of white space say little about a task.
_FOLD = bytes.maketrans(bytes(range(65, 91)) + b"123456789\t\r", bytes(range(97, 123)) + b"0" * 9 + b" \n")
# Chat templates leave these lines behind when their special tokens are dropped.
_ROLE_LINE = re.compile(r"^ *(?:system|user|assistant|model|developer) *$", re.MULTILINE)

# System messages that chat templates add by themselves say nothing of the task.
_DEFAULT_SYSTEM = re.compile(
    r"^ *(?:you are [\w-]+, (?:created|made|trained) by [\w ]+\. *)?"
    r"you are an? (?:(?:helpful|friendly|ai),? )*assistant(?: named \w+)?"
    r"(?:,? (?:created|made|trained) by [\w ]+)?\.? *$",
    re.MULTILINE | re.IGNORECASE,
)
_TEXT = r"(?:text|context|passage|paragraph|document|article|source|excerpt|snippet|reference|note|report|result)s?"
_LABEL = rf"^\W{{0,8}}{_TEXT}(?: ?\d+)? *:"
_QUESTION = r"(?:question|q|query) *:"
_POLITE = r"(?:please\s+|only\s+|(?:can|could|would) you\s+(?:please\s+)?)?"
_FIRST_LINE = rf"\A\W{{0,8}}{_POLITE}"  # where a short instruction begins that a text may follow
_START = rf"(?:^|[.!?:;,]\s{{1,4}}|\band\s+)\W{{0,8}}{_POLITE}"  # where an instruction may begin
_ASK = r"(?:write|make|create|generate|give me|show me|provide|produce)"
_LANGUAGE = (
    r"(?:english|german|french|spanish|italian|portuguese|dutch|polish|russian|ukrainian|turkish|arabic|hindi|chinese|"
    r"mandarin|japanese|korean|swedish|danish|norwegian|finnish|greek|czech|latin|hebrew|vietnamese)"
)
_CODE_LANGUAGE = r"(?:python|java|javascript|typescript|rust|go|ruby|bash|sql|c|c\+\+|c#|kotlin|swift|php|perl|scala)"
_CODE_TOOL = r"(?:css|sql(?! insert)|regex|regular expression|bash|git|dockerfile|numpy|pandas|react|kubectl)"
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (task, re.compile("|".join(patterns), re.MULTILINE | re.IGNORECASE))
    for task, patterns in (
        (
            "code",
            (
                r"^ {0,40}(?:```|def \w+\(|class \w+[:({]|import \w+$|from [\w.]+ import |#include )",
                rf"{_FIRST_LINE}(?:write|implement|create|define)\s+(?:\S+\s+){{0,3}}?(?:function|unit tests?)\b",
                rf"\b{_CODE_LANGUAGE} (?:function|script|program|class|method|code|query|snippet)\b",
                rf"{_FIRST_LINE}(?:{_ASK}|how (?:do|can|would) (?:i|you|we)\b|what is|implement)[^.?!\n]{{0,80}}"
                rf"\b{_CODE_TOOL}\b",
                rf"\A\W{{0,8}}{_CODE_TOOL}\s(?!is\b|was\b)",
                rf"{_FIRST_LINE}(?:fix|debug|refactor|optimi[sz]e|explain|review)\s(?:this|the|my|following|\s){{1,3}}"
                r"(?:code|bug|function|script|program|query|snippet)\b",
                r"(?-i:^\W{0,8}(?:Traceback |[A-Z]\w*(?:Error|Exception)\b))",
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
        (
            "rag",
            (
                rf"{_LABEL}[\s\S]*(?:^|[.!?]\s{{1,4}}){_QUESTION}",
                rf"^\W{{0,8}}{_QUESTION}[\s\S]*{_LABEL}",
                rf"{_START}(?:based (?:only )?on|according to|given|using(?: only)?|from) (?:the|this|these)\s+"
                rf"(?:\w+ ){{0,2}}{_TEXT}\b[^?\n]{{0,120}}\?",
                # Prose, then a line with one question.
                r"\A[^?]{120,}[.!\"]\s*\n\s*(?:who|whose|what|when|where|which|why|how|in which|does|did|is|are|was)\b"
                r"[^\n?]{3,150}\?\s*\Z",
            ),
        ),
        (
            "summarize",
            (
                rf"{_FIRST_LINE}(?:briefly\s+)?summari[sz]e\b",
                r"^\W{0,8}tl;?\s?dr\b",
                rf"{_FIRST_LINE}(?:condense|shorten|recap|sum up)\s(?:this|the|these|it)\b",
                rf"{_FIRST_LINE}{_ASK}\s[^.?!\n]{{0,40}}\b(?:summary|tl;?\s?dr|abstract|overview|recap)\s+(?:of|for)\s+"
                r"(?:this|the|these)\b",
                rf"{_FIRST_LINE}(?:{_ASK}|list|what are|extract)\s[^.?!\n]{{0,20}}"
                r"\b(?:key|main|most important) (?:points?|takeaways?|ideas?)\b[^.?!\n]{0,40}(?:[:?.]|$)\s*\S",
                r"\bsummari[sz]e (?:the|this|all of the) (?:text |article |passage |conversation )?(?:above|below)\b",
            ),
        ),
        (
            "translate",
            (
                rf"{_FIRST_LINE}translate\b",
                rf"{_START}translate\b[^.?!\n]{{0,40}}\b(?:to|into|from) {_LANGUAGE}\b",
                rf"{_FIRST_LINE}how (?:do|would|can) (?:you|i|we) say\b[\s\S]{{1,120}}\bin {_LANGUAGE}\b",
                rf"{_FIRST_LINE}what does\b[\s\S]{{1,120}}\bmean in {_LANGUAGE}\b",
                rf"{_FIRST_LINE}(?:say|put|write) (?:this|it|that|the following)(?: \w+)? in(?:to)? {_LANGUAGE}\b",
                rf"\A\W{{0,8}}{_LANGUAGE} (?:to|->|into) {_LANGUAGE}\b",
            ),
        ),
        (
            "template",
            (
                rf"{_FIRST_LINE}{_ASK}\b[^.?!\n]{{0,40}}"
                r"\b(?:csv|yaml|xml|html|toml|(?:markdown|latex) (?:table|list))\b",
            ),
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
    integers, so that the same text is the same task everywhere. The rules are for `TASKS`: a detector of other tasks
    has the model alone.
    """

    tasks: tuple[str, ...]
    weights: npt.NDArray[np.int8]
    scale: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        width = (len(self.tasks),)
        named = 1 <= len(set(self.tasks)) == len(self.tasks) <= MAX_ADDED
        named = named and all(is_label(task) and task != OTHER for task in self.tasks)
        fits = self.weights.dtype == np.int8 and self.weights.shape == (SIZE, *width)
        if not (named and fits and all(v.shape == width and np.isfinite(v).all() for v in (self.scale, self.bias))):
            raise ConfigError(
                f"these weights cannot detect tasks: they need up to {MAX_ADDED} names of tasks ({LABEL_WORDS}), int8 "
                f"weights for {SIZE} n-grams, and one finite scale and bias per task; train them again"
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
        if self.tasks == TASKS:
            stated = next((task for task, rule in _RULES if rule.search(text)), None)
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
            return cls(tasks, np.asarray(arrays["weights"]), scale, bias)
        except (OSError, ConfigError, *DAMAGE) as error:
            raise ConfigError(
                f"{path}: no task detector can be read from it ({error}); write one with `adaptspec train tasks`, "
                "or do without (--no-detect-tasks)"
            ) from error


def ngrams(text: str) -> IntArray:
    """Indices (ascending, each once, 0 <= index < SIZE) of the n-grams of 2 to 5 bytes in the text's head and tail.

    Every n-gram counts once; those of the first and the last 48 bytes have one more index for their region. Lone
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
