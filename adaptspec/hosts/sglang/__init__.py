"""Policies inside SGLang: `--speculative-adaptive --speculative-adaptive-config policy.yaml`."""
