"""Decisions on flags: each enters once, none is lost when many decide at once, and erased names and old nights go."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from scipy.stats import beta

from scanner import results
from scanner.errors import Refused
from scanner.evidence.advice import Precision, precision
from scanner.results import decision_log
from scanner.results.decision_log import NewDecision, decide, new_id, on_documents
from scanner.results.flags import WantedFlags, newest, sums
from scanner.results.retention import erase_user
from scanner.results.transactions import open_tables
from scanner.results.upkeep import compact
from scanner.storage.locations import table_uri
from schemas.tables import SHARDS
from tests.support.command_line import call
from tests.support.nights import enter
from tests.support.rows import NOW, filled, verdict
from tests.support.signed_results import NOT_CHECKED


def flag(row: int, text: int = 0, **more) -> dict:
    about = {"user": "alice", "text_sha256": bytes([text]) * 32, "doc_id": f"doc-{row}", "named": None}
    return verdict(row, **about | {"further_messages": None} | more)


@pytest.fixture
def flags(folder) -> list[dict]:
    rows = [flag(0, 1), flag(1, 1), flag(2, 2, user="bob"), flag(3, 3)]
    open_tables(folder)
    enter(folder, "flags", "shard", [row | {"keys": "set"} for row in rows])
    about = {"scan_id": "scan", "shard_id": "shard", "path": "/in/a", "keys": "set", "scanned_at": NOW}
    enter(folder, "shards", "shard", [filled(SHARDS, **about, first_row=0, rows=100, dropped_at=None)])
    return rows


def made(decision: str, by: str = "ruth", note: str = "", decision_id: str | None = None) -> NewDecision:
    return NewDecision(decision_id or new_id(), by, "app", decision, note)


def stands(folder: str) -> list[tuple]:
    return results.current_decisions(folder).select("row", "decided_by", "decision").collect().rows()


def test_what_is_sent_again_enters_once(folder, flags):
    first = made("confirmed", note="clear")
    assert decide(folder, flags[0], first)["note"] == "clear"
    other = made("dismissed", decision_id=first.decision_id)
    assert decide(folder, flags[0], other)["decision"] == "confirmed"  # the answer is the decision that stands
    rows = results.decisions(folder).collect()
    assert rows.select("decision_id", "decision", "note", "user_ids", "doc_id", "source").rows() == [
        (first.decision_id, "confirmed", "clear", ["alice"], "doc-0", "app")
    ]


def test_the_newest_of_each_decider_stands_and_those_who_differ_are_both_seen(folder, flags):
    for decision, by in (("unclear", "ruth"), ("dismissed", "omar"), ("confirmed", "ruth")):
        decide(folder, flags[0], made(decision, by))
    assert stands(folder) == [(0, "omar", "dismissed"), (0, "ruth", "confirmed")]
    assert len(results.decisions(folder).collect()) == 3
    found = on_documents(folder, flags[:2])
    assert [[one["decision"] for one in of_one] for of_one in found.values()] == [["dismissed", "confirmed"]]


@pytest.mark.costly
@pytest.mark.seconds
def test_many_at_once_lose_and_double_nothing(folder, flags):
    """Eight deciders make three decisions each, and each decision is sent twice."""
    todo = [made("confirmed", f"decider {i}", note=str(n)) for i in range(8) for n in range(3)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: decide(folder, flags[0], one), todo * 2))
    rows = results.decisions(folder).collect()
    assert sorted(rows["decision_id"]) == sorted(one.decision_id for one in todo)
    assert len(stands(folder)) == 8


def test_a_decision_whose_answer_was_lost_is_not_made_twice(folder, flags, monkeypatch):
    """The process dies after its commit, and the form is sent again to the next process."""
    form = made("quoted")

    def dies(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(decision_log, "ask", dies)
        with pytest.raises(KeyboardInterrupt):
            decide(folder, flags[0], form)
    assert decide(folder, flags[0], form)["decision"] == "quoted"
    assert len(results.decisions(folder).collect()) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"decision_id": "../../x"}, "32 hexadecimal digits"),
        ({"decision": "guilty"}, "confirmed, quoted, dismissed, unclear"),
        ({"by": " "}, "give one with --by"),
        ({"by": "x" * 201}, "1 to 200"),
        ({"note": "x" * 4001}, "4,000 are allowed"),
    ],
)
def test_what_is_no_decision_is_refused(wrong, said):
    with pytest.raises(Refused, match=said):
        made(**{"decision": "confirmed"} | wrong)


def test_who_is_erased_goes_from_decisions_with_their_notes(folder, flags):
    of_both = flags[2] | {"named": [{"user_id": user, "naming": "named"} for user in ("bob", "alice")]}
    decide(folder, flags[0], made("confirmed", note="alice again"))
    decide(folder, of_both, made("quoted", note="bob quotes alice"))
    decide(folder, flags[2], made("dismissed", note="kept"))
    erase_user(folder, ["alice"])
    rows = results.decisions(folder).select("user_ids", "decision", "note").collect().rows()
    assert rows == [([], "confirmed", None), (["bob"], "quoted", None), (["bob"], "dismissed", "kept")]
    assert not any(b"alice" in file.read_bytes() for file in Path(table_uri(folder, "decisions")).glob("*.parquet"))


def test_merged_files_hold_the_same_decisions(folder, flags):
    for row in flags:
        decide(folder, row, made("confirmed", note="n"))
    before = results.decisions(folder).collect()
    assert ("decisions", 4, 1) in compact(folder)
    assert results.decisions(folder).collect().equals(before)
    again = before.row(0, named=True)
    decide(folder, flags[0], made("dismissed", decision_id=again["decision_id"]))
    assert len(results.decisions(folder).collect()) == 4


@pytest.mark.costly
@pytest.mark.seconds
def test_a_flag_is_open_unclear_or_decided(folder, flags):
    def ids(state="open", **more) -> list[str]:
        return sorted(newest(folder, 1.0, WantedFlags(state=state, **more), None, fold=False).rows["doc_id"])

    assert ids() == ["doc-0", "doc-1", "doc-2", "doc-3"]
    decide(folder, flags[1], made("unclear"))
    decide(folder, flags[2], made("dismissed"))
    decide(folder, flag(3, 9), made("dismissed"))  # a decision on another text of that row
    assert ids() == ["doc-0", "doc-3"]
    assert ids(users=("bob",)) == []
    assert (ids("unclear"), ids("decided")) == (["doc-1"], ["doc-2"])
    assert sums(folder, 1.0, WantedFlags(state="open"), None, "user").totals.documents == 2
    code, out, _ = call("flagged", folder, "--open", "--format", "csv")
    assert (code, out.count("doc-")) == (0, 2)
    assert "doc-1" in call("flagged", folder, "--unclear", "--format", "csv")[1]
    decide(folder, flags[1], made("confirmed", by="omar"))  # one who is sure suffices
    assert (ids("unclear"), ids("decided")) == ([], ["doc-1", "doc-2"])


def test_decide_tells_what_others_decided(folder, flags):
    code, out, err = call("decide", folder, "doc-2", "quoted", "--by", "omar\x1b[31m", "--note", "=1+1")
    assert (code, err) == (0, f"{NOT_CHECKED}\n")
    assert out == "/in/a:2: quoted, by omar\\x1b[31m\n"
    code, out, _ = call("decide", folder, "/in/a:2", "dismissed", "--by", "ruth")
    assert out.splitlines() == ["/in/a:2: dismissed, by ruth", "  omar\\x1b[31m decided: quoted"]
    assert call("decide", folder, "doc-2", "guilty")[0] == 2
    assert call("decide", folder, "doc-9", "quoted")[0] == 2
    assert results.decisions(folder).select("source", "note").collect().rows() == [
        ("command", "=1+1"),
        ("command", None),
    ]


def test_precision_counts_texts_with_exact_limits(folder, flags):
    """Two copies of a text count once. A text that is confirmed and dismissed counts as neither."""
    assert precision(results.current_decisions(folder).collect()) == Precision(0, 0, 0, 0)
    for row, decision, by in [(0, "confirmed", "ruth"), (1, "quoted", "ruth"), (2, "dismissed", "ruth")]:
        decide(folder, flags[row], made(decision, by))
    decide(folder, flags[3], made("unclear"))
    found = precision(results.current_decisions(folder).collect())
    assert found == Precision(1, 1, 0, 1)
    assert found.limits == pytest.approx((beta.ppf(0.025, 1, 2), beta.ppf(0.975, 2, 1)))
    assert found.in_words() == "50.0% (1.3% to 98.7% with 95 % confidence)"
    assert found.counts_in_words() == "1 right, 1 wrong; left out: 1 unclear"
    decide(folder, flags[0], made("dismissed", "omar"))
    standing = results.current_decisions(folder).collect()
    assert precision(standing) == Precision(0, 1, 1, 1)
    assert (
        precision(standing).counts_in_words() == "0 right, 1 wrong; left out: 1 unclear and 1 on which reviewers differ"
    )
    assert precision(standing, [flags[2]]) == Precision(0, 1, 0, 0)
    assert precision(standing, []).in_words() == "not known"
