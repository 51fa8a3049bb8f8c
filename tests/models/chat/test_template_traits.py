"""Conversations are changed to what a template can write: nothing is lost, and what fits is left as it is."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.models.chat.template_traits import CallForm, Traits, fitted

Plain = dict[str, Any]


def says(role: str, content: str) -> Plain:
    return {"role": role, "content": content}


def turns(*pairs: tuple[str, str]) -> list[Plain]:
    return [says(role, content) for role, content in pairs]


NOT_ALONE = Traits(system_alone=False)
NO_SYSTEM = Traits(system=False, late_system=False)
FIRST_ONLY = Traits(late_system=False)
ALTERNATING = Traits(repeated_roles=False)
NOTHING = Traits(system=False, late_system=False, repeated_roles=False)


@pytest.mark.parametrize(
    ("traits", "given", "written"),
    [
        (Traits(), turns(("system", "s"), ("user", "u"), ("system", "t")), None),
        (NO_SYSTEM, turns(("system", "s"), ("user", "u")), turns(("user", "s\n\nu"))),
        (NO_SYSTEM, turns(("system", "s"), ("system", "t"), ("user", "u")), turns(("user", "s\n\nt\n\nu"))),
        (NO_SYSTEM, turns(("system", "s")), turns(("user", "s"))),
        (NOT_ALONE, turns(("system", "s"), ("system", "t")), turns(("user", "s\n\nt"))),
        (NOT_ALONE, turns(("system", "s"), ("user", "u")), None),
        (ALTERNATING, turns(("assistant", "a"), ("user", "u")), turns(("user", ""), ("assistant", "a"), ("user", "u"))),
        (NOTHING, turns(("system", "s"), ("assistant", "a")), turns(("user", "s"), ("assistant", "a"))),
        (NO_SYSTEM, turns(("user", "u"), ("assistant", "a"), ("system", "s")), None),
        (
            FIRST_ONLY,
            turns(("system", "s"), ("system", "t"), ("user", "u")),
            turns(("system", "s\n\nt"), ("user", "u")),
        ),
        (
            FIRST_ONLY,
            turns(("system", "s"), ("user", "u"), ("assistant", "a"), ("system", "t"), ("user", "v")),
            turns(("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "t\n\nv")),
        ),
        (ALTERNATING, turns(("user", "u"), ("user", "v")), turns(("user", "u\n\nv"))),
        (
            ALTERNATING,
            turns(("user", "u"), ("assistant", "a"), ("assistant", ""), ("user", "v")),
            turns(("user", "u"), ("assistant", "a"), ("user", "v")),
        ),
        (NOTHING, turns(("user", "u"), ("system", "s"), ("user", "v")), turns(("user", "u\n\ns\n\nv"))),
    ],
)
def test_what_cannot_be_written_where_it_stands(
    traits: Traits, given: list[Plain], written: list[Plain] | None
) -> None:
    if written is None and not traits.system:
        written = [*given[:-1], says("user", given[-1]["content"])]
    assert fitted(given, traits) == (given if written is None else written)


ROLES = st.sampled_from(["system", "user", "assistant"])
TRAITS = st.builds(
    lambda parts, system, late, alone, repeated: Traits(
        None, parts, system, system and late, system and alone, repeated
    ),
    *[st.booleans()] * 5,
)


@given(roles=st.lists(ROLES, min_size=1, max_size=9), traits=TRAITS)
def test_no_text_is_lost_and_all_rules_hold(roles: list[str], traits: Traits) -> None:
    given = [says(role, f"<{place}>") for place, role in enumerate(roles)]
    before = [dict(message) for message in given]
    written = fitted(given, traits)
    assert given == before
    texts = [message["content"][0]["text"] if traits.parts else message["content"] for message in written]
    together = "\n".join(texts)
    assert all(together.count(message["content"]) == 1 for message in given)
    spoken = [text for role in ("user", "assistant") for text in _of(role, given)]
    assert [text for text in spoken if text in together] == spoken
    order = [together.index(message["content"]) for message in given if message["role"] != "system"]
    assert order == sorted(order)
    systems = [place for place, message in enumerate(written) if message["role"] == "system"]
    assert traits.system or not systems
    assert traits.late_system or systems in ([], [0])
    assert traits.system_alone or systems != list(range(len(written)))
    if not traits.repeated_roles:
        pairs = itertools.pairwise(message["role"] for message in written)
        assert all(one != other or one == "system" for one, other in pairs)
        assert [message["role"] for message in written if message["role"] != "system"][:1] != ["assistant"]


def _of(role: str, messages: list[Plain]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == role]


def call(identity: str, name: str = "f", arguments: object = None) -> Plain:
    return {"type": "function", "id": identity, "function": {"name": name, "arguments": arguments or {}}}


def result(identity: str, content: str) -> Plain:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def with_form(form: CallForm, *messages: Mapping[str, Any]) -> list[Plain]:
    return fitted(messages, Traits(calls=form))


@pytest.mark.parametrize("identity", ["call_abc", "x", "fc_" + "0" * 40, "toolu_01", "123456789\n", "\u00e91234567"])
def test_ids_of_any_form_become_nine_letters_and_digits(identity: str) -> None:
    """OpenAI's, Anthropic's and our former ids were refused by Mistral's templates on every second turn."""
    called, answered = with_form(
        CallForm(long_ids=False),
        {"role": "assistant", "content": "", "tool_calls": [call(identity)]},
        result(identity, "r"),
    )
    (made,) = (one["id"] for one in called["tool_calls"])
    assert made == answered["tool_call_id"] != identity
    assert len(made) == 9
    assert made.isascii()
    assert made.isalnum()


def test_arguments_content_and_names_are_given_as_the_template_reads_them() -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [call("i", "look", {"city": "K\u00f6ln"})]}
    as_text, answered = with_form(CallForm(arguments_as_text=True, content=None), message, result("i", "rain"))
    assert as_text["tool_calls"][0]["function"]["arguments"] == '{"city": "K\u00f6ln"}'
    assert "content" not in as_text
    assert answered["name"] == "look"
    (plain,) = with_form(CallForm(), message)
    assert plain == message


def test_calls_of_one_message_follow_each_other_where_only_one_is_written() -> None:
    message = {"role": "assistant", "content": "both", "tool_calls": [call("i"), call("j")]}
    talk = [says("user", "u"), message, result("j", "2"), result("i", "1"), says("assistant", "a")]
    written = with_form(CallForm(several=False), *talk)
    assert [one.get("tool_call_id") or [c["id"] for c in one.get("tool_calls", ())] for one in written] == [
        *([], ["j"], "j", ["i"], "i"),
        [],
    ]
    open_end = with_form(CallForm(several=False), message)
    assert [[c["id"] for c in one["tool_calls"]] for one in open_end] == [["i"], ["j"]]
