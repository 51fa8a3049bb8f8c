"""What ends the recipe: the report (losses, acceptance, samples) and the model card with its tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import track

from adaptspec.tables import Table
from adaptspec.training.corpus import Record, source_table
from adaptspec.training.measure import DEPTHS, TEMPERATURE, AcceptanceFigures, MeasuredPair, Trace, task_figures
from adaptspec.training.pair_settings import RunRecord
from adaptspec.training.prompts import SAMPLES, Prompt, spread

ALL = "all"  # the task of figures of all positions pooled

INTRODUCTION = """\
# A small target and its draft

Two Llama-architecture language models that share a tokenizer and a chat template: `target/`, and `draft/`,
which was distilled from it and proposes tokens for it. They exist so that AdaptSpec can be tried, tested and
measured without downloading anything. They are ordinary Hugging Face directories (safetensors, bfloat16).

They are far too small to be relied on: use them to look at speculative decoding, not for their answers."""

LIMITS = """\
## Limits

- Names and numbers are often copied from the prompt wrongly, arithmetic is mostly wrong, facts are invented, and
  answers to prompts unlike the training text may loop.
- English, a little Python, JSON and other structured text, short French, German and Spanish sentences; nothing else.
- No safety training of any kind. Not for use on people's data or for decisions about people.
- Synthetic prompts share templates with the training text, so acceptance on them is flattering: read the two
  columns apart."""


@dataclass(frozen=True)
class ReportSize:
    """How much is measured."""

    prompts_per_task: int = 30
    max_tokens: int = 160
    records_per_task: int = 40  # for the loss, synthetic and real each
    sample_tokens: int = 96


@dataclass(frozen=True)
class LossFigures:
    """Mean loss (nats per token) on a task's held-out records."""

    task: str
    synthetic: bool
    tokens: int
    target: float
    draft: float


@dataclass(frozen=True)
class Sample:
    """What the target says, greedily."""

    task: str
    prompt: str
    text: str


@dataclass(frozen=True)
class PairReport:
    """All figures of a pair. `acceptance` has one entry per task and, last, one of all positions pooled."""

    target_parameters: int
    draft_parameters: int
    size: ReportSize
    losses: tuple[LossFigures, ...]
    acceptance: tuple[AcceptanceFigures, ...]
    samples: tuple[Sample, ...]

    def to_json(self) -> str:
        """The report as one JSON object."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    def to_markdown(self) -> str:
        """The report as Markdown, with a heading."""
        sizes = f"Target {self.target_parameters:,} parameters, draft {self.draft_parameters:,}."
        parts = ["# Report", sizes, acceptance_table(self), position_table(self), loss_table(self)]
        samples = [f"**{s.task}**\n\n{_fenced(s.prompt)}\n\n{_fenced(s.text)}" for s in self.samples]
        return "\n\n".join([*parts, "## Samples (greedy: prompt, answer)", *samples]) + "\n"


def report_pair(
    target: Path,
    draft: Path,
    held_out: Sequence[Record],
    prompts: Sequence[Prompt],
    console: Console,
    *,
    size: ReportSize = ReportSize(),
    device: str = "cpu",
) -> PairReport:
    """Measure the pair in the two model directories. Tasks without a usable prompt are left out."""
    pair = MeasuredPair(target, draft, device)
    tasks = sorted({prompt.task for prompt in prompts})
    traces: dict[str, list[Trace]] = {}
    for task in track(tasks, "acceptance", console=console):
        chosen = spread([prompt for prompt in prompts if prompt.task == task], size.prompts_per_task)
        traces[task] = _traces(pair, chosen, size.max_tokens)
    acceptance = [task_figures(task, items) for task, items in traces.items() if items]
    pooled = [item for items in traces.values() for item in items]
    if pooled:
        acceptance.append(task_figures(ALL, pooled))
    losses = _losses(pair, held_out, size.records_per_task, console)
    samples = _samples(pair, size.sample_tokens)
    return PairReport(*pair.parameters, size, tuple(losses), tuple(acceptance), tuple(samples))


def model_card(record: RunRecord, report: PairReport) -> str:
    """The card as Markdown: what it is, recipe, data, figures, limits, how to train it again."""
    parts = [
        INTRODUCTION,
        f"Target: {report.target_parameters:,} parameters. Draft: {report.draft_parameters:,} parameters.",
        _recipe(record),
        "## Data, with thanks to its authors\n\nThe texts themselves are not part of this directory.",
        source_table(record.sources, "records"),
        "## Figures",
        acceptance_table(report),
        position_table(report),
        loss_table(report),
        LIMITS,
        _again(record),
    ]
    return "\n\n".join(parts) + "\n"


def _recipe(record: RunRecord) -> str:
    stages = [
        f"- {name}: {stage.minutes:g} minutes, {stage.tokens / 1e6:.1f} million tokens"
        for name, stage in record.stages.items()
    ]
    settings = [f"- {name}: {_value(value)}" for name, value in record.identity.items() if name != "source_weights"]
    methods = [
        "- Muon for weight matrices, AdamW for embeddings and norms; linear warm-up, linear decay to zero by time",
        "- the target learns the next token; the draft only the target's distribution (KL divergence)",
    ]
    head = f"## How it was trained\n\nOn {record.hardware}, with `adaptspec train pair`:\n\n"
    return head + "\n".join([*stages, *methods, *settings])


def _again(record: RunRecord) -> str:
    return (
        "## Train it again\n\n"
        "```\nadaptspec train pair --corpus corpus.jsonl --out pair\n```\n\n"
        "A corpus is a JSONL file (plain or .xz) of records with `task`, `src` and `prompt` + `completion`, or `text`. "
        f"This run's corpus has the fingerprint `{record.corpus}`; {_shares(record)}. Training is boxed by time, so "
        "another machine gives other weights."
    )


def _shares(record: RunRecord) -> str:
    shares = record.identity.get("source_weights")
    return f"of some sources only a share was used, {_value(shares)}" if shares else "all of it was used"


def _value(value: object) -> str:
    return f"`{json.dumps(value)}`" if isinstance(value, Mapping) else str(value)


def acceptance_table(report: PairReport) -> str:
    """Acceptance by task, as Markdown."""
    depths = " / ".join(str(depth) for depth in DEPTHS)
    head = ("task", "agreement", "synthetic / real", f"length at {depths}", "rejection / coupled / greedy draft")
    table = Table(*head, "confidence / entropy", "output")
    for f in report.acceptance:
        table.add_row(
            f.task,
            f"{f.agreement:.2f}",
            f"{_number(f.agreement_synthetic)} / {_number(f.agreement_real)}",
            " / ".join(f"{f.lengths[depth]:.2f}" for depth in DEPTHS),
            f"{f.rejection:.2f} / {f.coupled:.2f} / {f.greedy_draft:.2f}",
            f"{_number(f.confidence_correlation)} / {_number(f.entropy_correlation)}",
            f"{f.output_tokens:.0f}",
        )
    note = (
        "Greedy agreement of draft and target on the true prefix; acceptance length with the bonus token by depth; "
        f"acceptance probability at temperature {TEMPERATURE}; correlation of the draft's confidence and entropy with "
        f"agreement; mean output length (up to {report.size.prompts_per_task} prompts per task, up to "
        f"{report.size.max_tokens} tokens)."
    )
    return f"{note}\n\n{table.markdown().rstrip()}"


def position_table(report: PairReport) -> str:
    """Conditional acceptance by task and drafted position, as Markdown."""
    table = Table("task", *(str(position) for position in range(1, DEPTHS[-1] + 1)))
    for f in report.acceptance:
        table.add_row(f.task, *(_number(value) for value in f.by_position))
    note = "Conditional acceptance by drafted position (greedy, depth 7): accepted / reached."
    return f"{note}\n\n{table.markdown().rstrip()}"


def loss_table(report: PairReport) -> str:
    """Held-out loss by task and kind of source, as Markdown."""
    table = Table("task", "text", "tokens", "target", "draft")
    for f in report.losses:
        kind = "synthetic" if f.synthetic else "real"
        table.add_row(f.task, kind, f"{f.tokens:,}", f"{f.target:.2f}", f"{f.draft:.2f}")
    return f"Loss on held-out records, nats per token.\n\n{table.markdown().rstrip()}"


def _answers(
    pair: MeasuredPair, prompts: Sequence[Prompt], max_tokens: int
) -> Iterator[tuple[Prompt, list[int], list[int]]]:
    """Prompts that leave room for an answer, with their token ids and the target's greedy output."""
    encoded = [(prompt, pair.encode_chat(prompt.text)) for prompt in prompts]
    usable = [(prompt, ids) for prompt, ids in encoded if len(ids) + max_tokens <= pair.context]
    outputs = pair.generate([ids for _, ids in usable], max_tokens)
    yield from ((prompt, ids, output) for (prompt, ids), output in zip(usable, outputs, strict=True))


def _traces(pair: MeasuredPair, prompts: Sequence[Prompt], max_tokens: int) -> list[Trace]:
    answers = enumerate(_answers(pair, prompts, max_tokens))
    return [replace(pair.trace(ids, out, seed), synthetic=prompt.synthetic) for seed, (prompt, ids, out) in answers]


def _samples(pair: MeasuredPair, max_tokens: int) -> list[Sample]:
    answers = _answers(pair, SAMPLES, max_tokens)
    return [Sample(prompt.task, prompt.text, pair.decode(output)) for prompt, _, output in answers]


def _losses(pair: MeasuredPair, records: Sequence[Record], count: int, console: Console) -> list[LossFigures]:
    groups: dict[tuple[str, bool], list[Record]] = {}
    for record in records:
        groups.setdefault((record.task, record.synthetic), []).append(record)
    figures = []
    for (task, synthetic), members in track(sorted(groups.items(), key=lambda g: g[0]), "loss", console=console):
        tokens, target, draft = 0, 0.0, 0.0
        for record in spread(members, count):
            ids = pair.encode(record.text)
            one, other = pair.loss(ids)
            tokens, target, draft = tokens + len(ids) - 1, target + one, draft + other
        figures.append(LossFigures(task, synthetic, tokens, target / tokens, draft / tokens))
    return figures


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _fenced(text: str) -> str:
    # A fence longer than any run of backticks in the text cannot be closed by it.
    fence = "````" if "```" in text else "```"
    return f"{fence}\n{text}\n{fence}"
