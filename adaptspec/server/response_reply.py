"""Responses on the wire, whole and as events. Knows no HTTP."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from adaptspec.server.reply import ensure_complete, metrics
from adaptspec.server.response_items import Items
from adaptspec.server.responses import ResponsesBody
from adaptspec.server.tool_text import PlainText, ToolText, reader_of
from adaptspec.types import Completion, Delta, FinishReason

Json = dict[str, Any]


@dataclass(frozen=True)
class ResponseReply:
    """One response in the making. `calls`: it may call tools."""

    body: ResponsesBody
    model: str
    calls: bool
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = field(default_factory=lambda: f"resp_{uuid.uuid4().hex}")

    def whole(self, completion: Completion) -> Json:
        """The response in one object. Raises EngineError or DrainingError if it has failed."""
        ensure_complete(completion)
        items, reader = Items(), reader_of(self.calls)
        for part in (*reader.feed(completion.text), *reader.end()):
            for _ in items.take(part):
                pass
        for _ in items.end(_status(completion)):
            pass
        return self._ended(items, completion)

    async def events(self, deltas: AsyncGenerator[tuple[int, Delta], None]) -> AsyncGenerator[Json, None]:
        """The response in events, numbered."""
        number = 0
        async with aclosing(deltas):
            async for event in self._events(deltas):
                yield {**event, "sequence_number": number}
                number += 1

    async def _events(self, deltas: AsyncGenerator[tuple[int, Delta], None]) -> AsyncGenerator[Json, None]:
        items, reader, begun = Items(), reader_of(self.calls), False
        async for _, delta in deltas:
            completion = None if delta.completion is None else ensure_complete(delta.completion)
            if not begun:
                begun = True
                for kind in ("created", "in_progress"):
                    yield {"type": f"response.{kind}", "response": self._object("in_progress", Items())}
            for event in _told(items, reader, delta, completion):
                yield event
            if completion is not None:
                response = self._ended(items, completion)
                yield {"type": f"response.{response['status']}", "response": response}

    def _ended(self, items: Items, completion: Completion) -> Json:
        response = self._object(_status(completion), items)
        if completion.finish is FinishReason.LENGTH:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        output = len(completion.tokens)
        response["usage"] = {
            "input_tokens": completion.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": completion.prompt_tokens + output,
        }
        return response | {"metrics": metrics([completion])}

    def _object(self, status: str, items: Items) -> Json:
        asked = self.body.model_dump(by_alias=True)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": asked["instructions"],
            "max_output_tokens": asked["max_output_tokens"],
            "model": self.model,
            "output": items.all,
            "parallel_tool_calls": asked["parallel_tool_calls"] is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": 1.0 if asked["temperature"] is None else asked["temperature"],
            "text": {"format": (asked["text"] or {}).get("format") or {"type": "text"}},
            "tool_choice": asked["tool_choice"] or "auto",
            "tools": asked["tools"] or [],
            "top_p": 1.0 if asked["top_p"] is None else asked["top_p"],
            "truncation": "disabled",
            "usage": None,
            "user": asked["user"],
            "metadata": asked["metadata"] or {},
        }


def _told(items: Items, reader: ToolText | PlainText, delta: Delta, completion: Completion | None) -> Iterator[Json]:
    for part in reader.feed(delta.text):
        yield from items.take(part)
    if completion is not None:
        for part in reader.end():
            yield from items.take(part)
        yield from items.end(_status(completion))


def _status(completion: Completion) -> str:
    return "completed" if completion.finish is FinishReason.STOP else "incomplete"
