"""The live page: files that ship with the package, sent under a policy that lets them load nothing from elsewhere.

Knows files and headers; what the page shows comes from other routes, and needs their keys. The files hold no data.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class PageFile:
    """One file as it is sent; `tag` changes with its content."""

    body: bytes
    content_type: str
    tag: str

    @classmethod
    def read(cls, path: Path) -> PageFile:
        """From the package."""
        body = path.read_bytes()
        return cls(body, _TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:16]}"')

    def answer(self, http: web.Request) -> web.Response:
        """The file, or 304 where the browser has it."""
        headers = {
            "Content-Security-Policy": CONTENT_POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
            "ETag": self.tag,
        }
        if http.headers.get("If-None-Match") == self.tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=self.body, headers=headers | {"Content-Type": self.content_type})


FILES = web.AppKey("page_files", dict[str, PageFile])


def add_page(app: web.Application) -> None:
    """Add the page at `/` and `/dashboard`; it asks for its own files at `/page/NAME`."""
    app[FILES] = {path.name: PageFile.read(path) for path in sorted(FOLDER.iterdir()) if path.suffix in _TYPES}
    add_operations(app, (index, replace(index, path="/dashboard"), file))


@Operation("get", "/", plain=("text/html",), cached=True)
async def index(http: web.Request) -> web.Response:
    """The live page."""
    return http.app[FILES]["index.html"].answer(http)


@Operation("get", "/page/{name}", plain=_MEDIA, refused=(404,), cached=True)
async def file(http: web.Request) -> web.Response:
    """A file of the live page."""
    found = http.app[FILES].get(http.match_info["name"])
    if found is None:
        raise web.HTTPNotFound
    return found.answer(http)
