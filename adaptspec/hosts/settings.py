"""What users say of a pilot, as another engine hands it on: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from adaptspec.control.language.schema import kebab, suggestion
from adaptspec.errors import ConfigError


def _listed(told: Any) -> Any:
    return [told] if isinstance(told, str) else told


class PilotSettings(BaseModel):
    """In vLLM: `--additional-config '{"adaptspec": {"policy": "policy.yaml", "journal": "rounds.jsonl"}}'`.

    `policy`: names or files; the first serves requests that name none. `state_dir`: where what was learned is kept,
    for all engines that share it; each writes a file of its own every `state_seconds`. `journal`: a file of rounds.
    `metrics_port`: serves Prometheus metrics. `skip_draft`: see `Plan.skip`.
    """

    model_config = ConfigDict(alias_generator=kebab, populate_by_name=True, frozen=True, extra="forbid")

    policy: Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)] = ("goodput",)
    state_dir: Path | None = None
    state_seconds: float = Field(default=60.0, gt=0.0)
    journal: Path | None = None
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    skip_draft: bool = False

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
