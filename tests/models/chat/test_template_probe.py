"""What the probe finds of templates of popular families, and of templates that cannot be used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptspec.models.chat.chat_template import ChatTemplate
from adaptspec.models.chat.template_probe import probe
from adaptspec.models.chat.template_traits import CallForm, Traits
from tests.conftest import tiny_tokenizer
from tests.models.chat.families import FAMILIES, tokenizer_of

ALL = Traits(end_of_turn="<|im_end|>")
TOOLS = replace(ALL, tools=True, calls=CallForm())
FOUND = {
    "command_r": replace(TOOLS, late_system=False, end_of_turn="<|END_OF_TURN_TOKEN|>"),
    "deepseek": replace(
        ALL, calls=CallForm(arguments_as_text=True), end_of_turn="<\uff5cend\u2581of\u2581sentence\uff5c>"
    ),
    "gemma2": Traits(
        system=False, late_system=False, system_alone=False, repeated_roles=False, end_of_turn="<end_of_turn>"
    ),
    "gemma3": Traits(late_system=False, system_alone=False, repeated_roles=False, end_of_turn="<end_of_turn>"),
    "glm4": replace(TOOLS, end_of_turn=None),
    "granite": Traits(tools=True, end_of_turn="<|end_of_text|>"),
    "llama3": replace(TOOLS, calls=CallForm(several=False), end_of_turn="<|eot_id|>"),
    "llava": Traits(parts=True, end_of_turn="</s>"),
    "mistral": Traits(
        late_system=False,
        system_alone=False,
        repeated_roles=False,
        tools=True,
        calls=CallForm(long_ids=False),
        end_of_turn="</s>",
    ),
    "phi3": Traits(system=False, late_system=False, system_alone=False, end_of_turn="<|end|>"),
    "phi4": Traits(end_of_turn="<|end|>"),
    "qwen2.5": TOOLS,
    "qwen3": TOOLS,
    "smollm2": ALL,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_found_as_it_is(family: str) -> None:
    assert probe(tokenizer_of(family), {}) == FOUND[family]


TURNS = "{% for m in messages %}<|user|>{{ WRITTEN }}<|end|>{% endfor %}"
FAULTS = {
    "{% for m in messages %}{{ m.role": "unexpected end of template",
    "{% if %}": "Expected an expression",
    "{% for m in messages %}{{ m.text }}{% endfor %}": "does not write the text of a user's message",
    "{% for m in messages %}{{ m.role }}{% endfor %}": "does not write the text of a user's message",
    "Hello": "does not write the text of a user's message",
    "{% for m in messages[1:] %}{{ m.content }}{% endfor %}": "does not write the text of a user's message",
    "{{ raise_exception('no chats') }}": "no chats",
    "{{ functions | length + 1 }}{{ messages[0].content }}{{ 1 + nothing }}": "is undefined",
    "{{ messages[0].content | no_filter }}": "No filter named",
    "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}": "recursion",
}


@pytest.mark.parametrize("source", FAULTS)
def test_templates_that_write_no_chat_have_a_fault(source: str) -> None:
    """They were found by the first client, who was asked to change the roles of its messages."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = source
    assert FAULTS[source] in str(ChatTemplate(tokenizer).traits.fault)


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("m.content", False),
        ("m['content'] if m['content'] is string else m['content'][0]['text']", False),
        ("m['content'][0]['text']", True),
        ("m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join", True),
        ("(m.content | first).text", True),
    ],
)
def test_content_is_given_as_the_template_reads_it(written: str, parts: bool) -> None:
    """A template that walks over parts wrote nothing for a string, and the model never saw the text of its user."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TURNS.replace("WRITTEN", written)
    assert ChatTemplate(tokenizer).traits == Traits(parts=parts, end_of_turn="<|end|>")
    assert "of the user" in ChatTemplate(tokenizer).render([{"role": "user", "content": "of the user"}])


@pytest.mark.parametrize(
    "source",
    ["{{ messages[-1].content }}", "{% for m in messages[-2:] %}{{ m.content }}{% endfor %}"],
)
def test_templates_that_leave_earlier_turns_out_are_found(source: str) -> None:
    """Those of models that judge a last message do so on purpose; the start says it."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = source
    template = ChatTemplate(tokenizer)
    template.check()
    assert not template.traits.earlier_turns


def test_parts_are_used_where_only_they_carry_the_system_text() -> None:
    """Some templates of Gemma 3 read the system message as parts, and all others either way."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% set text = messages[0]['content'][0]['text'] if messages[0]['role'] == 'system' else '' %}{{ text }}"
        "{% for m in messages if m.role != 'system' %}"
        "{{ m.content if m.content is string else m.content[0].text }}<|end|>{% endfor %}"
    )
    assert ChatTemplate(tokenizer).traits == Traits(parts=True, late_system=False, end_of_turn="<|end|>")


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("{{ c.function.name }}{{ c.function.arguments | tojson }}", CallForm()),
        ("{{ c.function.name + c.function.arguments }}", CallForm(arguments_as_text=True)),
        ("{{ c.function.name ~ c.function.arguments }}", CallForm(arguments_as_text=True)),
        (
            "{{ raise_exception('text and calls') if m.content is defined }}{{ c.function | tojson }}",
            CallForm(content=None),
        ),
        (
            "{{ raise_exception('id') if c.id | length > 12 }}{{ c.function | tojson }}",
            CallForm(long_ids=False),
        ),
        ("{{ raise_exception('one') if not loop.first }}{{ c.function | tojson }}", CallForm(several=False)),
        ("{{ c.function.name }}", None),
    ],
)
def test_calls_are_given_as_the_template_reads_them(source: str, form: CallForm | None) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}" + source + "{% endfor %}{% endfor %}"
    )
    assert ChatTemplate(tokenizer).traits == Traits(calls=form)
