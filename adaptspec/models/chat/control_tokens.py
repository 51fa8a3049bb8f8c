"""Client text that reads like a control token, such as `<|im_end|>`, encoded as the text that it is."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerFast

# Noncharacters, which no text may have, around what is plain text. Escaped, they are as `json.dumps` writes them.
_MARK, _UNMARK = "\ufdd0", "\ufdd1"
_RAW = re.compile(f"[{_MARK}{_UNMARK}]")


class ControlTokens:
    """The control tokens of a tokenizer: its special ones, and added ones that its chat template writes."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, source: str) -> None:
        """`source` is the text of the template."""
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.values()
        names = {str(one) for one in added if one.special or (str(one).strip() and str(one) in source)}
        longest_first = sorted(filter(None, names), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def marked(self, value: Any) -> Any:
        """Messages, tools or variables of a client, in which no text is a control token any more."""
        if isinstance(value, str):
            return self._pattern.sub(f"{_MARK}\\g<0>{_UNMARK}", _RAW.sub("", value))
        if isinstance(value, dict):
            return {self.marked(key): self.marked(inner) for key, inner in value.items()}
        return [self.marked(inner) for inner in value] if isinstance(value, list) else value

    def encode(self, text: str) -> list[int]:
        """Token ids of a text that a template has made of marked messages."""
        ids: list[int] = []
        for place, piece in enumerate(self._marks.split(text)):
            if piece:
                literal = place % 2 == 1
                ids += self._inside(piece, literal=literal) if ids else self._plain(piece, literal=literal)
        return ids

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        starts, ends = (f"(?:{mark}|{re.escape(json.dumps(mark)[1:-1])})" for mark in (_MARK, _UNMARK))
        return re.compile(f"{starts}({self._pattern.pattern}){ends}|{_RAW.pattern}")

    def _inside(self, piece: str, *, literal: bool) -> list[int]:
        """Token ids of a piece that begins no text: some tokenizers put a space before what does."""
        line, ids = self._plain("\n", literal=literal), self._plain(f"\n{piece}", literal=literal)
        return ids[len(line) :] if ids[: len(line)] == line else self._plain(piece, literal=literal)

    def _plain(self, text: str, *, literal: bool) -> list[int]:
        if not literal:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
            return ids
        backend = self._tokenizer.backend_tokenizer
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        pre = backend.pre_tokenizer
        words = [text] if pre is None else [word for word, _ in pre.pre_tokenize_str(text)]
        return [token.id for word in words for token in backend.model.tokenize(word)]
