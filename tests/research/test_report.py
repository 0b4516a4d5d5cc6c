"""The report's own choices: a table of long texts, and wrong names as counts with their limits."""

import numpy as np

from scanner.research.report import report
from scanner.research.scores import Search, figure, identification_figures, share
from scanner.research.units import Setting
from scanner.watermark.native.format import GreenListFormat, GumbelFormat

GREEN = Setting(GreenListFormat(window=4, gamma="1/4"), 3.0, 0.8, 0.95, 256)
GUMBEL = Setting(GumbelFormat(window=4), None, 1.0, 0.95, 256)
OWN = np.array([4, 4, 9, 9])
PROMPTS = np.array(["a", "b", "c", "d"])


def said(own: list[float], other: list[float]) -> Search:
    """A search of three long texts and a short one."""
    return Search(np.array(own), np.array(other), np.zeros(4), np.array([150, 151, 600, 149]))


def test_long_texts_have_a_table_of_their_own():
    named = {10: said([-12.0, -3.0, -30.0, 0.0], [0.0] * 4), 100_000: said([-12.0, -3.0, -30.0, 0.0], [0.0] * 4)}
    misnamed = {10: said([-12.0, -3.0, -30.0, 0.0], [0.0, -9.0, 0.0, -9.0]), 100_000: named[100_000]}
    rows = [
        row
        for setting, searched in ((GUMBEL, named), (GREEN, misnamed))
        for row in identification_figures(setting, searched, OWN, PROMPTS, [1e-3, 1e-6])
    ]
    told = report(rows, ["what was run"])
    _, _, after = told.partition("### Texts of at least 150 scored tokens")
    head, _, gumbel, green = after.strip().splitlines()[:4]
    assert [cell.strip() for cell in head.split("|")][1:-1] == [
        "method", "texts", "TPR at 1e-05, M = 1", "found, M = 100,000, FPR 0.001", "found, M = 100,000, FPR 1e-06",
        "wrong, maximum over M and FPR",
    ]  # fmt: skip
    assert gumbel.startswith("| Aaronson et al. (Gumbel) | 3 of 2 users, 3 prompts | ")
    assert gumbel.count(" 0.67 (") == green.count(" 0.67 (") == 3  # flagged, and found at both rates
    assert gumbel.endswith(" 0/3 (0–0.71) |")  # Clopper and Pearson
    assert green.split("|")[-2].strip().startswith("1/3 (")


def test_the_papers_accuracy_stands_beside_ours():
    rows = [
        figure("utility", setting, "correct", share(np.arange(8) < 2, np.arange(8)), clusters="8 documents", task=task)
        for task in ("nq_open", "asdiv")
        for setting in (Setting(None, None, 0.0, 1.0, 0), GREEN, GUMBEL)
    ]
    lines = [line.split("|")[1:-1] for line in report(rows, []).splitlines() if line.startswith(("| nq", "| asdiv"))]
    assert [line[-1].strip() for line in lines] == ["*0.217*", "*0.202*", "*0.218*", "", "", ""]
