"""Texts of any length encode alike, and templates that cannot be used are the client's to know."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from adaptspec.errors import RequestError
from adaptspec.server.codec import LONG_TEXT, Codec
from adaptspec.server.messages import Message


async def test_long_texts_leave_the_event_loop_free_and_encode_the_same(tokenizer: Any) -> None:
    codec, text = Codec(tokenizer, 260), "word " * LONG_TEXT
    first, second = await asyncio.gather(codec.encode(text), codec.encode(text))
    assert list(first) == list(second) == tokenizer.encode(text)


async def test_many_short_texts_are_as_long_as_one(tokenizer: Any) -> None:
    """Each of them is short, but all of them on the event loop would stall every stream."""
    threads = set()

    class Watched:
        def encode(self, text: str, **options: Any) -> Any:
            threads.add(threading.current_thread())
            return tokenizer.encode(text, **options)

    texts = ["a" * (LONG_TEXT // 2), "b" * (LONG_TEXT // 2), "c"]
    codec = Codec(Watched(), 260)  # type: ignore[arg-type]
    assert [list(tokens) for tokens in await codec.encode_all(texts)] == [tokenizer.encode(text) for text in texts]
    assert len(threads) == 1
    assert threading.current_thread() not in threads


async def test_a_model_without_a_template_says_what_to_use_instead(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(RequestError, match="/v1/completions"):
        await Codec(tokenizer, 260).encode_chat([Message(role="user", content="x")])


def test_ids_outside_of_the_vocabulary_are_refused(tokenizer: Any) -> None:
    codec = Codec(tokenizer, 260)
    codec.check([0, 259], "prompt")
    for token in (-1, 260, 10**4000):
        with pytest.raises(RequestError, match="0 to 259"):
            codec.check([token], "prompt")


@pytest.mark.parametrize("fault", ["{{ 'x' + 1 }}", "{{ 1 / 0 }}", "{{ ''.nope() }}", "{{ raise_exception('no') }}"])
async def test_whatever_a_template_raises_is_about_the_messages(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", fault)
    with pytest.raises(RequestError, match="does not take these messages"):
        await Codec(tokenizer, 260).encode_chat([Message(role="user", content="x")])


PAIRS = "{% for a in messages %}{% for b in messages[1:]|reverse %}{% if a == b %}.{% endif %}{% endfor %}{% endfor %}"


async def test_a_template_has_only_so_long_for_a_conversation(tokenizer: Any) -> None:
    """A loop over every pair of messages ends, with an error that says so; the event loop is free meanwhile."""
    messages = [Message(role="user", content=str(i)) for i in range(4000)]
    usual, tokenizer.chat_template = tokenizer.chat_template, PAIRS
    try:
        asked = asyncio.create_task(Codec(tokenizer, 260, template_seconds=0.1).encode_chat(messages))
        await asyncio.sleep(0.05)
        assert not asked.done()
        with pytest.raises(RequestError, match="chat template takes longer") as caught:
            await asked
        assert caught.value.param == "messages"
        slow = Codec(tokenizer, 260, template_seconds=60.0)
        assert len(await slow.encode_chat(messages[:100])) == 99
        while any(thread.name == "adaptspec-timed" for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
    finally:
        tokenizer.chat_template = usual
