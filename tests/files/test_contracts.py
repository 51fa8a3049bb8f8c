"""Nothing that others rely on changes by accident: today's code gives what was recorded, declared exceptions apart.

After an intended change: declare it in `goldens/exceptions.json`, or `python -m tests.files` records all anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.files.contracts import Contract, Document, ExceptionEntry, compare, flattened, formatted, read_exceptions
from tests.files.registry import CONTRACTS, Place, opened
from tests.files.samples import SAMPLES, WRITERS

EXCEPTIONS = read_exceptions()
SHOWN = 50  # differences in a failure
USES_ENGINE = ("openapi", "refusals")


@pytest.fixture
async def place(
    target_path: Path,
    draft_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Place]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    empty = Place(target_path, draft_path, tmp_path)
    if request.node.callspec.id not in USES_ENGINE:
        yield empty
        return
    async with opened(empty) as place:
        yield place


@pytest.mark.timeout(600)
@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
async def test_todays_code_gives_what_was_recorded(contract: Contract[Place], place: Place) -> None:
    recorded = contract.recorded()
    problems = compare(contract.name, recorded, await contract.record(place, recorded), EXCEPTIONS)
    if problems:
        more = [f"... and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        title = f"{len(problems)} differences of the contract {contract.name}:"
        pytest.fail("\n".join([title, *problems[:SHOWN], *more]), pytrace=False)


def test_exceptions_are_for_contracts_that_exist() -> None:
    assert {entry.contract for entry in EXCEPTIONS} <= {contract.name for contract in CONTRACTS}


def test_no_sample_is_missing() -> None:
    older = {"journal-3.jsonl", "journal-4.jsonl"}  # the programs of their time wrote them
    assert {path.name for path in SAMPLES.iterdir()} == {*WRITERS, *older, "policy-1.yaml"}


RECORDED: Document = {"flags": {"--port": {"default": 8000}, "--host": {"default": "::"}}, "words": ["a", "old b"]}
CHANGES: list[tuple[Document, list[str]]] = [
    (RECORDED, []),
    (
        RECORDED | {"flags": {"--port": {"default": 1}, "--host": {"default": "::"}}},
        ["flags > --port > default\n  - 8000\n  + 1"],
    ),
    (RECORDED | {"words": ["a"]}, ['words > 1\n  - "old b"']),
    (RECORDED | {"more": {}}, ["more\n  + {}"]),
    (
        RECORDED | {"flags": {"--port": {"default": 8000.0}, "--host": {"default": "::"}}},
        ["flags > --port > default\n  - 8000\n  + 8000.0"],
    ),
]


@pytest.mark.parametrize(("found", "problems"), CHANGES)
def test_each_difference_is_one_readable_block(found: Document, problems: list[str]) -> None:
    assert compare("x", RECORDED, found, []) == problems


def entry(**fields: object) -> ExceptionEntry:
    return ExceptionEntry.model_validate({"contract": "x", "reason": "because", **fields})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (entry(at="flags > --port", gone=True), RECORDED | {"flags": {"--host": {"default": "::"}}}),
        (
            entry(at="flags > * > default", becomes=7),
            RECORDED | {"flags": {"--host": {"default": "::"}, "--port": {"default": 8000}, "* ": {}}},
        ),
        (entry(at="new", becomes={"a": [1]}), RECORDED | {"new": {"a": [1]}}),
        (entry(at="words > *", replace=["old", "new"]), RECORDED | {"words": ["a", "new b"]}),
    ],
    ids=["gone", "pattern", "new", "replaced"],
)
def test_an_exception_allows_its_change_and_nothing_else(change: ExceptionEntry, found: Document) -> None:
    """It must say what the value becomes, and it fails where the value did not change."""
    allowed = flattened(found) == change.apply(flattened(RECORDED))
    assert (compare("x", RECORDED, found, [change]) == []) is allowed
    assert compare("x", RECORDED, RECORDED, [change])
    assert compare("x", RECORDED, found | {"else": 1}, [change])
    assert compare("other", RECORDED, found, [change])


def test_an_exception_that_changes_nothing_is_refused() -> None:
    (problem,) = compare("x", RECORDED, RECORDED, [entry(at="flags > --nothing", gone=True)])
    assert problem == "! the exception at 'flags > --nothing' changes nothing; remove it"


@pytest.mark.parametrize(
    "fields",
    [{}, {"gone": True, "becomes": 1}, {"gone": False}, {"gone": True, "reason": " "}, {"gone": True, "why": "x"}],
)
def test_an_exception_without_one_change_and_a_reason_is_none(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        entry(at="words", **fields)


def test_documents_are_written_with_one_entry_on_a_line() -> None:
    document = {"b": {"y": {"text": "x" * 200}, "x": [1, "é"]}, "a": 1}
    assert formatted(document, lines_at=2).splitlines() == [
        "{",
        ' "a": 1,',
        ' "b": {',
        '  "x": [1, "é"],',
        f'  "y": {{"text": "{"x" * 200}"}}',
        " }",
        "}",
    ]
    assert len(formatted(document).splitlines()) == 9
