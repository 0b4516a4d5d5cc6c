"""The commands of the guide “Where text lives” that write Parquet from other formats."""

import re
from pathlib import Path

import duckdb
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "where-text-lives.md"
JSONL = '{"id": 1, "text": "a \\"b\\""}\n{"id": 2, "text": "c\\nd"}\n'
CSV = 'id,text\r\n007,"a, ""b"""\r\n2,"c\nd"\r\n'


def record(kind: str, number: int, text: str) -> str:
    head = [f"WARC-Type: {kind}", f"WARC-Record-ID: <urn:uuid:{number}>", f"Content-Length: {len(text)}"]
    return "\r\n".join(["WARC/1.0", *head, "", text, "", ""])


WARC = record("warcinfo", 0, "Software: x") + record("conversion", 1, 'A "b"\n\nc\nd') + record("conversion", 2, "e")
EXPECTED = {
    "posts.jsonl": (JSONL, [(1, 'a "b"'), (2, "c\nd")]),
    "posts.csv": (CSV, [("007", 'a, "b"'), ("2", "c\nd")]),
    "pages.warc.wet": (WARC, [("urn:uuid:1", 'A "b"\n\nc\nd'), ("urn:uuid:2", "e")]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_command_of_the_guide_writes_every_text_as_it_was(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "incoming").mkdir()
    content, rows = EXPECTED[name]
    Path(name).write_bytes(content.encode())
    commands = re.findall(r'^duckdb -c "(.*)"$', PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    (command,) = [command for command in commands if f"'{name}'" in command]
    duckdb.sql(command)
    (written,) = Path("incoming").iterdir()
    assert duckdb.sql(f"SELECT id, text FROM '{written}' ORDER BY id").fetchall() == rows
