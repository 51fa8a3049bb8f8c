"""Variables for chat templates that clients and files give (`chat_template_kwargs`), within bounds."""

from __future__ import annotations

import inspect
import re
from typing import Any

from transformers import PreTrainedTokenizerBase

MAX_KEYS, MAX_NAME, MAX_VALUES, MAX_DEPTH, MAX_CHARACTERS = 32, 64, 256, 4, 16_384
NAME_PATTERN = rf"[A-Za-z][A-Za-z0-9_]{{0,{MAX_NAME - 1}}}"
_NAME = re.compile(NAME_PATTERN)
_LARGEST = 2**63 - 1
# The server, or the sandbox of templates, sets these itself, and names that end in _token are the tokenizer's.
RESERVED = (frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) - {"documents"}) | {
    *("messages", "conversations", "loop", "self", "super", "caller", "varargs"),
    *("range", "dict", "namespace", "lipsum", "cycler", "joiner", "raise_exception", "strftime_now"),
}


def check_values(values: object) -> dict[str, Any]:
    """The same values. Raises ValueError that says what is at fault: no object, a reserved name, or too much."""
    if not isinstance(values, dict):
        raise ValueError('it must be an object, such as {"enable_thinking": false}')
    if len(values) > MAX_KEYS:
        raise ValueError(f"it has {len(values)} keys; give at most {MAX_KEYS}")
    for name in values:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"its keys must be names of at most {MAX_NAME} letters, digits and underscores")
        if name in RESERVED or name.endswith("_token"):
            raise ValueError(f"its key {name} is set by the server; leave it out")
    _check_size(values)
    return values


def _check_size(values: dict[str, Any]) -> None:
    level: list[Any] = [values]
    count = characters = 0
    for _ in range(MAX_DEPTH):
        texts: list[str] = []
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                texts += map(str, value)
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            else:
                _check_scalar(value)
                texts += [value] if isinstance(value, str) else []
        count, characters = count + len(inner), characters + sum(map(len, texts))
        if count > MAX_VALUES:
            raise ValueError(f"it holds more than {MAX_VALUES} values; give fewer")
        if characters > MAX_CHARACTERS:
            raise ValueError(f"its texts have more than {MAX_CHARACTERS} characters; give shorter ones")
        if not inner:
            return
        level = inner
    if any(isinstance(value, (dict, list)) for value in level):
        raise ValueError(f"it nests more than {MAX_DEPTH} objects and lists; give it flatter")
    for value in level:
        _check_scalar(value)


def _check_scalar(value: object) -> None:
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError("its numbers must fit into 64 bits")
    if value is not None and not isinstance(value, (str, int, float, bool, dict, list)):
        raise ValueError("its values must be strings, numbers, booleans, null, lists or objects")
