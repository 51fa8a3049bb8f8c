"""Bodies as they come over the wire: strict JSON, fields both endpoints share, and their translation to our types.

A field is either understood, or a no-op that OpenAI defines and that is accepted at its default only, or refused.
Nothing is ignored in silence. Knows no HTTP and no engine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, from_json, to_json

from adaptspec.errors import RequestError
from adaptspec.server.bounds import check_bounds, check_depth, check_structure
from adaptspec.server.limits import ServerLimits
from adaptspec.types import MAX_LOGPROBS, Grammar, SamplingParams, SpeculationParams

PROVENANCE = "adaptspec.provenance"
_SHOWN = 60  # characters of a client's own words that are repeated in a message

# Within 64 bits: a number of thousands of digits could not even be printed in an error message.
Int = Annotated[int, Field(ge=-(2**63) + 1, le=2**63 - 1)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
# `ServerLimits` may be set otherwise; what is told of them is what they are by default.
Choices = Annotated[
    int, Field(ge=1), WithJsonSchema({"type": "integer", "minimum": 1, "maximum": ServerLimits().choices})
]
Alternatives = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
Temperature = Annotated[float, Field(ge=0, le=100)]
Share = Annotated[float, Field(ge=0, le=1)]
TopP = Annotated[float, Field(gt=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
AtLeastNone = Annotated[int, Field(ge=0, le=2**63 - 1)]
AtLeastOne = Annotated[int, Field(ge=1, le=2**63 - 1)]
TOKEN_ID = "token-id"  # the format of numbers whose maximum the model's vocabulary gives
TokenId = Annotated[
    int, Field(ge=0, le=2**31 - 1), WithJsonSchema({"type": "integer", "minimum": 0, "format": TOKEN_ID})
]
NO_EFFECT = "Without effect: it cannot change the text."
STREAMS: Mapping[str, Any] = {"properties": {"stream": {"const": True}}, "required": ["stream"]}
NO_PROVENANCE: Mapping[str, Any] = {
    "properties": {"adaptspec": {"properties": {"provenance": {"enum": [False, None]}}}}
}
Stops = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": ServerLimits().stop_strings},
                {"type": "null"},
            ]
        }
    ),
]
Biases = Annotated[
    dict[str, float],
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,18}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        }
    ),
]

_PLAIN_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "ignore_eos",
    "min_tokens",
)


class WireModel(BaseModel):
    """A JSON object that is taken literally: no unknown keys, no "5" for 5, no NaN.

    `no_ops` are fields that would change nothing at the listed values, and are refused at others. `together` is what no
    single field can say, as JSON schemas that all hold: `check` of the body says it to clients.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    together: ClassVar[Sequence[Mapping[str, Any]]] = ()

    @model_validator(mode="before")
    @classmethod
    def _first_unknown(cls, value: Any) -> Any:
        """Of fields that it does not have keep one: to list thousands of them takes seconds."""
        if not isinstance(value, dict) or len(value) <= len(cls.model_fields):
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        first = next((name for name in value if name not in known), None)
        return {name: value[name] for name in (*known, first) if name in value}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Its JSON schema, no-ops included."""
        written = handler.resolve_ref_schema(handler(schema))
        for name, allowed in cls.no_ops.items():
            written.setdefault("properties", {})[name] = {"enum": list(allowed)}
        if cls.together:
            written["allOf"] = [dict(schema) for schema in cls.together]
        return written


class SpeculationFields(WireModel):
    """The `adaptspec` object of a request. `provenance`: a streamed answer is to say who drafted which of its words."""

    policy: Name | None = None
    task: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    max_depth: AtLeastNone | None = None
    stop_threshold: Share | None = None
    provenance: bool | None = None

    def speculation(self) -> SpeculationParams:
        """The same as our own type."""
        return SpeculationParams(
            self.policy, self.task, self.max_depth, self.stop_threshold, provenance=bool(self.provenance)
        )


class StreamOptions(WireModel):
    """Options of a streamed answer. `continuous_usage_stats` tells the usage so far with every piece, as vLLM does."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Annotated[bool, Field(description=NO_EFFECT)] = False


class GenerationBody(WireModel):
    """What completions and chat completions have in common. null means the default, as at OpenAI.

    `max_tokens` above what the context has room for is refused; left out, the answer may end where the context does,
    with the finish reason `length`. `adaptspec.max_depth` is a ceiling: a policy may stay below it.
    """

    prompt_field: ClassVar[str]  # where prompts come from, for messages
    operation: ClassVar[str]  # OpenTelemetry's name for it

    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    max_tokens: AtLeastNone | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: AtLeastNone | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    logit_bias: Biases | None = None
    seed: Int | None = None
    stop: Stops = None  # looked at in _stops()
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    min_tokens: AtLeastNone | None = None
    user: Annotated[str | None, Field(description=NO_EFFECT)] = None
    adaptspec: SpeculationFields | None = None

    together: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"anyOf": [STREAMS, {"properties": {"stream_options": {"type": "null"}}}]},
        {"anyOf": [STREAMS, NO_PROVENANCE]},
    )

    @property
    @abstractmethod
    def prompts(self) -> int:
        """How many there are."""

    @property
    @abstractmethod
    def contents(self) -> list[dict[str, str]]:
        """Roles and texts of what was sent; prompts of token ids have none."""

    @property
    @abstractmethod
    def wanted_tokens(self) -> int | None:
        """Output tokens the answer may have; None is as many as the context has room for."""

    @property
    def tokens_field(self) -> str | None:
        """The field that says how many output tokens are wanted; None where the client left it open."""
        return None if self.max_tokens is None else "max_tokens"

    @property
    def choices(self) -> int:
        """Answers wanted to each prompt."""
        return self.n or 1

    @property
    def alternatives(self) -> int | None:
        """Alternatives to tell per token with its log-probability; None where no log-probabilities are wanted."""
        return None

    @property
    def grammar(self) -> Grammar | None:
        """What the answer must be; None where any text will do."""
        return None

    @property
    def constrained(self) -> bool:
        """Whether there may be a `grammar`, which takes its time to write."""
        return False

    @property
    def echoes(self) -> bool:
        """Whether the answer begins with its prompt."""
        return False

    def check(self) -> None:
        """What no single field can say. Raises RequestError."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream: true; leave it out otherwise", "stream_options")
        if self.adaptspec is not None and self.adaptspec.provenance and not self.stream:
            raise RequestError("adaptspec.provenance needs stream: true; leave it out otherwise", PROVENANCE)
        if self.wanted_tokens is not None and self.wanted_tokens < 1 and not self.echoes:
            raise RequestError(f"{self.tokens_field} is {self.wanted_tokens}; it must be at least 1", self.tokens_field)

    def sampling(self, max_tokens: int) -> SamplingParams:
        """How to draw tokens. Raises RequestError for values out of range."""
        given = {name: value for name in _PLAIN_SAMPLING if (value := getattr(self, name)) is not None}
        return SamplingParams(
            max_tokens=max_tokens,
            logit_bias=self._biases(),
            stop=self._stops(),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            logprobs=self.alternatives,
            grammar=self.grammar,
            prompt_logprobs=self.alternatives if self.echoes else None,
            **given,
        )

    def speculation(self) -> SpeculationParams:
        """The request's own wishes. Raises RequestError for values out of range."""
        return self.adaptspec.speculation() if self.adaptspec is not None else SpeculationParams()

    def _stops(self) -> tuple[str, ...]:
        stops = [self.stop] if isinstance(self.stop, str) else [] if self.stop is None else self.stop
        if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
            raise RequestError("stop must be a string or a list of strings", "stop")
        return tuple(stops)

    def _biases(self) -> dict[int, float]:
        biases = self.logit_bias or {}
        for key in biases:
            if not (key.isascii() and key.isdecimal() and len(key) < 19):
                raise RequestError(
                    f"logit_bias has the key {shown(key)}; keys must be token ids such as 42", "logit_bias"
                )
        return {int(key): bias for key, bias in biases.items()}


Body = TypeVar("Body", bound=WireModel)


def parse(model: type[Body], raw: bytes, limits: ServerLimits = ServerLimits()) -> Body:
    """Read a body. Raises RequestError that names the field at fault."""
    check_structure(raw, limits)
    try:
        document = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise RequestError("the body must be a JSON object, such as {...}")
    check_depth(raw, document, limits.json_depth)
    check_bounds(document, limits)
    document = _without_no_ops(model, document)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        # Where several kinds are possible, the one that fits furthest is what was meant.
        same = [detail for detail in details if detail["loc"][:1] == details[0]["loc"][:1]]
        detail = max(same, key=lambda one: len(_place(document, one)))
        raise _refusal(model, detail, _place(document, detail)) from error


def without_no_ops(model: type[WireModel]) -> Any:
    """A validator that drops no-ops from objects nested in a body."""

    def drop(value: object) -> object:
        if not isinstance(value, dict):
            return value
        try:
            return _without_no_ops(model, value)
        except RequestError as error:
            raise PydanticCustomError("no_op", "{message}", {"message": str(error)}) from error

    return drop


def shown(text: str) -> str:
    """A client's own words, quoted and cut, for use in a message."""
    return f"`{text[:_SHOWN]}...`" if len(text) > _SHOWN else f"`{text}`"


def _without_no_ops(model: type[WireModel], document: dict[str, Any]) -> dict[str, Any]:
    for name, allowed in model.no_ops.items():
        if name in document and not any(_same(document[name], value) for value in allowed):
            wanted = " or ".join(_spelled(value) for value in allowed)
            raise RequestError(f"{name} is not supported by this server; leave it out (or send {wanted})", name)
    return {name: value for name, value in document.items() if name not in model.no_ops}


def _same(value: object, allowed: object) -> bool:
    return type(value) is type(allowed) and value == allowed  # True == 1 in Python


def _spelled(value: object) -> str:
    return to_json(value).decode()


def _refusal(model: type[WireModel], detail: ErrorDetails, place: tuple[int | str, ...]) -> RequestError:
    path = _path(place)
    if detail["type"] == "extra_forbidden":
        known = _fields_at(model, place[:-1])
        close = get_close_matches(str(place[-1])[:_SHOWN], known, n=1)  # what is longer is near none of them
        hint = f" (did you mean {_path((*place[:-1], close[0]))}?)" if close else ""
        return RequestError(f"{shown(path)} is not a field this server supports; leave it out{hint}", path[:_SHOWN])
    if detail["type"] == "missing":
        return RequestError(f"{path} is missing; add it", path)
    return RequestError(f"{shown(path)} {_reason(detail)}", path[:_SHOWN])


def _place(document: dict[str, Any], detail: ErrorDetails) -> tuple[int | str, ...]:
    """Where in the document it is: pydantic also names the kinds that it tried where several are possible."""
    at: Any = document
    place: list[int | str] = []
    for step, name in enumerate(detail["loc"], start=1):
        inside = name in at if isinstance(at, dict) else isinstance(at, list) and isinstance(name, int)
        if inside:
            at = at[name]
        if inside or (detail["type"] == "missing" and step == len(detail["loc"])):
            place.append(name)
    return tuple(place)


def _reason(detail: ErrorDetails) -> str:
    parts = "characters" if detail["type"].startswith("string") else "items"
    if detail["type"] in ("too_short", "string_too_short"):
        return f"is too short; send at least {detail['ctx']['min_length']} {parts}"
    if detail["type"] in ("too_long", "string_too_long"):
        return f"is too long; send at most {detail['ctx']['max_length']} {parts}"
    return f"cannot be used: {detail['msg']}"


def _fields_at(model: type[WireModel], loc: tuple[int | str, ...]) -> list[str]:
    """Names an object at this place of a body may have; none if it is no object of ours."""
    at: type[WireModel] | None = model
    for name in loc:
        if isinstance(name, str) and at is not None:
            at = _nested(at.model_fields[name].annotation) if name in at.model_fields else None
    return [] if at is None else list(at.model_fields)


def _nested(annotation: object) -> type[WireModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, WireModel):
        return annotation
    return next(filter(None, map(_nested, get_args(annotation))), None)


def _path(loc: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
