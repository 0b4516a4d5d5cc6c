"""`brickscan explain` and `replay` on a scanned night: what they show, and what they refuse."""

import json
import re
import shutil
from datetime import UTC, datetime

import c2pa_text
import polars as pl
import pyarrow.parquet as pq
import pytest

from scanner.registry import remove_users
from tests.support.command_line import call
from tests.support.night import Night
from tests.support.opened_once import keep_inspector
from tests.support.two_keys import message_of
from tests.support.without_ray import put_in_the_place_of_ray

pytestmark = pytest.mark.usefixtures("without_ray")


def scan_texts(night, marked, plain):
    """Scan a night: three texts of alice, one of them quoted and one posted twice, and a text of nobody."""
    alice = message_of(night.registry, "green", "alice")
    texts = [marked(alice, 80, 1), f"> {marked(alice, 90, 2)}\n{plain(90, 5)}", marked(alice, 70, 3), plain(80, 1)]
    night.configure(columns='account = "account"')
    night.write("a", texts, account=["ann", "</b>\x1b[31m", None, "bo"])
    night.write("b", [texts[2]], doc_id=["a:2"], account=["ann"])
    night.scan()
    return night


@pytest.fixture(scope="module")
def scanned(tmp_path_factory, registry, marked, plain):
    """That night, which tests only read."""
    folder = tmp_path_factory.mktemp("commands")
    night = Night(folder, shutil.copytree(registry, folder / "registry"))
    with pytest.MonkeyPatch.context() as patch:
        put_in_the_place_of_ray(patch)
        keep_inspector(patch)
        return scan_texts(night, marked, plain)


@pytest.fixture
def own_scanned(night, own_registry, marked, plain):
    """That night, which a test may change."""
    return scan_texts(night, marked, plain)


@pytest.mark.costly
def test_a_text_with_a_manifest_is_flagged_as_without_it_and_says_so(night, own_registry, marked, tmp_path):
    text = marked(message_of(own_registry, "green", "alice"), 80, 1)
    night.configure(more="variants = { normalised = true }\nspans = { windows = true }")
    night.write("a", [text, c2pa_text.embed_manifest(text, bytes(1500))])
    night.scan()
    plain, carried = night.verdicts().sort("row").to_dicts()
    assert (plain.pop("manifest"), carried.pop("manifest")) == (None, "c2pa")
    for name in ("row", "doc_id", "text_sha256", "text_id", "scanned_at"):
        assert plain.pop(name) is not None
        assert carried.pop(name) is not None
    assert plain == carried
    assert plain["flagged"]
    assert "the text carries a C2PA manifest" in re.sub(r"\s+", " ", call("explain", night.config, "a:1")[1])
    assert call("replay", night.config, "a:1", "--proof", tmp_path / "claim")[0] == 0
    assert (tmp_path / "claim" / "scored.txt").read_text() == text


@pytest.mark.costly
def test_a_flag_is_explained(scanned, tmp_path):
    code, out, _ = call("explain", scanned.config, "a:0")
    said = re.sub(r"\s+", " ", out)
    assert code == 0
    assert "the text contains text marked for user alice, who has had the message since" in said
    assert re.search(
        r"(1 in [\d,]+|less than 1 in a billion) unmarked texts would score as high for any of this key's 2,000 ",
        said,
    )
    assert "among the 5 documents of this scan" in said
    assert "The registry's owner has it. No other holder is on record" in said
    assert "Beware of this key: it can accuse the innocent. All users of version 1" in said
    assert "2 flagged documents, counting this one (2 distinct texts), of this account" in said
    of_alice = "4 flagged documents, counting this one (3 distinct texts, of 2 accounts), marked for user alice"
    assert f"{of_alice}, under any key" in said
    assert "who wrote the text, or who posted it" in said
    assert "how strongly the words above speak for the mark: . a little, - some, = strongly, # very strongly" in said
    assert re.search(r"^[ .\-=#]*[=#]{20}", out, re.MULTILINE)
    code, out, _ = call("explain", scanned.config, "a:0", "--html", tmp_path / "flag.html")
    assert code == 0
    assert (tmp_path / "flag.html").stat().st_mode & 0o077 == 0
    assert "is a folder\nhint: name a file" in call("explain", scanned.config, "a:0", "--html", tmp_path)[2]
    assert list(tmp_path.parent.glob(".*.unfinished")) == []
    code, out, _ = call("explain", scanned.results, "a:0")
    assert code == 0
    assert "The text is not shown: name the scan's configuration" in out


@pytest.mark.costly
def test_accounts_that_posted_one_text_are_counted(night, registry, marked):
    """Copies and an edited copy of one text are one piece of evidence, whoever posts them."""
    text = marked(message_of(registry, "green", "alice"), 80, 1)
    night.configure(columns='account = "account"')
    night.write("a", [text, text, f"{text} truly", marked(3, 80, 2)], account=["ann", "bo", "cy", "ann"])
    night.scan()
    said = re.sub(r"\s+", " ", call("explain", night.config, "a:0")[1])
    assert "1 other flagged document with exactly this text" in said
    alike = (
        "3 flagged documents, counting this one (2 distinct texts, of 3 accounts), with this text or near-duplicates"
    )
    assert f"{alike} of it, which together are one piece of evidence" in said


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
    assert "the account that posted this quotes marked text" in sentence


@pytest.mark.costly
def test_every_flag_comes_out_equal(scanned):
    for document in ("a:0", "a:1", f"{scanned.input}/a.parquet:2", f"{scanned.input}/b.parquet:0"):
        code, out, _ = call("replay", scanned.config, document)
        assert (code, "DIFFERS" in out) == (0, False), out


@pytest.mark.costly
def test_what_cannot_be_shown_says_why(own_scanned, own_registry):
    for command in ("explain", "replay"):
        code, _, err = call(command, own_scanned.config, "a:2")
        assert code == 2
        assert "2 flagged documents have this id\nhint: choose one" in err
        assert "it was scanned and is not flagged" in call(command, own_scanned.config, "a:3")[2]
        assert "no scan read a document of that name" in call(command, own_scanned.config, "nothing")[2]
    remove_users(own_registry, ["alice"])
    code, out, _ = call("replay", own_scanned.config, "a:0")
    assert code == 3
    assert re.search(r"naming +named +removed +DIFFERS +the users table has changed since", out)
    assert "The evidence comes out the same, but the message's user does not" in out
    path = own_scanned.input / "a.parquet"
    rows = pl.read_parquet(path)
    pq.write_table(rows.with_columns(text=pl.col("text").str.to_uppercase()).to_arrow(), path)
    assert "the text there now" in re.sub(r"\s+", " ", call("explain", own_scanned.config, "a:0")[1])
    assert "the text there now" in call("replay", own_scanned.config, "a:0")[2]
    path.unlink()
    assert "the text can no longer be read " in re.sub(r"\s+", " ", call("explain", own_scanned.config, "a:0")[1])
    assert call("replay", own_scanned.config, "a:0")[0] == 2


def test_a_field_that_was_changed_is_found(scanned, monkeypatch):
    """Sabotage: the row claims a p-value that the text does not have."""
    from scanner.evidence import replay

    found = replay.find_case

    def lying(*arguments):
        case = found(*arguments)
        case.row["log10_p"] -= 1e-5
        return case

    monkeypatch.setattr(replay, "find_case", lying)
    code, out, _ = call("replay", scanned.config, "a:0")
    assert code == 3
    assert re.search(r"^log10_p +-\d+\.\d+ +-\d+\.\d+ +DIFFERS", out, re.MULTILINE)


@pytest.mark.parametrize(
    "lies",
    [
        {"user_id": None},
        {
            "user_id": "bob",
            "message": 1,
            "account_id": "bo",
            "doc_id": "a:9",
            "correction": 1.0,
            "named": [{"key_id": "green", "message": 1, "user_id": "bob", "naming": "named", "log10_p_global": -9.0}],
        },
    ],
    ids=["nobody", "somebody else"],
)
def test_nobody_is_slipped_into_a_row(scanned, monkeypatch, lies):
    """Sabotage: the row names or accuses somebody else, or hides the user it names."""
    from scanner.evidence import replay

    found = replay.find_case

    def lying(*arguments):
        case = found(*arguments)
        case.row.update(lies)
        return case

    monkeypatch.setattr(replay, "find_case", lying)
    code, out, _ = call("replay", scanned.config, "a:0")
    assert code == 3
    for field in lies:
        assert re.search(rf"^{field} .*DIFFERS", out, re.MULTILINE), out


@pytest.mark.costly
def test_an_id_that_reads_as_a_place_hides_no_flag(night, own_registry, marked):
    alice = message_of(own_registry, "green", "alice")
    path = night.write("a", [marked(alice, 80, 1)])
    night.write("b", [marked(alice, 80, 2)], doc_id=[f"{path}:0"])
    night.scan()
    code, out, _ = call("explain", night.config, f"{path}:0", "--json")
    record = json.loads(out)
    assert (code, record["path"], record["row"]) == (0, str(path), 0)


@pytest.mark.costly
def test_flags_of_normalised_texts_come_out_equal(night, own_registry, marked):
    """With both variants a key counts as two tests, in a text that is its own normal form as one: so does replay."""
    alice = message_of(own_registry, "green", "alice")
    night.configure(more="variants = { normalised = true }")
    night.write("a", [marked(alice, 90, 4).replace("e", "e\u200b"), marked(alice, 80, 1)])
    night.scan()
    for document, variant, tests in (("a:0", "normalised", 4), ("a:1", "-", 2)):
        code, out, _ = call("replay", night.config, document)
        assert code == 0, out
        assert re.search(rf"^variant +{variant} +{variant} +equal", out, re.MULTILINE)
        assert re.search(rf"^correction +{tests} +{tests} +equal", out, re.MULTILINE)
    code, out, _ = call("explain", night.config, "a:0")
    assert "\u200b" not in out
    assert "normalised" in out


@pytest.mark.costly
def test_the_time_by_which_a_document_existed_is_compared(night, own_registry, marked, monkeypatch):
    """The time is the document's own, its file's, or an earlier scan's. Sabotage: a row has another time, or none."""
    from scanner.evidence import replay

    texts = [marked(message_of(own_registry, "green", "alice"), 80, seed) for seed in range(2)]
    night.configure(columns='time = "at"')
    own = [datetime(2026, 1, 1, tzinfo=UTC), None]
    night.write("a", texts, at=own)
    night.scan()
    rows = pl.read_delta(f"{night.results}/flags").sort("row")
    assert rows["first_seen_at"][0] == own[0]
    assert rows["first_seen_at"][1] is not None  # the file's time
    for document in ("a:0", "a:1"):
        assert re.search(r"^first_seen_at .* equal", call("replay", night.config, document)[1], re.MULTILINE)
    night.configure(columns='time = "at"', more="weights = { document = 0.9 }")  # another weight: all is scanned again
    night.scan()
    assert pl.read_delta(f"{night.results}/flags").height == 4
    for document in ("a:0", "a:1"):
        code, out, _ = call("replay", night.config, document)
        assert (code, "DIFFERS" in out) == (0, False), out
    found = replay.find_case
    for wrong in (None, datetime(2025, 1, 1, tzinfo=UTC)):

        def lying(*arguments, wrong=wrong):
            case = found(*arguments)
            case.row["first_seen_at"] = wrong
            return case

        with monkeypatch.context() as patch:
            patch.setattr(replay, "find_case", lying)
            code, out, _ = call("replay", night.config, "a:1")
        assert code == 3
        assert re.search(r"^first_seen_at .*DIFFERS", out, re.MULTILINE), out


def test_what_differs_is_no_claim_and_json_has_no_nan(scanned, monkeypatch, tmp_path):
    from scanner.evidence import replay

    found = replay.find_case

    def lying(*arguments):
        case = found(*arguments)
        case.row["score"] = float("nan")
        return case

    monkeypatch.setattr(replay, "find_case", lying)
    code, out, _ = call("replay", scanned.config, "a:0", "--proof", tmp_path / "case")
    assert (code, (tmp_path / "case").exists()) == (3, False)
    assert "no claim is written" in re.sub(r"\s+", " ", out)
    code, out, _ = call("replay", scanned.config, "a:0", "--json")
    (score,) = (one for one in json.loads(out)["fields"] if one["field"] == "score")
    assert (score["recorded"], score["equal"], "NaN" in out) == (None, False, False)


@pytest.mark.costly
def test_a_key_that_is_gone_keeps_no_other_flag_from_its_page(own_scanned, own_registry, marked, tmp_path):
    secret = own_registry / "secrets" / "green.key"
    secret.rename(tmp_path / "elsewhere")
    code, out, err = call("report", own_scanned.config, "--out", tmp_path / "report")
    assert code == 0, err
    pages = [page.read_text() for page in (tmp_path / "report" / "flags").glob("*.html")]
    assert len(pages) == 4
    assert all("The text is shown without its evidence" in page and "secret" in page for page in pages)
    code, out, _ = call("explain", own_scanned.config, "a:0")
    assert (code, "The text is shown without its evidence" in out) == (0, True)
    assert call("replay", own_scanned.config, "a:0")[0] == 2
