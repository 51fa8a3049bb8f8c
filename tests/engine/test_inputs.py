"""Prompts as decisions see them: tasks read off them, hints that win, and what an output goes on from."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import PreTrainedTokenizerFast

from adaptspec.control.controller import Controller
from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.control.tasks import MOST_OWN, TASKS, TaskDetector
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.engine.task_methods import TaskMethods
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.verification import make_method
from tests.conftest import TINY_VOCAB
from tests.engine.conftest import Dictated, run
from tests.fakes import TableRunner

DETECTOR = TaskDetector.load()
TRANSLATE = "Translate to German: The train is late."


def _request(tokenizer: PreTrainedTokenizerFast, text: str, **wishes: str) -> Request:
    sampling = SamplingParams(max_tokens=3, temperature=0.0)
    return Request("r", tuple(tokenizer.encode(text)), sampling, SpeculationParams(**wishes))  # type: ignore[arg-type]


def test_a_task_is_read_off_the_prompt(tokenizer: PreTrainedTokenizerFast) -> None:
    """Also when a chat template wraps it; and it is marked as detected."""
    text = InputProcessor(TableRunner().info, tokenizer, DETECTOR)
    for prompt in (TRANSLATE, f"<|user|>{TRANSLATE}<|end|><|assistant|>"):
        wishes = text.with_task(_request(tokenizer, prompt)).speculation
        assert (wishes.task, wishes.task_detected) == ("translate", True)


def test_a_hint_wins_and_nothing_is_read_twice(tokenizer: PreTrainedTokenizerFast) -> None:
    """What the client says is taken as it is; a request that was unknown stays so."""
    text = InputProcessor(TableRunner().info, tokenizer, DETECTOR)
    hinted = _request(tokenizer, TRANSLATE, task="story")
    assert text.with_task(hinted) is hinted
    tagged = text.with_task(_request(tokenizer, "zzzz"))
    assert text.with_task(tagged) is tagged


def test_without_a_detector_requests_stay_as_they_are(tokenizer: PreTrainedTokenizerFast) -> None:
    """--no-task-detection."""
    request = _request(tokenizer, TRANSLATE)
    assert InputProcessor(TableRunner().info, tokenizer, None).with_task(request) is request


def test_of_long_prompts_only_the_ends_are_decoded(tokenizer: PreTrainedTokenizerFast) -> None:
    """The cost does not grow with the prompt."""
    text = InputProcessor(TableRunner().info, tokenizer, DETECTOR)
    prompt = tokenizer.encode("begin " + "middle " * 5000 + "end")
    excerpt = text.excerpt(prompt)
    assert excerpt.startswith("begin ")
    assert excerpt.endswith(" end")
    assert len(excerpt) < 1000


def test_the_engine_tells_the_policy_and_the_client(tokenizer: PreTrainedTokenizerFast) -> None:
    """Per-task overrides work without hints, and the completion says which task it was."""
    for detector, wishes, task, detected in (
        (DETECTOR, {}, "translate", True),
        (DETECTOR, {"task": "story"}, "story", False),
        (None, {}, None, False),
    ):
        policy = Watching()
        stats = run(_core(tokenizer, policy, detector), [_request(tokenizer, TRANSLATE, **wishes)])["r"].stats
        assert (stats.task, stats.task_detected) == (task, detected)
        assert policy.tasks == [0 if task is None else 1 + TASKS.index(task)]


def test_tasks_beyond_those_there_is_room_for_count_as_other(tokenizer: PreTrainedTokenizerFast) -> None:
    """Requests name what they like; the answer says under which name one counted."""
    policy = Watching()
    core = _core(tokenizer, policy, None)
    names = ["other", *(f"tenant {i}" for i in range(MOST_OWN + 2))]
    told = [run(core, [_request(tokenizer, "x", task=name)])["r"].stats.task for name in names]
    assert told == [*names[:-2], "other", "other"]
    assert policy.tasks == [0, *range(1 + len(TASKS), 1 + len(TASKS) + MOST_OWN), 0, 0]


class Flat(TableRunner):
    """Knows every byte, and writes the same one for ever."""

    def __init__(self) -> None:
        super().__init__(vocab=2, context=256)
        self.info = replace(self.info, vocab_size=TINY_VOCAB)

    def logits(self, tokens: list[int]) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor(70), TINY_VOCAB).float()


class Watching(Dictated):
    """Never drafts; remembers the tasks it was told."""

    def __init__(self) -> None:
        super().__init__(("ngram",), lambda _, size: [0] * size)
        self.tasks: list[int] = []

    def decide(self, signals: BatchSignals) -> Decision:
        self.tasks += signals.tasks[signals.position == 1].tolist()  # the first token comes with the prompt
        return super().decide(signals)


def _core(tokenizer: PreTrainedTokenizerFast, policy: Watching, detector: TaskDetector | None) -> EngineCore:
    controller = Controller({"p": policy}, "p", ["ngram"], 2)
    methods = {"p": TaskMethods(make_method("coupled"))}
    inputs = InputProcessor(Flat().info, tokenizer, detector)
    executor = ModelExecutor(Flat(), [NgramDrafter()])
    return EngineCore(executor, controller, inputs, methods, limits=EngineLimits(max_rows=2))
