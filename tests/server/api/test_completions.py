"""Completions: one and several prompts, whole and streamed, and what reaches the engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.engine.detokenizer import Detokenizer
from adaptspec.models.tokenization import TokenBytes
from adaptspec.results import TokenLogprob
from adaptspec.server.api.chat import chat_logprobs
from adaptspec.server.api.completions import LogprobsWriter

PATH = "/v1/completions"


async def test_answers_in_openai_shape_with_usage_and_metrics(post: Any, engine: Any) -> None:
    status, body = await post(PATH, model="tiny", prompt="abc", max_tokens=5)
    assert status == 200
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["id"] == engine.seen[0].id
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert body["metrics"]["speculative_decoding"] == {
        "mean_acceptance_length": 2.5,
        "draft_acceptance_rate": 0.5,
        "acceptance_histogram": [0, 1, 1, 0],
        "num_spec_steps": 2,
        "num_accepted_draft_tokens": 3,
        "num_draft_tokens": 6,
        "num_spec_tokens": 3,
        "adaptspec": {
            "policy": "goodput",
            "rounds": 5,
            "accepted_per_position": [2, 1, 0],
            "task": None,
            "task_detected": False,
            "lossy": False,
            "nodes": 10,
            "speedup": None,
        },
    }
    (choice,) = body["choices"]
    assert (choice["index"], len(choice["text"]), choice["finish_reason"]) == (0, 5, "length")


async def test_sixteen_tokens_are_the_default(post: Any) -> None:
    _, body = await post(PATH, prompt="abc")
    assert body["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        (["a", "bc"], [1, 2]),
        ([5, 6, 7], [3]),
        ([[5, 6, 7], [8]], [3, 1]),
    ],
)
async def test_every_form_of_prompt_is_answered_in_order(post: Any, engine: Any, prompt: Any, tokens: Any) -> None:
    status, body = await post(PATH, prompt=prompt, max_tokens=2)
    assert status == 200
    assert [len(request.prompt) for request in engine.seen] == tokens
    assert len({request.id for request in engine.seen}) == len(tokens)
    assert [choice["index"] for choice in body["choices"]] == list(range(len(tokens)))
    assert body["usage"]["prompt_tokens"] == sum(tokens)
    assert body["metrics"]["speculative_decoding"]["num_draft_tokens"] == 6 * len(tokens)


async def test_an_empty_prompt_among_several_is_named(post: Any, engine: Any) -> None:
    status, body = await post("/v1/completions", prompt=["a", ""], n=2)
    assert (status, body["error"]["param"]) == (400, "prompt[1]")
    assert body["error"]["message"].startswith("prompt[1] is empty")
    assert engine.seen == []


@pytest.mark.parametrize("include_usage", [False, True])
async def test_the_stream_says_what_the_whole_answer_says(post: Any, include_usage: bool) -> None:
    prompts = ["one", "two", "three"]
    _, whole = await post(PATH, prompt=prompts, max_tokens=7)
    status, chunks = await post(
        PATH, prompt=prompts, max_tokens=7, stream=True, stream_options={"include_usage": include_usage}
    )
    assert status == 200
    assert len({chunk["id"] for chunk in chunks}) == 1
    texts, finishes = ["", "", ""], ["", "", ""]
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        assert not finishes[choice["index"]], "nothing may follow an ending"
        texts[choice["index"]] += choice["text"]
        finishes[choice["index"]] = choice["finish_reason"] or ""
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert finishes == ["length"] * 3
    assert chunks[-1]["metrics"] == whole["metrics"]
    assert [chunk for chunk in chunks[:-1] if "metrics" in chunk] == []
    if include_usage:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == whole["usage"]
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    else:
        assert all("usage" not in chunk for chunk in chunks)


async def test_a_stream_says_who_drafted_which_words_to_those_who_ask(post: Any) -> None:
    asked = {"prompt": "one", "max_tokens": 5, "stream": True}
    _, chunks = await post(PATH, **asked, adaptspec={"provenance": True})
    pieces = [piece for chunk in chunks for piece in chunk.get("adaptspec", {}).get("provenance", [])]
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    assert "".join(piece["text"] for piece in pieces) == text
    assert [piece["drafter"] for piece in pieces] == [None, "ngram", None, "ngram", None]
    _, chunks = await post(PATH, **asked)
    assert all("adaptspec" not in chunk for chunk in chunks)
    status, body = await post(PATH, prompt="one", adaptspec={"provenance": True})
    assert (status, body["error"]["param"]) == (400, "adaptspec.provenance")


WORDS = {1: b"a", 2: b"\xc3", 3: b"\xa9", 4: b"\xff"}
ENTRIES = [TokenLogprob(2, -0.5, ((2, -0.5), (1, -1.0))), TokenLogprob(3, -2.0, ((4, -0.1),)), TokenLogprob(1, -1.0)]


def test_chats_tell_bytes_so_that_half_characters_can_be_joined() -> None:
    """`token` alone cannot say it."""
    content = chat_logprobs(ENTRIES, WORDS.__getitem__).written()["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == "\u00e9a"
    assert [entry["token"] for entry in content] == ["\ufffd", "\ufffd", "a"]
    assert content[0]["top_logprobs"][1] == {"token": "a", "logprob": -1.0, "bytes": [97]}


def test_completions_count_characters_and_go_on_in_pieces() -> None:
    """The token itself is among its alternatives; what nothing came before has no number."""
    whole = LogprobsWriter(WORDS.__getitem__).write(ENTRIES, first=1).written()
    assert whole["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "a"]
    assert whole["text_offset"] == [0, 1, 1, 2]
    assert whole["token_logprobs"] == [None, -0.5, -2.0, -1.0]
    assert whole["top_logprobs"][2] == {"bytes:\\xff": -0.1, "bytes:\\xa9": -2.0}
    writer = LogprobsWriter(WORDS.__getitem__)
    pieces = [writer.write(ENTRIES[:1], first=1).written(), writer.write(ENTRIES[1:]).written()]
    assert {key: pieces[0][key] + pieces[1][key] for key in whole} == whole


@given(raw=st.lists(st.sampled_from(b"a\xc3\xa9\xe4\xbd\xa0\xff"), max_size=12).map(bytes))
@example(raw=b"a\xff")
def test_text_offsets_are_places_in_the_text(tokenizer: PreTrainedTokenizerFast, raw: bytes) -> None:
    """Also behind bytes that are no UTF-8: an offset that left them out would be wrong for all that follows."""
    bytes_of, detokenizer = TokenBytes(tokenizer), Detokenizer(tokenizer)
    numbers = {bytes_of(token): token for token in range(len(tokenizer))}
    tokens = [numbers[bytes([byte])] for byte in raw + b"yz"]
    for token in tokens:
        detokenizer.push(token)
    written = LogprobsWriter(bytes_of).write([TokenLogprob(token, -1.0) for token in tokens])
    assert detokenizer.text[written.text_offset[-1] :] == "z"
