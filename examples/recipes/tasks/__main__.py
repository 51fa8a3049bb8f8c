"""Trains the task detector that ships, and writes its card.

    python -m examples.recipes.tasks --corpus corpus.jsonl --prompts workloads --out tasks.npz

Regularisation and temperature are chosen by answers on sources that were left out of training: prompts of known sources
are too easy.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import yaml
from rich.console import Console
from scipy.sparse import csr_matrix

from adaptspec.control.task_detector import MIN_CONFIDENCE, TaskDetector
from adaptspec.control.tasks import TASKS
from adaptspec.errors import AdaptSpecError
from adaptspec.files import write_file
from adaptspec.training.corpus import SYNTHETIC, Prompt, read_corpus, read_prompts
from adaptspec.training.task_training import (
    STRENGTHS,
    choose_temperature,
    feature_matrix,
    fit,
    quantised,
    scores_of,
)
from examples.recipes.tasks.prompts import PHRASINGS, Example, example_weights, task_examples

KINDS = ("synthetic", "real, source known", "real, source never seen")
_SOURCES = Path(__file__).parents[1] / "sources.yaml"


@dataclass(frozen=True)
class LeftOut:
    """Answers on sources that were left out of training: `accuracy` is the mean over them."""

    strength: float
    accuracy: float
    temperature: float


def train_shipped(
    corpus: Path,
    prompts: Sequence[Prompt],
    out: Path,
    console: Console,
    *,
    per_source: int = 300,
    phrased: int = 1500,
) -> TaskDetector:
    """Train on a corpus, write the detector to `out`, and a card with results on `prompts` to the same name as .md.

    Raises:
        CorpusError: the corpus cannot be used.
    """
    read = read_corpus(corpus)
    examples = task_examples(read.train, per_source=per_source, phrased=phrased)
    console.print(f"{len(examples)} examples of {len({(e.task, e.source) for e in examples})} sources")
    features = feature_matrix([example.text for example in examples])
    trials = [leave_sources_out(examples, features, strength) for strength in STRENGTHS]
    for trial in trials:
        console.print(f"  strength {trial.strength:g}: {trial.accuracy:.3f} right on sources left out")
    best = max(trials, key=lambda trial: trial.accuracy)
    model = fit([e.task for e in examples], features, best.strength, example_weights(examples))
    detector = quantised(model, best.temperature)
    detector.save(out)
    figures = score_sources(detector, prompts, {example.source for example in examples})
    counts = Counter(e.source for e in examples)
    card = _card(detector, out, trials=trials, best=best, counts=counts, figures=figures, corpus=read.fingerprint)
    write_file(out.with_suffix(".md"), card.encode())
    console.print(f"wrote {out} ({out.stat().st_size / 1e3:.0f} kB) and {out.with_suffix('.md')}")
    return detector


def leave_sources_out(examples: Sequence[Example], features: csr_matrix, strength: float) -> LeftOut:
    """Train without some sources, ask about those, until each was left out once; on every other example, for time.

    A fold leaves out one source of each task that has one left; wordings always stay.
    """
    chosen = np.arange(len(examples)) % 2 == 0
    scores, truth, weights = [], [], []
    for fold in _folds(examples):
        left = np.array([(e.task, e.source) in fold for e in examples])
        inside, outside = np.flatnonzero(chosen & ~left).tolist(), np.flatnonzero(chosen & left).tolist()
        learned, asked = [examples[i] for i in inside], [examples[i] for i in outside]
        model = fit([e.task for e in learned], features[inside], strength, example_weights(learned))
        scores.append(scores_of(model, features[outside]))
        sizes = Counter((e.task, e.source) for e in asked)
        truth += [TASKS.index(e.task) for e in asked]
        weights += [1.0 / sizes[e.task, e.source] for e in asked]
    all_scores, all_truth, all_weights = np.concatenate(scores), np.array(truth), np.array(weights)
    right = all_scores.argmax(axis=1) == all_truth
    accuracy = float(np.average(right, weights=all_weights))
    return LeftOut(strength, accuracy, choose_temperature(all_scores, all_truth, all_weights))


def _folds(examples: Sequence[Example]) -> list[set[tuple[str, str]]]:
    folds: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
    met: Counter[str] = Counter()
    for task, source in sorted({(e.task, e.source) for e in examples if e.source != PHRASINGS}):
        folds[met[task]].add((task, source))
        met[task] += 1
    return list(folds.values())


@dataclass(frozen=True)
class SourceScore:
    """Results on the prompts of one source; `seconds` is the median time of a prompt."""

    task: str
    source: str
    kind: str  # one of KINDS
    prompts: int
    right: int
    unknown: int
    seconds: float


def score_sources(detector: TaskDetector, prompts: Sequence[Prompt], trained_on: Collection[str]) -> list[SourceScore]:
    """One score per task and source. `trained_on` are the sources of the training examples."""
    known = {_origin(source) for source in trained_on}
    found: defaultdict[tuple[str, str], list[tuple[str | None, float]]] = defaultdict(list)
    for prompt in prompts:
        began = time.perf_counter()
        task = detector.detect(prompt.text).task
        found[prompt.task, _collection(prompt.source)].append((task, time.perf_counter() - began))
    scores = []
    for (task, source), results in sorted(found.items()):
        kind = KINDS[0 if source == SYNTHETIC else 1 if _origin(source) in known else 2]
        named, seconds = [name for name, _ in results], [took for _, took in results]
        counts = named.count(task), named.count(None)
        scores.append(SourceScore(task, source, kind, len(named), *counts, statistics.median(seconds)))
    return scores


def _collection(source: str) -> str:
    """A book is a part of its library."""
    return source.partition("/")[0]


def _origin(source: str) -> str:
    """The data set behind a tag: its test part is no separate source."""
    return _collection(source).removesuffix("-test").removesuffix("-train")


def _card(
    detector: TaskDetector,
    out: Path,
    *,
    trials: Sequence[LeftOut],
    best: LeftOut,
    counts: Mapping[str, int],
    figures: Sequence[SourceScore],
    corpus: str,
) -> str:
    sources = yaml.safe_load(_SOURCES.read_text(encoding="utf-8"))
    unknown = {"what": "", "origin": "not known to the recipe", "licence": "add it before publishing"}
    data = []
    for source, count in sorted(counts.items()):
        if source != PHRASINGS:
            about = sources.get(source, unknown)
            data.append(f"| {about['what'] or source} | {about['origin']} | {about['licence']} | {count:,} |")
    means = []
    for kind in KINDS:
        scores = [score for score in figures if score.kind == kind]
        if scores:
            mean = statistics.fmean(score.right / score.prompts for score in scores)
            means.append(f"- {kind}: {mean:.3f} right (mean over {len(scores)} sources)")
    rows = [
        f"| {s.task} | {s.source} | {s.kind} | {s.prompts} | {s.right / s.prompts:.2f} "
        f"| {(s.prompts - s.right - s.unknown) / s.prompts:.2f} | {s.unknown / s.prompts:.2f} |"
        for s in figures
    ]
    left_out = ", ".join(f"{trial.accuracy:.3f} at {trial.strength:g}" for trial in trials)
    milliseconds = 1e3 * statistics.median(score.seconds for score in figures)
    newline = "\n"
    return f"""# The task detector

Recognises the task of a request from its prompt, so that what was learned of a task serves its next request. A few
rules recognise prompts that state their task; a linear model over hashed character n-grams judges the others. It is
logistic regression, stored with a byte per weight. It names one of {", ".join(detector.tasks)},
or none if the likeliest has a probability below {MIN_CONFIDENCE:g}. A request may name its task itself.

This is the card of the weights with the digest `{digest(out.read_bytes())}`.

## Training

On {datetime.now(timezone.utc).date().isoformat()}, with `python -m examples.recipes.tasks`, on the corpus with the
fingerprint `{corpus}`: some hundred prompts of each source, as they are and as clients may wrap them, and
{counts[PHRASINGS]:,} filled wordings. Tasks count alike, and sources within a task. Regularisation was
chosen by answers on sources left out of training (right: {left_out}): {best.strength:g}; so was the temperature,
{best.temperature:.2f}.

## Data, with thanks to its authors

The texts themselves are not part of this directory.

| text | from | licence | prompts |
| --- | --- | --- | ---: |
{newline.join(data)}

## How often it is right

{newline.join(means)}
- time per prompt: {milliseconds:.2f} ms (median, on the machine that trained it)

| task | source | kind | prompts | right | wrong | unknown |
| --- | --- | --- | ---: | ---: | ---: | ---: |
{newline.join(rows)}

## Limits

- English prompts of the kinds above; other languages, long documents and mixed tasks are guesses.
- It is wrong most on sources unlike those it was trained on: read their figures, not the synthetic ones.
- A wrong task costs speed only, unless a policy makes a task lossy: text is verified exactly whatever the task.
- It learns from texts of others; nothing was done about bias, and nothing about people should be decided by it.
"""


def digest(weights: bytes) -> str:
    """Identifies the file that a card describes."""
    return hashlib.blake2b(weights, digest_size=12).hexdigest()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.recipes.tasks", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="JSONL with task, src and prompt or text")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL file or folder of prompts to measure on")
    parser.add_argument("--out", type=Path, required=True, help="file to write, such as tasks.npz")
    arguments = parser.parse_args()
    try:
        train_shipped(arguments.corpus, read_prompts(arguments.prompts), arguments.out, Console(stderr=True))
    except AdaptSpecError as error:
        parser.exit(2, f"{error}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
