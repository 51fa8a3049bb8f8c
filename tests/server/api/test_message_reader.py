"""The tokens whose log-probabilities an answer shows join to its content, whole and while it streams."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.engine.detokenizer import Detokenizer
from adaptspec.models.tokenization import TokenBytes
from adaptspec.results import TokenLogprob
from adaptspec.server.api.message_reader import ContentLogprobs
from tests.conftest import tiny_tokenizer
from tests.drafting.spellings import gpt2_like, metaspace

BYTES, WORDS, SPACED = tiny_tokenizer(), gpt2_like(), metaspace()
TEXTS = st.text(alphabet="ab .\n\u00e4\u732b\U0001f98a", max_size=20)


def joined(tokenizer: Any, tokens: list[int], stop: list[str], rounds: int = 1) -> tuple[str, bytes]:
    """The content of an answer of such tokens, `rounds` at a time, and what is shown of them."""
    detokenizer, bytes_of = Detokenizer(tokenizer, stop), TokenBytes(tokenizer)
    matched = ContentLogprobs(bytes_of, bytes_of.hidden, bytes_of.leading)
    content, shown, ended = "", b"", False
    while not ended:
        new = list[int]()
        while not ended and len(new) < rounds:
            new.append(tokens[0])
            ended = detokenizer.push(tokens[0]) if tokens[0] != tokenizer.eos_token_id else False
            tokens = tokens[1:]
            ended |= not tokens
        text = detokenizer.take(final=ended)
        content += text
        shown += b"".join(one.raw for one in matched.take([_entry(token) for token in new], text, final=ended))
        assert content.encode().startswith(shown) or "\ufffd" in content
    return content, shown


def _entry(token: int) -> TokenLogprob:
    return TokenLogprob(token, -1.0, ())


@given(
    text=TEXTS, rounds=st.integers(1, 7), stop=st.lists(st.sampled_from(["b ", "\n", "\u732b", "a\u00e4b"]), max_size=2)
)
@pytest.mark.parametrize("tokenizer", [BYTES, WORDS, SPACED])
def test_tokens_join_to_the_content(tokenizer: Any, text: str, rounds: int, stop: list[str]) -> None:
    """With an end token behind it, and with a stop string that takes a part of a token with it."""
    tokens = tokenizer.encode(text, add_special_tokens=False)
    if tokenizer.eos_token_id is not None:
        tokens.append(tokenizer.eos_token_id)
    if not tokens or (tokenizer.unk_token_id is not None and tokenizer.unk_token_id in tokens):
        return
    content, shown = joined(tokenizer, tokens, stop, rounds)
    assert shown == content.encode()


def test_a_token_is_shown_when_its_text_is() -> None:
    """What may become a stop string is held back, and so are its tokens."""
    detokenizer, bytes_of = Detokenizer(BYTES, ["bc"]), TokenBytes(BYTES)
    matched, seen = ContentLogprobs(bytes_of), []
    for letter in "abd":
        (token,) = BYTES.encode(letter)
        detokenizer.push(token)
        seen.append([one.raw for one in matched.take([_entry(token)], detokenizer.take(), final=False)])
    assert seen == [[b"a"], [], [b"b", b"d"]]
