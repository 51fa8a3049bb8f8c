"""Prompts of conversations in every family: system text, roles in a row, tools, and answers to go on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptspec.errors import ConfigError, ModelError, RequestError
from adaptspec.models.chat.chat_template import ChatTemplate, RenderOptions, use_template
from tests.conftest import tiny_tokenizer
from tests.models.chat.families import FAMILIES, source_of, template_of

CONTINUED = RenderOptions(continued=True)


def says(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


TALK = [says("user", "First question."), says("assistant", "First answer."), says("user", "Second question.")]


@pytest.mark.parametrize("family", FAMILIES)
def test_system_text_comes_out_once_and_before_what_it_is_for(family: str) -> None:
    text = template_of(family).render([says("system", "Be brief."), *TALK])
    assert text.count("Be brief.") == 1
    assert text.index("Be brief.") < text.index("Second question.")
    assert text.index("First question.") < text.index("First answer.") < text.index("Second question.")


@pytest.mark.parametrize("family", FAMILIES)
def test_messages_of_agents_come_out_whole(family: str) -> None:
    """Two system messages, one in the middle, and several messages of one role in a row."""
    talk = [says("system", "One."), says("system", "Two."), *TALK, says("user", "Third."), says("system", "Three.")]
    text = template_of(family).render(
        [*talk, says("assistant", "Well."), says("assistant", "Yes."), says("user", "Go.")]
    )
    words = ["One.", "Two.", "First question.", "First answer.", "Second question.", "Third.", "Three.", "Well.", "Go."]
    assert [text.count(word) for word in [*words, "Yes."]] == [1] * 10
    assert text.index("Third.") < text.index("Well.") < text.index("Yes.") < text.index("Go.")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("begun", ["Hello, my name is", "Hello, my name is ", "{", "", "\n- a\n- "])
def test_an_answer_is_continued_where_it_ends(family: str, begun: str) -> None:
    """To the last space of it, also where the template trims what it writes or closes the turn."""
    template = template_of(family)
    talk = [*TALK, says("assistant", begun)]
    text = template.render(talk, options=CONTINUED)
    assert text.endswith(begun.lstrip() or begun.strip())
    whole = template.render([*TALK, says("assistant", f"{begun}X")], options=RenderOptions(answer=False))
    assert whole.startswith(f"{text}X")


@pytest.mark.parametrize(
    "last",
    [
        says("system", "x"),
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "i", "function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "x", "tool_call_id": "i"},
    ],
)
def test_only_text_of_assistant_and_user_can_be_continued(last: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="needs a last message of the role assistant") as refused:
        template_of("qwen2.5").render([*TALK, last], options=CONTINUED)
    assert refused.value.param == "continue_final_message"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_users_message_can_be_continued_too(family: str) -> None:
    """As other servers allow."""
    text = template_of(family).render([says("system", "Be brief."), *TALK], options=CONTINUED)
    assert text.endswith("Second question.")
    assert "Be brief." in text


def test_variables_of_a_request_go_over_those_of_the_server() -> None:
    """Qwen 3's thinking is switched off by one."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = source_of("qwen3")
    closed = "<think>\n\n</think>\n\n"
    on, off = RenderOptions(values={"enable_thinking": True}), RenderOptions(values={"enable_thinking": False})
    usual, server = ChatTemplate(tokenizer), ChatTemplate(tokenizer, {"enable_thinking": False})
    assert [one.render(TALK, options=how).endswith(closed) for one in (usual, server) for how in (on, off)] == [
        *(False, True),
        *(False, True),
    ]
    assert not usual.render(TALK).endswith(closed)
    assert server.render(TALK).endswith(closed)


@pytest.mark.parametrize(
    "read",
    [
        "{{ f.name + f.description }}{% for p in f.parameters.properties %}{{ p }}{% endfor %}",
        "{{ f.name }}{{ f.parameters.properties.keys() | join }}{{ f.description | trim }}",
        "{{ f.name + f.parameters['type'] + (f['description'] or 'none') }}",
    ],
)
def test_tools_have_all_that_templates_read(read: str) -> None:
    """Clients leave out the description and the parameters of a function that has none."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for t in tools or [] %}{% set f = t.function %}" + read + "{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    text = ChatTemplate(tokenizer).render(TALK, [{"type": "function", "function": {"name": "look"}}])
    assert text.startswith("look")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "talk",
    [
        [says("assistant", "Welcome."), says("user", "Hi.")],
        [says("system", "Be brief."), says("assistant", "Welcome."), says("user", "Hi.")],
        [says("system", "Only this.")],
        [says("user", "Hi."), says("assistant", ""), says("user", "Again.")],
        [says("user", "Hi."), says("assistant", "Well,")],
    ],
)
def test_conversations_begin_and_end_with_any_role(family: str, talk: list[dict[str, Any]]) -> None:
    """Chats with a greeting, and prompts that are a system message alone, were refused or lost."""
    text = template_of(family).render(talk)
    assert [text.count(message["content"]) for message in talk if message["content"]] == [1] * sum(
        bool(message["content"]) for message in talk
    )


@pytest.mark.parametrize("source", ["{% for m in messages %}{{ m.role", "Hello", "{{ raise_exception('no') }}"])
def test_a_template_that_cannot_be_used_is_refused(source: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = source
    with pytest.raises(ModelError, match=r"chat template cannot be used: .*; give one that works with --chat-template"):
        ChatTemplate(tokenizer).check()


def test_a_model_without_a_template_is_no_fault() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    template = ChatTemplate(tokenizer)
    template.check()
    assert not template.traits.native_tools
    with pytest.raises(RequestError, match="no chat template"):
        template.render(TALK)


@pytest.mark.parametrize("written", ["{}", "\ufeff{}", "{}\r\n"])
def test_a_file_replaces_the_models_template(written: str, tmp_path: Path) -> None:
    file, tokenizer = tmp_path / "mine.jinja", tiny_tokenizer()
    source = "{% for m in messages %}\n{{ m.content }};{% endfor %}"
    file.write_bytes(written.format(source.replace("\n", "\r\n") if "\r" in written else source).encode())
    use_template(tokenizer, str(file))
    assert ChatTemplate(tokenizer).render(TALK) == "First question.;First answer.;Second question.;"
    use_template(tokenizer, "none")
    assert ChatTemplate(tokenizer).source is None
    own = tiny_tokenizer()
    use_template(own, None)
    assert own.chat_template == tiny_tokenizer().chat_template


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), (b"\xff\xfe{", "not UTF-8"), (b"", "it is empty"), (b"{" * 2**21, "")],
)
def test_a_file_that_is_no_template_is_refused(content: bytes | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"--chat-template .*{said}"):
        use_template(tiny_tokenizer(), str(file))


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ self.__init__.__globals__ }}"]
)
def test_templates_stay_in_their_sandbox(source: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = source + "{{ messages[0].content }}"
    assert ChatTemplate(tokenizer).traits.fault is not None
