"""`brickscan report`: pages of a night, its traffic light, and refusals; on a scan, and on rows made up."""

import json
import re
import tempfile
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanner import night_report
from scanner.evidence.advice import Precision
from scanner.evidence.charts import bars_chart, rates_chart
from scanner.input import documents
from scanner.night_report import Night, seconds_covered
from scanner.printable import printable
from scanner.results.expected_false_flags import ExpectedFalseFlags
from tests.support.command_line import call
from tests.support.hostile_pages import HOSTILE, TAGS, ParsedPage, check
from tests.support.rows import verdict
from tests.support.two_keys import message_of

AT = datetime(2026, 8, 31, 3, tzinfo=UTC)
NAMES = ("key_id", "user_id", "account_id", "hour", "reason", "quarantined_account")
SCAN = {
    "scan_id": "s",
    "audit": "no alarm",
    "exit_code": 0,
    "documents": 1000,
    "quarantined": 0,
    "flagged": 1,
    "files_quarantined": 0,
    "false_positive_rate": 1e-6,
    "started_at": AT,
    "finished_at": AT,
    "night": "2026-08-31",
    "night_stated": None,
    "trial": False,
    "keys_left_out": [],
    "keys": [],
    "level_shards_left": None,
    "filtered": 0,
    "audited_scans": ["s"],
}


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_night_is_seen(night, registry, marked, plain, tmp_path):
    alice = message_of(registry, "green", "alice")
    night.configure(columns='account = "account"')
    texts = [marked(alice, 80, 1), marked(alice, 80, 2), plain(80, 1), None]
    night.write("a", texts, account=["ann", "</td><b>", "bo", "cy"])
    night.scan()
    out = tmp_path / "report"
    code, said, _ = call("report", night.config, "--out", out)
    assert (code, "amber; 4 documents read, 2 flagged" in said) == (0, True), said
    assert {path.stat().st_mode & 0o077 for path in (out / "flags").iterdir()} == {0}
    html = (out / "index.html").read_text()
    seen = Links(html)
    assert len(seen.links) == 2
    assert "default-src 'none'" in html
    assert "1 of 4 documents could not be scored" in html
    assert "alice" in html
    assert "<b>" not in html.partition("<tbody>")[2]
    for link in seen.links:
        page = (out / link).read_text()
        check_flag(page)
        assert re.search(r"(1 in [\d,]+|less than 1 in a billion) unmarked texts would score as high", page)
    record = json.loads((out / "index.json").read_text())
    assert (record["documents"], record["flagged"], record["quarantined"], record["light"]) == (4, 2, 1, "amber")
    assert record["misnamed_expected_at_most"] == 2 * 1e-6
    twins = [json.loads((out / name).read_text()) for name in record["flags"]]
    assert {twin["user_id"] for twin in twins} == {"alice"}
    before = {path.name for path in (out / "flags").iterdir()}
    assert "What people decided" not in html
    assert call("decide", night.config, "a:0", "confirmed", "--by", "ruth")[0] == 0
    assert call("report", night.config, "--out", out)[0] == 0
    assert {path.name for path in (out / "flags").iterdir()} == before
    assert "100.0% (2.5% to 100.0% with 95 % confidence)" in (out / "index.html").read_text()
    record = json.loads((out / "index.json").read_text())
    assert record["decided"]["this night"]["limits"] == pytest.approx([0.025, 1.0])
    code, _, err = call("report", night.config, "--out", night.folder)
    assert (code, "is not a report" in err) == (2, True)
    code, _, err = call("report", night.config, "--date", "2020-01-01", "--out", tmp_path / "no")
    assert (code, "no scan of the night 2020-01-01 finished" in err) == (2, True)
    assert not (tmp_path / "no").exists()


class Links(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.links = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        link = dict(attrs).get("href", "")
        assert link.startswith(("flags/", "#")) or not link
        assert not {"src", "srcset", "action", "data"} & dict(attrs).keys()
        if link.startswith("flags/"):
            self.links.append(link)


def check_flag(html: str) -> None:
    assert '<a href="../index.html">' in html
    check(html.replace('<a href="../index.html">', "").replace("</a>", ""))


KEY = {"key_id": "k", "positions": None, "positions_shown": None}


@pytest.mark.parametrize(
    ("scan", "flag", "light", "why"),
    [
        ({}, {}, "green", ""),
        ({"audit": "alarm", "exit_code": 3}, {}, "red", "s0 alarmed|scan .* alarmed"),
        ({}, {"proof": "differs"}, "red", "gave different results"),
        ({"audit": "canaries lost", "exit_code": 5}, {}, "amber", "canaries lost.*exit code 5"),
        ({"exit_code": 1}, {}, "amber", "exit code 1"),
        ({"level_shards_left": 3}, {}, "amber", "the model has not read everything that scan"),
        ({"level_shards_left": 0}, {}, "green", ""),
        ({"quarantined": 11}, {}, "amber", "11 of 1,000 documents could not be scored"),
        ({"quarantined": 10}, {}, "green", ""),
        ({"keys": [KEY | {"positions": 95, "positions_shown": 5}]}, {}, "amber", "under k, 5.0%"),
        ({"keys": [KEY | {"positions": 96, "positions_shown": 4}]}, {}, "green", ""),
    ],
)
def test_the_light_follows_what_went_wrong(scan, flag, light, why):
    flags = [verdict(0, user="alice", proof="proved") | flag]
    found, reasons = night_report._light([SCAN | scan], flags, ([], []), "{} alarmed".format)
    assert found == light
    assert re.search(why, "; ".join(reasons))


@pytest.mark.parametrize(("minutes", "covered"), [([], 0), ([(0, 5), (10, 12)], 7), ([(3, 9), (0, 5), (1, 2)], 9)])
def test_time_in_which_several_drivers_ran_counts_once(minutes, covered):
    begin = datetime(2026, 8, 31, tzinfo=UTC)
    spans = [tuple(begin + timedelta(minutes=minute) for minute in span) for span in minutes]
    assert seconds_covered(spans) == 60 * covered


def test_more_flags_than_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(night_report, "MOST_FLAGS", 2)
    html = written(night_of_rows(3), tmp_path / "out")["index.html"]
    assert "1 more flag has no page here" in html
    assert html.count('href="flags/') == 2
    assert "<li>false flags: at most 0.02 of 3 expected, by chance (N·p)</li>" in html
    assert "at most <b>0.002</b> flags are expected to name a wrong user" in html


def night_of_rows(count: int, **fields: str) -> Night:
    """Writes a night of flags with the fields that a test states."""
    about = {"user": "alice", "path": "/in/a", "doc_id": "d", "basis": "key", "proof": "proved"} | fields
    rows = [verdict(i, **about) | {"scan_id": "s", "created_at": AT} for i in range(count)]
    named = {name: [(fields.get("doc_id"), 1)] for name in NAMES}
    decided = dict.fromkeys(("this night", "all nights"), Precision(3, 1, 1, 1))
    return Night(
        date(2026, 8, 31),
        [SCAN],
        rows,
        ExpectedFalseFlags(0.02, flags=count, reserved=0, by_chance=0.02),
        0.002,
        "green",
        [],
        [],
        named,
        9.0,
        decided,
    )


def written(night: Night, out: Path) -> dict[str, str]:
    night_report.write_report(SimpleNamespace(explain_cases=lambda cases: iter(()), results="nowhere"), night, out)
    return {path.name: path.read_text() for path in out.glob("*.html")}


def test_leave_out_columns_of_which_nothing_is_known(tmp_path):
    """An input without accounts gives no column of accounts that says `unknown` in each line."""
    assert "posted by account" not in written(night_of_rows(3), tmp_path / "without")["index.html"]
    page = written(night_of_rows(3, account_id="acct"), tmp_path / "with")["index.html"]
    assert page.count("<td>acct</td>") == 3


def test_many_flags_are_listed_on_pages_that_stay_small(tmp_path):
    """Flags have the worst ids; at most 5,000 have pages."""
    bad = "'" * 300
    pages = written(night_of_rows(5_003, user=bad, doc_id=bad, account_id=bad, key_id="k" * 60), tmp_path / "out")
    assert set(pages) == {"index.html", *(f"flags-{number}.html" for number in range(2, 51))}
    assert max(len(page.encode()) for page in pages.values()) < 200_000
    assert sum(page.count('href="flags/') for page in pages.values()) == 5_000
    assert "3 more flags have no page here" in pages["index.html"]
    assert pages["flags-2.html"].count('href="flags-') == 48
    assert "Flags 101 to 200 of the night" in pages["flags-2.html"]


@given(st.text(min_size=1, max_size=80), st.sampled_from(["doc_id", "user", "account_id", "path"]))
@settings(max_examples=60)
def test_any_field_of_a_list_stays_text(text, field):
    fields = {field: text} | ({"doc_id": None} if field == "path" else {})
    with tempfile.TemporaryDirectory() as folder:
        (html,) = written(night_of_rows(1, **fields), Path(folder) / "out").values()
    seen = ParsedPage(html)
    assert seen.tags <= TAGS | {"a", "table", "thead", "tbody", "tr", "th", "td", "svg", "text", "rect", "path", "b"}
    assert not [name for name in seen.attributes if name.startswith("on")]
    shown = printable(f"row 0 of {text}" if field == "path" else text, 60)
    assert shown in "".join(seen.text)


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_report_is_old_or_new_and_whole(tmp_path, monkeypatch, exchanges):
    """A report that is interrupted leaves the old one in place; once moved into place, the new one stands."""
    if not exchanges:
        monkeypatch.setattr(night_report, "exchange", Mock(side_effect=OSError))
    out, new = tmp_path / "report", tmp_path / "new"
    for folder, name in ((out, "old"), (new, "new")):
        folder.mkdir()
        (folder / name).touch()
    night_report._put_in_place(new, out)
    assert ([path.name for path in out.iterdir()], [path.name for path in new.iterdir()]) == (["new"], ["old"])
    assert {path.name for path in tmp_path.iterdir()} == {"report", "new"}
    night_report._put_in_place(new, tmp_path / "first")
    assert [path.name for path in (tmp_path / "first").iterdir()] == ["old"]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_charts_keep_text_as_text(hostile):
    chart = bars_chart([(hostile, 3)], hostile)
    assert set(re.findall(r"<(\w+)", chart)) <= {"svg", "title", "text", "rect", "path"}
    assert "<img" not in chart
    assert "<script" not in chart


def test_too_few_decoys_are_told_as_such():
    """A night's page says down to which p there are enough decoys of all kinds, or that they are too few."""

    def down_to(*verdicts: str) -> float | None:
        rates = [
            {"kind": "decoy_all", "label": label, "threshold": 10.0**-k, "verdict": verdict}
            for label, of_label in zip("ab", verdicts, strict=False)
            for k, verdict in enumerate(of_label.split(), start=1)
        ]
        return Night.holds_down_to.fget(SimpleNamespace(rates=rates))

    assert down_to("holds conservative undecided holds") == 0.01
    assert down_to("holds holds holds", "holds undecided holds") == 0.1
    assert down_to("holds holds", "undecided undecided") is None
    assert down_to() is None


def test_rates_stand_where_they_are():
    """One point on the line and one above it, on axes of three decades."""
    rows = [{"tests": 1000, "hits": hits, "expected": 10.0, "low": 1.0, "high": 100.0} for hits in (10, 100)]
    found = re.findall(r'circle cx="([\d.]+)" cy="([\d.]+)"', rates_chart(rows))
    (x, on), (same_x, above) = ((float(a), float(b)) for a, b in found)
    line = re.search(r'class="stated" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', rates_chart(rows))
    x0, y0, x1, y1 = map(float, line.groups())
    assert x == same_x == pytest.approx(x0 + (x1 - x0) / 3, abs=0.1)
    assert on == pytest.approx(y0 + (y1 - y0) / 3, abs=0.1)
    assert above == pytest.approx(y0 + (y1 - y0) * 2 / 3, abs=0.1)


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_file_is_decoded_once_for_all_its_flags(night, registry, marked, plain, tmp_path, monkeypatch):
    """A row group is decoded from its first row on: to decode 100,000 rows anew for each flag took half a second."""
    alice = message_of(registry, "green", "alice")
    night.write("a", [marked(alice, 60 + 9 * (i % 5), i) for i in range(8)])
    night.scan()
    decoded = []

    class CanaryCounts(documents._Group):
        def __init__(self, *arguments):
            decoded.append(arguments)
            super().__init__(*arguments)

    monkeypatch.setattr(documents, "_Group", CanaryCounts)
    monkeypatch.chdir(tmp_path)
    assert "8 pages of flags" in call("report", night.config, "--out", "report")[1]
    assert len(decoded) == 1
    monkeypatch.chdir(tmp_path / "report")
    assert call("report", night.config, "--out", ".")[0] == 0


@pytest.mark.parametrize(
    "command", [["explain", "a:0"], ["explain", "a:0", "--json"], ["explain", "a", "--html", "page"], ["report"]]
)
def test_what_names_a_thing_of_a_scan_is_refused_before_the_first(tmp_path, monkeypatch, command):
    """It ended with 0, as though the page had been written, or with a sentence where JSON was asked for."""
    monkeypatch.chdir(tmp_path)
    Path("scan.toml").write_text(
        'version = 2\nregistry = "registry"\nresults = "results"\nfalse_positive_rate = 1e-6\n[input]\npaths = ["in"]\n'
    )
    name, *more = command
    code, out, err = call(name, "scan.toml", *more, *(["--out", "pages"] if name == "report" else []))
    assert (code, out) == (2, "")
    assert "There are no results in" in err
    assert "run `brickscan scan scan.toml` first." in err
    assert [path.name for path in tmp_path.iterdir()] == ["scan.toml"]
