"""What every handler works with: the engine, the codec, and whether new requests are still taken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from aiohttp import web

from adaptspec.errors import OverloadedError, PromptTooLongError, RequestError, UnknownModelError
from adaptspec.server.choices import seed_of_choice
from adaptspec.server.codec import Codec
from adaptspec.server.errors import BodyTimeoutError, BodyTypeError, DrainingError, EngineStoppedError
from adaptspec.server.limits import ServerLimits
from adaptspec.server.padding import Padding
from adaptspec.server.protocols import AsyncEngine
from adaptspec.server.timed import within
from adaptspec.server.turns import Turns
from adaptspec.server.wire import Body, GenerationBody, parse, shown
from adaptspec.types import Request, SamplingParams

SMALL_BODY = 2**16  # bytes; reading more JSON than this would be felt by the streams of other clients


class Service:
    """One engine behind one app."""

    def __init__(
        self,
        engine: AsyncEngine,
        codec: Codec,
        limits: ServerLimits = ServerLimits(),
        padding: Padding | None = None,
    ) -> None:
        self.engine = engine
        self.codec = codec
        self.limits = limits
        self.padding = padding
        self.reading = Turns(SMALL_BODY)
        self._compiling = asyncio.Lock()
        self.draining = False

    def admit(self) -> None:
        """Raise DrainingError, EngineStoppedError or OverloadedError if no request can be taken now."""
        if self.draining:
            raise DrainingError("the server is shutting down; send the request again to its successor")
        if not self.engine.alive:
            raise EngineStoppedError("the engine has stopped; restart the server and see its log")
        if self.full:
            load = self.engine.stats()
            raise OverloadedError(f"{load.running} requests run and {load.waiting} wait; send the request again later")

    @property
    def state(self) -> str:
        """dead, draining or ok."""
        return "dead" if not self.engine.alive else "draining" if self.draining else "ok"

    @property
    def full(self) -> bool:
        """Whether no request more can be taken."""
        load = self.engine.stats()
        return load.running + load.waiting >= self.engine.capacity

    @property
    def load(self) -> dict[str, int]:
        """Requests that run and wait, as they are told on the wire."""
        load = self.engine.stats()
        return {"running": load.running, "waiting": load.waiting}

    def check_model(self, name: str | None) -> None:
        """Raise UnknownModelError unless `name` is served; None means the served one."""
        served = self.engine.target.name
        if name is not None and name != served:
            raise UnknownModelError(f"the model {shown(name)} is not served here; ask for `{served}`", "model")

    def check_size(self, body: GenerationBody) -> None:
        """Raise RequestError for more prompts, or choices of them, than the engine can hold, before any is encoded."""
        prompts, param = body.prompts, body.prompt_field
        if prompts > self.engine.capacity:
            raise RequestError(
                f"{param} has {prompts} prompts; this server holds {self.engine.capacity} at once: send fewer", param
            )
        if prompts * body.choices > self.engine.capacity:
            raise RequestError(
                f"n is {body.choices} for {prompts} prompts; this server holds {self.engine.capacity} at once: ask "
                "for fewer",
                "n",
            )

    async def check_grammar(self, body: GenerationBody) -> None:
        """Compile what the answer must be, where streams do not wait for it.

        One at a time, in a thread that nothing else waits for: what a compiler does nobody can bound.
        Raises RequestError, also where it takes too long.
        """
        if not body.constrained:
            return
        async with self._compiling:
            try:
                await within(self.limits.grammar_seconds, lambda: self._check_grammar(body))
            except asyncio.TimeoutError as error:
                raise RequestError(
                    f"what the answer must be takes longer than {self.limits.grammar_seconds:g} seconds to compile; "
                    "send a simpler schema, or fewer tools"
                ) from error

    async def predicted(self, text: str) -> tuple[int, ...]:
        """Token ids of what an answer is expected to be, as far as the context goes. Raises PromptTooLongError."""
        tokens = await self.codec.encode(text, add_special_tokens=False, param="prediction")
        return tokens[: self.engine.target.context]

    def requests(
        self,
        identity: str,
        body: GenerationBody,
        prompts: Sequence[tuple[int, ...]],
        prediction: tuple[int, ...] = (),
        key: str | None = None,
    ) -> list[Request]:
        """One engine request per prompt and choice, prompt by prompt, all of which the engine can serve.

        `key` is the name of the client's API key.

        Raises RequestError if one cannot be.
        """
        self.check_prompts(body, prompts)
        speculation, wanted = body.speculation(), body.wanted_tokens
        requests: list[Request] = []
        for prompt in prompts:
            sampling = self._sampling(body, self.engine.target.context - len(prompt) if wanted is None else wanted)
            for choice in range(body.choices):
                alone = len(prompts) * body.choices == 1
                own = replace(sampling, seed=seed_of_choice(sampling.seed, choice))
                name = identity if alone else f"{identity}-{len(requests)}"
                requests.append(Request(name, prompt, own, speculation, body.operation, prediction, key))
        for request in requests:
            self.engine.check(request)
        return requests

    def check_prompt(self, prompt: tuple[int, ...], param: str) -> None:
        """Raise RequestError if it is empty, has ids that do not exist, or leaves no room for an answer."""
        target = self.engine.target
        if not prompt:
            raise RequestError(f"{param} is empty; send at least one token", param)
        if len(prompt) >= target.context:
            raise PromptTooLongError(
                f"{param} has {len(prompt)} tokens; {target.name} holds {target.context}, and one must be left for "
                "the answer: send less",
                param,
            )
        self.codec.check(prompt, param)

    def check_prompts(self, body: GenerationBody, prompts: Sequence[tuple[int, ...]]) -> None:
        """Raise RequestError if one of them, or its answer, cannot be."""
        for prompt in prompts:
            self.check_prompt(prompt, body.prompt_field)
            self._check_room(prompt, body)
        if body.echoes and body.alternatives is not None:
            told = sum(map(len, prompts)) * body.choices * (1 + body.alternatives)
            if told > self.limits.prompt_logprobs:
                raise RequestError(
                    f"logprobs of all prompt tokens are {told} numbers here; this server tells at most "
                    f"{self.limits.prompt_logprobs} in one answer: send fewer or shorter prompts, or ask for fewer "
                    "alternatives",
                    "logprobs",
                )

    def _check_grammar(self, body: GenerationBody) -> None:
        grammar = body.grammar
        if grammar is not None:
            self.engine.check_grammar(grammar)

    def _check_room(self, prompt: tuple[int, ...], body: GenerationBody) -> None:
        """An answer that somebody asked for must fit; how long one is that nobody asked for is up to us."""
        target, wanted, param = self.engine.target, body.wanted_tokens, body.tokens_field
        room = target.context - len(prompt)
        if param is not None and wanted is not None and wanted > room:
            raise PromptTooLongError(
                f"{param} is {wanted}, but {target.name} holds {target.context} tokens and the prompt has "
                f"{len(prompt)}: ask for at most {room}, or leave {param} out",
                param,
            )

    def _sampling(self, body: GenerationBody, max_tokens: int) -> SamplingParams:
        sampling = body.sampling(max_tokens)
        self.codec.check(sampling.stop_token_ids, "stop_token_ids")
        self.codec.check(sampling.logit_bias, "logit_bias")
        return sampling


SERVICE = web.AppKey("service", Service)


async def read_body(http: web.Request, model: type[Body]) -> Body:
    """The body of a request, read off the event loop where it is large. Raises RequestError.

    A JSON content type is required: browsers do not send it to other sites without asking, which keeps most web
    pages from using a server on their reader's machine. `exposure.Hosts` stops those whose own name was made to point
    to that machine.
    """
    if http.content_type != "application/json":
        raise BodyTypeError("send the body as JSON, with the header Content-Type: application/json")
    limits = http.app[SERVICE].limits
    late = BodyTimeoutError(
        f"the body did not arrive within {limits.body_seconds:g} seconds; send it faster, or a shorter one"
    )
    # Not asyncio.wait_for: before Python 3.12 it forgets to be cancelled when a client has gone just as its body came.
    timer = asyncio.get_running_loop().call_later(limits.body_seconds, http.content.set_exception, late)
    try:
        raw = await http.read()
    finally:
        timer.cancel()
    return await http.app[SERVICE].reading.run(len(raw), lambda: parse(model, raw, limits))
