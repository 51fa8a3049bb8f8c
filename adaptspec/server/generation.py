"""Bodies become checked requests of the engine, and what the engine makes of them becomes the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace

from aiohttp import web

from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.errors import (
    DrainingError,
    EngineError,
    EngineStoppedError,
    OverloadedError,
    PromptTooLongError,
    RequestError,
    context_overflow,
)
from adaptspec.models.grammars import ended_by_grammar
from adaptspec.quantity import quantity
from adaptspec.request import Grammar, Reasoning, Request
from adaptspec.results import Completion, Delta, FinishReason
from adaptspec.server import limits, sse
from adaptspec.server.api.body import renamed
from adaptspec.server.api.fields import Json, WarningLog
from adaptspec.server.api.outputs import Writer
from adaptspec.server.api.sampling import GenerationRequest
from adaptspec.server.auth import KEY_NAME
from adaptspec.server.middleware import REQUEST_ID, TRACE
from adaptspec.server.prompts import Prompts
from adaptspec.server.served_names import ServedNames
from adaptspec.server.threads import run_with_timeout

# SplitMix64's own step from one stream to the next; the engine mixes seeds well, so any odd step would do.
_SEED_STEP = 0x9E3779B97F4A7C15


class Generation:
    """One engine behind one app, and the only place where requests to generate text are checked and run."""

    def __init__(
        self,
        engine: AsyncEngine,
        prompts: Prompts,
        *,
        warning_log: WarningLog | None = None,
        names: ServedNames | None = None,
        reasoning: Reasoning | None = None,
    ) -> None:
        """`reasoning`: the marks that the model puts around its reasoning; None where it has none."""
        self.engine = engine
        self.prompts = prompts
        self.warning_log = warning_log or WarningLog()
        self.names = names or ServedNames((engine.target.name,))
        self.reasoning = reasoning
        self.draining = False  # at the administrator's request, who may end it
        self.stopping = False  # after a signal, for good
        self.preparing = 0  # requests that are admitted and not yet the engine's
        self.with_speedup: Callable[[Completion], Awaitable[Completion]] | None = None  # set by the live feed
        self._compiling = asyncio.Lock()

    @property
    def state(self) -> str:
        """dead, draining or ok."""
        return "dead" if not self.engine.is_alive else "draining" if self.refuses_all else "ok"

    @property
    def refuses_all(self) -> bool:
        return self.draining or self.stopping

    @property
    def is_full(self) -> bool:
        return sum(self.load.values()) >= self.engine.capacity

    @property
    def load(self) -> dict[str, int]:
        """Running and waiting requests, by their names on the wire."""
        load = self.engine.stats()
        return {"running": load.running, "waiting": load.waiting}

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """A request is read and prepared meanwhile, for which a server that stops waits.

        Raises DrainingError, EngineStoppedError or OverloadedError, before the body is read, if no request can be taken
        now.
        """
        self._admit()
        self.preparing += 1
        try:
            yield
        finally:
            self.preparing -= 1

    def _admit(self) -> None:
        if self.refuses_all:
            raise DrainingError
        if not self.engine.is_alive:
            raise EngineStoppedError("the engine has stopped; restart the server and see its log")
        if self.is_full:
            load = self.engine.stats()
            given = f"{load.waiting} waiting and {quantity(load.running, 'running request')}"
            raise OverloadedError(f"the server has {given}; send the request again later")

    def check(self, body: GenerationRequest, prompts: int = 1) -> None:
        """Check the model's name and the number of engine requests, before anything is encoded. Raises RequestError."""
        self.names.check(body.model)
        field, holds = body.prompt_field, f"this server holds {self.engine.capacity} at once"
        if prompts > self.engine.capacity:
            raise RequestError(f"{field} has {quantity(prompts, 'prompt')}; {holds}: send fewer", field)
        if prompts * body.choices > self.engine.capacity:
            raise RequestError(f"n is {body.choices} for {quantity(prompts, 'prompt')}; {holds}: ask for fewer", "n")

    async def compile(
        self, body: GenerationRequest, write: Callable[[], Grammar | None], reasoning: Reasoning | None = None
    ) -> Grammar | None:
        """Compile the grammar of the answer, after its reasoning if there is one; None if any text is allowed.

        `write` makes the grammar that a field of the body asks for; it is not called if no field does. One grammar is
        compiled at a time, in a thread of its own: a compiler cannot be bounded.
        """

        def compiled() -> Grammar | None:
            grammar = write()
            if grammar is None:
                return None
            return self.engine.compile_grammar(replace(grammar, reasoning=reasoning), limits.GRAMMAR_BYTES)

        param = body.constrained_by
        if param is None:
            return None
        async with self._compiling:
            try:
                return await run_with_timeout(limits.GRAMMAR_SECONDS, compiled)
            except asyncio.TimeoutError as error:
                raise RequestError(
                    f"{param} takes longer than {limits.GRAMMAR_SECONDS:g} seconds to compile; send less, or something "
                    "simpler",
                    param,
                ) from error

    def requests(
        self,
        identity: str,
        body: GenerationRequest,
        prompt: tuple[int, ...],
        *,
        grammar: Grammar | None = None,
        prediction: tuple[int, ...] = (),
        key: str | None = None,
    ) -> list[Request]:
        """The engine requests for the choices of one prompt, all of one name. `key` names the client's API key.

        Raises RequestError if the engine can never serve them.
        """
        room = self.engine.target.context - len(prompt)
        field, asked = body.asked_tokens or (None, body.default_output)
        sampling = body.to_sampling(max(room, 0) if asked is None else asked, grammar)
        request = Request(
            identity,
            prompt,
            sampling,
            body.to_speculation(),
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
        # An answer of the length that a client asks for must fit; a length that it leaves open is up to the server.
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

    async def respond(
        self, http: web.Request, body: GenerationRequest, requests: Sequence[Request], writer: Writer
    ) -> web.StreamResponse:
        """Run the requests, and send what the writer makes of them."""
        self.warning_log.report(body.warnings)
        headers, trace = {REQUEST_ID: writer.id}, http.get(TRACE)
        if trace is not None:
            trace.set_requests(requests, writer.id, body.contents if trace.wants_content else ())
            headers |= trace.headers
        if not body.stream:
            return web.json_response(writer.whole(await self.complete(requests)), headers=headers)
        events = _events(self.stream(requests), writer)
        return await sse.respond(http, events, headers, silence=self._silence(requests), named=writer.names_events)

    async def complete(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers in the order of the requests. Raises as `stream` does."""
        ended: dict[int, Completion] = {}
        # The event loop and the engine share the interpreter: a wake-up per token takes it from the engine.
        whole = [replace(request, streamed=False) for request in requests]
        async with aclosing(self.stream(whole)) as deltas:
            async for index, delta in deltas:
                if delta.completion is not None:
                    ended[index] = delta.completion
        return [ended[index] for index in range(len(requests))]

    async def stream(self, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, Delta], None]:
        """Run the requests at the same time; deltas as they come, each with its request's index.

        Closing this generator, or one that fails, aborts them all. Raises EngineError or DrainingError where a request
        has no answer.
        """
        indices = {request.id: index for index, request in enumerate(requests)}
        async with aclosing(self.engine.submit(requests)) as deltas:
            async for delta in deltas:
                ended = delta.completion
                if ended is not None:
                    _check_answer(ended)
                if ended is None or self.with_speedup is None:
                    yield indices[delta.request_id], delta
                else:
                    yield indices[delta.request_id], replace(delta, completion=await self.with_speedup(ended))

    def _silence(self, requests: Sequence[Request]) -> sse.Silence:
        """What a stream of these requests sends while it has no token."""
        names = frozenset(request.id for request in requests)

        def progress() -> str:
            found = self.engine.prompt_progress(names)
            if found.read < found.total:
                return f"prompt {found.read}/{found.total}"
            return "waiting" if found.total or not found.ahead else f"waiting, {found.ahead} ahead"

        return sse.Silence(progress, limits.QUIET_SECONDS, limits.COMMENT_SECONDS)


GENERATION = web.AppKey("generation", Generation)


def key_name(http: web.Request) -> str | None:
    """The name of the API key that the client sent; None where it needs none."""
    return http.get(KEY_NAME)


def seed_of_choice(seed: int | None, choice: int) -> int | None:
    """The seed of answer number `choice` (from 0) to a request with `seed`: (seed + choice * STEP) mod 2^63.

    So choice 0 is the answer of a request for one. No seed stays none: the engine then draws one for each.
    """
    if seed is None or choice == 0:
        return seed
    return (seed + choice * _SEED_STEP) % 2**63


def with_unique_ids(requests: list[Request]) -> list[Request]:
    """The requests with distinct ids, where there are several."""
    if len(requests) == 1:
        return requests
    return [replace(request, id=f"{request.id}-{index}") for index, request in enumerate(requests)]


async def _events(deltas: AsyncGenerator[tuple[int, Delta], None], writer: Writer) -> AsyncGenerator[Json, None]:
    opened: set[int] = set()
    async with aclosing(deltas):
        async for index, delta in deltas:
            for event in writer.pieces(index, delta, first=index not in opened):
                yield event
            opened.add(index)
    for event in writer.end():
        yield event


def _check_answer(completion: Completion) -> None:
    if completion.finish is FinishReason.ERROR:
        if completion.error is not None and ended_by_grammar(completion.error):
            raise RequestError(
                f"the request ended because {completion.error}; change the grammar or schema that the answer must fit"
            )
        raise EngineError(f"the engine failed on this request: {completion.error or 'no details'}; send it again")
    if completion.finish is FinishReason.ABORT:
        raise DrainingError
