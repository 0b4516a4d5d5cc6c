"""The paper's Table 1: free-form tasks of lm_eval, answered with and without the mark, and which answers are right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from scipy import stats  # type: ignore[import-untyped]

from scanner.errors import ScanFailed
from scanner.evaluation.scores import Figure, figure, share
from scanner.evaluation.units import Setting, folder_sha256, key_secret, make_folder, read_whole, write_rows
from scanner.storage.toml import digest
from scanner.watermark import Watermark
from scanner.watermark.native.format import of_the_paper
from schemas.evaluation import ANSWERS, EvaluationConfig

GREEDY = 0.0
"""Temperature that stands for greedy decoding."""


class ExamAnswer(NamedTuple):
    """One answer: the task's name, the number of the document in it, the text and whether it is right."""

    task: str
    document: int
    answer: str
    correct: bool


@dataclass(frozen=True)
class Exam:
    """A task under one setting. file: the task's; documents: how many of the first, None: all.

    Key 0 and message 0 mark.
    """

    file: Path
    setting: Setting
    documents: int | None
    batch: int
    key_seed: str = field(repr=False)

    def watermark(self) -> Watermark | None:
        """The mark, or None."""
        return self.setting.watermark(key_secret(self.key_seed, 0))

    def digest(self, model_sha256: str) -> str:
        """Hex digest of everything that decides the answers, the whole folder of the task included."""
        secret, setting = key_secret(self.key_seed, 0), self.setting
        decides = {
            "model": model_sha256,
            "folder": folder_sha256(self.file.parent),
            "file": self.file.name,
            "setting": setting.decides(),
            "documents": self.documents,
            "batch": self.batch,
            "commitment": setting.commitment(secret),
        }
        return digest(decides)


def exams(config: EvaluationConfig, base: Path) -> list[Exam]:
    """Every task without the mark, greedy and sampled, then under each mark.

    As in the paper the green list shifts logits before greedy decoding, and Gumbel samples with top-p. A mark is
    compared with unmarked answers of the same decoding.
    """
    how = config.utility
    if how is None:
        return []
    sampled = (how.gumbel_temperature, config.top_p, 0)  # tasks state how long answers are
    settings = [Setting(None, None, GREEDY, 1.0, 0), Setting(None, None, *sampled)]
    for window in how.windows:
        green, gumbel = of_the_paper([how.gamma], [window], config.version)
        settings += [Setting(gumbel, None, *sampled), Setting(green, how.delta, GREEDY, 1.0, 0)]
    files = [base / task for task in how.tasks]
    return [Exam(file, setting, how.documents, config.batch, config.seed) for file in files for setting in settings]


class ExamRecords:
    """Exams that were taken with one model, kept in a folder for good: one Parquet file each.

    Raises:
        ScanFailed: the folder cannot be made.
    """

    def __init__(self, folder: Path, model_sha256: str) -> None:
        self._folder, self._model = folder, model_sha256
        make_folder(folder)

    def file_of(self, exam: Exam) -> Path:
        """The file of an exam."""
        return self._folder / f"{exam.digest(self._model)[:40]}.parquet"

    def missing(self, wanted: Sequence[Exam]) -> list[Exam]:
        """The exams that were not taken yet."""
        return [exam for exam in wanted if not self.file_of(exam).exists()]

    def read(self, exam: Exam) -> list[ExamAnswer]:
        """The answers, in the order of the documents; raises ScanFailed when the file is not there or not whole."""
        rows = read_whole(self.file_of(exam), ANSWERS).drop_columns(["exam"]).to_pylist()
        return sorted((ExamAnswer(**row) for row in rows), key=lambda answer: answer.document)

    def write(self, exam: Exam, answers: Sequence[ExamAnswer]) -> None:
        """Keep an exam; raises ScanFailed when it cannot be written."""
        path = self.file_of(exam)
        rows = [answer._asdict() | {"exam": path.stem} for answer in answers]
        write_rows(path, pa.Table.from_pylist(rows, ANSWERS))


def utility_figures(answers_of: Mapping[Exam, Sequence[ExamAnswer]]) -> list[Figure]:
    """Share of right answers of each exam, and for each mark the p-value of the paired test against no mark.

    The test is McNemar's exact one (1947): without an effect, either is right on half of the documents on which they
    differ.

    Raises:
        ScanFailed: two exams on one task have other documents.
    """
    without = {_decoding(exam): answers for exam, answers in answers_of.items() if exam.setting.format is None}
    rows = []
    for exam, answers in answers_of.items():
        right = np.array([answer.correct for answer in answers])
        p_value = None
        if exam.setting.format is not None:
            unmarked = without[_decoding(exam)]
            if [answer.document for answer in unmarked] != [answer.document for answer in answers]:
                raise ScanFailed(f"utility: the exams of {exam.file} have different documents; delete their answers")
            p_value = paired_p(right, np.array([answer.correct for answer in unmarked]))
        correct = share(right, np.arange(len(right)))
        clusters = f"{len(right)} documents"
        rows.append(
            figure(
                "utility", exam.setting, "correct", correct, clusters=clusters, task=answers[0].task, p_value=p_value
            )
        )
    return rows


def paired_p(ours: np.typing.NDArray[np.bool_], theirs: np.typing.NDArray[np.bool_]) -> float:
    """Two-sided p of McNemar's exact test on bool[N] each; 1 where they never differ."""
    gained, lost = int((ours & ~theirs).sum()), int((~ours & theirs).sum())
    return float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def _decoding(exam: Exam) -> tuple[Path, float, float]:
    return exam.file, exam.setting.temperature, exam.setting.top_p
