"""Real processes of the review app and of the webhook app, killed while they record a decision: lost 0, doubled 0."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection

import pytest

from scanner import results
from scanner.exports import Outbox, Receiver, ReceiverAnswer
from scanner.results.flags import flag_id as item_id
from scanner.watermark.stacks.shared import HiddenValue
from tests.service.conftest import FLAGS
from tests.support.coop import WEBHOOK, action, coop
from tests.support.reviewing import loaded, opened

pytestmark = pytest.mark.long  # each process takes seconds to start

RUNS = "from jobs.cli import main; main()"

STOPS = """
import sys, time
from scanner.service import desk, webhook
kept = desk.decide
def stops(*arguments):
    if {after}:
        kept(*arguments)
    print("stopped", flush=True)
    time.sleep(600)
desk.decide = webhook.decide = stops
from jobs.cli import main
main()
"""
"""Program that runs a command, and stops for ever right before or right after a decision is committed."""


@contextmanager
def running(
    *arguments: object, code: str = "from jobs.cli import main; main()"
) -> Iterator[tuple[subprocess.Popen, str]]:
    """A process, and the address that it printed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, re.search(r"http://\S+", process.stdout.readline())[0]
        finally:
            process.kill()


def kill_when_stopped(process: subprocess.Popen) -> None:
    """SIGKILL a process once it stops at the commit."""
    assert "stopped\n" in iter(process.stdout.readline, "")
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("after", [False, True])
def test_a_killed_review_app_loses_and_doubles_nothing_and_the_page_says_what_was_recorded(browser, night, after):
    context = opened(browser)
    context.set_default_timeout(60_000)
    page = context.new_page()
    with running("review", night.config, "--by", "ruth", "--port", 0, code=STOPS.format(after=after)) as (app, address):
        port = re.search(r":(\d+)/", address)[1]
        page.goto(address)
        page.keyboard.press("o")
        page.wait_for_url("**/flag?**")
        loaded(page)
        page.get_by_label(re.compile("Why")).fill("a long reason")
        page.get_by_role("button", name="quoted").click(no_wait_after=True)
        kill_when_stopped(app)
    assert results.decisions(night.results).collect().height == after
    with running("review", night.config, "--by", "ruth", "--port", port) as (_, address):
        tab = context.new_page()
        tab.goto(address)
        assert tab.locator("ol.flags > li").count() == FLAGS - after  # the list shows whether it was recorded
        page.reload()  # sends the form again
        assert "quoted" in page.get_by_role("status").inner_text()
        tab.reload()
        assert tab.locator("ol.flags > li").count() == FLAGS - 1
    context.close()
    found = results.decisions(night.results).collect()
    assert found.select("decided_by", "decision", "note").rows() == [("ruth", "quoted", "a long reason")]


@pytest.mark.parametrize("after", [False, True])
def test_a_killed_webhook_app_loses_and_doubles_nothing(night, after):
    (night.folder / "coop.pem").write_bytes(coop().public)
    before = night.config.read_text()
    night.config.write_text(before.replace("[audit]", WEBHOOK + "[audit]"))
    flag = results.flagged(night.results).collect().row(0, named=True)
    receiver = Receiver("coop", "https://coop.example/api/v1/report", HiddenValue({}), drops_repeats=False)
    Outbox(night.results, receiver, post=lambda *_: ReceiverAnswer(201, {})).send(item_id(flag), flag, {})
    body = action(item_id(flag), "a-yes")
    try:
        with running("webhook", night.config, "--port", 0, code=STOPS.format(after=after)) as (app, address):
            assert answer_of(address, body, lambda: kill_when_stopped(app)) is None
        assert results.decisions(night.results).collect().height == after
        with running("webhook", night.config, "--port", 0) as (_, address):
            assert answer_of(address, body) == (200, "recorded before" if after else "recorded")
    finally:
        night.config.write_text(before)
    found = results.decisions(night.results).collect()
    assert found.select("decided_by", "decision").rows() == [("mod@example.com", "confirmed")]


def answer_of(address: str, body: bytes, meanwhile: Callable[[], None] = lambda: None) -> tuple[int, str] | None:
    """Status and outcome that a signed body gets; None when the connection ended without an answer."""
    host, path = re.fullmatch(r"http://([^/]+)(/.*)", address).groups()
    with closing(HTTPConnection(host, timeout=60)) as connection:
        connection.request("POST", path, body, {"Coop-Signature": coop().signature(body)})
        meanwhile()
        try:
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())["outcome"]
        except ConnectionError:
            return None
