"""Parts of documents: each is flagged and named by its own evidence, located in the text, and proved."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from scanner.detection import proving
from scanner.detection.attribution import BatchOrigin, BatchResult, DocumentSpan
from scanner.detection.detector import Detector
from scanner.detection.open_plan import open_prover
from scanner.detection.rules import Rules
from scanner.error_shares import ErrorShares
from scanner.looks.parts import rows, search
from scanner.looks.parts.rows import namings, quoted_shares
from scanner.registry import Holders
from scanner.text.quoting import parts_of
from scanner.watermark.parts import Parts, Span
from scanner.watermark.rule import corrected
from scanner.watermark.text_windows import count_windows
from schemas.tables import DOCUMENTS, SPANS
from schemas.words import Naming
from tests.support.opened import opened
from tests.support.two_keys import message_of

RATE = 1e-6
SPANS_TOO = ErrorShares(document=0.5, span=0.5)


@pytest.fixture(scope="module")
def look(registry) -> Callable[..., BatchResult]:
    under_test = opened(registry)
    holders = Holders.load(registry, [test.key.key_id for test in under_test])

    def scan(texts: list[str], weights: ErrorShares = SPANS_TOO) -> BatchResult:
        detector = Detector(
            under_test,
            holders,
            rules := Rules(RATE, 2, weights=weights),
            open_prover(registry, under_test, rules),
        )
        rows = [{"row": i, "doc_id": f"d{i}", "text": text.encode()} for i, text in enumerate(texts)]
        return detector.score_batch(pa.RecordBatch.from_pylist(rows, DOCUMENTS), BatchOrigin("scan", "shard", "p"))

    return scan


@pytest.fixture(scope="module")
def users(registry) -> dict[str, int]:
    return {user: message_of(registry, "green", user) for user in ("alice", "bob")}


def overlap(span: dict, begin: int, end: int) -> float:
    common = min(span["char_to"], end) - max(span["char_from"], begin)
    return common / (max(span["char_to"], end) - min(span["char_from"], begin))


@pytest.mark.seconds
def test_a_marked_part_of_a_long_text_is_found_where_it_stands(look, users, marked, plain):
    before, part, after = plain(900, 1), marked(users["alice"], 80, 2), plain(700, 3)
    looked = look([before + part + after, plain(1_500, 4)])
    of_whole = look([before + part + after], ErrorShares(document=0.5)).verdicts.to_pylist()
    assert [row["flagged"] for row in of_whole] == [False]
    first, second = looked.verdicts.to_pylist()
    assert (first["flagged"], first["look"], first["naming"], first["user_id"]) == (True, "span", "named", "alice")
    assert (second["flagged"], second["look"]) == (False, None)
    (span,) = looked.spans.to_pylist()
    assert looked.spans.schema == SPANS
    assert overlap(span, len(before), len(before) + len(part)) > 0.7
    assert (span["row"], span["doc_id"], span["key_id"], span["message"]) == (0, "d0", "green", users["alice"])
    assert (span["user_id"], span["naming"], span["proof"], span["quoted"]) == ("alice", "named", "proved", 0.0)
    p = span["log10_p"]
    in_document = corrected(p, 2_000 * int(count_windows(first["scored"])))
    assert span["log10_p_in_document"] == pytest.approx(in_document)
    assert span["log10_p_global"] == pytest.approx(corrected(in_document, 1, 4))  # of 2 keys, with half of the error
    told = ("key_id", "message", "score", "log10_p", "log10_p_global", "proof")
    assert [first[name] for name in told] == [span[name] for name in told]
    assert (first["messages_tested"], first["correction"], first["tokens"]) == (2_000, 4, 1_680)
    assert [one["user_id"] for one in first["named"]] == ["alice"]
    assert first["sketch"] is not None


def test_two_users_parts_are_two_names_each_by_its_own_evidence(look, users, marked, plain):
    """Under a key of version 1, under which the whole document names nobody."""
    parts = [marked(users["alice"], 150, 5), plain(60, 6), marked(users["bob"], 150, 7), plain(60, 8)]
    (of_whole,) = look(["".join(parts)], ErrorShares(document=0.5)).verdicts.to_pylist()
    assert (of_whole["naming"], of_whole["named"]) == ("ambiguous", None)
    looked = look(["".join(parts)])
    (row,) = looked.verdicts.to_pylist()
    assert (row["naming"], row["look"], row["proof"]) == ("named", "span", "proved")
    assert {one["user_id"] for one in row["named"]} == {"alice", "bob"}
    found = {span["user_id"]: span for span in looked.spans.to_pylist()}
    assert set(found) == {"alice", "bob"}
    begin = len(parts[0] + parts[1])
    assert overlap(found["alice"], 0, len(parts[0])) > 0.7
    assert overlap(found["bob"], begin, begin + len(parts[2])) > 0.7


def test_a_text_that_is_marked_throughout_keeps_its_verdict(look, users, marked):
    looked = look([marked(users["bob"], 200, 9)])
    (row,) = looked.verdicts.to_pylist()
    assert (row["look"], row["user_id"], row["proof"]) == (None, "bob", "proved")
    assert row["log10_p_global"] == pytest.approx(corrected(row["log10_p"], 2_000, 4))
    (span,) = looked.spans.to_pylist()
    assert overlap(span, 0, len(marked(users["bob"], 200, 9))) > 0.9


def test_a_marked_quotation_is_told_from_own_words(look, users, marked, plain):
    quoted = "".join(f">{marked(users['alice'], 40, seed)}\n" for seed in range(4))
    looked = look([plain(200, 10) + "\n\n" + quoted + "\n" + plain(400, 11)])
    assert [row["user_id"] for row in looked.verdicts.to_pylist()] == ["alice"]
    (span,) = looked.spans.to_pylist()
    assert span["quoted"] > 0.8


SEGMENTS = SPANS_TOO._replace(segments=True)


@pytest.mark.seconds
def test_a_marked_quotation_is_one_look_that_fits(look, users, marked, plain):
    """Also where windows are not tested; the proof counts the positions whose tokens begin in the quotation."""
    quotation = "".join(f"> {marked(users['alice'], 40, seed)}\n" for seed in range(3))
    text = f"{plain(300, 10)}\n\n{plain(200, 12)}\n{quotation}\n{plain(400, 11)}"
    place = text.index(quotation), text.index(quotation) + len(quotation.rstrip("\n"))
    alone = look([text], SEGMENTS._replace(windows=False))
    (row,), (span,) = alone.verdicts.to_pylist(), alone.spans.to_pylist()
    assert (row["user_id"], row["look"], row["proof"]) == ("alice", "span", "proved")
    assert (span["form"], span["proof"]) == ("quotation", "proved")
    assert span["quoted"] > 0.99  # its last token may hold blank lines after it
    assert overlap(span, *place) > 0.98
    assert span["log10_p_in_document"] == pytest.approx(corrected(span["log10_p"], 2_000 * 5))  # 4 segments + whole
    looked, windows = look([text], SEGMENTS), look([text])
    (best,) = looked.spans.to_pylist()
    assert best["proof"] == "proved"
    assert best["log10_p_in_document"] <= windows.spans["log10_p_in_document"][0].as_py() + 0.01
    assert windows.spans["form"].to_pylist() == ["window"]
    changed = ("form", "scanned_at")
    plain_text = [plain(900, 1) + marked(users["alice"], 80, 2)]  # without segments, so that both rows are equal
    rows = [look(plain_text, weights).spans.to_pylist()[0] for weights in (SPANS_TOO, SEGMENTS)]
    assert [{name: row[name] for name in row if name not in changed} for row in rows[:1]] == [
        {name: row[name] for name in row if name not in changed} for row in rows[1:]
    ]


@pytest.mark.seconds
def test_segments_that_are_not_charged_are_proved_by_nothing(look, users, marked, plain, monkeypatch):
    monkeypatch.setattr(Parts, "count_parts", lambda self, scored: np.ones_like(scored))
    monkeypatch.setattr(Parts, "exist_in", lambda self, scored: scored > 0)
    quotation = "".join(f"> {marked(users['alice'], 40, seed)}\n" for seed in range(3))
    looked = look([f"{plain(300, 10)}\n{quotation}"], SEGMENTS._replace(windows=False))
    assert looked.spans["proof"].to_pylist() == ["differs"]


def test_nothing_is_looked_for_unless_it_is_asked(look, users, marked, plain):
    texts = [plain(900, 1) + marked(users["alice"], 80, 2), marked(users["bob"], 200, 9)]
    looked = look(texts, ErrorShares())
    assert len(looked.spans) == 0
    assert [row["look"] for row in looked.verdicts.to_pylist()] == [None, None]


def test_what_the_law_does_not_give_is_proved_by_nothing(look, users, marked, plain, monkeypatch):
    """Sabotage: all windows count as one look; the slow path counts them all, and nobody is named."""
    monkeypatch.setattr(search, "log10_in_document", lambda log10_p, looks, messages: corrected(log10_p, messages))
    looked = look([plain(900, 1) + marked(users["alice"], 80, 2)])
    (row,), (span,) = looked.verdicts.to_pylist(), looked.spans.to_pylist()
    assert (row["proof"], row["naming"], row["user_id"], row["named"]) == ("differs", "unproved", None, None)
    assert (span["proof"], span["naming"], span["user_id"]) == ("differs", "unproved", None)


def test_a_part_that_comes_out_otherwise_is_told_by_a_verdict_that_was_proved(look, users, marked, monkeypatch):
    """Exit codes go by verdicts: without a changed verdict the scan would end with 0."""
    monkeypatch.setattr(search, "log10_in_document", lambda log10_p, looks, messages: corrected(log10_p, messages))
    looked = look([marked(users["bob"], 200, 9)])
    (row,), (span,) = looked.verdicts.to_pylist(), looked.spans.to_pylist()
    assert (row["flagged"], row["proof"], row["naming"]) == (True, "differs", "unproved")
    assert (row["user_id"], row["named"], row["look"]) == (None, None, None)
    assert (span["proof"], span["naming"], span["user_id"]) == ("differs", "unproved", None)


def test_a_whole_that_comes_out_otherwise_stays_so_whatever_its_parts_prove(look, users, marked, monkeypatch):
    monkeypatch.setattr(proving.Prover, "confirms", lambda *_: False)
    looked = look([marked(users["bob"], 200, 9)])
    (row,), (span,) = looked.verdicts.to_pylist(), looked.spans.to_pylist()
    assert (row["proof"], row["naming"], row["named"], row["look"]) == ("differs", "unproved", None, None)
    assert (span["proof"], span["naming"], span["user_id"]) == ("proved", "unproved", None)


def test_a_part_that_may_be_a_strangers_shows_no_message_also_where_it_comes_out_otherwise(
    look, marked, plain, users, monkeypatch
):
    monkeypatch.setattr(rows, "namings", lambda located, *_: [Naming.UNDECIDED] * len(located))
    monkeypatch.setattr(search, "log10_in_document", lambda log10_p, looks, messages: corrected(log10_p, messages))
    looked = look([plain(900, 1) + marked(users["alice"], 80, 2)])
    for row in (*looked.verdicts.to_pylist(), *looked.spans.to_pylist()):
        assert (row["proof"], row["naming"], row["message"]) == ("differs", "unproved", None)


def test_of_too_many_a_keyed_sample_is_proved(look, users, marked, plain, monkeypatch):
    monkeypatch.setattr(proving, "TOKENS_PROVED", 2_000)
    looked = look([plain(900, seed) + marked(users["alice"], 80, seed) for seed in (1, 2, 3)])
    assert sorted(looked.spans["proof"].to_pylist()) == ["not drawn", "not drawn", "proved"]
    assert looked.spans["user_id"].to_pylist() == ["alice"] * 3


def test_shares_that_quote_are_those_of_a_count_of_characters():
    generator = np.random.default_rng(12)
    lines = [
        ["> a quoted line\n", "own words\n", "x<blockquote>y</blockquote>z", ""][i]
        for i in generator.integers(4, size=60)
    ]
    for text in ("".join(lines), "own words alone", "> all of it", ""):
        quotes = [part.kind == "quoted" for part in parts_of(text) for _ in range(part.begin, part.end)]
        places = np.sort(generator.integers(len(text) + 1, size=(200, 2)), axis=1).tolist()
        wanted = [sum(quotes[begin:end]) / max(1, end - begin) for begin, end in places]
        assert quoted_shares(text, places) == pytest.approx(wanted)


def test_of_two_in_one_place_neither_is_named_by_what_they_share():
    """Against a count of shared characters, for 300 random places of four messages of two keys."""
    generator = np.random.default_rng(13)
    places = [(begin, begin + length) for begin, length in generator.integers(1, [3_000, 30], size=(300, 2)).tolist()]
    whose = generator.integers(2, size=(300, 2)).tolist()
    own = np.where(generator.random(300) < 0.1, -3.0, -np.inf).tolist()
    located = [
        DocumentSpan(0, key, 0, 0, Span(0, message, 0, 1, 0.0, 0.0, 0.0, 0.0, log10_p, False))
        for (key, message), log10_p in zip(whose, own, strict=True)
    ]
    characters = [set(range(*place)) for place in places]

    def wanted(one: int) -> str:
        shared = any(
            whose[one] != whose[other]
            and 2 * len(characters[one] & characters[other]) >= min(len(characters[one]), len(characters[other]))
            for other in range(300)
        )
        return "undecided" if own[one] > -6 else "ambiguous" if shared else "named"

    said = [str(naming) for naming in namings(located, places, RATE)]
    assert said == [wanted(one) for one in range(300)]
    assert set(said) == {"undecided", "ambiguous", "named"}
