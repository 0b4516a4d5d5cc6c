"""`brickscan scan --check` and `--summary json`: the look ahead, the first refusal, and the JSON for schedulers."""

import ctypes
import json
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from deltalake import DeltaTable
from polars import DataFrame

from scanner.cluster import embedded, machines
from scanner.registry import load_registry
from scanner.results import exist
from scanner.results.transactions import open_tables
from scanner.storage.delta import make_table
from scanner.storage.locations import make_private, table_uri
from schemas.config import COST_OF_LOOKS
from tests.support.command_line import call

STEPS = ("registry", "secrets", "tokenizers", "results", "input", "columns", "done", "sample", "time", "memory")


def everything_in(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*") if "__" not in path.name
    }


def test_all_is_looked_at_and_nothing_is_written(night, plain):
    night.write("a", [plain(40, i) for i in range(30)] + ["short", None])
    (night.input / "notes.csv").write_text("x")
    before = everything_in(night.folder)
    code, out, err = call("scan", night.config, "--check")
    assert (code, err) == (0, "")
    heads = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
    assert heads == [*STEPS, "Ready"]
    assert f"{night.results}: new\n" in out
    assert "text 'text': string; id 'doc_id': string" in out
    assert "0 of 1 shard; 32 documents left" in out
    assert "1 of 32 too short to be scored" in out
    assert "1 of 32 for quarantine" in out
    assert "2 keys; p-values are corrected for 2 keys of the registry\n" in out
    assert "1 file skipped, not ending in .parquet (.csv 1)" in out
    assert out.endswith(f"Ready to run: brickscan scan {night.config}\n")
    assert everything_in(night.folder) == before
    assert not exist(night.results)


def test_a_check_finds_that_ray_has_no_folder(night, plain, monkeypatch):
    """It said that nothing stands in the way of a scan that then ended over it."""
    night.write("a", [plain(40, 1)])
    monkeypatch.setenv("TMPDIR", str(night.folder / "missing"))
    monkeypatch.setattr(tempfile, "tempdir", str(night.folder / "missing"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(embedded, "_SHORT_FOLDERS", ())
    code, out, err = call("scan", night.config, "--check")
    assert (code, "Ready to run" in out) == (2, False)
    assert "Ray: no folder can hold its files" in err


def test_a_second_look_is_not_told_as_a_second_key(night, plain):
    night.write("a", [plain(40, 1)])
    night.configure(more="variants = { normalised = true }")
    out = call("scan", night.config, "--check")[1]
    assert "2 keys; p-values are corrected for 2 keys of the registry\n" in out
    assert "shares of the false-positive rate: texts as written 0.5, texts normalised 0.5\n" in out
    assert "a look at normalised text: under every key\n" in out


def test_a_date_is_filled_in_and_told(night, plain):
    night.configure(paths=["in/{date}"])
    (night.input / "2026-11-20").mkdir()
    night.write("2026-11-20/a", [plain(40, 1)])
    code, out, _ = call("scan", night.config, "--check", "--date", "2026-11-20")
    assert code == 0
    assert out.endswith("--date 2026-11-20\n")


def test_values_for_schedulers(night, plain):
    night.write("a", [plain(40, i) for i in range(30)], account=[[1]] * 30)
    night.configure(columns='account = "account"')
    code, out, _ = call("scan", night.config, "--check", "--summary", "json")
    found = json.loads(out)
    assert code == found["exit_code"] == 0
    assert [*found] == ["exit_code", *STEPS]
    assert found["registry"]["keys"] == ["green", "gum"]
    assert found["columns"]["columns"][2] == {
        "role": "account",
        "name": "account",
        "type": "list<element: int64>",
        "read": False,
    }
    assert (found["done"]["documents_left"], found["sample"]["documents"]) == (30, 30)
    assert found["sample"]["values_not_read"] == 30
    assert found["time"]["core_hours_low"] <= found["time"]["core_hours"] <= found["time"]["core_hours_high"]
    assert found["memory"]["bytes"] == found["memory"]["worker_bytes"] * found["time"]["workers"]
    said = " ".join(call("scan", night.config, "--check")[1].split())
    assert "account 'account' is list<element: int64>, a type that is not read" in said
    assert "no time column: each document counts as old as its file" in said
    assert re.search(r"time about [\d.]+ core-seconds \(", said)
    assert "measured once" not in said
    night.configure(columns="", more="spans = { windows = true }")
    said = " ".join(call("scan", night.config, "--check")[1].split())
    assert f"(measured once): windows {COST_OF_LOOKS['windows']} times" in said


@pytest.mark.usefixtures("without_ray")
def test_what_is_done_is_left_out_and_a_scan_says_the_same_in_json(night, marked, plain):
    night.write("a", [marked(7, 60, 1), *(plain(40, i) for i in range(8)), None, "short"])
    code, out, _ = call("scan", night.config, "--summary", "json")
    found = json.loads(out)
    assert out.count("\n") == 1
    assert code == found["exit_code"] == 0
    wanted = {"documents": 11, "flagged": 1, "too_short": 1, "quarantined": 1, "shards": 1, "shards_left": 0}
    wanted |= {"results": night.results, "nothing_read": None, "shards_done_before": 0, "files_quarantined": 0}
    assert {name: found[name] for name in wanted} == wanted
    assert found["quarantine"] == [{"reason": "null_text", "documents": 1, "files": 0}]
    assert (found["audit"]["texts"], found["audit"]["flagged"], found["audit"]["alarms"]) == (9, 1, [])
    row = night.last_scan()
    assert (found["scan_id"], found["audit"]["state"]) == (row["scan_id"], row["audit"])

    looked = json.loads(call("scan", night.config, "--check", "--summary", "json")[1])
    left = {"documents_left": 0, "documents_left_for_some_keys": {}}
    assert looked["done"] == {"shards": 1, "shards_done": 1, "looks_price": 1.0, **left}
    assert looked["time"] == {"core_hours": 0.0, "seconds": 0.0}
    assert looked["results"]["tables"] == "there"
    night.write("b", [plain(40, 99)])
    looked = json.loads(call("scan", night.config, "--check", "--summary", "json")[1])
    assert looked["done"] == {"shards": 2, "shards_done": 1, "looks_price": 1.0, **left, "documents_left": 1}


def no_secret(night):
    folder = night.registry
    for file in (folder / "secrets").iterdir():
        file.unlink()


def other_secret(night):
    first = load_registry(night.registry).keys[0]
    path = night.registry / first.secret.removeprefix("file:")
    path.chmod(0o600)
    path.write_text(os.urandom(32).hex())


def other_tokenizer(night):
    pinned = load_registry(night.registry).keys[0].tokenizer.file
    (night.registry / "other.json").write_text("{}")
    listed = night.registry / "keys.toml"
    listed.write_text(listed.read_text().replace(pinned, "other.json"))


def results_are_a_file(night):
    Path(night.results).write_text("x")


def other_columns(night):
    open_tables(night.results)
    shutil.rmtree(table_uri(night.results, "scans"))
    make_table(table_uri(night.results, "scans"), DataFrame({"x": [1]}).to_arrow().schema, {})


def no_column(night):
    night.configure(columns='account = "nobody"')


def no_input(night):
    shutil.rmtree(night.input)


def only_other_files(night):
    for file in night.input.iterdir():
        file.rename(file.with_suffix(".csv"))


def all_at_fault(night):
    for file in night.input.iterdir():
        file.write_text("not Parquet")


def no_cluster(night):
    night.config.write_text(night.config.read_text().replace("workers = 1", 'workers = 1\naddress = "127.0.0.1:1"'))


def unknown_key(night):
    night.configure(more='keys = ["nosuch"]')


@pytest.mark.parametrize(
    ("spoil", "passed", "said"),
    [
        (unknown_key, (), "keys: 'nosuch' is not in registry"),
        (no_secret, ("registry",), "secrets/green.key: cannot be read"),
        (other_secret, ("registry",), "does not fit the recorded commitment"),
        (other_tokenizer, ("registry", "secrets"), "other.json: its SHA-256"),
        (results_are_a_file, STEPS[:3], "is not a folder"),
        (other_columns, (), "does not have the columns that this version writes"),
        (no_cluster, STEPS[:4], "cannot be reached"),
        (no_input, (), "does not exist"),
        (only_other_files, (), "1 file skipped, not ending in .parquet (.csv 1)"),
        (all_at_fault, STEPS[:4], "1 file would be quarantined (not_parquet 1)"),
        (no_column, STEPS[:4], "'nobody' (account) is missing"),
    ],
)
@pytest.mark.usefixtures("own_registry")
def test_the_first_thing_that_cannot_be_right_is_refused(night, plain, monkeypatch, spoil, passed, said):
    monkeypatch.setattr(machines.ray, "is_initialized", lambda: False)  # an earlier test may have started Ray
    make_private(night.folder)
    night.write("a", [plain(40, 1)])
    spoil(night)
    code, out, err = call("scan", night.config, "--check")
    assert (code, tuple(line.split()[0] for line in out.splitlines() if not line.startswith(" "))) == (2, passed)
    assert said in err
    assert len(err.splitlines()) <= 2
    code, out, _ = call("scan", night.config, "--check", "--summary", "json")
    assert json.loads(out)["exit_code"] == 2
    assert err.startswith(f"error: {json.loads(out)['error'][:20]}")
    assert code == 2


@pytest.mark.usefixtures("without_ray")
def test_an_edited_log_is_refused(night, plain):
    """It said of shards that nobody scanned that they were done."""
    night.write("a", [plain(40, 1)])
    night.scan()
    uri = table_uri(night.results, "verdicts")
    version = DeltaTable(uri).version() + 1
    forged = json.dumps({"txn": {"appId": "a shard that nobody scanned", "version": 1}})
    (Path(uri) / "_delta_log" / f"{version:020}.json").write_text(forged)
    code, out, err = call("scan", night.config, "--check")
    assert (code, "verdicts: its log has transactions that brickscan did not commit" in err) == (2, True), out + err


def test_a_quiet_night_may_be_allowed(night):
    assert call("scan", night.config, "--check")[0] == 2
    night.configure(more="allow_empty = true")
    code, out, _ = call("scan", night.config, "--check")
    assert code == 0
    assert "nothing is left to do" in out


def test_a_refused_scan_is_json_too_and_a_wrong_command_line_is_not(night):
    night.configure(more='keys = ["nosuch"]')
    code, out, err = call("scan", night.config, "--summary", "json")
    assert code == json.loads(out)["exit_code"] == 2
    assert err == "error: {}\nhint: {}\n".format(*json.loads(out)["error"].split("; ", 1))
    code, out, err = call("scan", night.config, "--check", "--follow")
    assert (code, out) == (2, "")
    assert "--follow or --check" in err


@pytest.mark.parametrize("there", [True, False])
def test_an_input_without_files_is_refused_before_anything_slow(there, night, monkeypatch):
    monkeypatch.setattr("scanner.cluster.scan_check.check_users", pytest.fail)
    night.configure(paths=["in/{date}"])
    if there:
        (night.input / "2026-11-20").mkdir()
    code, out, err = call("scan", night.config, "--check", "--date", "2026-11-20")
    assert (code, out) == (2, "")
    assert "in/2026-11-20" in err


def test_ctrl_c_that_python_drops_ends_the_look_ahead(night, plain, monkeypatch):
    """numba's compiler calls Python back from C, where Python drops an interrupt and goes on."""
    night.write("a", [plain(40, 1)])
    interrupt = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr("scanner.cluster.scan_check.check_users", lambda plan: interrupt())
    code, out, err = call("scan", night.config, "--check")
    assert (code, out) == (130, "")
    assert err.split("\n") in (["brickscan: interrupted by Ctrl-C", ""], ["", "brickscan: interrupted by Ctrl-C", ""])
