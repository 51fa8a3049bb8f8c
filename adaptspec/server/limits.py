"""Every bound of the server in one place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace

from adaptspec.errors import ConfigError

SPARE_BYTES = 20_000  # that any text may have: long runs of spaces matter where the context is short


@dataclass(frozen=True)
class ServerLimits:
    """What a client may ask for, and how long it may take. Sizes in bytes or counts, times in seconds.

    Prompts are bounded by the model's context, running requests by the engine's rows, waiting ones by `max_waiting`.
    """

    connections: int = 1024  # at once, or what the files that may be open have room for; more get 503
    header_bytes: int = 8190  # of one header, and of the request line
    header_seconds: float = 10.0  # for a request's headers: from their first byte, or the connection's beginning
    idle_seconds: float = 75.0  # between two requests of one connection; more than proxies keep theirs
    body_bytes: int = 4 * 2**20  # compressed bodies are refused
    body_seconds: float = 30.0
    quiet_seconds: float = 5.0  # of a stream without a token, before it sends its headers and a comment
    comment_seconds: float = 15.0  # from there on between comments, while there is no token
    stall_seconds: float = 50.0  # for a client to read on, while its answer fills all buffers
    json_depth: int = 64  # objects and lists within each other
    json_parts: int = 2**15  # objects, lists and names of fields in one body
    json_items: int = 2**18  # commas in one body: what all of its lists and objects hold, token ids among them
    text_bytes_per_token: int = 64  # of a text to encode or count, for each token of the context, and 20,000 more
    messages: int = 4096
    prompts: int = 128  # of one completions request
    tokens: int = 2**16  # of one request to /detokenize
    choices: int = 16  # n, best_of
    output_tokens: int = 2**20  # of one answer, where the context has room for more
    stop_strings: int = 16
    stop_characters: int = 1024  # of each
    stop_tokens: int = 256
    logit_bias: int = 1024  # entries
    logprobs: int = 20  # alternatives per token
    prompt_logprobs: int = 2**20  # told of all prompts of a request, alternatives and choices counted
    policies: int = 64  # served at once, where some are sent to the admin's routes
    template_seconds: float = 2.0  # for the model's chat template
    grammar_seconds: float = 10.0  # for a schema or tools to be compiled
    grammar_bytes: int = 2**30  # of compiled schemas and tools that requests hold, waiting and running; more get 429
    # Bytes of each constant, enum value or name in a schema, and of each text that a pattern spells out.
    schema_literal_bytes: int = 4096
    schema_multiples: int = 10_000  # all multipleOf in a schema; those that hold for one number are multiplied
    schema_min_length: int = 1024  # minLength next to a pattern or format
    hang_seconds: float = 4.0  # without progress of a busy engine, at least, before its requests end with an error

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"the limit {name} is {value}; it must be above 0")

    def text_bytes(self, context: int) -> int:
        """How long a text may be that is encoded: more than any of `context` tokens is, were it not for odd ones."""
        return self.text_bytes_per_token * context + SPARE_BYTES

    def changed(self, settings: Iterable[str]) -> ServerLimits:
        """The same with some set, each as NAME=VALUE. Raises ConfigError for what is no limit or no value of it."""
        kinds: dict[str, Callable[[str], float]] = {name: type(value) for name, value in asdict(self).items()}
        values: dict[str, float] = {}
        for setting in settings:
            name, _, text = setting.partition("=")
            name = name.strip().replace("-", "_")
            if name not in kinds:
                raise ConfigError(f"there is no limit {name!r}; there are: {', '.join(kinds)}")
            try:
                values[name] = kinds[name](text)
            except ValueError as error:
                raise ConfigError(f"the limit {name} cannot be {text!r}: it is a number above 0") from error
        return replace(self, **values)  # type: ignore[arg-type]
