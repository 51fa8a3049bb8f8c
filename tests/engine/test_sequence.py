"""Every character is reported once, with the drafter of its token."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.engine.core import EngineLimits
from adaptspec.engine.sequence import TokenProvenance
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.results import Piece
from tests.exactness import dictated
from tests.exactness.harness import SCRIPTS, Case, drive
from tests.exactness.worlds import table

DRAFTERS = st.sampled_from([None, "draft-model", "ngram"])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=3), DRAFTERS, st.integers(0, 4)), max_size=20))
def test_each_character_keeps_the_drafter_of_its_token(steps: list[tuple[str, str | None, int]]) -> None:
    """Tokens of any length, and text held back by any number of characters after each."""
    provenance, text, owners, sent = TokenProvenance(), "", [], 0
    found: list[Piece] = []
    for number, (piece, drafter, held) in enumerate(steps):
        text += piece
        owners += [drafter] * len(piece)
        provenance.add(len(text), drafter)
        end = len(text) if number == len(steps) - 1 else max(sent, len(text) - held)
        found += provenance.take(text[sent:end])
        sent = end
    assert "".join(one.text for one in found) == text
    assert [one.drafter for one in found for _ in one.text] == owners
    assert all(one.text for one in found)


def test_text_at_the_end_may_belong_to_no_token_or_be_cut_off() -> None:
    """A character cut short becomes text at the very end; a stop string removes text of the token before."""
    provenance = TokenProvenance()
    provenance.add(0, "ngram")
    assert provenance.take("\ufffd") == (Piece("\ufffd", None),)
    provenance = TokenProvenance()
    provenance.add(5, "ngram")
    provenance.add(3, "ngram")
    assert provenance.take("abc") == (Piece("abc", "ngram"),)
    assert provenance.take("") == ()


def test_requests_that_ask_get_the_drafter_of_each_piece() -> None:
    """Pieces add up to the text, and the drafted ones to the tokens that were accepted."""
    core = table("ngram").engine([dictated.policy(Case(drafter="ngram", depths="3").policy)], EngineLimits(max_rows=2))
    sampling = SamplingParams(60, temperature=0.0, ignore_eos=True, logit_bias=dict.fromkeys(range(2), -100.0))
    prompt = (5, 6, 7, 5, 6, 7, 5, 6)
    asked = [Request("asks", prompt, sampling, SpeculationParams(provenance=True)), Request("other", prompt, sampling)]
    pieces: list[Piece] = []
    deltas = drive(core, asked, SCRIPTS["batch"])
    for delta in deltas:
        assert (delta.pieces is not None) == (delta.request_id == "asks")
        assert delta.pieces is None or "".join(one.text for one in delta.pieces) == delta.text
        pieces += delta.pieces or ()
    (done,) = (delta.completion for delta in deltas if delta.request_id == "asks" and delta.completion is not None)
    assert "".join(one.text for one in pieces) == done.text
    assert sum(one.drafter == "ngram" for one in pieces) == done.stats.accepted > 0
