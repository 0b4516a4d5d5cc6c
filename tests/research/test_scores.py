"""Scores of texts whose message is known equal those of a scan, and those of a search that tries every message."""

import math
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from jobs.demo import TOKENIZER
from scanner.detection.attribution import BatchOrigin, OpenedKey
from scanner.detection.detector import Detector
from scanner.detection.rules import Rules
from scanner.registry import NamedUser
from scanner.research.scores import (
    Search,
    identification_figures,
    name,
    score_each,
    score_one,
    search,
    search_groups,
    search_texts,
    together,
)
from scanner.research.units import Setting, key_secret
from scanner.text import sha256_file
from scanner.watermark import (
    GreenList,
    Gumbel,
    Tokens,
    Watermark,
    batch_tokens,
    log10_any_of,
    scored_positions,
    select_documents,
)
from scanner.watermark.native.format import GreenListFormat, GreenListFormat3, GumbelFormat, GumbelFormat3
from schemas.registry import MasterKey, TokenizerFile
from schemas.tables import DOCUMENTS
from tests import reference3
from tests.support.opened import demo_tokenizer

SEED = "scores"
BEACON = "5a" * 32
SETTINGS = {
    "greenlist": Setting(GreenListFormat(window=2, gamma="1/4"), 3.0, 0.8, 0.95, 64),
    "gumbel": Setting(GumbelFormat(window=2), None, 1.0, 0.95, 64),
    "greenlist-v3": Setting(GreenListFormat3(window=2, gamma="1/4", beacon=BEACON), 3.0, 0.8, 0.95, 64),
    "gumbel-v3": Setting(GumbelFormat3(window=2, beacon=BEACON), None, 1.0, 0.95, 64),
}
GROUPS = 30
IN_GROUPS = {
    "greenlist-v3": Setting(GreenListFormat3(window=2, gamma="1/4", groups=GROUPS, beacon=BEACON), 3.0, 0.8, 0.95, 64),
    "gumbel-v3": Setting(GumbelFormat3(window=2, groups=GROUPS, beacon=BEACON), None, 1.0, 0.95, 64),
}
MIN_SCORED = 16


def marked_tokens(mark: Watermark, message: int, length: int, random: np.random.Generator, of: int = 4) -> list[int]:
    """Marked tokens without a model: each is the best of `of` random ones for the message."""
    ids = random.integers(1000, 20_000, 2).tolist()
    while len(ids) < length:
        tries = random.integers(1000, 20_000, of)
        texts = batch_tokens([[*ids[-2:], int(token)] for token in tries])
        ids.append(int(tries[mark.score(texts, scored_positions(texts, 2, "ngram"), message).argmax()]))
    return ids


def texts_of(mark: Watermark, own: list[int], lengths: list[int]) -> Tokens:
    random = np.random.default_rng(3)
    return batch_tokens(
        [marked_tokens(mark, message, length, random) for message, length in zip(own, lengths, strict=True)]
    )


def every_message(mark: Watermark, tokens: Tokens, own: int, count: int) -> tuple[float, list[float]]:
    """log10 p of a text's own message, and of the other messages, best first; each scored by itself."""
    positions = scored_positions(tokens, mark.window, "ngram")
    if positions.scored[0] < MIN_SCORED:
        return 0.0, [0.0] * (count - 1)

    def p(message: int) -> float:
        return float(mark.law.log10_p(mark.score(tokens, positions, message), positions.scored)[0])

    others = range(count) if own < count else range(count - 1)
    return p(own), sorted(p(message) for message in others if message != own)


@pytest.mark.seconds
@pytest.mark.parametrize("method", SETTINGS)
@pytest.mark.parametrize("count", [2, 3, 40])
def test_a_search_finds_what_trying_every_message_finds(method, count):
    mark = SETTINGS[method].watermark(key_secret(SEED, 0))
    own = [0, 1, 39, 40, 77, 5, 2]
    tokens = texts_of(mark, own, [40, 60, 18, 30, 45, 10, 25])
    said = search(mark, tokens, np.array(own), count, MIN_SCORED)
    rates = [0.3, 1e-1, 1e-2, 1e-6]
    for row, message in enumerate(own):
        text = select_documents(tokens, np.array([row]))
        mine, others = every_message(mark, text, message, count)
        assert said.own_p[row] == pytest.approx(mine, rel=1e-12)
        assert said.first[row] == pytest.approx(others[0], rel=1e-12)
        for rate in rates:
            threshold = math.log10(rate)
            passing = [p for p in (mine, *others) if log10_any_of(p, count) <= threshold]
            alone, own_passes = len(passing) == 1, bool(log10_any_of(mine, count) <= threshold)
            named = name(said, count, rate)
            assert bool(named.found[row]) == (alone and own_passes)
            assert bool(named.wrong[row]) == (alone and not own_passes)
            assert bool(named.ambiguous[row]) == (len(passing) > 1)
            named = name(said, count, rate, independent=True)
            assert (bool(named.found[row]), bool(named.wrong[row])) == (own_passes, len(passing) > own_passes)
            assert not named.ambiguous[row]
    assert said.own_p[5] == said.first[5] == 0.0  # ten tokens are too short


@pytest.mark.seconds
@pytest.mark.parametrize("setting", [*SETTINGS.values(), *IN_GROUPS.values()], ids=lambda s: s.format.label())
def test_users_are_named_as_a_scan_names_them(setting):
    """The scan's own detector on the text of these tokens, for a key of as many messages."""
    grouped, rate = setting in IN_GROUPS.values(), 0.02
    count = GROUPS**2 if grouped else 50
    mark = setting.watermark(key_secret(SEED, 0))
    own = [7, 11, 19, 23, 49, 0, 31, 8, 9, 10]
    tokens = texts_of(mark, own, [12, 20, 22, 24, 26, 30, 40, 60, 80, 100])
    tokenizer = demo_tokenizer()
    decoder = Tokenizer.from_file(str(TOKENIZER))
    bounds = tokens.offsets
    texts = [decoder.decode(tokens.ids[a:b].tolist()) for a, b in pairwise(bounds)]
    key = MasterKey(
        key_id="k",
        format=setting.format.name,
        parameters=setting.format.model_dump(),
        messages=count,
        tokenizer=TokenizerFile(file="t", sha256=sha256_file(TOKENIZER)),
        secret="env:NOWHERE",
        commitment=mark.commitment.hex(),
        created_at=datetime.now(UTC),
    )

    class Everybody:
        def naming(self, key_id: str, message: int, at: datetime) -> NamedUser:
            return NamedUser("named", f"user-{message}", None)

    detector = Detector(
        [OpenedKey(key, mark, tokenizer)],
        Everybody(),
        Rules(rate, 1, min_scored=MIN_SCORED),
    )
    rows = [{"row": i, "doc_id": str(i), "text": text.encode()} for i, text in enumerate(texts)]
    verdicts, *_ = detector.score_batch(pa.RecordBatch.from_pylist(rows, DOCUMENTS), BatchOrigin("s", "s", "p"))
    (said,) = search_texts(setting, SEED, texts, own, [count], tokenizer, MIN_SCORED)
    named = name(said, count, rate, independent=not setting.format.can_be_framed())
    for row, verdict in enumerate(verdicts.to_pylist()):
        assert verdict["scored"] == said.scored[row]
        names = {one["user_id"] for one in verdict["named"] or []}
        right = f"user-{own[row]}"
        assert bool(named.found[row]) == (right in names)
        assert bool(named.wrong[row]) == bool(names - {right})
        assert bool(named.ambiguous[row]) == (verdict["naming"] in ("ambiguous", "undecided"))
        if not grouped:
            best = min(said.own_p[row], said.first[row])
            assert verdict["log10_p"] == pytest.approx(best, rel=1e-12)
    assert named.found.any()
    assert not named.found.all()


@pytest.mark.parametrize("method", IN_GROUPS)
@pytest.mark.parametrize("groups", [7, GROUPS])
def test_fewer_groups_are_searched_as_all_of_a_key_are(method, groups):
    """Against every message scored by itself: names are given at the rates of the rule's two p-values."""
    mark = IN_GROUPS[method].watermark(key_secret(SEED, 0))
    own = [0, 6 * GROUPS + 5, 2 * GROUPS + 1, 3, 4 * GROUPS]
    tokens = texts_of(mark, own, [60, 40, 10, 90, 24])
    said = search_groups(mark, tokens, np.array(own), groups, MIN_SCORED)
    gamma = Fraction(1, 4) if method == "greenlist-v3" else None
    name, beacon = method.removesuffix("-v3"), bytes.fromhex(BEACON)
    plain = reference3.Method(name, key_secret(SEED, 0), mark.window, gamma, GROUPS, beacon=beacon)
    for row, message in enumerate(own):
        text = select_documents(tokens, np.array([row]))
        steps = plain.steps(text.ids.tolist())
        if len(steps) < MIN_SCORED:
            assert [field[row] for field in said[:-1]] == [0.0] * 4
            continue
        shared, users = ([step for step in steps if step.of_group is kind] for kind in (True, False))
        named, flagged = {}, 0.0
        for g in looked_into(plain, shared, groups):
            ((number, _),) = plain.best_rough(users, g * 2**16, groups, 1)
            in_group, alone = plain.sum_of(shared, g), plain.sum_of(users, number)
            p = log10_any_of(plain.log10_p(in_group + alone, len(steps)), groups**2)
            flagged = min(flagged, float(p))
            own_p = log10_any_of(plain.log10_p(alone, len(users)), groups)
            named[g * GROUPS + number % 2**16] = max(p, own_p)
        others = [float(p) for user, p in named.items() if user != message]
        here = mark.rule.positions(text, "ngram")
        own_p = mark.law.log10_p(mark.score(text, here, message), len(steps))
        assert said.own_p[row] == pytest.approx(float(own_p[0]))
        assert said.own_named[row] == pytest.approx(float(named.get(message, 0.0)), rel=1e-9)
        assert said.other_named[row] == pytest.approx(min([0.0, *others]), rel=1e-9)
        assert said.flagged[row] == pytest.approx(flagged, rel=1e-9)
    assert (said.own_named[[0, 3]] < -3).all()


def looked_into(plain: reference3.Method, shared: list[reference3.Step], groups: int) -> list[int]:
    """Groups that a search looks into, among eight: the best by its steps, and others whose p is small enough."""
    score = {g: plain.sum_of(shared, g) for g, _ in plain.best_rough(shared, 0, groups, 8)}
    best_first = sorted(score, key=lambda g: (-score[g], g))
    enough = [g for g in best_first if plain.log10_p(score[g], len(shared)) <= 1e-9 - math.log10(groups)]
    return list(dict.fromkeys([best_first[0], *enough]))


def test_no_more_groups_are_searched_than_a_key_has():
    for setting in (SETTINGS["gumbel-v3"], IN_GROUPS["gumbel-v3"]):
        mark = setting.watermark(key_secret(SEED, 0))
        with pytest.raises(ValueError, match=r"31 groups cannot be searched; this key has (30|none)"):
            search_groups(mark, batch_tokens([list(range(30))]), np.array([0]), GROUPS + 1, MIN_SCORED)


def test_texts_under_keys_of_their_own_are_scored_as_one_by_one():
    marks = [GreenList(key_secret(SEED, number), 2, Fraction(1, 4)) for number in range(3)]
    chosen = [marks[i] for i in (0, 1, 2, 1, 0)]
    random = np.random.default_rng(1)
    lengths = [30, 12, 50, 0, 22]
    tokens = batch_tokens(
        [marked_tokens(mark, 0, max(n, 2), random)[:n] for mark, n in zip(chosen, lengths, strict=True)]
    )
    said = score_each(chosen, tokens, 0, MIN_SCORED)
    for row, mark in enumerate(chosen):
        alone = score_one(mark, select_documents(tokens, np.array([row])), 0, MIN_SCORED)
        assert (said.log10_p[row], said.scored[row]) == (alone.log10_p[0], alone.scored[0])
    assert said.log10_p[[1, 3]].tolist() == [0.0, 0.0]
    assert (said.log10_p[[0, 2]] < -5).all()


def test_a_text_marked_for_nobody_there_is_seldom_named():
    """400 texts under another key at a rate of 0.05: more than 39 are named or ambiguous with probability 2e-4."""
    mark, other = Gumbel(key_secret(SEED, 0), 2), Gumbel(key_secret(SEED, 1), 2)
    random = np.random.default_rng(9)
    tokens = batch_tokens([random.integers(1000, 9000, 24).tolist() for _ in range(400)])
    for under in (mark, other):
        named = name(search(under, tokens, np.arange(400), 30, MIN_SCORED), 30, 0.05)
        assert sum(int(hits.sum()) for hits in named) <= 39


def test_limits_count_prompts_too():
    """Texts of 40 users whose prompts decide which are found are worth little more than their four prompts."""
    p = np.repeat([-12.0, 0.0], 20)
    said, own = Search(p, np.zeros(40), np.zeros(40), np.full(40, 200)), np.arange(40)
    few, many = (
        next(row for row in identification_figures(SETTINGS["gumbel"], {50: said}, own, prompts, [1e-6]))
        for prompts in (np.repeat([*"abcd"], 10), np.arange(40).astype(str))
    )
    assert few["value"] == many["value"] == 0.5
    assert many["high"] - many["low"] < 0.4 < 0.8 < few["high"] - few["low"]


def test_figures_count_users_and_lengths():
    own = np.array([4, 4, 9, 9, 9])
    said = Search(
        own_p=np.array([-12.0, -3.0, -12.0, 0.0, -30.0]),
        first=np.array([-1.0, -9.0, -12.0, 0.0, -2.0]),
        second=np.zeros(5),
        scored=np.array([160, 60, 170, 5, 149]),
    )
    rows = identification_figures(SETTINGS["gumbel"], {10: said}, own, np.array([*"abcda"]), [1e-6])
    told = {(r["measure"], r["least_scored"]): (r["hits"], r["n"], r["clusters"]) for r in rows}
    assert told["found", None] == (2, 5, "2 users, 4 prompts")
    assert told["wrong", None] == (1, 5, "2 users, 4 prompts")
    assert told["ambiguous", None] == (1, 5, "2 users, 4 prompts")
    assert told["flagged", None] == (3, 5, "2 users, 4 prompts")
    assert told["found", 150] == (1, 2, "2 users, 2 prompts")
    assert told["wrong", 50] == (1, 1, "1 users, 1 prompts")
    assert told["found", 100] == (1, 1, "1 users, 1 prompts")
    assert told["found", 0] == (0, 1, "1 users, 1 prompts")
    both = together([said, said])
    assert both.scored.tolist() == [*said.scored, *said.scored]
