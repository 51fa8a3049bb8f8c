"""Task detection: the shipped detector knows everyday wordings, takes any text, and refuses files it cannot use."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.task_detector import HEAD, MIN_CONFIDENCE, SHIPPED, TAIL, TaskDetector, ngrams
from adaptspec.control.tasks import TASKS
from adaptspec.errors import ConfigError

DETECTOR = TaskDetector.load()

SENTENCES = {
    "chat": (
        "hey! how was your weekend?",
        "User: Hello there\nAssistant: Hello! How can I help?\nUser: Just bored tonight.\nAssistant:",
        "I'm feeling sad today, my dog is ill.",
        "good evening, how are you doing?",
    ),
    "code": (
        "Can you write me a small Python script that renames all files in a folder?",
        "function add(a, b) {\n  // TODO",
        "import numpy as np\n\nclass Network:\n    def __init__(self, sizes):\n",
        "Why do I get an IndexError in this loop?\nfor i in range(10): print(a[i+1])",
    ),
    "instruction": (
        "Explain why the sky is blue.",
        "Give me three tips for a better night's sleep.",
        "Write a polite email to my landlord about the broken heating.",
        "What should I cook tonight with rice and carrots?",
    ),
    "json": (
        "Return the result as JSON with the keys name and age.",
        "Give me a JSON array of five European capitals with their populations.",
        '{"user": {"id": 5, "name": "Ana"}}\n\nAdd an email field.',
        "Convert this CSV into JSON:\nname,age\nBo,7\nAl,8",
    ),
    "math": (
        "What is 17 times 23?",
        "Lena has 12 marbles, loses 5 and finds 3. How many marbles does she have?",
        "Solve 2x + 3 = 11.",
        "A car uses 6 litres per 100 km. How much does it need for 250 km?",
    ),
    "rag": (
        "Context: The bridge was opened in 1932 by the mayor. It is long.\n\nQuestion: When was it opened?\nAnswer:",
        "Use the documents to answer.\n[1] Tea came to the town in 1710.\n[2] Coffee came later.\nWhen did tea come?",
        "Answer from the passage only.\n\nThe company was founded in Oslo. It made boats.\n\nWhere was it founded?",
    ),
    "story": (
        "Once upon a time there was a little hedgehog who was afraid of the dark.",
        "Tell me a bedtime story about a brave snail.",
        "Continue the story: The old lighthouse keeper heard a knock at the door.",
    ),
    "summarize": (
        "Summarize the following article in two sentences.\n\nThe council voted on Monday to build a tram line.",
        "TL;DR of this text please:\nOur method finds faults in power lines from sound alone. It works in rain.",
        "Give me a short summary of this meeting.\nAnna: We are late. Bob: The parts come on Friday.",
    ),
    "template": (
        "Make a CSV table with 5 fruits and their prices.",
        "Make an HTML list of: pear, plum, cherry",
        "Create a markdown table with the columns city and country.",
    ),
    "translate": (
        "Translate to German: The train is late.",
        "How do you say good night in Italian?",
        "English: I like this book.\nFrench:",
    ),
}


_MINUTES = (
    "The committee met on Tuesday to discuss the new harbour. Three members wanted a longer pier, while the mayor "
    "pointed to the cost of steel. They agreed to meet again in March."
)
_BRIDGE = "The bridge over the Lenne was opened in 1911. It is 84 metres long and was closed to cars in 1998."
# Prompts that state their task outright.
STATED = (
    ("summarize", f"Summarize: {_MINUTES}"),
    ("summarize", f"Summarise this: {_MINUTES}"),
    ("summarize", f"Can you summarize this for me?\n\n{_MINUTES}"),
    ("summarize", f"{_MINUTES}\n\nTL;DR:"),
    ("rag", f"Text: {_BRIDGE} Question: When was it closed to cars?"),
    ("rag", f"Passage: {_BRIDGE}\n\nQ: Which river does it cross?\nA:"),
    ("rag", f"Question: How long is the bridge?\nContext: {_BRIDGE}\nAnswer:"),
    ("rag", f"### Context\n{_BRIDGE}\n\n### Question\nWhen was it opened?"),
    ("json", "Reply in JSON with fields city, country and population for Lisbon."),
    ("json", f"List the dates in this text. Respond only with valid JSON.\n{_BRIDGE}"),
    ("json", "What is the capital of Peru? Output JSON."),
    ("json", "Classify this review: 'I loved it'. Answer with a JSON object and nothing else."),
    ("json", 'Your answer must be valid JSON with the keys "title" and "tags". Describe a film about trains.'),
    ("json", f"Text: {_BRIDGE}\nQuestion: How long is the bridge? Answer as JSON with the key length."),
    ("json", "I need a JSON object with keys id, title and price for a garden chair."),
    ("code", "Write a Python function that parses a JSON file and returns its keys."),
    ("code", 'def load(path):\n    """Return the JSON document at path."""\n'),
    ("code", "Why does my JSON decoder raise KeyError?\n```python\nd = json.loads(s)\n```"),
    ("summarize", f"Give me the key points of this:\n\n{_MINUTES}"),
    ("summarize", f"Condense the following text into two sentences: {_MINUTES}"),
    ("summarize", f"Write a summary of the text below in 3 bullet points.\n\n{_MINUTES}"),
    ("summarize", f"{_MINUTES}\n\nSummarize the above in one sentence."),
    ("rag", f"Based on the passage below, how long is the bridge?\n\n{_BRIDGE}"),
    ("rag", f"{_BRIDGE}\n\nGiven the text above, when was it closed to cars?"),
    ("translate", f"Please translate the following paragraph.\n\n{_BRIDGE}"),
    ("translate", "How do I say 'where is the station' in French?"),
    ("translate", "What does 'Ich habe Hunger' mean in English?"),
    ("code", "How do I center a box in CSS?"),
    ("code", "SQL query for the second highest salary"),
    ("code", "TypeError: 'NoneType' object is not subscriptable, what does it mean?"),
    ("code", "Write a Python program that translates a text to German."),
    ("template", "Write a YAML config for a web server"),
    ("math", "Question: A train travels 60 miles in 1.5 hours. What is its speed?\nAnswer:"),
    ("instruction", "Explain the difference between JSON and XML to a beginner."),
    ("instruction", "What are the main ideas of Stoicism?"),
    ("instruction", "What should I pay attention to when I write a summary of a novel?"),
)
SYSTEM_MESSAGES = (
    "",
    "system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\n",
    "system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.\n",
)


@pytest.mark.parametrize("system", SYSTEM_MESSAGES)
@pytest.mark.parametrize(("task", "text"), STATED)
def test_a_task_that_is_stated_is_recognised_whatever_the_template_adds(task: str, text: str, system: str) -> None:
    assert DETECTOR.detect(f"{system}user\n{text}\nassistant\n" if system else text).task == task


def test_everyday_wordings_of_every_task_are_recognised() -> None:
    """A floor: our own sentences, none of which it was trained on."""
    said = [(task, DETECTOR.detect(text).task) for task, texts in SENTENCES.items() for text in texts]
    assert set(SENTENCES) == set(TASKS)
    assert sum(task == found for task, found in said) >= 0.85 * len(said)
    for task, texts in SENTENCES.items():
        assert sum(DETECTOR.detect(text).task == task for text in texts) > len(texts) / 2, task


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(), max_size=1200))
def test_any_text_is_a_task_or_unknown(text: str) -> None:
    """Clients send anything; detection must not fail a request."""
    found = DETECTOR.detect(text)
    assert found.task is None or found.task in TASKS
    assert (found.task is None) == (found.confidence < MIN_CONFIDENCE)
    assert 0.0 < found.confidence <= 1.0
    assert DETECTOR.probabilities(text).sum() == pytest.approx(1.0)


def test_what_ships_is_small_and_finite() -> None:
    """It is loaded at every start, and travels in the wheel."""
    assert SHIPPED.stat().st_size < 400_000
    assert DETECTOR.tasks == TASKS
    assert DETECTOR.weights.any(axis=0).all()
    assert np.isfinite(DETECTOR.scale).all()
    assert np.isfinite(DETECTOR.bias).all()


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 cut short", SHIPPED.read_bytes()[:5000]])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    """The message says which file, and what to do."""
    path = tmp_path / "tasks.npz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        TaskDetector.load(path)
    with pytest.raises(ConfigError, match="train tasks"):
        TaskDetector.load(tmp_path / "nowhere.npz")


def test_pickled_arrays_are_not_run(tmp_path: Path) -> None:
    """An object array would execute what it holds."""
    path = tmp_path / "tasks.npz"
    np.savez(path, tasks=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ConfigError, match="tasks\\.npz"):
        TaskDetector.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": ("code", *TASKS[1:])},
        {"tasks": ("other", *TASKS[1:])},
        {"tasks": ("x" * 65, *TASKS[1:])},
        {"weights": DETECTOR.weights[:-1]},
        {"weights": DETECTOR.weights.astype(np.float32)},
        {"scale": DETECTOR.scale * np.float32(np.nan)},
        {"bias": DETECTOR.bias[:-1]},
    ],
)
def test_weights_that_fit_nothing_are_refused(change: dict[str, object]) -> None:
    """A detector of other tasks, or of another hash, would be wrong in silence."""
    with pytest.raises(ConfigError, match="train them again"):
        replace(DETECTOR, **change)  # type: ignore[arg-type]


def test_known_values_never_change() -> None:
    """The stored weights are worth nothing under any other hash."""
    found, longer = ngrams("Hi"), ngrams("Grüße, 4 Äpfel!")
    assert (len(found), found[:6].tolist(), int(found.sum())) == (18, [1148, 1388, 3350, 3397, 3823, 6354], 221403)
    assert (len(longer), longer[:4].tolist(), int(longer.sum())) == (210, [216, 221, 249, 269], 3372296)


def test_case_digits_and_what_chat_templates_leave_behind_do_not_matter() -> None:
    """`user` and `assistant` on lines of their own come from a template, not from the one who asks."""
    plain = ngrams("add 12 and 30\nquickly")
    assert np.array_equal(plain, ngrams("ADD 77 and 81\nQuickly"))
    assert np.array_equal(plain, ngrams("user\nadd 12 and 30\nquickly\nassistant\n"))
    assert not np.array_equal(plain, ngrams("the user\nadd 12 and 30\nquickly"))


def test_the_middle_of_a_long_text_is_not_looked_at() -> None:
    """The cost of a prompt is bounded, and so is what its length can change."""
    head, tail = "a few words " * 50, " and then the end" * 30
    assert len(head) > HEAD
    assert len(tail) > TAIL
    assert np.array_equal(ngrams(head + "x" * 50 + tail), ngrams(head + "yz" * 9000 + tail))
