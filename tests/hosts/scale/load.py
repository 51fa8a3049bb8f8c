"""Completions through a router, as OpenAI's own package asks for them, while something happens behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event, Lock

from openai import APIStatusError, OpenAI, OpenAIError

AT_ONCE, PROMPTS = 8, 10
REPEATS = 2  # of a request that fails: what OpenAI's package does by itself


@dataclass
class Outcome:
    """`lost`: why each that had no answer had none. `repeated`: requests that were sent again, however often."""

    answered: int = 0
    repeated: int = 0
    lost: list[str] = field(default_factory=list)
    texts: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @property
    def alike(self) -> bool:
        """Whether equal prompts had equal texts."""
        return all(len(texts) == 1 for texts in self.texts.values())


def ask(url: str, model: str, count: int, then: Callable[[], object], *, repeats: int = REPEATS) -> Outcome:
    """So many greedy completions of 48 tokens, eight at a time; after a quarter of them `then` is called."""
    outcome, lock, due = Outcome(), Lock(), Event()
    client = OpenAI(base_url=url + "/v1", api_key="none", max_retries=repeats, timeout=100)

    def one(number: int) -> None:
        prompt = f"Once upon a time there were {number % PROMPTS} foxes"
        try:
            answer = client.completions.with_raw_response.create(
                model=model, prompt=prompt, max_tokens=48, temperature=0
            )
        except OpenAIError as error:
            with lock:
                outcome.lost.append(str(error.status_code if isinstance(error, APIStatusError) else error))
        else:
            text = answer.parse().choices[0].text
            with lock:
                outcome.answered += 1
                outcome.repeated += answer.retries_taken > 0
                outcome.texts[prompt].add(text)
        if outcome.answered + len(outcome.lost) >= count // 4:
            due.set()

    with client, ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [pool.submit(one, number) for number in range(count)]
        due.wait()
        then()
        for done in asked:
            done.result()
    return outcome
