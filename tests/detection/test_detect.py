import hashlib
import math
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import polars as pl
import pyarrow as pa
import pytest

from scanner.detection.attribution import BatchOrigin, OpenedKey
from scanner.detection.detector import Detector
from scanner.detection.rules import Rules
from scanner.input import documents
from scanner.input.documents import read_text
from scanner.registry import Holders, list_users
from schemas.tables import DOCUMENTS, QUARANTINE, VERDICTS
from schemas.words import Naming
from tests import reference
from tests.support.opened import opened
from tests.support.two_keys import MESSAGES, message_of

ORIGIN = BatchOrigin("scan", "shard", "/in/a.parquet")
RATE = 1e-6


@pytest.fixture(scope="module")
def keys(registry) -> list[OpenedKey]:
    return opened(registry)


@pytest.fixture(scope="module")
def detector(registry, keys):
    def make(under_test=None, rate=RATE, dedup="ngram", min_scored=16) -> Detector:
        holders = Holders.load(registry, ["green", "gum"])
        scored = under_test or keys
        return Detector(scored, holders, Rules(rate, len(scored), dedup=dedup, min_scored=min_scored))

    return make


def batch(texts, created_at=None) -> pa.RecordBatch:
    times = dict.fromkeys(("created_at", "created_at_latest"), created_at)
    rows = [
        {"row": i, "doc_id": f"d{i}", "text": t.encode() if isinstance(t, str) else t, **times}
        for i, t in enumerate(texts)
    ]
    return pa.RecordBatch.from_pylist(rows, DOCUMENTS)


def verdicts(detector, texts, created_at=None) -> list[dict]:
    scored, refused, *_ = detector.score_batch(batch(texts, created_at), ORIGIN)
    assert scored.schema == VERDICTS
    assert refused.schema == QUARANTINE
    assert len(scored) + len(refused) == len(texts)
    scored.validate(full=True)
    rows = scored.to_pylist()
    assert all(row["naming"] in set(Naming) for row in rows)
    assert all(row["flagged"] == (row["log10_p_global"] <= math.log10(RATE)) for row in rows)
    return rows


@pytest.mark.seconds
def test_marked_text_names_its_user(detector, marked, plain, registry):
    alice, bob = (message_of(registry, "green", user) for user in ("alice", "bob"))
    texts = [marked(alice, 60, 1), plain(60, 2), marked(bob, 60, 3)]
    rows = verdicts(detector(), texts)
    assert [(row["flagged"], row["naming"], row["user_id"]) for row in rows] == [
        (True, "named", "alice"),
        (False, "none", None),
        (True, "named", "bob"),
    ]
    for row, text in zip(rows, texts, strict=True):
        assert row["text_sha256"] == hashlib.sha256(text.encode()).digest()
        assert (row["scan_id"], row["shard_id"], row["path"]) == ORIGIN
        assert row["status"] == "scored"
    assert [row["message"] for row in rows[::2]] == [alice, bob]
    assert rows[0]["tokens"] == 60
    assert rows[0]["scored"] <= 58
    assert rows[0]["messages_tested"] == MESSAGES["green"]
    assert rows[0]["correction"] == 2


@pytest.mark.seconds
def test_the_numbers_are_those_of_the_plain_reference(detector, keys, marked, registry):
    """Against the slow implementation, which shares no code: each message's score, the best two, p, corrections."""
    small = [
        OpenedKey(keys[0].key.model_copy(update={"messages": 8}), keys[0].watermark, keys[0].tokenizer),
        keys[1],
    ]
    text = marked(5, 24, 4)
    (row,) = verdicts(detector(small), [text])
    secret = bytes.fromhex((registry / "secrets" / "green.key").read_text())
    gamma = Fraction(1, 4)
    ids = small[0].tokenizer.encode([text]).ids.tolist()
    sub_keys = reference.sub_keys(secret, reference.label("greenlist", 2, gamma))
    places = reference.scored_positions(ids, 2, "ngram")
    scores = [
        sum(
            reference.is_green(sub_keys, reference.window_nonce(sub_keys, ids[t - 2 : t]), ids[t] + m, gamma)
            for t in places
        )
        for m in range(8)
    ]
    assert row["message"] == scores.index(max(scores)) == 5
    assert row["score"] == max(scores)
    second = max(score for m, score in enumerate(scores) if m != 5)
    log10_p = [float(reference.log10_greenlist(score, len(places), gamma)) for score in (max(scores), second)]
    assert row["log10_p"] == pytest.approx(log10_p[0], rel=1e-9)
    assert row["runner_up_log10_p"] == pytest.approx(log10_p[1], rel=1e-9)
    assert row["log10_p_global"] == pytest.approx(log10_p[0] + math.log10(8 * 2), rel=1e-6)


def test_texts_that_can_be_read_in_part_are_scored_as_what_is_left(detector, marked, plain, registry, monkeypatch):
    """The verdict of the readable part, posted by itself, differs in status, reason and digest alone."""
    monkeypatch.setattr(documents, "MAX_TEXT_BYTES", 400)
    alice = marked(message_of(registry, "green", "alice"), 60, 1).encode()
    whole, other = alice[:400], plain(40, 0).encode()
    stored = [whole + b"x", b"\xff" + alice[:300], other + b"\xed\xa0\x80", other, b"ab\xc3", None]
    left = [whole, "\ufffd".encode() + alice[:300], other + 3 * "\ufffd".encode(), other, "ab\ufffd".encode(), None]
    found, wanted = verdicts(detector(), stored), verdicts(detector(), left)
    assert [(row["status"], row["reason"]) for row in found] == [
        ("scored_in_part", "too_long"),
        ("scored_in_part", "invalid_utf8"),
        ("scored_in_part", "surrogates"),
        ("scored", None),
        ("too_short", "invalid_utf8"),
    ]
    assert [row["text_sha256"] for row in found] == [hashlib.sha256(text).digest() for text in stored if text]
    assert [row["user_id"] for row in found] == ["alice", "alice", None, None, None]
    for row, part in zip(found, wanted, strict=True):
        same = {"status": part["status"], "reason": None, "text_sha256": part["text_sha256"]}
        assert row | same | {"scanned_at": None} == part | {"scanned_at": None}


def test_a_document_without_a_text_is_in_quarantine_with_its_account(detector, plain):
    documents = batch([None, plain(40, 0), None])
    accounts = pa.array(["eve", "bob", None])
    documents = documents.set_column(documents.schema.get_field_index("account_id"), "account_id", accounts)
    _, refused, *_ = detector().score_batch(documents, ORIGIN)
    names = ("row", "doc_id", "account_id", "reason", "text_sha256")
    assert [tuple(row[name] for name in names) for row in refused.to_pylist()] == [
        (0, "d0", "eve", "null_text", None),
        (2, "d2", None, "null_text", None),
    ]


def test_a_batch_of_nothing_but_faults_and_a_batch_of_nothing(detector):
    scored, refused, *_ = detector().score_batch(batch([None, None]), ORIGIN)
    assert (len(scored), len(refused)) == (0, 2)
    scored, refused, *_ = detector().score_batch(batch([]), ORIGIN)
    assert (len(scored), len(refused)) == (0, 0)


def test_nul_and_control_tokens_are_text(detector, keys, plain):
    gum = detector(keys[1:])  # one token a byte
    texts = ["\0".join(plain(20, 1)), "<s>" + plain(20, 2) + "<s>"]
    rows = verdicts(gum, texts)
    assert [(row["status"], row["tokens"]) for row in rows] == [("scored", len(text)) for text in texts]


def test_too_short(detector, plain):
    rows = verdicts(detector(), ["", "a", "one two three"])
    for row in rows:
        assert row["status"] == "too_short"
        assert (row["log10_p"], row["log10_p_global"], row["score"]) == (0, 0, 0)
        assert (row["message"], row["user_id"], row["naming"], row["flagged"]) == (None, None, "none", False)
        assert row["runner_up_log10_p"] is None
    assert (rows[0]["key_id"], rows[0]["tokens"], rows[0]["scored"]) == ("green", 0, 0)
    # the row shows the key with the most scored positions, here the one with a token a byte
    assert (rows[2]["key_id"], rows[2]["tokens"], rows[2]["scored"]) == ("gum", 13, 9)


def test_a_document_that_is_too_short_for_one_key_is_scored_by_the_other(detector, keys):
    text = "fifteen bytes or more"
    (both,) = verdicts(detector(), [text])
    (alone,) = verdicts(detector([keys[1]]), [text])
    assert (both["status"], both["key_id"], both["correction"]) == ("scored", "gum", 2)
    assert both["log10_p"] == alone["log10_p"]
    assert both["log10_p_global"] > alone["log10_p_global"]  # p is corrected for the other key too


@pytest.mark.parametrize("dedup", ["ngram", "context", "none"])
def test_a_batch_is_its_documents_one_by_one(detector, marked, plain, dedup):
    texts = [marked(7, 30, 1), "", plain(50, 1), None, "<s>", marked(9, 40, 2), plain(5, 2) * 3]
    one = detector(dedup=dedup)
    together = one.score_batch(batch(texts), ORIGIN)[0].drop_columns(["row", "scanned_at", "doc_id"]).to_pylist()
    apart = [
        row
        for text in texts
        for row in one.score_batch(batch([text]), ORIGIN)[0].drop_columns(["row", "scanned_at", "doc_id"]).to_pylist()
    ]
    assert together == apart


def test_each_text_is_tokenised_once_per_tokenizer(detector, keys, plain):
    calls = []

    class Counting:
        def __init__(self, inner):
            self.inner, self.vocab_size = inner, inner.vocab_size

        def encode(self, texts):
            calls.append(len(texts))
            return self.inner.encode(texts)

    twice = [OpenedKey(key.key, key.watermark, Counting(key.tokenizer)) for key in [*keys, *keys]]
    verdicts(detector(twice), [plain(30, 1), plain(30, 2)])
    assert calls == [2, 2]


def test_a_user_is_named_only_for_documents_after_the_allocation(detector, marked, registry):
    allocated = list_users(registry, ["green"]).filter(pl.col("user_id") == "alice")["allocated_at"][0]
    text = marked(message_of(registry, "green", "alice"), 60, 1)
    (after,) = verdicts(detector(), [text], allocated + timedelta(seconds=1))
    (before,) = verdicts(detector(), [text], allocated - timedelta(seconds=1))
    assert (after["naming"], after["user_id"]) == ("named", "alice")
    assert (before["naming"], before["user_id"], before["flagged"]) == ("held_later", None, True)
    assert (after["held_since"], before["held_since"]) == (allocated, allocated)
    assert before["first_seen_at"] == allocated - timedelta(seconds=1)


def test_messages_that_no_user_holds(detector, marked, registry):
    held = set(list_users(registry, ["green"])["message"].to_list())
    free = next(m for m in range(1, 100) if m not in held and m % 20 != 19)
    rows = verdicts(detector(), [marked(39, 60, 1), marked(free, 60, 2)])
    assert [(row["flagged"], row["naming"], row["user_id"]) for row in rows] == [
        (True, "reserved", None),
        (True, "unallocated", None),
    ]


def test_text_marked_for_two_is_ambiguous(detector, marked, registry):
    alice, bob = (message_of(registry, "green", user) for user in ("alice", "bob"))
    (row,) = verdicts(detector(), [marked(alice, 80, 1) + marked(bob, 80, 2)])
    assert (row["flagged"], row["naming"], row["user_id"]) == (True, "ambiguous", None)
    assert row["message"] in (alice, bob)


def test_one_message_has_no_runner_up(detector, keys, plain):
    alone = [OpenedKey(keys[0].key.model_copy(update={"messages": 1}), keys[0].watermark, keys[0].tokenizer)]
    (row,) = verdicts(detector(alone), [plain(60, 1)])
    assert (row["message"], row["runner_up_log10_p"], row["messages_tested"]) == (0, None, 1)
    assert row["log10_p"] == pytest.approx(row["log10_p_global"], rel=1e-12)


def test_no_text_is_flagged_more_often_than_the_rate_says(detector, plain):
    """400 plain texts at a rate of 0.3: if the corrected p is valid, flags over keys are Binomial(400, ≤ 0.3)."""
    one = detector(rate=0.3)
    scored, *_ = one.score_batch(batch([plain(40, seed) for seed in range(400)]), ORIGIN)
    p = 10 ** scored["log10_p_global"].to_numpy()
    for rate in (0.05, 0.3, 0.7):
        assert (p <= rate).mean() <= rate + 4 * math.sqrt(rate * (1 - rate) / 400)
    assert scored["flagged"].true_count == (p <= 0.3).sum()
    assert (p <= 0.3).any()


def test_reading_a_text():
    assert read_text("zwölf".encode()) == ("zwölf", "", "")
    assert read_text(b"") == ("", "", "")
    assert read_text(None)[1] == "null_text"


def test_rows_carry_the_time_of_scanning(detector, plain):
    before = datetime.now(UTC)
    (row,) = verdicts(detector(), [plain(40, 0)])
    assert before <= row["scanned_at"] <= datetime.now(UTC)
