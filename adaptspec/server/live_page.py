"""The live page: files that ship with the package, sent under a policy that lets them load nothing from elsewhere.

What the page shows comes from other routes, and needs their keys: the files hold no data.
"""

from __future__ import annotations

from dataclasses import replace
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


def add_page(app: web.Application) -> None:
    """Add the page at `/` and `/dashboard`; it asks for its own files at `/page/NAME`."""
    add_operations(app, (index, replace(index, path="/dashboard"), file))


@Operation("get", "/", plain=("text/html",), cached=True)
async def index(_: web.Request) -> web.FileResponse:
    """The live page."""
    return _sent(FOLDER / "index.html")


@Operation("get", "/page/{name}", plain=_MEDIA, refused=(404,), cached=True)
async def file(http: web.Request) -> web.FileResponse:
    """A file of the live page."""
    found = next((path for path in FOLDER.iterdir() if path.name == http.match_info["name"]), None)
    if found is None or found.suffix not in _TYPES:
        raise web.HTTPNotFound
    return _sent(found)


def _sent(path: Path) -> web.FileResponse:
    return web.FileResponse(path, headers=_HEADERS | {"Content-Type": _TYPES[path.suffix]})
