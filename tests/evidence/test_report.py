"""`brickscan report`: a night as pages, what the light says, and what is refused; on a scan, and on rows made up."""

import json
import re
from datetime import UTC, date, datetime
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from scanner.evidence import one_night, site
from scanner.evidence.charts import bars_chart, rates_chart
from scanner.evidence.one_night import Night
from scanner.evidence.sentences import seldom
from scanner.input import documents
from tests.support.command_line import call
from tests.support.hostile_pages import HOSTILE, check
from tests.support.rows import verdict
from tests.support.two_keys import message_of

AT = datetime(2026, 8, 31, 3, tzinfo=UTC)
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
}


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
        assert re.search(r"one text in (more than )?[\d.]+·10\^\d+", page)
    record = json.loads((out / "index.json").read_text())
    assert (record["documents"], record["flagged"], record["quarantined"], record["light"]) == (4, 2, 1, "amber")
    twins = [json.loads((out / name).read_text()) for name in record["flags"]]
    assert {twin["user_id"] for twin in twins} == {"alice"}
    before = {path.name for path in (out / "flags").iterdir()}
    assert call("report", night.config, "--out", out)[0] == 0
    assert {path.name for path in (out / "flags").iterdir()} == before
    code, _, err = call("report", night.config, "--out", night.folder)
    assert (code, "is there and holds no report" in err) == (2, True)
    code, _, err = call("report", night.config, "--date", "2020-01-01", "--out", tmp_path / "no")
    assert (code, "no scan began on 2020-01-01" in err) == (2, True)
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


@pytest.mark.parametrize(
    ("scan", "flag", "light", "why"),
    [
        ({}, {}, "green", ""),
        ({"audit": "alarm", "exit_code": 3}, {}, "red", "alarmed"),
        ({}, {"proof": "differs"}, "red", "came out differently"),
        ({"audit": "canaries lost", "exit_code": 5}, {}, "amber", "canaries lost.*exit code 5"),
        ({"exit_code": 1}, {}, "amber", "exit code 1"),
        ({"quarantined": 11}, {}, "amber", "11 of 1,000 documents could not be scored"),
        ({"quarantined": 10}, {}, "green", ""),
    ],
)
def test_the_light_follows_what_went_wrong(scan, flag, light, why):
    found, reasons = one_night._light([SCAN | scan], [verdict(0, user="alice", proof="proved") | flag])
    assert found == light
    assert re.search(why, "; ".join(reasons))


def test_more_flags_than_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "MOST_FLAGS", 2)
    rows = [verdict(i, user="alice", path="/in/a", doc_id=f"d{i}", basis="key", proof="proved") for i in range(3)]
    named = {name: [("x", 1)] for name in ("key_id", "user_id", "account_id", "hour", "reason", "quarantined_account")}
    night = Night(
        date(2026, 8, 31), [SCAN], [row | {"scan_id": "s"} for row in rows], 0.001, "green", [], [], named, 9.0
    )
    explainer = SimpleNamespace(explain_cases=lambda cases: iter(()))
    site.write_report(explainer, night, tmp_path / "out")
    html = (tmp_path / "out" / "index.html").read_text()
    assert "1 more flags have no page here" in html
    assert html.count('href="flags/') == 2


@pytest.mark.parametrize("hostile", HOSTILE)
def test_charts_keep_text_as_text(hostile):
    chart = bars_chart([(hostile, 3)], hostile)
    assert set(re.findall(r"<(\w+)", chart)) <= {"svg", "title", "text", "rect", "path"}
    assert "<img" not in chart
    assert "<script" not in chart


def test_rates_stand_where_they_are():
    """A point on the line, one above it; on axes of three decades."""
    rows = [{"tests": 1000, "hits": hits, "expected": 10.0, "low": 1.0, "high": 100.0} for hits in (10, 100)]
    found = re.findall(r'circle cx="([\d.]+)" cy="([\d.]+)"', rates_chart(rows))
    (x, on), (same_x, above) = ((float(a), float(b)) for a, b in found)
    line = re.search(r'class="stated" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', rates_chart(rows))
    x0, y0, x1, y1 = map(float, line.groups())
    assert x == same_x == pytest.approx(x0 + (x1 - x0) / 3, abs=0.1)
    assert on == pytest.approx(y0 + (y1 - y0) / 3, abs=0.1)
    assert above == pytest.approx(y0 + (y1 - y0) * 2 / 3, abs=0.1)


def test_nothing_is_said_beyond_the_entropy_of_a_key():
    row = verdict(0, user="alice", basis="key")
    assert seldom(row | {"log10_p_global": -38.0}) == "1.0·10^38"
    assert seldom(row | {"log10_p_global": -200.0}) == "more than 3.4·10^38"
    assert seldom(row | {"log10_p_global": -200.0, "basis": "key-64-bits"}) == "more than 1.8·10^19"


@pytest.mark.usefixtures("without_ray")
def test_a_file_is_decoded_once_for_all_its_flags(night, registry, marked, plain, tmp_path, monkeypatch):
    """A row group can be decoded from its first row alone: for each flag anew, 100,000 rows took half a second."""
    alice = message_of(registry, "green", "alice")
    night.write("a", [marked(alice, 60 + 9 * (i % 5), i) for i in range(8)])
    night.scan()
    decoded = []

    class Counted(documents._Group):
        def __init__(self, *arguments):
            decoded.append(arguments)
            super().__init__(*arguments)

    monkeypatch.setattr(documents, "_Group", Counted)
    monkeypatch.chdir(tmp_path)
    assert "8 pages of flags" in call("report", night.config, "--out", "report")[1]
    assert len(decoded) == 1
    monkeypatch.chdir(tmp_path / "report")
    assert call("report", night.config, "--out", ".")[0] == 0
