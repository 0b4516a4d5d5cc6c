"""A real process of the review app, killed while it records a decision: lost 0, doubled 0."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scanner import results
from tests.service.conftest import FLAGS
from tests.support.reviewing import loaded, opened

pytestmark = pytest.mark.long  # each process takes seconds to start

RUNS = "from jobs.cli import main; main()"

STOPS = """
import sys, time
from scanner.service import review_session
kept = review_session.decide
def stops(*arguments):
    if {after}:
        kept(*arguments)
    print("stopped", flush=True)
    time.sleep(600)
review_session.decide = stops
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
