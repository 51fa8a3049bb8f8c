"""What a route says of itself."""

from __future__ import annotations

from aiohttp import web

from adaptspec.server.routes import OPERATIONS, Operation, add_operations


@Operation("get", "/things/{name:(?!all$)[^/]+}")
async def thing(http: web.Request) -> web.Response:
    """One thing.

    With words that take
    two lines.
    """
    return web.Response(text=http.match_info["name"])


def test_a_route_is_served_and_says_what_it_is() -> None:
    app = web.Application()
    add_operations(app, [thing])
    (operation,) = app[OPERATIONS]
    assert operation.words == ("One thing", "With words that take two lines.")
    assert {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource} == {
        (method, operation.place) for method in ("GET", "HEAD")
    }
