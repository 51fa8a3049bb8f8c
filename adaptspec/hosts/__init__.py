"""The control plane inside other engines: vLLM and SGLang. Nothing here imports torch by itself."""
