"""Marked accounts of real posts through a whole scan: every command and page says the same of each."""

import html
import json
import math
import re
import shutil
from collections.abc import Callable
from datetime import date
from itertools import product
from pathlib import Path
from urllib.parse import urljoin

import jsonschema
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from jobs.demo import make_registry
from scanner.evidence.explainer import Explainer
from scanner.looks.accounts.explanation import explain_account, posts_in_words
from scanner.looks.accounts.posts import drop_posts
from scanner.storage.data_files import SCHEMAS
from scanner.storage.locations import table_uri
from tests.support.command_line import call
from tests.support.night import Night
from tests.support.opened_once import keep_inspector
from tests.support.reviewing import Asking, opened, serving
from tests.support.without_ray import put_in_the_place_of_ray

DEMO = Path("jobs/demo").absolute()
WORDS = 20
SIZES = (("screen", 400), ("screen", 1280), ("print", 480), ("print", 680))  # print: A5 and A4 within their margins
BOTH = ("answers", "writes")
QUOTED, WROTE = "user-06", "user-29"
"""Users for whom the model wrote 600 to 1,000 tokens: `answers` quotes the first's, `writes` posts the second's."""


def posts_of(kind: str, user: str | None = None) -> list[str]:
    """The demo's texts of people, or of its Gumbel key for a user, cut into posts of so many words."""
    truth = pl.read_parquet(DEMO / "truth.parquet").filter(pl.col("kind") == kind)
    wanted = (
        set(truth.filter(pl.col("user_id").eq_missing(user), key_id="demo-gumbel")["doc_id"])
        if user
        else set(truth["doc_id"])
    )
    raw = pa.schema([("doc_id", pa.binary()), ("text", pa.binary())])
    tables = [pq.read_table(path, columns=raw.names).cast(raw) for path in sorted(DEMO.glob("sample-[12].parquet"))]
    rows = [row for table in tables for row in table.to_pylist() if (row["doc_id"] or b"").decode() in wanted]
    words = [(row["text"] or b"").decode(errors="ignore").split() for row in rows]
    return [" ".join(each[i : i + WORDS]) for each in words for i in range(0, len(each) - WORDS + 1, WORDS)]


@pytest.fixture(scope="module")
def night(tmp_path_factory) -> Night:
    """A scanned night of four accounts: one answers a user's text, one writes another's, and two are people's."""
    folder = tmp_path_factory.mktemp("accounts")
    make_registry(folder / "registry")
    quoted, wrote, human = posts_of("marked", QUOTED), posts_of("marked", WROTE), posts_of("human")
    answers = [f"> {post}\n{human[i]}" for i, post in enumerate(quoted)]
    texts = answers + wrote + human[200:340]
    who = ["answers"] * len(answers) + ["writes"] * len(wrote) + ["person"] * 40 + ["talker"] * 100
    with pytest.MonkeyPatch.context() as patch:
        put_in_the_place_of_ray(patch)
        keep_inspector(patch)
        night = Night(folder, folder / "registry")
        night.configure(more="accounts = { nights = 1 }", columns='account = "who"')
        night.write("a", texts, who=who)
        outcome = night.scan()
    assert outcome.exit_code == 0
    assert not night.verdicts()["flagged"].any()
    return night


def pages(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.suffix}


@pytest.mark.costly
@pytest.mark.seconds
def test_every_command_and_page_says_the_same_of_each_account(night, tmp_path, opened_once):
    """The account that quotes is named for nobody anywhere; the one that writes marked text for its user everywhere."""
    of_each = {}
    for name in ("answers", "writes"):
        of_each[name] = [
            call("accounts", night.config, "--account", name)[1],
            *(call("accounts", night.config, "--account", name, "--format", form)[1] for form in ("json", "csv")),
            call("explain", night.config, name)[1],
            call("explain", night.config, "--account", name, "--json")[1],
        ]
        assert call("explain", night.config, name, "--html", tmp_path / f"{name}.html")[0] == 0
        of_each[name].append((tmp_path / f"{name}.html").read_text())
    day = night.last_scan()["night"]
    with serving(night, "ruth") as app:
        asking = Asking(app)
        listed = asking.ask("GET", "/accounts", Cookie=asking.cookie)
        for name in of_each:
            status, _, page = asking.ask("GET", f"/account?id={name}&night={day}", Cookie=asking.cookie)
            assert (status, "decisions are not recorded on accounts" in page) == (200, True)
            of_each[name].append(page)
        assert asking.ask("GET", f"/account?id=person&night={day}", Cookie=asking.cookie)[0] == 404
        assert asking.ask("GET", "/account?id=writes&night=x", Cookie=asking.cookie)[0] == 404
    code, out, _ = call("report", night.config, "--out", tmp_path / "report")
    assert (code, "2 marked accounts; 1 named for a user" in out) == (0, True)
    report = pages(tmp_path / "report")
    together = [listed[2], report.pop("index.html"), report.pop("index.json"), call("accounts", night.config)[1]]
    together += [call("export", night.config, "--accounts", "--format", form)[1] for form in ("verdict", "csv")]
    for page in together:
        assert (WROTE in page, QUOTED in page, "answers" in page, "person" in page) == (True, False, True, False)
    for page in report.values():
        of_each["writes" if "Account: writes" in page or '"account_id": "writes"' in page else "answers"].append(page)
    assert len(report) == 4
    assert [len(outputs) for outputs in of_each.values()] == [9, 9]
    assert all(WROTE in output and QUOTED not in output for output in of_each["writes"])
    assert all(WROTE not in output and QUOTED not in output for output in of_each["answers"])
    said = " ".join(of_each["answers"][3].split())
    assert "nobody: without the lines that it quotes, its own words do not name a user" in said
    assert "What to do: nothing: it quotes marked posts" in said
    assert re.search(r"quotes \| > .*\n(  quotes \| .*\n)*  writes \| ", of_each["answers"][3])


@pytest.mark.costly
@pytest.mark.seconds
def test_the_evidence_of_an_account_is_the_scans(night, opened_once):
    """Read from the posts that are kept, and from the input's files once these are dropped."""
    found = {name: explain_account(Explainer(night.config), name)[0] for name in ("answers", "writes")}
    kept = Path(shutil.copytree(night.results, night.folder / "kept"))
    drop_posts(night.results, date(2999, 1, 1))
    again = {name: explain_account(Explainer(night.config), name)[0] for name in found}
    shutil.rmtree(night.results)
    kept.rename(night.results)
    assert call("sign", night.config, "--yes")[0] == 0  # the tables as they were before the posts were dropped
    for explained in (*found.values(), *again.values()):
        row = explained.row
        assert explained.log10_p == pytest.approx(row["log10_p_global"], rel=1e-12)
        assert (explained.read, explained.no_posts, explained.no_evidence) == (row["posts"], None, None)
        assert sum(post.scored for post in explained.posts) == row["scored"]  # fewer than are shown at most
    assert found["answers"].log10_p_own > -1 > -6 > found["answers"].log10_p
    assert found["writes"].log10_p_own == found["writes"].log10_p
    strongest = found["writes"].posts[0]
    assert strongest.level == strongest.own_level == max(post.level or 0 for post in found["writes"].posts)
    assert {name: one.posts for name, one in again.items()} == {name: one.posts for name, one in found.items()}
    without = explain_account(Explainer(night.results), "writes")[0]
    assert "name the scan's configuration" in str(without.no_posts)


@pytest.mark.costly
@pytest.mark.seconds
def test_posts_of_a_later_scan_are_left_out(night, tmp_path, opened_once):
    """A second scan of the date tests no account again, so its posts are no evidence of the row: kept, or in files."""
    # a registry of its own: the night's would take the copy for the results that go on
    copy = Night(tmp_path, shutil.copytree(night.registry, tmp_path / "registry"))
    shutil.copytree(night.results, copy.results)
    shutil.rmtree(copy.input)
    shutil.copytree(night.input, copy.input)
    copy.configure(more="accounts = { nights = 1 }", columns='account = "who"')
    assert call("sign", copy.config, "--yes")[0] == 0
    before = explain_account(Explainer(copy.config), "writes")[0]
    copy.write("b", ["a post that came after the night was tested"], who=["writes"])
    with pytest.MonkeyPatch.context() as patch:
        put_in_the_place_of_ray(patch)
        assert copy.scan().exit_code == 0
    kept = explain_account(Explainer(copy.config), "writes")[0]
    drop_posts(copy.results, date(2999, 1, 1))
    for after in (kept, explain_account(Explainer(copy.config), "writes")[0]):
        assert (after.read, after.row["posts"]) == (before.read, before.row["posts"])
        assert posts_in_words(after) == posts_in_words(before)
        assert after.log10_p == before.log10_p


MINE, THEIRS = pl.col("account_id") == "writes", pl.col("account_id") == "answers"


def with_value(column: str, value: object) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """An edit of the row, or rows, of the account that writes marked text."""
    return lambda rows: rows.with_columns(pl.when(MINE).then(pl.lit(value)).otherwise(column).alias(column))


def give_posts_to_another(rows: pl.DataFrame) -> pl.DataFrame:
    talker = rows.filter(pl.col("account_id") == "talker")
    given = rows.filter(MINE).with_columns(account_id=pl.lit("talker"), account=pl.lit(talker["account"][0]))
    return pl.concat([rows.filter(pl.col("account_id") != "talker"), given])


EDITS: dict[str, list[Callable[[pl.DataFrame], pl.DataFrame]]] = {
    "accounts": [
        lambda rows: rows.with_columns(user_id=pl.col("user_id").str.replace(WROTE, QUOTED)),
        lambda rows: rows.with_columns(naming=pl.when(THEIRS).then(pl.lit("named")).otherwise("naming")),
        with_value("message", 0),
        with_value("log10_p_global", -99.0),
        with_value("log10_p_global", math.nan),
        with_value("account_id", "person"),
        with_value("account_id", "talker"),
        with_value("posts", 10**6),
        with_value("night", "no date"),
        lambda rows: rows.filter(MINE),
        lambda rows: rows.clear(),
        lambda rows: pl.concat([rows, rows]),
    ],
    "account_posts": [give_posts_to_another, lambda rows: rows.filter(~MINE), with_value("text", b"other words " * 30)],
}
"""Edits of the tables of accounts: those of earlier versions' checks are among them."""


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("table", EDITS)
def test_no_edit_of_accounts_is_shown_as_checked(night, tmp_path, opened_once, table):
    """Each door refuses what reads an edited table; what reads none of it says what it said before."""
    copy = Night(tmp_path, night.registry)
    shutil.copytree(night.results, copy.results)
    shutil.rmtree(copy.input)
    shutil.copytree(night.input, copy.input)
    copy.configure(more="accounts = { nights = 1 }", columns='account = "who"')
    assert call("sign", copy.config, "--yes")[0] == 0  # the registry does not know this place before

    def answers() -> dict[str, tuple[int, str]]:
        doors = {
            "accounts": ["accounts", copy.config, "--format", "json"],
            "export": ["export", copy.config, "--accounts"],
            "writes": ["explain", copy.config, "writes", "--json"],
            "talker": ["explain", copy.config, "talker", "--json"],
            "report": ["report", copy.config, "--out", tmp_path / "report"],
        }
        said = {door: call(*line) for door, line in doors.items()}
        code, _, why = said["report"]
        with serving(copy, "ruth") as app:
            asking = Asking(app)
            page = asking.ask("GET", "/accounts", Cookie=asking.cookie)
        listed = (tmp_path / "report" / "index.html").read_text() if code == 0 else ""
        said["report"] = code, re.sub("[0-9,.]+ s: [0-9,.]+ documents a second", "", listed), why
        said["review"] = 0 if page[0] == 200 else 2, page[2] if page[0] == 200 else "", page[2]
        for door, (door_code, _, err) in said.items():
            assert door_code == 0 or "o not trust its rows" in html.unescape(err) or "document 'talker': no" in err, (
                door,
                err,
            )
        return {door: (door_code, out) for door, (door_code, out, _) in said.items()}

    before = answers()
    assert {door for door, (code, _) in before.items() if code} == {"talker"}
    uri = Path(table_uri(copy.results, table))
    shutil.copytree(uri, tmp_path / "copy")
    for number, edit in enumerate(EDITS[table]):
        changed = edit(pl.read_delta(str(uri))).to_arrow().cast(SCHEMAS[table])
        write_deltalake(str(uri), changed, mode="overwrite")
        after = answers()
        assert all(after[door] == before[door] or after[door][0] == 2 for door in before), number
        refusing = {door for door in before if after[door][0] == 2}
        assert refusing >= ({*before} if table == "accounts" else {"writes"}), (number, refusing)
        shutil.rmtree(uri)
        shutil.copytree(tmp_path / "copy", uri)
    assert answers() == before


@pytest.mark.seconds
def test_an_export_of_accounts_keeps_to_its_schema(night, opened_once):
    schema = json.loads(call("schema", "account")[1])
    lines = [json.loads(line) for line in call("export", night.config, "--accounts")[1].splitlines()]
    for line in lines:
        jsonschema.validate(line, schema)
    assert {line["account_id"]: (line["naming"], line["named"]) for line in lines} == {
        "answers": ("quoted", []),
        "writes": ("named", [WROTE]),
    }
    assert call("export", night.config, "--accounts", "--since", "2999-01-01")[1] == ""
    assert "--accounts goes with" in call("export", night.config, "--accounts", "--format", "label-studio")[2]


@pytest.mark.seconds
def test_an_account_that_is_not_marked_is_refused(night, opened_once):
    code, _, err = call("explain", night.config, "--account", "person")
    assert (code, "not marked" in err) == (2, True)
    assert call("explain", night.config, "--account", "writes", "--date", "2020-01-01")[0] == 2
    assert "person" in call("explain", night.config, "person")[2]


@pytest.mark.costly
def test_axe_finds_nothing_on_pages_of_accounts(browser, night, tmp_path, opened_once):
    """Lists and pages of the app and of a report, in both widths, light and dark, and printed."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    code, _, err = call("report", night.config, "--out", tmp_path / "report")
    assert code == 0, err
    files = [path.as_uri() for path in sorted((tmp_path / "report").rglob("*.html"))]
    assert len(files) == 3
    day, found = night.last_scan()["night"], []
    with serving(night, "axel") as app:
        context = opened(browser)
        page = context.new_page()
        page.goto(app.address)
        served = [urljoin(page.url, at) for at in ("/accounts", *(f"/account?id={name}&night={day}" for name in BOTH))]
        for address in (*served, *files):
            page.goto(address)
            for (media, width), scheme in product(SIZES, ("light", "dark")):
                page.emulate_media(media=media, color_scheme=scheme)
                page.set_viewport_size({"width": width, "height": 900})
                at = (address, media, scheme, width)
                wide = page.evaluate("document.documentElement.scrollWidth")
                found += [(*at, "wider than its window")] if wide > width else []
                said = axe.run(page).response["violations"]
                found += [(*at, one["id"], one["nodes"][0]["target"]) for one in said]
        context.close()
    assert found == []
