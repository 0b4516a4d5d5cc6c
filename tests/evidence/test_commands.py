"""`brickscan explain` and `replay` on a night that was really scanned: what is shown, and what is refused."""

import json
import re

import polars as pl
import pyarrow.parquet as pq
import pytest

from scanner.registry import remove_users
from tests.support.command_line import call
from tests.support.two_keys import message_of

pytestmark = pytest.mark.usefixtures("without_ray")


@pytest.fixture
def scanned(night, own_registry, marked, plain):
    """Of alice: a text, one that is quoted, one that is written twice; and text of nobody."""
    alice = message_of(own_registry, "green", "alice")
    texts = [marked(alice, 80, 1), f"> {marked(alice, 90, 2)}\n{plain(90, 5)}", marked(alice, 70, 3), plain(80, 1)]
    night.configure(columns='account = "account"')
    night.write("a", texts, account=["ann", "</b>\x1b[31m", None, "bo"])
    night.write("b", [texts[2]], doc_id=["a:2"], account=["ann"])
    night.scan()
    return night


def test_a_flag_is_explained(scanned, tmp_path):
    code, out, _ = call("explain", scanned.config, "a:0")
    said = re.sub(r"\s+", " ", out)
    assert code == 0
    assert "the text contains text marked for user alice, who holds the message since" in said
    assert re.search(
        r"one text in (?:more than )?[\d.]+·10\^\d+ would score so high for any of the 2,000 messages of this key", said
    )
    assert "among the 5 documents of this scan" in said
    assert "2 flagged documents (2 distinct) of this account" in said
    assert "4 flagged documents (3 distinct) for this message" in said
    assert "who wrote the text, or who posted it" in said
    assert re.search(r"^[ .\-=#]*[=#]{20}", out, re.MULTILINE)
    code, out, _ = call("explain", scanned.config, "a:0", "--html", tmp_path / "flag.html")
    assert code == 0
    assert (tmp_path / "flag.html").stat().st_mode & 0o077 == 0
    assert "Is a directory" in call("explain", scanned.config, "a:0", "--html", tmp_path)[2]
    assert list(tmp_path.parent.glob(".*.unfinished")) == []
    code, out, _ = call("explain", scanned.results, "a:0")
    assert code == 0
    assert "The text is not shown: name the scan's configuration" in out


def test_a_quotation_is_said_to_be_one(scanned):
    code, out, _ = call("explain", scanned.config, "a:1", "--json")
    record = json.loads(out)
    assert code == 0
    assert record["carried_by"] == "quoted"
    said = {part["kind"]: part["log10_p_any"] for part in record["parts"]}
    assert said["quoted"] < -20 < -2 < said["own"]
    assert "\x1b" not in out
    (_, sentence) = (
        one.values() for one in record["says"] if one["heading"] == "Quoted lines and own words"
    ).__next__()
    assert "whoever posted this quotes marked text" in sentence


def test_every_flag_comes_out_equal(scanned):
    for document in ("a:0", "a:1", f"{scanned.input}/a.parquet:2", f"{scanned.input}/b.parquet:0"):
        code, out, _ = call("replay", scanned.config, document)
        assert (code, "DIFFERS" in out) == (0, False), out


def test_what_cannot_be_shown_says_why(scanned, own_registry):
    for command in ("explain", "replay"):
        code, _, err = call(command, scanned.config, "a:2")
        assert code == 2
        assert "2 flagged documents have this id; choose one" in err
        assert "it was read and is not flagged" in call(command, scanned.config, "a:3")[2]
        assert "no document of that name was read" in call(command, scanned.config, "nothing")[2]
    remove_users(own_registry, ["alice"])
    code, out, _ = call("replay", scanned.config, "a:0")
    assert code == 3
    assert re.search(r"naming +named +removed +DIFFERS +the users table changed since", out)
    assert "The evidence comes out equal; whose the message is does not" in out
    path = scanned.input / "a.parquet"
    rows = pl.read_parquet(path)
    pq.write_table(rows.with_columns(text=pl.col("text").str.to_uppercase()).to_arrow(), path)
    assert "another text stands there now" in re.sub(r"\s+", " ", call("explain", scanned.config, "a:0")[1])
    assert "another text stands there now" in call("replay", scanned.config, "a:0")[2]
    path.unlink()
    assert "the text cannot be read any more" in re.sub(r"\s+", " ", call("explain", scanned.config, "a:0")[1])
    assert call("replay", scanned.config, "a:0")[0] == 2


def test_a_field_that_was_changed_is_found(scanned, monkeypatch):
    """Sabotage: the row claims a p-value that the text does not have."""
    from scanner.evidence import replaying

    found = replaying.find_case

    def lying(*arguments):
        case = found(*arguments)
        case.row["log10_p"] -= 1e-5
        return case

    monkeypatch.setattr(replaying, "find_case", lying)
    code, out, _ = call("replay", scanned.config, "a:0")
    assert code == 3
    assert re.search(r"^log10_p +-\d+\.\d+ +-\d+\.\d+ +DIFFERS", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("user_id", None),
        ("user_id", "bob"),
        ("message", 1),
        ("account_id", "bo"),
        ("doc_id", "a:9"),
        ("keys_tested", 1),
        ("named", [{"key_id": "green", "message": 1, "user_id": "bob", "naming": "named", "log10_p_global": -9.0}]),
    ],
)
def test_nobody_is_slipped_into_a_row(scanned, monkeypatch, field, value):
    """Sabotage: the row names or accuses somebody else, or hides whom it names."""
    from scanner.evidence import replaying

    found = replaying.find_case

    def lying(*arguments):
        case = found(*arguments)
        case.row[field] = value
        return case

    monkeypatch.setattr(replaying, "find_case", lying)
    code, out, _ = call("replay", scanned.config, "a:0")
    assert code == 3
    assert re.search(rf"^{field} .*DIFFERS", out, re.MULTILINE), out


def test_an_id_that_reads_as_a_place_hides_no_flag(night, own_registry, marked):
    alice = message_of(own_registry, "green", "alice")
    path = night.write("a", [marked(alice, 80, 1)])
    night.write("b", [marked(alice, 80, 2)], doc_id=[f"{path}:0"])
    night.scan()
    code, out, _ = call("explain", night.config, f"{path}:0", "--json")
    record = json.loads(out)
    assert (code, record["path"], record["row"]) == (0, str(path), 0)


def test_flags_of_normalised_texts_come_out_equal(night, own_registry, marked):
    """Each key counts twice then, and does so once."""
    alice = message_of(own_registry, "green", "alice")
    night.configure(more="variants = { normalised = true }")
    night.write("a", [marked(alice, 90, 4).replace("e", "e\u200b"), marked(alice, 80, 1)])
    night.scan()
    for document, variant in (("a:0", "normalised"), ("a:1", "-")):
        code, out, _ = call("replay", night.config, document)
        assert code == 0, out
        assert re.search(rf"^variant +{variant} +{variant} +equal", out, re.MULTILINE)
        assert re.search(r"^keys_tested +4 +4 +equal", out, re.MULTILINE)
    code, out, _ = call("explain", night.config, "a:0")
    assert "\u200b" not in out
    assert "normalised" in out
