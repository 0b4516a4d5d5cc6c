"""The detector's page in a real browser: by keyboard, without scripts, at 400 and 1280 px, light, dark and on paper."""

import json

import pytest

from tests.support.detecting import configured, detecting
from tests.support.reviewing import opened

pytestmark = pytest.mark.costly


@pytest.fixture(scope="module")
def server(tmp_path_factory, registry):
    with detecting(configured(tmp_path_factory.mktemp("page"), registry, detector='provider = "Acme"\n')) as server:
        yield server


def faults(page) -> list[str]:
    """What axe finds against WCAG 2.1 A and AA."""
    from axe_playwright_python.sync_playwright import Axe

    rules = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}}
    return [
        f"{found['id']}: {found['nodes'][0]['html']}" for found in Axe().run(page, options=rules).response["violations"]
    ]


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_a_text_is_asked_about_by_keyboard_without_scripts(browser, server, marked, width, scheme):
    plain_page = opened(browser, viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True)
    page = plain_page.new_page()
    page.goto(server.address)
    assert faults(page) == []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.insert_text(marked(1, 200, 1))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "file"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Found").wait_for()
    assert page.title().startswith("Found")
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the signed report").press("Enter")
    report = json.loads(download.value.path().read_text())
    assert json.loads(report["statement"])["result"] == "found"
    file = {"name": "a.html", "mimeType": "text/html", "buffer": f"<p>{marked(1, 200, 1)} end</p>".encode()}
    page.locator("#file").set_input_files(file)
    page.get_by_role("button", name="Look for marks").press("Enter")
    page.get_by_role("region", name="What was read of the file").wait_for()
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.emulate_media(media="print")
    assert not page.locator("form").is_visible()
    assert page.get_by_role("heading", name="Found").is_visible()
    plain_page.close()
    without = opened(browser, java_script_enabled=False)
    page = without.new_page()
    page.goto(server.address)
    page.get_by_label("Text", exact=True).fill("short")
    page.get_by_role("button", name="Look for marks").press("Enter")
    page.get_by_role("heading", name="Too short").first.wait_for()
    without.close()
