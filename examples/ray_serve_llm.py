"""vLLM with AdaptSpec's scheduler under Ray Serve LLM: two replicas, one policy file, one place for what is learned.

    pip install "ray[llm]" adaptspec          # Ray 2.60 asks for vLLM 0.29.0; AdaptSpec changes none of it
    serve run examples.ray_serve_llm:app

`engine_kwargs` go to vLLM as they are: this is `vllm serve` with --scheduler-cls, --speculative-config and
--additional-config. Policy and state are on a volume that all nodes mount; each replica writes a place of its own there
and learns what the others have learned, so that none of it is lost with a replica, and a new one does not start anew.

CUDA graphs are captured for all depths if `speculative_config` also has `num_speculative_tokens_per_batch_size`, which
`adaptspec host vllm --policy policy.yaml --method eagle3 --model M --draft D --max-num-seqs N` prints for N requests.

It was read by Ray 2.60 and its engine arguments by vLLM 0.32 (2026-11-23), and not run: no GPU was at hand. vLLM 0.29.0
was run for itself, in its build for CPUs (adaptspec/hosts/README.md).
"""

from ray.serve.llm import LLMConfig, build_openai_app

SHARED = "/mnt/adaptspec"

config = LLMConfig(
    model_loading_config={"model_id": "llama", "model_source": "meta-llama/Llama-3.1-8B-Instruct"},
    engine_kwargs={
        "scheduler_cls": "adaptspec.hosts.vllm.AdaptiveScheduler",
        "speculative_config": {
            "method": "eagle3",
            "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
            "num_speculative_tokens": 5,
        },
        "additional_config": {"adaptspec": {"policy": f"{SHARED}/policy.yaml", "state-dir": f"{SHARED}/state"}},
    },
    deployment_config={"autoscaling_config": {"min_replicas": 2, "max_replicas": 8}},
)
app = build_openai_app({"llm_configs": [config]})
