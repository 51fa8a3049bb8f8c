"""Fields that say how the chat template writes a conversation: in chats and in /tokenize."""

from __future__ import annotations

from typing import Any

import pytest

CHAT, TOKENIZE = "/v1/chat/completions", "/tokenize"
SYSTEM = {"role": "system", "content": "s"}
USER, BEGUN = {"role": "user", "content": "a"}, {"role": "assistant", "content": "Hello "}
THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}no{% endif %}{% endif %}"
)


async def prompts(post: Any, engine: Any, tokenizer: Any, **body: Any) -> list[str]:
    """What the model gets to read of a chat, and what /tokenize says of it."""
    status, answer = await post(CHAT, max_tokens=2, **body)
    assert status == 200, answer
    _, counted = await post(TOKENIZE, **body)
    return [tokenizer.decode(ids) for ids in (engine.seen[-1].prompt, counted["tokens"])]


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({}, "<|user|>a<|end|><|assistant|>Hello <|end|><|assistant|>"),
        ({"add_generation_prompt": True}, "<|user|>a<|end|><|assistant|>Hello <|end|><|assistant|>"),
        ({"add_generation_prompt": None, "continue_final_message": None, "chat_template_kwargs": None}, None),
        ({"continue_final_message": False, "chat_template_kwargs": {}}, None),
        ({"add_generation_prompt": False}, "<|user|>a<|end|><|assistant|>Hello <|end|>"),
        ({"continue_final_message": True}, "<|user|>a<|end|><|assistant|>Hello "),
        ({"continue_final_message": True, "add_generation_prompt": False}, "<|user|>a<|end|><|assistant|>Hello "),
    ],
)
async def test_chats_and_counts_are_written_alike(
    post: Any, engine: Any, tokenizer: Any, fields: dict[str, Any], written: str | None
) -> None:
    usual = await prompts(post, engine, tokenizer, messages=[USER, BEGUN])
    found = await prompts(post, engine, tokenizer, messages=[USER, BEGUN], **fields)
    assert found == (usual if written is None else [written, written])


async def test_variables_reach_the_template(
    post: Any, engine: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", THINKING)
    for values, ending in (({"enable_thinking": False}, "no"), ({"enable_thinking": True}, ""), ({"other": [1]}, "")):
        found = await prompts(post, engine, tokenizer, messages=[USER], chat_template_kwargs=values)
        assert found == [f"<|user|>a<|end|><|assistant|>{ending}"] * 2


@pytest.mark.parametrize("path", [CHAT, TOKENIZE])
@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "send one of them"),
        ({"continue_final_message": True, "messages": [SYSTEM]}, "continue_final_message", "of the role assistant"),
        ({"continue_final_message": "yes"}, "continue_final_message", "true or false"),
        ({"add_generation_prompt": 1}, "add_generation_prompt", "true or false"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "set by the server"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs", "set by the server"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs", "set by the server"),
        ({"chat_template_kwargs": {"a": ["x" * 20_000]}}, "chat_template_kwargs", "characters"),
        ({"chat_template_kwargs": {"a": [[[[[1]]]]]}}, "chat_template_kwargs", "nests"),
        ({"chat_template_kwargs": {"a": [0] * 999}}, "chat_template_kwargs", "values"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs", "a JSON object"),
        ({"chat_template": "{{ messages }}"}, "chat_template", "not a field"),
    ],
)
async def test_what_cannot_be_written_is_refused(
    post: Any, path: str, fields: dict[str, Any], param: str, said: str
) -> None:
    """A template of a client's own is a program, and is never taken."""
    status, body = await post(path, **({"messages": [USER, BEGUN]} | fields))
    assert (status, body["error"]["param"]) == (400, param)
    assert said in body["error"]["message"]


ODD = {"role": "user", "content": "odd"}
PICKY = (
    "{% if date_string is defined %}{{ 'On ' + date_string }}{% endif %}"
    "{% if tone is defined and tone not in ['dry', 'warm'] %}{{ raise_exception('no such tone') }}{% endif %}"
    "{% if reasoning_effort is defined %}{{ {'low': 1, 'high': 2}[reasoning_effort] + 0 }}{% endif %}"
    "{% for m in messages %}{% if 'odd' in m.content %}{{ raise_exception('too odd') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"chat_template_kwargs": {"date_string": [1]}}, ("chat_template_kwargs", "concatenate")),
        ({"chat_template_kwargs": {"date_string": None}}, ("chat_template_kwargs", "concatenate")),
        ({"chat_template_kwargs": {"tone": "loud"}}, ("chat_template_kwargs", "no such tone")),
        ({"chat_template_kwargs": {"tone": {}}}, ("chat_template_kwargs", "no such tone")),
        ({"chat_template_kwargs": {"tone": "dry"}, "messages": [ODD]}, ("messages", "too odd")),
        ({"chat_template_kwargs": {"tone": "loud"}, "messages": [ODD]}, ("messages", "too odd")),
        ({"messages": [ODD]}, ("messages", "too odd")),
    ],
)
async def test_the_field_that_the_template_cannot_take_is_blamed(
    post: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], fault: tuple[str, str]
) -> None:
    """The variables of a request, if its messages alone can be written; the messages otherwise."""
    monkeypatch.setattr(tokenizer, "chat_template", PICKY)
    for path in (CHAT, TOKENIZE):
        status, body = await post(path, **({"messages": [USER]} | fields))
        assert (status, body["error"]["param"]) == (400, fault[0])
        assert fault[1] in body["error"]["message"]


@pytest.mark.parametrize(
    ("more", "param"),
    [({}, "reasoning_effort"), ({"chat_template_kwargs": {"tone": "dry"}}, "chat_template_kwargs")],
)
async def test_an_effort_that_the_template_cannot_take_is_blamed(
    post: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], param: str
) -> None:
    """An effort is a variable of the template, too."""
    monkeypatch.setattr(tokenizer, "chat_template", PICKY)
    status, body = await post(CHAT, messages=[USER], reasoning_effort="medium", **more)
    assert (status, body["error"]["param"]) == (400, param)
