"""Requests at random, with all rules that change logits."""

from __future__ import annotations

from hypothesis import strategies as st

from adaptspec.request import SamplingParams

VOCAB = 40
TOKENS = st.integers(0, VOCAB - 1)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(60),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([0, 0, 1, 5, 50]),
    top_p=st.sampled_from([1.0, 1.0, 0.3, 0.95]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.dictionaries(TOKENS, st.sampled_from([-100.0, 3.5]), max_size=3),
    min_tokens=st.sampled_from([0, 0, 2, 6]),
    stop_token_ids=st.sampled_from([(), (3, 7)]),
)
