"""What to use instead of a route that this server does not have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

_CHAT, _COMPLETIONS, _MODELS = "POST /v1/chat/completions", "POST /v1/completions", "GET /v1/models"
_BASE_URL = "set the base URL of the client so that it ends in /v1, once"
_OLLAMA, _LLAMA_CPP = "it has OpenAI's API and not Ollama's", "it has OpenAI's API and not llama.cpp's"
_ANTHROPIC = f"it has OpenAI's API and not Anthropic's, so use {_CHAT}"
_TGI = f"it has OpenAI's API and not TGI's or SGLang's, so use {_COMPLETIONS}"
_NO_EMBEDDINGS = "it generates text and computes no embeddings, so use another server for them"
_NO_SCORES = "it generates text and neither ranks nor classifies it, so use another server for that"
_TEXT_ONLY = f"it reads and writes text only, so send the text to {_CHAT}"
_NOT_STORED = "it keeps no responses or conversations, so send the whole conversation with POST /v1/responses"
_NO_FILES = f"it has no files, batches, training, assistants or threads, so send each conversation to {_CHAT}"
# What to use instead of routes of other APIs, and of OpenAI's that are not here. The longest matching prefix wins. A
# route that ends in a slash matches only paths below it.
_OTHER_ROUTES: Mapping[str, str] = {
    "/models": _BASE_URL,
    "/v1/v1": _BASE_URL,
    "/api/chat": f"{_OLLAMA}, so use {_CHAT}",
    "/api": f"{_OLLAMA}; see /openapi.json for its routes",
    "/api/generate": f"{_OLLAMA}, so use {_COMPLETIONS}",
    "/api/tags": f"{_OLLAMA}, so use {_MODELS}",
    "/api/show": f"{_OLLAMA}, so use {_MODELS}",
    "/api/ps": f"{_OLLAMA}, so use {_MODELS}",
    "/api/version": f"{_OLLAMA}, so use GET /version",
    "/v1/messages": _ANTHROPIC,
    "/v1/complete": _ANTHROPIC,
    "/v1beta": f"it has OpenAI's API and not Gemini's, so use {_CHAT}",
    "/completion": f"{_LLAMA_CPP}, so use {_COMPLETIONS}",
    "/infill": f"{_LLAMA_CPP}, so use {_COMPLETIONS}",
    "/props": f"{_LLAMA_CPP}, so use {_MODELS}",
    "/slots": f"{_LLAMA_CPP}, so use GET /metrics",
    "/generate": _TGI,
    "/generate_stream": _TGI,
    "/v1/embeddings": _NO_EMBEDDINGS,
    "/embeddings": _NO_EMBEDDINGS,
    "/embedding": _NO_EMBEDDINGS,
    "/api/embed": _NO_EMBEDDINGS,
    "/api/embeddings": _NO_EMBEDDINGS,
    "/v1/moderations": _NO_SCORES,
    "/v1/rerank": _NO_SCORES,
    "/v2/rerank": _NO_SCORES,
    "/rerank": _NO_SCORES,
    "/v1/score": _NO_SCORES,
    "/score": _NO_SCORES,
    "/classify": _NO_SCORES,
    "/v1/audio": _TEXT_ONLY,
    "/v1/images": _TEXT_ONLY,
    "/v1/videos": _TEXT_ONLY,
    "/v1/realtime": _TEXT_ONLY,
    "/v1/responses/": _NOT_STORED,
    "/apply-template": f"{_LLAMA_CPP}, so use POST /tokenize",
    "/v1/conversations": _NOT_STORED,
    "/v1/chat/completions/": _NOT_STORED,
    "/v1/files": _NO_FILES,
    "/v1/uploads": _NO_FILES,
    "/v1/batches": _NO_FILES,
    "/v1/fine_tuning": _NO_FILES,
    "/v1/assistants": _NO_FILES,
    "/v1/threads": _NO_FILES,
}
# Routes of earlier versions, for one release.
_REMOVED_ROUTES: Mapping[str, str] = {
    "/dashboard": "use GET / for the live page",
    "/admin/policies/simulate": "use `adaptspec policy simulate`",
    "/admin/policies/validate": "use POST /admin/policies?dry_run=true",
    "/admin/policies/": "use POST /admin/policies to send a policy, GET /admin/policies to list all with their YAML",
    "/admin/requests": "use GET /live/snapshot",
    "/admin/state/save": "state is saved every minute and at exit",
}
_NO_ADMIN_KEY = "it has no admin key, which these routes need: set ADAPTSPEC_ADMIN_KEY or give --admin-key-file"
_LONGEST_PATH = 60  # characters that are compared with the routes


def advice_for(path: str, routes: Collection[str]) -> str:
    """The end of the sentence "PATH does not exist", for a server with these `routes`."""
    routes = set(routes) - {"/"}
    if path.startswith("/admin/") and not any(route.startswith("/admin/") for route in routes):
        advice: str | None = _REMOVED_ROUTES.get(path, _NO_ADMIN_KEY)
    else:
        advice = _misplaced(path, routes) or _longest_match(path, _OTHER_ROUTES) or removed_route(path)
    if advice is not None:
        return f" on this server: {advice}"
    close = get_close_matches(path[:_LONGEST_PATH], [route for route in routes if "{" not in route], n=1, cutoff=0.8)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{hint}; see /openapi.json for the routes of this server"


def removed_route(path: str) -> str | None:
    """What to use instead of a route of an earlier version; None for other paths."""
    return _longest_match(path, _REMOVED_ROUTES)


def _longest_match(path: str, table: Mapping[str, str]) -> str | None:
    path = path.rstrip("/")
    matches = [route for route in table if path == route or path.startswith(f"{route.rstrip('/')}/")]
    return table[max(matches, key=len)] if matches else None


def _misplaced(path: str, routes: Collection[str]) -> str | None:
    """Advice for a path that is a route of this server but for its slashes or where /v1 stands in it."""
    parts = [part for part in path.split("/") if part]
    whole, tail = "/".join(parts), parts
    if "v1" in parts:
        tail = parts[len(parts) - parts[::-1].index("v1") :]
    for route, advice in (
        (f"/{whole}", "with one slash between its parts and none at its end"),
        ("/".join(("/v1", *tail)), f"so {_BASE_URL}"),
        ("/".join(("", *tail)), "which is not below /v1"),
    ):
        if route in routes:
            return f"use {route}, {advice}"
    return None
