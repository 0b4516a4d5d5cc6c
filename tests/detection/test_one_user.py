"""One user under two keys, as while one key replaces another: the user is named once, with both messages."""

import hashlib
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from scanner.detection.attribution import BatchOrigin, NameColumns, NamedMessage, TextOutcomes, of_one_user
from scanner.detection.detector import Detector
from scanner.detection.open_plan import open_prover
from scanner.detection.rules import Rules
from scanner.registry import Holders, NamedUser, new_key, restore_users
from scanner.watermark.format import Basis
from scanner.watermark.rule import KeyFindings
from schemas.tables import DOCUMENTS, USER_EVENTS
from tests.support.opened import opened
from tests.support.two_keys import TOKENIZER, words_of_one_token
from tests.watermark.pairs import batch_tokens

GIVEN = datetime(2026, 1, 1, tzinfo=UTC)
GIVEN_LATER = GIVEN + timedelta(days=300)
MESSAGES = {("old", "alice"): 3, ("old", "bob"): 62, ("new", "alice"): 81, ("new", "bob"): 45}
FORMS = [
    ("greenlist", {"window": 2, "gamma": "1/4", "messages": 100}),
    ("gumbel", {"window": 2, "messages": 100}),
    ("greenlist-v3", {"seeds": 8, "window": 2, "gamma": "1/4", "groups": 20, "messages": 400}),
    ("gumbel-v3", {"seeds": 8, "window": 2, "messages": 100}),
]


@pytest.fixture(scope="module", params=FORMS, ids=lambda form: form[0])
def registry(request, tmp_path_factory):
    """A registry with keys `old` and `new`; alice and bob hold a message of each, and got that of `new` later."""
    folder = tmp_path_factory.mktemp("one-user") / "registry"
    (folder / "secrets").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    form, parameters = request.param
    for key_id in ("old", "new"):
        secret = folder / "secrets" / f"{key_id}.key"
        secret.write_text(hashlib.sha256(f"one user {key_id}".encode()).hexdigest())
        secret.chmod(0o600)
        new_key(folder, key_id, format=form, tokenizer=TOKENIZER, **parameters)
    events = [
        {
            "key_id": key,
            "message": m,
            "user_id": user,
            "event": "allocated",
            "at": GIVEN if key == "old" else GIVEN_LATER,
        }
        for (key, user), m in MESSAGES.items()
    ]
    restore_users(folder, pa.Table.from_pylist(events, USER_EVENTS))
    return folder


@pytest.fixture(scope="module")
def keys(registry):
    return opened(registry)


@pytest.fixture(scope="module")
def write(keys):
    """Writes marked text for a user under a key: each word is the best of 20 random ones."""
    words, marks = words_of_one_token(), {test.key.key_id: test.watermark for test in keys}

    def make(key_id: str, user: str, length: int = 110) -> str:
        mark, generator = marks[key_id], np.random.default_rng([len(user), ord(key_id[0])])
        chosen = generator.integers(len(words.words), size=2).tolist()
        while len(chosen) < length:
            drawn = generator.integers(len(words.words), size=20).tolist()
            tokens = batch_tokens([words.tokens[[*chosen[-2:], one]] for one in drawn])
            scores = mark.score(tokens, mark.rule.positions(tokens, "none"), MESSAGES[key_id, user])
            chosen.append(drawn[int(scores.argmax())])
        return "".join(" " + words.words[i] for i in chosen)

    return make


def verdict(registry, keys, text: str, at: datetime = GIVEN_LATER) -> dict:
    under = Detector(
        keys,
        Holders.load(registry, ["old", "new"]),
        rules := Rules(1e-6, 2),
        open_prover(registry, keys, rules),
    )
    row = {"row": 0, "doc_id": "d", "text": text.encode(), "created_at": at, "created_at_latest": at}
    found, *_ = under.score_batch(
        pa.RecordBatch.from_pylist([row], DOCUMENTS), BatchOrigin("scan", "shard", "a.parquet")
    )
    return found.to_pylist()[0]


def ids(entries: list[dict] | None) -> list[tuple]:
    return [(entry["key_id"], entry["message"], entry["user_id"], entry["naming"]) for entry in entries or []]


@pytest.mark.seconds
def test_text_under_both_keys_of_one_user_names_that_user_once(registry, keys, write):
    row = verdict(registry, keys, write("old", "alice") + write("new", "alice"))
    assert (row["flagged"], row["naming"], row["user_id"], row["proof"]) == (True, "named", "alice", "proved")
    both = [(key, MESSAGES[key, "alice"], "alice", "named") for key in ("old", "new")]
    assert sorted(ids(row["named"]) + ids(row["further_messages"])) == sorted(both)
    (first,) = ids(row["named"])
    assert first[:2] == (row["key_id"], row["message"])
    assert row["named"][0]["log10_p_global"] <= row["further_messages"][0]["log10_p_global"]
    assert row["held_since"] == (GIVEN if first[0] == "old" else GIVEN_LATER)


@pytest.mark.seconds
def test_text_under_the_keys_of_two_users_names_both_or_nobody(registry, keys, write):
    row = verdict(registry, keys, write("old", "alice") + write("new", "bob"))
    if keys[0].key.format.endswith("-v3"):
        assert {entry[2] for entry in ids(row["named"])} == {"alice", "bob"}
    else:
        assert (row["naming"], row["user_id"], row["named"]) == ("ambiguous", None, None)
    assert row["further_messages"] is None


@pytest.mark.seconds
def test_a_message_that_its_user_got_later_is_not_of_one_user(registry, keys, write):
    row = verdict(registry, keys, write("old", "alice") + write("new", "alice"), GIVEN)
    if keys[0].key.format.endswith("-v3"):
        assert {entry[3] for entry in ids(row["named"])} == {"named", "held_later"}
    else:
        assert (row["naming"], row["user_id"], row["named"]) == ("ambiguous", None, None)


ALICE = NamedUser("named", "alice", GIVEN)
NOBODY = NamedUser("unallocated", None, None)


@pytest.mark.parametrize(
    ("who", "one", "first_before", "again"),
    [
        ([ALICE, ALICE], True, 1, 1),
        ([ALICE, ALICE._replace(user_id="bob"), ALICE], False, 2, 1),
        ([ALICE, NOBODY], False, 2, 0),
        ([NOBODY, NOBODY], False, 2, 0),
        ([NamedUser("removed", None, GIVEN)] * 2, False, 2, 0),
    ],
)
def test_who_stands_once(who, one, first_before, again):
    entries = [NamedMessage(f"k{i}", i, -9.0 + i, each) for i, each in enumerate(who)]
    assert of_one_user(entries) == one
    names = NameColumns.of_nobody(np.array(["ambiguous", "none"], object))
    names.name_users(0, entries, None, GIVEN_LATER)
    assert [entry["key_id"] for entry in names.named[0]] == [f"k{i}" for i in range(len(who))][:first_before]
    assert len(names.further_messages[0] or []) == again
    assert names.naming.tolist() == [who[0].naming, "none"]
    assert names.named[1] is None


def test_nobody_is_looked_for_where_another_text_or_an_assumed_law_says_otherwise():
    p = np.full((4, 2), [-9.0, 0.0])
    proven = KeyFindings(
        np.zeros(4, np.int64),
        np.ones(4),
        np.zeros((4, 2), np.int64),
        *([np.zeros((4, 2))] * 4),
        independent=False,
        basis=Basis(256),
        p_rank=np.full((4, 2), np.nan),
    )
    proven = proven._replace(log10_p_global=p)
    assumed = proven._replace(basis=Basis(256, assumed=True), p_rank=np.full((4, 2), 0.001))
    assumed = assumed._replace(log10_p_global=np.where(np.arange(4)[:, None] == 3, p, 0.0))
    outcomes = TextOutcomes.of_stored_texts([proven, assumed], (1e-6, 1e-6))
    outcomes = outcomes._replace(conflicting=np.array([False, True, True, False]))
    named = [np.full((4, 2), [True, False]), np.zeros((4, 2), np.bool_)]
    outcomes = outcomes._replace(decision=outcomes.decision._replace(named=named))
    naming = ["ambiguous", "ambiguous", "named", "ambiguous"]
    assert [bool(outcomes.entries(i, each, lambda *_: ("k", ALICE))) for i, each in enumerate(naming)] == [
        True,
        False,
        True,
        False,
    ]
