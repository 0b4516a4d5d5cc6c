"""Forty flags, twenty of them traps, decided by keys as the pages advise; and each kind of page, as axe sees it."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin

import polars as pl
import pytest
from deltalake import write_deltalake

from scanner import results
from schemas.tables import FLAGS
from tests.support.command_line import call
from tests.support.moderated import PEOPLE, Moderated, moderated_night
from tests.support.opened_once import keep_inspector
from tests.support.reviewing import Asking, loaded, opened, serving
from tests.support.without_ray import put_in_the_place_of_ray

WORDS_A_MINUTE = 240
SECONDS_TO_ACT = 1.0
FLAGS_A_MINUTE = 5
SIZES = ((400, 800), (1280, 900))


@pytest.fixture(scope="module")
def moderated(tmp_path_factory, words) -> Iterator[Moderated]:
    with pytest.MonkeyPatch.context() as patch:
        put_in_the_place_of_ray(patch)
        keep_inspector(patch)
        yield moderated_night(tmp_path_factory.mktemp("moderated"), words)


class Looked(NamedTuple):
    """The document on screen, the decision that its page recommends, and how many words say so."""

    document: str
    advised: str | None
    words: int


def look(page) -> Looked:
    """Read what a moderator reads: the title and the box on top."""
    loaded(page)
    said = page.locator(".advice").inner_text()
    advised = re.match(r"Recommended: (confirmed|quoted|dismissed|allowed|unclear|record nothing)", said)[1]
    document = page.locator("h1").inner_text().removeprefix("Flag: ")
    return Looked(document, None if advised == "record nothing" else advised, len(said.split()))


@pytest.mark.long
def test_a_moderator_who_follows_the_pages_decides_forty_flags_right_and_in_time(browser, moderated):
    """Time is that of reading the box on top, by WORDS_A_MINUTE; the app's own is printed, since no test is timed."""
    seen: list[Looked] = []
    with serving(moderated.night, "ruth") as app:
        context = opened(browser, viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(app.address)
        began = time.process_time()
        page.keyboard.press("o")
        page.wait_for_url("**/flag?**")
        for number in range(len(moderated.right)):
            seen.append(look(page))
            here = page.url
            last = number == len(moderated.right) - 1
            page.keyboard.press(seen[-1].advised[0] if seen[-1].advised else "l" if last else "j")
            page.wait_for_url(lambda url, here=here: url != here)
        took = time.process_time() - began
        page.wait_for_load_state()
        assert page.locator("ol.flags > li").count() == list(moderated.right.values()).count(None)
        context.close()
    assert {one.document: one.advised for one in seen} == moderated.right
    assert len(seen) == len(moderated.right) == 40
    rows = results.decisions(moderated.night.results).select("doc_id", "decision").collect().rows()
    assert len(rows) == len(dict(rows))
    assert dict(rows) == {name: right for name, right in moderated.right.items() if right is not None}
    print(f"the app: {took / len(seen):.2f} CPU s a flag")
    took = sum(one.words for one in seen) / WORDS_A_MINUTE * 60 + SECONDS_TO_ACT * len(seen)
    print(f"{60 * len(seen) / took:.1f} flags a minute")
    assert 60 * len(seen) / took >= FLAGS_A_MINUTE


@pytest.mark.costly
@pytest.mark.parametrize("edit", ["another user", "a flag less"])
def test_edited_flags_are_not_shown(moderated, edit):
    """Each page says that somebody changed the table and shows nothing of it, and a form in hand decides nothing."""
    night, flags = moderated.night, Path(f"{moderated.night.results}/flags")
    decided = results.decisions(night.results).collect()
    shutil.copytree(flags, night.folder / edit)
    rows = pl.read_delta(str(flags))
    changed = rows.with_columns(user_id=pl.lit("victim")) if edit == "another user" else rows.head(-1)
    with serving(night, "vera") as app:
        asking = Asking(app)
        form = asking.form()
        write_deltalake(str(flags), changed.to_arrow().cast(FLAGS), mode="overwrite")
        pages = [asking.ask("GET", f"/?state={state}", Cookie=asking.cookie) for state in ("open", "all")]
        pages.append(asking.ask("GET", f"/flag?{form['flag']}", Cookie=asking.cookie))
        pages.append(asking.post(form))
        for status, _, page in pages:
            assert status == 503
            assert "flags: its files are not those that brickscan committed, so somebody changed it" in page
            assert "Do not trust its rows" in page
            assert not any(name in page for name in ("victim", *PEOPLE))
        shutil.rmtree(flags)
        shutil.copytree(night.folder / edit, flags)
        assert asking.ask("GET", "/", Cookie=asking.cookie)[0] == 200
    assert results.decisions(night.results).collect().equals(decided)


@pytest.mark.costly
def test_axe_finds_nothing_on_any_kind_of_page(browser, moderated, tmp_path):
    """In both widths, light and dark: the app's pages and those of a report."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    assert call("report", moderated.night.config, "--out", tmp_path / "report")[0] == 0
    flag = next((tmp_path / "report" / "flags").glob("*.html"))
    found = []
    with serving(moderated.night, "axel") as app:
        context = opened(browser)
        page = context.new_page()
        page.goto(app.address)
        page.locator("select[name=state]").select_option("all")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**state=all**")
        addresses = [page.url, urljoin(page.url, page.locator(".flags .line a").first.get_attribute("href"))]
        kinds = [*addresses, urljoin(page.url, "/flag?path=none&row=0"), Path(flag).as_uri()]
        for address in [*kinds, (tmp_path / "report" / "index.html").as_uri(), "sure"]:
            if address == "sure":
                unsure = next(name for name in moderated.right if name.startswith("other"))
                page.goto(addresses[0])
                page.get_by_role("link", name=unsure, exact=True).click()
                loaded(page)
                page.keyboard.press("c")
                page.get_by_text("Confirm against the advice?").first.wait_for()
                loaded(page)
            else:
                page.goto(address)
                page.wait_for_timeout(600)  # buttons are pale while a page has just come up
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                for width, height in SIZES:
                    page.set_viewport_size({"width": width, "height": height})
                    wide = page.evaluate("document.documentElement.scrollWidth")
                    found += [(address, scheme, width, "wider than its window")] if wide > width else []
                    said = axe.run(page).response["violations"]
                    found += [(address, scheme, width, one["id"], one["nodes"][0]["target"]) for one in said]
        context.close()
    assert found == []


@pytest.mark.costly
@pytest.mark.parametrize(("width", "height"), [*SIZES, (1024, 900)])
def test_no_fact_hides_behind_the_decisions(browser, moderated, width, height):
    """Whatever is read, scrolled into view, stands free; decisions and the advice are on the first screen together."""
    with serving(moderated.night, "fay") as app:
        context = opened(browser, viewport={"width": width, "height": height})
        page = context.new_page()
        page.goto(app.address)
        page.keyboard.press("o")
        page.wait_for_url("**/flag?**")
        loaded(page)
        for name in ("confirmed", "quoted", "dismissed", "unclear", "allowed"):
            box = page.get_by_role("button", name=name).bounding_box()
            assert 0 <= box["y"] <= box["y"] + box["height"] <= height, name
            assert 0 <= box["x"] <= box["x"] + box["width"] <= width, name
        form = page.locator("form.decide").bounding_box()
        assert form["height"] <= height / 2 or form["x"] > width / 2
        advice = page.locator(".advice").bounding_box()
        below = advice["y"] + advice["height"] <= form["y"]
        assert below or advice["x"] + advice["width"] <= form["x"]
        hidden = page.evaluate(
            """() => [...document.querySelectorAll(".advice p, .found dd, .found li, .text, .when td")].filter(node => {
              node.scrollIntoView({block: "end"})
              const box = node.getBoundingClientRect()
              const top = document.elementFromPoint(box.left + Math.min(box.width / 2, 200), box.bottom - 4)
              return !(top && (node.contains(top) || top.contains(node)))
            }).map(node => node.textContent.slice(0, 60))"""
        )
        assert hidden == []
        context.close()
