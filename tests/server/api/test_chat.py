"""Chat completions: templates, message forms, whole and streamed answers."""

from __future__ import annotations

from typing import Any

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


async def test_answers_as_the_assistant(post: Any, engine: Any, tokenizer: Any) -> None:
    status, body = await post(PATH, model="tiny", messages=HELLO, max_completion_tokens=4)
    assert status == 200
    assert (body["object"], body["model"]) == ("chat.completion", "tiny")
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 4
    assert tokenizer.decode(engine.seen[0].prompt) == "<|user|>hello<|end|><|assistant|>"


async def test_text_parts_and_developer_messages_are_understood(post: Any, engine: Any, tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    status, _ = await post(PATH, messages=[{"role": "developer", "content": parts}, *HELLO], max_tokens=1)
    assert status == 200
    assert "a\nb<|end|>" in tokenizer.decode(engine.seen[0].prompt)


async def test_the_stream_is_role_pieces_ending_usage(post: Any) -> None:
    _, whole = await post(PATH, messages=HELLO, max_tokens=6)
    status, chunks = await post(PATH, messages=HELLO, max_tokens=6, stream=True, stream_options={"include_usage": True})
    assert status == 200
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    first, *pieces, ending, last = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(piece["choices"][0]["delta"]["content"] for piece in pieces)
    assert text == whole["choices"][0]["message"]["content"]
    assert all(piece["choices"][0]["finish_reason"] is None for piece in pieces)
    assert (ending["choices"][0]["delta"], ending["choices"][0]["finish_reason"]) == ({}, "length")
    assert (last["choices"], last["usage"], last["metrics"]) == ([], whole["usage"], whole["metrics"])


async def test_usage_can_come_with_every_piece(post: Any) -> None:
    """As load generators ask for it, and as at vLLM: none with the role, then growing by each chunk's tokens."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    status, chunks = await post(PATH, messages=HELLO, max_tokens=6, stream=True, stream_options=options)
    assert status == 200
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[:3] == [0, 1, 2]
    assert chunks[-2]["usage"] == chunks[-1]["usage"]
    prompt = chunks[0]["usage"]["prompt_tokens"]
    _, chunks = await post(PATH, messages=HELLO, max_tokens=6, n=2, stream=True, stream_options=options)
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {prompt}, "two answers to one prompt"
    for ineffective in ({"continuous_usage_stats": True}, {"continuous_usage_stats": True, "include_usage": False}):
        _, chunks = await post(PATH, messages=HELLO, max_tokens=6, stream=True, stream_options=ineffective)
        assert not any("usage" in chunk for chunk in chunks)
