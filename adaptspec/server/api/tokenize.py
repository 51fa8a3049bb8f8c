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
from adaptspec.server.api.prompt_fields import PromptFields
from adaptspec.server.api.wire import Name, RequestBody, TokenId
from adaptspec.server.routes import Operation
from adaptspec.server.service import SERVICE, read_body

_TOKEN = 8  # bytes of an answer


class TokenizeBody(PromptFields):
    """A text or a conversation to count or look at; exactly one of the two."""

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    together: ClassVar[Sequence[Mapping[str, Any]]] = (
        *PromptFields.together,
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
            raise RequestError(
                "there is nothing to tokenize; send prompt (a text) or messages (a conversation)", "prompt"
            )
        if self.prompt is not None and self.messages is not None:
            raise RequestError("send prompt or messages, not both", "prompt")
        if self.tools and self.messages is None:
            raise RequestError("tools belong to a conversation; send messages, or leave tools out", "tools")
        return self


class DetokenizeBody(RequestBody):
    """Token ids to read."""

    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class Tokens(Answer):
    """Token ids of a text or a conversation. `token_strs` are names in the vocabulary, where they were asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    warnings: list[str] | None = None


class AddedTokenInfo(Answer):
    """A token that the tokenizer keeps whole."""

    content: str
    special: bool


class TokenizerInfo(Answer):
    """A tokenizer as `tokenizer_config.json` describes it. Never where its files lie."""

    tokenizer_class: str
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    added_tokens_decoder: dict[str, AddedTokenInfo]
    chat_template: str | None


class Text(Answer):
    """The text of token ids."""

    prompt: str


@Operation("post", "/tokenize", TokenizeBody, Tokens)
async def tokenize(http: web.Request) -> web.Response:
    """Token ids of a text or a conversation."""
    service = http.app[SERVICE]
    body = await read_body(http, TokenizeBody)
    service.names.check(body.model)
    if body.messages is None:
        special = body.add_special_tokens is not False
        tokens = await service.codec.encode(body.prompt or "", add_special_tokens=special)
    else:
        form, options = service.tool_form(body), body.render_options
        tokens = await service.codec.encode_chat(body.messages, body.tools or (), options, form, warnings=body.warnings)
    context = service.engine.target.context
    service.warning_log.report(body.warnings)

    def written() -> bytes:
        names = service.codec.token_names(tokens) if body.return_token_strs else None
        answer = Tokens(count=len(tokens), max_model_len=context, tokens=list(tokens), token_strs=names)
        return to_json(answer.written() | body.warnings.written())

    # The answer may hold millions of numbers: it is made where it is written.
    written_body = await service.reading.run(_TOKEN * len(tokens), written)
    return web.json_response(body=written_body)


@Operation("post", "/detokenize", DetokenizeBody, Text)
async def detokenize(http: web.Request) -> web.Response:
    """The text of token ids."""
    service = http.app[SERVICE]
    body = await read_body(http, DetokenizeBody)
    service.names.check(body.model)
    check_tokens("tokens", body.tokens, service.engine.target.vocab_size)
    return web.json_response(Text(prompt=await service.codec.decode(body.tokens)).written())


@Operation("get", "/tokenizer_info", answer=TokenizerInfo)
async def tokenizer_info(http: web.Request) -> web.Response:
    """Special tokens of the tokenizer, and the chat template."""
    return web.json_response(body=to_json(http.app[SERVICE].codec.tokenizer_info()))


ROUTES = (tokenize, detokenize, tokenizer_info)
