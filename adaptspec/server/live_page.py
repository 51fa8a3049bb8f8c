"""The live page: files that ship with the package, sent under a policy that lets them load nothing from elsewhere.

What the page shows comes from other routes, and needs their keys: the files hold no data.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from aiohttp import web

from adaptspec.server.routes import Operation, add_operations

FOLDER = Path(__file__).parent / "page"
# Only from this server, and nothing inline: text of models and users that reached the page could not run there.
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_MEDIA = tuple(kind.partition(";")[0] for kind in _TYPES.values())
_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_FILES = web.AppKey("page_files", dict[str, tuple[bytes, dict[str, str]]])


def add_page(app: web.Application) -> None:
    """Add the page at `/`; it asks for its own files at `/page/NAME`."""
    app[_FILES] = {path.name: _read(path) for path in FOLDER.iterdir() if path.suffix in _TYPES}
    add_operations(app, (index, file))


@Operation("get", "/", plain=("text/html",), cached=True)
async def index(http: web.Request) -> web.Response:
    """The live page."""
    return _answer(http, "index.html")


@Operation("get", "/page/{name}", plain=_MEDIA, refused=(404,), cached=True)
async def file(http: web.Request) -> web.Response:
    """A file of the live page."""
    return _answer(http, http.match_info["name"])


def _read(path: Path) -> tuple[bytes, dict[str, str]]:
    """The file and its headers; ETag changes with the content."""
    body = path.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    return body, _HEADERS | {"Content-Type": _TYPES[path.suffix], "ETag": tag}


def _answer(http: web.Request, name: str) -> web.Response:
    """The file, or 304 where the browser has it."""
    if name not in http.app[_FILES]:
        raise web.HTTPNotFound
    body, headers = http.app[_FILES][name]
    if http.headers.get("If-None-Match") == headers["ETag"]:
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, headers=headers)
