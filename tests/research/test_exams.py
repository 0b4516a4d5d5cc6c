"""Exams and their answers without a model: what decides an answer, how answers are kept, and the paired test."""

from dataclasses import replace
from math import comb
from pathlib import Path

import numpy as np
import pytest

from scanner.errors import ScanFailed
from scanner.research.plan import GREEDY, Exam, ExamAnswer, ExamRecords, exams, paired_p, utility_figures
from schemas.evaluation import EvaluationConfig, UtilityConfig

MODEL = "0" * 64


@pytest.fixture
def config(tmp_path: Path) -> EvaluationConfig:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "a.yaml").write_text("task: a\n")
    utility = UtilityConfig(tasks=("tasks/a.yaml",), documents=20)
    return EvaluationConfig(results="out", model="model", prompts="p", utility=utility)


def test_every_mark_is_compared_with_unmarked_answers_of_its_decoding(config, tmp_path):
    found = [
        (said["method"], said["window"], said["temperature"], e.setting.top_p)
        for e in exams(config, tmp_path)
        for said in [e.setting.columns()]
    ]
    assert found == [
        (None, None, GREEDY, 1.0),
        (None, None, 1.0, 0.95),
        ("gumbel-v3", 1, 1.0, 0.95),
        ("greenlist-v3", 1, GREEDY, 1.0),
        ("gumbel-v3", 4, 1.0, 0.95),
        ("greenlist-v3", 4, GREEDY, 1.0),
    ]
    assert exams(config.model_copy(update={"utility": None}), tmp_path) == []


def test_whatever_decides_answers_decides_their_digest(config, tmp_path):
    made = exams(config, tmp_path)
    digests = [exam.digest(MODEL) for exam in made]
    digests += [replace(made[2], **{name: value}).digest(MODEL) for name, value in (
        ("documents", None), ("batch", 8), ("key_seed", "2"), ("file", made[2].file.with_name("b.yaml")),
    )]  # fmt: skip
    digests.append(made[2].digest("1" * 64))
    (tmp_path / "tasks" / "data.jsonl").write_text("{}\n")
    digests.append(made[2].digest(MODEL))
    assert len(set(digests)) == len(digests) == 12
    assert made[2].watermark() is not None
    assert made[0].watermark() is None


def test_answers_are_kept_and_read_back_in_order(config, tmp_path):
    answers = ExamRecords(tmp_path / "answers", MODEL)
    first, *others = exams(config, tmp_path)
    answers.write(first, [ExamAnswer("a", 1, "y", False), ExamAnswer("a", 0, "", True)])
    assert answers.missing([first, *others]) == others
    assert answers.read(first) == [ExamAnswer("a", 0, "", True), ExamAnswer("a", 1, "y", False)]
    answers.file_of(others[0]).write_bytes(b"no Parquet")
    with pytest.raises(ScanFailed, match="delete it and run again"):
        answers.read(others[0])


def plain_mcnemar(gained: int, lost: int) -> float:
    n = gained + lost
    tail = sum(comb(n, k) for k in range(min(gained, lost) + 1)) / 2**n
    return min(1.0, 2 * tail)


@pytest.mark.parametrize(
    ("gained", "lost", "both"), [(0, 0, 5), (1, 0, 9), (3, 9, 4), (5, 5, 0), (0, 20, 1), (17, 6, 100)]
)
def test_the_paired_test_is_mcnemars(gained, lost, both):
    ours = np.array([True] * gained + [False] * lost + [True] * both)
    theirs = np.array([False] * gained + [True] * lost + [True] * both)
    assert paired_p(ours, theirs) == pytest.approx(plain_mcnemar(gained, lost), rel=1e-9)


def test_figures_compare_a_mark_with_its_own_decoding(config, tmp_path):
    def answered(right: list[int]) -> list[ExamAnswer]:
        return [ExamAnswer("a", i, "", bool(value)) for i, value in enumerate(right)]

    greedy, sampled, gumbel, green, *_ = exams(config, tmp_path)
    taken: dict[Exam, list[ExamAnswer]] = {
        greedy: answered([1] * 8 + [0] * 2),
        sampled: answered([0] * 10),
        gumbel: answered([0] * 9 + [1]),
        green: answered([0] * 8 + [0] * 2),
    }
    rows = utility_figures(taken)
    assert [(r["task"], r["hits"], r["n"], r["value"]) for r in rows] == [
        ("a", 8, 10, 0.8), ("a", 0, 10, 0.0), ("a", 1, 10, 0.1), ("a", 0, 10, 0.0),
    ]  # fmt: skip
    assert [r["p_value"] for r in rows] == [None, None, 1.0, pytest.approx(2 / 2**8)]
    taken[gumbel] = answered([1] * 9)
    with pytest.raises(ScanFailed, match="different documents"):
        utility_figures(taken)
