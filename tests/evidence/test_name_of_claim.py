"""The record of a name in a claim: what the script says of it, and what it makes of records that are forged."""

import hashlib
import json
import re
import struct

import pytest

from scanner.evidence.check_claim import corrected_p, root_of_log
from tests.support.shown_claims import ShownForger

DAY = 86_400_000_000
GIVEN = 20_000 * DAY
"""2024-10-04, in microseconds."""


class Named:
    """A claim whose message was given to alice, the second of three users, and the list that has them."""

    def __init__(self, forger: ShownForger) -> None:
        self.forger = forger
        self.name = {"at": GIVEN, "key_id": "green", "salt": "5a" * 16, "seq": 7, "user_id": "alice", "place": 1}
        self.name |= {"events": 3, "text_at": GIVEN + DAY}
        forger.claim()

    def leaf(self, **changed: object) -> bytes:
        name = self.name | {"message": self.forger.message} | changed
        what = hashlib.sha256(b"5:greenallocated").digest()
        seal = hashlib.sha256(bytes.fromhex(name["salt"]) + b"\1" + name["user_id"].encode()).digest()
        numbers = struct.pack(">qqq", name["seq"], name["message"], name["at"])
        return hashlib.sha256(b"\0" + numbers + what + seal).digest()

    def leaves(self) -> list[bytes]:
        others = (hashlib.sha256(other).digest() for other in (b"the first", b"the last"))
        first, last = others
        return [first, self.leaf(), last]

    def root(self) -> str:
        first, own, last = self.leaves()
        pair = hashlib.sha256(b"\1" + first + own).digest()
        return hashlib.sha256(b"\1" + pair + last).hexdigest()

    def publish(self, *dealt: str):
        """Write a list whose lines name these roots, and return it with its heads."""
        head = hashlib.sha256(self.forger.held("events.jsonl").rstrip("\n").encode()).hexdigest()
        of_key = self.forger.record_sha256(), f"1:{head}"
        path, _ = self.forger.publish(*((*of_key, one) for one in dealt))
        return path, [line.split()[-1] for line in path.read_text().splitlines()]

    def write(self, **changed: object) -> None:
        first, _, last = self.leaves()
        name = self.name | {"path": [first.hex(), last.hex()]} | changed
        self.forger.write("name.json", json.dumps(name))


@pytest.fixture
def named(tmp_path, words) -> Named:
    forger = ShownForger(tmp_path / "case")
    forger.text = forger.mark_words(words, 130)
    return Named(forger)


def assert_fails(answer: tuple[int, str], why: str) -> None:
    code, said = answer
    assert (code, re.search(f"^FAILS       .*{why}", said, re.MULTILINE) is not None) == (1, True), said


def test_a_list_at_head_has_the_record(named):
    named.write()
    path, heads = named.publish("-", f"3:{named.root()}")
    code, said = named.forger.checked(path, heads[1])
    assert (code, "FAILS" in said, "NOT CHECKED" in said) == (0, False, False), said
    told = [line for line in said.splitlines() if line.startswith("holds       message 1203 was given to 'alice'")]
    assert "holds       by the claim's own dates the message was given on 2024-10-04 00:00:00 UTC, and the text" in said
    assert [line.split("'alice'")[1][:70].strip() for line in told] == [
        ": the list has its record on 2026-01-01, at or before HEAD, and so bef",
    ]


def test_a_text_of_the_last_year_that_has_a_time(named):
    """Scans read any later time as its last moment."""
    named.write(text_at=253_402_300_799_999_999)
    path, heads = named.publish("-", f"3:{named.root()}")
    code, said = named.forger.checked(path, heads[1])
    assert (code, "the text has been known since 9999-12-31 23:59:59 UTC" in said) == (0, True), said


def test_a_list_that_has_it_later_or_never(named):
    named.write()
    path, heads = named.publish("-", f"3:{named.root()}")
    code, said = named.forger.checked(path, heads[0])
    assert (code, "NOT CHECKED that message 1203 was given to 'alice' before HEAD was kept" in said) == (3, True), said
    assert "the list has its record on 2026-01-01, after HEAD; 2024-10-04 00:00:00 UTC is the platform's word" in said
    path, heads = named.publish("-")
    assert "no list that you named has its record" in named.forger.checked(path, heads[0])[1]
    assert "no list that you named has its record" in named.forger.checked()[1]
    named.write(events=None, path=[])
    code, said = named.forger.checked(path, heads[0])
    assert (code, "no list has a root with its record, and so it is the platform's word" in said) == (3, True), said


def test_a_claim_that_names_nobody_says_nothing_of_a_name(named):
    path, heads = named.publish("-")
    code, said = named.forger.checked(path, heads[0])
    assert (code, "was given to" in said) == (0, False), said


@pytest.mark.parametrize(
    "changed",
    [
        {"user_id": "mallory"},
        {"at": GIVEN - 1},
        {"salt": "00" * 16},
        {"seq": 8},
        {"place": 0},
        {"place": 2},
        {"path": []},
        {"path": ["ab" * 32]},
        {"path": ["ab" * 32] * 3},
    ],
)
def test_a_record_that_is_not_in_the_tree(named, changed):
    named.write(**changed)
    path, heads = named.publish(f"3:{named.root()}")
    assert_fails(named.forger.checked(path, heads[0]), "its record is one of the 3 that the list has a root of")


def test_a_message_of_another_claim(named):
    """The record of alice's own message stands in a claim about another one."""
    own = named.leaf()
    named.forger.message = 1204
    named.leaf = lambda: own
    named.write()
    named.forger.claim()
    path, heads = named.publish(f"3:{named.root()}")
    assert_fails(named.forger.checked(path, heads[0]), "its record is one of the 3")


def test_a_record_of_another_key_does_not_count(named):
    named.write(key_id="other")
    path, heads = named.publish(f"3:{named.root()}")
    assert "no list that you named has its record" in named.forger.checked(path, heads[0])[1]
    named.write()
    named.forger.publish(("-", "-", f"3:{named.root()}"), commitment="d0" * 32)
    _, said = named.forger.checked(path, path.read_text().split()[-1])
    assert "no list that you named has its record" in said


def test_an_undealt_message_that_was_dealt_after_the_text(named):
    named.write(text_at=GIVEN - 1)
    assert_fails(
        named.forger.checked(), "and the text has been known since 2024-10-03 23:59:59 UTC.*the message came first"
    )
    named.write(text_at=None)
    assert "the text has been known since" not in named.forger.checked()[1]


def test_no_line_holds_that_gives_a_message_to_somebody_who_is_on_no_list(named):
    named.write(user_id="mallory", key_id="other")
    path, heads = named.publish(f"3:{named.root()}")
    code, said = named.forger.checked(path, heads[0])
    assert (code, [line[:11] for line in said.splitlines() if "mallory" in line]) == (3, ["NOT CHECKED"]), said


@pytest.mark.parametrize(("events", "holds"), [(5000, True), (5001, False)])
def test_more_records_than_messages_can_have(named, events, holds):
    """Whoever gives every message to everybody, before any text, could name whom they like."""
    named.write(events=events)
    said = named.forger.checked()[1]
    assert f"{'holds' if holds else 'FAILS':11} {events} records of names: " in said, said


def test_a_claim_of_more_messages_than_the_list_has_allows_no_more_records(tmp_path, words):
    """Else whoever gives every message of a small key to everybody claims that the key has a thousand million."""
    forger = ShownForger(tmp_path / "case", groups=None)
    forger.text = forger.mark_words(words, 130)
    named, many = Named(forger), 2**31
    held = json.loads(forger.held("claim.json"))
    numbers = {f"{name}_global": corrected_p(held[name], many, held) for name in ("log10_p", "log10_p_user")}
    forger.claim(messages=many, **numbers)
    for events, code in ((4000, 0), (4001, 1), (10**9, 1)):
        path = [b"%032d" % number for number in range(40)]
        roots = ((path[:n], root_of_log(named.leaf(), 1, events, path[:n])) for n in range(40))
        way, root = next((nodes, root) for nodes, root in roots if root is not None)
        named.write(events=events, path=[node.hex() for node in way])
        published, heads = named.publish(f"{events}:{root.hex()}")
        answer = forger.checked(published, heads[0])
        assert (answer[0], f"{events} records of names: " in answer[1]) == (code, True), answer[1]


@pytest.mark.parametrize(
    "changed",
    [
        {"user_id": ""},
        {"user_id": 7},
        {"user_id": "a" * 501},
        {"at": True},
        {"at": -1},
        {"at": 2**58},
        {"seq": 1.0},
        {"place": 3},
        {"salt": "5A" * 16},
        {"salt": "5a" * 15},
        {"path": "ab" * 32},
        {"path": ["AB" * 32]},
        {"text_at": "2024"},
        {"more": 1},
    ],
)
def test_fields_that_no_record_has(named, changed):
    named.write(**changed)
    assert_fails(named.forger.checked(), "name.json: ")


def test_a_field_that_stands_twice(named):
    named.write()
    named.forger.write("name.json", named.forger.held("name.json").replace("{", '{"seq": 7, ', 1))
    assert_fails(named.forger.checked(), "name.json: a field occurs twice")


def test_a_name_cannot_write_lines_of_its_own(named):
    named.name["user_id"] = "alice\nholds       all of it"
    named.write()
    path, heads = named.publish(f"3:{named.root()}")
    code, said = named.forger.checked(path, heads[0])
    assert (code, [line for line in said.splitlines() if line.startswith("holds       all of it")]) == (0, []), said
