"""Tokenizers of model directories, the bytes of their tokens, and how two of them write the same text."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from adaptspec.errors import ModelError, PairError, RequestError
from adaptspec.files import cache_folder
from adaptspec.models.gguf import fingerprint as gguf_fingerprint
from adaptspec.models.gguf import is_gguf, read_header
from adaptspec.models.model_files import read_json
from adaptspec.models.runner import ModelInfo
from adaptspec.models.source import find_model

GENERIC_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
# A template is a program of the model's makers: what it does with odd messages is not only what jinja raises itself.
_TEMPLATE_FAULTS = (
    *(TemplateError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError),
    *(RecursionError, MemoryError),
)
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
# How SentencePiece vocabularies write a byte and a space.
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
# What tokenizers are compared by.
_SAMPLE = (
    "The committee's 3rd report (2021) wasn't published until yesterday; nobody knows why. Ask Anna, she'll tell you: "
    '"Unbelievable! I paid $1,299.50 for it."\n\ndef average(values: list[float]) -> float:\n    total = 0.0\n'
    "    for value in values:\n        total += value\n    return total / len(values)  # may raise\n\n"
    '{"name": "example", "items": [{"id": 17, "ok": true}], "path": "/usr/local/bin"}\n'
    "Der schnelle Fuchs springt; la rapide photographie des montagnes.\n"
)


def load_tokenizer(path_or_hub_id: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a model directory, GGUF file or hub id, with its chat template; ModelError if there is none.

    Only fast tokenizers: text is decoded while it streams, which the others cannot do.
    """
    folder = find_model(path_or_hub_id, gguf=True)
    return _checked(folder, _of_gguf(folder) if is_gguf(folder) else _of_directory(folder))


def _of_gguf(path: Path) -> PreTrainedTokenizerBase:
    """Of the vocabulary in a file. Making it takes seconds, so that it is kept in the user's cache."""
    root = cache_folder()
    name = f"{gguf_fingerprint(path)}-transformers-{version('transformers')}"
    kept = None if root is None else root / "adaptspec" / "tokenizers" / name
    if kept is not None and kept.is_dir():
        return _of_directory(kept)
    tokenizer = _converted(path)
    if kept is not None:
        _keep(tokenizer, kept)
    return tokenizer


def _keep(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save it in a folder, all of it or nothing; a cache that cannot be written is no fault."""
    with suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".saving-") as draft:
            tokenizer.save_pretrained(draft)
            os.rename(draft, folder)
            os.mkdir(draft)  # for the end of `with`, which removes it


def _converted(path: Path) -> PreTrainedTokenizerBase:
    header = read_header(path)  # what is no model at all is refused as such
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        return _without_new_tokens(tokenizer, header.vocab_size)
    except Exception as error:  # the converter raises whatever a broken or unknown vocabulary leads to
        raise ModelError(
            f"cannot make a tokenizer of the vocabulary in {path}: {error}; give the model as a Hugging Face directory "
            "or id instead"
        ) from error


def _without_new_tokens(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> PreTrainedTokenizerBase:
    """Less the tokens that transformers adds by itself behind a file's vocabulary, such as one for unknown words."""
    if len(tokenizer) <= vocab_size or not isinstance(tokenizer, PreTrainedTokenizerFast):
        return tokenizer
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    described["added_tokens"] = [one for one in described["added_tokens"] if one["id"] < vocab_size]
    known = {one["content"] for one in described["added_tokens"]} | set(described["model"]["vocab"])
    named = {name: token for name, token in tokenizer.special_tokens_map.items() if token in known}
    backend = Tokenizer.from_str(json.dumps(described))
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, chat_template=tokenizer.chat_template, **named
    )
    return made


def _of_directory(folder: Path) -> PreTrainedTokenizerBase:
    settings = folder / "tokenizer_config.json"
    described = read_json(settings) if settings.is_file() else {}
    if "auto_map" in described:
        raise ModelError(f"{folder}: the tokenizer asks to run code from the model directory, which is never done")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelError(f"{folder} holds no tokenizer.json; copy the model's tokenizer files there")
    # A directory that names no class of its own is described by tokenizer.json alone; asking by model type could add
    # that family's usual special tokens to it.
    generic = described.get("tokenizer_class") in GENERIC_CLASSES and (folder / "tokenizer.json").is_file()
    loader = PreTrainedTokenizerFast if generic else AutoTokenizer
    try:
        tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises bare Exception for broken files
        raise ModelError(f"cannot load the tokenizer in {folder}: {error}") from error
    return tokenizer


def _checked(folder: Path, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerFast:
    """As all the rest expects it."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(f"{folder} has a slow tokenizer ({type(tokenizer).__name__}); convert it to a tokenizer.json")
    # The context that is served is the model's; above this number transformers would print a warning.
    tokenizer.model_max_length = VERY_LARGE_INTEGER
    # Files say how texts were cut and filled up in training; what encodes with the backend would do so, too.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A short hash of the vocabulary: where two differ, token ids mean different things."""
    words = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(words.encode(), digest_size=8).hexdigest()


def chat_text(
    tokenizer: PreTrainedTokenizerFast,
    messages: Sequence[Mapping[str, Any]],
    *,
    answer: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
    values: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """A conversation as the model's own template writes it, special tokens included.

    `answer` adds the opening of the assistant's turn. `tools` are those that may be called, for templates that take
    them. `values` are variables of the template.

    Raises RequestError: the model has no template, or it does not take these messages, for the reason in `__cause__`.
    """
    remedy = "give the prompt as plain text, which a server takes at /v1/completions"
    if tokenizer.chat_template is None:
        raise RequestError(f"the model has no chat template; {remedy}", "messages")
    # Templates add these to strings, also for tokenizers that have no such token.
    options: dict[str, Any] = {name: "" for name in _TOKENS if getattr(tokenizer, name) is None}
    options |= dict(values) if tools is None else {**values, "tools": tools}
    try:
        return str(
            tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=answer, **options)  # type: ignore[arg-type]
        )
    except _TEMPLATE_FAULTS as error:
        raise RequestError(
            f"the model's chat template does not take these messages ({error}); change their roles or order, or "
            f"{remedy}",
            "messages",
        ) from error


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, info: ModelInfo) -> None:
    """Raise ModelError if the tokenizer has token ids the model has no embedding for."""
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= info.vocab_size:
        raise ModelError(
            f"{info.name}: the tokenizer has token id {largest}, the model only {info.vocab_size} embeddings; "
            "use the tokenizer the model was trained with"
        )


class TokenBytes:
    """Bytes by token id; an id that no token has (a padded vocabulary) stands for none."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._added = {number: str(token) for number, token in tokenizer.added_tokens_decoder.items()}
        # Those that are left out where text is made of tokens.
        self.hidden = frozenset(number for number, token in tokenizer.added_tokens_decoder.items() if token.special)

    def __call__(self, token: int) -> bytes:
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

    def leading(self, token: int) -> bytes:
        """The bytes of a token that begins a text: some decoders leave out the space before it."""
        raw = self(token)
        return raw[1:] if raw[:1] == b" " and not self._backend.decode([token]).startswith(" ") else raw

    @cached_property
    def _alphabet(self) -> dict[str, bytes]:
        """What byte each letter stands for; empty unless the vocabulary is written in bytes."""
        decoder = self._backend.decoder
        described = json.loads(decoder.__getstate__()) if decoder is not None else {}
        kinds = {part["type"] for part in (described, *described.get("decoders", ())) if "type" in part}
        letters: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
        return {letter: bytes([byte]) for byte, letter in letters.items()} if "ByteLevel" in kinds else {}


class Spelling:
    """How a tokenizer writes text: the bytes of its tokens, and the tokens of a text."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, info: ModelInfo) -> None:
        """For the token ids of a model. PairError where its tokens are not what their text is made of."""
        backend, bytes_of = tokenizer.backend_tokenizer, TokenBytes(tokenizer)
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.bytes = [bytes_of(token) for token in range(info.vocab_size)]
        sample = self.encode(_SAMPLE)
        if self.spelled(sample).decode().strip() != backend.decode(sample, skip_special_tokens=False).strip():
            raise PairError(
                f"{info.name}: its tokens cannot be told apart from what its tokenizer adds between them, so it goes "
                "only with models of the same tokenizer"
            )
        self.begin, self.end = tokenizer.bos_token_id, tokenizer.eos_token_id
        self.opening = [self.begin] if self.begin in tokenizer("")["input_ids"][:1] else []
        self.space = " " if self.spelled(self.encode("a")) == b" a" else ""  # what it adds before a text
        # Of two tokens of the same bytes the one that is no mere byte: that one it writes.
        words = sorted(tokenizer.get_vocab().items(), key=lambda item: (not item[0].startswith("<0x"), item[1]))
        self.ids = {self.bytes[token]: token for _, token in words}

    def encode(self, text: str) -> list[int]:
        """The tokens of a whole text, but for what opens it."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def spelled(self, tokens: Sequence[int]) -> bytes:
        return b"".join([self.bytes[token] for token in tokens])

    def text(self, tokens: Sequence[int]) -> str:
        """What the tokens say, less characters of which a part is missing."""
        return self.spelled(tokens).decode("utf-8", "ignore")

    def after(self, before: str, text: str) -> list[int]:
        """The tokens of a text that follows on another one, as far as they can be told from that one's."""
        size, ids = len(text.encode()), list[int]()
        for lead in (before, "\n", "\0", ""):  # no vocabulary has a token of a zero byte and text
            ids, left = self.encode(lead + text), size
            for at in range(len(ids) - 1, -1, -1):
                left -= len(self.bytes[ids[at]])
                if left == 0:
                    return ids[at:]
        return ids

    def alike(self, other: Spelling) -> float:
        """The share of its tokens of a sample that are those of the other tokenizer."""
        mine, theirs = self._places(), other._places()
        return len(mine & theirs) / len(mine)

    def _places(self) -> set[tuple[int, bytes]]:
        """The tokens of the sample, and how many bytes come after the beginning of each."""
        ids = self.encode(_SAMPLE)
        return {(len(self.spelled(ids[at:])), self.bytes[token]) for at, token in enumerate(ids)}
