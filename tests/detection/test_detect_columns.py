"""Verdicts are assembled by column, and equal the tables that are assembled row by row, the obvious way."""

import hashlib
import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from scanner.detection import stored_texts
from scanner.detection.attribution import BatchOrigin, FileHistory, OpenedKey
from scanner.detection.detector import Detector, TextForms
from scanner.detection.rules import Rules
from scanner.detection.sketches import sketch
from scanner.error_shares import AS_WRITTEN
from scanner.input.documents import read_text
from scanner.registry import Holders
from schemas.tables import DOCUMENTS, QUARANTINE, VERDICTS
from tests.support.opened import opened
from tests.support.two_keys import message_of

ORIGIN = BatchOrigin("scan", "shard", "/in/a.parquet")
HOUR = timedelta(hours=1)


def row_by_row(detector, documents, known):
    """The verdict of each document on its own, from the scores of the batch."""
    verdicts, refused, texts = [], [], []
    for row in documents.to_pylist():
        raw = row.pop("text")
        text, reason, detail = read_text(raw)
        if text is None:
            refused.append({**row, **ORIGIN._asdict(), "reason": reason, "detail": detail})
        else:
            texts.append(text)
            digest = hashlib.sha256(raw).digest()
            verdicts.append({**row, **ORIGIN._asdict(), "text_sha256": digest, "reason": reason or None})
    tokens = detector._tokenise(texts)
    found = detector._score(tokens, {}, TextForms(AS_WRITTEN, np.zeros(len(texts), np.bool_))).findings
    for i, row in enumerate(verdicts):
        of_text = known.texts.get(row["text_sha256"])
        times = [row.pop("created_at_latest") or known.written, known.first_scanned, of_text, known.began]
        row.update(verdict(detector, tokens, found, i, min(time for time in times if time)))
        if row["first_seen_at"] == known.began and row["naming"] != "held_later":
            row["first_seen_at"] = None
        if row["reason"] and row["status"] == "scored":
            row["status"] = "scored_in_part"
    now = datetime.now(UTC)
    return (
        pa.RecordBatch.from_pylist([{**row, "scanned_at": now} for row in verdicts], VERDICTS),
        pa.RecordBatch.from_pylist([{**row, "scanned_at": now} for row in refused], QUARANTINE),
    )


def verdict(detector, tokens, found, i, at):
    scoring = [k for k, said in enumerate(found) if said.message[i, 0] >= 0]
    if scoring:
        chosen = min(scoring, key=lambda k: (found[k].log10_p_global[i, 0], k))
    else:
        chosen = max(range(len(found)), key=lambda k: (found[k].scored[i], -k))
    key, said, message = detector._keys[chosen].key, found[chosen], int(found[chosen].message[i, 0])
    threshold = math.log10(detector._rules.false_positive_rate)
    passing = [
        (k != chosen, float(p), k, test.key, int(one.message[i, c]))
        for k, (test, one) in enumerate(zip(detector._keys, found, strict=True))
        for c, p in enumerate(one.log10_p_global[i])
        if float(p) <= threshold
    ]
    who = []
    for *_, own, held in sorted(passing, key=lambda one: one[:3]):
        naming = detector._holders.naming(own.key_id, held, at)
        if own.messages == 1 and naming.naming == "unallocated":
            naming = naming._replace(naming="everybody")
        who.append(naming)
    users = {naming.user_id for naming in who}
    told = len(who) == 1 or (len(users) == 1 and None not in users)
    named, entries = who[0] if told else ("ambiguous" if passing else "none", None, None), []
    for (_, p, _, own, held), naming in zip(sorted(passing, key=lambda one: one[:3]), who, strict=True):
        about = {"user_id": naming.user_id, "naming": naming.naming}
        entries.append({"key_id": own.key_id, "message": held, "log10_p_global": p, **about})
    of_text = tokens[key.tokenizer.sha256]
    ids = of_text.ids[of_text.offsets[i] : of_text.offsets[i + 1]]
    second, second_global = float(said.log10_p[i, 1]), float(said.log10_p_global[i, 1])
    return {
        "status": "too_short" if message < 0 else "scored",
        "tokens": int(np.diff(tokens[key.tokenizer.sha256].offsets)[i]),
        "scored": int(said.scored[i]),
        "key_id": key.key_id,
        "message": None if message < 0 else message,
        **dict(zip(("naming", "user_id", "held_since"), named, strict=True)),
        "first_seen_at": at if told else None,
        "score": float(said.score[i, 0]),
        "log10_p": 0.0 if message < 0 else float(said.log10_p[i, 0]),
        "log10_p_global": 0.0 if message < 0 else float(said.log10_p_global[i, 0]),
        "runner_up_log10_p": None if math.isnan(second) else second,
        "runner_up_log10_p_global": None if math.isnan(second) else second_global,
        "messages_tested": key.messages,
        "correction": len(detector._keys),
        "tests": None,
        "flagged": bool(passing),
        "basis": "key",
        "p_rank": None,
        "proof": None,
        "named": entries[:1] if told else None,
        "further_messages": (entries[1:] or None) if told else None,
        "variant": None,
        "sketch": sketch(ids, detector._keys[chosen].watermark.rule.context) if passing else None,
        "look": None,
        "canary": None,
        "shown": 0,
    }


@pytest.fixture(scope="module")
def keys(registry):
    found = opened(registry)
    one = found[0].key.model_copy(update={"messages": 1})
    return [*found, OpenedKey(one, found[0].watermark, found[0].tokenizer)]


@pytest.mark.seconds
@pytest.mark.parametrize("rate", [1e-6, 0.3])
@pytest.mark.parametrize("under_test", [[0], [2], [0, 1], [2, 1, 0], [0, 0, 2]])
def test_whole_tables(registry, keys, marked, plain, rate, under_test, monkeypatch):
    monkeypatch.setattr(stored_texts, "FEW_BYTES", 500)  # so that a batch is worked on in a dozen parts
    alice, bob = (message_of(registry, "green", user) for user in ("alice", "bob"))
    texts = [marked(alice, 60, 1), marked(bob, 60, 2), marked(39, 60, 3), marked(alice, 80, 4) + marked(bob, 80, 5)]
    texts += ["", "a", None, b"\xff\xfe", b"a \xed\xa0\x80", "<s>" * 9, "\0" * 40]
    texts += [b"\xff" + marked(alice, 60, 6).encode(), b"\xed\xa0\x80" + plain(40, 1).encode()]
    texts += [plain(length, length) for length in np.random.default_rng(1).integers(1, 60, 60)]
    documents = pa.RecordBatch.from_pylist(
        [
            {
                "row": 7 + i,
                "doc_id": f"d{i}" if i % 3 else None,
                "text": text.encode() if isinstance(text, str) else text,
                "account_id": f"a{i % 5}" if i % 2 else None,
                **dict.fromkeys(
                    ("created_at", "created_at_latest"),
                    datetime(2020 + 15 * (i % 2), 1, 1, tzinfo=UTC) if i % 4 else None,
                ),
            }
            for i, text in enumerate(texts)
        ],
        DOCUMENTS,
    )
    detector = Detector(
        [keys[k] for k in under_test],
        Holders.load(registry, ["green", "gum"]),
        Rules(rate, len(under_test)),
    )
    now = datetime.now(UTC)
    known = FileHistory(now, {hashlib.sha256(texts[1].encode()).digest(): now - HOUR}, None, now - 2 * HOUR)
    unknown = FileHistory(now, {}, None, None)
    parts = [(documents.slice(*part), how) for part in ((0,), (5, 30), (6, 3), (0, 0)) for how in (known, unknown)]
    for batch, how in [*parts, (documents, FileHistory(now, {}, now - HOUR, None))]:
        tables = detector.score_batch(batch, ORIGIN, None, how)[:2], row_by_row(detector, batch, how)
        for found, wanted in zip(*tables, strict=True):
            found.validate(full=True)
            assert found.schema == wanted.schema
            unlike = [name for name in found.schema.names if not found[name].equals(wanted[name])]
            assert set(unlike) <= {"scanned_at"}, "columns that the plain rows of this test say otherwise, or lack"
