"""A head that was trained for the bundled target drafts inside vLLM.

`heads.py HEAD METHOD PROMPTS DEPTH TOKENS`, where METHOD is vLLM's word (eagle3, dflash, medusa) and PROMPTS a JSON
file of token ids. Prints what plain vLLM writes greedily, how many texts differ with the head, and of drafted tokens
the share accepted at each depth: of all rounds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from engines import make
from vllm import LLM, SamplingParams

ROWS = 8


def asked(prompts: list[list[int]], llm: LLM, tokens: int) -> list[list[int]]:
    """What vLLM writes greedily after each prompt."""
    greedy = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": each} for each in prompts], greedy, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def accepted(llm: LLM) -> list[float]:
    """At each depth, of all drafts."""
    told: dict[str, Any] = {metric.name: metric for metric in llm.get_metrics()}
    counts = told["vllm:spec_decode_num_accepted_tokens_per_pos"].values
    return [count / told["vllm:spec_decode_num_drafts"].value for count in counts]


def main() -> None:
    """Prints one JSON object."""
    head, method, file, depth, tokens = sys.argv[1:]
    prompts = json.loads(Path(file).read_text(encoding="utf-8"))
    plain = asked(prompts, make(ROWS, deepest=0, dtype="float32"), int(tokens))
    draft = {"method": method, "model": head, "num_speculative_tokens": int(depth)}
    llm = make(ROWS, dtype="float32", speculative_config=draft, disable_log_stats=False)
    drafted = asked(prompts, llm, int(tokens))
    differing = sum(a != b for a, b in zip(plain, drafted, strict=True))
    print(json.dumps({"plain": plain, "differing": differing, "accepted": accepted(llm)}))


if __name__ == "__main__":
    main()
