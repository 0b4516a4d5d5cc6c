"""The commands of the guide “Where text lives” that write Parquet from other formats, on hostile lines too."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from scanner.input.columns import Columns
from scanner.input.documents import decode_text, read
from scanner.input.files import list_files

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "where-text-lives.md"


def record(kind: str, number: int, text: str) -> str:
    head = [f"WARC-Type: {kind}", f"WARC-Record-ID: <urn:uuid:{number}>", f"Content-Length: {len(text)}"]
    return "\r\n".join(["WARC/1.0", *head, "", text, "", ""])


WARC = record("warcinfo", 0, "Software: x") + record("conversion", 1, 'A "b"\n\nc\nd') + record("conversion", 2, "e")
COMMANDS = re.findall(r"^(?:duckdb|python) .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def written(folder: Path, name: str, content: bytes) -> tuple[Path, str]:
    """The Parquet file that the guide's command for a file of this name writes, and what the command says."""
    (folder / "incoming").mkdir()
    (folder / name).write_bytes(content)
    (command,) = [command for command in COMMANDS if name in command]
    program, *arguments = shlex.split(command)
    if program == "duckdb":
        duckdb.sql(arguments[1])
        return next((folder / "incoming").iterdir()), ""
    arguments[0] = str(ROOT / arguments[0])
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, check=True, encoding="utf-8", timeout=60
    )
    return folder / arguments[2], done.stdout


def documents(path: Path) -> list[tuple[object, ...]]:
    """Id, account, time and text of each document, as a scan reads them."""
    columns = Columns("text", "id", "account", "created_at")
    (file,) = list_files([str(path.parent)])
    rows = pq.read_metadata(path).num_rows
    (batch,) = read(file, columns, 0, rows)
    assert not any(batch["unread"].to_pylist())
    times = [None if at is None else f"{at:%Y-%m-%d}" for at in batch["created_at"].to_pylist()]
    texts = [decode_text(raw)[0] for raw in batch["text"].to_pylist()]
    return list(zip(batch["doc_id"].to_pylist(), batch["account_id"].to_pylist(), times, texts, strict=True))


def test_warc_is_written_as_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, _ = written(tmp_path, "pages.warc.wet", WARC.encode())
    rows = duckdb.sql(f"SELECT id, text FROM '{path}' ORDER BY id").fetchall()
    assert rows == [("urn:uuid:1", 'A "b"\n\nc\nd'), ("urn:uuid:2", "e")]


LINES = [
    (b'\xef\xbb\xbf{"id": 1, "text": "after a byte-order mark"}', ("1", None, None, "after a byte-order mark")),
    (b'{"id": 18446744073709551616, "account": 18446744073709551614, "text": "{\\"a\\": 1}"}',
     ("18446744073709551616", "18446744073709551614", None, '{"a": 1}')),
    (b'{"id": "0070", "account": 18446744073709551615, "text": 12345678901234567890123}',
     ("0070", "18446744073709551615", None, "12345678901234567890123")),
    (b'{"id": 1.50, "account": true, "created_at": "2026-11-26", "text": "2026-11-26"}',
     ("1.50", "true", "2026-11-26", "2026-11-26")),
    (b'{"id": 2, "created_at": 1712010112345, "text": "line\\n\\n \\"two\\"\\t"}\r',
     ("2", None, "2024-04-01", 'line\n\n "two"\t')),
    (b"", None),
    (b" \t\r", None),
    (b'{"account": "no id, no text"}', (None, "no id, no text", None, None)),
    (b'{"id": null, "text": null}', (None, None, None, None)),
    (b'{"id": 3, "text": {"a": [1, 2.50, "\xc3\xa9"]}, "account": []}',
     ("3", "[]", None, '{"a": [1, 2.50, "é"]}')),
    (b'{"id": 4, "text": "half \\ud83d of a pair, \\ud83d\\ude00 a pair"}',
     ("4", None, None, "half \ufffd\ufffd\ufffd of a pair, \U0001f600 a pair")),
    (b'{"id": 5, "text": "bytes \xff\xfe of Latin-1"}', ("5", None, None, "bytes \ufffd\ufffd of Latin-1")),
    (b'{"id": 6, "text": "a raw \t tab and \\u0000"}', ("6", None, None, "a raw \t tab and \x00")),
    (b'{"id": 7, "text": NaN, "other": 1e999}', ("7", None, None, "NaN")),
    (b'{"id": 8, "text": "\xe2\x80\xa8 is no end of a line"}', ("8", None, None, "\u2028 is no end of a line")),
    (b'{"id": 9, "text": "' + b"x" * 2_000_000 + b'"}', ("9", None, None, "x" * 2_000_000)),
    (b'{"id": "#10", "text": "last, without an end of its line"}',
     ("#10", None, None, "last, without an end of its line")),
]  # fmt: skip
BROKEN = [
    b'{"id": 4, "text": "broken',
    b'{"id": 8, "text": "one", "text": "two"}',
    b"[1, 2]",
    b'"text"',
    b'{"id": 11, "text": "trailing"} garbage',
    b"{'id': 18, 'text': 'other quotes'}",
    b"\xff\xfe{",
    b"[" * 100_000,
]


def test_json_lines_are_written_as_they_are(tmp_path):
    """Text as text and ids as text, whatever stands in other lines; a broken line is kept and counted."""
    lines = [line for line, _ in LINES]
    path, said = written(tmp_path, "posts.jsonl", b"\n".join([*lines[:3], *BROKEN, *lines[3:]]))
    assert documents(path) == [row for _, row in LINES if row is not None]
    assert f"{len(LINES) - 2} rows; {len(BROKEN)} broken lines, kept in posts.jsonl.broken" in said
    assert (tmp_path / "posts.jsonl.broken").read_bytes().splitlines() == BROKEN
    assert [file.name for file in path.parent.iterdir()] == ["posts.parquet"]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_csv_is_written_as_it_is(tmp_path, mark):
    rows = [
        ("#007", "18446744073709551615", "", 'a, "b"; \tc\n\n# d'),
        ("", "caf\xe9", "2026-11-26", " NULL "),
        ("5", "", "", ""),
    ]
    content = [("id", "account", "created_at", "text"), *rows, ("6", "too few"), ("7", "", "", "x", "too many")]
    text = "\r\n".join(mark.join('"' + one.replace('"', '""') + '"' for one in row) for row in content)
    path, said = written(tmp_path, "posts.csv", b"\xef\xbb\xbf" + text.encode("latin-1"))
    assert documents(path) == [
        ("#007", "18446744073709551615", None, 'a, "b"; \tc\n\n# d'),
        ("", "caf\\xe9", "2026-11-26", " NULL "),
        ("5", "", None, ""),
    ]
    assert "3 rows; 2 broken lines, kept in posts.csv.broken" in said
    assert (tmp_path / "posts.csv.broken").read_text().count("too") == 2


def test_a_field_that_no_line_has_is_told_of(tmp_path):
    assert (
        "no line has a field 'account', 'created_at'" in written(tmp_path, "posts.jsonl", b'{"id": 1, "text": "a"}')[1]
    )


def test_a_quote_without_an_end_loses_its_own_line_alone(tmp_path):
    """It went on to the next quote, and the rows between were one text."""
    lines = ["id,account,created_at,text", '1,a,,"good ""one"""', '2,a,,"unclosed', "3,b,,plain", '4,b,,"two', 'lines"']
    lines += ['5,c,,"a"b', "6,c,,six", '7,d,,"to the end', "8,d,,eight", ""]
    path, said = written(tmp_path, "posts.csv", "\n".join(lines).encode())
    assert "5 rows; 3 broken lines, kept in posts.csv.broken" in said
    assert (tmp_path / "posts.csv.broken").read_text().splitlines() == [
        '2,a,,"unclosed',
        '5,c,,"a"b',
        '7,d,,"to the end',
    ]
    texts = [(name, text) for name, *_, text in documents(path)]
    assert texts == [("1", 'good "one"'), ("3", "plain"), ("4", "two\nlines"), ("6", "six"), ("8", "eight")]
