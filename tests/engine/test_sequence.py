"""Every character is told of once, with the drafter of its token; what was drafted and accepted, in figures."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.sequence import TokenProvenance
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.types import Piece
from tests.conftest import tiny_tokenizer
from tests.engine.conftest import Dictated, Notes, make_core
from tests.fakes import TableRunner

DRAFTERS = st.sampled_from([None, "draft-model", "ngram"])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=3), DRAFTERS, st.integers(0, 4)), max_size=20))
def test_each_character_keeps_the_drafter_of_its_token(steps: list[tuple[str, str | None, int]]) -> None:
    """Tokens of any length, and text held back by any number of characters after each."""
    provenance, text, owners, sent = TokenProvenance(), "", [], 0
    told: list[Piece] = []
    for number, (piece, drafter, held) in enumerate(steps):
        text += piece
        owners += [drafter] * len(piece)
        provenance.add(len(text), drafter)
        end = len(text) if number == len(steps) - 1 else max(sent, len(text) - held)
        told += provenance.take(text[sent:end])
        sent = end
    assert "".join(one.text for one in told) == text
    assert [one.drafter for one in told for _ in one.text] == owners
    assert all(one.text for one in told)


def test_text_that_no_token_has_said_is_the_targets_own() -> None:
    """A character cut short becomes text only at the very end."""
    provenance = TokenProvenance()
    provenance.add(0, "ngram")
    assert provenance.take("\ufffd") == (Piece("\ufffd", None),)


def test_a_token_whose_text_is_cut_off_again_leaves_nothing() -> None:
    """A stop string takes text away that was there a token before."""
    provenance = TokenProvenance()
    provenance.add(5, "ngram")
    provenance.add(3, "ngram")
    assert provenance.take("abc") == (Piece("abc", "ngram"),)
    assert provenance.take("") == ()


def test_an_engine_tells_who_wrote_what_only_to_those_who_ask() -> None:
    """Its pieces add up to the text, and the drafted ones to the tokens that were accepted."""
    notes = Notes()
    policy = Dictated(("ngram",), lambda _, size: [3] * size)
    core = make_core(
        tiny_tokenizer(),
        TableRunner(),
        [NgramDrafter(longest=2, shortest=1)],
        {"p": (policy, "coupled")},
        sinks=[notes],
    )
    specials = dict.fromkeys(range(4), -100.0)  # they have no text
    sampling = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True, logit_bias=specials)
    prompt = (5, 6, 7, 5, 6, 7, 5, 6)
    core.add(Request("asks", prompt, sampling, SpeculationParams(provenance=True)))
    core.add(Request("does not", prompt, sampling))
    pieces: list[Piece] = []
    while not core.idle:
        for delta in core.step():
            if delta.request_id == "asks":
                assert delta.pieces is not None
                assert "".join(one.text for one in delta.pieces) == delta.text
                pieces += delta.pieces
            else:
                assert delta.pieces is None
    done = notes.completions["asks"]
    assert "".join(one.text for one in pieces) == done.text
    assert done.stats.accepted > 0
    assert sum(one.drafter == "ngram" for one in pieces) == done.stats.accepted
