"""Requests that are small to send and dear to read: each of them once held up every stream of the server."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from tests.chaos.harness import CHAT, COMPLETIONS

TOKENIZE, DETOKENIZE, RESPONSES, HEALTH = "/tokenize", "/detokenize", "/v1/responses", "/health"
LARGE = 4 * 2**20 - 4096  # bytes of a body that is just taken
LESS = 250_000  # bytes of a body whose fields are just within the limit on parts
_SAID = '{"role":"user","content":"x"}'
_HELLO = f'"messages":[{_SAID}]'
_CALL = '{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}'


@dataclass(frozen=True)
class Hostile:
    """One request. `keyed`: it brings the server's key. `slow`: it is sent at so many bytes a second."""

    name: str
    path: str
    body: bytes
    headers: str = "Content-Type: application/json"
    keyed: bool = True
    slow: float | None = None

    def sent(self, key: str) -> bytes:
        """What goes over the connection."""
        keyed = f"Authorization: Bearer {key}\r\n" if self.keyed else ""
        head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\n{keyed}{self.headers}\r\n"
        return f"{head}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body


def hostile() -> Iterator[Hostile]:
    """All of them: compressed, of many parts, just within the limits on parts, long as a text, slow as a talk."""
    yield from _compressed()
    for name, path, body in (*_of_many_parts(LARGE), *_texts()):
        yield Hostile(name, path, body)
    # The same as far as the limits go: what is not refused unread must be read without being felt.
    for name, path, body in _of_many_parts(LESS):
        yield Hostile(f"{name}, less", path, body)


def _compressed() -> Iterator[Hostile]:
    bomb = gzip.compress(b"x" * 2**28)
    coded = "Content-Type: application/json\r\nContent-Encoding: gzip"
    yield Hostile("gzip", COMPLETIONS, bomb, coded)
    yield Hostile("gzip without a key", COMPLETIONS, bomb, coded, keyed=False)
    yield Hostile("gzip to /health", HEALTH, bomb, coded, keyed=False)
    yield Hostile("gzip in drips", HEALTH, bomb, coded, keyed=False, slow=160_000.0)


def _of_many_parts(size: int) -> Iterator[tuple[str, str, bytes]]:
    def listed(head: str, item: str, tail: str) -> bytes:
        return (head + ",".join([item] * ((size - len(head) - len(tail)) // (len(item) + 1))) + tail).encode()

    def named(head: str, value: str, tail: str) -> bytes:
        fields, length = [], len(head) + len(tail)
        for number in count():
            field = f'"{number:x}":{value}'
            length += len(field) + 1
            if length > size:
                return (head + ",".join(fields) + tail).encode()
            fields.append(field)
        raise AssertionError

    tool = f'{{{_HELLO},"tools":[{{"type":"function","function":{{"name":"f","parameters":{{"properties":{{'
    schema = (
        f'{{{_HELLO},"response_format":{{"type":"json_schema","json_schema":{{"name":"n","schema":{{"properties":{{'
    )
    part = '{"type":"input_text","text":"x"'
    makers: dict[str, tuple[str, Callable[..., bytes], tuple[str, str, str]]] = {
        "fields": (COMPLETIONS, named, ('{"prompt":"x",', "1", "}")),
        "fields of objects": (COMPLETIONS, named, ('{"prompt":"x",', "{}", "}")),
        "fields of adaptspec": (COMPLETIONS, named, ('{"prompt":"x","adaptspec":{', "1", "}}")),
        "token ids": (COMPLETIONS, listed, ('{"prompt":[', "1", "]}")),
        "prompts": (COMPLETIONS, listed, ('{"prompt":[', '""', "]}")),
        "prompts of lists": (COMPLETIONS, listed, ('{"prompt":[[', "[]", "]]}")),
        "prompts of ids": (COMPLETIONS, listed, ('{"prompt":[', "[" + ",".join(["1"] * 1000) + "]", "]}")),
        "stop tokens": (COMPLETIONS, listed, ('{"prompt":"x","stop_token_ids":[', '"a"', "]}")),
        "biases": (COMPLETIONS, named, ('{"prompt":"x","logit_bias":{', "1", "}}")),
        "messages": (CHAT, listed, ('{"messages":[', _SAID, "]}")),
        "fields of a message": (CHAT, named, ('{"messages":[{"role":"user","content":"x",', "1", "}]}")),
        "parts of a message": (
            CHAT, listed, ('{"messages":[{"role":"user","content":[', '{"type":"text","text":""}', "]}]}")
        ),
        "nested messages": (CHAT, listed, ('{"messages":[{"role":"user","content":[', "[[[[]]]]", "]}]}")),
        "wrong calls": (CHAT, listed, ('{"messages":[{"role":"assistant","tool_calls":[', "1", "]}]}")),
        "calls": (CHAT, listed, ('{"messages":[{"role":"assistant","tool_calls":[', _CALL, "]}]}")),
        "tool": (CHAT, named, (tool, "{}", "}}}}]}")),
        "schema": (CHAT, named, (schema, "{}", "}}}}}")),
        "functions": (CHAT, listed, (f'{{{_HELLO},"functions":[', "{}", "]}")),
        "metadata": (CHAT, named, (f'{{{_HELLO},"metadata":{{', "1", "}}")),
        "deep lists": (CHAT, listed, ('{"messages":' + "[" * 60, "[[]]", "]" * 60 + "}")),
        "items": (RESPONSES, listed, ('{"input":[', _SAID, "]}")),
        "wrong items": (RESPONSES, listed, ('{"input":[', "1", "]}")),
        "annotations": (
            RESPONSES, listed, (f'{{"input":[{{"role":"user","content":[{part},"annotations":[', "{}", "]}]}]}")
        ),
        "wrong parts": (RESPONSES, listed, ('{"input":[{"role":"user","content":[', part + ',"q":1}', "]}]}")),
        "wrong metadata": (RESPONSES, named, ('{"input":"x","metadata":{', "1", "}}")),
        "ids to read": (DETOKENIZE, listed, ('{"tokens":[', "5", "]}")),
    }  # fmt: skip
    for name, (path, make, words) in makers.items():
        yield name, path, make(*words)


def _texts() -> Iterator[tuple[str, str, bytes]]:
    def asking(**fields: object) -> bytes:
        return json.dumps(fields).encode()

    talk = [{"role": "user", "content": "x" * 900}] * 4096
    yield "text to count", TOKENIZE, asking(prompt="a b c " * 630_000)
    yield "one word to count", TOKENIZE, asking(prompt="a" * 3_800_000)
    yield "longest text to count", TOKENIZE, asking(prompt="word " * 17_000)
    yield "odd letters to count", TOKENIZE, asking(prompt="\U0001f98a" * 21_000)
    yield "escapes", TOKENIZE, ('{"prompt":"' + "\\u0041" * (LARGE // 6) + '"}').encode()
    yield "long prompt", COMPLETIONS, asking(prompt="word " * 800_000)
    yield "prompts of the longest", COMPLETIONS, asking(prompt=["word " * 17_000] * 48)
    yield "talk to count", TOKENIZE, asking(messages=talk)
    yield "longest talk", CHAT, asking(messages=[{"role": "user", "content": "x" * 20}] * 4000)
    yield "short talk", TOKENIZE, asking(messages=[{"role": "user", "content": "word " * 700}])
    yield "most token ids", COMPLETIONS, asking(prompt=[[1] * 1020] * 128, max_tokens=10)
    yield "most token ids for one", COMPLETIONS, asking(prompt=[1] * 262_000)
    yield "arguments", CHAT, asking(
        messages=[{"role": "assistant", "content": "", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" + "[]," * 27_000 + "1]"}}
        ]}]
    )  # fmt: skip
    yield "long digits", COMPLETIONS, b'{"prompt":[' + b"9" * LARGE + b"]}"
