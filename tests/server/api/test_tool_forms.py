"""Forms of tool calls, by the chat template alone: prompt, grammar and reader agree."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from adaptspec.models.chat.chat_template import ChatTemplate
from adaptspec.models.grammars import Grammars
from adaptspec.server.api.call_reader import CallReader
from adaptspec.server.api.message_reader import gathered
from adaptspec.server.api.messages import Message
from adaptspec.server.api.tool_forms import (
    FORMS,
    HERMES,
    IN_WORDS,
    LLAMA3,
    MISTRAL,
    OPEN,
    ToolForm,
    form_of,
)
from adaptspec.server.api.tools import Tool, tool_grammar
from adaptspec.server.prompts import Prompts
from tests.conftest import tiny_tokenizer
from tests.models.chat.families import FAMILIES, template_of, tokenizer_of

OWN = {"llama3": LLAMA3, "mistral": MISTRAL, "qwen2.5": HERMES, "qwen3": HERMES}
TOOLS = [
    Tool.model_validate(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "Looks it up.",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            },
        }
    )
    for name in ("weather", "weather_now")
]
CALLED = '{"city": "Rome"}'


def messages(*more: dict[str, Any]) -> list[Message]:
    return [Message.model_validate(one) for one in ({"role": "user", "content": "Weather?"}, *more)]


def rendered(prompts: Prompts, conversation: list[Message], tools: list[Tool]) -> str:
    async def text() -> str:
        return await prompts.decode(await prompts.chat(conversation, tools, form=prompts.tool_form))

    return asyncio.run(text())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_template_gives_its_form_or_none(family: str) -> None:
    """Those that write calls otherwise, or know of no tools, are helped with words."""
    assert form_of(template_of(family)) == OWN.get(family, IN_WORDS)


def test_calls_in_the_same_tags_but_in_another_form_are_not_taken_for_ours() -> None:
    """Qwen 3 Coder and GLM write parameters as tags within <tool_call>."""
    template = tiny_tokenizer()
    template.chat_template = (
        "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
        "{% for m in messages %}{{ m.role }}: {{ m.content }}"
        "{% for call in m.tool_calls or [] %}<tool_call>\n<function={{ call.function.name }}>"
        "{% for key, value in call.function.arguments.items() %}"
        "<parameter={{ key }}>{{ value }}</parameter>{% endfor %}"
        "</function>\n</tool_call>{% endfor %}\n{% endfor %}"
    )
    assert ChatTemplate(template).traits.native_tools
    assert form_of(ChatTemplate(template)) == IN_WORDS
    template.chat_template = template.chat_template.replace("<function=", "<tool:")
    assert form_of(ChatTemplate(template)) == HERMES, "a form that is not known to be another"


@pytest.mark.parametrize("family", FAMILIES)
def test_prompt_grammar_and_reader_agree(family: str) -> None:
    """A round of a call in every family: the model is shown the form that the grammar allows, and reads it back."""
    tokenizer = tokenizer_of(family)
    prompts = Prompts(tokenizer, 2**16)
    form = prompts.tool_form
    asked = rendered(prompts, messages(), TOOLS)
    assert "weather_now" in asked
    assert (OPEN in asked) is (form in (HERMES, IN_WORDS))
    text = form.token + form.opening + form.written("weather", CALLED) + form.closing
    grammar = tool_grammar(TOOLS, "auto", parallel=True, form=form)
    assert grammar is not None
    end = tokenizer.eos_token_id
    tokens = [*tokenizer.encode(text, add_special_tokens=False), end]
    assert Grammars(tokenizer, len(tokenizer), (end,)).start(grammar).valid(tokens) == len(tokens)
    reader = CallReader(True, form, [tool.function.name for tool in TOOLS])
    content, calls = gathered([*reader.feed(text), *reader.end()])
    assert content is None
    turn = [
        {"role": "assistant", "content": content, "tool_calls": [json.loads(call.model_dump_json()) for call in calls]},
        {"role": "tool", "content": "Sunny.", "tool_call_id": calls[0].id},
    ]
    again = rendered(prompts, messages(*turn), TOOLS)
    assert form.head + "weather" + form.separator + CALLED in again
    assert "Sunny." in again


def fits(form: ToolForm, texts: list[str], *, choice: str = "auto", parallel: bool = True) -> list[str]:
    tokenizer = tiny_tokenizer()
    grammars, grammar = Grammars(tokenizer, 260, (1,)), tool_grammar(TOOLS, choice, parallel=parallel, form=form)  # type: ignore[arg-type]
    assert grammar is not None

    def fit(text: str) -> bool:
        tokens = [*tokenizer.encode(text, add_special_tokens=False), 1]
        return grammars.start(grammar).valid(tokens) == len(tokens)

    return [text for text in texts if fit(text)]


def written(form: ToolForm, *calls: tuple[str, str]) -> str:
    return form.token + form.opening + (form.between or "").join(form.written(*one) for one in calls) + form.closing


@pytest.mark.parametrize("form", [form for form in FORMS.values() if not form.mark])
def test_an_answer_is_text_or_whole_calls_of_known_tools(form: ToolForm) -> None:
    """Text may be anything that does not begin as a call does, JSON with a name included."""
    one, other = ("weather", CALLED), ("weather_now", '{"city": "X"}')
    text = [
        "",
        "hello",
        '{"name": "Ann"}',
        '{"name": "unknown", "parameters": {}}',
        f"So {written(form, one)}",
        "[",
        "\n{",
    ]
    calls = [written(form, one), f"\n{written(form, other)}"]
    several = [written(form, one, other)] if form.between is not None else []
    bad = [
        written(form, ("weather", "{}")),
        written(form, ("weather", '{"town": "Rome"}')),
        written(form, one)[:-1],
        f"{written(form, one)} and more",
    ]
    everything = [*text, *calls, *several, *bad]
    assert fits(form, everything) == [*text, *calls, *several]
    assert fits(form, everything, parallel=False) == [*text, *calls]
    assert fits(form, everything, choice="required") == [calls[0], *several]
    assert fits(form, everything, choice="required", parallel=False) == [calls[0]]


def test_a_token_that_begins_calls_is_written_as_such() -> None:
    """It is special, so it is no text: neither in the grammar nor in what is read."""
    tokenizer = tokenizer_of("mistral")
    tokenizer.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]"]}, replace_extra_special_tokens=False)  # type: ignore[call-arg]
    number, end = tokenizer.convert_tokens_to_ids("[TOOL_CALLS]"), tokenizer.eos_token_id
    prompts = Prompts(tokenizer, 2**16)
    assert prompts.tool_form.token_id == number
    text = '[{"name": "weather", "arguments": {"city": "Rome"}}]'
    letters = tokenizer.encode(text, add_special_tokens=False)
    grammars = Grammars(tokenizer, len(tokenizer), (end,))
    for choice in ("auto", "required"):
        grammar = tool_grammar(TOOLS, choice, parallel=True, form=prompts.tool_form)  # type: ignore[arg-type]
        assert grammar is not None
        assert grammars.start(grammar).valid([number, *letters, end]) == len(letters) + 2
        assert grammars.start(grammar).valid([*letters, end]) < len(letters)
    reader = CallReader(True, prompts.tool_form, ["weather"])
    content, (call,) = gathered([*reader.feed(tokenizer.backend_tokenizer.decode([number, *letters])), *reader.end()])
    assert (content, call.function.name, call.function.arguments) == (None, "weather", CALLED)
