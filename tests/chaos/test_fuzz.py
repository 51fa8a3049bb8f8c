"""Anything at all is sent: nothing but documented answers come back, and others' texts stay what they are."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.chaos.harness import CANARY, CHAT, COMPLETIONS, Server, chance

# What the server may say: done; a mistake of the client's; too much at once. Nothing else.
DOCUMENTED = {200, 400, 404, 405, 408, 413, 415, 417, 429}

numbers = st.one_of(
    st.integers(-3, 40),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([0.0, 1e-300, 1e-9, 1e9, 1e300, -0.0]),
)
texts = st.one_of(
    st.text(max_size=40), st.sampled_from(["", "\x00", "\ud83e", "😀" * 9, "A fox", "<|end|>", "{{", "a" * 5000])
)
anything = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


words = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.sampled_from(["A fox", "😀" * 9]))
token_ids = st.lists(st.integers(0, 4095), min_size=1, max_size=30)
policies = st.sampled_from(["goodput", "static-3", "ucb", "exp3", "per-task", "linucb-context", "off"])
# What may be asked for, to its very ends.
fair: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.one_of(st.floats(0, 2), st.sampled_from([0.0, 1e-300, 1e-9, 100.0])),
    "top_p": st.floats(1e-12, 1),
    "top_k": st.integers(0, 5000),
    "min_p": st.floats(0, 1),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.01, 100),
    "logit_bias": st.dictionaries(st.integers(0, 4095).map(str), st.floats(-100, 100), max_size=5),
    "seed": st.integers(-(2**63) + 1, 2**63 - 1),
    "stop": st.text(min_size=1, max_size=5) | st.lists(st.text(min_size=1, max_size=5), max_size=4),
    "stop_token_ids": st.lists(st.integers(0, 4095), max_size=5),
    "ignore_eos": st.booleans(),
    "min_tokens": st.integers(0, 1),
    "max_tokens": st.integers(1, 12),
    "stream": st.booleans(),
    "user": words,
    "adaptspec": st.fixed_dictionaries(
        {}, optional={"policy": policies, "max_depth": st.integers(0, 100), "stop_threshold": st.floats(0, 1)}
    ),
}
unfair: dict[str, st.SearchStrategy[Any]] = {
    **{name: values | anything for name, values in fair.items() if name != "max_tokens"},
    "max_tokens": fair["max_tokens"] | numbers | texts,
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans() | anything}),
    "n": st.integers(-1, 3) | anything,
    "logprobs": st.integers(-1, 6) | anything,
    "model": st.sampled_from(["bundled", "other", ""]) | anything,
    "surprise": anything,
}
roles = st.sampled_from(["user", "assistant", "system", "developer"])
talk = st.lists(st.fixed_dictionaries({"role": roles, "content": words}), min_size=1, max_size=4)
prompts = st.one_of(
    words.filter(bool),
    token_ids,
    st.lists(words.filter(bool), min_size=1, max_size=3),
    st.lists(token_ids, min_size=1, max_size=3),
)


def body(path: str, required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[tuple[str, Any]]:
    """Bodies for one endpoint."""
    return st.tuples(st.just(path), st.fixed_dictionaries(required, optional=optional))


def some_of(strategies: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """A few of the fields: all of them at once would hardly ever be right."""
    names = st.lists(st.sampled_from(sorted(strategies)), max_size=6, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: strategies[name] for name in chosen}))


def asking(path: str, field: str, prompt: st.SearchStrategy[Any]) -> list[st.SearchStrategy[tuple[str, Any]]]:
    """Bodies for one endpoint: right ones, and wrong ones."""
    few = {"max_tokens": fair["max_tokens"]}
    right = st.tuples(st.fixed_dictionaries(few | {field: prompt}), some_of(fair)).map(lambda two: two[0] | two[1])
    wrong = st.tuples(st.fixed_dictionaries(few, optional={field: prompt | anything}), some_of(unfair))
    return [st.tuples(st.just(path), right), st.tuples(st.just(path), wrong.map(lambda two: two[0] | two[1]))]


bodies = st.one_of(
    *asking(COMPLETIONS, "prompt", prompts),
    *asking(CHAT, "messages", talk),
    body("/tokenize", {}, {"prompt": words | anything, "messages": talk | anything}),
    body("/detokenize", {}, {"tokens": token_ids | anything}),
    st.tuples(st.sampled_from([COMPLETIONS, CHAT, "/v1/models", "/metrics", "/nowhere", "/v1/models/%00"]), anything),
)


def encoded(body: Any) -> bytes:
    """JSON as Python writes it: NaN, infinity and lone surrogates included, which no JSON may have."""
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("part", range(8))
def test_no_request_breaks_the_server_or_another_answer(server: Server, whole: bool, part: int) -> None:
    """10,000 requests of every kind: no undocumented answer, and a greedy canary next to them never changes a byte."""
    usual, statuses, stop = server.canary(), Counter[int](), threading.Event()
    changed: list[str] = []
    before = server.baseline()

    def sing() -> None:
        while not stop.wait(0.2):
            if (text := server.canary()) != usual:
                changed.append(text)

    @seed(part)
    @settings(
        max_examples=1250 if whole else 12,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(bodies, st.sampled_from(["POST"] * 30 + ["GET", "PUT", "HEAD"]), st.integers(0, 40))
    def fuzz(asked: tuple[str, Any], method: str, cut: int) -> None:
        path, document = asked
        raw = encoded(document)
        answer = server.ask(path, raw[:-1] if cut == 1 else raw, method=method)
        statuses[answer.status] += 1
        assert answer.status in DOCUMENTED, answer
        if answer.status >= 400 and method != "HEAD":
            assert set(answer.body["error"]) == {"message", "type", "param", "code"}, answer
        assert "internal_error" not in str(answer.body), answer

    canary = threading.Thread(target=sing)
    canary.start()
    began = time.monotonic()
    try:
        fuzz()
    finally:
        stop.set()
        canary.join(30.0)
    assert not changed
    assert server.canary() == usual
    if whole:  # a dozen say nothing about how many get through
        assert statuses[200] > sum(statuses.values()) // 5
    assert server.settled(before) == before
    print(f"\n{sum(statuses.values())} requests in {time.monotonic() - began:.0f} s: {dict(sorted(statuses.items()))}")


ATTACKS: list[dict[str, Any]] = [
    {"temperature": 100.0, "top_k": 1},
    {"temperature": 1e-300},
    {"temperature": 1.0, "min_p": 1.0, "top_p": 1e-9},
    {"logit_bias": {str(i): -100 for i in range(1000)}, "temperature": 2.0},
    {"logit_bias": {"5": 100}, "ignore_eos": True, "repetition_penalty": 100.0},
    {"repetition_penalty": 0.01, "frequency_penalty": -2, "presence_penalty": -2},
    {"presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 100.0},
    {"stop": ["a", "e", "i", " "], "min_tokens": 30, "max_tokens": 60},
    {"prompt": "x " * 400, "max_tokens": 1},
    {"prompt": [[1] * 300] * 8, "max_tokens": 2},
    {"adaptspec": {"policy": "static-3", "stop_threshold": 1.0}, "stream": True},
    {"adaptspec": {"policy": "exp3", "max_depth": 64}, "temperature": 1.5},
    {"stop_token_ids": list(range(200)), "max_tokens": 1},
]


def test_victims_get_their_own_text_next_to_attackers(server: Server, whole: bool) -> None:
    """Seeded requests among others with extreme parameters: 100 of 100 say what they say alone."""
    count = 100 if whole else 8
    luck, stop = chance(3), threading.Event()
    bodies: list[dict[str, Any]] = [
        CANARY
        | {"prompt": f"Story {i}: the", "seed": i, "temperature": luck.choice([0.0, 0.7, 1.0, 1.3]), "max_tokens": 32}
        | luck.choice([{}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.05}, {"frequency_penalty": 0.5}])
        for i in range(count)
    ]
    alone = [server.ask(COMPLETIONS, body).text for body in bodies]
    attacks = 0

    def attack(seed: int) -> None:
        nonlocal attacks
        rng = chance(seed)
        while not stop.is_set():
            body = CANARY | {"prompt": "A wolf", "max_tokens": 20, "seed": rng.randrange(99)} | rng.choice(ATTACKS)
            assert server.ask(COMPLETIONS, body).status in (200, 400)
            attacks += 1

    with ThreadPoolExecutor(12) as pool:
        attackers = [pool.submit(attack, seed) for seed in range(6)]
        together = list(pool.map(lambda body: server.ask(COMPLETIONS, body).text, bodies))
        stop.set()
        for attacker in attackers:
            attacker.result()
    same = sum(text == other for text, other in zip(alone, together, strict=True))
    print(f"\n{same} of {count} the same next to {attacks} attacks")
    assert same == count
