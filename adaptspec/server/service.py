"""What handlers work with: the engine behind the codec, and the one place where bodies become checked requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from aiohttp import web

from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.errors import EngineError, OverloadedError, PromptTooLongError, RequestError, context_overflow
from adaptspec.models.grammars import ended_by_grammar
from adaptspec.quantity import quantity
from adaptspec.request import Grammar, Reasoning, Request
from adaptspec.results import Completion, Delta, FinishReason
from adaptspec.server.api.chat import ChatBody
from adaptspec.server.api.codec import Codec
from adaptspec.server.api.completions import CompletionBody
from adaptspec.server.api.generation_body import GenerationBody
from adaptspec.server.api.prompt_fields import PromptFields
from adaptspec.server.api.reasoning import TAIL, begun, continued
from adaptspec.server.api.tool_forms import IN_WORDS, ToolForm
from adaptspec.server.api.warnings import WarningLog
from adaptspec.server.api.wire import Body, parse, renamed
from adaptspec.server.http_errors import DrainingError, EngineStoppedError, RefusedError
from adaptspec.server.limits import ServerLimits
from adaptspec.server.served_names import ServedNames
from adaptspec.server.sse import Padding, Silence
from adaptspec.server.threads import Lanes, within

SMALL_BODY = 2**16  # bytes; reading more JSON than this would be felt by the streams of other clients
# SplitMix64's own step from one stream to the next; the engine mixes seeds well, so any odd step would do.
_SEED_STEP = 0x9E3779B97F4A7C15


class Service:
    """One engine behind one app."""

    def __init__(
        self,
        engine: AsyncEngine,
        codec: Codec,
        limits: ServerLimits = ServerLimits(),
        *,
        padding: Padding | None = None,
        warning_log: WarningLog | None = None,
        names: ServedNames | None = None,
        reasoning: Reasoning | None = None,
    ) -> None:
        """`reasoning`: the marks that the model puts around its reasoning; None where it has none."""
        self.engine = engine
        self.codec = codec
        self.warning_log = warning_log or WarningLog()
        self.names = names or ServedNames((engine.target.name,))
        self.limits = limits
        self.padding = padding
        self.marks = reasoning
        self.reading = Lanes(SMALL_BODY)
        self.draining = False
        self._compiling = asyncio.Lock()

    @property
    def state(self) -> str:
        """dead, draining or ok."""
        return "dead" if not self.engine.is_alive else "draining" if self.draining else "ok"

    @property
    def full(self) -> bool:
        return sum(self.load.values()) >= self.engine.capacity

    @property
    def load(self) -> dict[str, int]:
        """Requests that run and wait, as they are told on the wire."""
        load = self.engine.stats()
        return {"running": load.running, "waiting": load.waiting}

    def admit(self) -> None:
        """Raise DrainingError, EngineStoppedError or OverloadedError if no request can be taken now."""
        if self.draining:
            raise DrainingError("the server is shutting down; send the request again to its successor")
        if not self.engine.is_alive:
            raise EngineStoppedError("the engine has stopped; restart the server and see its log")
        if self.full:
            load = self.engine.stats()
            given = f"{load.waiting} waiting and {quantity(load.running, 'running request')}"
            raise OverloadedError(f"the server has {given}; send the request again later")

    def tool_form(self, body: PromptFields) -> ToolForm:
        """The form of calls in the prompt and the answer. Only for a request with tools is the template probed."""
        return body.call_form(self.codec.tool_form) if body.tools else IN_WORDS

    async def completion_requests(self, identity: str, body: CompletionBody, key: str | None = None) -> list[Request]:
        """One engine request per prompt and choice, prompt by prompt. `key` is the name of the client's API key.

        Raises RequestError, before the next prompt is encoded, if the engine can never serve one of them.
        """
        self._check(body, len(body.prompt))
        grammar = await self._compiled(body.constrained_by, lambda: body.grammar(self.limits))
        requests: list[Request] = []

        def add(prompt: tuple[int, ...]) -> None:
            requests.extend(self._requests(identity, body, prompt, grammar=grammar, key=key))

        texts = [prompt for prompt in body.prompt if isinstance(prompt, str)]
        await self.codec.encode_all(texts, check=add)
        for prompt in body.prompt:
            if not isinstance(prompt, str):
                add(tuple(prompt))
        self._check_echoes(body, requests)
        return _numbered(requests)

    async def chat_requests(
        self, identity: str, body: ChatBody, form: ToolForm, key: str | None = None
    ) -> tuple[list[Request], Reasoning | None]:
        """One engine request per choice, and the reasoning that their answers may begin with or go on in.

        `form`: that of calls, as `tool_form` returns it. Raises RequestError if the engine can never serve them.
        """
        self._check(body, 1)
        prompt = await self.codec.encode_chat(
            body.messages, body.tools or (), body.render_options, form, warnings=body.warnings
        )
        reasoning = await self._reasoning(body, prompt)
        grammar = await self._compiled(body.constrained_by, lambda: body.grammar(self.limits, form), reasoning)
        prediction: tuple[int, ...] = ()
        if body.prediction is not None:
            text = body.prediction.content
            tokens = await self.codec.encode(text, add_special_tokens=False, param="prediction")
            prediction = tokens[: self.engine.target.context]
        requests = self._requests(identity, body, prompt, grammar=grammar, prediction=prediction, key=key)
        return _numbered(requests), reasoning

    async def complete(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers in the order of the requests. Raises as `stream` does."""
        ended: dict[int, Completion] = {}
        # The event loop and the engine share the interpreter: a wake-up per token takes it from the engine.
        whole = [replace(request, streamed=False) for request in requests]
        async with aclosing(self.stream(whole)) as pieces:
            async for index, delta in pieces:
                if delta.completion is not None:
                    ended[index] = delta.completion
        return [ended[index] for index in range(len(requests))]

    async def stream(self, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, Delta], None]:
        """Run the requests at the same time; pieces as they come, each with its request's index.

        Closing this generator, or one that fails, aborts them all. Raises EngineError or DrainingError where a request
        has no answer.
        """
        places = {request.id: index for index, request in enumerate(requests)}
        async with aclosing(self.engine.submit(requests)) as pieces:
            async for delta in pieces:
                if delta.completion is not None:
                    _check_answer(delta.completion)
                yield places[delta.request_id], delta

    def silence(self, requests: Sequence[Request]) -> Silence:
        """What a stream of these requests sends while it has no token."""
        names = frozenset(request.id for request in requests)

        def progress() -> str:
            found = self.engine.prompt_progress(names)
            if found.read < found.total:
                return f"prompt {found.read}/{found.total}"
            return "waiting" if found.total or not found.ahead else f"waiting, {found.ahead} ahead"

        return Silence(progress, self.limits.quiet_seconds, self.limits.comment_seconds)

    def _check(self, body: GenerationBody, prompts: int) -> None:
        """What can be said before anything is encoded: the model, and how many requests it makes."""
        self.names.check(body.model)
        field, holds = body.prompt_field, f"this server holds {self.engine.capacity} at once"
        if prompts > self.engine.capacity:
            raise RequestError(f"{field} has {quantity(prompts, 'prompt')}; {holds}: send fewer", field)
        if prompts * body.choices > self.engine.capacity:
            raise RequestError(f"n is {body.choices} for {quantity(prompts, 'prompt')}; {holds}: ask for fewer", "n")

    async def _reasoning(self, body: ChatBody, prompt: Sequence[int]) -> Reasoning | None:
        if self.marks is None:
            return None
        if body.continue_final_message:
            last = body.messages[-1].plain()
            return continued(self.marks, last["role"], str(last["content"]))
        return begun(self.marks, await self.codec.decode(prompt[-TAIL:]))

    async def _compiled(
        self, param: str | None, write: Callable[[], Grammar | None], reasoning: Reasoning | None = None
    ) -> Grammar | None:
        """What the answer must be, behind a reasoning if there may be one; None where any text will do.

        `write` makes the grammar, for which the field `param` asks; None: no field does, and nothing is written. One is
        compiled at a time, in a thread of its own: a compiler cannot be bounded.
        """

        def compiled() -> Grammar | None:
            grammar = write()
            if grammar is None:
                return None
            return self.engine.compile_grammar(replace(grammar, reasoning=reasoning), self.limits.grammar_bytes)

        if param is None:
            return None
        async with self._compiling:
            try:
                return await within(self.limits.grammar_seconds, compiled)
            except asyncio.TimeoutError as error:
                raise RequestError(
                    f"{param} takes longer than {self.limits.grammar_seconds:g} seconds to compile; send less, or "
                    "something simpler",
                    param,
                ) from error

    def _requests(
        self,
        identity: str,
        body: GenerationBody,
        prompt: tuple[int, ...],
        *,
        grammar: Grammar | None = None,
        prediction: tuple[int, ...] = (),
        key: str | None = None,
    ) -> list[Request]:
        """A request for each choice, all of one name. The one place where they are checked."""
        room = self.engine.target.context - len(prompt)
        field, asked = body.asked_tokens or (None, body.open_tokens)
        sampling = body.sampling(max(room, 0) if asked is None else asked, grammar)
        request = Request(
            identity,
            prompt,
            sampling,
            body.speculation(),
            body.operation,
            prediction,
            key,
            prefix_cache=body.prefix_cache,
            cache_salt=body.cache_salt,
        )
        try:
            self.engine.check(request)
        except RequestError as error:
            raise renamed(error, {"prompt": body.prompt_field}) from error
        # An answer that somebody asked for must fit; how long one is that nobody asked for is up to us.
        if field is not None and asked is not None and asked > room:
            target = self.engine.target
            raise PromptTooLongError(
                context_overflow(
                    target.context,
                    f"you requested {len(prompt) + asked} tokens ({len(prompt)} in the {body.prompt_field}, {asked} in "
                    f"the completion): let {field} be at most {room}, or leave it out",
                ),
                field,
            )
        seeds = [seed_of_choice(sampling.seed, choice) for choice in range(body.choices)]
        return [replace(request, sampling=replace(sampling, seed=seed)) for seed in seeds]

    def _check_echoes(self, body: CompletionBody, requests: Sequence[Request]) -> None:
        if not body.echoes or body.alternatives is None:
            return
        most = self.limits.prompt_logprobs
        told = sum(len(request.prompt) for request in requests) * (1 + body.alternatives)
        if told > most:
            raise RequestError(
                f"logprobs of all prompt tokens are {told} numbers here; this server tells at most {most} in one "
                "answer: send fewer or shorter prompts, or ask for fewer alternatives",
                "logprobs",
            )


SERVICE = web.AppKey("service", Service)


def seed_of_choice(seed: int | None, choice: int) -> int | None:
    """The seed of answer number `choice` (from 0) to a request with `seed`: (seed + choice * STEP) mod 2^63.

    So choice 0 is the answer of a request for one. No seed stays none: the engine then draws one for each.
    """
    if seed is None or choice == 0:
        return seed
    return (seed + choice * _SEED_STEP) % 2**63


async def read_body(http: web.Request, model: type[Body]) -> Body:
    """The body of a request, read off the event loop where it is large. Raises RequestError.

    A JSON content type is required: browsers do not send it to other sites without asking, which keeps most web pages
    from using a server on their reader's machine. `auth.Hosts` stops those whose own name was made to point there.
    """
    if http.content_type != "application/json":
        words = "send the body as JSON, with the header Content-Type: application/json"
        raise RefusedError(415, "unsupported_media_type", words)
    limits = http.app[SERVICE].limits
    words = f"the body did not arrive within {limits.body_seconds:g} seconds; send it faster, or a shorter one"
    late = RefusedError(408, "request_timeout", words, Connection="close")
    # Not asyncio.wait_for: before Python 3.12 it forgets to be cancelled when a client has gone just as its body came.
    timer = asyncio.get_running_loop().call_later(limits.body_seconds, http.content.set_exception, late)
    try:
        raw = await http.read()
    finally:
        timer.cancel()
    return await http.app[SERVICE].reading.run(len(raw), lambda: parse(model, raw, limits))


def _numbered(requests: list[Request]) -> list[Request]:
    """With ids of their own, where there are several."""
    if len(requests) == 1:
        return requests
    return [replace(request, id=f"{request.id}-{index}") for index, request in enumerate(requests)]


def _check_answer(completion: Completion) -> None:
    if completion.finish is FinishReason.ERROR:
        if completion.error is not None and ended_by_grammar(completion.error):
            raise RequestError(
                f"the request ended because {completion.error}; change the grammar or schema that the answer must fit"
            )
        raise EngineError(f"the engine failed on this request: {completion.error or 'no details'}; send it again")
    if completion.finish is FinishReason.ABORT:
        raise DrainingError("the server gave up on this request because it is shutting down; send it again")
