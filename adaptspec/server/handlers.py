"""The handlers that run prompts: completions, chat completions and responses."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from adaptspec.errors import RequestError
from adaptspec.server import sse
from adaptspec.server.chat import ChatBody, ChatDialect
from adaptspec.server.completions import CompletionBody, CompletionDialect, Echo, Prompt
from adaptspec.server.generation import complete_all, stream_all
from adaptspec.server.keys import KEY_NAME
from adaptspec.server.reply import Reply
from adaptspec.server.request_id import HEADER
from adaptspec.server.response_reply import ResponseReply
from adaptspec.server.responses import ResponsesBody, in_own_words
from adaptspec.server.service import SERVICE, Service, read_body
from adaptspec.server.traces import current_trace
from adaptspec.server.wire import GenerationBody, StreamOptions
from adaptspec.types import Request


async def completions(http: web.Request) -> web.StreamResponse:
    """POST /v1/completions."""
    service = http.app[SERVICE]
    service.admit()  # before the body is looked at: a full server says so at once
    body = await read_body(http, CompletionBody)
    _check(service, body)
    prompts = await _tokens(service, body.prompt)
    service.check_prompts(body, prompts)  # before they are decoded: any integer may be among token ids
    echoes = await _echoes(service, body, prompts) if body.echoes else []
    dialect = CompletionDialect(service.codec.bytes_of, logprobs=body.logprobs is not None, prompts=echoes)
    reply = Reply(dialect, service.engine.target.name, body.choices)
    return await _answer(http, body, reply, service.requests(reply.id, body, prompts, key=http.get(KEY_NAME)))


async def chat_completions(http: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    service = http.app[SERVICE]
    service.admit()
    body = await read_body(http, ChatBody)
    _check(service, body)
    await service.check_grammar(body)
    prompt = await service.codec.encode_chat(body.messages, body.tools or ())
    dialect = ChatDialect(service.codec.bytes_of, logprobs=bool(body.logprobs), calls=body.calls)
    reply = Reply(dialect, service.engine.target.name, body.choices)
    prediction = await service.predicted(body.prediction.content) if body.prediction is not None else ()
    return await _answer(http, body, reply, service.requests(reply.id, body, [prompt], prediction, http.get(KEY_NAME)))


async def responses(http: web.Request) -> web.StreamResponse:
    """POST /v1/responses."""
    service = http.app[SERVICE]
    service.admit()
    body = await read_body(http, ResponsesBody)
    try:
        chat = await service.reading.run(body.weight, body.chat)
        _check(service, chat)
        await service.check_grammar(chat)
        prompt = await service.codec.encode_chat(chat.messages, chat.tools or ())
        reply = ResponseReply(body, service.engine.target.name, chat.calls)
        requests = service.requests(reply.id, chat, [prompt], key=http.get(KEY_NAME))
    except RequestError as error:
        raise in_own_words(error) from error
    headers = _headers(chat, reply.id, requests)
    if chat.stream:
        events = reply.events(stream_all(service.engine, requests))
        return await sse.respond(http, events, headers, service.padding, named=True)
    (completion,) = await complete_all(service.engine, requests)
    return web.json_response(reply.whole(completion), headers=headers)


def _check(service: Service, body: GenerationBody) -> None:
    service.check_model(body.model)
    body.check()
    service.check_size(body)


async def _tokens(service: Service, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    encoded = iter(await service.codec.encode_all(texts, check=lambda tokens: service.check_prompt(tokens, "prompt")))
    return [next(encoded) if isinstance(prompt, str) else tuple(prompt) for prompt in prompts]


async def _echoes(service: Service, body: CompletionBody, prompts: Sequence[tuple[int, ...]]) -> list[Echo]:
    """What each choice begins with. Token ids are echoed as the text they stand for."""
    texts = [given if isinstance(given, str) else await service.codec.decode(given) for given in body.prompt]
    each = [Echo(text, prompt[0] if prompt else 0) for text, prompt in zip(texts, prompts, strict=True)]
    return [echo for echo in each for _ in range(body.choices)]


async def _answer(
    http: web.Request, body: GenerationBody, reply: Reply, requests: Sequence[Request]
) -> web.StreamResponse:
    engine, headers = http.app[SERVICE].engine, _headers(body, reply.id, requests)
    if body.stream:
        deltas = stream_all(engine, requests)
        events = reply.chunks(deltas, requests, body.stream_options or StreamOptions())
        return await sse.respond(http, events, headers, http.app[SERVICE].padding)
    return web.json_response(reply.whole(await complete_all(engine, requests)), headers=headers)


def _headers(body: GenerationBody, identity: str, requests: Sequence[Request]) -> dict[str, str]:
    """What an answer says of itself; a trace, if there is one, is told what was asked."""
    headers, trace = {HEADER: identity}, current_trace()
    if trace is not None:
        trace.asked(requests, identity, body.contents if trace.wants_content else ())
        headers |= trace.headers
    return headers
