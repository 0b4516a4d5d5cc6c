"""Pages in a real browser: nothing loads or runs, nothing is cut off, and eyes, ears and keyboards find their way.

One chromium and one report serve all tests. Texts, ids, accounts, a user and a file of the report hold markup that
tries to run. The browser has no scripts and no network, as a moderator's may have none.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scanner.registry import add_users
from tests.support.command_line import call
from tests.support.hostile_pages import HOSTILE
from tests.support.night import Night
from tests.support.opened_once import keep_inspector
from tests.support.two_keys import marked_text, message_of
from tests.support.without_ray import put_in_the_place_of_ray

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

WIDTHS = {"screen": (320, 768, 1280, 3840), "print": (480, 680)}  # print: A5 and A4 within their margins
MALLORY = "<img src=x onerror=alert(1)>\"'&"

CONTRASTS = """() => {
  const channels = text => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a] }
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3]))
  const behind = node => {
    const layers = []
    for (let at = node; at; at = at.parentElement) layers.push(channels(getComputedStyle(at).backgroundColor))
    const page = matchMedia('(prefers-color-scheme: dark)').matches && !matchMedia('print').matches ? 0 : 255
    return layers.reverse().reduce((below, top) => over(top, below), [page, page, page])
  }
  const light = rgb => rgb.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0)
  const words = [...document.querySelectorAll('body *')].filter(
    node => [...node.childNodes].some(child => child.nodeType == 3 && child.data.trim()) && node.tagName != 'title')
  return words.map(node => {
    const style = getComputedStyle(node), ground = behind(node)
    const ink = over(channels(node.closest('svg') ? style.fill : style.color), ground)
    const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x)
    return [(a + 0.05) / (b + 0.05), node.tagName + '.' + (node.getAttribute('class') || '')]
  })
}"""
"""Script that gives WCAG 2.2's contrast of every piece of text with its background, and the text's element."""


@pytest.fixture(scope="module")
def report(tmp_path_factory, registry, words, plain) -> Path:
    """A report of flags for alice and for a user; all names and ids but hers hold markup; one flag quotes."""
    folder = tmp_path_factory.mktemp("browser")
    own = Path(shutil.copytree(registry, folder / "registry"))
    add_users(own, ["green"], [MALLORY])
    marked = marked_text(own, words)
    alice, mallory = (message_of(own, "green", user) for user in ("alice", MALLORY))
    texts = [f"{hostile}\n{marked(alice, 80, seed)}\n{hostile}" for seed, hostile in enumerate(HOSTILE)]
    texts += [f"> {marked(mallory, 90, 50)}\n{plain(90, 5)}", marked(mallory, 300, 51) + "x" * 3000, None]
    ids = [*HOSTILE, "x" * 300, "plain", "none"]
    with pytest.MonkeyPatch.context() as patch:
        put_in_the_place_of_ray(patch)
        keep_inspector(patch)
        night = Night(folder, own)
        night.configure(columns='account = "account"', audit="share = 1.0")
        night.write("<img src=x onerror=alert(1)>", texts, doc_id=ids, account=ids[::-1])
        night.scan()
        code, out, err = call("report", night.config, "--out", folder / "report")
    assert code == 0, out + err
    return folder / "report"


@pytest.fixture
def context(browser) -> "Iterator[BrowserContext]":
    context = browser.new_context(java_script_enabled=False, offline=True)
    yield context
    context.close()


def pages(report: Path) -> list[Path]:
    flags = sorted((report / "flags").glob("*.html"))
    assert len(flags) == len(HOSTILE) + 2
    return [report / "index.html", *flags]


@pytest.mark.costly
def test_nothing_loads_and_nothing_runs(context, report):
    page = context.new_page()
    asked, said = [], []
    page.on("request", lambda request: asked.append(request.url))
    for event in ("console", "pageerror", "dialog", "popup", "download", "requestfailed"):
        page.on(event, lambda about: said.append(about))
    for path in pages(report):
        page.goto(path.as_uri())
    assert asked == [path.as_uri() for path in pages(report)]
    assert said == []


@pytest.mark.costly
def test_nothing_runs_where_scripts_may(browser, report):
    """In a browser with scripts, the pages' own policy keeps scripts out."""
    context = browser.new_context(offline=True)
    page = context.new_page()
    said = []
    for event in ("console", "pageerror", "dialog"):
        page.on(event, lambda about: said.append(about))
    for path in pages(report):
        page.goto(path.as_uri())
        names = page.evaluate("[...document.querySelectorAll('*')].flatMap(node => node.getAttributeNames())")
        assert not [name for name in names if name.startswith("on")]
        page.evaluate("document.body.append(Object.assign(document.createElement('img'), {src: 'x.png'}))")
    assert len(said) == len(pages(report)), said  # only the image that this test put in is refused
    assert all("Content Security Policy" in message.text for message in said)
    context.close()


@pytest.mark.costly
@pytest.mark.parametrize("media", WIDTHS)
def test_no_page_is_wider_than_its_window(context, report, media):
    page = context.new_page()
    page.emulate_media(media=media)
    for path in pages(report):
        page.goto(path.as_uri())
        for width in WIDTHS[media]:
            page.set_viewport_size({"width": width, "height": 800})
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, (path.name, width)


@pytest.mark.costly
@pytest.mark.parametrize(("media", "scheme"), [("screen", "light"), ("screen", "dark"), ("print", "dark")])
def test_text_stands_out_from_what_is_behind_it(context, report, media, scheme):
    """4.5 to 1, as WCAG 2.2 asks (1.4.3); printed pages are dark on light whatever the screen has."""
    page = context.new_page()
    page.emulate_media(media=media, color_scheme=scheme)
    for path in (pages(report)[0], pages(report)[1]):
        page.goto(path.as_uri())
        found = page.evaluate(CONTRASTS)
        assert len(found) > 20
        assert min(found)[0] >= 4.5, min(found)
        ink = [int(c) for c in re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).color"))[:3]]
        assert (max(ink) < 60) == (media == "print" or scheme == "light")


@pytest.mark.costly
def test_ears_are_told_what_eyes_see(context, report):
    page = context.new_page()
    page.goto((report / "index.html").as_uri())
    said = page.locator("body").aria_snapshot()
    assert re.search(r'^ *- heading "Night of \d{4}-\d\d-\d\d \w+" \[level=1\]', said, re.MULTILINE)
    assert re.search(r'img "\d+ rates on decoy keys: observed against stated, with limits\."', said)
    assert re.search(r'img "Flags by user".*alice 10', said)
    assert [said.count(f'columnheader "{name}"') for name in ("document", "marked for", "posted by account")] == [1] * 3
    assert page.get_by_role("link").count() == len(HOSTILE) + 3
    assert page.get_by_role("link", name="</script><script>alert(1)</script>", exact=True).count() == 1
    page.get_by_role("link", name="plain", exact=True).click()
    said = page.locator("body").aria_snapshot()
    assert 'heading "Flag: plain" [level=1]' in said
    assert "- term: How rarely chance does this" in said
    assert said.index('heading "The text"') < said.index('heading "What was found"')
    assert said.index("Recommended:") < said.index('heading "The text"')
    assert page.get_by_role("link").all_inner_texts() == ["The night"]
    page.get_by_role("link", name="The night").click()
    assert page.title().startswith("Night of")


def test_every_link_is_reached_by_keyboard_and_seen(context, report):
    page = context.new_page()
    page.goto((report / "index.html").as_uri())
    links = page.evaluate("[...document.links].map(link => link.getAttribute('href'))")
    reached = []
    for _ in range(len(links) + page.locator(".wide").count()):
        page.keyboard.press("Tab")
        focus = "[document.activeElement.getAttribute('href'), getComputedStyle(document.activeElement).outlineStyle]"
        href, outline = page.evaluate(focus)
        assert outline == "solid"
        reached += [href] if href is not None else []  # tables that scroll are reached too
    assert reached == links
    page.keyboard.press("Enter")
    page.wait_for_url("**/flags/*.html")
