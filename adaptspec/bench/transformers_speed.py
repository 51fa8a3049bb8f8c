"""What transformers makes of models of the same shapes: `generate` over a static cache, compiled, and assisted.

Assisted generation judges drafts by rejection, which takes those of two random models as coupled choices do: more of
them the hotter they are drawn. Its rate is counted, by passes of the target.
"""

from __future__ import annotations

import time
import traceback
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from adaptspec.bench.gpu_kit import Bench
from adaptspec.bench.random_models import prompts

# Seconds that compiling may take, and a way without it.
COMPILES, RUNS = 90.0, 20.0


def compared(bench: Bench, temperature: float) -> list[dict[str, Any]]:
    """Tokens per second by way and rows, each after a run to warm up."""
    sizes, lines = bench.sizes, list[dict[str, Any]]()
    target, draft = (_model(shape, bench.device) for shape in (sizes.target, sizes.draft))
    static = {"cache_implementation": "static"}  # on a device generate compiles the passes over it
    ways: list[tuple[str, int, dict[str, Any], float]] = [
        ("static cache, compiled", 1, static, COMPILES),
        ("assisted", 1, {"assistant_model": draft}, RUNS),
        *(("static cache, compiled", rows, static, COMPILES) for rows in sizes.batches[1:]),
        ("dynamic cache", 1, {}, RUNS),
    ]
    for name, rows, options, needs in ways:
        if not bench.has(f"transformers, {name}, {rows} rows", needs):
            continue
        line: dict[str, Any] = {"way": name, "rows": rows}
        try:
            line |= _generated(target, bench, rows, {**options, "temperature": temperature})
        except Exception as error:  # noqa: BLE001 - what a version of transformers cannot do costs no other way
            line["failed"] = f"{type(error).__name__}: {error}"
            bench.result["notes"] = traceback.format_exc()
        lines.append(line)
    return lines


def _model(shape: Any, device: torch.device) -> Any:
    config = AutoConfig.for_model(**shape)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    # As wide apart as those of `random_models`.
    model.get_output_embeddings().weight.data.normal_(std=shape["hidden_size"] ** -0.5)
    return model.eval()


@torch.inference_mode()
def _generated(model: Any, bench: Bench, rows: int, options: dict[str, Any]) -> dict[str, Any]:
    sizes, device, passes = bench.sizes, bench.device, 0
    ids = torch.tensor(prompts(rows, sizes.prompt, int(sizes.target["vocab_size"])), device=device)

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1

    def run() -> float:
        start = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            top_p=1.0,
            max_new_tokens=sizes.tokens,
            min_new_tokens=sizes.tokens,
            pad_token_id=0,
            **options,
        )
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    first = run()
    counted = {}
    if "assistant_model" in options:
        hook = model.register_forward_hook(count)
        run()
        hook.remove()
        counted["tokens_per_pass"] = sizes.tokens / max(passes, 1)
    return {"tokens_per_second": rows * sizes.tokens / min(run(), run()), "first_seconds": first, **counted}
