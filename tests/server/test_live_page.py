"""The page's files: all that it asks for is there, nothing is inline or from elsewhere, nothing else is sent."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.server.app import make_app
from adaptspec.server.auth import Access
from adaptspec.server.live_page import FOLDER
from adaptspec.telemetry.metrics import Metrics
from tests.server.conftest import Client, FakeEngine
from tests.telemetry.rounds import empty_feed

TEXTS = {path.name: path.read_text() for path in FOLDER.iterdir()}


@pytest.fixture
def app(engine: FakeEngine, tokenizer: Any) -> web.Application:
    return make_app(engine, tokenizer, Metrics(), live=empty_feed())


def test_every_file_is_asked_for_and_every_file_asked_for_is_there() -> None:
    asked = set(re.findall(r'(?:src|href)="page/([^"]+)"', TEXTS["index.html"])) | {"index.html"}
    for name, text in TEXTS.items():
        if name.endswith(".js"):
            asked |= set(re.findall(r'from "\./([^"]+)"', text))
    assert asked == set(TEXTS)


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    """The content policy would refuse it, and the page would break."""
    page = TEXTS["index.html"]
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script>", page)
    for name, text in TEXTS.items():
        urls = [url for url in re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"')]*", text) if "www.w3.org" not in url]
        assert urls == [], name
    for text in TEXTS.values():
        assert not re.search(r"innerHTML|insertAdjacentHTML|outerHTML|document\.write|eval\(", text)


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/page/style.css", "/page/icon.svg"])
async def test_files_are_sent_under_the_policy_and_kept_by_browsers(client: Client, path: str) -> None:
    async with client.get(path) as response:
        assert response.status == 200
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        tag = response.headers["ETag"]
    async with client.get(path, headers={"If-None-Match": tag}) as response:
        assert (response.status, await response.read()) == (304, b"")


async def test_the_page_is_open_and_what_it_shows_is_not(engine: FakeEngine, tokenizer: Any) -> None:
    """It asks its reader for the key; the files themselves say nothing."""
    app = make_app(engine, tokenizer, Metrics(), live=empty_feed(), access=Access(["key"]))
    async with TestClient(TestServer(app)) as client:
        for path in ("/", "/page/main.js"):
            async with client.get(path) as response:
                assert response.status == 200
        for path in ("/live/snapshot", "/live/events"):
            async with client.get(path) as response:
                assert response.status == 401, path
        async with client.get("/live/snapshot", headers={"Authorization": "Bearer key"}) as response:
            assert response.status == 200
