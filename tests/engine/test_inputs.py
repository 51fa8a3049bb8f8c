"""Prompts as decisions see them: tasks detected in them, and hints of clients that win."""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from adaptspec.control.task_detector import TaskDetector
from adaptspec.control.tasks import MAX_ADDED
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.inputs import InputProcessor
from adaptspec.request import Request, SamplingParams, SpeculationParams
from tests.exactness import dictated
from tests.exactness.harness import Case, answers
from tests.exactness.worlds import table
from tests.fakes import TableRunner

DETECTOR = TaskDetector.load()
TRANSLATE = "Translate to German: The train is late."


def test_a_task_is_detected_once_and_a_hint_wins(tokenizer: PreTrainedTokenizerFast) -> None:
    """Also in a chat template; a request of no known task stays as it is, and so do all without a detector."""

    def asked(text: str, task: str | None = None) -> Request:
        return Request("r", tuple(tokenizer.encode(text)), SamplingParams(3), SpeculationParams(task=task))

    inputs = InputProcessor(TableRunner().info, tokenizer, DETECTOR)
    for prompt in (TRANSLATE, f"<|user|>{TRANSLATE}<|end|><|assistant|>"):
        wishes = inputs.prepared(asked(prompt)).speculation
        assert (wishes.task, wishes.task_detected) == ("translate", True)
    tagged = inputs.prepared(asked("zzzz"))
    for request in (asked(TRANSLATE, "story"), tagged):
        assert inputs.prepared(request) is request
    request = asked(TRANSLATE)
    assert InputProcessor(TableRunner().info, tokenizer, None).prepared(request) is request


def test_of_long_prompts_only_the_ends_are_decoded(tokenizer: PreTrainedTokenizerFast) -> None:
    """The cost does not grow with the prompt."""
    inputs = InputProcessor(TableRunner().info, tokenizer, DETECTOR)
    excerpt = inputs.excerpt(tokenizer.encode("begin " + "middle " * 5000 + "end"))
    assert excerpt.startswith("begin ")
    assert excerpt.endswith(" end")
    assert len(excerpt) < 1000


def test_tasks_beyond_those_there_is_room_for_count_as_other() -> None:
    """Clients name tasks freely; the answer reports the name under which a request counted."""
    core = table("draft-model").engine([dictated.policy(Case(depths="0").policy)], EngineLimits(max_rows=2))
    names = ["other", *(f"tenant {i}" for i in range(MAX_ADDED + 2))]
    counted = []
    for name in names:
        done = answers(core, [Request("r", (5, 6), SamplingParams(3), SpeculationParams(task=name))])["r"]
        counted.append(done.stats.task)
    assert counted == [*names[:-2], "other", "other"]
