"""The rank among decoy keys: exact whatever the scores' law, asked for only where needed, and which texts it flags."""

from itertools import pairwise

import numpy as np
import pytest

from scanner.watermark import Positions, Tokens, batch_tokens
from scanner.watermark.format import Basis, RanksAmongDecoys
from scanner.watermark.formats import FORMATS
from scanner.watermark.laws import Gamma
from scanner.watermark.positions import WholeWindows, spread_out
from scanner.watermark.rule import (
    FEWEST_RANKED,
    LEAST_RANK,
    MOST_RANKED,
    RANK_DECOYS,
    decide,
    most_ranked,
    ranked,
    search,
)
from scanner.watermark.stacks.shared import StackFormat
from schemas.words import Naming

STACKS = [
    entry(**({"vocab_size": 1000} if "vocab_size" in entry.model_fields else {}))
    for entry in FORMATS.values()
    if issubclass(entry, StackFormat)
]

SHORT = Basis(64)


class Alone:
    """A mark with given scores, one a document."""

    law, rule, label = Gamma(), WholeWindows(0), "fake"

    def __init__(self, scores, basis=SHORT):
        self.scores, self.basis, self.asked = np.asarray(scores, np.float64), basis, 0

    def score(self, tokens, positions, messages):
        self.asked += len(positions.index)
        return self.scores[positions.index]


class Fake(Alone):
    """A mark with given scores of its decoys too: [RANK_DECOYS, D]."""

    def __init__(self, scores, decoys, basis=SHORT):
        super().__init__(scores, basis)
        self.decoys = [Alone(of_decoy) for of_decoy in decoys]

    def decoy(self, number):
        return self.decoys[number - 1]


def documents(count: int) -> tuple[Tokens, Positions]:
    """Documents of one token each, every token scored."""
    tokens = Tokens(np.zeros(count, np.uint32), np.arange(count + 1))
    return tokens, Positions(np.arange(count), np.arange(count + 1))


def verdict(mark, count: int, rate: float):
    tokens, positions = documents(count)
    said = ranked(search(mark, tokens, positions, 1), mark, tokens, positions, 1, rate)
    return said, decide([said], rate)


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("count", [50_000, pytest.param(200_000, marks=pytest.mark.long)])
def test_the_rank_is_exact(count):
    """Texts whose scores are exchangeable with the decoys': P(p_rank ≤ 1/l) = 1/l, five standard errors.

    Their law is nothing like the stated law, by which all texts pass.
    """
    rng = np.random.default_rng(5)
    mark = Fake(1e3 + rng.random(count), 1e3 + rng.random((RANK_DECOYS, count), np.float32))
    said, decided = verdict(mark, count, 1e-6)
    rank = said.p_rank[:, 0]
    for tries in (2, 3, 10, 100, RANK_DECOYS + 1):
        share = (rank <= 1 / tries + 1e-12).mean()
        assert abs(share - 1 / tries) < 5 * np.sqrt(1 / tries / count), tries
    assert decided.flagged.tolist() == (rank == LEAST_RANK).tolist()


@pytest.mark.seconds
def test_unmarked_text_is_done_after_a_few():
    """Where scores are exchangeable, 1/l of the texts are left for the l-th decoy to score."""
    rng = np.random.default_rng(6)
    mark = Fake(1e3 + rng.random(20_000), 1e3 + rng.random((RANK_DECOYS, 20_000), np.float32))
    verdict(mark, 20_000, 1e-6)
    for number, decoy in enumerate(mark.decoys, 1):
        assert abs(decoy.asked / 20_000 - 1 / number) < 6 * np.sqrt(1 / number / 20_000), number


def test_only_what_would_be_flagged_is_asked():
    said, decided = verdict(Fake(np.array([30.0, 0.5, 30.0]), np.zeros((RANK_DECOYS, 3))), 3, 1e-6)
    assert said.p_rank[:, 0].tolist() == [LEAST_RANK, pytest.approx(np.nan, nan_ok=True), LEAST_RANK]
    assert decided.flagged.tolist() == [True, False, True]


def test_a_decoy_that_scores_as_high_refutes():
    """An equal score refutes too: a hash that ignores the key flags nothing. The verdict's p is at least the rank."""
    decoys = np.zeros((RANK_DECOYS, 2))
    decoys[6] = [30.0, 29.99]
    said, decided = verdict(Fake(np.array([30.0, 30.0]), decoys), 2, 1e-2)
    assert said.p_rank[:, 0].tolist() == [1 / 7, LEAST_RANK]
    assert decided.flagged.tolist() == [False, True]
    assert said.log10_p_global[0, 0] == np.log10(1 / 7)
    assert said.log10_p_global[1, 0] < -12
    assert said.log10_p[0, 0] < -12


def test_the_last_decoy_counts_too():
    """One refuting decoy of 999 is enough, even where the rate is above the rank."""
    decoys = np.zeros((RANK_DECOYS, 1))
    decoys[-1] = 30.0
    said, decided = verdict(Fake(np.array([30.0]), decoys), 1, 0.05)
    assert said.p_rank[0, 0] == 1 / RANK_DECOYS
    assert decided.flagged.tolist() == [False]


def test_a_verdict_is_of_a_key_that_passes():
    """At a rate above a rank: the key whose p is smallest was refuted by a decoy, so the flag of two others stands."""
    decoys = np.zeros((RANK_DECOYS, 1))
    decoys[-1] = 30.0
    refuted = verdict(Fake(np.array([30.0]), decoys), 1, 0.05)[0]
    passing = verdict(Alone([4.0], Basis(128)), 1, 0.05)[0]
    assert refuted.log10_p_global[0, 0] < passing.log10_p_global[0, 0]
    decided = decide([refuted, passing, passing], 0.05)
    assert (decided.naming.tolist(), decided.key.tolist()) == ([Naming.AMBIGUOUS], [1])
    assert decide([refuted], 0.05).key.tolist() == [0]


def test_where_no_rank_is_asked():
    """A long key needs no rank; an assumed law, or a short key without decoys, never flags."""
    proven = Fake(np.array([30.0]), np.full((RANK_DECOYS, 1), 99.0), Basis(128))
    assert verdict(proven, 1, 1e-6)[1].flagged.tolist() == [True]
    assert sum(decoy.asked for decoy in proven.decoys) == 0
    for basis in (Basis(64), Basis(128, assumed=True)):
        assert verdict(Alone([30.0], basis), 1, 1e-6)[1].flagged.tolist() == [False]


@pytest.mark.seconds
@pytest.mark.parametrize("form", STACKS, ids=lambda form: form.name)
def test_decoys_of_the_formats(form):
    """Decoys are different keys, the same every time, and have the law of the key."""
    secret = form.decoy_key(bytes(range(32)))
    tokens = batch_tokens([list(range(100, 180))])
    marks = [form.open(secret) for _ in range(2)]
    whole = marks[0].rule.positions(tokens, "ngram")
    positions = Positions(whole.index, np.arange(len(whole.index) + 1))

    def of_each(mark):
        return tuple(mark.score(tokens, positions, 0).tolist())

    assert isinstance(marks[0], RanksAmongDecoys)
    scores = [[of_each(mark.decoy(number)) for number in range(1, 40)] for mark in marks]
    assert scores[0] == scores[1]
    assert len({of_each(marks[0]), *scores[0]}) == 40
    assert marks[0].decoy(3).label == form.label()
    other = form.open(form.decoy_key(bytes(range(1, 33)))).decoy(1)
    assert of_each(other) not in scores[0]


@pytest.mark.parametrize("most", [1, 3, 7, 50])
def test_positions_that_lie_evenly(most):
    lengths = [0, 1, 6, 7, 8, 20]
    offsets = np.cumsum([0, *lengths])
    spread = spread_out(Positions(np.arange(100, 100 + offsets[-1]), offsets), most)
    pairs = zip(offsets, lengths, strict=False)
    plain = [[100 + begin + i * n // min(n, most) for i in range(min(n, most))] for begin, n in pairs]
    assert [spread.index[a:b].tolist() for a, b in pairwise(spread.offsets)] == plain


class Counting:
    """A mark that counts odd ids, or ids of remainder 1 mod 4; `asked` is the number of positions that it scored."""

    law, rule, label, basis = Gamma(), WholeWindows(0), "fake", SHORT

    def __init__(self, odd=True):
        self.odd, self.asked = odd, 0

    def score(self, tokens, positions, messages):
        self.asked += len(positions.index)
        ids = tokens.ids[positions.index] % 2 if self.odd else tokens.ids[positions.index] % 4 == 1
        counts = np.concatenate([[0], np.cumsum(ids)])
        return np.diff(counts[positions.offsets]).astype(np.float64)

    def decoy(self, number):
        self.last = getattr(self, "last", Counting(odd=False))
        return self.last


def test_of_a_long_text_some_positions_are_ranked():
    """A long text under a public key would keep a worker busy for hours: 999 decoys score every position."""
    tokens = batch_tokens([[1] * 10_000 + [3] * 10_000, [1, 3] * 100])
    mark, positions = Counting(), WholeWindows(0).positions(tokens, "none")
    found = ranked(search(mark, tokens, positions, 1), mark, tokens, positions, 1, 0.5, most=500)
    assert found.p_rank[:, 0].tolist() == [LEAST_RANK, LEAST_RANK]
    assert mark.last.asked == RANK_DECOYS * (500 + 200)
    assert found.score[0, 0] == 20_000  # the score and its p are still of all positions
    equalled = ranked(search(mark, tokens, positions, 1), Equalled(), tokens, positions, 1, 0.5, most=500)
    assert (equalled.p_rank[:, 0] > LEAST_RANK).all()


class Equalled(Counting):
    """A mark whose decoys score as high as the key."""

    def decoy(self, number):
        return self


def test_how_many_positions_are_ranked():
    assert [most_ranked(seconds) for seconds in (1e-12, 1e-4, 10.0)] == [MOST_RANKED, 3003, FEWEST_RANKED]
