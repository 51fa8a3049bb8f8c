"""`/tokenize` and `/detokenize`, in vLLM's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from aiohttp import web
from pydantic import Field
from pydantic_core import to_json

from adaptspec.errors import RequestError
from adaptspec.server.messages import Messages, check_messages
from adaptspec.server.service import SERVICE, read_body
from adaptspec.server.wire import Name, TokenId, WireModel

_TOKEN = 8  # bytes of an answer


class TokenizeBody(WireModel):
    """A text or a conversation to count or look at; exactly one of the two."""

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True

    together: ClassVar[Sequence[Mapping[str, Any]]] = (
        {
            "anyOf": [
                {"properties": {one: {"not": {"type": "null"}}, other: {"type": "null"}}, "required": [one]}
                for one, other in (("prompt", "messages"), ("messages", "prompt"))
            ]
        },
    )


class DetokenizeBody(WireModel):
    """Token ids to read."""

    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


async def tokenize(http: web.Request) -> web.Response:
    """POST /tokenize."""
    service = http.app[SERVICE]
    body = await read_body(http, TokenizeBody)
    service.check_model(body.model)
    if body.prompt is not None and body.messages is None:
        tokens = await service.codec.encode(body.prompt, add_special_tokens=body.add_special_tokens)
    elif body.messages is not None and body.prompt is None:
        check_messages(body.messages)
        tokens = await service.codec.encode_chat(body.messages, answer=body.add_generation_prompt)
    elif body.prompt is None:
        raise RequestError("there is nothing to tokenize; send prompt (a text) or messages (a conversation)", "prompt")
    else:
        raise RequestError("send prompt or messages, not both", "prompt")
    context = service.engine.target.context
    answer = {"count": len(tokens), "max_model_len": context, "tokens": tokens}
    written = await service.reading.run(_TOKEN * len(tokens), lambda: to_json(answer))
    return web.json_response(body=written)


async def detokenize(http: web.Request) -> web.Response:
    """POST /detokenize."""
    service = http.app[SERVICE]
    body = await read_body(http, DetokenizeBody)
    service.check_model(body.model)
    service.codec.check(body.tokens, "tokens")
    return web.json_response({"prompt": await service.codec.decode(body.tokens)})
