"""The handlers that run prompts: completions, chat completions and responses."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from adaptspec.errors import RequestError
from adaptspec.models.sampling import check_vocabulary
from adaptspec.request import Request
from adaptspec.server import sse
from adaptspec.server.api.answers import Reply
from adaptspec.server.api.chat import ChatBody, ChatCompletion, ChatReply
from adaptspec.server.api.completions import Completion, CompletionBody, CompletionReply
from adaptspec.server.api.content_logprobs import ContentLogprobs
from adaptspec.server.api.generation_body import GenerationBody, StreamOptions
from adaptspec.server.api.response_events import InputTokens, Response, ResponseReply
from adaptspec.server.api.responses import OWN_NAMES, ResponsesBody
from adaptspec.server.api.wire import renamed
from adaptspec.server.auth import KEY_NAME
from adaptspec.server.middleware import REQUEST_ID, TRACE
from adaptspec.server.routes import Operation
from adaptspec.server.service import SERVICE, read_body


@Operation("post", "/v1/completions", CompletionBody, Completion, streams=True, refused=(429,))
async def completions(http: web.Request) -> web.StreamResponse:
    """Complete prompts."""
    service = http.app[SERVICE]
    service.admit()  # before the body is looked at: a full server says so at once
    body = await read_body(http, CompletionBody)
    reply = CompletionReply(service.engine.target.name, body, service.codec.bytes_of)
    requests = await service.completion_requests(reply.id, body, http.get(KEY_NAME))
    if body.echoes:  # token ids as the text they stand for, once it is known that they exist
        texts = [given if isinstance(given, str) else await service.codec.decode(given) for given in body.prompt]
        reply.echo(zip(texts, [request.prompt[0] for request in requests[:: body.choices]], strict=True))
    return await _answer(http, body, reply, requests)


@Operation("post", "/v1/chat/completions", ChatBody, ChatCompletion, streams=True, refused=(429,))
async def chat_completions(http: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    service = http.app[SERVICE]
    service.admit()
    body = await read_body(http, ChatBody)
    bytes_of = service.codec.bytes_of
    form = service.tool_form(body)
    reply = ChatReply(service.engine.target.name, body, bytes_of, bytes_of.hidden, bytes_of.leading, form=form)
    requests, reasoning = await service.chat_requests(reply.id, body, form, http.get(KEY_NAME))
    reply.expect(reasoning)
    return await _answer(http, body, reply, requests)


@Operation("post", "/v1/responses", ResponsesBody, Response, streams=True, refused=(429,))
async def responses(http: web.Request) -> web.StreamResponse:
    """Make a response."""
    service = http.app[SERVICE]
    service.admit()
    body = await read_body(http, ResponsesBody)
    try:
        chat = await service.reading.run(body.weight, body.chat)
        bytes_of, name = service.codec.bytes_of, service.engine.target.name
        form = service.tool_form(chat)
        matched = ContentLogprobs(bytes_of, bytes_of.hidden, bytes_of.leading) if body.logprobs else None
        reply = ResponseReply(name, body, bytes_of, chat.call_reader(form), matched)
        requests, reasoning = await service.chat_requests(reply.id, chat, form, http.get(KEY_NAME))
        reply.expect(reasoning)
    except RequestError as error:
        raise renamed(error, OWN_NAMES) from error
    service.warning_log.report(body.warnings)
    headers = _headers(http, chat, reply.id, requests)
    if chat.stream:
        events = reply.events(service.stream(requests))
        return await sse.respond(http, events, headers, service.padding, service.silence(requests), named=True)
    (completion,) = await service.complete(requests)
    return web.json_response(reply.whole(completion), headers=headers)


@Operation("post", "/v1/responses/input_tokens", ResponsesBody, InputTokens)
async def input_tokens(http: web.Request) -> web.Response:
    """Count the tokens of a response's prompt, with its tools, without making the response."""
    service = http.app[SERVICE]
    body = await read_body(http, ResponsesBody)
    service.names.check(body.model)
    try:
        chat = await service.reading.run(body.weight, body.chat)
        check_vocabulary(chat.sampling(1), service.engine.target.vocab_size)
        form, options = service.tool_form(chat), chat.render_options
        tools = chat.tools or ()
        tokens = await service.codec.encode_chat(chat.messages, tools, options, form, warnings=body.warnings)
    except RequestError as error:
        raise renamed(error, OWN_NAMES) from error
    service.warning_log.report(body.warnings)
    answer = InputTokens(object="response.input_tokens", input_tokens=len(tokens))
    return web.json_response(answer.written() | body.warnings.written())


async def _answer(
    http: web.Request, body: GenerationBody, reply: Reply, requests: Sequence[Request]
) -> web.StreamResponse:
    service, headers = http.app[SERVICE], _headers(http, body, reply.id, requests)
    service.warning_log.report(body.warnings)
    if body.stream:
        events = reply.events(service.stream(requests), requests, body.stream_options or StreamOptions())
        return await sse.respond(http, events, headers, service.padding, service.silence(requests))
    return web.json_response(reply.whole(await service.complete(requests)), headers=headers)


def _headers(http: web.Request, body: GenerationBody, identity: str, requests: Sequence[Request]) -> dict[str, str]:
    """What an answer says of itself; a trace, if there is one, is told what was asked."""
    headers, trace = {REQUEST_ID: identity}, http.get(TRACE)
    if trace is not None:
        trace.asked(requests, identity, body.contents if trace.wants_content else ())
        headers |= trace.headers
    return headers


ROUTES = (completions, chat_completions, responses, input_tokens)
