"""Use the engine from Python, without a server: several prompts at once, and what speculation did for each.

Run:
    python examples/python_api.py
"""

from __future__ import annotations

from adaptspec import Engine, SamplingParams

PROMPTS = [
    "Once upon a time, in a village by the sea,",
    "def is_prime(n):",
    '{"name": "Ada", "languages": [',
]

# A policy is the name of a shipped one, or a file such as examples/my_policy.yaml.
engine = Engine.from_pretrained("bundled", draft="bundled", policy="goodput")
completions = engine.generate(PROMPTS, SamplingParams(max_tokens=64, temperature=0.0))

for prompt, completion in zip(PROMPTS, completions, strict=True):
    stats = completion.stats
    print(f"{prompt}{completion.text}")
    print(
        f"--- {len(completion.tokens)} tokens in {stats.rounds} rounds: "
        f"{stats.drafted} drafted, {stats.accepted} accepted ({completion.finish.value})\n"
    )
