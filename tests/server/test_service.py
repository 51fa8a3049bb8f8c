"""Which requests are taken."""

from __future__ import annotations

from typing import Any

import pytest

from adaptspec.errors import UnknownModelError
from adaptspec.server.codec import Codec
from adaptspec.server.completions import CompletionBody
from adaptspec.server.errors import DrainingError, EngineStoppedError
from adaptspec.server.service import Service


@pytest.fixture
def service(engine: Any, tokenizer: Any) -> Service:
    return Service(engine, Codec(tokenizer, 260))


def test_nothing_is_taken_while_draining_or_dead(service: Service, engine: Any) -> None:
    service.admit()
    engine.alive = False
    with pytest.raises(EngineStoppedError):
        service.admit()
    service.draining = True
    with pytest.raises(DrainingError):
        service.admit()


def test_unknown_policies_are_refused_with_those_that_exist(service: Service) -> None:
    body = CompletionBody.model_validate({"prompt": "x", "adaptspec": {"policy": "nope"}})
    with pytest.raises(UnknownModelError, match="goodput, static"):
        service.requests("id", body, [(5,)], 3)


def test_prompts_get_ids_of_their_own(service: Service) -> None:
    body = CompletionBody.model_validate({"prompt": ["x", "y"]})
    assert [request.id for request in service.requests("id", body, [(5,), (6,)], 3)] == ["id-0", "id-1"]
    assert [request.id for request in service.requests("id", body, [(5,)], 3)] == ["id"]
