"""Tokenizers of model directories, the bytes of their tokens, and whether a target and a draft can share one."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from adaptspec.errors import ModelError, PairError
from adaptspec.models.model_files import read_json, resolve_model
from adaptspec.models.runner import ModelInfo

GENERIC_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
# How SentencePiece vocabularies write a byte and a space.
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")


def load_tokenizer(path_or_hub_id: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a model directory or hub id, with its chat template; ModelError if there is none.

    Only fast tokenizers: text is decoded while it streams, which the others cannot do.
    """
    folder = resolve_model(path_or_hub_id)
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
        tokenizer = loader.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises bare Exception for broken files
        raise ModelError(f"cannot load the tokenizer in {folder}: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(f"{folder} has a slow tokenizer ({type(tokenizer).__name__}); convert it to a tokenizer.json")
    # The context that is served is the model's; above this number transformers would print a warning.
    tokenizer.model_max_length = VERY_LARGE_INTEGER
    return tokenizer


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A short hash of the vocabulary: where two differ, token ids mean different things."""
    words = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(words.encode(), digest_size=8).hexdigest()


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, info: ModelInfo) -> None:
    """Raise ModelError if the tokenizer has token ids the model has no embedding for."""
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= info.vocab_size:
        raise ModelError(
            f"{info.name}: the tokenizer has token id {largest}, the model only {info.vocab_size} embeddings; "
            "use the tokenizer the model was trained with"
        )


def check_pair(
    target_tokenizer: PreTrainedTokenizerBase,
    draft_tokenizer: PreTrainedTokenizerBase,
    target: ModelInfo,
    draft: ModelInfo,
) -> None:
    """Raise PairError unless equal text gives equal token ids for target and draft.

    Embeddings padded to different sizes are fine, so long as the token ids agree.
    """
    hint = f"{draft.name} cannot draft for {target.name}; use a draft trained with the target's tokenizer"
    ours, theirs = target_tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    different = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    if different:
        token = different[0]
        raise PairError(
            f"{hint} (vocabularies differ in {len(different)} of {len(ours)} tokens: "
            f"{token!r} is {ours.get(token)} in the target and {theirs.get(token)} in the draft)"
        )
    for name in SPECIAL_IDS:
        mine, other = getattr(target_tokenizer, name), getattr(draft_tokenizer, name)
        if mine != other:
            raise PairError(f"{hint} ({name} is {mine} in the target and {other} in the draft)")


class TokenBytes:
    """Bytes by token id; an id that no token has (a padded vocabulary) stands for none."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._added = {number: str(token) for number, token in tokenizer.added_tokens_decoder.items()}

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

    @cached_property
    def _alphabet(self) -> dict[str, bytes]:
        """What byte each letter stands for; empty unless the vocabulary is written in bytes."""
        decoder = self._backend.decoder
        described = json.loads(decoder.__getstate__()) if decoder is not None else {}
        kinds = {part["type"] for part in (described, *described.get("decoders", ())) if "type" in part}
        letters: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
        return {letter: bytes([byte]) for byte, letter in letters.items()} if "ByteLevel" in kinds else {}
