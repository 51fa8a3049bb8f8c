"""What every handler works with: the engine, the codec, and whether new requests are still taken."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from adaptspec.errors import RequestError, UnknownModelError
from adaptspec.server.codec import Codec
from adaptspec.server.errors import BodyTypeError, DrainingError, EngineStoppedError
from adaptspec.server.protocols import AsyncEngine
from adaptspec.server.wire import Body, GenerationBody, parse, shown
from adaptspec.types import Request, SamplingParams


class Service:
    """One engine behind one app."""

    def __init__(self, engine: AsyncEngine, codec: Codec) -> None:
        self.engine = engine
        self.codec = codec
        self.draining = False

    def admit(self) -> None:
        """Raise DrainingError or EngineStoppedError if no request can be taken."""
        if self.draining:
            raise DrainingError("the server is shutting down; send the request again to its successor")
        if not self.engine.alive:
            raise EngineStoppedError("the engine has stopped; restart the server and see its log")

    def check_model(self, name: str | None) -> None:
        """Raise UnknownModelError unless `name` is served; None means the served one."""
        served = self.engine.target.name
        if name is not None and name != served:
            raise UnknownModelError(f"the model {shown(name)} is not served here; ask for `{served}`", "model")

    def requests(
        self, identity: str, body: GenerationBody, prompts: Sequence[tuple[int, ...]], wanted: int | None
    ) -> list[Request]:
        """One engine request per prompt. `wanted` None asks for as many tokens as the context has room for."""
        speculation = body.speculation()
        if speculation.policy is not None and speculation.policy not in self.engine.policies:
            served = ", ".join(self.engine.policies)
            raise UnknownModelError(
                f"the policy {shown(speculation.policy)} is not served here; ask for one of {served}",
                "adaptspec.policy",
            )
        return [
            Request(
                id=identity if len(prompts) == 1 else f"{identity}-{index}",
                prompt=prompt,
                # At least 1: a prompt without room for a token is refused by the engine, which knows its limits.
                sampling=self._sampling(
                    body, max(self.engine.target.context - len(prompt), 1) if wanted is None else wanted
                ),
                speculation=speculation,
            )
            for index, prompt in enumerate(prompts)
        ]

    def _sampling(self, body: GenerationBody, max_tokens: int) -> SamplingParams:
        sampling = body.sampling(max_tokens)
        self.codec.check(sampling.stop_token_ids, "stop_token_ids")
        self.codec.check(sampling.logit_bias, "logit_bias")
        return sampling


SERVICE = web.AppKey("service", Service)


async def read_body(http: web.Request, model: type[Body]) -> Body:
    """The body of a request. Raises RequestError.

    A JSON content type is required: browsers do not send it to other sites without asking, so that a web page
    cannot use a server on its reader's machine.
    """
    if http.content_type != "application/json":
        raise BodyTypeError("send the body as JSON, with the header Content-Type: application/json")
    return parse(model, await http.read())


def ensure_prompt(prompt: tuple[int, ...], param: str) -> tuple[int, ...]:
    """The prompt itself. Raises RequestError if it has no token: there would be nothing to continue."""
    if not prompt:
        raise RequestError(f"{param} is empty; send at least one token", param)
    return prompt
