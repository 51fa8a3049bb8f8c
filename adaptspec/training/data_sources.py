"""Where the texts of the bundled pair's corpus come from, by source tag: facts for the model card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class DataSource:
    """One source of training text: what it is, where exactly, under which licence."""

    what: str
    origin: str  # repository @ commit, or a version
    licence: str


DATA_SOURCES = MappingProxyType(
    {
        "synthetic": DataSource("text of all ten tasks, written by a program", "own work", "none needed"),
        "cpython-stdlib": DataSource("Python standard library", "CPython 3.11.7, 3.13.0: Lib/", "PSF-2.0"),
        "cpython-tests": DataSource("Python's own tests", "CPython 3.11.7, 3.13.0: Lib/test/", "PSF-2.0"),
        "asp": DataSource(
            "African Storybook, English children's stories",
            "global-asp/asp-source @99e0223",
            "CC BY (those stories only)",
        ),
        "pratham": DataSource(
            "Pratham Books / StoryWeaver, English children's stories",
            "global-asp/pb-source @9ea530d",
            "CC BY, one public domain",
        ),
        "standardebooks": DataSource(
            "18 classic children's books of Standard Ebooks",
            "standardebooks/* (18 repositories)",
            "public domain / CC0-1.0",
        ),
        "tinystories": DataSource(
            "TinyStories, 534 stories",
            "s-ajaykumar/smallGPT @b8b8992 (copy of roneneldan/TinyStories)",
            "CDLA-Sharing-1.0",
        ),
        "gsm8k-train": DataSource("GSM8K word problems", "openai/grade-school-math @3101c7d", "MIT, (c) 2021 OpenAI"),
        "svamp": DataSource("SVAMP word problems", "arkilpatel/SVAMP @689d7cc", "MIT, (c) 2021 Arkil Patel"),
        "synthetic-persona-chat": DataSource(
            "Synthetic-Persona-Chat (Google Research)",
            "google-research-datasets/Synthetic-Persona-Chat @1f367a0",
            "CC BY 4.0",
        ),
        "taskmaster-4": DataSource(
            "Taskmaster TM-4-2024 (Google Research)", "google-research-datasets/Taskmaster @d92cb6a", "CC BY 4.0"
        ),
        "topical-chat": DataSource("Topical-Chat (Amazon Alexa)", "alexa/Topical-Chat @7c93922", "CDLA-Sharing-1.0"),
        "chatterbot": DataSource(
            "chatterbot-corpus, English, some topics", "gunthercox/chatterbot-corpus @a01efec", "BSD-3-Clause"
        ),
        "scitldr": DataSource("SciTLDR abstracts and summaries", "allenai/scitldr @5ccad9c", "Apache-2.0"),
        "qmsum": DataSource("QMSum meeting questions", "Yale-LILY/QMSum @83d7768", "MIT, (c) 2021 Yale-LILY"),
        "tatoeba": DataSource(
            "Tatoeba English-French sentence pairs, via manythings.org",
            "DevHunterYZ/Neural-Machine-Translation @dd286a0",
            "CC BY 2.0 FR, by Tatoeba's contributors",
        ),
        "exercism": DataSource(
            "Exercism test cases", "exercism/problem-specifications @03f8331", "MIT, (c) 2014, 2019, 2021 Exercism"
        ),
        "schemastore": DataSource("example configuration files", "SchemaStore/schemastore @3b6446a", "Apache-2.0"),
        "snakes-programmatic": DataSource(
            "format conversions made by a program", "erikhyrkas/snakes @d235dd4", "MIT, (c) 2024 Erik Hyrkas"
        ),
        "self-instruct-seeds": DataSource("Self-Instruct seed tasks", "yizhongw/self-instruct @0b26cca", "Apache-2.0"),
    }
)


def source_table(counts: Mapping[str, int], counted: str) -> str:
    """A Markdown table of sources by tag, with how much of each was used; those that are not known here say so."""
    rows = [f"| text | from | licence | {counted} |", "| --- | --- | --- | --- |"]
    for tag, count in counts.items():
        source = DATA_SOURCES.get(tag)
        if source is None:
            rows.append(f"| {tag} | not known to the recipe | add it before publishing | {count:,} |")
        else:
            rows.append(f"| {source.what} | {source.origin} | {source.licence} | {count:,} |")
    return "\n".join(rows)
