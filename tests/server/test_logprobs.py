"""Log-probabilities on the wire."""

from __future__ import annotations

from adaptspec.server.logprobs import CompletionLogprobs, chat_logprobs
from adaptspec.types import TokenLogprob

WORDS = {1: b"a", 2: b"\xc3", 3: b"\xa9", 4: b"\xff"}
ENTRIES = [TokenLogprob(2, -0.5, ((2, -0.5), (1, -1.0))), TokenLogprob(3, -2.0, ((4, -0.1),)), TokenLogprob(1, -1.0)]


def test_chats_tell_bytes_so_that_half_characters_can_be_joined() -> None:
    """`token` alone cannot say it."""
    content = chat_logprobs(ENTRIES, WORDS.__getitem__)["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == "\u00e9a"
    assert [entry["token"] for entry in content] == ["\ufffd", "\ufffd", "a"]
    assert content[0]["top_logprobs"][1] == {"token": "a", "logprob": -1.0, "bytes": [97]}


def test_completions_count_characters_and_go_on_in_pieces() -> None:
    """The token itself is among its alternatives; what nothing came before has no number."""
    whole = CompletionLogprobs(WORDS.__getitem__).write(ENTRIES, first=1)
    assert whole["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "a"]
    assert whole["text_offset"] == [0, 1, 1, 2]
    assert whole["token_logprobs"] == [None, -0.5, -2.0, -1.0]
    assert whole["top_logprobs"][2] == {"bytes:\\xff": -0.1, "bytes:\\xa9": -2.0}
    writer = CompletionLogprobs(WORDS.__getitem__)
    pieces = [writer.write(ENTRIES[:1], first=1), writer.write(ENTRIES[1:])]
    assert {key: pieces[0][key] + pieces[1][key] for key in whole} == whole
