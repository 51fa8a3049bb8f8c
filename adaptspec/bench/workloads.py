"""The prompts a benchmark runs, by task."""

from __future__ import annotations

from pathlib import Path

from adaptspec.models.chat.chat_template import ChatTemplate
from adaptspec.training.corpus import BUILT_IN, Prompt, read_prompts, spread

Workloads = dict[str, list[Prompt]]


def read_workloads(folder: Path | None, per_task: int) -> Workloads:
    """`per_task` prompts of each task, spread evenly over its file so that all sources are met.

    Without a folder: the one built-in prompt of each task.
    """
    prompts = read_prompts(folder or BUILT_IN)
    tasks: Workloads = {}
    for prompt in prompts:
        tasks.setdefault(prompt.task, []).append(prompt)
    return {task: spread(all_of, per_task) for task, all_of in sorted(tasks.items())}


def encode(template: ChatTemplate, prompt: Prompt, longest: int) -> tuple[int, ...]:
    """The prompt as one user turn; its last `longest` tokens if it is longer."""
    return tuple(template.encode_turn(prompt.text)[-longest:])
