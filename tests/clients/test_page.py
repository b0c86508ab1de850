"""The chat of a proxy in headless Chromium."""

import json
import os
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
# Seconds are those of a busy machine.
PATIENCE = 120_000


@pytest.fixture
def page(proxy):
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 900, "height": 640})
        page.set_default_timeout(PATIENCE)
        asked, wrong = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        # The browser itself tells of answers with a code of failure.
        page.on("console", lambda message: message.type == "error" and "Failed to load" not in message.text
                and wrong.append(message.text))
        page.goto(proxy)
        yield page
        assert all(url.startswith(proxy) for url in asked), asked
        assert not wrong, wrong
        browser.close()


def say(page, words, turns):
    page.fill("#words", words)
    page.press("#words", "Enter")
    expect(page.locator(".turn.assistant .cost dl")).to_have_count(2 * turns, timeout=PATIENCE)


def test_a_conversation(page):
    expect(page.locator("#model")).to_have_text("shakespeare-llama")
    page.fill("#tokens", "24")
    say(page, "ROMEO:", 1)
    say(page, "JULIET:", 2)
    assert len(page.locator(".turn.assistant .said").last.inner_text()) > 3
    cost = page.locator(".turn.assistant .cost").last.inner_text()
    assert "a further turn" in cost and "the server saw" in cost, cost
    if place := os.environ.get("WAGGLE_PICTURE"):
        page.screenshot(path=Path(place))
    page.click("#new")
    expect(page.locator(".turn")).to_have_count(0)


def test_words_are_never_markup(page):
    markup = "<img src=x onerror=alert(1)><b>bold</b>"
    piece = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": markup}, "finish_reason": None}]}
    events = f"data: {json.dumps(piece)}\n\ndata: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=events))
    page.fill("#words", markup)
    page.press("#words", "Enter")
    expect(page.locator(".turn.assistant .said")).to_have_text(markup, timeout=PATIENCE)
    assert page.locator(".turn.user .said").inner_text() == markup
    assert page.locator(".said *").count() == 0


def test_a_refusal_is_told(page):
    page.fill("#tokens", "100000")
    page.fill("#words", "ROMEO:")
    page.press("#words", "Enter")
    expect(page.locator(".failed")).to_contain_text("positions", timeout=PATIENCE)
