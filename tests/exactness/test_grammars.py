"""Constrained decoding: what is written fits its grammar, and speculation changes none of it."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.errors import OverloadedError, RequestError
from adaptspec.request import Grammar, Reasoning, Request, SamplingParams
from adaptspec.results import FinishReason
from adaptspec.server.api.chat import ChatRequest
from adaptspec.server.api.constraints.grammar_text import ATTRIBUTES, lark_of
from adaptspec.server.api.message_reader import gathered
from adaptspec.server.api.tool_forms import FORMS
from adaptspec.server.api.tools import Tool
from tests.exactness import dictated
from tests.exactness.harness import Case, Run, Script, hold, serve
from tests.exactness.worlds import World, Worlds

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["fox", "fog"]}, "n": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["kind", "n", "ok"],
    "additionalProperties": False,
}
TOOLS = [
    Tool.model_validate(
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": {"n": {"type": "integer"}, "tags": {"type": "array", "uniqueItems": True}},
                    "required": ["n"],
                },
            },
        }
    )
    for name in ("a", "ab")
]
BODY = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
OPEN_SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "object", "properties": {}}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": OPEN_SCHEMA}}
TYPED = {**BODY, "response_format": FORMAT}
CALLS = [
    grammar
    for form in FORMS.values()
    for asked in (BODY, TYPED, {**BODY, "tool_choice": "required"})
    if (chat := ChatRequest.model_validate(asked)) and (grammar := chat.grammar(form=chat.call_form(form))) is not None
]
GRAMMARS = [
    Grammar(json.dumps(SCHEMA)),
    Grammar('{"type": "array", "items": {"enum": ["aa", "ab"]}, "minItems": 2, "maxItems": 9}'),
    Grammar('start: /(ab|ba){2,12}/ ("!" | "?")', "lark"),
    Grammar("(ab|ba)+c{1,3}", "regex"),
    Grammar('start: CHOICE\nCHOICE: "fox" | "fo" | "fog, the"', "lark"),
    Grammar(json.dumps(SCHEMA), reasoning=Reasoning("(", ")")),
    Grammar(json.dumps(SCHEMA), reasoning=Reasoning("<think>", "e", opened=True)),
    Grammar("(ab|ba){2,4}", "regex", reasoning=Reasoning("<", " ", opened=True)),
]
_ATTRIBUTES = ("lazy", "capture", 'capture = "x"', 'suffix = "ba"', "suffix = /b+c/", 'lazy, capture = "x"')
GRAMMARS += [
    Grammar(lark_of(f'start: (x y)+ "!"\nx[{attribute}]: /[a-d]*b[ac]/\ny: /[xyab]{{2,5}}/', "grammar"), "lark")
    for attribute in _ATTRIBUTES
]
ALL = [*GRAMMARS, *CALLS, None]


@pytest.fixture(scope="module")
def world(worlds: Worlds) -> World:
    return worlds.of("lean", "draft-model")


def _core(world: World) -> EngineCore:
    return world.engine([dictated.policy(Case().policy)], EngineLimits(max_rows=4, prefill_tokens=16))


def _run(world: World, asked: list[Request], method: str = "coupled", seed: int = 0) -> Run:
    """Drafts of a model, or of lookups."""
    case = Case("lean", ("draft-model", "ngram")[seed % 2], method=method, chunk=16, seed=seed)
    return serve(case, world, Script(), asked)


def _requests(seeds: list[int], params: dict[str, Any]) -> list[Request]:
    """Every grammar and none next to each other, so that rows are reused by other grammars."""
    return [
        Request(
            f"r{i}",
            tuple(range(40 + seed, 60 + seed)),
            SamplingParams(max_tokens=24, seed=seed, grammar=ALL[(seed + i) % len(ALL)], **params),
        )
        for i, seed in enumerate(seeds)
    ]


def test_every_attribute_that_is_taken_is_checked() -> None:
    """One that the compiler's parser does not take back made drafts change the text."""
    assert {attribute.split()[0].strip(",") for attribute in _ATTRIBUTES} == set(ATTRIBUTES)


@settings(max_examples=16, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 40), min_size=1, max_size=7),
    params=st.sampled_from([{"temperature": 0.0}, {"temperature": 1.0}, {"top_p": 0.7, "frequency_penalty": 1.0}]),
)
def test_constrained_output_is_plain_decoding_under_any_depths(
    world: World, seeds: list[int], params: dict[str, Any]
) -> None:
    """Every grammar, drafters and batches mixed. Broke elsewhere: a stale mask after a slot is reused."""
    result = _run(world, _requests(seeds, params), seed=sum(seeds))
    hold(result, world, Script())
    assert all(one.error is None for one in result.done.values())


@pytest.mark.parametrize("method", ["coupled", "rejection", "block"])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_written_fits_its_grammar(world: World, method: str, seed: int) -> None:
    """Under every lossless method; and it ends where the grammar does."""
    params = SamplingParams(max_tokens=200, seed=seed, temperature=1.2, grammar=GRAMMARS[0])
    done = _run(world, [Request("r", (50, 51, 52), params)], method, seed).done["r"]
    if done.finish is FinishReason.STOP:
        written = json.loads(done.text)
        assert written.keys() == SCHEMA["properties"].keys()
        assert written["kind"] in ("fox", "fog")
    bounded = SamplingParams(max_tokens=60, seed=seed, grammar=GRAMMARS[2])
    done = _run(world, [Request("r", (50, 51, 52), bounded)], method, seed).done["r"]
    assert done.finish is FinishReason.STOP
    assert set(done.text[:-1]) == {"a", "b"}


@pytest.mark.parametrize("method", ["coupled", "rejection", "block"])
@pytest.mark.parametrize("opened", [True, False])
def test_the_grammar_begins_behind_the_reasoning(world: World, method: str, opened: bool) -> None:
    """Free text up to the first closing mark, then the answer alone; a prompt that opens nothing may think or not."""
    for seed in range(4):
        grammar = Grammar("(xy|yx){2,4}", "regex", reasoning=Reasoning("e", "t", opened))
        params = SamplingParams(max_tokens=200, seed=seed, temperature=1.0, grammar=grammar)
        done = _run(world, [Request("r", (50, 51, 52), params)], method, seed).done["r"]
        thoughts, closed, answer = done.text.partition("t")
        if not closed:
            assert opened or done.text.strip().startswith("e") or re.fullmatch("(xy|yx){2,4}", done.text)
        elif done.finish is FinishReason.STOP:
            assert re.fullmatch(r"\s{0,16}(xy|yx){2,4}", answer)
            assert opened or thoughts.strip().startswith("e")


@pytest.mark.parametrize("method", ["coupled", "rejection", "block"])
@pytest.mark.parametrize("form", FORMS)
def test_calls_and_typed_answers_are_whole_in_every_form(world: World, form: str, method: str) -> None:
    """What was drafted and verified is read as it was written: calls of known tools, or an answer by the schema."""
    ended = 0
    for seed in range(6):
        asked = ChatRequest.model_validate(TYPED)
        written = asked.call_form(FORMS[form])
        params = SamplingParams(max_tokens=120, seed=seed, temperature=1.2, grammar=asked.grammar(form=written))
        done = _run(world, [Request("r", (50, 51, 52 + seed), params)], method, seed).done["r"]
        if done.finish is not FinishReason.STOP:
            continue
        ended += 1
        reader = asked.call_reader(written)
        content, calls = gathered([*reader.feed(done.text), *reader.end()])
        assert (content is None) is bool(calls)
        for call in calls:
            assert call.function.name in ("a", "ab")
            assert json.loads(call.function.arguments).keys() <= {"n", "tags"}
        if content is not None:
            assert json.loads(content).keys() <= {"a", "b"}
    assert ended > 0


def test_lookup_drafts_are_cut_before_they_are_verified(world: World) -> None:
    """What a grammar refuses is not counted as drafted, and what it takes is drafted and kept."""
    prompt = (*[69, 70] * 6,)  # "ab" again and again, which the lookup goes on with
    grammar = Grammar('start: "abababababababab!"', "lark")
    params = SamplingParams(max_tokens=40, temperature=0.0, grammar=grammar)
    case, script = Case("lean", "ngram", depths="7"), Script(requests=1)
    result = serve(case, world, script, [Request("r", prompt, params)])
    hold(result, world, script)
    done = result.done["r"]
    assert done.text == "abababababababab!"
    assert done.stats.accepted == done.stats.drafted > 0, "only one text fits, so what is left of a draft is right"


def test_grammars_of_requests_in_flight_have_a_bound(world: World) -> None:
    """Running and waiting requests hold what was compiled for them; room comes back when they end."""
    core = _core(world)

    def schema(number: int) -> Grammar:
        return Grammar(json.dumps({"const": f"{number:03}"}))

    most = 6 * core.inputs.compile_grammar(schema(0)).compiled.num_bytes
    for number in range(6):  # of which four run and two wait
        params = SamplingParams(max_tokens=40, grammar=core.inputs.compile_grammar(schema(number), most))
        core.add(Request(f"r{number}", (5,), params))
        del params
    core.step()
    with pytest.raises(OverloadedError, match="send the request again later"):
        core.inputs.compile_grammar(schema(6), most)
    while not core.idle:
        core.step()
    core.inputs.compile_grammar(schema(6), most // 6)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ('{"type": "nonsense"}', "Invalid type"),
        ('{"not": {}}', "Unimplemented"),
        ('{"items": ' * 150 + "{}" + "}" * 150, "recursion limit"),
        ('{"$ref": "http://example.com/schema.json"}', "not present"),
        ('{"enum": ["' + "x" * 100_000 + '"]}', "at most 100000"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(world: World, schema: str, reason: str) -> None:
    """Before anything runs, saying why; nothing is fetched."""
    request = Request("r", (5,), SamplingParams(grammar=Grammar(schema)))
    with pytest.raises(RequestError, match=reason) as refused:
        _core(world).check(request)
    assert refused.value.param == "response_format"


def test_without_llguidance_the_error_says_what_to_install(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed without what it depends on, only requests that ask for a grammar are refused."""
    core = _core(world)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    core.check(Request("p", (5,), SamplingParams()))
    with pytest.raises(RequestError, match="left out when adaptspec was installed: pip install llguidance"):
        core.check(Request("r", (5,), SamplingParams(grammar=GRAMMARS[0])))


@pytest.mark.parametrize("more", [{"ignore_eos": True}, {"min_tokens": 3}])
def test_a_grammar_alone_says_when_to_end(more: dict[str, Any]) -> None:
    """Masking the end where only the end is allowed would leave nothing."""
    with pytest.raises(RequestError, match="says when to end"):
        SamplingParams(grammar=GRAMMARS[0], **more)
