"""What release 0.1.0 wrote is read for ever: the folder that tests/data keeps gives what it gave when it was made.

tests/support/kept_version.py made it. Where a test below fails, the product is wrong, never the folder.
"""

import gzip
import html
import json
import re
import shutil
import tomllib
from pathlib import Path

import brickscan
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from docs.examples.check_report import check
from scanner.evidence import check_claim
from scanner.evidence.explainer import Explainer
from scanner.registry import list_users, load_registry, verify_users
from scanner.results.upkeep import existing_tables
from scanner.service.review_app import ReviewServer
from scanner.storage.delta import open_table
from scanner.storage.locations import table_uri
from scanner.storage.toml import read_toml
from schemas.config import ScanConfig
from schemas.service import DetectorConfig
from tests.support.command_line import call
from tests.support.kept_version import NIGHT, plain_rows
from tests.support.reviewing import Asking, running

KEPT = Path(__file__).parent / "data" / "version-1"
ROWS = json.loads(gzip.decompress((KEPT / "rows.json.gz").read_bytes()))


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """A copy: readers of a registry take locks, and refuse one that others can write."""
    folder = Path(shutil.copytree(KEPT, tmp_path_factory.mktemp("version-1") / "kept"))
    for path in (folder / "registry", *(folder / "registry").rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return folder


def test_the_folder_is_small_and_of_version_1():
    assert sum(path.stat().st_size for path in KEPT.rglob("*") if path.is_file()) < 350_000
    assert {table for table in ROWS if ROWS[table]} >= {"verdicts", "flags", "spans", "scans", "accounts", "decisions"}
    for table in ROWS:
        assert DeltaTable(KEPT / "results" / table).metadata().configuration["brickscan.version"] == "1"
    for file in ("scan.toml", "detector.toml", "registry/keys.toml"):
        assert tomllib.loads((KEPT / file).read_text())["version"] == 1


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_table_has_exactly_its_rows(kept, name):
    """In the columns that it had; a later version may add some."""
    assert name in existing_tables(str(kept / "results"))
    rows = open_table(table_uri(str(kept / "results"), name)).to_pyarrow_table()
    columns = list(ROWS[name][0]) if ROWS[name] else []
    assert plain_rows(rows.select(columns).to_pylist()) == ROWS[name]


def test_the_tables_answer_by_the_public_names(kept):
    tables = brickscan.results(kept / "scan.toml")
    assert set(tables.flagged.collect()["doc_id"]) == {row["doc_id"] for row in ROWS["flags"]}
    assert tables.verdicts.collect().height == len(ROWS["verdicts"])
    assert tables.decisions.collect()["decision"].to_list() == ["confirmed"]
    assert tables.nights.collect().height == len(ROWS["scans"])


def test_the_registry_has_its_keys_and_users(kept):
    folder = kept / "registry"
    keys = {key.key_id: key.commitment for key in load_registry(folder).keys}
    stored = tomllib.loads((KEPT / "registry" / "keys.toml").read_text())["keys"]
    assert keys == {key["key_id"]: key["commitment"] for key in stored}
    held = json.loads((KEPT / "users.json").read_text(encoding="utf-8"))
    assert plain_rows(list_users(folder).to_dicts()) == held
    assert verify_users(folder, {row["users_head"] for row in ROWS["scans"]}).holds


def test_texts_have_the_scores_that_they_had(kept):
    posts = pq.read_table(kept / "in" / NIGHT / "posts.parquet")
    texts = dict(zip(posts["doc_id"].to_pylist(), posts["text"].to_pylist(), strict=True))
    registry = brickscan.open(kept / "registry")
    names = ("green alice", "green bob", "groups alice", "groups bob")
    rows = {row["doc_id"]: row for row in ROWS["flags"]}
    for name, verdict in zip(names, registry.check([texts[name] for name in names]), strict=True):
        row = rows[name]
        assert (verdict.key_id, verdict.message, verdict.scored) == (row["key_id"], row["message"], row["scored"])
        assert verdict.users == (row["user_id"],)
        assert row["user_id"] == name.split()[1]


@pytest.mark.parametrize(("file", "model"), [("scan.toml", ScanConfig), ("detector.toml", DetectorConfig)])
def test_the_files_say_what_they_said(kept, file, model):
    read = read_toml(kept / file, model).model_dump(mode="json", exclude_unset=True)
    assert read == tomllib.loads((KEPT / file).read_text())


@pytest.mark.parametrize(
    "command",
    ["status", "flagged", "accounts", "migrate", pytest.param("export", marks=pytest.mark.seconds)],  # starts a process
)
def test_the_commands_read_the_folder(kept, monkeypatch, command):
    monkeypatch.chdir(kept)
    code, out, err = call(command, "scan.toml")
    assert code == 0, out + err


def test_the_claim_holds(kept, monkeypatch, capsys):
    published = (KEPT / "commitments.txt").read_text()
    files = (kept / "claim", kept / "registry" / "secrets" / "groups.key", kept / "commitments.txt")
    monkeypatch.setattr("sys.argv", ["check_claim.py", *map(str, files), published.split()[-1]])
    assert check_claim.main() == 0, capsys.readouterr().out


def test_the_signed_report_is_good(kept):
    report, text, signpost = (
        (kept / "report" / name).read_bytes() for name in ("report.json", "text.txt", "signpost.json")
    )
    assert check(report, text, signpost)["result"] == "found"
    with pytest.raises(ValueError, match="another text"):
        check(report, text + b" ", signpost)


def test_the_review_app_shows_flags_and_takes_a_decision(kept, monkeypatch, tmp_path):
    """On a copy, since a decision is a row. One page of each kind, for a flag takes a second to be proved again."""
    results = Path(shutil.copytree(kept, tmp_path / "kept"))
    monkeypatch.chdir(results)
    app = ReviewServer(Explainer(results / "scan.toml"), "ruth", 0)
    with running(app):
        asking = Asking(app)

        def page(path: str) -> str:
            status, _, shown = asking.ask("GET", path, Cookie=asking.cookie)
            assert status == 200, shown
            return html.unescape(shown)

        assert ".choices" in page("/style.css")
        assert '"use strict"' in page("/review.js")
        flags = set(re.findall(r'href="(/flag\?[^"]+)"', page("/?state=all")))
        accounts = re.findall(r'href="(/account\?[^"]+)"', page("/accounts"))
        assert len(flags) >= len(ROWS["flags"])
        page(accounts[0])
        form = asking.form()
        assert "Confirm against the advice?" in asking.post(form | {"sure": ""})[2]
        status, headers, _ = asking.post(form)
        assert status == 303
        assert "Recorded" in page(headers["location"])
        assert asking.ask("GET", "/flag?path=nowhere&row=1", Cookie=asking.cookie)[0] == 404
