"""A provider's error rates: the counts of `calibrate` and `evaluate`, exact limits, a page that gives nothing away."""

import json
import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scanner.audit.calibration.one_key import key_counts
from scanner.detection.one_text import TextCheck
from scanner.registry import add_users, load_registry, new_key, open_key
from scanner.research.error_rates import (
    FEWEST_TEXTS,
    CellPlace,
    Decider,
    ErrorCell,
    error_rates,
    false_positives,
    found_cells,
    in_words,
    rate_cell,
    share_cell,
    table,
    twin,
)
from scanner.research.scores import name, search
from tests.fixed import fix_secrets
from tests.support.browser import launched
from tests.support.command_line import call
from tests.support.opened import demo_tokenizer
from tests.support.two_keys import TOKENIZER, marked_text, message_of, plain_text, words_of_one_token
from tests.watermark.strategies import few

pytestmark = pytest.mark.seconds

MESSAGES = 50
RATE = 1e-4
USERS = ("alice", "bob", "<b>carol</b>")
PLACE = CellPlace("part", "row")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A registry of one key, a scan.toml, 300 unmarked texts, and 30 marked ones of three users, some too weak."""
    folder = tmp_path_factory.mktemp("error-rates")
    registry = folder / "registry"
    fix_secrets(registry, "green")
    new_key(registry, "green", format="greenlist", window=2, gamma="1/4", messages=MESSAGES, tokenizer=TOKENIZER)
    add_users(registry, None, USERS, datetime.now(UTC) - timedelta(minutes=1))
    (folder / "scan.toml").write_text(
        f'version = 2\nregistry = "registry"\nresults = "results"\nfalse_positive_rate = {RATE}\n'
        '[input]\npaths = ["in"]\n'
    )
    words = words_of_one_token()
    plain, marked = plain_text(words), marked_text(registry, words)
    lengths = np.random.default_rng(5).integers(20, 60, 300).tolist()
    pl.DataFrame(
        {
            "text": [plain(length, seed) for seed, length in enumerate(lengths)],
            "kind": ["mail", "<i>forum</i>"] * 150,
            "source": [f"source {i % 25:02}" for i in range(300)],
        }
    ).write_parquet(folder / "unmarked.parquet")
    of = [(user, 10 + 4 * i) for i in range(10) for user in USERS]
    texts = [marked(message_of(registry, "green", user), length, i) for i, (user, length) in enumerate(of)]
    pl.DataFrame({"text": texts, "user_id": [user for user, _ in of]}).write_parquet(folder / "marked.parquet")
    return folder


@pytest.fixture(scope="module")
def decider(folder) -> Decider:
    return Decider(TextCheck.of_config(folder / "scan.toml"))


def frame(decider: Decider, folder: Path, which: str) -> pl.DataFrame:
    return decider.measured(pl.read_parquet(folder / f"{which}.parquet"))


@pytest.mark.seconds
def test_p_values_of_unmarked_texts_are_counted_as_by_calibrate(decider, folder):
    texts = frame(decider, folder, "unmarked")
    decided = decider.decide(texts["text"].to_list())
    reached = [cell for cell in false_positives(decided, texts, RATE) if cell.part == "p-values"]
    mark = open_key(folder / "registry", load_registry(folder / "registry").keys[0])
    tokens = demo_tokenizer().encode(texts["text"].to_list())
    rates = [cell.rate for cell in reached]
    counted = key_counts(mark, MESSAGES, tokens, [str(i) for i in range(300)], "ngram", rates, sample=1)
    assert [cell.hits for cell in reached] == counted.by_cluster().hits.astype(int).tolist()
    assert [cell.texts for cell in reached] == [300] * 4
    assert reached[0].hits > 0


@pytest.mark.seconds
def test_users_are_named_as_by_evaluate(decider, folder):
    texts = frame(decider, folder, "marked")
    decided = decider.decide(texts["text"].to_list())
    mark = open_key(folder / "registry", load_registry(folder / "registry").keys[0])
    own = np.array([message_of(folder / "registry", "green", user) for user in texts["user_id"]])
    searched = search(mark, demo_tokenizer().encode(texts["text"].to_list()), own, MESSAGES, 16)
    named = name(searched, MESSAGES, RATE)
    assert 5 < named.found.sum() < 30
    pairs = list(zip(texts["user_id"], decided.users, strict=True))
    np.testing.assert_array_equal([user in users for user, users in pairs], named.found)
    np.testing.assert_array_equal([bool(users - {user}) for user, users in pairs], named.wrong)
    of_all = {cell.measure: cell for cell in found_cells("marked", None, decided, texts) if cell.row == "all"}
    assert of_all["named"].hits == named.found.sum()
    assert of_all["misnamed"].hits == named.wrong.sum()


@pytest.mark.seconds
def test_another_users_text_counts_as_misnamed(decider, folder):
    texts = frame(decider, folder, "marked").with_columns(user_id=pl.lit("bob"))
    decided = decider.decide(texts["text"].to_list())
    cells = {cell.measure: cell.hits for cell in found_cells("marked", None, decided, texts) if cell.row == "all"}
    assert cells["named"] + cells["misnamed"] == cells["found"]
    assert cells["misnamed"] > cells["named"] > 0


@few
@given(st.integers(0, 20), st.integers(21, 5000), st.sampled_from([0.1, 0.01, 1e-4, 1e-6]))
def test_limits_are_clopper_and_pearsons_and_the_texts_lacking_suffice(hits, texts, rate):
    cell = rate_cell(PLACE, "flagged", np.arange(texts) < hits, rate, np.arange(texts))
    exact = stats.binomtest(hits, texts).proportion_ci(0.95, "exact")
    assert (cell.low, cell.high) == pytest.approx((exact.low, exact.high), rel=1e-6, abs=1e-12)
    enough = stats.binomtest(hits, texts + cell.lacks).proportion_ci(0.95, "exact")
    assert enough.high <= rate * (1 + 1e-9)
    assert (cell.lacks == 0) == (exact.high <= rate)


def test_a_share_is_stated_from_where_its_limits_are_near():
    for texts, stated in ((FEWEST_TEXTS - 1, False), (FEWEST_TEXTS, True)):
        far = max(
            max(k / texts - low, high - k / texts)
            for k in range(texts + 1)
            for low, high in [stats.binomtest(k, texts).proportion_ci(0.95, "exact")]
        )
        cell = share_cell(PLACE, "found", np.arange(texts) < 50, np.arange(texts))
        assert (cell.share is not None, far <= 0.1) == (stated, stated)
        assert (f"lacks {FEWEST_TEXTS - texts} texts" in in_words(cell).lacks) == (not stated)


@few
@given(st.integers(0, 300), st.integers(1, 300))
def test_limits_on_the_page_are_never_nearer_than_they_are(hits, texts):
    flags, each = np.arange(texts) < min(hits, texts), np.arange(texts)
    for cell in (rate_cell(PLACE, "flagged", flags, 1e-3, each), share_cell(PLACE, "found", flags, each)):
        shown = in_words(cell).limits
        low, high = (float(limit) for limit in re.findall(r"[0-9][0-9.e-]*", shown)[-2:])
        assert low <= cell.low * (1 + 1e-9)
        assert high >= cell.high * (1 - 1e-9)
        assert (cell.low - low < 0.1 * cell.low + 0.01, high - cell.high < 0.1 * cell.high + 0.01) == (True, True)


def test_a_rate_above_what_is_stated_warns():
    cell = rate_cell(PLACE, "flagged", np.arange(1000) < 10, 1e-3, np.arange(1000))
    assert cell.too_high
    assert "do not trust any flag" in in_words(cell).lacks


def test_fillings_of_one_template_show_no_rate():
    """4,000 texts of one template, of two, and of one beside as many others; and a share that pieces agree on."""
    one, two, beside = np.zeros(4000), np.arange(4000) % 2, np.arange(4000).clip(2000)
    for hits in (0, 17, 300):
        cell = rate_cell(PLACE, "flagged", np.arange(4000) < hits, 0.01, one)
        assert (cell.pieces, cell.share, cell.high > 0.9, cell.low) == (1, None, True, 0)
        assert "of 4,000, worth 1 independent piece" in in_words(cell).counted
    assert rate_cell(PLACE, "flagged", np.zeros(4000, np.bool_), 0.01, two).high > 0.8
    cell = rate_cell(PLACE, "flagged", np.zeros(4000, np.bool_), 0.01, beside)
    assert (cell.pieces, cell.high > 0.5) == (3, True)
    each = rate_cell(PLACE, "flagged", np.arange(4000) < 17, 0.01, np.arange(4000))
    pairs = rate_cell(PLACE, "flagged", np.arange(4000) < 17, 0.01, np.arange(4000) // 2)
    assert each.high < pairs.high < 2 * each.high


def test_texts_too_short_to_be_scored_lower_no_rate(decider):
    long = plain_text(words_of_one_token())(60, 1)
    texts = decider.measured(pl.DataFrame({"text": ["no", *(f"{word} " * 3 for word in "abcdefgh"), long]}))
    decided = decider.decide(texts["text"].to_list())
    assert decided.scored.sum() == 1
    cells = list(false_positives(decided, texts, RATE))
    assert {cell.texts for cell in cells if cell.rate is not None} == {1}
    assert [(cell.texts, cell.hits) for cell in cells if cell.part == "too short"] == [(10, 9)]
    nothing = decider.decide(["no"])
    assert [cell.part for cell in false_positives(nothing, texts[:1], RATE)] == ["too short"]


def test_a_share_of_few_users_is_not_stated_however_many_their_texts():
    users = np.repeat(np.arange(4), 60)
    for hits in (np.ones(240, np.bool_), np.zeros(240, np.bool_)):  # they do not show how alike a user's texts are
        cell = share_cell(PLACE, "named", hits, users)
        exact = stats.binomtest(4 * int(hits[0]), 4).proportion_ci(0.95, "exact")
        assert (cell.low, cell.high) == pytest.approx((exact.low, exact.high))
        assert cell.share is None
    single = share_cell(PLACE, "named", np.arange(240) < 100, np.zeros(240))
    assert (single.low, single.high, single.share) == (0.0, 1.0, None)


def test_texts_of_other_users_that_a_share_lacks_suffice():
    """It said how many more texts of the same users it takes, which show little: 4,451 where users differed."""
    for users, of_each in ((4, 60), (1, 240), (20, 3), (80, 1)):
        labels, texts = np.repeat(np.arange(users), of_each), users * of_each
        lacks = share_cell(PLACE, "named", np.ones(texts, np.bool_), labels).lacks
        assert lacks > 0
        for more, enough in ((lacks, True), (lacks - 1, False)):
            correlations = np.eye(texts + more)
            correlations[:texts, :texts] = labels[:, None] == labels  # a user's texts agree
            assert ((texts + more) ** 2 / correlations.sum() >= FEWEST_TEXTS - 1e-9) == enough
    assert share_cell(PLACE, "found", np.array([1, 1, 0, 1], np.bool_), np.array([0, 0, 1, 2])).lacks < 300


def test_texts_of_one_user_count_as_alike():
    hits = np.repeat([True, False, True, True, False, True], 40)
    users, each = np.repeat(np.arange(6), 40), np.arange(240)
    wide, narrow = (share_cell(PLACE, "found", hits, labels) for labels in (users, each))
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.costly
def test_every_attack_is_made_on_every_text_and_rewritings_are_counted(decider, folder):
    unmarked, marked = frame(decider, folder, "unmarked"), frame(decider, folder, "marked")
    steps = []
    cells = error_rates(
        decider, unmarked, marked, "1", {"reversed": lambda texts: [text[::-1] for text in texts]},
        lambda what, done, of: steps.append((done, of)),
    )  # fmt: skip
    assert steps == [(i, 27) for i in range(28)]
    of_all = {(cell.part, cell.row, cell.measure): cell for cell in cells if cell.stratum == "all"}
    found = {row: cell.hits for (part, row, measure), cell in of_all.items() if part == "edits" and measure == "found"}
    whole = of_all["marked", "all", "found"].hits
    assert len(found) == 20
    assert found["a C2PA manifest appended in its wrapper"] == whole
    assert found["each token replaced by a random one with probability 0.3"] < whole
    assert of_all["rewriting", "reversed", "found"].hits == 0
    (forged,) = [cell for (part, _, measure), cell in of_all.items() if part == "imitation" and measure == "named"]
    assert forged.hits > 100  # chains of marked n-grams of one user are marked for this user
    assert {cell.texts for cell in cells if cell.part == "edits" and cell.stratum == "all"} == {30}


def test_the_file_beside_the_page_keeps_the_names_of_its_columns():
    place = CellPlace("edits", "lower", "100 to 199 tokens")
    cell = rate_cell(place, "flagged", np.zeros(9, np.bool_), 0.5, np.arange(9))
    (listed,) = json.loads(twin({}, [cell]))["cells"]
    columns = "part row among measure texts hits low high share rate lacks pieces"
    assert list(listed) == columns.split()
    assert listed["among"] == "100 to 199 tokens"


@pytest.mark.costly
def test_the_page_is_the_same_each_time_and_tells_nothing_of_texts_users_or_the_key(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for out in ("first", "second"):
        args = ("scan.toml", "--unmarked", "unmarked.parquet", "--marked", "marked.parquet", "--out", out)
        code, _, err = call("error-rates", *args)
        assert code == 0, err
    pages = [(folder / out / "error-rates.html").read_bytes() for out in ("first", "second")]
    twins = [(folder / out / "error-rates.json").read_bytes() for out in ("first", "second")]
    assert pages[0] == pages[1]
    assert twins[0] == twins[1]
    said = json.loads(twins[0])
    key = load_registry(folder / "registry").keys[0]
    assert said["the_keys"][0]["commitment"] == key.commitment
    assert said["unmarked"]["texts"] == 300
    cells = [ErrorCell(stratum=cell.pop("among"), **cell) for cell in said["cells"]]
    assert all(0 <= cell.low <= cell.high <= 1 and not math.isnan(cell.low) for cell in cells)
    html = pages[0].decode()
    assert key.commitment in html
    assert "no model was named" in html
    assert "&lt;i&gt;forum&lt;/i&gt;" in html
    assert "5 others" in html  # sources beyond the 20 with a row of their own
    secret = next((folder / "registry").rglob("*green*key*")).read_bytes()
    texts = pl.read_parquet(folder / "marked.parquet")["text"].to_list()
    for told in (html, twins[0].decode()):
        assert not [text for text in texts if text[5:40] in told]
        assert not [user for user in USERS if user in told]
        assert secret.hex() not in told
    with launched() as browser:
        for width in (320, 1100):
            shown = browser.new_context(viewport={"width": width, "height": 800}).new_page()
            shown.goto((folder / "first" / "error-rates.html").as_uri())
            assert shown.evaluate("document.documentElement.scrollWidth") <= width


def test_files_that_do_not_fit_are_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    ours = pl.read_parquet("marked.parquet")["text"].to_list()
    files = {
        "other": ({"body": ["x"]}, "no column `text`"),
        "empty": ({"text": pl.Series([None], dtype=pl.String)}, "no text in"),
        "numbers": ({"text": [1, 2]}, "column `text` is Int64"),
        "lists": ({"text": ["a text"], "kind": [["mail"]]}, "column `kind` is List"),
        "bytes": ({"text": [b"\xff\xfe"]}, "cannot be read as Parquet with UTF-8 texts (invalid utf8)"),
        "same": ({"text": ["a text", ours[3], ours[5], ours[5]]}, "2 texts are in both"),
    }
    for file, (columns, _) in files.items():
        pl.DataFrame(columns).write_parquet(f"{file}.parquet")
    Path("no.parquet").write_text("no Parquet")
    for file, said in [(file, said) for file, (_, said) in files.items()] + [("no", "cannot be read as Parquet")]:
        code, _, err = call("error-rates", "scan.toml", "--unmarked", f"{file}.parquet", "--marked", "marked.parquet")
        assert code == 2
        assert said in err
        assert f"{file}.parquet" in err or file == "same"


def test_say_once_what_every_row_lacks():
    """A column in which no row has enough texts for its claim says so above, not in each row."""
    column = [("flagged", "all", "flagged at 1e-06")]
    each = np.arange(4_000_000)
    few = [
        rate_cell(CellPlace("unmarked", row, "all"), "flagged", np.zeros(1000, np.bool_), 1e-6, each[:1000])
        for row in "ab"
    ]
    found = table(few, "unmarked", "By part", column)
    assert "about 3,700,000 are needed" in found["heads"][0]
    assert [cell.lacks for _, cells in found["lines"] for cell in cells] == ["", ""]
    enough = rate_cell(CellPlace("unmarked", "c", "all"), "flagged", np.zeros(4_000_000, np.bool_), 1e-6, each)
    found = table([*few, enough], "unmarked", "By part", column)
    assert found["heads"] == ["flagged at 1e-06"]
    assert [bool(cell.lacks) for _, cells in found["lines"] for cell in cells] == [True, True, False]
