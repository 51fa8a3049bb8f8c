"""Fields of OpenAI's API that cannot change a text here: of the right type they are accepted, and without effect.

Clients set them for OpenAI's own books, caches, tiers and reasoning models.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from adaptspec.server.wire import NO_EFFECT, WireModel

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Idle = Field(description=NO_EFFECT)


class CacheOptions(WireModel):
    """How a cache of prompts is to be filled."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: str | None = None


class Hints(WireModel):
    """What chats and responses have in common. `store`: nothing is stored, whatever it says."""

    metadata: Annotated[Metadata | None, Idle] = None
    store: Annotated[bool | None, Field(description=f"{NO_EFFECT} Nothing is stored.")] = None
    service_tier: Annotated[Literal["auto", "default", "flex", "scale", "priority", "fast"] | None, Idle] = None
    safety_identifier: Annotated[str | None, Idle] = None
    prompt_cache_key: Annotated[str | None, Idle] = None
    prompt_cache_retention: Annotated[Literal["in_memory", "in-memory", "24h"] | None, Idle] = None
    prompt_cache_options: Annotated[CacheOptions | None, Idle] = None


class Reasoning(WireModel):
    """How a reasoning model is to think, which says nothing to others."""

    effort: Annotated[Effort | None, Idle] = None
    summary: Annotated[Literal["auto", "concise", "detailed"] | None, Idle] = None
    generate_summary: Annotated[Literal["auto", "concise", "detailed"] | None, Idle] = None


class ResponseStreamOptions(WireModel):
    """Options of a streamed response."""

    include_obfuscation: Annotated[bool | None, Idle] = None
