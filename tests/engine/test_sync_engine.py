"""The Python API: batches, token prompts, per-prompt sampling, streams that can be left."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.config import EngineConfig
from adaptspec.engine import Engine
from adaptspec.errors import RequestError
from adaptspec.request import SamplingParams

GREEDY = SamplingParams(max_tokens=10, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(target_path: Path, draft_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return Engine.from_config(EngineConfig(model=str(target_path), draft=str(draft_path), max_num_seqs=3))


def test_answers_come_in_the_order_of_the_prompts(engine: Engine) -> None:
    """More prompts than rows, some text and some token ids: each answer is what the prompt gets alone."""
    prompts = ["one", [10, 20, 30], "three", "four", [40]]
    together = engine.generate(prompts, GREEDY)
    assert [c.tokens for c in together] == [engine.generate([p], GREEDY)[0].tokens for p in prompts]


def test_each_prompt_may_have_its_own_sampling(engine: Engine) -> None:
    """A list of parameters goes with the list of prompts; lists of other lengths are an error."""
    params = [SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True) for n in (3, 7)]
    assert [len(c.tokens) for c in engine.generate(["a", "b"], params)] == [3, 7]
    with pytest.raises(RequestError, match="2 prompts"):
        engine.generate(["a", "b"], params[:1])


def test_a_stream_equals_the_answer_and_may_be_left(engine: Engine) -> None:
    """Pieces add up to the text; leaving early frees the row for the next request."""
    whole = engine.generate(["abc"], GREEDY)[0]
    assert "".join(delta.text for delta in engine.stream("abc", GREEDY)) == whole.text
    for _ in engine.stream("abc", GREEDY):
        break
    assert engine.core.idle


def test_one_bad_prompt_refuses_the_call_and_leaves_nothing_behind(engine: Engine) -> None:
    """Checked first: nothing of a refused batch runs."""
    with pytest.raises(RequestError, match="empty"):
        engine.generate(["fine", []], GREEDY)
    assert engine.core.idle


def test_chat_without_a_template_is_refused_with_what_to_do(engine: Engine) -> None:
    """A base model has no chat template: the library's own error ended `generate --chat` with a traceback."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.tokenizer, "chat_template", None)
        with pytest.raises(RequestError, match="give the prompt as plain text"):
            engine.chat([{"role": "user", "content": "Hello"}])


def test_streams_that_are_open_together_keep_their_own_pieces(engine: Engine) -> None:
    """Interleaved streams and calls: nobody gets another's tokens, leaving one leaves the others running."""
    alone = [engine.generate([p], GREEDY)[0].text for p in ("first", "second", "third")]
    one, two = engine.stream("first", GREEDY), engine.stream("second", GREEDY)
    begin = [next(one).text, next(two).text]
    assert engine.generate(["third"], GREEDY)[0].text == alone[2]
    two.close()
    assert begin[0] + "".join(delta.text for delta in one) == alone[0]
    assert engine.core.idle
