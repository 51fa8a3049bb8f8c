"""A grammar at work: masks see the output and the draft before them, whatever was looked at in between.

Compiled grammars take a bounded number of bytes.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from adaptspec.errors import OverloadedError
from adaptspec.models.grammars import Constraint, Grammars
from adaptspec.request import Grammar
from tests.models.matchers import VOCAB, Climb, allowed_after

END = 0
DRAFTS = st.lists(st.lists(st.integers(-1, VOCAB - 1), max_size=6), max_size=4)


def _fits(tokens: list[int]) -> int:
    """How many of `tokens` the grammar takes, worked out afresh."""
    for i, token in enumerate(tokens):
        if token < 0 or not allowed_after(tokens[:i])[token]:
            return i
        if token == END:
            return i + 1
    return len(tokens)


@given(rounds=st.lists(st.tuples(DRAFTS, st.integers(0, 6), st.integers(1, VOCAB - 1)), max_size=6))
def test_masks_are_those_of_a_fresh_start_whatever_was_drafted_before(
    rounds: list[tuple[list[list[int]], int, int]],
) -> None:
    """Rule 4, and the roll-back: by exactly what was rejected. Drafts may hold -1 padding, refused tokens and ends."""
    matcher = Climb()
    constraint, output = Constraint(lambda: matcher, VOCAB, (END,)), []
    for drafts, kept, following in rounds:
        for draft in drafts:
            valid = constraint.valid(draft)
            assert valid == _fits(output + draft) - len(output)
            for j in range(valid):
                assert np.array_equal(constraint.mask(draft[:j]), allowed_after(output + draft[:j]))
            if valid < len(draft):  # nothing is known behind a token that does not fit, and nothing breaks
                assert constraint.mask(draft).all()
        fitting = [token for token in drafts[-1][: constraint.valid(drafts[-1])] if token != END] if drafts else []
        new = fitting[:kept]
        new += [token for token in [following] if allowed_after(output + new)[token]]
        constraint.commit(new)
        output += new
        assert constraint.error is None
        assert matcher.read == output


def test_an_output_that_leaves_the_grammar_says_so() -> None:
    """What a lossy method lets through ends the request, not the batch."""
    constraint = Constraint(Climb, VOCAB, (END,))
    constraint.commit([3, 1])
    assert constraint.error == "the output left its grammar at token 1"


def test_a_grammar_with_nothing_left_says_so_and_masks_nothing() -> None:
    """-inf everywhere would be a NaN distribution for the whole round."""

    class Stuck(Climb):
        def compute_bitmask(self) -> bytes:
            return bytes(VOCAB)

    constraint = Constraint(Stuck, VOCAB, (END,))
    assert constraint.mask([]).all()
    assert constraint.error == "it leaves no token to go on with"


def test_a_parser_that_raises_ends_its_request_alone() -> None:
    """The round goes on for all others."""

    class Broken(Climb):
        def try_consume_tokens(self, tokens: list[int]) -> int:
            raise ValueError("lexer")

        def compute_bitmask(self) -> bytes:
            raise ValueError("lexer")

    for look in (lambda one: one.mask([]), lambda one: one.commit([1])):
        constraint = Constraint(Broken, VOCAB, (END,))
        assert constraint.valid([1]) == 0
        assert constraint.error is None, "a draft is no output"
        look(constraint)
        assert constraint.error == "ValueError: lexer"


@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("fails_at", ["read", "mask"])
@given(drafts=st.lists(st.lists(st.integers(1, 9), max_size=5), max_size=4), output=st.lists(st.integers(1, 9)))
def test_failures_behind_drafts_that_are_thrown_away_change_nothing(
    drafts: list[list[int]], output: list[int], fails_at: str, raises: bool
) -> None:
    """A request ends where plain decoding would have ended it, with the same reason. Once failed, a matcher is dead."""

    class Fragile(Climb):
        failed = False

        def get_error(self) -> str:
            return "too many items" if self.failed else ""

        def _check(self, fails: bool) -> None:
            self.failed = self.failed or fails
            if self.failed and raises:
                raise ValueError("too many items")

        def try_consume_tokens(self, tokens: list[int]) -> int:
            self._check(fails_at == "read" and 7 in tokens and bool(allowed_after(self.read)[7]))
            return 0 if self.failed else super().try_consume_tokens(tokens)

        def compute_bitmask(self) -> bytes:
            self._check(fails_at == "mask" and 7 in self.read)
            return bytes(8) if self.failed else super().compute_bitmask()

    plain, drafted = (Constraint(Fragile, VOCAB, (END,)) for _ in range(2))
    for token in output:
        if not plain.mask([])[token]:
            continue
        for draft in drafts:
            taken = drafted.valid(draft)
            for j in range(taken + 1):
                drafted.mask(draft[:j])
        assert np.array_equal(plain.mask([]), drafted.mask([]))
        assert plain.error == drafted.error
        plain.commit([token])
        drafted.commit([token])
        assert plain.error == drafted.error
        if plain.error is not None:
            assert "too many items" in plain.error
            return


def test_what_can_be_read_in_too_many_ways_ends_soon(tokenizer: PreTrainedTokenizerFast) -> None:
    """Each token took longer than the one before, up to a third of a second, in which all requests waited."""
    grammars = Grammars(tokenizer, len(tokenizer), (1,))
    (letter,) = tokenizer.encode("a", add_special_tokens=False)
    for text in (
        'start: ((("a"{0,10}){0,10}){0,10})',
        'start: x {0,10}\nx: y {0,10}\ny: z{0,10}\nz: "a" | "aa"',
        "start: " + " | ".join(f'(("a"{{0,10}}){{0,10}} "{i}")' for i in range(12)),
    ):
        constraint = grammars.start(Grammar(text, "lark"))
        for _ in range(60):
            assert constraint.mask([])[letter]
            constraint.commit([letter])
            if constraint.error is not None:
                break
        assert re.search("Current row has [0-9]+ items; max is 5[0-9]{2};", str(constraint.error))
        assert "non-verbose" not in str(constraint.error)


def test_a_schema_may_have_hundreds_of_optional_properties(tokenizer: PreTrainedTokenizerFast) -> None:
    """Each is up to four items of the parser."""
    names = [f"property_{i}" for i in range(450)]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    text = json.dumps(dict.fromkeys(names[::50], "x"))
    constraint = Grammars(tokenizer, len(tokenizer), (1,)).start(Grammar(json.dumps(schema)))
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert constraint.valid(tokens) == len(tokens)
    constraint.mask(tokens)
    constraint.commit(tokens)
    assert constraint.error is None


def test_a_request_uses_up_no_lexer_states_of_another(tokenizer: PreTrainedTokenizerFast) -> None:
    """The next request with the same grammar failed at its first token."""
    grammars, ends = Grammars(tokenizer, len(tokenizer), (1,)), []
    letters = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "abc"]
    for _ in range(2):
        constraint, luck, length = grammars.start(Grammar("start: /[abc]*a[abc]{30}/", "lark")), random.Random(0), 0
        while constraint.error is None:
            constraint.mask([])
            constraint.commit([luck.choice(letters)])
            length += 1
        assert "too many states" in constraint.error
        ends.append(length)
    assert ends[0] == ends[1]


def _small(number: int) -> Grammar:
    return Grammar(json.dumps({"const": f"{number:03}"}))


def test_living_grammars_have_a_bound(tokenizer: PreTrainedTokenizerFast) -> None:
    """A thousand waiting requests with a schema each held gigabytes. Those of requests that have ended do not count."""
    grammars = Grammars(tokenizer, len(tokenizer), (1,))
    each = grammars.compile(_small(0)).compiled.num_bytes
    for number in range(9):
        grammars.compile(_small(number), 3 * each)
        assert grammars.living_bytes == 0
    held = [grammars.compile(_small(number), 3 * each) for number in range(3)]
    for _ in range(2):
        with pytest.raises(OverloadedError, match="send the request again later"):
            grammars.compile(_small(3), 3 * each)
        assert grammars.living_bytes == 3 * each
        assert grammars.compile(held[2], 3 * each) is held[2], "it is compiled"
    held.pop()
    held.append(grammars.compile(_small(3), 3 * each))
    assert held[2] == _small(3), "the compiled form makes no difference"
    held.clear()
    assert grammars.compile(_small(4), each).compiled is not None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(1000)}},
        {"enum": [f"value {i} of many" for i in range(2000)]},
        {"multipleOf": 9973},
        {"type": "string", "pattern": "^([a-z]{1,60}-){1,60}$"},
    ],
    ids=["properties", "enum", "multiples", "pattern"],
)
def test_compiled_grammars_take_no_more_than_is_counted(
    schema: dict[str, object], tokenizer: PreTrainedTokenizerFast
) -> None:
    """By the resident memory of this process."""
    grammars, grammar = Grammars(tokenizer, len(tokenizer), (1,)), Grammar(json.dumps(schema))
    grammars.compile(grammar)
    before = resident_bytes()
    held = [grammars.compile(grammar) for _ in range(6)]
    assert resident_bytes() - before <= grammars.living_bytes
    assert len(held) == 6


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("mark", ["<tool_call>", "</think>", "<|channel|>", "[THINK]", "<b"])
def test_a_token_that_looks_like_a_tag_can_be_written(tokenizer: PreTrainedTokenizerFast, mark: str) -> None:
    """Qwen's `<tool_call>` is one token, which decoding shows: text and literals of a grammar take it."""
    tagged = copy.deepcopy(tokenizer)
    tagged.add_tokens([AddedToken(mark, special=False, normalized=False)])
    (token,) = tagged.encode(mark, add_special_tokens=False)
    grammars = Grammars(tagged, len(tagged), (1,))
    assert grammars.start(Grammar(f"start: {json.dumps(mark)}", "lark")).mask([])[token]
    free = grammars.start(Grammar("start: /(.|\\n)*/", "lark")).mask([])
    assert free[token]
    hidden = [number for number, word in tagged.added_tokens_decoder.items() if word.special and number != 1]
    assert hidden
    assert not free[hidden].any(), "what decoding leaves out is no text"
