"""Rows that say two things name nobody: every naming, in every place that shows a user, wherever the name stands."""

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from scanner import results
from scanner.evidence.advice import advise, in_short
from scanner.evidence.case import FlagCase, find_case
from scanner.evidence.explainer import Explainer
from scanner.evidence.sentences import what_was_found
from scanner.exports import verdict_of
from scanner.results.decision_log import users_of
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.service.review_session import DocumentPlace, FlagRequest, ReviewSession
from scanner.storage.data_files import write_file
from schemas.tables import ACCOUNTS, FLAGS, SPANS
from schemas.words import OF_REGISTRY, Naming
from tests.support.command_line import call
from tests.support.rows import filled
from tests.support.two_keys import message_of

pytestmark = pytest.mark.usefixtures("without_ray")

WORDS = [*map(str, Naming), "a word that no scan writes"]
KINDS = ("in the row", "in a list", "in the other list", "in a list, under its own naming")


def forged(row: dict, naming: str, kind: str) -> dict:
    """A row that names zoe somewhere, under a naming: `named` for zoe alone is left to other tests."""
    zoe = {"key_id": row["key_id"], "message": row["message"], "user_id": "zoe", "log10_p_global": -9.0}
    if kind == "in the row":
        return row | {"user_id": "zoe", "naming": naming, "named": None, "further_messages": None}
    column = "further_messages" if "other" in kind else "named"
    of_entry = naming if "own" in kind else str(Naming.NAMED)
    of_row = {"naming": "named", "user_id": "alice"} if "own" in kind else {"naming": naming, "user_id": None}
    return row | {"named": None, "further_messages": None} | of_row | {column: [zoe | {"naming": of_entry}]}


@pytest.fixture
def changed(night, own_registry, marked):
    """A night of which each flag was changed in another way; all of them name zoe, who holds no message."""
    ways = [(naming, kind) for naming in WORDS for kind in KINDS]
    night.configure(columns='account = "account"')
    alice = message_of(own_registry, "green", "alice")
    texts = [marked(alice, 60, seed) for seed in range(len(ways))]
    night.write("a", texts, account=["ann"] * len(ways))
    night.scan()
    rows = pl.read_delta(f"{night.results}/flags").sort("row").to_dicts()
    rows = [forged(row, *way) for row, way in zip(rows, ways, strict=True)]
    write_deltalake(f"{night.results}/flags", pa.Table.from_pylist(rows, FLAGS), mode="overwrite")
    same = {name: rows[0][name] for name in ("keys", "scan_id", "shard_id", "scanned_at", "path", "message", "key_id")}
    lists = {"named": None, "further_messages": None, "user_id": "zoe", "log10_p_global": -9.0}
    of_accounts = [
        forged(filled(ACCOUNTS, **same | lists) | {"account_id": f"account {i}"}, *way) for i, way in enumerate(ways)
    ]
    about = {"char_from": 0, "char_to": 9, "quoted": 0.0, "user_id": "zoe", "log10_p_global": -9.0}
    of_spans = [filled(SPANS, **same | about | {"row": i, "naming": naming}) for i, (naming, _) in enumerate(ways)]
    for table, schema, made in (("accounts", ACCOUNTS, of_accounts), ("spans", SPANS, of_spans)):
        made = [{name: row[name] for name in schema.names if name in row} for row in made]
        open_tables(night.results, [table])
        file = write_file(night.results, table, [pa.RecordBatch.from_pylist(made, schema)])
        commit(night.results, table, [TableEntry("forged", (file,) if file else ())])
    return night


def told(text: str) -> str:
    """What is said without the sentences in which the registry contradicts a row, which may quote it."""
    return "\n".join(line for line in text.splitlines() if "ame nobody by th" not in line)


@pytest.mark.costly
@pytest.mark.seconds
def test_no_place_shows_a_user_of_a_row_that_says_two_things(changed, tmp_path):
    night = changed
    assert len(results.flagged(night.results).collect()) == len(WORDS) * len(KINDS)
    for place in (night.config, Path(night.results)):  # with the registry, and by the rows alone
        listed = call("flagged", place, "--all", "--format", "json")[1]
        rows = json.loads(listed)["rows"]
        assert len(rows) == len(WORDS) * len(KINDS)
        shown = [row for row in rows if row["user_id"] == "zoe"]
        assert all(row["naming"] == "named" for row in shown)
        assert not shown or place != night.config
    assert "zoe" not in told(call("flagged", night.config, "--all")[1])
    for by in ("text", "account"):
        assert "zoe" not in told(call("flagged", night.config, "--all", "--group-by", by)[1])
    by_user = json.loads(call("flagged", night.config, "--all", "--group-by", "user", "--format", "json")[1])["rows"]
    assert "zoe" not in {row["user_id"] for row in by_user}
    assert "zoe" not in told(call("flagged", night.config, "--user", "zoe")[1])
    assert "zoe" not in told(call("accounts", night.config, "--all")[1])
    assert "zoe" not in call("accounts", night.config, "--all", "--format", "json")[1]
    of_accounts = results.accounts(night.results).collect()
    assert set(of_accounts.filter(user_id="zoe")["naming"]) <= {"named"}
    for line in call("export", night.config)[1].splitlines():
        record = json.loads(line)
        assert "zoe" not in json.dumps(record | {"says": [one for one in record["says"] if told(one)]})
    assert call("report", night.config, "--out", tmp_path / "report")[0] == 0
    assert "zoe" not in (tmp_path / "report" / "index.json").read_text()
    assert "zoe" not in (tmp_path / "report" / "index.html").read_text()
    assert json.loads((tmp_path / "report" / "index.json").read_text())["light"] == "red"


@pytest.mark.costly
@pytest.mark.seconds
def test_no_page_of_a_flag_shows_a_user_of_a_row_that_says_two_things(changed):
    night = changed
    for place in (night.config, night.results):
        explainer = Explainer(place)
        cases = [FlagCase(row, None) for row in results.flagged(night.results).sort("row").collect().to_dicts()]
        for explained, way in zip(
            explainer.explain_cases(cases), ((word, kind) for word in WORDS for kind in KINDS), strict=True
        ):
            # no row that says two things, and the registry is not asked: a list may name who is not the row's own
            whole = way[0] == "named" or (way[0] in OF_REGISTRY and way[1] in KINDS[1:3])
            by_rows = place == night.results and whole
            said = [f"{heading}: {sentence}" for heading, sentence in what_was_found(explained)]
            words = told("\n".join([*said, in_short(explained), str(verdict_of(explained, "scan.toml").named)]))
            assert ("zoe" in words) <= by_rows, (way, words)
            assert ("zoe" in users_of(explained.row)) <= by_rows
            assert by_rows or explained.row["naming"] == Naming.CONTRADICTED
            assert by_rows or explained.registry.agrees is False
            assert by_rows or advise(explained).decision is None
    session = ReviewSession(Explainer(night.config), "eve")
    assert all("zoe" not in entry.line.user for entry in session.list(FlagRequest(), 0).entries)
    path = cases[0].row["path"]
    looked = session.view_flag(FlagRequest("all"), DocumentPlace(path, 0))
    assert "zoe" not in in_short(looked.explained)
    assert looked.explained.row["naming"] == Naming.CONTRADICTED
    assert call("explain", night.config, "a:1")[0] == 0
    code, out, _ = call("replay", night.config, "a:4")
    assert (code, "the row says two things" in out) == (3, True)
    assert find_case(night.results, 1.0, "a:4").row["user_id"] is None
