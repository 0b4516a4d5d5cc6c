"""What a flagged text shares with earlier flagged posts of other accounts."""

import json
import re
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from scanner.cluster.scan import run_scan
from scanner.evidence.copied_text import COPIED_RUN, EarlierPost, copied_share
from scanner.ngram_filter import common_ngrams
from scanner.scan_plan import make_plan
from scanner.signing import opened_signers
from scanner.storage.data_files import SCHEMAS
from scanner.storage.delta import TABLE_VERSION
from scanner.storage.locations import table_uri
from tests.support.command_line import call
from tests.support.two_keys import message_of

TEXTS = st.lists(st.integers(0, 2), max_size=30)


@given(TEXTS, st.lists(st.tuples(st.sampled_from("ab"), TEXTS), max_size=3), st.integers(0, 6), st.data())
def test_it_is_the_share_of_runs_that_other_posts_hold(text, posts, reach, data):
    length = max(reach + 1, COPIED_RUN)
    scored = data.draw(st.sets(st.integers(0, max(len(text) - 1, 0)))) if text else set()
    found = copied_share(
        np.array(text, np.uint32),
        np.array(sorted(scored), np.int64),
        reach,
        [EarlierPost(account, "/in/a", i, np.array(post, np.uint32)) for i, (account, post) in enumerate(posts)],
    )

    def runs(tokens: list[int]) -> list[tuple[int, ...]]:
        return [tuple(tokens[end - length + 1 : end + 1]) for end in range(length - 1, len(tokens))]

    own = [tuple(text[end - length + 1 : end + 1]) for end in sorted(scored) if end >= length - 1]
    holding = [(account, post) for account, post in posts if set(own) & set(runs(post))]
    shared = [run for run in own if any(run in runs(post) for _, post in posts)]
    share = len(shared) / len(own) if own else 0.0
    assert found[:3] == (share, len(holding), len({account for account, _ in holding}))
    held = [sum(run in runs(post) for run in own) for _, post in posts]
    assert found.row == (held.index(max(held)) if holding else None)


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_runs_of_earlier_posts_of_others_are_counted(night, registry, marked, plain):
    """Not those of the same account, of later posts, or of posts that are not flagged."""
    alice = message_of(registry, "green", "alice")
    first, own = marked(alice, 120, 1), marked(alice, 60, 2)
    spliced = " ".join(first.split()[:60]) + own
    texts = [first, spliced, first + plain(3, 1), own + plain(30, 2), plain(60, 3)]
    posted = [datetime(2026, 8, 1, tzinfo=UTC) + timedelta(hours=hour) for hour in (1, 3, 5, 2, 0)]
    night.configure(columns='account = "account"\ntime = "posted"')
    night.write("a", texts, account=["ann", "bo", "cy", "bo", "dee"], posted=posted)
    night.scan()

    def told(document: str) -> dict:
        code, out, err = call("explain", night.config, document, "--json")
        assert code == 0, err
        return json.loads(out)

    assert told("a:0")["copied"] is None
    copied = told("a:1")["copied"]
    assert (copied["posts"], copied["accounts"]) == (1, 1)
    assert copied["share"] == pytest.approx(56 / 116, abs=0.02)  # runs of five words, four of which span the splice
    copied = told("a:2")["copied"]
    assert (copied["posts"], copied["accounts"]) == (2, 2)
    assert copied["share"] > 0.9
    said = re.sub(r"\s+", " ", call("explain", night.config, "a:1")[1])
    assert re.search(r"4\d% of what was scored is also in 1 earlier flagged post of 1 other account", said)
    assert "earlier flagged" not in call("explain", night.results, "a:1")[1]


@pytest.mark.usefixtures("without_ray")
def test_an_earlier_post_whose_file_holds_another_text_now(night, registry, marked, plain):
    """The flag is explained without it, and the page says that nobody knows whether the text copies it."""
    text = marked(message_of(registry, "green", "alice"), 80, 1)
    night.configure(columns='account = "account"\ntime = "posted"')
    for hour, name in enumerate(("ann", "bo")):
        night.write(name, [text], account=[name], posted=[datetime(2026, 8, 1, hour, tzinfo=UTC)])
    night.scan()
    night.write("ann", [plain(80, 1)], account=["ann"], posted=[datetime(2026, 8, 1, tzinfo=UTC)])
    code, out, err = call("explain", night.config, "bo:0", "--json")
    assert code == 0, err
    copied = json.loads(out)["copied"]
    assert (copied["share"], copied["posts"], copied["not_read"]) == (0.0, 0, 1)
    said = re.sub(r"\s+", " ", call("explain", night.config, "bo:0")[1])
    assert "1 earlier flagged post of other accounts cannot be read" in said


@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize(
    "edit",
    [
        "rows taken out",
        *(pytest.param(edit, marks=pytest.mark.costly) for edit in ("a byte changed", "another version", "gone")),
    ],
)
def test_an_earlier_post_whose_kept_text_somebody_edited_is_not_passed_over(night, own_registry, marked, edit):
    """Else who edits it takes the caution off the page that the words are somebody else's."""
    text = marked(message_of(own_registry, "green", "alice"), 80, 1)
    night.configure(columns='account = "account"\ntime = "posted"', more="evidence = { keep_text = true }")
    for hour, name in enumerate(("ann", "bo")):
        night.write(name, [text], account=[name], posted=[datetime(2026, 8, 1, hour, tzinfo=UTC)])
    night.scan()
    (night.input / "ann.parquet").unlink()
    code, out, err = call("explain", night.config, "bo:0", "--json")
    assert (code, json.loads(out)["copied"]["share"]) == (0, 1.0), err

    uri = Path(table_uri(night.results, "flag_texts"))
    if edit == "rows taken out":
        write_deltalake(
            str(uri), pl.read_delta(str(uri)).head(1).to_arrow().cast(SCHEMAS["flag_texts"]), mode="overwrite"
        )
    elif edit == "a byte changed":
        for file in uri.glob("*.parquet"):
            file.write_bytes(file.read_bytes()[:-9] + b"x" + file.read_bytes()[-8:])
    elif edit == "another version":
        DeltaTable(uri).alter.set_table_properties({TABLE_VERSION: "1"}, raise_if_not_exists=False)
    else:
        shutil.rmtree(uri)
    opened_signers._signers.clear()  # as in the next process
    code, out, err = call("explain", night.config, "bo:0", "--json")
    assert (code, out) == (2, "")
    assert "flag_texts" in err


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_filter_that_somebody_made_unreadable_is_not_taken_for_one_that_was_never_made(
    night, own_registry, marked, monkeypatch
):
    """What its scan left out is then not known, and the caution that the words are somebody else's would go."""
    monkeypatch.setattr(common_ngrams, "CELLS_OF_A_ROW", 1 << 15)
    text, day = marked(message_of(own_registry, "green", "alice"), 80, 1), date(2026, 8, 1)
    night.configure(columns='account = "account"\ntime = "posted"', more="filter = {}", paths=["in/{date}"])
    (night.input / f"{day}").mkdir()
    for hour, name in enumerate(("ann", "bo")):
        posted = [datetime(2026, 8, 1, hour, tzinfo=UTC)]
        night.write(f"{day}/{name}", [text], doc_id=[f"{name}:0"], account=[name], posted=posted)
    run_scan(make_plan(night.config, day), lambda work, totals: None)
    code, out, err = call("explain", night.config, "bo:0", "--json")
    assert (code, json.loads(out)["copied"]["share"]) == (0, 1.0), err

    log = Path(table_uri(night.results, "filters")) / "_delta_log"
    for commit in log.glob("*.json"):
        commit.unlink()
    (log / f"{5:020}.checkpoint.parquet").touch()  # deltalake finds a table, and opens none
    opened_signers._signers.clear()  # as in the next process
    code, out, err = call("explain", night.config, "bo:0", "--json")
    assert (code, out) == (2, "")
    assert "filters" in err
