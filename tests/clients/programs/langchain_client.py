"""LangChain: invoke, stream, batch, tools and structured output. Prints what it read as one line of JSON."""

import json
import os

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

common = {"base_url": os.environ["ADAPTSPEC_URL"], "api_key": "unused", "model": "bundled", "temperature": 0}
chat = ChatOpenAI(**common, max_tokens=24, max_retries=0)


class Place(BaseModel):
    """A place."""

    town: str
    people: int


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return word


longer = ChatOpenAI(**common, max_tokens=120, max_retries=0, seed=2)
bound = longer.bind_tools([look_up], tool_choice="look_up", parallel_tool_calls=False)
called = bound.invoke("Look up fox.")
try:
    place = longer.with_structured_output(Place, method="json_schema").invoke("Name a town.").model_dump()
except Exception as error:  # a small model may never close a string: then the error must be about that
    place = {"error": type(error).__name__}
print(
    json.dumps(
        {
            "whole": chat.invoke("Tell me a story.").content,
            "streamed": "".join(chunk.content for chunk in chat.stream("Tell me a story.")),
            "batch": [answer.content for answer in chat.batch(["Tell me a story.", "Hello"])],
            "calls": [call["name"] for call in called.tool_calls + called.invalid_tool_calls],
            "place": place,
            "text": OpenAI(**common, max_tokens=5).invoke("Once"),
        }
    )
)
