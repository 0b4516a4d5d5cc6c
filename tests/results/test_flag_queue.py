"""How many flags there are, told alike by every command, and the order in which they need a decision."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from scanner import results
from scanner.evidence.case import find_case
from scanner.evidence.explainer import Explainer
from scanner.registry import new_key, restore_users, set_canaries
from scanner.results.decision_log import NewDecision, decide, new_id
from scanner.results.flags import WantedFlags, by_need, count_flags
from scanner.results.retention import erase_user
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.service.review_session import FlagRequest, ReviewSession
from scanner.storage.data_files import write_file
from schemas.registry import Canaries, Canary
from schemas.tables import FLAGS, SCANS, SHARDS, USER_EVENTS
from tests.support.command_line import call
from tests.support.rows import NOW, filled, verdict

CANARY = "canary-0123456789abcdef"
HELD = {"alice": 3, "bob": 4, CANARY: 5}


def flag(i: int, user: str | None, text: int, scan: str = "one", **changes: object) -> dict[str, object]:
    about = {"scan_id": scan, "shard_id": scan, "doc_id": f"doc-{i}", "message": HELD.get(user or "", 9), "keys": "set"}
    at = {"log10_p_global": -9.0, "text_sha256": bytes([text]) * 32, "scanned_at": NOW - timedelta(hours=i)}
    at["path"] = f"/in/{scan}"
    return verdict(i, user=user, **(about | at | {"naming": "named" if user else "undecided"} | changes))


NIGHT = [
    flag(0, CANARY, 0, account_id=CANARY, canary=True),
    flag(1, CANARY, 1, "two", account_id=CANARY, canary=True),
    flag(2, CANARY, 2, account_id="a thief"),
    *(flag(i, "alice", 3, "two", account_id=f"account-{i}") for i in (3, 4, 5)),
    flag(6, "alice", 4, account_id="alice"),
    flag(7, "bob", 5, account_id="bob"),
    flag(8, None, 6, naming="reserved", account_id="c"),
    flag(9, None, 7),
    flag(10, "alice", 8, account_id="alice", log10_p_global=-0.1),  # not at the rate of the configuration
]
"""A night of two scans: texts of canaries, copies, flags that name nobody, one that is decided on, one to be erased."""

FLAGGED, CANARIES = 8, 2


@pytest.fixture
def night(folder) -> Path:
    """The configuration of a night's results and registry."""
    open_tables(folder)
    span = {"first_row": 0, "rows": 100, "keys": "set", "dropped_at": None, "night": "2026-08-31", "scanned_at": NOW}
    shards = [filled(SHARDS, scan_id=scan, shard_id=scan, path=f"/in/{scan}", **span) for scan in ("one", "two")]
    of_scan = {
        "night": "2026-08-31",
        "audit": "no alarm",
        "exit_code": 0,
        "false_positive_rate": 0.5,
        "users_head": None,
    }
    scans = [
        filled(SCANS, scan_id=scan, trial=False, audited_scans=[scan], night_stated=None, keys_left_out=[], **of_scan)
        for scan in ("one", "two")
    ]
    for name, rows, schema in (("flags", NIGHT, FLAGS), ("shards", shards, SHARDS), ("scans", scans, SCANS)):
        file = write_file(folder, name, [pa.RecordBatch.from_pylist(rows, schema)])
        commit(folder, name, [TableEntry("all", (file,) if file else ())])
    base = Path(folder).parent
    (base / "tokenizer.json").write_text('{"model": {}}')
    key = {"format": "greenlist", "window": 4, "gamma": "1/4", "messages": 100, "tokenizer": base / "tokenizer.json"}
    new_key(base / "registry", "key", **key)
    since = NOW - timedelta(days=9)
    events = [("key", message, user, "allocated", since) for user, message in HELD.items()]
    rows = [dict(zip(USER_EVENTS.names, event, strict=True)) for event in events]
    restore_users(base / "registry", pa.Table.from_pylist(rows, schema=USER_EVENTS))
    made = (Canary(account_id=CANARY, key_id="key", message=HELD[CANARY], names=True),)
    set_canaries(base / "registry", Canaries(power=0.9, made=made))
    config = base / "scan.toml"
    config.write_text(
        f'version = 2\nregistry = "registry"\nresults = "{folder}"\nfalse_positive_rate = 0.5\n'
        '[input]\npaths = ["in"]\ntext = "text"\n'
    )
    decide(folder, find_case(folder, 0.5, "doc-6").row, NewDecision(new_id(), "ruth", "app", "quoted"))
    erase_user(folder, ["bob"])
    assert call("sign", config, "--yes")[0] == 0  # what was made here before the registry had a secret
    return config


@pytest.mark.costly
def test_every_command_counts_the_same_flags_and_tells_canaries_apart(night, tmp_path):
    def said(*arguments: object) -> tuple[str, str]:
        code, out, err = call(*arguments)
        assert code == 0, err
        return out, err

    counts = {}
    totals = json.loads(said("flagged", night, "--format", "json")[0])
    counts["flagged"] = totals["documents"], totals["canaries"]
    scans = json.loads(said("status", night, "--format", "json")[0])["rows"]
    counts["status"] = sum(row["flagged"] for row in scans), sum(row["canaries"] for row in scans)
    out, _ = said("report", night, "--out", tmp_path / "report")
    found = re.search(r"(\d+) flagged, and (\d+) canary texts", out)
    counts["report"] = int(found[1]), int(found[2])
    record = json.loads((tmp_path / "report" / "index.json").read_text())
    counts["its JSON"] = record["flagged"], record["canaries"]
    counts["its lists"] = len(record["flags"]), record["canaries"]
    out, err = said("export", night)
    found = re.search(r"(\d+) flagged, and (\d+) canary texts", err)
    counts["export"] = int(found[1]), int(found[2])
    counts["its lines"] = len(out.splitlines()), int(found[2])
    listed = ReviewSession(Explainer(night), "ruth").list(FlagRequest("all"), 0)
    counts["review"] = listed.counts.total.flagged, listed.counts.total.canaries
    counts["its list"] = len(listed.entries), listed.counts.total.canaries
    folder = Explainer(night).results
    rows = results.flagged(folder, 0.5, canaries=True).collect()["canary"].fill_null(value=False)
    counts["Python"] = results.flagged(folder, 0.5).collect().height, int(rows.sum())
    totals = json.loads(said("flagged", folder, "--format", "json")[0])  # no registry: the tables say which they are
    counts["a folder"] = totals["documents"] - 1, totals["canaries"]  # by no rate: one more
    scans = json.loads(said("status", folder, "--format", "json")[0])["rows"]
    counts["its status"] = sum(row["flagged"] for row in scans) - 1, sum(row["canaries"] for row in scans)
    assert counts == dict.fromkeys(counts, (FLAGGED, CANARIES))


@pytest.mark.costly
def test_the_list_says_what_it_hides(night):
    session = ReviewSession(Explainer(night), "ruth")
    counts = session.list(FlagRequest("open", user="ALI"), 0).counts
    assert (counts.on_list, counts.by_state, counts.by_filters, counts.total.flagged) == (3, 1, 4, FLAGGED)
    assert session.list(FlagRequest("open"), 0).counts.by_filters == 0
    assert session.list(FlagRequest("all"), 0).counts.by_state == 0


def test_what_needs_a_decision_most_comes_first(night):
    """Texts for a user first, of these most copies, together; then nobody's, and a false one."""
    folder = Explainer(night).results
    canaries = Explainer(night).canaries
    rows = by_need(folder, 0.5, WantedFlags(), canaries)
    assert rows["row"].to_list() == [3, 4, 5, 2, 6, 7, 9, 8]
    assert rows["need"].to_list() == [0, 0, 0, 0, 0, 1, 1, 2]
    assert rows["copies"].to_list() == [3, 3, 3, 1, 1, 1, 1, 1]
    assert count_flags(folder, 0.5, WantedFlags(state="open"), canaries).flagged == len(rows) - 1


def test_the_order_stays_after_a_decision(night):
    """Whoever goes down the list by keys misses none: a decision on a copy leaves the others where they are."""
    explainer = Explainer(night)
    asked = explainer.results, 0.5, WantedFlags(state="open"), explainer.canaries
    left = by_need(*asked).select("path", "row").rows()
    assert len(left) == 7
    while left:
        path, row = left.pop(len(left) // 3)
        flagged_row = find_case(explainer.results, 0.5, f"{path}:{row}").row
        decide(explainer.results, flagged_row, NewDecision(new_id(), "ruth", "app", "dismissed"))
        assert by_need(*asked).select("path", "row").rows() == left
