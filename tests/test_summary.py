"""The summary of a scan: ten seconds of reading in 100 columns, and no figure that says more than was measured."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import summary as words
from jobs.summary import LINE_WIDTH, holds_down_to, summary, verdict_in_words
from jobs.text import width
from scanner.cluster.commits import ScanTotals
from scanner.cluster.pieces import DocumentCounts
from scanner.cluster.scan import ScanOutcome
from scanner.cluster.unread_input import UnreadInput
from scanner.cluster.work import ScanWork
from scanner.controls.control import Conclusion
from scanner.controls.reserved.framing import framing_warnings
from scanner.controls.scan_audit import ScanAudit
from scanner.controls.traffic import Traffic
from scanner.key_support import UnsupportedKey
from scanner.results.expected_false_flags import ExpectedFalseFlags
from scanner.results.scan_list import Reason, WholeInput, whole_input
from schemas.words import AuditState
from tests.support.rescanned import Shard, write

RATES = (0.1, 0.01, 0.001, 0.0001, 0.00001)


def rows(verdicts: str, kind: str = "decoy", messages: int = 1) -> list[dict[str, object]]:
    """One question's rows, large thresholds first; verdicts: h(olds), c(onservative), u(ndecided), t(oo small)."""
    words = {"h": "holds", "c": "conservative", "u": "undecided", "t": "too small"}
    about = {
        "kind": kind,
        "method": "greenlist",
        "label": "greenlist;h=4;gamma=1/4",
        "key_id": None,
        "messages": messages,
    }
    return [
        about | {"threshold": rate, "verdict": words[verdict], "hits": 12_345_678, "expected": 12_345_679.1}
        for rate, verdict in zip(RATES, verdicts, strict=True)
    ]


def audit(*found: dict[str, object], state: AuditState = AuditState.NO_ALARM, **changes: object) -> ScanAudit:
    false_flags = ExpectedFalseFlags(number=20.0, flags=31, reserved=1, by_chance=0.0)
    texts = Traffic(texts=4000, flagged=31, reserved=1, unheld=3, scans=("s",), false_flags=false_flags)
    values = {"unadmitted": (), "traffic": texts}
    return ScanAudit(state=state, rows=found, **(values | changes))


WHOLE = WholeInput(documents=4000, quarantined=3, too_short=12, scored_in_part=1, flagged=42, files_at_fault=1)
SCAN_ID = "20261121T034400Z-1a2b3c4d"


def outcome(**changes: object) -> ScanOutcome:
    """Outcome of a scan that resumed a night: 1,200 of 4,000 documents are this scan's."""
    values = {
        "scan_id": SCAN_ID,
        "exit_code": 0,
        "work": ScanWork(shard_count=12, skipped=9, left=(), shards=(), faults=()),
        "totals": ScanTotals(
            shards=3, counts=DocumentCounts(documents=1200, flagged=5, proved=5, text_bytes=2_460_000)
        ),
        "seconds": 12.3,
        "first_commit": 4.56,
        "audit": audit(*rows("hhhuu")),
        "unread": UnreadInput(reasons=(Reason("null_text", 3, 0), Reason("not_parquet", 0, 1)), whole=WHOLE),
    }
    return ScanOutcome(**(values | changes))


def said(result: ScanOutcome, **options: bool) -> str:
    return summary(result, "/srv/results", 1e-6, **options)


def hands(result: ScanOutcome) -> list[str]:
    found = said(result).partition("needs your attention:\n")[2].replace("\n  ", " ").splitlines()
    return [hand.removeprefix("- ") for hand in found]


def test_a_key_that_claims_used_up_needs_attention():
    for shown, needed in ((49, False), (50, True)):
        counts = DocumentCounts(of_keys=Counter({("k", "scored"): 1000 - shown, ("k", "shown"): shown}))
        found = hands(outcome(totals=ScanTotals(shards=3, counts=counts)))
        assert any(hand.startswith("under k, 5.0% of the positions were left out") for hand in found) is needed


def test_a_resumed_night_is_told_as_a_whole():
    assert said(outcome()).split("\n") == [
        f"scan {SCAN_ID}: 1,200 documents in 12.3 s (98 documents/s, 0.20 MB/s)",
        "whole input  4,000 documents; 9 of 12 shards already committed",
        "too short    12 documents",
        "in part      1 document: invalid bytes were replaced, or only the first 16 MiB were scored",
        "quarantined  3 documents, 1 file (null_text 3 documents, not_parquet 1 file)",
        "flagged      42 documents, 31 distinct texts, at a false-positive rate of 1 in 1,000,000",
        "proved       5 flags gave the same result when a slower method computed them again",
        "false flags  about 20 of 31 expected, because 1 is for a reserved message, which no user has",
        "audit        no alarm: all observed rates are compatible with the stated ones. On decoy keys, rates",
        "             are at most twice the stated ones, down to p = 0.001",
        "tables       /srv/results",
        "list         brickscan flagged /srv/results",
        "nothing needs your attention",
    ]


def test_a_night_in_one_go_says_its_figures_once():
    whole = WholeInput(documents=1200, flagged=5)
    once = outcome(work=ScanWork(3, 0, (), (), ()), unread=UnreadInput(whole=whole))
    assert "whole input" not in said(once)
    assert "flagged      5 documents, " in said(once)
    assert "quarantined  0 documents, 0 files\n" in said(once)
    assert "too short" not in said(once)


def test_verbose_tells_what_the_audit_counted_and_how_to_ask():
    found = said(outcome(), verbose=True)
    assert "  decoys, greenlist;h=4;gamma=1/4: shown to hold down to p = 0.001\n" in found
    assert "hits / expected, p <= 0.1: 12,345,678 / 12,345,679; 0.01: " in found
    assert "commits      first after 4.6 s; a worker needed at most 0 MiB\n" in found
    assert "query        import brickscan; brickscan.results('/srv/results').flagged.collect()\n" in found
    for line in ("hits", "query", "commits"):
        assert line not in said(outcome())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"unsupported_keys": (UnsupportedKey("hug", "It never passed an audit."),)},
            "LEFT OUT: no text was scored under key hug. It never passed an audit.",
        ),
        ({"unread": UnreadInput(nothing="Nothing was read: x.")}, "Nothing was read: x."),
        ({"exit_code": 4, "unread": UnreadInput(too_much=("2 files cannot be read.",))}, "2 files cannot be read."),
        (
            {"exit_code": 143},
            "Interrupted by SIGTERM: 12 of 12 shards are committed. Run the same command again to continue.",
        ),
        (
            {"totals": ScanTotals(counts=DocumentCounts(values_not_read=1))},
            "1 document with an id, account or time that cannot be read and is null",
        ),
        (
            {"totals": ScanTotals(counts=DocumentCounts(in_future=2))},
            "2 documents with a time in the future, which counts as now: are the clock and input.time_zone right?",
        ),
        (
            {"totals": ScanTotals(counts=DocumentCounts(older_than_key=1))},
            "1 flagged document older than the key, by the text's own time or, where it has none, the file's: it was "
            "flagged by chance, these times are wrong, or text was marked with the key before it was added to the "
            "registry (then set its `active_from` in keys.toml)",
        ),
        (
            {"unread": UnreadInput(passed_over=("/in/\x1b.csv",))},
            "1 file skipped, not ending in .parquet (.csv 1), for example /in/\\x1b.csv",
        ),
    ],
)
def test_what_needs_attention(changes, expected):
    assert hands(outcome(**changes)) == [expected]


def test_an_alarm_is_told_first(monkeypatch):
    """The one instruction comes before all else; of what hit too often ten items are enough."""
    monkeypatch.setattr(ScanAudit, "alarms", lambda self: [f"decoy {i} hits too often" for i in range(12)])
    unsupported_keys = (UnsupportedKey("hug", "It never passed an audit."),)
    result = outcome(exit_code=3, audit=audit(state=AuditState.ALARM), unsupported_keys=unsupported_keys)
    assert [hand.split(":")[0] for hand in hands(result)] == [*["AUDIT ALARM"] * 11, "LEFT OUT"]
    assert hands(result)[10] == "AUDIT ALARM: 2 more (--verbose, and the table `audits`)"
    assert said(result).startswith("USE NO FLAG OF THIS SCAN. ")
    assert "false flags" not in said(result)
    assert "audit        alarm: " in said(result)


def test_lost_canaries_are_not_called_an_alarm():
    """An alarm forbids the use of flags, and lost canaries do not."""
    lost = audit(state=AuditState.CANARIES_LOST, conclusions=(Conclusion(alarms=["3 of 40 canaries were found"]),))
    result = outcome(exit_code=5, audit=lost)
    assert hands(result) == ["CANARIES LOST: 3 of 40 canaries were found"]
    assert "USE NO FLAG" not in said(result)


def test_possible_framing_is_told_and_is_no_alarm():
    suspicious = audit(
        state=AuditState.POSSIBLE_FRAMING, conclusions=(Conclusion(warnings=framing_warnings({"k0": 2})),)
    )
    (hand,) = hands(outcome(audit=suspicious))
    assert hand == f"FRAMING? {suspicious.warnings()[0]}"
    assert "audit        possible framing: " in said(outcome(audit=suspicious))


def test_nights_that_were_dropped_are_told():
    assert "dropped      1,200 rows of nights that are older than `retain`\n" in said(outcome(dropped=1200))


def test_an_interrupted_scan_tells_what_it_did_itself():
    found = said(outcome(exit_code=130, audit=None, unread=UnreadInput()))
    assert "whole input  9 of 12 shards already committed\n" in found
    assert "flagged      5 documents, at a false-positive rate of 1 in 1,000,000\n" in found
    assert "false flags" not in found


@pytest.mark.parametrize(
    ("verdicts", "least"),
    [("hhhhh", 1e-5), ("hchuu", 0.001), ("huhhu", 0.1), ("uhhhh", None), ("uuuuu", None), ("tuuuu", None)],
)
def test_a_rate_holds_down_to_where_it_first_does_not(verdicts, least):
    found = rows(verdicts)
    assert holds_down_to(found) == least
    assert holds_down_to(found[::-1]) == least


def test_the_weakest_of_the_decoys_is_told_and_where_nothing_is_known_that_is_said():
    strong, weak, none = rows("hhhhu"), rows("hhuuu", "decoy_best", 50), rows("uuuuu", "decoy_all", 50)
    assert verdict_in_words(audit(*strong, *weak)).endswith("down to p = 0.01")
    for found in ((*strong, *none), ()):
        assert "cannot show down to which p-value the rates hold" in verdict_in_words(audit(*found))
    assert verdict_in_words(audit(*rows("hhhhh"), *rows("uuuuu", "reserved"))).endswith("down to p = 1e-05")
    assert "decoys, all messages, greenlist;h=4;gamma=1/4, 50 messages: too few to measure" in words.table(audit(*none))


HUGE = 10**10


@given(
    st.integers(0, HUGE),
    st.sampled_from([0, 1, 3, 4, 130, 143]),
    st.lists(st.text(min_size=1, max_size=30), max_size=3),
    st.booleans(),
)
def test_lines_fit_whatever_is_in_them(number, code, names, verbose):
    """Lines with paths, commands or long words without a blank stay whole."""
    counts = DocumentCounts(*[number] * 10)
    false_flags = ExpectedFalseFlags(float(number), number, number, 1e-3)
    texts = Traffic(number, number, number, number, ("s",), false_flags=false_flags)
    found = audit(*rows("hhhuu"), traffic=texts, unadmitted=("k" * 60,) * 3)
    unread = UnreadInput(tuple(names), (Reason("out_of_memory", number, number),) * 4, whole=WholeInput(*[number] * 7))
    result = outcome(exit_code=code, totals=ScanTotals(number, counts), audit=found, unread=unread, seconds=1e6)
    for line in said(result, verbose=verbose).split("\n"):
        whole = line.startswith(("tables ", "list ", "query "))
        assert whole or width(line) <= LINE_WIDTH or len(line.split()[-1]) > LINE_WIDTH - 20


def test_what_a_path_holds_forges_no_line():
    found = summary(outcome(), "/srv/a\nnothing needs your attention", 1e-6).split("\n")
    assert found.count("nothing needs your attention") == 1
    assert "tables       /srv/a\\nnothing needs your attention" in found


def test_the_whole_input_is_added_up_over_scans_and_a_shard_counts_once(tmp_path):
    folder = str(tmp_path)
    write(folder, [Shard("/in/a", "one", "1:1", 0, (-7.0, None)), Shard("/in/b", "one", "1:1", 0, (-1.0,))])
    ids = ["shard 0", "shard 1", "nosuch"]
    assert whole_input(folder, ids) == WholeInput(*[6] * 7)  # `filled` writes 3 of each into a row
    assert whole_input(folder, ids[1:]) == WholeInput(*[3] * 7)
    assert whole_input(folder, []) == WholeInput()
    again = str(tmp_path / "again")
    write(again, [Shard("/in/a", "one", "1:1", 0, (-7.0,))])
    write(again, [Shard("/in/a", "one", "1:1", 0, (-7.0,))])
    assert whole_input(again, ["shard 0"]) == WholeInput(*[3] * 7)


def test_it_is_what_the_command_prints(monkeypatch, tmp_path):
    from jobs import scan as command
    from tests.support.command_line import call

    plan = SimpleNamespace(
        results="/srv/results", config=SimpleNamespace(false_positive_rate=1e-6), cautions=["under a: x"]
    )
    monkeypatch.setattr("jobs.scan.make_plan", lambda *_: plan)
    monkeypatch.setattr("scanner.cluster.scan.run_scan", lambda *_, **_options: replace(outcome(), audit=None))
    shown = summary(replace(outcome(), audit=None), "/srv/results", 1e-6, ["under a: x"], verbose=True)
    assert "\ncareful      under a: x\n" in shown
    assert call("scan", tmp_path / "x.toml", "--verbose")[:2] == (0, shown + "\n")
    assert call("--config", tmp_path / "x.toml", "--verbose", command=command.module)[1] == shown + "\n"
    assert "query" not in call("scan", tmp_path / "x.toml")[1]
