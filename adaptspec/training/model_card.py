"""The model card of a trained pair, written from what the run recorded and what the report measured."""

from __future__ import annotations

import json
from collections.abc import Mapping

from adaptspec.training.data_sources import source_table
from adaptspec.training.report import PairReport, acceptance_table, loss_table, position_table
from adaptspec.training.run_record import RunRecord

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

ADAMW_NOTE = "Muon for weight matrices, AdamW for embeddings and norms; linear warm-up, linear decay to zero by time"


def model_card(record: RunRecord, report: PairReport) -> str:
    """The card as Markdown: what it is, recipe, data, figures, limits, how to train it again."""
    parts = [
        INTRODUCTION,
        _sizes(report),
        _recipe(record),
        _data(record.sources),
        "## Figures",
        acceptance_table(report),
        position_table(report),
        loss_table(report),
        LIMITS,
        _again(record),
    ]
    return "\n\n".join(parts) + "\n"


def _sizes(report: PairReport) -> str:
    return f"Target: {report.target_parameters:,} parameters. Draft: {report.draft_parameters:,} parameters."


def _recipe(record: RunRecord) -> str:
    stages = [
        f"- {name}: {stage.minutes:g} minutes, {stage.tokens / 1e6:.1f} million tokens"
        for name, stage in record.stages.items()
    ]
    settings = [f"- {name}: {_value(value)}" for name, value in record.identity.items() if name != "source_weights"]
    return "\n".join(
        [
            "## How it was trained",
            "",
            f"On {record.hardware}, with `adaptspec train pair`:",
            "",
            *stages,
            f"- {ADAMW_NOTE}",
            "- the target learns the next token; the draft only the target's distribution (KL divergence)",
            *settings,
        ]
    )


def _data(sources: Mapping[str, int]) -> str:
    head = "## Data, with thanks to its authors\n\nThe texts themselves are not part of this directory."
    return f"{head}\n\n{source_table(sources, 'records')}"


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
