"""The output that people see of `brickscan scan`, `brickscan flagged` and `python -m jobs.scan`."""

import io
import re
import sys
from contextlib import redirect_stderr
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from jobs import cli
from jobs.scan import module, scan_and_tell
from jobs.text import Progress
from scanner.cluster.commits import ScanTotals
from scanner.cluster.pieces import DocumentCounts
from scanner.printable import printable
from scanner.results.transactions import open_tables
from scanner.watermark import kernel
from schemas.words import Naming
from tests.support.command_line import call
from tests.support.found_work import work
from tests.support.rows import add_scanned
from tests.support.two_keys import message_of


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_scan_and_flagged(night, marked, plain, registry):
    code, out, _ = call("flagged", night.config)
    assert code == 0
    assert out.startswith(f"There are no results in {night.results} yet: run `brickscan scan {night.config}` first.")

    alice = message_of(registry, "green", "alice")
    night.write("a", [marked(alice, 60, 1), plain(60, 2), None])
    code, out, err = call("scan", night.config)
    assert code == 0
    assert "3 documents in" in out
    assert re.search(
        r"^flagged +1 document, 1 distinct text, at a false-positive rate of 1 in 1,000,000$", out, re.MULTILINE
    )
    assert re.search(r"^false flags +less than 0.001 of 1 expected, by chance \(N·p\)$", out, re.MULTILINE)
    assert re.search(r"^quarantined +1 document, 0 files \(null_text 1 document\)$", out, re.MULTILINE)
    assert "query" not in out
    assert night.results in out
    lines = [dict(pair.split("=") for pair in line.split()) for line in err.splitlines() if line.startswith("event=")]
    assert (lines[-1]["event"], lines[-1]["texts"], lines[-1]["flagged"]) == ("audit", "2", "1")
    lines.pop()
    assert lines[-1]["shards"] == "1/1"
    assert (lines[-1]["documents"], lines[-1]["flagged"], lines[-1]["quarantined"]) == ("3/3", "1", "1")

    code, again, _ = call("--config", night.config, "--verbose", command=module)
    assert code == 0
    assert "0 documents in" in again
    assert "whole input  3 documents; 1 of 1 shard already committed\n" in again
    assert re.search(r"^flagged +1 document, 1 distinct text", again, re.MULTILINE)  # of the whole night
    assert re.search(r"^quarantined +1 document, 0 files \(null_text 1 document\)$", again, re.MULTILINE)

    code, out, _ = call("flagged", night.config)
    assert code == 0
    head, row, below, false_flags = out.splitlines()
    assert "contains text marked for" in head
    assert "alice" in row
    assert below == "1 of 1 shown; 1 flagged document, 1 distinct text"
    assert false_flags == "false flags: less than 0.001 of 1 expected, by chance (N·p)"
    assert "written by" not in out
    (query,) = re.findall(r"^query +(.*)$", again, re.MULTILINE)
    importing, asking = query.split("; ")
    names: dict[str, object] = {}
    exec(importing, names)
    assert eval(asking, names).height == 1


def test_a_refusal_is_an_error_and_a_hint(night):
    night.configure(more='keys = ["nosuch"]')
    for arguments, command in ((("scan", night.config), cli.brickscan), (("--config", night.config), module)):
        code, out, err = call(*arguments, command=command)
        assert (code, out) == (2, "")
        error, hint = err.splitlines()
        assert error.startswith("error: keys: 'nosuch' is not in registry")
        assert hint.startswith("hint: its keys: ")
    assert call("scan", night.folder / "none.toml")[0] == 2
    assert call("flagged", night.folder / "none.toml")[0] == 2
    assert call("scan", night.config, "--date", "yesterday")[0] == 2


def verdict(i: int, **changes: object) -> dict[str, object]:
    return {
        **dict.fromkeys(("scan_id", "shard_id", "path", "doc_id", "key_id", "status"), f"x{i}"),
        "row": i,
        "text_sha256": bytes(32),
        "message": 19,
        "naming": "named",
        "user_id": "alice",
        **dict.fromkeys(("tokens", "scored", "messages_tested", "correction"), 9),
        **dict.fromkeys(("score", "log10_p"), 1.0),
        "log10_p_global": -400.3,
        "flagged": True,
        "scanned_at": datetime(2026, 8, 1 + i, tzinfo=UTC),
        **changes,
    }


def test_every_naming_has_its_words(night):
    open_tables(night.results)
    rows = [
        verdict(i, naming=naming, user_id="alice" if naming == "named" else None) for i, naming in enumerate(Naming)
    ]
    rows = [row for row in rows if row["naming"] != "none"]
    dates = {"first_seen_at": datetime(2026, 2, 27, 9, 30, tzinfo=UTC), "held_since": datetime(2026, 3, 2, tzinfo=UTC)}
    rows = [row | dates if row["naming"] == "held_later" else row for row in rows]
    rows += [verdict(20, user_id="evil\x1b[2J\nname", doc_id=None), verdict(21, flagged=False, user_id="unflagged")]
    add_scanned(night.results, "t", rows)
    code, out, _ = call("flagged", night.results)
    assert code == 0
    lines = out.splitlines()[:-3]
    assert len(lines) == 1 + len(Naming)
    assert "evil\\x1b[2J\\nname" in lines[1]  # newest first; control characters are escaped
    assert "alice" in lines[-1], out
    assert "2026-08-01" in lines[-1]
    assert "less than 1 in a billion" in lines[-1]
    for words in (
        "no user held",
        "reserved: a false accusation",
        "of a removed user",
        "several messages",
        "too weak",
        "a hash",
        "found a different result",
    ):
        assert words in out
    assert "message 19, seen by 2026-02-27 09:30, which its user got later: 2026-03-02 00:00" in out
    assert "unflagged" not in out
    assert len(call("flagged", night.results, "--limit", "2")[1].splitlines()) == 3 + 3


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a" * 60, "a" * 60),
        ("a" * 61, "a" * 29 + "…" + "a" * 30),
        ("/" + "p" * 10_000 + ".parquet", "/" + "p" * 28 + "…" + "p" * 22 + ".parquet"),
        ("\x1b" * 15, "\\x1b" * 15),
        ("\x1b" * 16, ("\\x1b" * 8)[:29] + "…" + ("\\x1b" * 8)[-30:]),
        ("\x1b" * 999, ("\\x1b" * 8)[:29] + "…" + ("\\x1b" * 8)[-30:]),
    ],
)
def test_long_ids_are_cut_and_no_terminal_is_steered(text, shown):
    assert printable(text, 60) == shown
    assert printable("x" * 99) == "x" * 99


def test_long_ids_are_cut_and_paths_are_whole_where_they_are_piped(night):
    open_tables(night.results)
    row = verdict(3, doc_id="d" * 61, path="/" + "p" * 10_000, user_id="u" * 61)
    add_scanned(night.results, "t", [row])
    code, out, _ = call("flagged", night.results)
    assert code == 0
    shown = out.splitlines()[1]
    assert f" {'d' * 29}…{'d' * 30}  -        {'u' * 29}…{'u' * 30}  " in shown
    assert shown.endswith(f" /{'p' * 10_000} row 3")  # a piped path is not cut


def test_a_bar_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    progress = Progress()
    progress(work(10), ScanTotals())
    progress(work(10), replace(ScanTotals(), counts=DocumentCounts(documents=7, flagged=2, text_bytes=10**6)))
    progress.close()
    shown = sys.stderr.getvalue()
    assert "7.00/10.0" in shown
    assert "MB/s, 2 flagged" in shown
    assert "event=" not in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_a_first_scan_says_once_that_it_compiles(monkeypatch, tmp_path, terminal):
    monkeypatch.setattr(kernel, "cache_folder", lambda: str(tmp_path))
    assert not kernel.compiled_before()
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: terminal, raising=False)
    with redirect_stderr(shown):
        Progress().compiling()
    said = "compiling kernels for this machine (only once" if terminal else "event=compile_kernels once=true"
    assert shown.getvalue().startswith(said)
    assert shown.getvalue().count("\n") == 1
    (tmp_path / "a.nbi").touch()
    assert kernel.compiled_before()


def test_a_scan_says_on_a_terminal_what_it_waits_for(night, plain, monkeypatch, without_ray):
    night.write("a", [plain(40, 1)])
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True, raising=False)
    with redirect_stderr(shown):
        assert scan_and_tell(night.config) == 0
    said = [line for line in shown.getvalue().replace("\r", "\n").splitlines() if line.endswith(" …")]
    assert said[0] == "loading numba and Ray …"
    assert said[1:] == [
        "listing the input …",
        "opening keys, tokenizers and users …",
        "reading file footers: 1, and which shards are already done …",
        "starting Ray and its workers, which open the keys …",
    ]
