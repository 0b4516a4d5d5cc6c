"""Nights with a pass in which a model reads: what it finds, once, and what it leaves as it was."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from scanner import results
from scanner.results.transactions import read_whole
from schemas.words import LEVELS
from tests.support.foregone import Writes, chain_key, chain_model, writer_of_foregone  # noqa: F401 - fixtures
from tests.support.groups import USERS, held
from tests.support.night import Night
from tests.support.two_keys import words_of_one_token

pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("without_ray")]
RATE = 1e-6


@pytest.fixture(scope="module")
def write(chain_key) -> Writes:  # noqa: F811
    return writer_of_foregone(chain_key[1], words_of_one_token())


@pytest.fixture
def foregone(tmp_path, chain_key, chain_model, write) -> Night:  # noqa: F811
    """Two files with texts of few chosen words, some of them marked for users, and long ones that the sum finds."""
    night, of_user = Night(tmp_path, chain_key[0]), held(chain_key)
    marked = [write(of_user[USERS[user]], 25, user) for user in (3, 4)]
    night.write("a", [marked[0], write(None, 25, 11), "too short", None, write(of_user[USERS[5]], 150, 12)])
    night.write("b", [write(None, 40, 21), marked[1], *(write(None, 25, seed) for seed in range(30, 40))])
    night.configure(rate=RATE, more=levels(chain_model))
    return night


def levels(model: Path, more: str = "") -> str:
    return f'[levels]\nmodel = "{model}"\n{more}'


def flags(night: Night) -> pl.DataFrame:
    columns = ["path", "row", "user_id", "naming", "look", "proof", "log10_p_global", "correction"]
    return results.flagged(night.results).select(columns).collect().sort("path", "row")


def test_a_night_finds_by_weights_what_the_sum_does_not_and_no_more(foregone: Night) -> None:
    night = foregone
    outcome = night.scan()
    assert outcome.exit_code == 0
    found = flags(night)
    assert [(Path(path).stem, row) for path, row in found.select("path", "row").iter_rows()] == [
        ("a", 0),
        ("a", 4),
        ("b", 1),
    ]
    assert found["look"].to_list() == [LEVELS, None, LEVELS]
    assert found["user_id"].to_list() == [USERS[3], USERS[5], USERS[4]]
    assert set(found["proof"]) == {"proved"}
    assert found["correction"].to_list() == [2, 2, 2]
    verdicts = night.verdicts()
    assert verdicts.filter("flagged").select("row").to_series().to_list() == [4]
    assert len(verdicts) == 16  # one a document that can be read, as without the pass
    scan = night.last_scan()
    assert (scan["flagged"], scan["level_flags"], scan["level_shards_left"]) == (1, 2, 0)
    assert scan["level_texts"] == 14  # all but the short one, the one without text, and the one that was flagged
    assert len(scan["reader_sha256"]) == 64
    readings = read_whole(night.results, "flag_levels").collect().sort("path", "row")
    assert readings["row"].to_list() == [0, 1]
    texts = [pl.read_parquet(path)["text"][row] for path, row in readings.select("path", "row").iter_rows()]
    assert [len(one) for one in readings["surprise"]] == [*map(len, texts)]
    counts = read_whole(night.results, "audit_counts").filter(kind="decoy_levels").collect()
    assert counts.filter(threshold=counts["threshold"].max())["tests"].sum() == 14


def test_a_second_scan_reads_nothing_again_and_a_new_model_all(foregone: Night, chain_model: Path, tmp_path) -> None:  # noqa: F811
    night = foregone
    night.scan()
    before, tables = flags(night), {name: read_whole(night.results, name).collect() for name in ("verdicts", "flags")}
    outcome = night.scan()
    assert (outcome.totals.shards, night.last_scan()["level_texts"]) == (0, 0)
    assert all(read_whole(night.results, name).collect().equals(rows) for name, rows in tables.items())
    other = tmp_path / "other"
    other.mkdir()
    for file in chain_model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "generation_config.json").write_text('{"temperature": 0.5}')
    night.configure(rate=RATE, more=levels(other))
    night.scan()
    assert night.last_scan()["level_texts"] == 14
    assert flags(night).equals(before)


def test_shares_are_spent_whether_or_not_a_model_reads(foregone: Night, chain_model: Path) -> None:  # noqa: F811
    night = foregone
    night.configure(rate=RATE, more=levels(chain_model, "share = 1e-9"))
    night.scan()
    scan = night.last_scan()
    assert (scan["level_texts"], scan["level_flags"], scan["level_shards_left"]) == (0, 0, 0)
    assert flags(night)["correction"].to_list() == [2]


def test_a_part_of_the_texts_is_drawn_by_a_key_and_not_by_place(foregone: Night, chain_model: Path, write) -> None:  # noqa: F811
    night = foregone
    night.write("c", [write(None, 20, 100 + seed) for seed in range(60)])
    night.configure(rate=RATE, more=levels(chain_model, "share = 0.5"))
    night.scan()
    weighed = night.last_scan()["level_texts"]
    assert 20 < weighed < 54  # 74 texts, each with a chance of a half: 37 ± 4 standard deviations
    assert np.isclose(night.last_scan()["documents"], 77)
