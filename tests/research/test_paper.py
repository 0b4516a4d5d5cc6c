"""The page of the paper: what stands in it comes from what was kept, and what was not run says so."""

import csv
import json
from pathlib import Path

import pytest
from scipy import stats

from tests.bench.figure_2 import limits, tells
from tests.bench.paper import STEPS, choose_strengths, main, publish
from tests.bench.paper_page import write_page
from tests.bench.paper_sentences import CONTRARY, GIVEN, OPEN, PARTLY, REFUTED, SHOWN, VERDICTS, compare, judge
from tests.support.from_packages import MODEL

ROW = {"method": "gumbel", "window": 4, "test": "z", "dedup": "none", "threshold": 1e-5, "tests": 1000, "clusters": 10}
COUNTED = {"hits": 7, "expected": 0.5, "design_effect": 1.0}


def rows() -> list[dict]:
    panels = (("z", "none", 70), ("exact", "none", 40), ("exact", "ngram", 1))
    return [
        ROW | COUNTED | {"test": test, "dedup": dedup, "threshold": threshold, "hits": hits}
        for threshold in (1e-3, 1e-5)
        for test, dedup, hits in panels
    ]


@pytest.mark.costly
@pytest.mark.seconds
def test_the_page_has_what_was_kept_and_says_what_was_not_run(tmp_path):
    kept = {"rows": rows(), "pieces": 100, "minutes": 3.2, "seed": "paper", "options": ""}
    text = write_page(tmp_path / "page.md", {"false-positives": kept}).read_text()
    assert "10 keys × 100 pieces of 256 tokens, none of which overlap: 1,000 tests in each cell" in text
    assert "| 140 (" in text  # 70 hits for half of one expected
    assert ", 70 hits |" in text
    assert "0 cells are, and the limits of 0 of these hold the expected count. The other 2 tell nothing" in " ".join(
        text.split()
    )
    assert ": cannot tell), 1 hits |" in text
    for step in set(STEPS) - {"false-positives"}:
        assert f"**Not run yet**: `make paper STEPS={step}` runs it." in text
    assert "| 0.001 | Aaronson et al. (Gumbel) | 0.80 | 0.72 | 0.67 | 0.62 |" in text  # the paper's own
    numbers = list(csv.DictReader((tmp_path / "page" / "false-positives.csv").read_text().splitlines()))
    assert [int(row["hits"]) for row in numbers] == [row["hits"] for row in rows()]
    first = (tmp_path / "page" / "false-positives-light.svg").read_bytes()
    write_page(tmp_path / "page.md", {"false-positives": kept})
    assert (tmp_path / "page" / "false-positives-light.svg").read_bytes() == first


def test_limits_are_exact_for_independent_keys_and_wider_for_few_that_differ():
    many, few, unlike = (
        limits(ROW | COUNTED | {"clusters": clusters, "design_effect": effect})
        for clusters, effect in ((10**9, 1.0), (10, 1.0), (10, 5.0))
    )
    exact = stats.binomtest(7, 1000).proportion_ci(0.95, "exact")
    assert many == pytest.approx((1000 * exact.low, 1000 * exact.high), rel=1e-6)
    assert unlike[0] < few[0] < many[0] < many[1] < few[1] < unlike[1]


@pytest.mark.parametrize(
    ("expected", "effect", "telling"), [(6.7, 41.0, False), (10.0, 1.0, True), (8082.0, 41.0, True)]
)
def test_a_cell_tells_something_if_three_times_as_many_would_show(expected, effect, telling):
    row = ROW | {"tests": 1_000_000, "hits": 1, "expected": expected, "design_effect": effect, "clusters": 10}
    assert tells(row) is telling


def figure(method: str, value: float, window: int, hits: int, attack: str | None) -> dict:
    gumbel = method == "gumbel"
    row = {"method": method, "temperature": value if gumbel else 0.8, "delta": None if gumbel else value}
    return row | {"window": window, "measure": "flagged", "attack": attack, "n": 40, "hits": hits}


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ([((0.1, 0.2), (0.3, 0.4)), ((0.2, 0.3), (0.5, 0.6))], SHOWN),
        ([((0.1, 0.2), (0.3, 0.4)), ((0.2, 0.5), (0.4, 0.6))], PARTLY),
        ([((0.1, 0.2), (0.3, 0.4)), ((0.5, 0.6), (0.1, 0.2))], CONTRARY),
        ([((0.3, 0.4), (0.1, 0.2)), ((0.2, 0.5), (0.4, 0.6))], CONTRARY),
        ([((0.3, 0.4), (0.1, 0.2)), ((0.5, 0.6), (0.3, 0.4))], REFUTED),
        ([], OPEN),
    ],
)
def test_a_comparison_is_shown_where_all_limits_are_apart(pairs, verdict):
    rows = [tuple({"low": low, "high": high} for low, high in pair) for pair in pairs]
    assert compare(rows) == verdict


def test_sentences_of_table_2_compare_each_window_by_itself():
    rows = [
        figure(method, value, window, 0, attack) | {"value": share, "low": share - 0.05, "high": share + 0.05} | what
        for method in ("gumbel", "greenlist")
        for value, plain, replaced in ((1.0, 0.2, 0.1), (4.0, 0.9, 0.15))
        for window in (1, 4)
        for attack, share, what in (
            (None, plain, {}),
            ("substitute:0.3", replaced, {}),
            (None, 100.0 + window, {"measure": "scored"}),
        )
    ]
    judged = judge({"robustness": {"rows": rows}})
    gumbel = {one.words.removeprefix("Gumbel: "): one for one in judged if one.words.startswith("Gumbel: ")}
    assert [one.verdict for one in judged] == sorted((one.verdict for one in judged), key=VERDICTS.index)
    assert {words: one.verdict for words, one in gumbel.items()} == {
        "more are flagged with a stronger mark": SHOWN,
        "more are flagged with a stronger mark, with 30 % of tokens replaced": OPEN,
        "fewer are flagged with 30 % of tokens replaced": PARTLY,
        "a narrow window makes it more robust to 30 % of tokens replaced": OPEN,
        "more tokens are scored under a wide window": SHOWN,
    }
    ours = gumbel["more are flagged with a stronger mark"].ours
    assert "h = 1, θ 1: 0.20 (0.15 to 0.25), θ 4: 0.90 (0.85 to 0.95); h = 4" in ours


@pytest.mark.parametrize(
    ("strong", "verdict", "ours"),
    [((0.4, 0.0), SHOWN, "near 0 or 1: 1 of 2 cells"), ((0.04, 0.0), OPEN, "near 0 or 1: 2 of 2 cells")],
)
def test_shares_near_0_or_1_are_not_compared(strong, verdict, ours):
    rows = [
        figure("gumbel", value, window, 0, attack) | {"value": share, "low": share / 2, "high": share * 1.5}
        for window, most in zip((1, 4), strong, strict=True)
        for value, share in ((0.5, 0.0), (0.8, most))
        for attack in (None, "substitute:0.3")
    ] + [figure("gumbel", value, window, 0, None) | {"measure": "scored", "value": 9.0, "low": 8.0, "high": 10.0}
         for value in (0.5, 0.8) for window in (1, 4)]  # fmt: skip
    rows += [row | {"method": "greenlist", "delta": row["temperature"]} for row in rows]
    (sentence,) = (one for one in judge({"robustness": {"rows": rows}}) if one.words == "Gumbel: more are flagged with a stronger mark")  # fmt: skip # noqa: E501
    assert (sentence.verdict, sentence.ours.split("; ")[-1]) == (verdict, ours)


def rates(hits_at: dict[float, int], test: str = "exact", dedup: str = "ngram") -> list[dict]:
    row = ROW | {"tests": 10**6, "design_effect": 1.0, "test": test, "dedup": dedup}
    return [row | {"threshold": at, "hits": hits, "expected": at * 10**6} for at, hits in hits_at.items()]


@pytest.mark.parametrize(
    ("hits", "verdict"),
    [
        ({1e-3: 1000, 1e-4: 100}, SHOWN),
        ({1e-3: 1000, 1e-6: 1}, PARTLY),  # one hit tells no factor of three
        ({1e-6: 1}, OPEN),
        ({1e-3: 1300, 1e-4: 160}, REFUTED),
    ],
)
def test_rates_are_shown_only_where_their_limits_are_narrow(hits, verdict):
    others = rates({1e-5: 90}, "z", "none") + rates({1e-5: 60}, "exact", "none")
    judged = judge({"false-positives": {"rows": rates(hits) + others}})
    (sentence,) = (one for one in judged if one.words.startswith("With exact tests"))
    assert sentence.verdict == verdict


def named(method: str, wrong: int) -> list[dict]:
    row = {"method": method, "least_scored": None, "most_scored": None, "false_positive_rate": 1e-6, "n": 100}
    return [
        row | {"messages": users, "measure": measure, "hits": hits, "value": hits / 100, "low": 0.0, "high": 1.0}
        for users in (10, 100_000)
        for measure, hits in (("found", 40), ("wrong", wrong), ("ambiguous", 1))
    ]


def test_an_absence_of_wrong_names_is_never_shown_and_fewer_among_more_follows():
    for wrong, verdict in ((0, OPEN), (1, REFUTED)):
        kept = {"rows": named("gumbel", wrong) + named("greenlist", 0), "theta": 0.6, "delta": 1.5}
        judged = {one.words: one for one in judge({"identification": kept})}
        none = judged["None of the texts flagged at 1e-06 among 100,000 users names a wrong one"]
        assert (none.verdict, f"Gumbel {wrong} of {41 + wrong} (at most" in none.ours) == (verdict, True)
        assert judged["Gumbel: fewer users are identified if there are more"].verdict == GIVEN


def tried(method: str, value: float, flagged: float, similarity: float) -> list[dict]:
    row = figure(method, value, 4, 0, None)
    changed = row | {"attack": "lower", "value": 0.5}  # says nothing of the strength
    return [row | {"value": flagged}, row | {"measure": "similarity", "value": similarity}, changed]


@pytest.mark.parametrize(
    ("greens", "chosen"),
    [
        # 0.6 and 1.5 are the most alike, and both tell something
        ([(1.0, 0.4, 0.50), (1.5, 0.8, 0.41)], (0.6, 1.5)),
        # 1.5 is as alike, but at its ceiling
        ([(1.0, 0.4, 0.50), (1.5, 0.95, 0.41)], (0.5, 1.0)),
        # none tells something: the one nearest to the middle
        ([(1.0, 0.1, 0.50), (1.5, 0.95, 0.41)], (0.6, 1.5)),
    ],
)
def test_strengths_of_table_3_are_those_of_texts_as_good_as_each_other(greens, chosen):
    rows = [*tried("gumbel", 0.5, 0.4, 0.52), *tried("gumbel", 0.6, 0.5, 0.40), *tried("gumbel", 0.9, 0.99, 0.50)]
    rows += [row for green in greens for row in tried("greenlist", *green)]
    assert choose_strengths(rows) == chosen


def test_a_page_keeps_what_was_found_elsewhere_and_a_step_done_here_takes_its_place(tmp_path):
    beside, here = tmp_path / "docs", tmp_path / "build"
    for folder, kept in ((beside, {"tokens": 1, "scores": 1}), (here, {"scores": 2, "utility": 2})):
        folder.mkdir()
        for step, value in kept.items():
            (folder / f"{step}.json").write_text(json.dumps({"value": value}))
    assert {step: kept["value"] for step, kept in publish(here, beside).items()} == {
        "tokens": 1,
        "scores": 2,
        "utility": 2,
    }


@pytest.mark.long
@pytest.mark.model
def test_every_step_runs_small_and_is_not_run_again(tmp_path, capsys):
    if not (MODEL / "config.json").is_file():
        pytest.skip("no model: run `make model`")
    main(["--quick", "--folder", str(tmp_path)])
    said = capsys.readouterr().out
    kept = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert set(kept) >= {"false-positives", "false-positives-3", "identification", "robustness", "scores", "tokens"}
    assert all(f"{step}: " in said for step in STEPS)
    assert {row["tests"] for row in kept["false-positives"]["rows"]} == {3000}
    page = (tmp_path / "page" / "paper.md").read_text()
    assert page.count("Not run yet") == len(set(STEPS) - set(kept))
    main(["--quick", "--folder", str(tmp_path)])
    again = capsys.readouterr().out
    assert not [step for step in kept if f"{step}: " in again]
    assert (tmp_path / "page" / "paper.md").read_text() == page


@pytest.mark.costly
@pytest.mark.seconds
def test_the_page_of_the_documentation_is_what_the_steps_wrote(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "paper.md"
    beside = page.with_suffix("")
    found = {step: json.loads(kept.read_text()) for step in STEPS if (kept := beside / f"{step}.json").exists()}
    assert write_page(tmp_path / "paper.md", found).read_text() == page.read_text()
    assert (tmp_path / "paper" / "false-positives.csv").read_text() == (beside / "false-positives.csv").read_text()
