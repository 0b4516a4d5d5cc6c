"""Claims under keys of version 3: R follows from the public record, and every record, value or list of a lie shows."""

import hashlib
import json
import math
import re
import time
from pathlib import Path

import pytest

from scanner.evidence import check_claim
from scanner.evidence.check_claim import Mark
from scanner.registry import new_key
from scanner.registry.key_records import ONE_LOOK, set_beacon
from schemas.key_record import NamedBeacon
from tests.fixed import fix_secrets
from tests.support.command_line import call
from tests.support.forged_claims import Forger, check
from tests.support.night import Night
from tests.support.two_keys import TOKENIZER, Words

BEACON = NamedBeacon(source="drand\n\x1b[2Jholds       everything", round="4711 \u202e")
VALUE = "52df9d6c"
GROUPS, MESSAGE = 50, 1203
STRANGER = MESSAGE + 1  # of the same group


def make(
    folder: Path,
    beacon: NamedBeacon | None = None,
    method: str = "greenlist",
    groups: int | None = GROUPS,
    window: int = 2,
) -> Path:
    """A registry of one key, `green`, of few seeds."""
    fix_secrets(folder, "green")
    more = {"gamma": "1/4"} if method == "greenlist" else {}
    more |= {"groups": groups} if groups else {}
    new_key(
        folder,
        "green",
        format=f"{method}-v3",
        window=window,
        seeds=8,
        messages=groups**2 if groups else 2000,
        tokenizer=TOKENIZER,
        terms=ONE_LOOK._replace(beacon=beacon),
        **more,
    )
    if beacon is not None:
        set_beacon(folder, "green", bytes.fromhex(VALUE))
    return folder


@pytest.fixture(scope="module")
def without_beacon(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("without"))


@pytest.fixture(scope="module")
def with_beacon(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("with"), BEACON)


def forge(folder: Path, registry: Path, words: Words, length: int = 130, message: int = MESSAGE) -> Forger:
    forger = Forger(folder / "case", registry, "", message)
    forger.text = forger.mark_words(words, message, length, 1)
    return forger


@pytest.fixture
def forger(tmp_path, without_beacon, words) -> Forger:
    return forge(tmp_path, without_beacon, words)


@pytest.fixture
def of_beacon(tmp_path, with_beacon, words) -> Forger:
    return forge(tmp_path, with_beacon, words)


@pytest.mark.parametrize("groups", [GROUPS, None])
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_an_honest_claim_holds(tmp_path, words, method, groups):
    forger = forge(tmp_path, make(tmp_path / "registry", method=method, groups=groups), words)
    code, said = forger.claim()
    assert (code, "NOT CHECKED" in said, "FAILS" in said) == (0, False, False), said
    assert "holds       log10 p is at most -24" in said
    assert "holds       the root of the record is the root of the key's seeds" in said
    code, said = forger.checked(published=())
    assert (code, said.count("NOT CHECKED")) == (3, 1 if groups else 2), said


def test_the_list_tells_whether_others_could_mark_by_seeds_that_claims_showed(tmp_path, words):
    """By the secret all positions count, and whoever has a claim that shows seeds can choose words by them."""
    forger = forge(tmp_path, make(tmp_path / "registry", window=3), words)
    assert forger.claim()[0] == 0
    assert "holds       the list has no claim that shows seeds of this key" in forger.checked()[1]
    code, said = forger.checked(published=())
    assert (code, "NOT CHECKED that no claim showed seeds of this key" in said) == (3, True), said
    record = hashlib.sha256(forger.record).hexdigest()
    key, shown = (forger.key.commitment, GROUPS**2, forger.key.tokenizer.sha256, record), f"2:{OTHER}"
    forger.publish("2026-01-01", "green", *key, shown=shown)
    code, said = forger.checked()
    assert (code, "FAILS" in said, said.count("NOT CHECKED")) == (3, False, 1), said
    assert (
        "NOT CHECKED that nobody marked words with seeds that claims showed: the list has 2 claims of this key" in said
    )


def test_a_stranger_of_the_marked_group(forger):
    """Rule 1 passes for everybody of the group; rule 2 for the one whom the text was marked for."""
    forger.numbers["message"] = STRANGER
    code, said = forger.claim()
    assert (code, said.count("FAILS")) == (1, 1), said
    assert re.search(r"FAILS       on the \d+ steps that no other of its group reads", said)


def test_a_named_value_is_told_with_source_and_round(of_beacon):
    code, said = of_beacon.claim()
    assert (code, "FAILS" in said) == (3, False), said
    (line,) = (line for line in said.splitlines() if line.startswith("NOT CHECKED"))
    source, round_ = "'drand\\n\\x1b[2Jholds       everything'", "'4711 \\u202e'"
    assert line.startswith(f"NOT CHECKED that {VALUE} is what {source} published for {round_}")
    assert said.isascii()
    assert "\x1b" not in said


@pytest.mark.parametrize("named", [False, True])
def test_p_that_many_records_reach_is_told(tmp_path, without_beacon, with_beacon, words, named):
    """By the larger one of both rules: on the user steps alone, p of 60 words is above 1e-24."""
    forger = forge(tmp_path, with_beacon if named else without_beacon, words, 60)
    code, said = forger.claim()
    assert json.loads((forger.folder / "claim.json").read_text())["log10_p_global"] < check_claim.TRIED
    assert (code, "FAILS" in said) == (3, False), said
    why = "if the beacon's value is the round's" if named else "the record names no beacon. The maker of the key"
    (line,) = (line for line in said.splitlines() if "counts: it is above -24" in line)
    assert (line.startswith("NOT CHECKED that log10 p = -"), why in line) == (True, True)


def changed(record: bytes, **fields: object) -> bytes:
    return json.dumps(json.loads(record) | fields).encode()


OTHER = "ab" * 32
EDITS = {
    "root": OTHER,
    "commitment": OTHER,
    "tokenizer_sha256": OTHER,
    "label": "greenlist-v3;h=2;gamma=1/4;groups=50;seeds=9",
    "messages": 2499,
    "looks": {"as written/1": 0.5},
    "normal_form": {"name": "x", "sha256": OTHER},
    "earlier": [OTHER],
    "beacon": {"source": "a", "round": "b"},
}


@pytest.mark.parametrize("name", EDITS)
def test_a_record_that_was_edited_after_it_was_published(forger, name):
    """Another record gives another R: neither score nor list agree, though no number of the claim was changed."""
    forger.claim()
    (forger.folder / "record.json").write_bytes(changed(forger.record, **{name: EDITS[name]}))
    code, said = forger.checked()
    assert (code, "FAILS       the record's SHA-256 is the one on the list" in said) == (1, True), said
    assert "FAILS       score: " in said
    assert forger.checked(published=())[0] == 1


@pytest.mark.parametrize("name", EDITS)
def test_a_record_of_a_lie_from_which_all_numbers_follow(forger, words, name):
    """Whoever chooses the record after the text chooses R; the list has another one."""
    forger.record = changed(forger.record, **{name: EDITS[name]})
    forger.text = forger.mark_words(words, MESSAGE, 130, 1)
    code, said = forger.claim()
    assert (code, "FAILS       the record's SHA-256 is the one on the list" in said) == (1, True), said
    code, said = forger.checked(published=())
    # these agree with the key, and only the list tells that they were not announced
    assert code == (3 if name in ("looks", "normal_form", "earlier") else 1), said
    assert "NOT CHECKED that key and tokenizer were announced" in said


def test_an_announced_record_of_another_root(forger, words):
    forger.record = changed(forger.record, root=OTHER)
    forger.text = forger.mark_words(words, MESSAGE, 130, 1)
    digest = hashlib.sha256(forger.record).hexdigest()
    forger.publish("2026-01-01", "green", forger.key.commitment, GROUPS**2, forger.key.tokenizer.sha256, digest)
    code, said = forger.claim()
    assert (code, said.count("FAILS")) == (1, 1)
    assert "FAILS       the root of the record is the root of the key's seeds" in said


def test_a_claim_of_fewer_or_more_seeds(forger, words):
    """A label of other seeds is another key: its commitment was not announced, and the record's root is not its own."""
    for seeds in (4, 9):
        forger.label = f"greenlist-v3;h=2;gamma=1/4;groups=50;seeds={seeds}"
        forger.record = changed(forger.record, label=forger.label, commitment=forger.mark().commitment)
        forger.text = forger.mark_words(words, MESSAGE, 130, 1)
        code, said = forger.claim()
        assert (code, "FAILS       the list has the commitment" in said) == (1, True)
        code, said = forger.checked(published=())
        assert (code, "FAILS       the root of the record" in said) == (1, True)


def test_seeds_that_are_too_many_are_told(forger, monkeypatch):
    forger.claim()
    monkeypatch.setattr(check_claim, "MOST_SEEDS", 7)
    code, said = forger.checked()
    told = "NOT CHECKED that the root of the record is the root of the key's seeds: they are 2^8"
    assert (code, told in said) == (3, True)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b"3",
        b'"record"',
        b"{",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b"1" * 1_000_000,
        b'{"version": ' + b"9" * 5_000 + b"}",
        b"[1e999999999]",
    ],
    ids=lambda raw: raw[:9].decode(errors="replace"),
)
def test_a_record_that_is_none_ends_in_a_sentence(forger, raw):
    forger.claim()
    (forger.folder / "record.json").write_bytes(raw)
    code, said = forger.checked()
    assert (code, "FAILS       this cannot be read" in said, "what this file never checks" in said) == (1, True, True)
    assert len(said) < 10_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 2),
        ("version", 3.0),
        ("version", True),
        ("label", ["greenlist"]),
        ("label", "greenlist-v3;h=2;gamma=1/4;groups=50;seeds=8\n"),
        ("label", "greenlist-v3;h=2;gamma=1/4;groups=50;seeds=\u0668"),
        ("root", OTHER.upper()),
        ("root", None),
        ("root", OTHER[:-2] + "\u0661\u0661"),
        ("commitment", "0x" + OTHER[2:]),
        ("messages", "2500"),
        ("messages", 2500.0),
        ("messages", 10**19),
        ("messages", 0),
        ("looks", []),
        ("looks", {"a": 0.7, "b": 0.7}),
        ("looks", {"a": math.nan}),
        ("looks", {"a": -1}),
        ("normal_form", "NFC"),
        ("normal_form", {"name": "x"}),
        ("beacon", "drand"),
        ("beacon", {"source": "", "round": "1"}),
        ("beacon", {"source": "a" * 501, "round": "1"}),
        ("beacon", {"source": "a", "round": 1}),
        ("beacon", {"source": "a", "round": "1", "value": VALUE}),
        ("earlier", [OTHER, OTHER]),
        ("earlier", {OTHER: 1}),
        ("earlier", [[OTHER]]),
        ("more", 1),
    ],
)
def test_fields_that_no_record_has(forger, name, value):
    forger.record = changed(forger.record, **{name: value})
    code, said = forger.claim()
    assert (code, "FAILS       this cannot be read" in said, "record.json: " in said) == (1, True, True), said


def test_two_readings_of_a_record_are_refused(forger):
    for twice in (b'{"root": "' + OTHER.encode() + b'", ', b'{"\\u0072oot": "' + OTHER.encode() + b'", '):
        forger.claim()
        (forger.folder / "record.json").write_bytes(forger.record.replace(b"{", twice, 1))
        code, said = forger.checked()
        assert (code, "record.json: a field occurs twice" in said) == (1, True)
    (forger.folder / "record.json").write_bytes(b"\xef\xbb\xbf" + forger.record)
    assert forger.checked()[0] == 1
    (forger.folder / "record.json").write_bytes(forger.record + b"\n")
    assert "FAILS       the record's SHA-256 is the one on the list" in forger.checked()[1]


def test_a_record_that_is_missing_or_too_large(forger):
    forger.claim()
    (forger.folder / "record.json").write_bytes(b" " * check_claim.LARGEST_RECORD + forger.record)
    assert "record.json has more than" in forger.checked()[1]
    (forger.folder / "record.json").unlink()
    code, said = forger.checked()
    assert (code, "there is no record.json" in said) == (1, True)


OTHER_VALUES = {
    "null": None,
    "empty": "",
    "longer": VALUE + "00",
    "capitals": VALUE.upper(),
    "odd": VALUE[:-1],
    "blank": f" {VALUE}",
    "line end": f"{VALUE}\n",
    "digits": "\u0665\u0662",
    "number": 7,
    "list": [],
    "object": {},
    "true": True,
    "a megabyte": "00" * 500_000,
}


@pytest.mark.parametrize("kind", OTHER_VALUES)
def test_another_value_of_the_beacon(of_beacon, kind):
    began = time.process_time()
    code, said = of_beacon.claim(beacon_value=OTHER_VALUES[kind])
    assert (code, len(said) < 10_000) == (1, True)
    if kind != "longer":
        assert re.search("FAILS       (beacon_value is null, or|the claim has a value of a beacon where)", said)
    else:
        assert "FAILS       score: " in said
    assert time.process_time() - began < 20


def test_a_value_that_is_chosen_after_the_text_is_told(of_beacon, words):
    """Whoever sets the value can choose R, and all numbers follow: only the source says which value it gave."""
    of_beacon.value = "00"
    of_beacon.text = of_beacon.mark_words(words, MESSAGE, 130, 1)
    code, said = of_beacon.claim()
    assert (code, "NOT CHECKED that 00 is what 'drand" in said) == (3, True)


@pytest.mark.parametrize("value", [VALUE, "", 0])
def test_a_value_where_the_record_names_no_beacon(forger, value):
    forger.value = value if isinstance(value, str) else None
    code, said = forger.claim(beacon_value=value)
    assert (code, "FAILS       the claim has a value of a beacon where the record names one" in said) == (1, True), said


def test_keys_of_version_1_have_no_record(registry, marked, tmp_path, forger):
    other = tmp_path / "other"
    other.mkdir()
    first = Forger(other / "case", registry, marked(7, 80, 1), 7)
    assert first.claim()[0] == 0
    for more, code in (({"beacon_value": VALUE}, 1), ({"beacon_value": ""}, 1), ({}, 0)):
        assert first.claim(**more)[0] == code
    (first.folder / "record.json").write_bytes(forger.record)
    code, said = first.checked()
    assert (code, "FAILS       a key of this version has no record and no beacon" in said) == (1, True)


def test_a_list_that_announces_another_record_or_none(forger):
    forger.claim()
    announced = forger.key.commitment, GROUPS**2, forger.key.tokenizer.sha256
    for record in (OTHER, "-"):
        forger.publish("2026-01-01", "green", *announced, record)
        code, said = forger.checked()
        assert (code, "FAILS       the record's SHA-256 is the one on the list" in said) == (1, True)


def test_every_record_that_is_known_of_counts(forger, words):
    """Those that the record names as earlier ones, and those of the list; each once."""
    earlier = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(10)]
    forger.record = changed(forger.record, earlier=earlier)
    forger.text = forger.mark_words(words, MESSAGE, 130, 1)
    own = hashlib.sha256(forger.record).hexdigest()
    head, lines = "0" * 64, []
    for number, record in enumerate((earlier[0], OTHER, own), start=1):
        commitment = forger.key.commitment if record == own else record
        of_key = commitment, GROUPS**2, forger.key.tokenizer.sha256
        body = " ".join(map(str, (number, "2026-01-01", "green", *of_key, record, "-", "-")))
        head = hashlib.sha256(f"brickscan commitments 5\n{head}\n{body}".encode()).hexdigest()
        lines.append(f"{body} {head}\n")
    forger.listed.write_text("".join(lines))
    code, said = forger.claim()
    assert (code, "NOT CHECKED why correction = 4.0: 12 keys were announced by then" in said) == (3, True), said
    assert "4.0: 11 keys were announced by then" in forger.checked(published=())[1]
    forger.numbers["correction"] = 12
    assert forger.claim()[0] == 0


def test_messages_of_claim_and_record(tmp_path, words, forger):
    """With groups all three agree; without, messages may have grown since the record, and never shrink."""
    forger.numbers["messages"] = 2000
    code, said = forger.claim()
    assert (code, "messages of so many groups of as many users: 2500, claimed 2000" in said) == (1, True)
    plain = tmp_path / "plain"
    plain.mkdir()
    grown = forge(plain, make(plain / "registry", groups=None), words)
    for messages, code in ((1999, 1), (2000, 0), (4000, 0)):
        grown.numbers["messages"] = messages
        found, said = grown.claim()
        assert (found, "FAILS       messages of the record: 2000" in said) == (code, code == 1), said


def test_repeats_are_told_by_both_nonces_and_the_token():
    mark = Mark("gumbel-v3;h=2;seeds=8", bytes(32), bytes(32))
    assert mark.place((1, 2, 3)) == (*mark.nonces((1, 2)), 3)
    assert len({*mark.nonces((1, 2)), *mark.nonces((2, 1))}) == 4


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("beacon", [None, BEACON])
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_a_scan_under_version_3_has_a_claim(tmp_path, words, method, beacon):
    """What is marked by the script's own arithmetic is found by the scan, and what that writes the script holds."""
    registry = make(tmp_path / "registry", beacon, method)
    forger = forge(tmp_path, registry, words)
    night = Night(tmp_path, registry)
    night.write("a", [forger.text])
    night.scan()
    case = tmp_path / "claim"
    code, out, err = call("replay", night.config, "a:0", "--proof", case)
    assert code == 0, out + err
    assert (case / "record.json").read_bytes() == forger.record
    claim = json.loads((case / "claim.json").read_text())
    assert (claim["message"], claim["beacon_value"]) == (MESSAGE, VALUE if beacon else None)
    head = forger.listed.read_text().split()[-1]
    code, said = check(case, forger.secret, forger.listed, head, library=True)
    assert (code, "FAILS" in said, said.count("NOT CHECKED")) == ((3, False, 1) if beacon else (0, False, 0)), said
    held = forger.secret.read_text().strip()
    assert [path.name for path in case.iterdir() if held in path.read_text()] == []
