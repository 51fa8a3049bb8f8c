"""A head that `adaptspec train` has written for the bundled target, inside vLLM and inside our own engine.

`heads.py HEAD METHOD [--prompts FILE_OR_FOLDER] [--count N] [--depth N]`, where METHOD is vLLM's word (eagle3, dflash,
medusa). Prints the texts that differ from plain vLLM's, and of drafted tokens the share accepted at each depth: of all
rounds, as vLLM counts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from itertools import zip_longest
from pathlib import Path
from typing import Any

from engines import MODELS, make
from vllm import LLM, SamplingParams

from adaptspec.engine.engine_config import BUNDLED, EngineConfig
from adaptspec.engine.sync_engine import Engine
from adaptspec.models.tokenization import load_tokenizer
from adaptspec.request import SamplingParams as OurParams
from adaptspec.training.corpus import BUILT_IN, read_prompts, spread

ROWS, TOKENS, LONGEST = 8, 288, 200  # vLLM also counts what it accepts beyond the end: long texts have few of those
POLICY = """apiVersion: adaptspec.dev/v1
kind: SpeculationPolicy
metadata: {name: static}
spec:
  choose: {algorithm: static, depth: DEPTH}
"""


def asked(tokens: list[list[int]], llm: LLM) -> list[list[int]]:
    """What vLLM writes greedily after each prompt."""
    greedy = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": each} for each in tokens], greedy, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def theirs(llm: LLM) -> list[float]:
    """Accepted at each depth, of all drafts."""
    told: dict[str, Any] = {metric.name: metric for metric in llm.get_metrics()}
    accepted = told["vllm:spec_decode_num_accepted_tokens_per_pos"].values
    return [count / told["vllm:spec_decode_num_drafts"].value for count in accepted]


def ours(tokens: list[list[int]], head: Path, depth: int) -> tuple[list[list[int]], list[float]]:
    """What our engine writes with the head, and what is accepted."""
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "static.yaml"
        policy.write_text(POLICY.replace("DEPTH", str(depth)), encoding="utf-8")
        config = EngineConfig(BUNDLED, str(head), (str(policy),), detect_tasks=False, counts=None)
        done = Engine.from_config(config).generate(tokens, OurParams(TOKENS, temperature=0.0, ignore_eos=True))
    rounds = sum(one.stats.draft_rounds for one in done)
    accepted = zip_longest(*(one.stats.accepted_per_position for one in done), fillvalue=0)
    return [list(one.tokens) for one in done], [sum(counts) / rounds for counts in accepted]


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("head", type=Path)
    parser.add_argument("method")
    parser.add_argument("--prompts", type=Path, default=BUILT_IN)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--depth", type=int, default=3)
    given = parser.parse_args()
    tokenizer = load_tokenizer(str(MODELS / "target"))
    messages = [[{"role": "user", "content": one.text}] for one in spread(read_prompts(given.prompts), given.count)]
    texts = [str(tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True)) for one in messages]
    tokens = [
        ids for ids in (tokenizer.encode(text, add_special_tokens=False) for text in texts) if len(ids) <= LONGEST
    ]
    plain = asked(tokens, make(ROWS, deepest=0, dtype="float32"))
    draft = {"method": given.method, "model": str(given.head), "num_speculative_tokens": given.depth}
    llm = make(ROWS, dtype="float32", speculative_config=draft, disable_log_stats=False)
    drafted = asked(tokens, llm)
    own, accepted = ours(tokens, given.head, given.depth)
    told: dict[str, Any] = {"texts": len(plain), "differing": sum(a != b for a, b in zip(plain, drafted, strict=True))}
    told |= {"differing from ours": sum(a != b for a, b in zip(plain, own, strict=True))}
    print(json.dumps(told | {"vllm": theirs(llm), "ours": accepted}))


if __name__ == "__main__":
    main()
