"""Marked accounts of real posts through a whole scan: every command and page says the same of each."""

import json
import math
import re
import shutil
from datetime import date
from itertools import product
from pathlib import Path
from urllib.parse import urljoin

import jsonschema
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.demo import make_registry
from scanner.evidence.explainer import Explainer
from scanner.looks.accounts.explanation import explain_account
from scanner.looks.accounts.posts import drop_posts
from scanner.night_report import night_of
from scanner.registry import users_of
from tests.support.command_line import call
from tests.support.night import Night
from tests.support.reviewing import Asking, opened, serving
from tests.support.without_ray import open_once, put_in_the_place_of_ray

DEMO = Path("jobs/demo").absolute()
WORDS = 20
SIZES = (("screen", 400), ("screen", 1280), ("print", 480), ("print", 680))  # print: A5 and A4 within their margins
BOTH = ("answers", "writes")
QUOTED, WROTE = "user-39", "user-29"
"""Users for whom the model wrote a thousand tokens each: `answers` quotes the first's, `writes` posts the second's."""


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
        open_once(patch)
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
            assert (status, "no decision is recorded on an account" in page) == (200, True)
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
    assert "nobody: without the lines that it quotes, its own words name nobody" in said
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
def test_an_account_whose_row_was_edited_is_named_for_nobody(night, tmp_path, opened_once):
    """A row that names another user than the registry does is shown as contradicted by every list."""
    copy = Night(tmp_path, night.registry)
    shutil.copytree(night.results, copy.results)
    copy.configure(columns='account = "who"')
    for file in Path(copy.results, "accounts").glob("*.parquet"):
        rows = pl.read_parquet(file)
        rows.with_columns(user_id=pl.col("user_id").str.replace(WROTE, QUOTED)).write_parquet(file)
    for command in (["accounts"], ["explain", "--account", "writes"], ["export", "--accounts"]):
        out = call(command[0], copy.config, *command[1:])[1]
        assert QUOTED not in out.replace(f"user {QUOTED} held the message", "")
        assert "contradicted" in out or "say different things" in out


def edited(night, tmp_path, **changes: pl.Expr) -> Night:
    """A copy of the night whose account `answers`, which quotes a user, and `writes` have other values."""
    copy = Night(tmp_path, night.registry)
    shutil.copytree(night.results, copy.results)
    shutil.rmtree(copy.input)
    shutil.copytree(night.input, copy.input)
    copy.configure(more="accounts = { nights = 1 }", columns='account = "who"')
    for file in Path(copy.results, "accounts").glob("*.parquet"):
        pl.read_parquet(file).with_columns(**changes).select(list(pl.read_parquet_schema(file))).write_parquet(file)
    return copy


QUOTES = pl.col("account_id") == "answers"


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize(
    ("account", "change"),
    [
        ("answers", {"naming": pl.when(QUOTES).then(pl.lit("named")).otherwise("naming")}),
        ("writes", {"message": pl.lit(0, pl.Int64)}),
        ("writes", {"log10_p_global": pl.col("log10_p_global") - 3.0}),
    ],
)
def test_an_account_whose_posts_do_not_give_its_row_is_named_for_nobody(night, tmp_path, opened_once, account, change):
    """An edited row that the registry agrees with: a user, their own message, and posts that do not say so."""
    (message,) = users_of(night.registry, [QUOTED]).filter(key_id="demo-gumbel")["message"]
    if account == "answers" or "message" in change:
        mine = pl.col("account_id") == account
        user = pl.when(mine).then(pl.lit(QUOTED)).otherwise("user_id")
        change = change | {
            "user_id": user,
            "message": pl.when(mine).then(pl.lit(message, pl.Int64)).otherwise("message"),
            "naming": pl.when(mine).then(pl.lit("named")).otherwise("naming"),
            "named": pl.when(mine).then(None).otherwise("named"),
        }
    copy = edited(night, tmp_path, **change)
    with serving(copy, "ruth") as app:
        asking = Asking(app)
        shown = [asking.ask("GET", "/accounts", Cookie=asking.cookie)[2]]
    call("report", copy.config, "--out", tmp_path / "report")
    shown += [(tmp_path / "report" / name).read_text() for name in ("index.html", "index.json")]
    shown += [call(*line)[1] for line in (("accounts", copy.config), ("export", copy.config, "--accounts"))]
    shown.append(call("explain", copy.config, account)[1])
    for page in shown:
        assert account in page
        assert QUOTED not in page
        assert WROTE not in page or account == "answers"
        assert "contradicted" in page or "say different things" in " ".join(page.split())
    assert "its posts, judged again," in " ".join(shown[-1].split())


@pytest.mark.costly
@pytest.mark.parametrize(("column", "value"), [("account_id", "person"), ("account_id", "talker"), ("posts", 10**6)])
def test_a_row_that_was_given_to_another_account_is_named_for_nobody(night, tmp_path, opened_once, column, value):
    """Nobody's posts give such a row, so that nothing was held against it: a person was shown as the marked user.

    The person has fewer posts than the row, and the talker more, as where a scan read a part of them alone.
    """
    mine = pl.col("account_id") == "writes"
    copy = edited(night, tmp_path, **{column: pl.when(mine).then(pl.lit(value)).otherwise(column)})
    assert WROTE in call("accounts", night.config)[1]
    code, said, _ = call("accounts", copy.config)
    assert (code, WROTE in said) == (0, False)
    account = value if column == "account_id" else "writes"
    code, said, _ = call("explain", copy.config, account)
    assert (code, WROTE in said, "Name nobody by this row: it was changed" in " ".join(said.split())) == (
        0,
        False,
        True,
    )


@pytest.mark.costly
@pytest.mark.parametrize("files", ["there", "gone"])
@pytest.mark.parametrize("how", ["posts of another", "texts of another"])
def test_an_account_that_was_given_the_posts_of_another_is_named_for_nobody(night, tmp_path, opened_once, how, files):
    """Judged by these posts again, its row came out equal: whoever writes tables had a person shown as marked."""
    mine = pl.col("account_id") == "writes"
    copy = edited(night, tmp_path, account_id=pl.when(mine).then(pl.lit("talker")).otherwise("account_id"))
    (file,) = Path(copy.results, "account_posts").glob("*.parquet")
    rows = pl.read_parquet(file)
    theirs, others = rows.filter(pl.col("account_id") == "talker"), rows.filter(mine)
    if how == "posts of another":
        given = others.with_columns(account_id=pl.lit("talker"), account=pl.lit(theirs["account"][0]))
    else:
        given = theirs.head(len(others)).with_columns(text=others["text"])
    pl.concat([rows.filter(pl.col("account_id") != "talker"), given]).write_parquet(file)
    if files == "gone":
        shutil.rmtree(copy.input)
    for command in ("accounts", "explain"):
        said = " ".join(call(command, copy.config, *["talker"] * (command == "explain"))[1].split())
        assert "talker" in said
        assert WROTE not in said
        assert "say different things" in said or "Name nobody by this row: it was changed" in said


@pytest.mark.costly
@pytest.mark.parametrize("kept", [["answers", "writes"], ["answers"], []])
def test_a_report_says_how_many_marked_accounts_somebody_took_out(night, tmp_path, opened_once, kept):
    copy = edited(night, tmp_path)
    for file in Path(copy.results, "accounts").glob("*.parquet"):
        pl.read_parquet(file).filter(pl.col("account_id").is_in(kept)).write_parquet(file)
    if not kept:
        shutil.rmtree(f"{copy.results}/accounts")
    found = night_of(copy.results, 1.0, None)
    said = [why for why in found.why if "somebody changed" in why]
    number = len(BOTH) - len(kept)
    gone = f"{number} marked accounts that its scans found are gone: somebody changed the table `accounts`"
    assert said == [gone] * (number > 0)
    assert (found.light == "red") is (number > 0)
    code, out, _ = call("report", copy.config, "--out", tmp_path / "report")
    assert (code, gone in pages(tmp_path / "report")["index.html"]) == (0, number > 0), out


@pytest.mark.costly
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.5])
def test_an_account_that_a_changed_value_takes_out_of_the_list_is_counted(night, tmp_path, value):
    mine = pl.col("account_id") == "writes"
    copy = edited(night, tmp_path, log10_p_global=pl.when(mine).then(pl.lit(value)).otherwise("log10_p_global"))
    said = "1 row of the table `accounts` left out, as no scan writes them: somebody changed the table"
    assert said not in call("accounts", night.config)[1]
    assert said in call("accounts", copy.config)[1]


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
    assert call("report", night.config, "--out", tmp_path / "report")[0] == 0
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
