"""The review app in a real browser and by plain requests: decisions by keys alone, by two at once, through a kill."""

import asyncio
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urljoin

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Send

from scanner import results
from scanner.service import review_session
from scanner.service import serving as server
from scanner.service.review_app import Access
from tests.service.conftest import FLAGS, IDS, MALLORY
from tests.support.opened_once import keep_inspector
from tests.support.reviewing import Asking, loaded, opened, quiet, serving

AT_ONCE = """leftBy => {
  const press = key => document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}))
  if (leftBy === "a link") document.querySelector("nav a").click(); else press(leftBy)
  for (const key of "cqdu") press(key)
  document.querySelectorAll(".choices button").forEach(button => button.click())
}"""
"""Script that leaves a page and decides in one go."""


@pytest.fixture(scope="module", autouse=True)
def _opened_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        keep_inspector(patch)
        yield


def decided(night) -> list[tuple]:
    return results.decisions(night.results).select("doc_id", "decided_by", "decision", "note").collect().rows()


@pytest.mark.costly
def test_all_flags_are_decided_by_keys_alone(browser, night):
    """Markup in ids, accounts, names, texts and the file's name stays text; no other host is asked."""
    with serving(night, "<b>ruth</b>") as app:
        context = opened(browser)
        page = context.new_page()
        said, asked = quiet(page), []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(app.address)
        assert "token" not in page.url
        assert page.locator("ol.flags > li").count() == FLAGS
        assert MALLORY in page.locator("ol.flags").inner_text()
        page.keyboard.press("o")
        for number in range(FLAGS):
            loaded(page)
            assert f"1 of {FLAGS - number}" in page.locator("nav").first.inner_text()
            before = page.url
            if number == 1:
                page.keyboard.press("n")
                page.keyboard.type("c: 'quoted' <script>alert(1)</script>\n\u202e=1+1")
                page.keyboard.press("Escape")
            page.keyboard.press("cqdu"[number % 4])
            if number % 4 == 0:  # quoted lines, or another account's: asks again
                page.get_by_text("Confirm against the advice?").first.wait_for()
                loaded(page)
                page.keyboard.press("y")
            page.wait_for_url(lambda url, before=before: url != before)
            page.get_by_role("status").wait_for()
        page.wait_for_load_state()
        assert page.locator("ol.flags").count() == 0
        assert "All flags have been reviewed." in page.locator("main").inner_text()
        assert page.get_by_role("link", name="a list of their own").count() == (FLAGS > 3)
        page.keyboard.press("z")
        page.wait_for_url("**/flag?**")
        assert "<b>ruth</b>" in page.locator("main").inner_text()
        own = re.match(r"http://[\d.:]+/", app.address)[0]
        assert [url for url in asked if not url.startswith(own)] == []
        assert said == []
        context.close()
    rows = decided(night)
    assert [row[2] for row in rows] == [("confirmed", "quoted", "dismissed", "unclear")[i % 4] for i in range(FLAGS)]
    assert sorted(row[0] for row in rows) == sorted([*IDS, "plain"])
    assert rows[1][3] == "c: 'quoted' <script>alert(1)</script>\n\u202e=1+1"


@pytest.mark.costly
def test_it_works_without_scripts_and_a_held_key_decides_once(browser, night):
    with serving(night, "ruth") as app:
        context = opened(browser, java_script_enabled=False)
        page = context.new_page()
        page.goto(app.address)
        page.get_by_label("posted by account").fill("nobody’s")
        page.get_by_label("key").select_option("green")
        page.get_by_role("button", name="Show").click()
        said = "no open flags where the account contains “nobody’s” and the key is “green”."
        assert said in page.locator("main").inner_text()
        page.get_by_role("link", name="Show them").click()
        assert page.locator("ol.flags > li").count() == FLAGS
        page.get_by_label("marked for").fill(MALLORY[1:].upper())
        page.get_by_role("button", name="Show").click()
        assert page.locator("ol.flags > li").count() == 1
        page.get_by_role("link", name="plain").click()
        page.get_by_label(re.compile("Why")).fill("seen")
        page.get_by_role("button", name="dismissed").click()
        assert "Recorded: plain is dismissed" in page.get_by_role("status").inner_text()
        context.close()
        context = opened(browser)
        page = context.new_page()
        page.goto(app.address)
        page.keyboard.press("o")
        loaded(page)
        held = "new KeyboardEvent('keydown', {key: 'c', repeat: true, bubbles: true})"
        page.evaluate(f"document.body.dispatchEvent({held})")
        page.wait_for_timeout(100)
        context.close()
    assert decided(night) == [("plain", "ruth", "dismissed", "seen")]


@pytest.mark.costly
def test_a_page_that_has_just_come_up_takes_no_decision(browser, night):
    """A key pressed twice, since the answer was slow, must not decide on the next flag unseen."""
    with serving(night, "ruth") as app:
        context = opened(browser)
        page = context.new_page()
        page.goto(app.address)
        page.keyboard.press("o")
        loaded(page)
        page.evaluate("document.documentElement.dataset.fresh = 'yes'")
        title = page.title()
        page.keyboard.press("c")
        page.get_by_role("button", name="dismissed").click()
        assert "this flag has just come up" in page.get_by_role("alert").inner_text()
        assert page.title() == title
        assert decided(night) == []
        page.evaluate("document.documentElement.dataset.fresh = 'no'")
        page.keyboard.press("q")
        page.get_by_role("status").wait_for()
        context.close()
    assert [row[2] for row in decided(night)] == ["quoted"]


@pytest.mark.costly
@pytest.mark.parametrize("left_by", ["j", "k", "l", "a link"])
def test_no_decision_falls_on_a_flag_that_was_left(browser, night, left_by):
    """All decision keys and buttons in the very moment in which a key or a link leads on."""
    with serving(night, "ruth") as app:
        context = opened(browser)
        page = context.new_page()
        page.goto(app.address)
        page.keyboard.press("o")
        page.wait_for_url("**/flag?**")
        loaded(page)
        page.keyboard.press("j")
        page.wait_for_url("**left=**")
        loaded(page)
        sent = []
        page.on("request", lambda request: sent.append(request.method))
        with page.expect_navigation():
            page.evaluate(AT_ONCE, left_by)
        assert "POST" not in sent
        context.close()
    assert decided(night) == []


@pytest.mark.costly
def test_confirmed_against_the_advice_asks_again(night):
    with serving(night, "ruth") as app:
        asking = Asking(app)
        form = asking.form()
        status, _, said = asking.post(form | {"sure": ""})
        assert (status, "Confirm against the advice?" in said) == (200, True)
        assert decided(night) == []
        assert asking.post(form)[0] == 303
    assert [row[2] for row in decided(night)] == ["confirmed"]


@pytest.mark.costly
def test_the_app_refuses_a_decision_on_a_flag_that_was_left(night):
    """By plain requests, as of a browser whose scripts are off: each of the page's links leaves the flag."""
    with serving(night, "ruth") as app:
        asking = Asking(app)
        _, _, shown = asking.ask("GET", "/", Cookie=asking.cookie)
        first = re.search(r'href="(/flag[^"]+)"', shown)[1].replace("&amp;", "&")
        form = asking.form()
        _, _, shown = asking.ask("GET", first, Cookie=asking.cookie)
        onward = re.findall(r'href="([^"]+left=(\w+))"', shown)
        assert len(onward) >= 2
        form["decision_id"] = onward[0][1]
        assert asking.ask("GET", onward[1][0].replace("&amp;", "&"), Cookie=asking.cookie)[0] == 200
        status, _, said = asking.post(form)
        assert (status, "moved on to another page" in said) == (409, True)
        assert decided(night) == []
        assert asking.post(asking.form())[0] == 303
    assert len(decided(night)) == 1


@pytest.mark.costly
def test_text_and_decision_are_seen_at_once_and_nothing_is_wider_than_its_window(browser, night):
    with serving(night, "ruth") as app:
        context = opened(browser, java_script_enabled=False)
        page = context.new_page()
        page.goto(app.address)
        row = page.locator("ol.flags > li", has_text=f"for {MALLORY}")
        assert (row.locator(".quoted").count(), page.locator("ol.flags > li").count()) == (0, FLAGS)
        assert int(page.locator("ol.flags > li .quoted b").last.inner_text()[:-1]) > 0
        for address in (page.url, row.get_by_role("link").first.get_attribute("href")):
            page.goto(urljoin(page.url, address))
            for width in (320, 768, 1280, 2560):
                page.set_viewport_size({"width": width, "height": 800})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (address, width)
        page.set_viewport_size({"width": 1280, "height": 800})
        for name in ("confirmed", "quoted", "dismissed", "unclear", "allowed"):
            box = page.get_by_role("button", name=name).bounding_box()
            assert box["y"] + box["height"] <= 800
        text, form = (page.locator(which).bounding_box() for which in ("div.text", "form.decide"))
        assert (text["y"] < 400, text["x"] + text["width"] < form["x"]) == (True, True)
        assert "brickscan does not know whether account" in page.locator("main").inner_text()
        context.close()


@pytest.mark.costly
def test_two_reviewers_at_once_lose_nothing_and_see_each_other(browser, night):
    with serving(night, "ruth") as one, serving(night, "omar") as other:
        contexts = [opened(browser), opened(browser)]
        pages = [context.new_page() for context in contexts]
        for page, app in zip(pages, (one, other), strict=True):
            page.goto(app.address)
            page.keyboard.press("o")
        for page in pages:
            loaded(page)
        titles = {page.title() for page in pages}
        assert len(titles) == 1  # both look at the same undecided flag
        for page, key in zip(pages, "qd", strict=True):
            page.keyboard.press(key)
        for page in pages:
            page.get_by_role("status").wait_for()
            page.wait_for_load_state()
            page.keyboard.press("z")
            page.wait_for_url(lambda url: "recorded" not in url)
        for page in pages:
            page.reload()
            shown = page.locator("#decided + ul").inner_text()
            assert "ruth" in shown and "quoted" in shown and "omar" in shown and "dismissed" in shown  # noqa: PT018
        for context in contexts:
            context.close()
    assert sorted(row[1:3] for row in decided(night)) == [("omar", "dismissed"), ("ruth", "quoted")]


@pytest.mark.costly
@pytest.mark.parametrize("after_the_commit", [False, True])
def test_a_kill_in_the_middle_of_a_decision_loses_and_doubles_nothing(browser, night, monkeypatch, after_the_commit):
    """No answer comes; the app starts again on its port, and the browser sends the form again."""
    kept = review_session.decide

    def dies(*arguments):
        if after_the_commit:
            kept(*arguments)
        raise ConnectionAbortedError

    context = opened(browser)
    page = context.new_page()
    with serving(night, "ruth") as app:
        port = int(app.address.split(":")[2].partition("/")[0])
        page.goto(app.address)
        page.keyboard.press("o")
        page.wait_for_url("**/flag?**")
        loaded(page)
        page.get_by_label(re.compile("Why")).fill("a long reason")
        with monkeypatch.context() as patch:
            patch.setattr(review_session, "decide", dies)
            page.get_by_role("button", name="quoted").click()
            page.wait_for_load_state()
    assert len(decided(night)) == after_the_commit
    with serving(night, "ruth", port) as app:
        tab = context.new_page()
        tab.goto(app.address)
        assert tab.locator("ol.flags > li").count() == FLAGS - after_the_commit
        page.reload()  # sends the form again
        assert "quoted" in page.get_by_role("status").inner_text()
    context.close()
    assert [row[1:] for row in decided(night)] == [("ruth", "quoted", "a long reason")]


@pytest.mark.costly
def test_only_who_has_the_address_gets_in(night):
    with serving(night, "ruth") as app:
        asking = Asking(app)
        for path in ("/", "/flag?path=a&row=0", "/style.css", "/?token=", "/?token=x", "/nothing"):
            status, headers, said = asking.ask("GET", path)
            assert (status, "alice" in said) == (403, False), path
            assert "script-src 'self'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["cache-control"] == "no-store"
        for host in ("evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "0.0.0.0"):
            assert asking.ask("GET", f"/?token={asking.token}", Host=host)[0] == 421
            assert asking.ask("GET", "/", Host=host, Cookie=asking.cookie)[0] == 421
        assert asking.ask("GET", f"//evil.example/?token={asking.token}")[1]["location"] == "/"
        _, headers, _ = asking.ask("GET", f"/?token={asking.token}")
        assert {"httponly", "samesite=strict"} <= set(headers["set-cookie"].lower().split("; "))
        assert asking.ask("GET", "/", Cookie=asking.cookie)[0] == 200
        form = asking.form()
        for origin in ("", "null", "http://evil.example", "http://127.0.0.1:1", f"https://{asking.host}"):
            assert asking.post(form, Origin=origin)[0] == 403, origin
        assert asking.post(form, Cookie="")[0] == 403
        assert asking.ask("GET", "/decide", Cookie=asking.cookie)[0] == 405
    assert decided(night) == []


def test_a_form_that_does_not_come_whole_is_not_waited_for_and_leaves_no_traceback(night, monkeypatch, caplog):
    monkeypatch.setattr(server, "SECONDS_TO_READ", 0.5)
    with serving(night, "ruth") as app:
        asking = Asking(app)
        head = ("POST /decide HTTP/1.1", f"Host: {asking.host}", f"Origin: http://{asking.host}", "Content-Length: 9")
        begun = "\r\n".join([*head, f"Cookie: {asking.cookie}", "", "no"]).encode()
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", app.port), timeout=120) as slow:
                slow.sendall(begun)
                assert slow.recv(12)[9:] == b"408"
        with socket.create_connection(("127.0.0.1", app.port)) as broken:
            broken.sendall(begun)
        assert asking.ask("GET", "/style.css", Cookie=asking.cookie)[0] == 200
    assert not caplog.records


@pytest.mark.costly
def test_a_form_is_one_decision_on_the_text_that_it_showed(night):
    with serving(night, "ruth") as app:
        asking = Asking(app)
        form = asking.form()
        assert asking.post(form | {"text_sha256": "0" * 64})[0] == 409
        assert [asking.post(form)[0] for _ in range(2)] == [303, 303]
        status, _, said = asking.post(form | {"decision": "dismissed"})
        assert (status, "recorded as confirmed by ruth" in said) == (409, True)
        with serving(night, "sam") as another:  # whose decision it is not, though the page says the same
            assert Asking(another).post(form)[0] == 409
        for wrong in (
            {"decision_id": "x"},
            {"decision": "<b>"},
            {"note": "x" * 5_000},
            {"flag": "path=%ff&row=0"},
            {"flag": "path=a&row=-1"},
            {"flag": "state=%3Cb%3E"},
        ):
            status, _, said = asking.post(form | wrong)
            assert status in (400, 404), wrong
            assert "<b>" not in said
        assert asking.post(form | {"note": "x" * 70_000})[0] == 413
        assert asking.post({})[0] == 404
        status, headers, _ = asking.post(form | {"next": "http://evil.example/"})
        assert headers["location"].startswith("/?state=open")
    assert [row[2] for row in decided(night)] == ["confirmed"]


def test_cookies_of_strangers_take_no_time():
    """The standard library's parser took six CPU seconds for such a head, in which nobody else was answered."""
    access, costly = Access(PlainTextResponse("well"), 8000), '="' + "\\1" * 30_000 + '"'
    own = {"type": "http", "method": "GET", "path": "/", "query_string": b""}
    for cookie in (f"brickscan-review-8000{costly}", f"a{costly}; brickscan-review-8000=x", "=;;=" * 9_000):
        headers = [(b"host", b"127.0.0.1:8000"), (b"cookie", cookie.encode())]
        sent: list[Message] = []

        def answered(scope: dict[str, object], sent: list[Message]) -> float:
            began = time.thread_time()
            asyncio.run(access(scope, receive_nothing, collected(sent)))
            return time.thread_time() - began

        with ThreadPoolExecutor(1) as thread:  # a browser of another test may run an event loop in this one
            assert thread.submit(answered, {**own, "headers": headers}, sent).result() < 0.5
        assert sent[0]["status"] == 403


async def receive_nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def collected(sent: list[Message]) -> Send:
    async def send(message: Message) -> None:
        sent.append(message)

    return send


@pytest.mark.costly
def test_results_that_vanish_or_break_while_the_app_runs_are_said_on_the_page(night, caplog):
    """And are read again once they are back; nobody's decision was taken meanwhile."""
    scans = Path(night.results) / "scans" / "_delta_log" / f"{0:020}.json"
    kept = scans.read_bytes()
    with serving(night, by="ruth") as app:
        asking = Asking(app)
        form = asking.form()
        scans.write_text("{torn")
        try:
            answers = [asking.ask("GET", path, Cookie=asking.cookie) for path in ("/", "/accounts")] + [
                asking.post(form)
            ]
        finally:
            scans.write_bytes(kept)
        assert [status for status, _, _ in answers] == [503] * 3
        assert all("cannot be read" in page for _, _, page in answers)
        assert asking.ask("GET", "/", Cookie=asking.cookie)[0] == 200
    assert not decided(night)
    assert not caplog.records
