"""One key on one traffic: its counts, and that the audit reports a key that hits too often, whatever the reason."""

from fractions import Fraction

import numpy as np
import pytest

from scanner.audit.calibration.calibration_plan import cut_fragments
from scanner.audit.calibration.law_counts import LawCase, law_counts
from scanner.audit.calibration.one_key import key_counts, sampled_messages
from scanner.audit.statistics.hits import THRESHOLDS, critical_scores
from scanner.audit.statistics.judgement import counts, judge
from scanner.watermark import (
    GreenList,
    Gumbel,
    Tokens,
    batch_tokens,
    log10_any_of,
    log10_greenlist,
    rule,
    scored_positions,
)
from tests.support.demo_texts import DEMO, sample_texts
from tests.watermark.pairs import format_for, law_of

QUARTER, ERROR, BOUND = Fraction(1, 4), 0.01, 2.0
SECRET = bytes(range(40, 72))


def count(mark, tokens, messages=1, sample=1, accounts=None):
    documents = len(tokens.offsets) - 1
    return key_counts(
        mark, messages, tokens, accounts or [str(i) for i in range(documents)], "ngram", THRESHOLDS, sample
    )


def said(sums):
    return [row.verdict for row in judge(counts(sums), ERROR, BOUND)]


@pytest.fixture(scope="module")
def short(human) -> Tokens:
    """Pieces of 64 tokens, so that there are many."""
    return cut_fragments(human, np.diff(human.offsets) // 64, 64)


def test_messages_are_spread_evenly():
    assert sampled_messages(5, 64).tolist() == [0, 1, 2, 3, 4]
    assert sampled_messages(1000, 4).tolist() == [0, 250, 500, 750]


@pytest.mark.costly
@pytest.mark.seconds
def test_counts_are_those_of_a_scan(short):
    mark = GreenList(SECRET, 2, QUARTER)
    found = count(mark, short, messages=500, sample=3, accounts=[str(i % 7) for i in range(len(short.offsets) - 1)])
    positions = scored_positions(short, 2, "ngram")
    best = log10_any_of(log10_greenlist(mark.best_two(short, positions, 500).score, positions.scored, QUARTER), 500)
    hits = [(10**best <= alpha).sum() for alpha in THRESHOLDS]
    sums = found.by_cluster()
    assert sums.hits.tolist() == hits
    assert (sums.tests == found.tests).all()
    assert sums.clusters == pytest.approx(7, abs=1e-4)
    chance = critical_scores(law_of(QUARTER), positions.scored, THRESHOLDS, 500).chance
    assert sums.expected == pytest.approx(chance.sum(axis=0))
    for a, message in enumerate((0, 166, 333)):
        p = log10_greenlist(mark.score(short, positions, message), positions.scored, QUARTER)
        assert found.single[a].tolist() == [(10**p <= alpha).sum() for alpha in THRESHOLDS]
    assert (found.by_message().clusters == 3).all()


@pytest.mark.costly
@pytest.mark.seconds
def test_parts_add_up(short):
    mark, cut = Gumbel(SECRET, 1), 500
    first = Tokens(short.ids[: 64 * cut], short.offsets[: cut + 1])
    rest = Tokens(short.ids[64 * cut :], short.offsets[cut:] - 64 * cut)
    clusters = [str(i % 5) for i in range(len(short.offsets) - 1)]
    whole = count(mark, short, 50, 2, clusters)
    both = count(mark, first, 50, 2, clusters[:cut]).plus(count(mark, rest, 50, 2, clusters[cut:]))
    for a, b in zip([*whole.by_cluster(), *whole.by_message()], [*both.by_cluster(), *both.by_message()], strict=True):
        assert a == pytest.approx(b)
    assert {gram: ngram.hits for gram, ngram in both.ngrams.items()} == {
        gram: ngram.hits for gram, ngram in whole.ngrams.items()
    }
    assert all(ngram.excess == pytest.approx(whole.ngrams[gram].excess) for gram, ngram in both.ngrams.items())


@pytest.mark.seconds
@pytest.mark.parametrize("mark", [GreenList(SECRET, 4, QUARTER), Gumbel(SECRET, 4)], ids=["greenlist", "gumbel"])
def test_an_ordinary_key_passes(mark, short):
    found = count(mark, short, messages=1000, sample=16)
    assert "too small" not in said(found.by_cluster()) + said(found.by_message())
    assert said(found.by_message())[0] == "holds"


@pytest.mark.seconds
def test_the_correction_left_out_is_caught(short, monkeypatch):
    """The audit sees the missing correction, although its expectation is computed by the same function."""
    monkeypatch.setattr(rule, "log10_any_of", lambda p, *_: p)
    some = Tokens(short.ids[: 64 * 2000], short.offsets[:2001])
    found = count(GreenList(SECRET, 4, QUARTER), some, messages=1000)
    assert said(found.by_cluster())[:4] == ["too small"] * 4


def tuned(tokens: Tokens) -> bytes:
    """The key, out of 300 candidates, under which the commonest tokens are most often green."""
    common = np.bincount(tokens.ids).astype(float)
    share = {}
    for number in range(300):
        secret = number.to_bytes(32, "little")
        mark = GreenList(secret, 0, QUARTER)
        nonce = mark.window_nonces(np.empty((1, 0), np.uint32))
        share[secret] = float(common @ mark.green(nonce, np.array([0]), len(common))[0])
    return max(share, key=lambda secret: share[secret])


@pytest.mark.seconds
def test_a_key_tuned_to_common_ngrams_is_caught_and_its_ngrams_are_shown(short):
    found = count(GreenList(tuned(short), 0, QUARTER), short)
    assert "too small" in said(found.by_cluster())
    common = set(np.argsort(-np.bincount(short.ids))[:50].tolist())
    top = sorted(found.ngrams, key=lambda gram: -found.ngrams[gram].excess)[:10]
    assert sum(gram[0] in common for gram in top) >= 5


@pytest.mark.costly
@pytest.mark.seconds
def test_marked_text_in_the_corpus_is_caught_and_told_from_a_broken_law(human, tokenizer):
    """One text in 1,000 is marked: its key hits far too often, keys that are drawn do not."""
    cut = cut_fragments(human, np.diff(human.offsets) // 128, 128)
    plain = Tokens(cut.ids[: 999 * 128], cut.offsets[:1000])
    secret = bytes.fromhex((DEMO / "secrets" / "demo-paper.key").read_text().strip())
    mark = GreenList(secret, 4, QUARTER)
    marked = tokenizer.encode(sample_texts("marked", "demo-paper"))
    positions = scored_positions(marked, 4, "ngram")
    p = mark.law.log10_p(mark.best_two(marked, positions, 100_000).score, positions.scored)
    strongest = int(p.argmin())
    ids = marked.ids[marked.offsets[strongest] : marked.offsets[strongest + 1]]
    mixed = Tokens(np.concatenate([plain.ids, ids]), np.append(plain.offsets, plain.offsets[-1] + len(ids)))
    assert "too small" not in said(count(mark, plain, messages=100_000).by_cluster())
    assert "too small" in said(count(mark, mixed, messages=100_000).by_cluster())
    law = law_counts(LawCase(format_for(QUARTER, 4), "ngram", 1024), mixed, np.arange(1000), b"seed", THRESHOLDS)
    assert "too small" not in [row.verdict for row in judge(counts(law.sums), ERROR)]


@pytest.mark.seconds
def test_fillings_of_one_template_decide_nothing():
    """2,000 fillings of a template under each of 8 keys: some hit ten times as often as they should, others never."""
    random = np.random.default_rng(6)
    for number in range(8):
        template, mark = random.integers(50_000, size=240), GreenList(bytes([number]) * 32, 4, QUARTER)
        texts = np.tile(template, (2_000, 1))
        texts[:, 8::10] = random.integers(50_000, size=texts[:, 8::10].shape)
        found = count(mark, batch_tokens(texts.tolist()))
        sums = found.by_cluster()
        assert (sums.tests[0], sums.clusters[0]) == (2_000, 1)
        assert set(said(sums)) == {"undecided"}


def test_an_empty_text_is_no_hit():
    found = count(GreenList(SECRET, 4, QUARTER), batch_tokens([[], [1, 2]]), messages=10, sample=2)
    assert found.by_cluster().hits.tolist() == [0] * 8
    assert found.ngrams == {}
