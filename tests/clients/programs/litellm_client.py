"""LiteLLM: completion, stream, tools, logprobs and token counts. Prints what it read as one line of JSON."""

import json
import os

import litellm

asked = {
    "model": "hosted_vllm/bundled",
    "api_base": os.environ["ADAPTSPEC_URL"],
    "api_key": "unused",
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 24,
    "temperature": 0,
    "num_retries": 0,
}
schema = {"type": "object", "properties": {"kind": {"enum": ["fox", "fog"]}}, "required": ["kind"]}
whole = litellm.completion(**asked, logprobs=True, top_logprobs=2)
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True))
tool = {"type": "function", "function": {"name": "see", "parameters": {**schema, "additionalProperties": False}}}
called = litellm.completion(**{**asked, "max_tokens": 99}, tools=[tool], tool_choice="required")
text = litellm.text_completion(
    model="text-completion-openai/bundled", api_base=asked["api_base"], api_key="unused", prompt="Once", max_tokens=5
)
print(
    json.dumps(
        {
            "whole": whole.choices[0].message.content,
            "usage": whole.usage.completion_tokens,
            "logprobs": len(whole.choices[0].logprobs.content),
            "streamed": streamed,
            "call": json.loads(called.choices[0].message.tool_calls[0].function.arguments),
            "text": text.choices[0].text,
        }
    )
)
