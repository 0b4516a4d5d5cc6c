"""Budgets: work is paid for before it begins; marked text is answered a few times, whatever stands around it."""

import random
import re
import sqlite3
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.detection.sketches import GRAM_BYTES, ONE_GRAM_IN, gram_key, keyed_grams
from scanner.errors import Refused
from scanner.service import marked_grams
from scanner.service.budget import LEAST, Budget, BudgetSpent, Caller, Outcome
from scanner.service.marked_grams import MarkedGrams
from schemas.service import BudgetConfig, DetectorResult

SECRET = bytes(range(32))
KEY = gram_key(SECRET)
HOUR = 3600.0
CALLER, EXPERT = Caller("a", expert=False), Caller("a", expert=True)
FOUND, NOT_FOUND, TOO_SHORT = DetectorResult.FOUND, DetectorResult.NOT_FOUND, DetectorResult.TOO_SHORT


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budget(tmp_path, clock) -> Iterator[Budget]:
    made = Budget(tmp_path, SECRET, BudgetConfig(near_duplicates=3, texts=20, most_texts=50), clock)
    yield made
    made.close()


def text_of(seed: int, words: int = 200) -> str:
    drawn = random.Random(seed)
    return " ".join("".join(drawn.choices("abcdefghijklmnop", k=drawn.randint(2, 9))) for _ in range(words))


def edited(text: str, share: float, seed: int) -> str:
    drawn, words = random.Random(seed), text.split()
    for place in drawn.sample(range(len(words)), round(share * len(words))):
        words[place] = text_of(drawn.randrange(10**9), 1)
    return " ".join(words)


def asked(
    budget: Budget,
    text: str,
    result: DetectorResult | None = NOT_FOUND,
    caller: Caller = CALLER,
    *,
    marked: str | None = None,
    seconds: float = 0.01,
) -> bool:
    """Whether a text is answered. result: None, nobody can look at it; marked: its marked part, all unless stated."""
    (payment,) = budget.pay(caller, [(budget.digest(text.encode()), seconds)])
    if isinstance(payment, BudgetSpent):
        return False
    part = keyed_grams(text if marked is None else marked, KEY)
    return budget.settle([Outcome(payment, result, keyed_grams(text, KEY), part)]) == [None]


def paid(budget: Budget, caller: Caller = CALLER) -> float:
    return round(budget._paid.get(budget._name(caller), 0.0), 6)


@pytest.mark.parametrize(
    ("result", "seconds", "cost"),
    [
        (NOT_FOUND, 0.01, 1),
        (FOUND, 2.5, 2.5),
        (TOO_SHORT, 0.01, LEAST),
        (TOO_SHORT, 0.7, 0.7),
        (None, 2.5, LEAST),  # nobody worked on it
    ],
)
def test_costs_of_a_text(budget, result, seconds, cost):
    assert asked(budget, text_of(1), result, seconds=seconds)
    assert paid(budget) == cost
    assert budget._total == pytest.approx(cost)


def test_work_is_paid_for_before_it_begins_and_though_nobody_waits_for_its_end(budget):
    """A caller who was gone, or whose text had a process killed, paid nothing."""
    budget.pay(CALLER, [(b"1" * 32, 0.01), (b"2" * 32, 4.0)])
    assert paid(budget) == 5
    budget.pay_more(CALLER, 6.5)
    assert paid(budget) == 11.5


def test_repeated_and_short_texts_are_paid_for(budget):
    """They were free, so that one caller could have processes work, and the log grow, without end."""
    assert asked(budget, text_of(1))
    repeats = 0
    while asked(budget, text_of(1)):
        repeats += 1
    assert repeats == 190
    other = Caller("b", expert=False)
    assert asked(budget, text_of(1), caller=other), "others may still ask about it"
    shorts = 0
    while asked(budget, "a", TOO_SHORT, other):
        shorts += 1
    assert 180 <= shorts <= 200


def test_texts_that_are_asked_about_at_once_are_no_more_than_a_caller_has(budget):
    payments = budget.pay(CALLER, [(text_of(seed).encode()[:32], 0.01) for seed in range(30)])
    assert [isinstance(each, BudgetSpent) for each in payments] == [False] * 20 + [True] * 10


def test_a_caller_has_a_budget_all_have_one_and_no_crowd_shuts_an_expert_out(budget):
    assert [asked(budget, text_of(seed)) for seed in range(100, 125)] == [True] * 20 + [False] * 5
    callers = [Caller(f"c{seed}", expert=False) for seed in range(35)]
    assert [asked(budget, text_of(200 + seed), caller=one) for seed, one in enumerate(callers)] == [True] * 30 + [
        False
    ] * 5
    assert asked(budget, text_of(300), caller=EXPERT), "of the name of a caller who has nothing left"


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2])
def test_variants_of_marked_text_share_one_budget_over_callers(budget, share):
    text = text_of(2)
    variants = [text, *(edited(text, share, seed) for seed in range(8))]
    callers = [Caller(f"caller {place}", expert=False) for place in range(len(variants))]
    given = [asked(budget, one, FOUND, caller=caller) for one, caller in zip(variants, callers, strict=True)]
    assert given[:3] == [True] * 3
    assert given[-1] is False
    assert sum(given) <= (3 if share < 0.2 else 6)
    assert asked(budget, text, FOUND), "the text itself stays answerable"
    assert asked(budget, text_of(3), FOUND), "and so does another one"


@pytest.mark.parametrize("padding", [1_000, 11_000, 100_000])
def test_marked_text_is_known_in_whatever_text_it_stands(budget, padding):
    """22 of 30 edits were answered within 11 kB of fresh text, whose passages were compared and not the marked part."""
    piece, given, at = text_of(4, 120), [], padding // 3 - 130
    for seed in range(12):
        variant = edited(piece, 0.02, seed)
        fresh = text_of(1_000 + seed, padding // 6)
        text = f"{fresh[:at]} {variant} {fresh[at:padding]}"
        given.append(asked(budget, text, FOUND, Caller(f"{seed}", expert=False), marked=variant))
    assert given == [True] * 3 + [False] * 9


def test_text_that_is_not_marked_is_nobodys_to_use_up(budget):
    """A footer that marked texts have, too, is no part of the mark."""
    footer = text_of(5, 60)
    for seed in range(6):
        assert asked(budget, f"{text_of(10 + seed)} {footer}")
    for seed in range(3):
        marked = text_of(20 + seed)
        assert asked(budget, f"{marked} {footer}", FOUND, marked=marked)
    assert asked(budget, f"{text_of(30)} {footer}")


def test_answers_that_a_mark_is_gone_count_once_it_was_told(budget):
    """Else who edits it until it is not found would have as many answers of that kind as he likes."""
    text = text_of(6)
    assert asked(budget, edited(text, 0.05, 0), NOT_FOUND)
    assert asked(budget, text, FOUND)
    assert [asked(budget, edited(text, 0.05, seed), NOT_FOUND) for seed in range(1, 5)] == [True, True, False, False]


def test_cut_padded_and_disguised_marked_text_is_known(budget):
    text, words = text_of(7), text_of(7).split()
    assert all(asked(budget, one, FOUND) for one in (text, text_of(8) + " " + text, text + text_of(9)))
    for one in (" ".join(words[100:]), " ".join(words[:60]), text.upper(), text.replace(" ", "\n\n")):
        assert not asked(budget, one, FOUND)


def test_a_short_marked_text_is_known_by_half_of_it(budget):
    short = text_of(11, 20)
    assert len(keyed_grams(short, KEY)) < 20
    assert [asked(budget, short + end, FOUND) for end in ("", "!", "?", ".")] == [True] * 3 + [False]


def test_experts_ask_about_marked_text_and_use_up_nobodys(budget):
    text = text_of(12)
    assert all(asked(budget, edited(text, 0.05, seed), FOUND, EXPERT) for seed in range(12))
    assert asked(budget, edited(text, 0.05, 99), FOUND)


def test_what_is_paid_and_told_survives_a_restart(budget, tmp_path, clock):
    text = text_of(10)
    assert all(asked(budget, edited(text, 0.05, seed), FOUND) for seed in range(3))
    budget.close()
    again = Budget(tmp_path, SECRET, BudgetConfig(texts=6), clock)
    assert paid(again) == 3
    assert not asked(again, edited(text, 0.05, 3), FOUND)
    assert asked(again, edited(text, 0.05, 2), FOUND), "it was answered before"
    again.close()


def test_a_window_ends_and_leaves_nothing_behind_in_any_file(budget, clock, tmp_path):
    text = text_of(30)
    assert all(asked(budget, edited(text, 0.01, seed), FOUND) for seed in range(3))
    (spent,) = [each for each in budget.settle(looked_at(budget, edited(text, 0.01, 3))) if each]
    assert spent.seconds == 24 * HOUR
    traces = [budget.digest(edited(text, 0.01, 0).encode()), budget._name(CALLER)]
    assert all(any(trace in path.read_bytes() for path in tmp_path.iterdir()) for trace in traces)
    clock.now += 24 * HOUR
    budget.begin_window()
    assert (budget._paid, budget._total) == ({}, 0)
    for path in tmp_path.iterdir():
        assert not any(trace in path.read_bytes() for trace in traces)
    assert not budget.marked.counts(keyed_grams(text, KEY)).any()
    assert asked(budget, edited(text, 0.01, 3), FOUND)


def looked_at(budget: Budget, text: str) -> list[Outcome]:
    payments = budget.pay(CALLER, [(budget.digest(text.encode()), 0.01)])
    return [Outcome(each, FOUND, keyed_grams(text, KEY), keyed_grams(text, KEY)) for each in payments]


def test_a_clock_that_went_ahead_and_back_ends_no_budget_and_none_for_ever(budget, clock):
    clock.now += 10 * 365 * 24 * HOUR
    assert all(asked(budget, text_of(seed)) for seed in range(500, 520))
    clock.now -= 10 * 365 * 24 * HOUR
    assert not asked(budget, text_of(520)), "the budget is still used up"
    clock.now += 24 * HOUR
    assert asked(budget, text_of(521)), "and not for ten years"


@pytest.mark.seconds
def test_two_servers_use_no_budget_together(budget, tmp_path):
    """Each would wait for the other's lock with all that it answers."""
    with pytest.raises(Refused, match="its own writable `state` folder"):
        Budget(tmp_path, SECRET, BudgetConfig())


def test_a_disk_without_room_for_the_counts_is_refused_in_a_sentence(tmp_path, monkeypatch):
    """A process whose mapped file has no room ends at a write, without a word."""
    monkeypatch.setattr(marked_grams, "_PLACES", 2**50)
    with pytest.raises(Refused, match=r"budget\.sqlite: cannot be used"):
        Budget(tmp_path, SECRET, BudgetConfig())


def test_a_full_disk_loses_no_payment_without_a_word(budget):
    """All that are settled together are undone with one that cannot be written."""
    assert asked(budget, text_of(600))
    (pages,) = budget._db.execute("PRAGMA page_count").fetchone()
    budget._db.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    many = Caller("b", expert=True)
    payments = budget.pay(many, [(budget.digest(b"%d" % number), 0.01) for number in range(500)])
    grams = keyed_grams("", KEY)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        budget.settle([Outcome(each, NOT_FOUND, grams, grams) for each in payments])
    assert not any(budget._is_answered(each.digest) for each in payments)
    assert (paid(budget), paid(budget, many)) == (1, 500)
    budget._db.execute(f"PRAGMA max_page_count = {2**30}").fetchone()
    assert asked(budget, text_of(602), caller=EXPERT)


def plain_grams(text: str, key) -> list[int]:
    """The kept hashes of n-grams by plain integers of Python, one n-gram after the other."""
    full, hashes = 2**64, set()
    raw = re.sub(r"\s+", " ", text.casefold()).strip(" ").encode()
    for begin in range(len(raw) - GRAM_BYTES + 1):
        value = (
            sum(byte * int(factor) for byte, factor in zip(raw[begin : begin + GRAM_BYTES], key, strict=True)) % full
        )
        value = (value + 0x9E3779B97F4A7C15) % full
        value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) % full
        value = ((value ^ value >> 27) * 0x94D049BB133111EB) % full
        hashes.add(value ^ value >> 31)
    return sorted(value for value in hashes if value % ONE_GRAM_IN == 0)


@given(st.text(max_size=400), st.binary(min_size=1, max_size=40))
def test_the_grams_of_a_text_are_a_part_of_all_its_ngrams(text, secret):
    key = gram_key(secret)
    assert keyed_grams(text, key).tolist() == plain_grams(text, key)


def test_grams_of_two_secrets_share_nothing():
    one, other = (keyed_grams(text_of(12), key) for key in (KEY, gram_key(b"other")))
    assert not set(one.tolist()) & set(other.tolist())


def test_counts_of_many_grams_are_never_too_low_and_seldom_too_high(tmp_path):
    """Beside a plain dict: 400,000 n-grams, up to 5 times each; a twentieth of the places is taken."""
    drawn, counts = np.random.default_rng(3), MarkedGrams(tmp_path / "counts")
    grams = np.unique(drawn.integers(2**61, size=400_000, dtype=np.uint64) * np.uint64(ONE_GRAM_IN))
    times = drawn.integers(6, size=len(grams))
    for place in range(5):
        counts.add(grams[times > place])
    found = counts.counts(grams)
    assert (found >= times).all()
    assert (found > times).mean() < 0.01


def test_counts_end_where_a_byte_does(tmp_path):
    counts, grams = MarkedGrams(tmp_path / "counts"), np.array([8, 16], np.uint64)
    for _ in range(300):
        counts.add(grams)
    assert counts.counts(grams).tolist() == [255, 255]
