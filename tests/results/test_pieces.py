"""Near-duplicates are one piece of evidence: sketches against sets, and pieces against all pairs."""

import time

import numpy as np
import polars as pl
import pytest

from scanner.detection.sketches import EQUAL_PLACES, SKETCH_PLACES, pieces_of, sketch
from scanner.results import pieces_of_evidence as pieces_module
from scanner.results.pieces_of_evidence import EVIDENCE_COLUMNS, pieces_of_evidence
from scanner.watermark.formats import FORMATS
from scanner.watermark.positions import WholeWindows, reach_of

CONTEXT = 4


def grams(ids: np.ndarray) -> set[tuple]:
    return {tuple(ids[i : i + CONTEXT + 1].tolist()) for i in range(len(ids) - CONTEXT)}


def edited(ids: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    """The tokens, a share of them replaced at random."""
    return np.where(random.random(len(ids)) < share, random.integers(0, 50_000, len(ids)), ids).astype(np.uint32)


def agreeing(a: bytes | None, b: bytes | None) -> int:
    assert a is not None
    assert b is not None
    assert len(a) == len(b) == 4 * SKETCH_PLACES
    return int((np.frombuffer(a, "<u4") == np.frombuffer(b, "<u4")).sum())


def test_sketches_agree_as_often_as_sets_overlap():
    """Over 200 pairs, each 64 places: the standard error of the mean is below 0.5 %."""
    random = np.random.default_rng(4)
    overlap, agree = [], []
    for _ in range(200):
        a = random.integers(0, 50_000, 300).astype(np.uint32)
        b = edited(a, random.choice([0.02, 0.05, 0.2]), random)
        overlap.append(len(grams(a) & grams(b)) / len(grams(a) | grams(b)))
        agree.append(agreeing(sketch(a, CONTEXT), sketch(b, CONTEXT)) / SKETCH_PLACES)
    assert np.mean(agree) == pytest.approx(np.mean(overlap), abs=0.025)
    assert np.corrcoef(agree, overlap)[0, 1] > 0.95
    strange = [sketch(random.integers(0, 50_000, 300).astype(np.uint32), CONTEXT) for _ in range(60)]
    assert max(agreeing(a, b) for i, a in enumerate(strange) for b in strange[:i]) == 0


def test_a_text_shorter_than_its_ngrams_has_a_sketch_and_none_without_tokens():
    short = np.array([5, 6], np.uint32)
    assert agreeing(sketch(short, CONTEXT), sketch(short.copy(), CONTEXT)) == SKETCH_PLACES
    assert sketch(short[:0], CONTEXT) is None
    assert agreeing(sketch(np.array([7, 7, 7], np.uint32), 0), sketch(np.array([7], np.uint32), 0)) == SKETCH_PLACES


def test_ngrams_are_as_long_as_what_decides_a_draw_also_where_an_opening_is_scored_with_less():
    assert reach_of(WholeWindows(3)) == 3
    opening = FORMATS["vllm-gumbel"](context_width=4).open(bytes(range(1, 9))).rule
    assert (opening.context, reach_of(opening)) == (0, 4)


@pytest.fixture(scope="module")
def flags() -> pl.DataFrame:
    """Flags on 40 texts in edited copies, under three messages or none; the first text lacks a sketch."""
    random, rows = np.random.default_rng(8), []
    for text in range(40):
        ids = random.integers(0, 50_000, 200).astype(np.uint32)
        for copy in range(int(random.integers(1, 5))):
            message = text % 3 if copy < 3 else None
            rows.append((random.bytes(32), "key", message, sketch(ids, CONTEXT) if text else None))
            ids = edited(ids, 0.06, random)
    kinds = {"text_sha256": pl.Binary, "key_id": pl.String, "message": pl.Int64, "sketch": pl.Binary}
    return pl.DataFrame(rows, kinds, orient="row")


def by_all_pairs(rows: list[dict]) -> set[frozenset]:
    """Pieces as sets of digests, by comparing all pairs."""
    parts = [{row["text_sha256"]} for row in rows]
    for i, a in enumerate(rows):
        for b in rows[:i]:
            if a["message"] != b["message"] or None in (a["sketch"], b["sketch"]):
                continue
            if agreeing(a["sketch"], b["sketch"]) >= EQUAL_PLACES:
                one, other = (next(part for part in parts if row["text_sha256"] in part) for row in (a, b))
                if one is not other:
                    parts.remove(other)
                    one |= other
    return {frozenset(part) for part in parts}


def test_pieces_are_those_of_all_pairs(flags):
    found = pieces_of_evidence(pl.concat([flags, flags]).lazy())
    assert found.columns == [*EVIDENCE_COLUMNS, "piece"]
    assert len(found) == len(flags)
    told = {frozenset(part["text_sha256"]) for _, part in found.group_by("piece")}
    assert told == by_all_pairs(flags.to_dicts())
    assert 40 < len(told) < len(flags)


def parts_of(told: pl.DataFrame) -> set[frozenset]:
    return {frozenset(part["text_sha256"]) for _, part in told.group_by("piece")}


def test_texts_that_cannot_be_held_at_once_are_told_by_message(flags, monkeypatch):
    """Pieces are the same if texts are read message by message. Texts of a message with too many texts get no piece."""
    whole, sizes = pieces_of_evidence(flags.lazy()), flags.group_by("message").len().sort("len")
    assert len(sizes) == 4
    monkeypatch.setattr(pieces_module, "MOST_SKETCHES", int(sizes["len"][-1]))
    by_parts = pieces_of_evidence(pl.concat([flags, flags]).lazy())
    assert by_parts.columns == whole.columns
    assert len(by_parts) == len(flags)
    assert parts_of(by_parts) == parts_of(whole)
    assert by_parts["piece"].n_unique() == whole["piece"].n_unique()

    monkeypatch.setattr(pieces_module, "MOST_SKETCHES", int(sizes["len"][-1]) - 1)
    most = pl.col("message").eq_missing(sizes["message"][-1])
    told = pieces_of_evidence(flags.lazy())
    assert told.filter(most)["piece"].null_count() == told["piece"].null_count() == sizes["len"][-1]
    assert parts_of(told.filter(~most)) == parts_of(whole.filter(~most))


def test_of_more_texts_than_may_be_read_nothing_is_said(flags, monkeypatch):
    monkeypatch.setattr(pieces_module, "MOST_SKETCHES", int(flags.group_by("message").len()["len"].max()))
    monkeypatch.setattr(pieces_module, "MOST_READS", 1)
    told = pieces_of_evidence(flags.lazy())
    assert told["piece"].null_count() == len(told) == len(flags)
    assert pieces_of_evidence(flags.head(0).lazy()).is_empty()


def test_fillings_of_one_template_are_one_piece_in_linear_time():
    """100,000 texts: half are fillings of one template, and the others share nothing; some seconds at most."""
    random = np.random.default_rng(3)
    template = random.integers(0, 50_000, 100).astype(np.uint32)
    sketches = []
    for number in range(2_000):
        filled = template.copy()
        filled[random.integers(0, 20) :: 20] = random.integers(0, 50_000)
        sketches += [sketch(filled, CONTEXT), sketch(random.integers(0, 50_000, 100).astype(np.uint32), CONTEXT)]
        assert number or sketches[0] is not None
    piece = pieces_of(sketches)
    assert set(piece[::2].tolist()) == {0}
    assert piece[1::2].tolist() == list(range(1, 4_000, 2))
    began = time.process_time()
    many = pieces_of(sketches * 25)
    assert len(np.unique(many)) == 2_001
    assert time.process_time() - began < 20


def test_ngrams_that_do_not_count_connect_nothing():
    """Two fillings of a template, of which only what was filled in counts."""
    random = np.random.default_rng(4)
    template = random.integers(0, 50_000, 60).astype(np.uint32)
    one, other = (np.concatenate([template, random.integers(0, 50_000, 40)]).astype(np.uint32) for _ in range(2))
    assert len(set(pieces_of([sketch(one, CONTEXT), sketch(other, CONTEXT)]).tolist())) == 1
    rest = np.arange(64, 100)
    assert len(set(pieces_of([sketch(one, CONTEXT, rest), sketch(other, CONTEXT, rest)]).tolist())) == 2
    assert sketch(one, CONTEXT, np.array([1, 2])) is None
