"""The live page in a real browser, on a real server: it loads cleanly, shows what happens, and changes policies."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from adaptspec.request import Request
from adaptspec.telemetry.request_record import RequestRecord, bars_of
from tests.control.helpers import record
from tests.e2e.conftest import Server, start_server
from tests.trees import CHAIN, SIBLING, STRAIGHT, branching

KEY = "open sesame"
WIDTHS = (360, 768, 1181, 1920)
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a journal and an admin key."""
    journal = tmp_path_factory.mktemp("journal") / "rounds.jsonl"
    running = start_server("--journal", str(journal), ADAPTSPEC_ADMIN_KEY=KEY)
    yield running
    assert running.terminate() == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.fail("no chromium: install it (apt-get install chromium), or set CHROMIUM to the path of one")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a page that is live; whatever it complains of, or asks of others than its server, fails the test.

    `complaints` are texts that the console may hold: a browser notes every refused request there.
    """
    heard: list[str] = []
    contexts = []

    def start(server: Server, *, complaints: tuple[str, ...] = (), wait: bool = True, **more: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **more})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)

        def note(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not any(one in message.text for one in complaints):
                heard.append(message.text)

        page.on("console", note)
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(server.url) else heard.append(asked.url))
        page.goto(f"{server.url}/")
        if wait:
            expect(page.locator("#connection-text")).to_have_text("live")
        return page

    yield start
    for context in contexts:
        context.close()
    assert heard == []


def ask(server: Server, **more: Any) -> dict[str, Any]:
    """A request that always drafts: on a busy machine the default may rightly leave it."""
    message = {"role": "user", "content": "Tell me a story about a fox."}
    body = {"messages": [message], "temperature": 0, "adaptspec": {"policy": "static-3"}, **more}
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_every_width_in_both_themes(live: Server, open_page: Open, theme: str) -> None:
    """Nothing sticks out sideways, with and without figures; the theme is the system's until one is chosen."""
    ask(live, max_tokens=60)
    page = open_page(live, color_scheme=theme)
    expect(page.locator("#strips canvas").first).to_be_visible()
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, width
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") != theme


def test_the_playground_streams_and_tints_what_was_guessed(live: Server, open_page: Open) -> None:
    """Its words are those that any client gets; the race says that plain decoding writes the same."""
    page = open_page(live)
    prompt = "Repeat this list: apple, banana, cherry, mango, peach."
    page.fill("#prompt", prompt)
    page.fill("#play-tokens", "80")
    page.select_option("#play-policy", "static-3")
    page.click("#play-run")
    expect(page.locator("#play-summary")).to_contain_text("passes of the large model")
    whole = ask(live, messages=[{"role": "user", "content": prompt}], max_tokens=80)
    assert page.locator("#play-output").text_content() == whole["choices"][0]["message"]["content"]
    assert page.locator("#play-output .d0, #play-output .d1").count() > 0
    page.click("#play-race")
    expect(page.locator("#race")).to_contain_text("the same, letter for letter")
    expect(page.locator("#race .one")).to_have_count(2)


def test_bars_move_while_a_request_runs(live: Server, open_page: Open) -> None:
    """One strip per request; its picture changes as rounds go by, and so do the speed and the recent requests."""
    page = open_page(live)
    canvas = page.locator("#strips li:not(.done) canvas").first
    with ThreadPoolExecutor(2) as pool:
        jobs: list[Future[Any]] = [
            pool.submit(ask, live, max_tokens=900, ignore_eos=True, temperature=0.9, seed=i) for i in range(2)
        ]
        canvas.wait_for()
        pictures = {canvas.evaluate("canvas => canvas.toDataURL()")}
        while len(pictures) < 3 and not all(job.done() for job in jobs):
            page.wait_for_timeout(150)
            pictures.add(page.locator("#strips canvas").first.evaluate("canvas => canvas.toDataURL()"))
        ended = [job.result() for job in jobs]
    assert len(pictures) >= 3
    identity = ended[0]["id"].removeprefix("chatcmpl-")[:8]
    expect(page.locator("#waterfall tbody")).to_contain_text(identity)
    expect(page.locator("#speed-now")).not_to_have_text("0")
    expect(page.locator("#reasons li").first).to_be_visible()
    expect(page.locator("#tasks tbody tr").first).to_be_visible()
    expect(page.locator("#stats-list")).to_contain_text("plain rounds")


def test_a_tree_shows_its_path_and_what_stood_beside_it(live: Server, open_page: Open) -> None:
    """The path is solid, in its own column once it leaves the main chain; words say how wide each depth was."""
    rounds = [branching(STRAIGHT), branching(SIBLING), record([3], [1]), branching(CHAIN)]
    with urllib.request.urlopen(f"{live.url}/live/snapshot") as response:
        told = json.load(response)
    request = RequestRecord(Request("tree", (1,)), 0, 0.0)
    bars = [bar for one in rounds for bar in bars_of([replace(one, request_ids=("tree",))])["tree"]]
    told["running"] = [request.running(0.0) | {"rounds": bars}]
    told["recent"] = []
    page = open_page(live, complaints=("getImageData",))
    body = f"event: snapshot\ndata: {json.dumps(told)}\n\n"
    page.route("**/live/events", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.reload()
    canvas = page.locator("#strips canvas")
    canvas.wait_for()

    def shade(number: int, level: int, column: float) -> int:
        """How solid (0 to 255) a bar of 12 pixels, of which 1.5 are a gap, is at a depth: of the strip's 7."""
        where = [12 * number + 10.5 * column, level]
        script = """(canvas, [x, level]) => {
            const ratio = canvas.width / canvas.clientWidth, unit = (canvas.clientHeight - 4) / 7;
            const y = canvas.clientHeight - 3 - (level + 0.5) * unit;
            return canvas.getContext("2d").getImageData(Math.round(x * ratio), Math.round(y * ratio), 1, 1).data[3];
        }"""
        return int(canvas.evaluate(script, where))

    trunk, beside = 0.3, 0.85
    assert shade(0, 0, trunk) == shade(0, 1, trunk) == 255  # STRAIGHT: two of the main chain
    assert 0 < shade(0, 0, beside) < 100
    assert shade(1, 0, trunk) < 100  # SIBLING: nothing of it, and two beside it
    assert shade(1, 0, beside) == shade(1, 1, beside) == 255
    assert shade(2, 0, trunk) == shade(2, 0, beside) == 255  # a chain has the whole bar
    assert max(shade(2, 1, trunk), shade(2, 1, beside)) < 200  # the outline of what was drafted
    canvas.hover(position={"x": 18, "y": 20})
    words = canvas.get_attribute("title") or ""
    assert "3 drafted by draft-model, 2 accepted" in words
    assert "5 nodes, by depth 2, 2, 1; after 0 accepted, a branch was right where the main chain was not" in words
    canvas.hover(position={"x": 30, "y": 20})
    assert "nodes" not in (canvas.get_attribute("title") or "")


def test_a_policy_is_refused_with_its_place_tried_and_applied(live: Server, open_page: Open) -> None:
    """What is wrong is said at line and column; the estimate comes before the change; the change is real."""
    for seed in range(3):
        ask(live, max_tokens=60, temperature=0.7, seed=seed)
    page = open_page(live, complaints=("401",))
    page.click("#policy-edit")
    page.fill("#admin-key", "wrong")
    page.press("#admin-key", "Enter")
    expect(page.locator("#admin-error")).to_contain_text("not the admin key")
    page.fill("#admin-key", KEY)
    page.press("#admin-key", "Enter")
    editor = page.locator("#yaml-edit")
    expect(editor).to_be_focused()
    text = editor.input_value()
    editor.fill(text.replace("choose: goodput", "choose: godput"))
    problem = page.locator("#problems button")
    line = 1 + [one.partition(":")[0] for one in text.split("\n")].index("  choose")
    expect(problem).to_contain_text(f"line {line}, column 11")
    expect(problem).to_contain_text("did you mean 'goodput'")
    expect(page.locator("#policy-apply")).to_be_disabled()
    problem.click()
    marked = "e => e.value.slice(e.selectionStart, e.selectionEnd)"
    assert editor.evaluate(marked) == "godput"
    editor.fill(text.replace("max-depth: 12", "max-depth: 5"))
    expect(page.locator("#policy-status")).to_contain_text("Valid. Applying it replaces goodput.")
    page.click("#policy-simulate")
    expect(page.locator("#trial")).to_contain_text("plain decoding", timeout=40_000)
    page.click("#policy-apply")
    expect(page.locator("#policy-about")).to_contain_text("goodput was replaced")
    expect(page.locator("#yaml")).to_contain_text("max-depth: 5")
    with urllib.request.urlopen(f"{live.url}/v1/policies/goodput") as response:
        assert "max-depth: 5" in json.load(response)["yaml"]


def test_a_drained_server_says_what_it_does(live: Server, open_page: Open) -> None:
    """Draining may be taken back: the page must not say that the server is about to end."""
    page = open_page(live)

    def drain(method: str) -> None:
        asked = urllib.request.Request(
            f"{live.url}/admin/drain", method=method, headers={"Authorization": f"Bearer {KEY}"}
        )
        with urllib.request.urlopen(asked) as response:
            assert response.status == 200

    drain("POST")
    try:
        expect(page.locator("#connection-text")).to_have_text("takes no new requests")
    finally:
        drain("DELETE")
    expect(page.locator("#connection-text")).to_have_text("live")


def test_a_lost_connection_heals_and_a_key_is_asked_for(live: Server, open_page: Open) -> None:
    """Disconnected, unauthorised and live again are states one can see and leave by the keyboard."""
    page = open_page(live, wait=False, complaints=("ERR_FAILED", "401"))
    page.route("**/live/events", lambda route: route.abort())
    page.reload()
    expect(page.locator("#connection-text")).to_have_text("disconnected")
    expect(page.locator("#banner")).to_contain_text("Trying again")
    page.unroute("**/live/events")

    def guard(route: Any) -> None:
        if route.request.headers.get("authorization") == "Bearer key":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": {"message": "this needs an API key"}})

    page.route("**/live/events", guard)
    page.click("#retry")
    expect(page.locator("#key-input")).to_be_focused()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#key-error")).to_contain_text("does not know this key")
    page.fill("#key-input", "key")
    page.keyboard.press("Enter")
    expect(page.locator("#connection-text")).to_have_text("live")
    expect(page.locator("#content")).to_be_visible()


def test_the_keyboard_reaches_what_the_mouse_does(live: Server, open_page: Open) -> None:
    """The first stop skips to the content; every control has a name."""
    page = open_page(live)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, input, select, textarea, [role=img], [role=region]')].filter(e => "
        "!(e.textContent.trim() || e.ariaLabel || e.getAttribute('aria-labelledby') || e.labels?.length))"
        ".map(e => e.outerHTML)"
    )
    assert nameless == []
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#play-summary")).to_contain_text("passes")


# Columns of pixels in which there is something in the colour of "now": its line, or what is filled below it.
ACCENT_COLUMNS = """canvas => {
  const accent = getComputedStyle(document.documentElement).getPropertyValue("--accent").match(/\\w\\w/g)
    .map(part => parseInt(part, 16));
  const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const columns = new Set();
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] >= 60 && accent.every((part, j) => Math.abs(part - data[i + j]) <= 4)) columns.add((i / 4) % width);
  return columns.size;
}"""
BARRED = """apiVersion: adaptspec.dev/v1
kind: SpeculationPolicy
metadata: {name: barred}
spec:
  choose: {algorithm: static, depth: 3}
  drafters: [ngram]
  guard: {depth-by-batch-size: [[1, 512, 0]]}
"""


def test_one_short_request_can_be_seen_and_who_hardly_drafts_is_told_why(open_page: Open, tmp_path: Path) -> None:
    """A stretch of one second is no dot. The banner is for policies that could draft and do not, not for `off`."""
    policy = tmp_path / "barred.yaml"
    policy.write_text(BARRED)
    server = start_server("--draft", "none", "--policy", "off", "--policy", str(policy))
    try:
        page = open_page(server, complaints=("ERR_",), color_scheme="light", viewport={"width": 1440, "height": 900})
        ask(server, max_tokens=40, adaptspec={"policy": "off"})
        expect(page.locator("#speed-empty")).to_be_hidden()
        page.wait_for_timeout(300)
        assert page.locator("#speed-chart").evaluate(ACCENT_COLUMNS) >= 13
        expect(page.locator("#tiers")).to_contain_text("Nothing was drafted")
        expect(page.locator("#notice")).not_to_contain_text("Hardly anything")
        ask(server, max_tokens=60, adaptspec={"policy": "barred"}, ignore_eos=True)
        expect(page.locator("#notice")).to_contain_text("100 % of the last minute's rounds were off")
        expect(page.locator("#notice")).to_contain_text("(ceiling): no room for more")
        page.click("#play-race")
        expect(page.locator("#race")).to_contain_text("as fast", timeout=60_000)
        box = page.locator("#race").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900
    finally:
        assert server.terminate() == 0


def test_a_server_without_draft_journal_and_admin_key_says_so(open_page: Open) -> None:
    """The page leaves out what is not there, works for what is, and stays when the server goes."""
    plain = start_server("--draft", "none", "--policy", "off")
    try:
        page = open_page(plain, complaints=("ERR_",))
        expect(page.locator("#strips-empty")).to_contain_text("No request yet")
        expect(page.locator("#tiers")).to_contain_text("No rounds in the last minute")
        expect(page.locator("#speed-empty")).to_be_visible()
        page.click("#try")
        expect(page.locator("#play-summary")).to_contain_text("nothing was guessed")
        page.click("#policy-edit")
        expect(page.locator("#policy-about")).to_contain_text("ADAPTSPEC_ADMIN_KEY")
    finally:
        assert plain.terminate() == 0
    expect(page.locator("#connection-text")).to_have_text("disconnected")
    expect(page.locator("#play-summary")).to_be_visible()
