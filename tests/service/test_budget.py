"""Budgets by text: identical texts cost nothing, variants share one budget, whoever asks and however they differ."""

import random
import re
import sqlite3

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from scanner.detection.sketches import GRAM_BYTES, MOST_GRAMS, PASSAGE_BYTES, gram_key, keyed_sketches
from scanner.errors import Refused
from scanner.service.budget import (
    _COMPARED,
    ALIKE,
    SECONDS_BETWEEN_CHECKPOINTS,
    Budget,
    BudgetSpent,
    Charge,
)
from scanner.service.passages import FEWEST_SHARED, PassageIndex, containments, indexed
from schemas.service import BudgetConfig

SECRET = bytes(range(32))
KEY = gram_key(SECRET)
HOUR = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budget(tmp_path, clock):
    made = Budget(
        tmp_path / "budget.sqlite", SECRET, BudgetConfig(hours=24, near_duplicates=3, texts=20, most_texts=50), clock
    )
    yield made
    made.close()


def text_of(seed: int, words: int = 200) -> str:
    drawn = random.Random(seed)
    return " ".join("".join(drawn.choices("abcdefghijklmnop", k=drawn.randint(2, 9))) for _ in range(words))


def charge(budget: Budget, text: str, caller: str = "a", *, expert: bool = False) -> bool:
    """Whether a text was charged, or was free."""
    return budget.charge([charge_of(budget, text, caller, expert=expert)]) == [None]


def charge_of(budget: Budget, text: str, caller: str, *, expert: bool = False) -> Charge:
    return Charge(budget.digest(text.encode()), caller, keyed_sketches(text, KEY), expert)


def edited(text: str, share: float, seed: int) -> str:
    drawn, words = random.Random(seed), text.split()
    for place in drawn.sample(range(len(words)), round(share * len(words))):
        words[place] = text_of(drawn.randrange(10**9), 1)
    return " ".join(words)


def rows(budget: Budget) -> int:
    tables = (budget._db.execute(f"SELECT count(*) FROM {name}") for name in ("texts", "firsts", "charges"))
    return len(budget._index) + sum(table.fetchone()[0] for table in tables)


def test_an_identical_text_costs_nothing_whoever_asks_and_however_often(budget):
    text = text_of(1)
    assert all(charge(budget, text, caller) for caller in "abc" * 50)
    assert budget._db.execute("SELECT count(*) FROM charges").fetchone() == (1,)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.4])
def test_variants_of_a_text_share_one_budget_over_callers(budget, share):
    text = text_of(2)
    variants = [text, *(edited(text, share, seed) for seed in range(5))]
    assert [charge(budget, one, f"caller {place}") for place, one in enumerate(variants)] == [True] * 3 + [False] * 3
    assert charge(budget, text, "another"), "the text itself stays answerable"
    assert charge(budget, text_of(3)), "and so does another text"


def test_cut_and_padded_texts_are_variants(budget):
    text, words = text_of(4), text_of(4).split()
    assert all(charge(budget, one) for one in (text, " ".join(words[:100]), text_of(5) + " " + text + " " + text_of(6)))
    for one in (
        " ".join(words[100:]),
        text_of(7, 900) + text + text_of(8, 900),
        text.upper(),
        text.replace(" ", "\n\n"),
    ):
        assert not charge(budget, one)


@pytest.mark.seconds
@pytest.mark.parametrize("times", [20, 100])
def test_text_within_a_long_one_meets_its_budget(times):
    """A sketch of the whole found 0 of 20 that were padded by 30 texts: its smallest hashes were the padding's."""
    for seed in range(20):
        text = text_of(seed, 150)
        padding = [text_of(1000 + times * seed + place) for place in range(times)]
        padded = " ".join([*padding[: times // 3], text, *padding[times // 3 :]])
        assert len(keyed_sketches(padded, KEY)) > len(padded) / PASSAGE_BYTES - 1
        assert any(
            containment(passage, keyed_sketches(text, KEY)[0]) >= ALIKE for passage in keyed_sketches(padded, KEY)
        )


def test_passages_are_charged_each_and_expire(budget, clock):
    parts = [text_of(seed, 600) for seed in range(20)]
    assert charge(budget, " ".join(parts))
    variants = [" ".join([*parts[:place], text_of(99 + place, 600), *parts[place + 1 :]]) for place in (3, 7)]
    assert [charge(budget, one) for one in variants] == [True, True]
    assert not charge(budget, parts[11]), "a part of what was asked about three times"
    assert charge(budget, text_of(77)), "another text"
    clock.now += 25 * HOUR
    budget.expire()
    assert rows(budget) == 0


def test_the_window_slides_and_leaves_nothing_behind(budget, clock):
    text = text_of(9)
    for seed in range(3):
        assert charge(budget, edited(text, 0.1, seed))
        clock.now += HOUR
    (spent,) = budget.charge([charge_of(budget, edited(text, 0.1, 3), "a")])
    assert isinstance(spent, BudgetSpent)
    assert spent.seconds == 21 * HOUR
    clock.now += 21 * HOUR + 1
    assert charge(budget, edited(text, 0.1, 4)), "the first left the window"
    assert not charge(budget, edited(text, 0.1, 5))
    clock.now += 25 * HOUR
    budget.expire()
    assert not budget.is_free(budget.digest(text.encode()))
    assert rows(budget) == 0


def test_it_survives_a_restart(budget, tmp_path, clock):
    text = text_of(10)
    assert all(charge(budget, edited(text, 0.1, seed)) for seed in range(3))
    budget.close()
    again = Budget(tmp_path / "budget.sqlite", SECRET, BudgetConfig(near_duplicates=3), clock)
    assert not charge(again, edited(text, 0.1, 3))
    assert charge(again, edited(text, 0.1, 2)), "it was answered before"
    again.close()


def test_a_caller_has_a_budget_and_the_table_a_bound(budget):
    assert [charge(budget, text_of(seed), "a") for seed in range(100, 125)] == [True] * 20 + [False] * 5
    assert [charge(budget, text_of(seed), f"c{seed}") for seed in range(200, 235)] == [True] * 30 + [False] * 5


def test_a_long_text_costs_its_caller_as_much_as_so_many_short_ones(budget, tmp_path, clock):
    """Three long ones of one caller, with a part of each of a thousand texts, had these refused, and cost him three."""
    long = " ".join(text_of(seed, 600) for seed in range(900, 920))
    passages = len(keyed_sketches(long, KEY))
    assert 16 < passages <= 24
    assert charge(budget, long, "a")
    assert [charge(budget, text_of(seed), "a") for seed in range(920, 940)] == [True] * 17 + [False] * 3
    assert charge(budget, long + "!", "Ms Roth", expert=True)
    assert budget._total == 21, "an expert's text counts once: it is charged to no other text"
    budget.close()
    again = Budget(tmp_path / "budget.sqlite", SECRET, BudgetConfig(texts=20), clock)
    assert not again.has_left("a", expert=False)
    clock.now += 25 * HOUR
    again.expire()
    assert (again._total, again.has_left("a", expert=False)) == (0, True)
    again.close()


def test_a_table_that_was_made_without_costs_goes_on(budget, tmp_path, clock):
    """One of before also had the hashes of passages, which stand in sketches, too."""
    assert charge(budget, text_of(1))
    budget._db.execute("ALTER TABLE texts DROP COLUMN cost")
    budget._db.execute("CREATE TABLE hashes (hash INTEGER, first INTEGER, PRIMARY KEY (hash, first)) WITHOUT ROWID")
    budget.close()
    again = Budget(tmp_path / "budget.sqlite", SECRET, BudgetConfig(), clock)
    assert again._total == 1
    assert charge(again, text_of(2))
    assert again._total == 2
    assert [charge(again, edited(text_of(1), 0.1, seed), f"c{seed}") for seed in range(3)] == [True, True, False]
    assert not again._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'hashes'").fetchall()
    again.close()


def test_a_crowd_shuts_no_expert_out(budget):
    assert all(charge(budget, text_of(seed), f"c{seed}") for seed in range(300, 350))
    assert not charge(budget, text_of(350), "another")
    assert charge(budget, text_of(351), "Ms Roth", expert=True)


def test_a_caller_with_the_name_of_an_expert_is_another(budget):
    assert [charge(budget, text_of(seed), "Ms Roth") for seed in range(400, 421)][-1:] == [False]
    assert charge(budget, text_of(421), "Ms Roth", expert=True)


def test_nothing_stands_in_any_file_when_the_window_is_over(budget, clock, tmp_path):
    """SQLite's log of writes held digests and sketches on, until later writes took their place."""
    text = text_of(30)
    digest, sketch = budget.digest(text.encode()), keyed_sketches(text, KEY)[0].astype("<u8").tobytes()
    assert charge(budget, text)
    assert any(digest in path.read_bytes() for path in tmp_path.iterdir())
    clock.now += 25 * HOUR
    budget.expire()
    for path in tmp_path.iterdir():
        assert digest not in path.read_bytes()
        assert sketch not in path.read_bytes()


def test_what_is_deleted_stands_in_the_log_of_writes_for_seconds(budget, clock, tmp_path):
    digests = []
    for seed in (32, 33):
        assert charge(budget, text_of(seed))
        digests.append(budget.digest(text_of(seed).encode()))
        clock.now += SECONDS_BETWEEN_CHECKPOINTS / 2
    clock.now += 24 * HOUR - SECONDS_BETWEEN_CHECKPOINTS + 1
    for gone in (1, 2):
        budget.expire()
        assert [budget.is_free(each) for each in digests] == [False] * gone + [True] * (2 - gone)
        clock.now += SECONDS_BETWEEN_CHECKPOINTS / 2
    clock.now += 1
    budget.expire()
    assert not any(digest in path.read_bytes() for path in tmp_path.iterdir() for digest in digests)


def test_texts_of_callers_are_counted_as_the_window_slides(budget, clock):
    for seed in range(30):
        assert charge(budget, text_of(800 + seed), f"c{seed % 4}")
        clock.now += 2 * HOUR
    budget.expire()
    counted = dict(budget._db.execute("SELECT caller, count(*) FROM texts GROUP BY caller"))
    assert dict(budget._texts) == counted
    assert budget._total == sum(counted.values()) == 12


def test_a_clock_that_went_ahead_and_back_ends_no_budget_and_none_for_ever(budget, clock):
    clock.now += 10 * 365 * 24 * HOUR
    assert all(charge(budget, text_of(seed)) for seed in range(500, 520))
    clock.now -= 10 * 365 * 24 * HOUR
    assert not charge(budget, text_of(520)), "the budget is still used up"
    clock.now += 25 * HOUR
    assert charge(budget, text_of(521)), "and not for ten years"
    assert rows(budget) == 1 + 1 + 1 + len(indexed(keyed_sketches(text_of(521), KEY)[0]))


@pytest.mark.seconds
def test_two_servers_use_no_budget_together(budget, tmp_path):
    """Each would wait for the other's lock with all that it answers."""
    with pytest.raises(Refused, match="a `state` of its own"):
        Budget(tmp_path / "budget.sqlite", SECRET, BudgetConfig())


def test_experts_are_charged_by_caller_alone(budget):
    text = text_of(11)
    assert all(charge(budget, edited(text, 0.05, seed), "expert", expert=True) for seed in range(12))
    assert charge(budget, edited(text, 0.05, 99)), "their questions use up nobody's variants"


def plain_sketch(text: str, key) -> list[int]:
    """The smallest hashes of a passage's n-grams by plain integers of Python, one n-gram after the other."""
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
    return sorted(hashes)[:MOST_GRAMS]


def containment(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> float:
    """Share of the smaller passage's n-grams that the other holds, as the module says, by sets."""
    bound = min([int(each[-1]) for each in (one, other) if len(each) == MOST_GRAMS], default=2**64)
    kept = [{value for value in each.tolist() if value <= bound} for each in (one, other)]
    shared = len(kept[0] & kept[1])
    return shared / min(map(len, kept)) if shared >= FEWEST_SHARED else 0.0


@given(st.text(max_size=400), st.binary(min_size=1, max_size=40))
def test_a_sketch_has_the_smallest_hashes_of_all_ngrams(text, secret):
    key = gram_key(secret)
    expected = plain_sketch(text, key)
    assert [found.tolist() for found in keyed_sketches(text, key)] == ([expected] if expected else [])


@pytest.mark.parametrize("text", [text_of(13, 500), text_of(14, 12) * 40, "ab" * 1500, text_of(15, 100) + "ab" * 1500])
def test_a_sketch_of_a_long_passage_has_the_smallest_hashes_too(text):
    """Texts whose n-grams repeat have fewer small hashes than others."""
    (found,) = keyed_sketches(text, KEY)
    assert found.tolist() == plain_sketch(text, KEY)


def test_sketches_of_two_secrets_share_nothing():
    text = text_of(12)
    one, other = (np.concatenate(keyed_sketches(text, key)) for key in (KEY, gram_key(b"other")))
    assert not set(one.tolist()) & set(other.tolist())


def test_containment_is_that_of_the_whole_sets():
    """Below the smaller of the largest hashes both sketches are complete: beside the sets themselves, 60 pairs."""
    errors = []
    for seed in range(60):
        text = text_of(seed, 300)
        other = edited(text, (seed % 6) / 10, seed)[: 2000 - 20 * seed]
        whole = [{one[i : i + GRAM_BYTES] for i in range(len(one) - GRAM_BYTES + 1)} for one in (text, other)]
        true = len(whole[0] & whole[1]) / min(map(len, whole))
        errors.append(containment(*(keyed_sketches(one, KEY)[0] for one in (text, other))) - true)
    assert abs(float(np.mean(errors))) < 0.02
    assert max(map(abs, errors)) < 0.25  # five standard deviations of a share of a hundred hashes


def test_containments_of_many_are_those_of_each_by_sets():
    """Sketches of all lengths, also of one hash, beside plain sets of Python: equal to the last bit."""
    texts = [
        "twelve bytes",
        *(edited(text_of(seed // 8, 1 + 9 * (seed % 37)), seed % 8 / 7, seed) for seed in range(120)),
    ]
    sketches = [each for text in texts for each in keyed_sketches(text, KEY)]
    others, sizes = np.concatenate(sketches), np.array([len(each) for each in sketches])
    assert sizes.min() == 1
    assert sizes.max() == MOST_GRAMS
    found = np.array([containments(one, others, sizes) for one in sketches])
    assert found.tolist() == [[containment(one, other) for other in sketches] for one in sketches]
    assert 0 < (found[~np.eye(len(found), dtype=bool)] > 0).mean() < 0.5


def test_near_duplicates_are_those_by_the_containment_of_each_pair(budget):
    """Texts share words by chance, none to all; fewer than are compared."""
    texts = [edited(text_of(seed // 6), seed % 6 / 5, seed) for seed in range(30)]
    sketches = [keyed_sketches(text, KEY)[0] for text in texts]
    firsts = [budget._begin(each) for each in sketches]
    counts = []
    for one in sketches:
        expected = [first for first, other in zip(firsts, sketches, strict=True) if containment(one, other) >= ALIKE]
        assert sorted(budget.near_duplicates_of(one)) == expected
        counts.append(len(expected))
    assert min(counts) == 1
    assert max(counts) >= 3


def test_a_passage_is_compared_with_those_that_share_most_indexed_hashes_the_newest_of_equal_ones(budget):
    """Beside sets of Python; a text edited so often that each shares hashes with more than are compared."""
    sketches = [keyed_sketches(edited(text_of(0, 300), 0.4, seed), KEY)[0] for seed in range(150)]
    hashes_of = {budget._begin(each): set(indexed(each).tolist()) for each in sketches}
    ties = 0
    for one in sketches[:10]:
        shared = {first: len(hashes & set(indexed(one).tolist())) for first, hashes in hashes_of.items()}
        ordered = sorted((first for first in shared if shared[first]), key=lambda first: (-shared[first], -first))
        assert len(ordered) > _COMPARED
        assert budget._index.most_alike(one, _COMPARED) == ordered[:_COMPARED]
        ties += shared[ordered[_COMPARED - 1]] == shared[ordered[_COMPARED]]
    assert ties > 3
    assert budget._index.most_alike(keyed_sketches("another text", KEY)[0], _COMPARED) == []


def test_an_index_of_passages_that_come_and_go_is_that_of_sets():
    """4,000 steps, in which its room ends many times, beside a set for each passage; numbers come again."""
    drawn, index, kept = random.Random(5), PassageIndex(), dict[int, NDArray[np.uint64]]()
    for step in range(4000):
        if kept and drawn.random() < (0.3 if step < 2000 else 0.6):
            gone = drawn.choice(list(kept))
            index.remove(gone)
            del kept[gone]
        else:
            number = next(one for one in range(1, len(kept) + 2) if one not in kept)
            kept[number] = np.unique(np.array([drawn.randrange(600) for _ in range(drawn.randrange(60))], np.uint64))
            index.add(number, kept[number])
        if step % 20 == 0:
            wanted = np.unique(np.array([drawn.randrange(600) for _ in range(40)], np.uint64))
            shared = {one: len(set(indexed(kept[one]).tolist()) & set(indexed(wanted).tolist())) for one in kept}
            ordered = sorted((one for one in kept if shared[one]), key=lambda one: (-shared[one], -one))
            assert index.most_alike(wanted, 50) == ordered[:50]
            assert len(index) == sum(len(indexed(each)) for each in kept.values())
    assert len(kept) > 100


def test_a_full_disk_loses_no_charge_without_a_word(budget):
    """All that are charged together are undone with one that cannot be written."""
    assert charge(budget, text_of(600))
    (pages,) = budget._db.execute("PRAGMA page_count").fetchone()
    budget._db.execute(f"PRAGMA max_page_count = {pages + 3}").fetchone()
    together = [charge_of(budget, text, "b") for text in map(text_of, range(601, 615))]
    assert budget.charge(together[:1]) == [None], "a few still have room"
    with pytest.raises(sqlite3.OperationalError, match="full"):
        budget.charge(together[1:])
    assert [budget.is_free(each.digest) for each in together] == [True] + 13 * [False]
    assert budget._texts.total() == budget._total == 2
    budget._db.execute(f"PRAGMA max_page_count = {2**30}").fetchone()
    assert len(budget._index) == sum(len(indexed(keyed_sketches(text_of(seed), KEY)[0])) for seed in (600, 601))
    assert charge(budget, text_of(602), "b")


def test_a_passage_that_cannot_be_deleted_is_found_until_it_is(budget, clock):
    for seed in range(620, 623):
        assert charge(budget, text_of(seed))
    entries, one = len(budget._index), keyed_sketches(text_of(621), KEY)[0]
    (found,) = budget.near_duplicates_of(one)
    budget._db.execute("CREATE TEMP TRIGGER full BEFORE DELETE ON firsts BEGIN SELECT RAISE(ABORT, 'full'); END")
    clock.now += 25 * HOUR
    with pytest.raises(sqlite3.IntegrityError, match="full"):
        budget.expire()
    assert (len(budget._index), budget.near_duplicates_of(one)) == (entries, [found])
    budget._db.execute("DROP TRIGGER full")
    clock.now += 2
    budget.expire()
    assert (len(budget._index), budget.near_duplicates_of(one)) == (0, [])


def test_a_caller_who_has_no_text_left_is_refused_before_any_work_until_the_window_ends(budget, clock):
    assert all(charge(budget, text_of(seed)) for seed in range(700, 720))
    assert not budget.has_left("a", expert=False)
    assert budget.has_left("b", expert=False)
    known, new = (budget.digest(text_of(seed).encode()) for seed in (700, 720))
    free, spent = budget.refusals([known, new], "a", expert=False)
    assert free is None
    assert isinstance(spent, BudgetSpent)
    clock.now += 25 * HOUR
    assert budget.refusals([new], "a", expert=False) == [None]
    assert budget.has_left("a", expert=False)
