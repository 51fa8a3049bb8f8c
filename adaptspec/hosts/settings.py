"""What users say of a pilot, and what requests ask of it, as another engine hands it on: plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from adaptspec.control.language.schema import kebab, suggestion
from adaptspec.errors import ConfigError, RequestError
from adaptspec.request import SpeculationParams
from adaptspec.telemetry.otlp import TraceSettings

_PREFIX = "adaptspec_"
_DEEPEST = 2**31 - 1  # of a wish: deeper is as deep as there is, and fits into an array


def _listed(told: Any) -> Any:
    return [told] if isinstance(told, str) else told


class PilotSettings(BaseModel):
    """In vLLM: `--additional-config '{"adaptspec": {"policy": "policy.yaml", "journal": "rounds.jsonl"}}'`.

    `policy`: names or files; the first serves requests that name none. `state_dir`: where what was learned is kept,
    for all engines that share it; each writes a file of its own every `state_seconds`. `journal`: a file of rounds.
    `metrics_port`: serves Prometheus metrics. `skip_draft`: see `Plan.skip`. `traces`: as a server of
    ours has them, without texts.
    """

    model_config = ConfigDict(alias_generator=kebab, populate_by_name=True, frozen=True, extra="forbid")

    policy: Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)] = ("goodput",)
    state_dir: Path | None = None
    state_seconds: float = Field(default=60.0, gt=0.0)
    journal: Path | None = None
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    skip_draft: bool = False
    traces: TraceSettings = TraceSettings()

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> PilotSettings:
        """From plain data, keys as users write them (`state-dir`). Raises ConfigError for what is unknown or wrong."""
        try:
            return cls.model_validate(dict(told))
        except ValidationError as error:
            known = [kebab(name) for name in cls.model_fields]
            first, *_ = error.errors(include_url=False)
            where = ".".join(map(str, first["loc"]))
            if first["type"] == "extra_forbidden":
                near = suggestion(where, known)
                raise ConfigError(
                    f"adaptspec: unknown setting {where!r}{near}; there are: {', '.join(known)}"
                ) from error
            raise ConfigError(f"adaptspec: {where}: {first['msg'].lower()}, not {first['input']!r}") from error


def read_wishes(extra: object) -> tuple[SpeculationParams, dict[str, str]]:
    """The wishes among the extra arguments of a request, and why others cannot be used, by name:
    `adaptspec_policy`, `adaptspec_task` and `adaptspec_max_depth`, in vLLM in `vllm_xargs`. Reasons are those of
    `IGNORED`.

    It is read where an exception would end the server for everybody, so nothing here raises: what cannot be used is
    left out and named, and the rest holds.
    """
    wishes, ignored = SpeculationParams(), dict[str, str]()
    told = {} if not isinstance(extra, Mapping) else extra
    for name in told:
        if not (isinstance(name, str) and name.startswith(_PREFIX)):
            continue
        field = name.removeprefix(_PREFIX)
        try:
            wishes = replace(wishes, **{field: _READERS[field](told[name])})
        except (KeyError, ValueError, RequestError):
            ignored[name] = field if field in _READERS else UNKNOWN
    return wishes, ignored


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a name")
    return value


def _depth(value: Any) -> int:
    """A whole number, also as text, since not every client can send numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or value != value:  # noqa: PLR0124
        raise ValueError("not a number of tokens")
    if isinstance(value, str):
        return min(int(value), _DEEPEST)
    if value > _DEEPEST:
        return _DEEPEST
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("not a whole number")
    return int(value)


_READERS: Mapping[str, Callable[[Any], Any]] = {"policy": _name, "task": _name, "max_depth": _depth}
UNKNOWN, NOT_SERVED = "unknown", "not_served"
IGNORED = (*_READERS, UNKNOWN, NOT_SERVED)  # a value that cannot be used, no such wish, no such policy here
