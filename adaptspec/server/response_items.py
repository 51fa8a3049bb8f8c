"""The output of a response, item by item, and the events that tell a stream of it.

A whole answer goes through the same steps, its events unread. Knows OpenAI's event names; not where text comes from.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from adaptspec.server.tool_text import Opened, Part, Words

Json = dict[str, Any]


class Items:
    """Grows with what is written. `all` are the items, as a response holds them."""

    def __init__(self) -> None:
        self.all: list[Json] = []
        self._open = False

    def take(self, part: Part) -> Iterator[Json]:
        """The next part of the answer."""
        if isinstance(part, Words):
            if not self._open or self.all[-1]["type"] != "message":
                yield from self.close()
                yield from self._open_message()
            self.all[-1]["content"][0]["text"] += part.text
            yield self._event("response.output_text.delta", content_index=0, delta=part.text, logprobs=[])
        elif isinstance(part, Opened):
            yield from self.close()
            yield from self._open_item(
                {"type": "function_call", "call_id": _id("call"), "name": part.name, "arguments": ""}, "fc"
            )
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
            yield self._event("response.output_text.done", content_index=0, text=part["text"], logprobs=[])
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
        yield self._event("response.content_part.added", content_index=0, part=dict(part))

    def _open_item(self, item: Json, prefix: str) -> Iterator[Json]:
        self.all.append({"id": _id(prefix), "status": "in_progress", **item})
        self._open = True
        yield self._item_event("response.output_item.added")

    def _item_event(self, kind: str) -> Json:
        item = self.all[-1]
        copied = item | {"content": [dict(part) for part in item["content"]]} if "content" in item else dict(item)
        return {"type": kind, "output_index": len(self.all) - 1, "item": copied}

    def _event(self, kind: str, **more: Any) -> Json:
        return {"type": kind, "item_id": self.all[-1]["id"], "output_index": len(self.all) - 1, **more}


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:24]}"
