"""Answers of `/v1/responses`: whole, and as the events that OpenAI names for a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from copy import deepcopy
from typing import Any, Literal

from pydantic import BaseModel

from adaptspec.models.chat.template_traits import new_call_id
from adaptspec.request import Reasoning
from adaptspec.results import Completion, Delta, FinishReason, TokenLogprob
from adaptspec.server.api.answers import Answer, Bytes, Json, Metrics, metrics
from adaptspec.server.api.call_reader import CallReader, CallStart, Part, TextPiece
from adaptspec.server.api.chat import answer_logprobs
from adaptspec.server.api.content_logprobs import ContentLogprobs, ShownToken
from adaptspec.server.api.reasoning import ReasoningPiece, ReasoningReader, ReasoningTokens
from adaptspec.server.api.responses import ResponsesBody


class Response(BaseModel):
    """A response; what it repeats of its request is not spelled out here."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any]
    metrics: Metrics
    warnings: list[str] | None = None


class InputTokens(Answer):
    """How many tokens the prompt of a response has."""

    object: Literal["response.input_tokens"]
    input_tokens: int
    warnings: list[str] | None = None


class ResponseReply:
    """One response in the making. `reader` reads the calls of its answer."""

    def __init__(
        self,
        model: str,
        body: ResponsesBody,
        bytes_of: Bytes,
        reader: CallReader,
        matched: ContentLogprobs | None = None,
    ) -> None:
        """`matched` finds the tokens of its text, whose log-probabilities are wanted."""
        self.id = _id("resp", 32)
        self._created = int(time.time())
        self._model = model
        self._asked = body.model_dump(by_alias=True, exclude={"input"})
        self._choice = body.choice
        self._warnings = body.warnings
        self._calls = reader
        self._bytes_of = bytes_of
        self._matched = matched
        self.expect(None)
        self._items: OutputItems | None = None  # from the first piece on

    def expect(self, reasoning: Reasoning | None) -> None:
        """The answer may begin with a reasoning, or go on in one."""
        self._reader = ReasoningReader(reasoning, self._calls)
        self._tokens = ReasoningTokens[None](reasoning)
        self._shown = ReasoningTokens[ShownToken](reasoning)

    def whole(self, completion: Completion) -> Json:
        """The response in one object: that of the last event."""
        *_, last = self._events(completion.text, completion, completion.logprobs)
        response: Json = last["response"]
        return response

    async def events(self, deltas: AsyncGenerator[tuple[int, Delta], None]) -> AsyncGenerator[Json, None]:
        number = 0
        async with aclosing(deltas):
            async for _, delta in deltas:
                for event in self._events(delta.text, delta.completion, delta.logprobs):
                    yield {**event, "sequence_number": number}
                    number += 1

    def _events(self, text: str, completion: Completion | None, logprobs: Sequence[TokenLogprob]) -> Iterator[Json]:
        if self._items is None:
            self._items = OutputItems()
            for kind in ("created", "in_progress"):
                yield {"type": f"response.{kind}", "response": self._object("in_progress", OutputItems())}
        if self._matched is not None:
            shown = self._matched.take(logprobs, text, final=completion is not None)
            found = answer_logprobs(self._shown, shown, self._bytes_of, final=completion is not None)
            self._items.logprobs += found.written()["content"]
        for part in self._reader.feed(text):
            yield from self._items.take(part)
        if completion is not None:
            for part in self._reader.end():
                yield from self._items.take(part)
            yield from self._items.end(_status(completion))
            response = self._ended(self._items, completion)
            yield {"type": f"response.{response['status']}", "response": response}

    def _ended(self, items: OutputItems, completion: Completion) -> Json:
        response = self._object(_status(completion), items)
        if completion.finish is FinishReason.LENGTH:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        output = len(completion.tokens)
        self._tokens.answer((self._bytes_of(token), None) for token in completion.tokens)
        response["usage"] = {
            "input_tokens": completion.prompt_tokens,
            "input_tokens_details": {"cached_tokens": completion.cached_tokens},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": self._tokens.count},
            "total_tokens": completion.prompt_tokens + output,
        }
        return response | {"metrics": metrics([completion]).written()} | self._warnings.written()

    def _object(self, status: str, items: OutputItems) -> Json:
        asked = self._asked
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": asked["instructions"],
            "max_output_tokens": asked["max_output_tokens"],
            "model": self._model,
            "output": items.all,
            "parallel_tool_calls": asked["parallel_tool_calls"] is not False,
            "previous_response_id": None,
            "reasoning": {"effort": (asked["reasoning"] or {}).get("effort"), "summary": None},
            "store": False,
            "temperature": 1.0 if asked["temperature"] is None else asked["temperature"],
            "text": {"format": (asked["text"] or {}).get("format") or {"type": "text"}},
            "tool_choice": self._choice,
            "tools": asked["tools"] or [],
            "top_p": 1.0 if asked["top_p"] is None else asked["top_p"],
            "top_logprobs": asked["top_logprobs"] or 0,
            "truncation": asked["truncation"] or "disabled",
            "usage": None,
            "user": asked["user"],
            "metadata": asked["metadata"] or {},
        }


class OutputItems:
    """The output of a response, item by item; each step gives its events.

    `logprobs` are of tokens whose text no event has had: the next piece of text takes them, or the next call, which has
    none.
    """

    def __init__(self) -> None:
        self.all: list[Json] = []  # as a response holds them
        self.logprobs: list[Json] = []
        self._open = False

    def take(self, part: Part | ReasoningPiece) -> Iterator[Json]:
        if isinstance(part, ReasoningPiece):
            if not self._open or self.all[-1]["type"] != "reasoning":
                yield from self._open_reasoning()
            self.all[-1]["content"][0]["text"] += part.text
            yield self._event("response.reasoning_text.delta", content_index=0, delta=part.text)
        elif isinstance(part, TextPiece):
            if not self._open or self.all[-1]["type"] != "message":
                yield from self._open_message()
            content, logprobs = self.all[-1]["content"][0], self.logprobs
            content["text"] += part.text
            content["logprobs"] += logprobs
            self.logprobs = []
            yield self._event("response.output_text.delta", content_index=0, delta=part.text, logprobs=logprobs)
        elif isinstance(part, CallStart):
            self.logprobs = []
            call = {"type": "function_call", "call_id": new_call_id(), "name": part.name, "arguments": ""}
            yield from self._open_item(call, "fc")
        else:
            self.all[-1]["arguments"] += part.text
            yield self._event("response.function_call_arguments.delta", delta=part.text)

    def close(self, status: str = "completed") -> Iterator[Json]:
        """The open item ends; `status` says how."""
        if not self._open:
            return
        self._open = False
        item = self.all[-1]
        item["status"] = status
        if item["type"] == "message":
            part = item["content"][0]
            text, logprobs = part["text"], part["logprobs"]
            yield self._event("response.output_text.done", content_index=0, text=text, logprobs=logprobs)
            yield self._event("response.content_part.done", content_index=0, part=dict(part))
        elif item["type"] == "reasoning":
            part = item["content"][0]
            yield self._event("response.reasoning_text.done", content_index=0, text=part["text"])
            yield self._event("response.content_part.done", content_index=0, part=dict(part))
        else:
            name, arguments = item["name"], item["arguments"]
            yield self._event("response.function_call_arguments.done", name=name, arguments=arguments)
        yield self._item_event("response.output_item.done")

    def end(self, status: str) -> Iterator[Json]:
        """The answer ends; one that says nothing is an empty message."""
        if not self.all:
            yield from self._open_message()
        yield from self.close(status)

    def _open_message(self) -> Iterator[Json]:
        yield from self._open_item({"type": "message", "role": "assistant", "content": []}, "msg")
        part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self.all[-1]["content"].append(part)
        yield self._event("response.content_part.added", content_index=0, part=deepcopy(part))

    def _open_reasoning(self) -> Iterator[Json]:
        yield from self._open_item({"type": "reasoning", "summary": [], "content": []}, "rs")
        part: Json = {"type": "reasoning_text", "text": ""}
        self.all[-1]["content"].append(part)
        yield self._event("response.content_part.added", content_index=0, part=dict(part))

    def _open_item(self, item: Json, prefix: str) -> Iterator[Json]:
        yield from self.close()
        self.all.append({"id": _id(prefix), "status": "in_progress", **item})
        self._open = True
        yield self._item_event("response.output_item.added")

    def _item_event(self, kind: str) -> Json:
        return {"type": kind, "output_index": len(self.all) - 1, "item": deepcopy(self.all[-1])}

    def _event(self, kind: str, **more: Any) -> Json:
        return {"type": kind, "item_id": self.all[-1]["id"], "output_index": len(self.all) - 1, **more}


def _status(completion: Completion) -> str:
    return "completed" if completion.finish is FinishReason.STOP else "incomplete"


def _id(prefix: str, length: int = 24) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:length]}"
