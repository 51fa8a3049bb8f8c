"""The report that ends the recipe: held-out loss per task, samples, acceptance by task and position."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from adaptspec.training.corpus import Record
from adaptspec.training.figures import DEPTHS, LabelledTrace, TaskFigures, task_figures
from adaptspec.training.measure import TEMPERATURE, MeasuredPair
from adaptspec.training.prompts import SAMPLES, Prompt, spread

ALL = "all"


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
    acceptance: tuple[TaskFigures, ...]
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
    traces: dict[str, list[LabelledTrace]] = {}
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


def acceptance_table(report: PairReport) -> str:
    """Acceptance by task, as Markdown."""
    depths = " / ".join(str(depth) for depth in DEPTHS)
    rows = [
        [
            f.task,
            f"{f.agreement:.2f}",
            f"{_number(f.agreement_synthetic)} / {_number(f.agreement_real)}",
            " / ".join(f"{f.lengths[depth]:.2f}" for depth in DEPTHS),
            f"{f.rejection:.2f} / {f.coupled:.2f} / {f.greedy_draft:.2f}",
            f"{_number(f.confidence_correlation)} / {_number(f.entropy_correlation)}",
            f"{f.output_tokens:.0f}",
        ]
        for f in report.acceptance
    ]
    head = ["task", "agreement", "synthetic / real", f"length at {depths}", "rejection / coupled / greedy draft"]
    note = (
        "Greedy agreement of draft and target on the true prefix; acceptance length with the bonus token by depth; "
        f"acceptance probability at temperature {TEMPERATURE}; correlation of the draft's confidence and entropy with "
        f"agreement; mean output length (up to {report.size.prompts_per_task} prompts per task, up to "
        f"{report.size.max_tokens} tokens)."
    )
    return f"{note}\n\n{_table([*head, 'confidence / entropy', 'output'], rows)}"


def position_table(report: PairReport) -> str:
    """Conditional acceptance by task and drafted position, as Markdown."""
    rows = [[f.task, *(_number(value) for value in f.by_position)] for f in report.acceptance]
    head = ["task", *(str(position) for position in range(1, DEPTHS[-1] + 1))]
    note = "Conditional acceptance by drafted position (greedy, depth 7): accepted / reached."
    return f"{note}\n\n{_table(head, rows)}"


def loss_table(report: PairReport) -> str:
    """Held-out loss by task and kind of source, as Markdown."""
    rows = [
        [f.task, "synthetic" if f.synthetic else "real", f"{f.tokens:,}", f"{f.target:.2f}", f"{f.draft:.2f}"]
        for f in report.losses
    ]
    return f"Loss on held-out records, nats per token.\n\n{_table(['task', 'text', 'tokens', 'target', 'draft'], rows)}"


def _traces(pair: MeasuredPair, prompts: Sequence[Prompt], max_tokens: int) -> list[LabelledTrace]:
    encoded = [(prompt, pair.encode_chat(prompt.text)) for prompt in prompts]
    usable = [(prompt, ids) for prompt, ids in encoded if len(ids) + max_tokens <= pair.context]
    outputs = pair.generate([ids for _, ids in usable], max_tokens)
    return [
        LabelledTrace(pair.trace(ids, output, seed), prompt.synthetic)
        for seed, ((prompt, ids), output) in enumerate(zip(usable, outputs, strict=True))
    ]


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


def _samples(pair: MeasuredPair, max_tokens: int) -> list[Sample]:
    encoded = [(prompt, pair.encode_chat(prompt.text)) for prompt in SAMPLES]
    usable = [(prompt, ids) for prompt, ids in encoded if len(ids) + max_tokens <= pair.context]
    outputs = pair.generate([ids for _, ids in usable], max_tokens)
    return [
        Sample(prompt.task, prompt.text, pair.decode(output))
        for (prompt, _), output in zip(usable, outputs, strict=True)
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fenced(text: str) -> str:
    # A fence longer than any run of backticks in the text cannot be closed by it.
    fence = "````" if "```" in text else "```"
    return f"{fence}\n{text}\n{fence}"
