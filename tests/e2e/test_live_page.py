"""The live page in a real browser, on a real server: it loads cleanly, shows what happens, and changes policies."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.e2e.conftest import Server, start_server

KEY = "open sesame"
WIDTHS = (360, 768, 1181, 1920)
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def live() -> Iterator[Server]:
    """A server with an admin key."""
    running = start_server(ADAPTSPEC_ADMIN_KEY=KEY)
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
    """Opens a page that is live. Errors and warnings in its console, and requests to other servers, fail the test.

    `complaints` are texts that the console may hold: a browser notes every refused request there.
    """
    unexpected: list[str] = []
    contexts = []

    def start(server: Server, *, complaints: tuple[str, ...] = (), wait: bool = True, **more: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **more})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)

        def note(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not any(text in message.text for text in complaints):
                unexpected.append(message.text)

        page.on("console", note)
        page.on("pageerror", lambda error: unexpected.append(str(error)))
        page.on("request", lambda sent: None if sent.url.startswith(server.url) else unexpected.append(sent.url))
        page.goto(f"{server.url}/")
        if wait:
            expect(page.locator("#connection-text")).to_have_text("live")
        return page

    yield start
    for context in contexts:
        context.close()
    assert unexpected == []


def ask(server: Server, **more: Any) -> dict[str, Any]:
    """Send a request that always drafts: on a busy machine the default policy may rightly not draft."""
    message = {"role": "user", "content": "Tell me a story about a fox."}
    body = {"messages": [message], "temperature": 0, "adaptspec": {"policy": "static-3"}, **more}
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def get(server: Server, path: str) -> Any:
    with urllib.request.urlopen(f"{server.url}/{path}", timeout=20) as response:
        return json.load(response)


def feed(page: Page, snapshot: dict[str, Any]) -> None:
    """Load the page again with this snapshot as its feed."""
    body = f"event: snapshot\ndata: {json.dumps(snapshot)}\n\n"
    page.route("**/live/events", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.reload()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_every_width_in_both_themes(live: Server, open_page: Open, theme: str) -> None:
    """Nothing sticks out sideways, and the theme is the system's."""
    ask(live, max_tokens=60)
    page = open_page(live, color_scheme=theme)
    expect(page.locator(".request path").first).to_be_attached()
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, width
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light" if theme == "dark" else "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != colour


def test_a_race_shows_both_speeds_and_that_the_text_is_the_same(live: Server, open_page: Open) -> None:
    """Its words are those that any client gets; those that were drafted are tinted, in the race's first lane only."""
    page = open_page(live)
    prompt = "Repeat this list: apple, banana, cherry, mango, peach."
    page.fill("#prompt", prompt)
    page.fill("#play-tokens", "80")
    page.select_option("#play-policy", "static-3")
    page.click("#play-race")
    expect(page.locator("#play-verdict")).to_contain_text("The texts are the same, letter for letter.")
    expect(page.locator("#play-verdict")).to_contain_text("x as fast")
    answer = ask(live, messages=[{"role": "user", "content": prompt}], max_tokens=80)
    for lane in page.locator("#lanes .output").all():
        assert lane.text_content() == answer["choices"][0]["message"]["content"]
    expect(page.locator("#lanes .status")).to_contain_text(["tokens/s", "tokens/s"])
    assert page.locator("#lanes section:first-child .drafted").count() > 0
    assert page.locator("#lanes section:last-child .drafted").count() == 0


def test_a_request_shows_its_rounds_while_it_runs_and_opens_with_reasons(live: Server, open_page: Open) -> None:
    """The strip grows round by round; the page's figures are those of the feed; a click explains every round."""
    page = open_page(live)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(ask, live, max_tokens=900, ignore_eos=True, temperature=0.9, seed=1)
        row = page.locator(".request").first
        expect(row).to_contain_text("running")
        strips = {row.locator(".strip").inner_html()}
        while len(strips) < 3 and not job.done():
            page.wait_for_timeout(150)
            strips.add(row.locator(".strip").inner_html())
        answer = job.result()
    assert len(strips) >= 3
    expect(row).to_contain_text(answer["id"].removeprefix("chatcmpl-")[:8])
    expect(row).to_contain_text("900 tokens")
    expect(page.locator("#reasons li").first).to_be_visible()
    expect(page.locator("#tasks tr").first).to_be_visible()
    snapshot = get(live, "live/snapshot")
    expect(page.locator("#speed-why")).to_have_text(
        (snapshot["summary"]["recent"] or snapshot["summary"]["total"])["why"]
    )
    row.click()
    detail = get(live, f"live/requests/{snapshot['recent'][-1]['id']}")
    expect(page.locator("#detail .sentence")).to_have_text(detail["sentence"])
    expect(page.locator("#detail tbody tr")).to_have_count(len(detail["rounds"]))
    expect(page.locator("#detail tbody tr").first).to_contain_text("drafted with")
    expect(page.locator("#detail-body")).to_contain_text("decode")


def test_a_quiet_minute_keeps_the_figures_since_the_start(live: Server, open_page: Open) -> None:
    """Names from clients are shown as text; nine drafters have nine colours."""
    ask(live, max_tokens=60)
    snapshot = get(live, "live/snapshot")
    total = snapshot["summary"]["total"] | {"tokens_per_second": 42.4, "drafted": 9}
    total |= {"speedup": {"value": 1.42, "low": 1.31, "high": 1.53}, "why": "a sentence"}
    task = "<img src=x onerror=alert(1)>"
    total["tasks"] = {task: total["tasks"].popitem()[1]}
    snapshot["summary"] = {"recent": None, "total": total}
    snapshot["seconds"] = [second | {"at": second["at"] - 1200} for second in snapshot["seconds"]]
    snapshot["server"]["drafters"] = [f"drafter-{i}" for i in range(9)]
    page = open_page(live)
    feed(page, snapshot)
    expect(page.locator("#speed-window")).to_have_text("since the start")
    expect(page.locator(".hero")).to_contain_text("42 tokens/s")
    expect(page.locator("#speed-up")).to_have_text("1.42 x plain (1.31 to 1.53)")
    expect(page.locator("#speed-up")).to_have_class("good")
    expect(page.locator("#speed-chart")).to_contain_text("20 min ago")
    expect(page.locator("#tasks td").first).to_have_text(task)
    colours = "nodes => nodes.map(node => getComputedStyle(node).backgroundColor)"
    assert len(set(page.locator("#drafter-legend .swatch").evaluate_all(colours))) == 9


def test_a_policy_is_checked_while_it_is_typed_and_applied(live: Server, open_page: Open) -> None:
    """A fault is shown with its line and column; a valid text replaces the policy that runs."""
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
    name = page.locator("#policy-select").input_value()
    editor.fill(text.replace("choose: goodput", "choose: godput"))
    problem = page.locator("#problems button")
    line = 1 + [one.partition(":")[0] for one in text.split("\n")].index("  choose")
    expect(problem).to_contain_text(f"line {line}, column 11")
    expect(problem).to_contain_text("did you mean 'goodput'")
    expect(page.locator("#policy-apply")).to_be_disabled()
    problem.click()
    assert editor.evaluate("e => e.value.slice(e.selectionStart, e.selectionEnd)") == "godput"
    editor.fill(text.replace("max-depth: 12", "max-depth: 5"))
    expect(page.locator("#policy-status")).to_contain_text(f"Valid. Applying it replaces {name}.")
    page.click("#policy-apply")
    expect(page.locator("#policy-about")).to_contain_text(f"{name} was replaced")
    expect(page.locator("#yaml")).to_contain_text("max-depth: 5")
    assert "max-depth: 5" in get(live, f"v1/policies/{name}")["yaml"]


def test_a_drained_server_says_what_it_does(live: Server, open_page: Open) -> None:
    """Draining may be taken back: the page must not say that the server is about to end."""
    page = open_page(live)

    def drain(method: str) -> None:
        request = urllib.request.Request(
            f"{live.url}/admin/drain", method=method, headers={"Authorization": f"Bearer {KEY}"}
        )
        with urllib.request.urlopen(request) as response:
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


def test_silence_means_lost_and_a_page_that_stays_hidden_lets_the_server_go(live: Server, open_page: Open) -> None:
    """After 15 s without an event it connects again; after 60 s out of sight it leaves until it is seen again."""
    page = open_page(live, wait=False)
    page.clock.install()
    page.reload()
    expect(page.locator("#connection-text")).to_have_text("live")
    with page.expect_request("**/live/events"):
        page.clock.fast_forward(15_500)
        page.clock.fast_forward(500)  # the pause before it tries again
    expect(page.locator("#connection-text")).to_have_text("live")
    show = """hidden => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(show, True)
    page.clock.fast_forward(60_500)
    expect(page.locator("#connection-text")).to_have_text("paused")
    page.evaluate(show, False)
    expect(page.locator("#connection-text")).to_have_text("live")


def test_the_keyboard_reaches_what_the_mouse_does(live: Server, open_page: Open) -> None:
    """The first stop skips to the content; every control has a name; a request opens and closes."""
    ask(live, max_tokens=20)
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
    page.focus("[popovertarget=speed-help]")
    page.keyboard.press("Enter")
    expect(page.locator("#speed-help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#speed-help")).to_be_hidden()
    page.locator(".request").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#detail .sentence")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#detail")).to_be_hidden()
    expect(page.locator(".request").first).to_be_focused()
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#play-verdict")).to_contain_text("passes of the model")


def test_a_server_without_drafts_says_what_to_do_and_praises_nothing(open_page: Open) -> None:
    """Plain decoding is 1.00 x plain, never in green. The page stays when the server ends."""
    plain = start_server("--draft", "none", "--policy", "off")
    try:
        page = open_page(plain, complaints=("ERR_",))
        expect(page.locator("#curl")).to_contain_text(f"curl {plain.url}/v1/chat/completions")
        expect(page.locator("#requests-empty")).to_be_visible()
        page.click("#play-run")
        expect(page.locator("#play-verdict")).to_contain_text("nothing was drafted")
        expect(page.locator("#speed-up")).to_have_text("1.00 x plain")
        expect(page.locator("#first-steps")).to_be_hidden()
        expect(page.locator(".request")).to_contain_text("nothing drafted")
        assert page.locator(".good").count() == 0
        page.click("#policy-edit")
        expect(page.locator("#policy-about")).to_contain_text("ADAPTSPEC_ADMIN_KEY")
    finally:
        assert plain.terminate() == 0
    expect(page.locator("#connection-text")).to_have_text("disconnected")
    expect(page.locator(".request")).to_be_visible()
