"""The documentation as a site: every link leads somewhere, search runs in the browser, no other host is asked."""

import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", config, "--site-dir", site]
    environment = {"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, env=environment, check=False, text=True, capture_output=True)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Address of the site, built and served on this machine."""
    site = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", site)
    assert done.returncode == 0, done.stderr

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            """Write no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.costly
def test_every_page_is_in_the_menu_and_every_link_is_checked(tmp_path):
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for name in ("README.md", "SECURITY.md", "docs", "infra", "jobs/demo/NOTICE", "scanner", "schemas"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    (tmp_path / "docs/glossary.md").write_text("[a](nowhere.md) [b](guides/results.md#nowhere)")
    (tmp_path / "docs/new.md").write_text("A page.")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    assert "'glossary.md' contains a link 'nowhere.md'" in done.stderr
    assert "does not contain an anchor '#nowhere'" in done.stderr
    assert 'not included in the "nav" configuration:\n  - new.md' in done.stderr


@pytest.mark.costly
def test_a_reader_finds_a_word_in_the_dark_and_no_other_host_hears_of_it(browser, address):
    requests = []
    with browser.new_context(color_scheme="dark") as context:
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{address}/index.html")
        assert "brickscan" in page.title()
        assert page.locator("body").get_attribute("data-md-color-scheme") == "slate"
        page.locator("input.md-search__input").fill("quarantine")
        page.locator(".md-search-result__link").first.click()
        page.wait_for_load_state()
        assert "quarantine" in page.locator("article").inner_text().lower()
        page.goto(f"{address}/guides/keys-and-users.html")
        page.locator("article a[href*='SPEC_3']").first.click()
        page.wait_for_load_state()
        assert page.url.startswith(f"{address}/scanner/watermark/SPEC_3.html")
    assert len(requests) > 10
    assert [url for url in requests if not url.startswith(address)] == []
