"""A review app in a thread of this process, asked by a browser or by plain requests."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from urllib.parse import urlencode

from scanner.evidence.explainer import Explainer
from scanner.service.review_app import ReviewServer
from scanner.service.serving import Server


@contextmanager
def serving(night, by: str, port: int = 0) -> Iterator[ReviewServer]:
    server = ReviewServer(Explainer(night.config), by, port)
    with running(server):
        yield server


@contextmanager
def running(server: Server) -> Iterator[None]:
    """Run an app in a thread."""
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.end()
        thread.join()


def opened(browser, **options):
    """A browser context whose waits are long enough for busy machines: a page takes a second of CPU time."""
    context = browser.new_context(**options)
    context.set_default_timeout(120_000)
    return context


def loaded(page) -> None:
    """Wait until a page shows a flag and listens to keys."""
    page.wait_for_load_state()
    page.locator("html[data-fresh=no] form.decide").wait_for()


def quiet(page) -> list[object]:
    """A list that gathers all errors, dialogs and console messages of a page, which should have none."""
    said: list[object] = []
    for event in ("pageerror", "dialog", "popup", "download"):
        page.on(event, lambda about: said.append(about))
    page.on("console", lambda message: said.append(message.text))
    return said


class Asking:
    """Plain requests to an app."""

    def __init__(self, server: ReviewServer) -> None:
        self.host, _, self.token = server.address.removeprefix("http://").partition("/?token=")
        self.cookie = self.ask("GET", f"/?token={self.token}")[1]["set-cookie"].partition(";")[0]

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> tuple[int, dict[str, str], str]:
        connection = HTTPConnection(self.host, timeout=120)
        told = {name: value for name, value in headers.items() if value}
        connection.request(method, path, body, {"Host": self.host} | told)
        answer = connection.getresponse()
        found = (answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())
        connection.close()
        return found

    def form(self) -> dict[str, str]:
        """The form that a reviewer's browser would send for the first flag."""
        _, _, page = self.ask("GET", "/", Cookie=self.cookie)
        first = re.search(r'<a href="(/flag[^"]+)" data-key="o"', page)[1].replace("&amp;", "&")
        _, _, page = self.ask("GET", first, Cookie=self.cookie)
        fields = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page)
        chosen = {"decision": "confirmed", "note": "", "sure": "yes"}
        return {name: value.replace("&amp;", "&") for name, value in fields} | chosen

    def post(self, form: dict[str, str], **headers: str) -> tuple[int, dict[str, str], str]:
        told = {"Cookie": self.cookie, "Origin": f"http://{self.host}"} | headers
        return self.ask("POST", "/decide", urlencode(form), **told)
