"""Talk to AdaptSpec with the `openai` package: a chat answer, a streamed one, and settings of one request.

Needs `pip install openai` and a server (`adaptspec serve`). Run:
    python examples/openai_client.py [http://127.0.0.1:8000/v1]
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ADAPTSPEC_URL", "http://127.0.0.1:8000/v1")

client = OpenAI(base_url=BASE_URL, api_key="unused")
model = client.models.list().data[0].id

# One answer. What speculation did for it comes along, under "metrics".
answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Write a short story about a lighthouse."}],
    max_tokens=96,
    temperature=0.7,
    seed=1,
)
print(answer.choices[0].message.content)
print("speculation:", (answer.model_extra or {})["metrics"]["speculative_decoding"])

# The next one is streamed.
print("\nStreamed:")
stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Name three things to see in a forest."}],
    max_tokens=64,
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage is not None:
        print(f"\n{chunk.usage.completion_tokens} tokens")

# Settings of one request go into the `adaptspec` object: policy, task, max_depth (0: no speculation, the same text).
bounded = client.completions.create(
    model=model,
    prompt="def fibonacci(n):",
    max_tokens=48,
    temperature=0,
    extra_body={"adaptspec": {"max_depth": 2}},
)
print("\nAt most 2 tokens drafted per round:")
print(bounded.choices[0].text)
