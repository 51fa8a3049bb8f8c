"""What the server needs of the engine and of a tokenizer. The real ones are passed in; tests pass fakes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from adaptspec.models.runner import ModelInfo
from adaptspec.models.tokenization import Vocabulary
from adaptspec.types import Completion, Delta, Grammar, Request

# The pieces of one answer, in order; the last one carries the completion. `aclose` aborts what has not ended.
DeltaStream = AsyncGenerator[Delta, None]


class Load(Protocol):
    """How busy the engine is."""

    @property
    def running(self) -> int:
        """Requests in the batch."""

    @property
    def waiting(self) -> int:
        """Requests in the queue."""


class AsyncEngine(Protocol):
    """The engine as the event loop sees it.

    `stream` and `generate` raise `RequestError` for a request that cannot be served and `EngineError` if the
    engine is dead; cancelling them aborts the request.
    """

    @property
    def target(self) -> ModelInfo:
        """The model whose text is served."""

    @property
    def policies(self) -> tuple[str, ...]:
        """Names a request may ask for."""

    @property
    def default_policy(self) -> str:
        """The policy of requests that name none."""

    @property
    def capacity(self) -> int:
        """The most requests it can hold at once, running and waiting."""

    @property
    def alive(self) -> bool:
        """Whether the engine thread still runs."""

    def stats(self) -> Load:
        """How busy it is now."""

    def check(self, request: Request) -> None:
        """Raise `RequestError` if the request could never be served. Starts nothing."""

    def check_grammar(self, grammar: Grammar) -> None:
        """Compile it; RequestError if it cannot be used. Any thread may ask, and should: it takes its time."""

    def stream(self, request: Request) -> DeltaStream:
        """The answer, piece by piece."""

    async def generate(self, request: Request) -> Completion:
        """The whole answer."""

    async def drain(self, seconds: float) -> None:
        """Take no new requests, wait until those in flight have ended, abort what is left after `seconds`."""


class Tokenizer(Vocabulary, Protocol):
    """The part of a fast transformers tokenizer that the server uses."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to token ids."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str | list[str]:
        """Token ids to text; transformers types it for batches too."""

    @property
    def chat_template(self) -> Any:
        """How conversations become prompts."""

    def apply_chat_template(
        self, conversation: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool, **options: Any
    ) -> Any:
        """The prompt of a conversation; a string when `tokenize` is False. `options` are for the template."""


class ServedPolicy(Protocol):
    """A policy as it runs."""

    @property
    def name(self) -> str:
        """What requests call it."""

    @property
    def description(self) -> str:
        """What it is for."""

    @property
    def mode(self) -> str:
        """live, canary or shadow."""

    @property
    def text(self) -> str:
        """Its YAML."""


class Estimate(Protocol):
    """What a shadow policy would have earned; see `adaptspec.control.shadow.ShadowEstimate`."""

    @property
    def policy(self) -> str:
        """The shadow."""

    @property
    def against(self) -> str:
        """The policy that acts."""

    @property
    def rounds(self) -> int:
        """Rounds that were compared."""

    @property
    def goodput_ratio(self) -> float:
        """Estimated goodput over that of the policy that acts."""

    @property
    def guessed(self) -> float:
        """Share of its tokens that nothing observed vouches for."""


class Applied(Protocol):
    """What became of a policy that was sent."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def replaced(self) -> bool:
        """Whether one of this name ran before."""

    @property
    def carried(self) -> bool:
        """Whether what that one had learned was kept."""


class Policies(Protocol):
    """The policies that run, and changing them."""

    @property
    def served(self) -> Sequence[ServedPolicy]:
        """All of them."""

    @property
    def default(self) -> str:
        """The one of requests that name none."""

    def on_request(self) -> Sequence[ServedPolicy]:
        """Those a request may name."""

    def estimates(self) -> Sequence[Estimate]:
        """What shadows would have earned."""

    def check(self, text: str, source: str) -> str:
        """The name of the policy in a text, if it could be served; raises ConfigError. Changes nothing."""

    def apply(self, text: str, source: str) -> Applied:
        """Serve a policy from the next round on; raises ConfigError, with nothing changed, if it cannot be used."""

    def remove(self, name: str) -> None:
        """Serve a policy no longer; raises UnknownModelError, and ConfigError for one that cannot go."""

    def reload(self) -> Sequence[Mapping[str, Any]]:
        """Read every policy's file again; what became of each."""

    def forget(self) -> Sequence[str]:
        """Have every policy learn anew; their names."""


class Keeper(Protocol):
    """Keeps what was learned."""

    def save(self) -> bool:
        """Write it down now; False if it could not be."""


class Decisions(Protocol):
    """What was decided lately."""

    def requests(self, drafters: Sequence[str]) -> list[dict[str, Any]]:
        """The requests that run, with their decisions, as plain data."""


class Exposition(Protocol):
    """Where `/metrics` gets its text from, and where HTTP answers are counted."""

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Body and content type for an Accept header."""

    def responded(self, route: str, status: int) -> None:
        """One HTTP answer has been made; `route` is one of few."""


class Trace(Protocol):
    """What is noted of one HTTP request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Its context, for the answer."""

    @property
    def wants_content(self) -> bool:
        """Whether prompts may be told."""

    def asked(self, requests: Sequence[Request], answer: str, content: Sequence[Mapping[str, str]]) -> None:
        """What it becomes for the engine. `content`, roles and texts, is left empty where it is not wanted."""

    def end(self, status: int, error: str | None) -> None:
        """The answer is over; `error` is one of few words."""


class Tracing(Protocol):
    """Where traces begin."""

    def begin(self, operation: str, headers: Mapping[str, str]) -> Trace:
        """An HTTP request has come in; `operation` is OpenTelemetry's name for it."""
