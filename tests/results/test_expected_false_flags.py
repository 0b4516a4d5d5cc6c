"""How many flags are expected to be false: a plain loop, simulated nights, and the lists that say it."""

import json
from datetime import timedelta

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.results.expected_false_flags import ExpectedFalseFlags, expected_false_flags, flags_by_chance
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.storage.data_files import write_file
from schemas.tables import SCANS
from tests.support.command_line import call
from tests.support.rows import NOW, add_scanned, filled, verdict

KINDS = {"text_sha256": pl.Binary, "key_id": pl.String, "message": pl.Int64, "messages_tested": pl.Int64}
MESSAGES = {"all": 1, "few": 19, "some": 50, "many": 100_000}

flags = st.sampled_from(sorted(MESSAGES)).flatmap(
    lambda key: st.tuples(
        st.integers(0, 9).map(lambda text: bytes([text]) * 32),
        st.just(key),
        st.none() | st.integers(0, min(MESSAGES[key], 40) - 1),
        st.just(MESSAGES[key]),
    )
)


def by_hand(rows: list[tuple], chance_flags: float) -> ExpectedFalseFlags:
    """Count one row at a time."""
    number, reserved, others = 0.0, 0, False
    for _, _, message, messages in set(rows):
        of_key = [other for other in range(messages) if other % 20 == 19]
        if message is None or not of_key:
            others = True
        elif message in of_key:
            reserved += 1
            number += messages / len(of_key)
    by_chance = chance_flags if others or reserved == 0 else 0.0
    return ExpectedFalseFlags(number + by_chance, len(set(rows)), reserved, by_chance)


def estimate(rows: list[tuple], chance_flags: float) -> ExpectedFalseFlags:
    return expected_false_flags(pl.DataFrame(rows, KINDS, orient="row").lazy(), chance_flags)


@given(st.lists(flags, max_size=30), st.floats(0, 100))
def test_against_a_plain_loop(rows, chance_flags):
    assert estimate(rows, chance_flags) == pytest.approx(by_hand(rows, chance_flags))


@given(st.lists(flags, max_size=20), st.floats(0, 100))
def test_copies_count_once(rows, chance_flags):
    assert estimate(rows + rows[::-1], chance_flags) == pytest.approx(estimate(rows, chance_flags))


def night(random: np.random.Generator, texts: int, marked: int, messages: int, scale: float) -> tuple[list[tuple], int]:
    """Flags of a night whose scores have a law of this scale, where 1 is right; and how many are false.

    Texts are flagged where the best of their messages scores above 6. Marked texts come on top, for messages that
    somebody can hold.
    """
    scores = random.exponential(scale, (texts, messages))
    false = scores.argmax(axis=1)[scores.max(axis=1) > 6]
    held = random.choice([message for message in range(messages) if message % 20 != 19], marked)
    best = [*false.tolist(), *held.tolist()]
    return [(i.to_bytes(32, "big"), "key", message, messages) for i, message in enumerate(best)], len(false)


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_unbiased_under_right_and_broken_laws(scale):
    """100 nights of 5,000 unmarked texts; the error of the sum is √(F·(1−s)/s), and 4.5 errors are one in 10^5."""
    random = np.random.default_rng(3)
    estimated = false = 0.0
    for _ in range(100):
        rows, of_night = night(random, 5000, 300, 40, scale)
        estimated += estimate(rows, 0.0).number
        false += of_night
    assert false > 40_000
    assert abs(estimated - false) < 4.5 * np.sqrt(false * 19)


@pytest.mark.costly
def test_conservative_where_few_flags_are_false():
    """4,000 nights of F false flags, three in the mean: the number's mean is F's and N·p where none is reserved."""
    random, chance_flags, share = np.random.default_rng(4), 3.0, 0.05
    false = random.poisson(chance_flags, 4000)
    numbers = []
    for count in false:
        messages = [*random.integers(0, 100, count).tolist(), 7, 8]  # and two flags that are right
        numbers.append(
            estimate([(bytes([i]) * 32, "key", m, 100) for i, m in enumerate(messages)], chance_flags).number
        )
    error = np.std(numbers) / np.sqrt(len(numbers))
    none_reserved = np.exp(-chance_flags * share)
    assert abs(np.mean(numbers) - chance_flags * (1 + none_reserved)) < 4.5 * error
    assert np.mean(numbers) > np.mean(false)


def put(folder: str, messages: list[int | None], audit: str = "no alarm") -> str:
    """Results of a scan of 1,000 scored documents, at a rate of 1e-6, that flagged texts for these messages."""
    open_tables(folder)
    counts = {"documents": 1010, "quarantined": 5, "too_short": 3, "filtered": 2}
    rows = [
        verdict(i, user="alice", text_sha256=bytes([i]) * 32, message=message, messages_tested=100, log10_p_global=-7.0)
        for i, message in enumerate(messages)
    ]
    add_scanned(folder, "one", rows, **counts)
    scan = filled(SCANS, scan_id="scan", audited_scans=["scan"], audit=audit)
    file = write_file(folder, "scans", [pa.RecordBatch.from_pylist([scan], SCANS)])
    commit(folder, "scans", [TableEntry("scans", (file,) if file else ())])
    return folder


def told(folder: str, *arguments: str) -> tuple[dict | None, str]:
    """The number as JSON has it, and the words below the list."""
    found = json.loads(call("flagged", folder, "--format", "json", *arguments)[1])["expected_false"]
    said = [line for line in call("flagged", folder, *arguments)[1].splitlines() if line.startswith("false flags: ")]
    return found, "".join(said).removeprefix("false flags: ")


def test_the_list_says_it(tmp_path):
    folder = put(str(tmp_path), [19, 39, *[5] * 40])
    words = "about 40 of 42 expected, because 2 are for reserved messages, which no user has"
    assert told(folder) == ({"number": 40.0, "flags": 42, "reserved": 2, "by_chance": 0.0}, words)
    assert told(folder, "--group-by", "account")[1] == words
    assert told(folder, "--limit", "1")[1] == words
    number, said = told(folder, "--user", "alice")
    assert number == {"number": pytest.approx(1e-3), "flags": 42, "reserved": 0, "by_chance": pytest.approx(1e-3)}
    assert said == "at most 0.001 of 42 expected, by chance (N·p)"


def test_flags_without_control_add_what_chance_makes(tmp_path):
    number, said = told(put(str(tmp_path), [3, 19, None]))
    assert number == {"number": pytest.approx(20.001), "flags": 3, "reserved": 1, "by_chance": pytest.approx(1e-3)}
    words = (
        "about 3 of 3 expected, because 1 is for a reserved message, which no user has; at most 0.001 of them by chance"
    )
    assert said == f"{words} (N·p)"


def test_after_an_alarm_it_is_withheld(tmp_path):
    assert told(put(str(tmp_path), [3, 19], audit="alarm")) == (None, "")


def test_chance_counts_the_scored_texts_of_the_time(tmp_path):
    folder = put(str(tmp_path), [3])
    assert flags_by_chance(folder, 1.0) == pytest.approx(1000 * 1e-6)
    assert flags_by_chance(folder, 1e-8) == pytest.approx(1000 * 1e-8)
    assert flags_by_chance(folder, 1.0, since=NOW, before=NOW + timedelta(1)) == pytest.approx(1000 * 1e-6)
    assert flags_by_chance(folder, 1.0, since=NOW + timedelta(1)) == 0


def test_while_no_scan_has_ended_nothing_is_said(tmp_path):
    open_tables(str(tmp_path))
    add_scanned(str(tmp_path), "one", [verdict(0, user="alice", log10_p_global=-7.0)])
    assert flags_by_chance(str(tmp_path), 1.0) is None
    assert told(str(tmp_path)) == (None, "")
