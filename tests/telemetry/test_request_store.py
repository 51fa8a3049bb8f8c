"""What is told of the requests that run: their last decisions with reasons, and no text."""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.telemetry.request_store import Recent
from adaptspec.types import Request, SamplingParams
from tests.engine.conftest import Dictated, make_core
from tests.fakes import TableRunner


def test_it_follows_requests_while_they_run(tokenizer: PreTrainedTokenizerFast) -> None:
    recent = Recent(rounds=4)
    policy = Dictated(("ngram",), lambda n, size: [2] * size)
    core = make_core(tokenizer, TableRunner(), [NgramDrafter()], {"p": (policy, "coupled")}, sinks=[recent])
    core.add(Request("r", (5, 6, 7), SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)))
    for _ in range(8):
        core.step()
    (card,) = recent.requests(["ngram"])
    assert (card["id"], card["policy"], card["prompt_tokens"], card["max_tokens"]) == ("r", "p", 3, 20)
    assert [one["round"] for one in card["rounds"]] == [5, 6, 7, 8]
    assert all(one["reason"] == "fixed" and one["drafter"] == "ngram" for one in card["rounds"])
    while not core.idle:
        core.step()
    assert recent.requests(["ngram"]) == []
