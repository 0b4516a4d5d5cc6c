"""The rule of verdicts: which key gives it, which messages pass, who may be named, and how missing p-values count."""

import math

import numpy as np
import pytest

from scanner.watermark.format import Basis, Candidates, UserEvidence
from scanner.watermark.laws import Floored, Gamma
from scanner.watermark.positions import Positions, Tokens
from scanner.watermark.pvalues import log10_any_of
from scanner.watermark.rule import KeyFindings, choose, corrected, decide, long_enough, passes, search
from tests.watermark.pairs import batch_tokens

RATE = 1e-6
NAN = math.nan


def found(*keys: tuple[float, float], independent: bool = False, assumed: bool = False) -> list[KeyFindings]:
    """One document: the corrected log10 p of the best and the second message under each key; NaN: not scored."""
    return [
        KeyFindings(
            scored=np.array([10 + k]),
            correction=np.ones(1),
            message=np.array([[-1 if math.isnan(best) else 3, -1 if math.isnan(second) else 5]]),
            score=np.zeros((1, 2)),
            log10_p=np.array([[best, second]]),
            log10_p_global=np.array([[best, second]]),
            log10_p_own=np.zeros((1, 2)),
            independent=independent,
            basis=Basis(128, assumed=assumed),
            p_rank=np.full((1, 2), np.nan),
        )
        for k, (best, second) in enumerate(keys)
    ]


TOO_SHORT = (NAN, NAN)


@pytest.mark.parametrize(
    ("keys", "chosen", "passing"),
    [
        ([(-7.0, -1.0)], 0, 1),
        ([(-5.9, -1.0)], 0, 0),
        ([(-6.0, -5.99)], 0, 1),  # at the threshold counts
        ([(-9.0, -6.0)], 0, 2),  # another message of the same key
        ([(-9.0, -1.0), (-8.0, -1.0)], 0, 2),  # another key
        ([(-8.0, -1.0), (-9.0, -7.0)], 1, 3),
        ([(-1.0, 0.0), (-7.0, -2.0)], 1, 1),
        ([(-3.0, 0.0), (-3.0, 0.0)], 0, 0),  # a tie goes to the first
        ([(-7.0, 0.0), (-7.0, 0.0)], 0, 2),
        ([TOO_SHORT, (-7.0, 0.0)], 1, 1),
        ([TOO_SHORT, (0.0, 0.0)], 1, 0),  # a scored key, even with p = 1, goes before one that is not scored
        ([TOO_SHORT, TOO_SHORT], 1, 0),  # the key with the most scored positions
    ],
)
def test_which_key_and_how_many_pass(keys, chosen, passing):
    """Where messages share draws, several that pass name nobody; where they are independent, each is named."""
    for independent in (False, True):
        said = found(*keys, independent=independent)
        decided = decide(said, RATE, 1.0)
        assert choose(said).tolist() == decided.key.tolist() == [chosen]
        assert decided.flagged.tolist() == [passing > 0]
        named = sum(int(of_key.sum()) for of_key in decided.named)
        assert named == (passing if independent or passing == 1 else 0)
        assert decided.naming.tolist() == [
            "none" if not passing else "named" if independent or passing == 1 else "ambiguous"
        ]


def test_a_key_without_a_law_gives_no_verdict_where_another_scored_and_never_flags():
    unknown = found((-7.0, -7.0))[0]._replace(log10_p_global=np.full((1, 2), NAN))
    (known,) = found((0.0, 0.0))
    assert choose([unknown, known]).tolist() == [1]
    assert choose([unknown, found(TOO_SHORT)[0]]).tolist() == [0]
    assert decide([unknown], 1 - 1e-9).naming.tolist() == ["none"]
    assert not decide([unknown], 1 - 1e-9).flagged.any()


@pytest.mark.parametrize(
    ("own", "named", "naming"), [(-4.0, True, "named"), (-3.9, False, "undecided"), (NAN, False, "undecided")]
)
def test_a_candidate_is_named_if_it_passes_by_what_it_shares_with_no_other(own, named, naming):
    (said,) = found((-9.0, -8.0), independent=True)
    decided = decide([said._replace(log10_p_own=np.array([[own, 0.0]]))], RATE, 1e-4)
    assert decided.flagged.tolist() == [True]
    assert decided.named[0].tolist() == [[named, False]]
    assert decided.naming.tolist() == [naming]


@pytest.mark.parametrize(("of_group", "beside", "naming"), [(-9.0, -8.0, "undecided"), (-8.0, -9.0, "ambiguous")])
def test_where_a_group_passes_best_its_message_may_be_a_strangers_whatever_passes_under_other_keys(
    of_group, beside, naming
):
    (said,) = found((of_group, 0.0), independent=True)
    decided = decide([said._replace(log10_p_own=np.zeros((1, 2))), *found((beside, 0.0))], RATE, 1e-4)
    assert decided.flagged.tolist() == [True]
    assert not any(of_key.any() for of_key in decided.named)
    assert decided.naming.tolist() == [naming]


def test_an_assumed_law_flags_and_names_nobody():
    (said,) = found((-9.0, 0.0), assumed=True)
    best_of_all = np.array([[1e-3, NAN]])
    decided = decide([said._replace(p_rank=best_of_all)], RATE)
    assert (decided.flagged.tolist(), decided.naming.tolist()) == ([True], ["assumed"])
    assert not decided.named[0].any()
    both = decide([said._replace(p_rank=best_of_all), *found((-9.0, 0.0), independent=True)], RATE, 1.0)
    assert both.naming.tolist() == ["named"]
    assert [of_key.tolist() for of_key in both.named] == [[[False, False]], [[True, False]]]


class Toy:
    """A mark with scores set by hand for C candidates; `own` holds the candidates' own parts, if any."""

    label = "toy"
    basis = Basis(128)
    law = Floored(Gamma(), 64)

    def __init__(self, score, own=None):
        self.score_, self.own = np.asarray(score, float), own

    def score(self, tokens, positions, messages):
        return self.score_[:, 0]

    def search(self, tokens, positions, count):
        return Candidates(
            np.broadcast_to(np.arange(self.score_.shape[1]), self.score_.shape), self.score_, self.own, True
        )


def places(*scored: int) -> tuple[Tokens, Positions]:
    tokens = batch_tokens([range(t) for t in scored])
    return tokens, Positions(np.arange(sum(scored)), tokens.offsets)


def test_a_search_gives_p_values_for_all_candidates_and_their_own_parts():
    score = [[40.0, 30.0, 29.0], [9.0, 8.0, 1000.0]]
    own = UserEvidence(np.array([[20.0, 2.0, 9.0], [1.0, 1.0, 1.0]]), np.array([6, 0]), 50)
    tokens, positions = places(10, 5)
    said = search(Toy(score, own), tokens, positions, 1000, correction=3)
    law = Gamma()
    for d, t in enumerate((10, 5)):
        for c in range(3):
            p = max(law.log10_p(score[d][c], t), -64 * math.log10(2))
            assert said.log10_p[d, c] == p
            assert said.log10_p_global[d, c] == log10_any_of(log10_any_of(p, 1000), 3)
            mine = law.log10_p(own.score[d, c], own.scored[d])
            assert said.log10_p_own[d, c] == log10_any_of(log10_any_of(mine, 50), 3)
    assert said.log10_p[1, 2] == -64 * math.log10(2)  # the key has no more bits


def test_where_nothing_more_is_asked_every_message_that_passes_is_named():
    """Both users whose text a document holds are named, and nobody else, where messages share no draws."""
    tokens, positions = places(40, 40)
    said = search(Toy([[150.0, 140.0, 40.0], [50.0, 45.0, 40.0]]), tokens, positions, 1000)
    decided = decide([said], RATE)
    assert decided.named[0].tolist() == [[True, True, False], [False] * 3]
    assert decided.naming.tolist() == ["named", "none"]


def test_without_search_there_is_one_message_and_no_second():
    class One:
        label, basis, law, score = Toy.label, Toy.basis, Toy.law, Toy.score

        def __init__(self, score):
            self.score_ = np.asarray(score, float)

    tokens, positions = places(4, 6)
    said = search(One([[5.0], [6.0]]), tokens, positions, 1)
    assert said.message.tolist() == [[0, -1], [0, -1]]
    assert np.isnan(said.log10_p).tolist() == np.isnan(said.log10_p_global).tolist() == [[False, True]] * 2
    with pytest.raises(ValueError, match="toy: cannot be searched for 2 messages"):
        search(One([[5.0], [6.0]]), tokens, positions, 2)


def test_what_is_not_scored_has_no_p_value():
    tokens, positions = places(4, 1, 6, 0)
    documents, kept = long_enough(positions, 4)
    assert documents.tolist() == [0, 2]
    assert kept.index.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]
    said = search(Toy([[5.0, 4.0], [6.0, 2.0]]), tokens, kept, 7).of_batch(documents, positions.scored, 3)
    assert (said.scored.tolist(), said.correction.tolist()) == ([4, 1, 6, 0], [3.0] * 4)
    assert said.message.tolist() == [[0, 1], [-1, -1], [0, 1], [-1, -1]]
    assert said.score.tolist() == [[5.0, 4.0], [0.0, 0.0], [6.0, 2.0], [0.0, 0.0]]
    for values in (said.log10_p, said.log10_p_global, said.log10_p_own):
        assert np.isnan(values).tolist() == [[False, False], [True, True]] * 2
    assert decide([said], 1 - 1e-12).flagged.tolist() == [True, False, True, False]


@pytest.mark.parametrize(("messages", "keys"), [(1, 1), (1, 5), (9, 1), (10**6, 40)])
def test_no_p_value_stays_none_when_it_is_corrected(messages, keys):
    given = np.array([NAN, -3.0, 0.0, NAN, -400.0])
    out = corrected(given, messages, keys)
    assert np.isnan(out).tolist() == np.isnan(given).tolist()
    assert passes(out, 1.0).tolist() == [False, True, True, False, True]
    assert (out[~np.isnan(given)] >= given[~np.isnan(given)]).all()


def test_the_verdict_is_that_of_the_best_who_is_named():
    """The best candidate passes, but not by its own part; the next one does, and so does one of another key."""
    first = found((-20.0, -9.0), independent=True)[0]._replace(log10_p_own=np.array([[-1.0, -7.0]]))
    second = found((-8.0, -1.0), independent=True)[0]
    decided = decide([first], RATE)
    assert (decided.key.tolist(), decided.candidate.tolist(), decided.naming.tolist()) == ([0], [1], ["named"])
    assert decided.named[0].tolist() == [[False, True]]
    decided = decide([second, first], RATE)
    assert (decided.key.tolist(), decided.candidate.tolist()) == ([1], [1])
    nobody = first._replace(log10_p_own=np.array([[-1.0, -5.0]]))
    decided = decide([nobody], RATE)
    assert (decided.key.tolist(), decided.candidate.tolist(), decided.naming.tolist()) == ([0], [0], ["undecided"])
    decided = decide([nobody, second._replace(log10_p_own=np.zeros((1, 2)))], RATE, 1.0)
    assert (decided.key.tolist(), decided.candidate.tolist()) == ([0], [0])
    certain = first._replace(log10_p_global=np.array([[-math.inf, -math.inf]]))
    assert decide([second, certain], RATE).candidate.tolist() == [1]


@pytest.mark.parametrize("kind", [{}, {"independent": True}, {"assumed": True}], ids=str)
def test_where_nothing_passes_a_text_is_decided_as_beside_one_that_passes(kind):
    """A batch without a flag takes a short way."""
    random = np.random.default_rng(11)
    log10_p = np.where(random.random((300, 3)) < 0.2, NAN, random.uniform(-5.9, 0.0, (300, 3)))
    texts = [found(*((p, p / 2) for p in row), **kind) for row in log10_p.tolist()]
    texts.append(found(TOO_SHORT, (-9.0, -1.0), (-8.0, -7.0), **kind))
    arrays = [name for name in KeyFindings._fields if name not in ("independent", "basis")]
    of_all = [
        keys[0]._replace(**{name: np.concatenate([getattr(of_key, name) for of_key in keys]) for name in arrays})
        for keys in zip(*texts, strict=True)
    ]
    without = [of_key._replace(**{name: getattr(of_key, name)[:-1] for name in arrays}) for of_key in of_all]
    best_of_all = [of_key._replace(p_rank=np.full_like(of_key.p_rank, 1e-3)) for of_key in of_all]
    beside, alone = decide(best_of_all, RATE), decide(without, RATE)
    assert beside.flagged.tolist() == [False] * 300 + [True]
    assert not alone.flagged.any()
    assert len(set(alone.key.tolist())) == 3
    for name, values in alone._asdict().items():
        several = values if isinstance(values, list) else [values]
        others = getattr(beside, name) if isinstance(values, list) else [getattr(beside, name)]
        for one, other in zip(several, others, strict=True):
            np.testing.assert_array_equal(one, other[:-1])
            assert one.dtype == other.dtype
