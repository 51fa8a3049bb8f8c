"""`/tokenize` and `/detokenize`, in vLLM's shape."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from pydantic import model_validator
from pydantic_core import to_json

from adaptspec.errors import RequestError
from adaptspec.models.sampling import check_tokens
from adaptspec.server import limits
from adaptspec.server.api.body import read_json
from adaptspec.server.api.chat import prompt_of
from adaptspec.server.api.chat_prompt import ChatPromptFields
from adaptspec.server.api.fields import AtMost, Name, RequestBody, TokenIds
from adaptspec.server.api.messages import Messages
from adaptspec.server.api.outputs import Answer
from adaptspec.server.generation import GENERATION
from adaptspec.server.routes import Operation
from adaptspec.server.threads import THREADS

_BYTES_PER_TOKEN = 8  # of an answer


class TokenizeRequest(ChatPromptFields):
    """A text or a conversation to count or look at; exactly one of the two."""

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check_one(self) -> TokenizeRequest:
        if self.prompt is None and self.messages is None:
            raise RequestError(
                "there is nothing to tokenize; send prompt (a text) or messages (a conversation)", "prompt"
            )
        if self.prompt is not None and self.messages is not None:
            raise RequestError("send prompt or messages, not both", "prompt")
        if self.tools and self.messages is None:
            raise RequestError("tools belong to a conversation; send messages, or leave tools out", "tools")
        if self.add_special_tokens and self.messages is not None:
            raise RequestError(
                "add_special_tokens is for prompt: the chat template writes those of messages; leave it out",
                "add_special_tokens",
            )
        return self


class DetokenizeRequest(RequestBody):
    """Token ids to read."""

    model: Name | None = None
    tokens: Annotated[TokenIds, AtMost(limits.TOKENS)]


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


@Operation("post", "/tokenize", TokenizeRequest, Tokens)
async def tokenize(http: web.Request) -> web.Response:
    """Token ids of a text or a conversation."""
    generation = http.app[GENERATION]
    body = await read_json(http, TokenizeRequest)
    generation.names.check(body.model)
    if body.messages is None:
        special = body.add_special_tokens is not False
        tokens = await generation.prompts.encode(body.prompt or "", add_special_tokens=special)
    else:
        tokens = await prompt_of(generation, body, body.messages)
    context = generation.engine.target.context
    generation.warning_log.report(body.warnings)

    def written() -> bytes:
        names = generation.prompts.token_names(tokens) if body.return_token_strs else None
        answer = Tokens(count=len(tokens), max_model_len=context, tokens=list(tokens), token_strs=names)
        return to_json(answer.written() | body.warnings.written())

    # The answer may hold millions of numbers: it is made where it is written.
    written_body = await http.app[THREADS].run(_BYTES_PER_TOKEN * len(tokens), written)
    return web.json_response(body=written_body)


@Operation("post", "/detokenize", DetokenizeRequest, Text)
async def detokenize(http: web.Request) -> web.Response:
    """The text of token ids."""
    generation = http.app[GENERATION]
    body = await read_json(http, DetokenizeRequest)
    generation.names.check(body.model)
    check_tokens("tokens", body.tokens, generation.engine.target.vocab_size)
    return web.json_response(Text(prompt=await generation.prompts.decode(body.tokens)).written())


@Operation("get", "/tokenizer_info", answer=TokenizerInfo)
async def tokenizer_info(http: web.Request) -> web.Response:
    """Special tokens of the tokenizer, and the chat template."""
    return web.json_response(body=to_json(http.app[GENERATION].prompts.tokenizer_info()))


ROUTES = (tokenize, detokenize, tokenizer_info)
