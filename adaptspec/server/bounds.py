"""Holds the body of a request to the limits, before anything is made of it. Knows JSON; no endpoint, no engine.

Fields are looked at as they came: what else is wrong with them is said by whoever reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from adaptspec.errors import RequestError
from adaptspec.server.limits import ServerLimits

_AT_ONCE = 2**16  # bytes of a body that are looked at together
METADATA = 16  # entries, as at OpenAI


def check_structure(raw: bytes, limits: ServerLimits) -> None:
    """Raise RequestError for a body of so many parts that reading it would hold up everybody.

    It is told from the bytes, before any JSON is read; of a body that is none, anything may be said.
    """
    if len(raw) <= min(limits.json_parts, limits.json_items):
        return  # cheap, and true of nearly every request: each of them takes a byte
    parts = items = 0
    for outside in _outside_strings(raw):
        parts += sum(np.count_nonzero(outside == mark) for mark in b"{[:")
        items += np.count_nonzero(outside == ord(","))
        if parts > limits.json_parts:
            raise RequestError(
                f"the body has more than {limits.json_parts} objects, lists and names of fields; send fewer of them in "
                "one request"
            )
        if items > limits.json_items:
            raise RequestError(
                f"the lists of the body have more than {limits.json_items} entries; send fewer in one request, such as "
                "texts instead of token ids"
            )


def _outside_strings(raw: bytes) -> Iterator[Any]:
    """What is no string of a body, as arrays of bytes, piece by piece; strings are zeros."""
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    plain = np.frombuffer(raw, np.uint8)
    inside = np.uint8(0)
    for start in range(0, len(plain), _AT_ONCE):
        piece = plain[start : start + _AT_ONCE]
        within = np.bitwise_xor.accumulate((piece == ord('"')).view(np.uint8)) ^ inside
        yield piece * (1 - within)
        inside = within[-1]


def check_bounds(document: Mapping[str, Any], limits: ServerLimits) -> None:
    """Raise RequestError, with the field at fault, for more than the limits allow."""
    numbers = {
        "n": limits.choices,
        "best_of": limits.choices,
        "logprobs": limits.logprobs,
        "top_logprobs": limits.logprobs,
        "max_tokens": limits.output_tokens,
        "max_completion_tokens": limits.output_tokens,
        "max_output_tokens": limits.output_tokens,
    }
    for name, most in numbers.items():
        value = document.get(name)
        if isinstance(value, int) and value > most:
            raise RequestError(f"{name} is above what this server allows; ask for at most {most}", name)
    sizes = {
        "messages": limits.messages,
        "input": limits.messages,
        "tokens": limits.tokens,
        "stop": limits.stop_strings,
        "stop_token_ids": limits.stop_tokens,
        "logit_bias": limits.logit_bias,
        "metadata": METADATA,
    }
    for name, most in sizes.items():
        value = document.get(name)
        if isinstance(value, (list, dict)) and len(value) > most:
            raise RequestError(f"{name} has {len(value)} entries; send at most {most}", name)
    _check_prompts(document.get("prompt"), limits.prompts)
    _check_stops(document.get("stop"), limits.stop_characters)


def check_depth(raw: bytes, document: object, most: int) -> None:
    """Raise RequestError if objects and lists lie deeper within each other than `most`."""
    if raw.count(b"[") + raw.count(b"{") <= most:
        return  # cheap, and true of nearly every request: only lists of long lists are walked through
    level = [document]
    for _ in range(most):
        level = [inner for outer in level for inner in _parts(outer) if isinstance(inner, (dict, list))]
        if not level:
            return
    raise RequestError(f"the body nests more than {most} objects and lists; send it flatter")


def _parts(container: object) -> Any:
    return container.values() if isinstance(container, dict) else container


def _check_prompts(value: object, most: int) -> None:
    if isinstance(value, list) and len(value) > most and not isinstance(value[0], int):
        raise RequestError(f"prompt has {len(value)} prompts; send at most {most} in one request", "prompt")


def _check_stops(value: object, most: int) -> None:
    stops = value if isinstance(value, list) else [value]
    if any(isinstance(text, str) and len(text) > most for text in stops):
        raise RequestError(f"stop has a string of more than {most} characters; send a shorter one", "stop")
