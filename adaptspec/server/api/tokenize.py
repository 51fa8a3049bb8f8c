"""`/tokenize` and `/detokenize`, in vLLM's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from aiohttp import web
from pydantic import Field, model_validator
from pydantic_core import to_json

from adaptspec.errors import RequestError
from adaptspec.models.sampling import check_tokens
from adaptspec.server.api.answers import Answer
from adaptspec.server.api.messages import Messages
from adaptspec.server.api.template_fields import TemplateFields
from adaptspec.server.api.wire import Name, RequestBody, TokenId
from adaptspec.server.routes import Operation
from adaptspec.server.service import SERVICE, read_body

_TOKEN = 8  # bytes of an answer


class TokenizeBody(TemplateFields, RequestBody):
    """A text or a conversation to count or look at; exactly one of the two."""

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True

    together: ClassVar[Sequence[Mapping[str, Any]]] = (
        *TemplateFields.together,
        {
            "anyOf": [
                {"properties": {one: {"not": {"type": "null"}}, other: {"type": "null"}}, "required": [one]}
                for one, other in (("prompt", "messages"), ("messages", "prompt"))
            ]
        },
    )

    @model_validator(mode="after")
    def _check_one(self) -> TokenizeBody:
        if self.prompt is None and self.messages is None:
            told = "there is nothing to tokenize; send prompt (a text) or messages (a conversation)"
            raise RequestError(told, "prompt")
        if self.prompt is not None and self.messages is not None:
            raise RequestError("send prompt or messages, not both", "prompt")
        return self


class DetokenizeBody(RequestBody):
    """Token ids to read."""

    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class Tokens(Answer):
    """Token ids of a text or a conversation."""

    count: int
    max_model_len: int
    tokens: list[int]
    warnings: list[str] | None = None


class Text(Answer):
    """The text of token ids."""

    prompt: str


@Operation("post", "/tokenize", TokenizeBody, Tokens)
async def tokenize(http: web.Request) -> web.Response:
    """Token ids of a text or a conversation."""
    service = http.app[SERVICE]
    body = await read_body(http, TokenizeBody)
    service.check_model(body.model)
    if body.messages is None:
        tokens = await service.codec.encode(body.prompt or "", add_special_tokens=body.add_special_tokens)
    else:
        tokens = await service.codec.encode_chat(body.messages, options=body.render_options)
    context = service.engine.target.context
    service.warning_log.report(body.warnings)

    def written() -> bytes:
        answer = Tokens(count=len(tokens), max_model_len=context, tokens=list(tokens), **body.warnings.written())
        return to_json(answer.written())

    # The answer may hold millions of numbers: it is made where it is written.
    written_body = await service.reading.run(_TOKEN * len(tokens), written)
    return web.json_response(body=written_body)


@Operation("post", "/detokenize", DetokenizeBody, Text)
async def detokenize(http: web.Request) -> web.Response:
    """The text of token ids."""
    service = http.app[SERVICE]
    body = await read_body(http, DetokenizeBody)
    service.check_model(body.model)
    check_tokens("tokens", body.tokens, service.engine.target.vocab_size)
    return web.json_response(Text(prompt=await service.codec.decode(body.tokens)).written())


ROUTES = (tokenize, detokenize)
