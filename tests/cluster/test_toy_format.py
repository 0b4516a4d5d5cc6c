"""A format from outside scanner/: it is scanned, audited and gets decoys; options that it lacks are refused."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from scanner.detection.one_text import TextCheck, check_text
from scanner.errors import Refused
from scanner.generation import marking_of
from scanner.power import marked_text
from scanner.registry import load_registry, new_key, open_key
from scanner.results import audit_counts, verdicts
from scanner.watermark.formats import FORMATS
from tests.support.night import Night
from tests.support.toy import LawlessFormat, ToyFormat, ToyWorker
from tests.support.two_keys import TOKENIZER

pytestmark = pytest.mark.usefixtures("without_ray")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch) -> Night:
    """A night whose registry holds one key, of the toy format."""
    monkeypatch.setitem(FORMATS, ToyFormat.name, ToyFormat)
    monkeypatch.setitem(FORMATS, "lawless", LawlessFormat)
    folder = tmp_path / "toy"
    folder.mkdir()
    new_key(folder / "registry", "toy", format=ToyFormat.name, salt=3, messages=1, tokenizer=TOKENIZER)
    return Night(folder, folder / "registry")


@pytest.mark.costly
def test_a_night_of_a_format_that_nothing_outside_of_it_knows(toy, words, plain):
    (key,) = load_registry(toy.registry).keys
    mark = open_key(toy.registry, key)
    random = np.random.default_rng(1)
    counting = [word for word, token in zip(words.words, words.tokens, strict=True) if mark.counts(token)]
    text = "".join(" " + counting[i] for i in random.choice(len(counting), 60, replace=False))
    toy.configure(audit="share = 1.0\nall_messages_share = 1.0")
    toy.write("a", [text, *(plain(60, seed) for seed in range(40))])
    outcome = toy.scan(worker=ToyWorker)
    assert outcome.exit_code == 0
    verdicts = toy.verdicts()
    assert verdicts["flagged"].to_list() == [True] + [False] * 40
    assert verdicts["log10_p"][0] == pytest.approx(-60 * np.log10(2.0))
    counts = audit_counts(toy.results).collect()
    decoys = counts.filter(pl.col("label") == "half-of-all;salt=3")
    assert decoys["texts"].max() >= 40
    assert outcome.audit.state == "no alarm"
    (row,) = check_text(TextCheck.of_registry(toy.registry, [], 1e-6), text.encode())
    assert row["log10_p"] == verdicts["log10_p"][0]


def test_what_it_cannot_is_refused_by_its_name(toy, tmp_path):
    (key,) = load_registry(toy.registry).keys
    assert key.commitment is None
    with pytest.raises(Refused, match="'half-of-all' carry no message"):
        new_key(tmp_path / "other", "many", format=ToyFormat.name, messages=2, tokenizer=TOKENIZER)
    with pytest.raises(Refused, match="pepper"):
        new_key(tmp_path / "other", "many", format=ToyFormat.name, messages=1, tokenizer=TOKENIZER, pepper=1)
    with pytest.raises(Refused, match="half-of-all;salt=3: brickscan cannot mark text"):
        marking_of(open_key(toy.registry, key))
    with pytest.raises(Refused, match=ToyFormat.name):
        marked_text(ToyFormat.name, {})


def counted_words(mark, words, number: int) -> str:
    """A text of words that all count under a key."""
    counting = [word for word, token in zip(words.words, words.tokens, strict=True) if mark.counts(token)]
    return "".join(" " + word for word in counting[:number])


@pytest.mark.costly
def test_a_format_without_a_law_tests_nothing_and_flags_nobody(toy, tmp_path, words, plain):
    toy.registry = tmp_path / "lawless"
    key = new_key(toy.registry, "lawless", format="lawless", salt=3, messages=1, tokenizer=TOKENIZER)
    toy.configure(audit="share = 1.0")
    toy.write("a", [counted_words(open_key(toy.registry, key), words, 60), plain(60, 1), plain(2, 2)])
    outcome = toy.scan(worker=ToyWorker)
    assert (outcome.exit_code, outcome.audit.state, outcome.audit.traffic.texts) == (0, "no decoys", 0)
    rows = toy.verdicts()
    assert rows["status"].to_list() == ["scored", "scored", "too_short"]
    assert rows["scored"][0] == 60
    assert rows["p_class"].to_list() == [None, None, 0]  # an unscored text has p = 1
    assert rows["flagged"].to_list() == [False] * 3
    assert rows["naming"].unique().to_list() == ["none"]


@pytest.mark.costly
def test_a_key_with_a_law_gives_the_verdict_before_one_without(toy, words, plain):
    """The documents are scanned under the lawless key alone first, then under both keys."""
    (tested,) = load_registry(toy.registry).keys
    new_key(toy.registry, "lawless", format="lawless", salt=3, messages=1, tokenizer=TOKENIZER)
    toy.write("a", [counted_words(open_key(toy.registry, tested), words, 60), plain(60, 1)])
    toy.configure(more='keys = ["lawless"]')
    toy.scan(worker=ToyWorker)
    assert verdicts(toy.results).collect()["p_class"].to_list() == [None, None]
    toy.configure()
    toy.scan(worker=ToyWorker)
    stands = verdicts(toy.results).collect().sort("row")
    assert stands["key_id"].to_list() == ["toy", None]
    assert stands["flagged"].to_list() == [True, False]
    assert stands["p_class"].null_count() == 0
