"""The bytes that each token of a vocabulary stands for: one token alone may be half a character.

Knows the two ways in which byte-exact vocabularies are written down: byte-level BPE, whose alphabet has a printable
character for every byte, and SentencePiece, with a mark for spaces and <0xNN> for bytes. Knows no text and no model.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any, Protocol

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"


class Vocabulary(Protocol):
    """The part of a fast transformers tokenizer that tells tokens' bytes."""

    @property
    def backend_tokenizer(self) -> Any:
        """The tokenizer of the `tokenizers` library within."""

    @property
    def added_tokens_decoder(self) -> Any:
        """Tokens beside the vocabulary proper, by id."""


class TokenBytes:
    """Bytes by token id; an id that no token has (a padded vocabulary) stands for none."""

    def __init__(self, tokenizer: Vocabulary) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._added = {number: str(token) for number, token in tokenizer.added_tokens_decoder.items()}

    def __call__(self, token: int) -> bytes:
        """What `token` adds to a text."""
        added = self._added.get(token)
        if added is not None:
            return added.encode()
        written = self._backend.id_to_token(token)
        if written is None:
            return b""
        if self._alphabet:
            return b"".join(self._alphabet.get(letter) or letter.encode() for letter in written)
        byte = _BYTE.fullmatch(written)
        return bytes([int(byte[1], 16)]) if byte else written.replace(_SPACE, " ").encode()

    @cached_property
    def _alphabet(self) -> dict[str, bytes]:
        """What byte each letter stands for; empty unless the vocabulary is written in bytes."""
        decoder = self._backend.decoder
        described = json.loads(decoder.__getstate__()) if decoder is not None else {}
        kinds = {part["type"] for part in (described, *described.get("decoders", ())) if "type" in part}
        return {letter: bytes([byte]) for byte, letter in _byte_letters().items()} if "ByteLevel" in kinds else {}


def _byte_letters() -> dict[int, str]:
    """GPT-2's alphabet: printable Latin-1 bytes are themselves, the others follow from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in letters]
    return letters | {byte: chr(0x100 + i) for i, byte in enumerate(others)}
