"""Plan an evaluation: decide which texts are written and compared, and make every check that can refuse it.

Exams are those of the paper's Table 1: free-form tasks of lm_eval, answered with and without the mark. The figures are
shares of right answers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from scipy import stats  # type: ignore[import-untyped]

from scanner.errors import Refused, ScanFailed
from scanner.input.files import resolve
from scanner.research.attacks import ATTACKS_OF_REPORT, Tools
from scanner.research.scores import Figure, figure, groups_of, share
from scanner.research.units import (
    Setting,
    WorkFiles,
    WritingUnit,
    batches,
    folder_sha256,
    key_secret,
    read_whole,
    write_rows,
)
from scanner.storage.toml import digest, read_toml
from scanner.text import load_tokenizer, sha256_file
from scanner.watermark import Watermark
from scanner.watermark.native.format import of_the_paper
from schemas.evaluation import ANSWERS, MESSAGES, EvaluationConfig, IdentificationConfig
from schemas.registry import MOST_NUMBERS

GREEDY = 0.0
"""Temperature that means greedy decoding."""


class ExamAnswer(NamedTuple):
    """One answer: the task's name, the number of the document in it, the text, and whether it is right."""

    task: str
    document: int
    answer: str
    correct: bool


@dataclass(frozen=True)
class Exam:
    """A task under one setting.

    Texts are marked under key 0 for message 0.

    file: file of the task.
    documents: number of first documents. None: all documents.
    """

    file: Path
    setting: Setting
    documents: int | None
    batch: int
    key_seed: str = field(repr=False)

    def watermark(self) -> Watermark | None:
        """Return the mark. None: nothing is marked."""
        return self.setting.watermark(key_secret(self.key_seed, 0))

    def digest(self, model_sha256: str) -> str:
        """Return the hex digest of everything that decides the answers, including the whole folder of the task."""
        secret, setting = key_secret(self.key_seed, 0), self.setting
        digest_fields = {
            "model": model_sha256,
            "folder": folder_sha256(self.file.parent),
            "file": self.file.name,
            "setting": setting.digest_fields(),
            "documents": self.documents,
            "batch": self.batch,
            "commitment": setting.commitment(secret),
        }
        return digest(digest_fields)


def exams(config: EvaluationConfig, base: Path) -> list[Exam]:
    """Return every task without the mark, greedy and sampled, then under each mark.

    As in the paper, the green list shifts logits before greedy decoding, and Gumbel samples with top-p. A mark is
    compared with unmarked answers of the same decoding.
    """
    how = config.utility
    if how is None:
        return []
    sampled = (how.gumbel_temperature, config.top_p, 0)  # 0: tasks define the length of answers
    settings = [Setting(None, None, GREEDY, 1.0, 0), Setting(None, None, *sampled)]
    for window in how.windows:
        green, gumbel = of_the_paper([how.gamma], [window], config.version)
        settings += [Setting(gumbel, None, *sampled), Setting(green, how.delta, GREEDY, 1.0, 0)]
    files = [base / task for task in how.tasks]
    return [Exam(file, setting, how.documents, config.batch, config.seed) for file in files for setting in settings]


class ExamRecords(WorkFiles[Exam]):
    """Exams that were taken."""

    def read(self, exam: Exam) -> list[ExamAnswer]:
        """Read the answers, in the order of the documents.

        Raises:
            ScanFailed: the file is missing or incomplete.
        """
        rows = read_whole(self.file_of(exam), ANSWERS).drop_columns(["exam"]).to_pylist()
        return sorted((ExamAnswer(**row) for row in rows), key=lambda answer: answer.document)

    def write(self, exam: Exam, answers: Sequence[ExamAnswer]) -> None:
        """Keep an exam.

        Raises:
            ScanFailed: it cannot be written.
        """
        path = self.file_of(exam)
        rows = [answer._asdict() | {"exam": path.stem} for answer in answers]
        write_rows(path, pa.Table.from_pylist(rows, ANSWERS))


def utility_figures(answers_of: Mapping[Exam, Sequence[ExamAnswer]]) -> list[Figure]:
    """Compute the share of right answers of each exam, and for each mark the p-value of a paired test against no mark.

    The test is McNemar's exact one (1947): without an effect, each of the two is right on half of the documents on
    which they differ.

    Raises:
        ScanFailed: two exams on one task have different documents.
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
    """Compute the two-sided p of McNemar's exact test on bool[N] each. It is 1 if they never differ."""
    gained, lost = int((ours & ~theirs).sum()), int((~ours & theirs).sum())
    return float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def _decoding(exam: Exam) -> tuple[Path, float, float]:
    return exam.file, exam.setting.temperature, exam.setting.top_p


PAPER_SIZE = {
    "robustness": {"prompts": 1000, "keys": 10, "keys_a_prompt": 10},
    "identification": {"users": 1000, "texts": 100},
    "utility": {"documents": None},
}
"""Sizes of the paper's tables. For Table 1: all documents."""

USER_MESSAGES = 1_000_000
"""Number of messages from which users with texts get their messages."""

PROMPT_STRIDE = 7
"""Distance between the first prompts of one user and of the next."""


@dataclass(frozen=True)
class Cell:
    """Texts of one setting: all units, in order.

    searched: numbers of messages among which they are searched.
    """

    setting: Setting
    units: tuple[WritingUnit, ...]
    searched: tuple[int, ...] = ()


@dataclass(frozen=True)
class EvaluationPlan:
    """The whole plan of an evaluation.

    results, model: folders.
    tokenizer_sha256: digest of the model's tokenizer.json.
    human: the corpus that marked text is pasted into, resolved.
    robustness, identification: cells of marked texts.
    unmarked: two samples for each temperature of these cells.
    exams: exams of utility.
    """

    config: EvaluationConfig
    base: Path
    results: Path
    model: Path
    tokenizer_sha256: str
    human: tuple[str, ...]
    robustness: tuple[Cell, ...]
    unmarked: tuple[tuple[Cell, Cell], ...]
    identification: tuple[Cell, ...]
    exams: tuple[Exam, ...]

    @property
    def tokenizer(self) -> Path:
        """Return the path of the model's tokenizer.json, which also reads its marks."""
        return self.model / "tokenizer.json"

    @property
    def sentence_model(self) -> Path | None:
        """Return the folder of the sentence model."""
        how = self.config.robustness
        return None if how is None or how.sentence_model is None else self.base / how.sentence_model

    @property
    def other_tokenizer(self) -> Path | None:
        """Return the tokenizer.json for the attack retokenise, which passes texts through it."""
        how = self.config.robustness
        if how is not None and how.other_tokenizer is not None:
            return self.base / how.other_tokenizer
        return None if self.sentence_model is None else self.sentence_model / "tokenizer.json"

    @property
    def attacks(self) -> tuple[str, ...]:
        """Return the attacks on marked texts, without the case of no attack."""
        how = self.config.robustness
        if how is None:
            return ()
        if how.attacks is not None:
            return how.attacks
        have = {"paste": how.human is not None, "retokenise": self.other_tokenizer is not None}
        return tuple(attack for attack in ATTACKS_OF_REPORT if have.get(attack.partition(":")[0], True))

    def units(self) -> Iterator[WritingUnit]:
        """Yield everything that must be written, in order of importance."""
        for cell in self.identification:
            yield from cell.units
        references, baselines = zip(*self.unmarked, strict=True) if self.unmarked else ((), ())
        for cell in (*references, *self.robustness, *baselines):
            yield from cell.units


def read_evaluation(config_file: Path, paper_size: bool) -> EvaluationConfig:
    """Read a configuration.

    paper_size: whether to use the sizes of the paper's tables instead of its own.

    Raises:
        Refused: names file, field, value and what is allowed.
    """
    config = read_toml(config_file, EvaluationConfig)
    if not paper_size:
        return config
    sections = {name: getattr(config, name) for name in PAPER_SIZE}
    return config.model_copy(
        update={name: section.model_copy(update=PAPER_SIZE[name]) for name, section in sections.items() if section}
    )


def plan_evaluation(config: EvaluationConfig, base: Path, prompts: Sequence[str]) -> EvaluationPlan:
    """Decide which texts are written, and open every named file once.

    base: folder that the configuration's relative paths start from.

    Raises:
        Refused: something cannot be right. The message names field, value and what is allowed.
    """
    if "://" in config.results:
        raise Refused(f"results = {config.results!r}: texts are kept in a folder; give the path of one")
    model = base / config.model
    if not (model / "config.json").is_file():
        raise Refused(f"model = {config.model!r}: no config.json in {model}; name a folder written by save_pretrained")
    plan = EvaluationPlan(
        config=config,
        base=base,
        results=base / config.results,
        model=model,
        tokenizer_sha256=_tokenizer_sha256(model / "tokenizer.json"),
        human=_human(config, base),
        robustness=tuple(_robustness(config, prompts)),
        unmarked=tuple(_unmarked(config, prompts)),
        identification=tuple(_identification(config, prompts)),
        exams=tuple(exams(config, base)),
    )
    for exam in plan.exams:
        if not exam.file.is_file():
            raise Refused(f"utility.tasks: there is no file {exam.file}; name a task file of lm_eval")
    if plan.sentence_model is not None and not (plan.sentence_model / "config.json").is_file():
        raise Refused(f"robustness.sentence_model: no config.json in {plan.sentence_model}; name a model's folder")
    if "retokenise" in plan.attacks:
        Tools.load(plan.tokenizer, plan.other_tokenizer)
    _check_prompts(plan, prompts)
    return plan


def _check_prompts(plan: EvaluationPlan, prompts: Sequence[str]) -> None:
    """Raise Refused if a prompt, with its chat template, is shorter than a window or too long for the model."""
    from scanner.generation import prompt_lengths  # late: imports torch, which workers that only count do not need

    widest: dict[str, int] = {}
    for unit in plan.units():
        for prompt in unit.prompts:
            mark = unit.setting.format
            widest[prompt] = max(widest.get(prompt, 0), mark.rule().context if mark else 0)
    if not widest:  # there are only exams
        return
    lengths, positions = prompt_lengths(plan.model, list(widest))
    new = plan.config.max_new_tokens
    for (prompt, window), length in zip(widest.items(), lengths, strict=True):
        what = f"prompts = {plan.config.prompts!r}: prompt {prompts.index(prompt)} (of 0 to {len(prompts) - 1}),"
        what += f" {prompt[:40]!r}, has {length} tokens"
        if length < window:
            raise Refused(
                f"{what}, fewer than the window of {window}; lengthen it or leave it out, or choose smaller windows"
            )
        if positions is not None and length + new > positions:
            raise Refused(
                f"{what}, and these and max_new_tokens = {new} do not fit the model's {positions} positions; shorten"
                " one of them"
            )


def _tokenizer_sha256(path: Path) -> str:
    sha256 = sha256_file(path) if path.is_file() else "0" * 64
    load_tokenizer(path, sha256)
    return sha256


def _human(config: EvaluationConfig, base: Path) -> tuple[str, ...]:
    how = config.robustness
    return () if how is None or how.human is None else tuple(resolve(path, base, None) for path in how.human.paths)


def _robustness(config: EvaluationConfig, prompts: Sequence[str]) -> Iterator[Cell]:
    how = config.robustness
    if how is None:
        return
    chosen = _first(prompts, how.prompts, "robustness.prompts")
    rows = [
        (prompt, (number + turn) % how.keys, 0)
        for turn in range(how.keys_a_prompt)
        for number, prompt in chosen.items()
    ]
    ends = (config.top_p, config.max_new_tokens)
    for window in how.windows:
        green, gumbel = of_the_paper([how.gamma], [window], config.version)
        for setting in (
            *(Setting(gumbel, None, temperature, *ends) for temperature in how.temperatures),
            *(Setting(green, delta, how.greenlist_temperature, *ends) for delta in how.deltas),
        ):
            yield Cell(setting, tuple(batches(setting, config.seed, rows, config.batch)))


def _unmarked(config: EvaluationConfig, prompts: Sequence[str]) -> Iterator[tuple[Cell, Cell]]:
    """Yield two samples of the same prompts for each temperature of marked texts."""
    how = config.robustness
    if how is None:
        return
    rows = [(prompt, 0, 0) for prompt in _first(prompts, how.prompts, "robustness.prompts").values()]
    for temperature in dict.fromkeys((*([how.greenlist_temperature] if how.deltas else ()), *how.temperatures)):
        setting = Setting(None, None, temperature, config.top_p, config.max_new_tokens)
        first, second = (
            Cell(setting, tuple(batches(setting, config.seed, rows, config.batch, sample=sample))) for sample in (0, 1)
        )
        yield first, second


def _identification(config: EvaluationConfig, prompts: Sequence[str]) -> Iterator[Cell]:
    """Yield cells of each method. Each user writes with prompts of their own, and with one message under one key."""
    # Under version 3, a key without groups has too few messages for the larger searches. They use separate texts, under
    # a
    # key with enough groups for the largest number.
    how = config.identification
    if how is None:
        return
    counts = MESSAGES[config.version] if how.messages is None else how.messages
    large = tuple(count for count in counts if config.version == 3 and count > MOST_NUMBERS)
    small = tuple(count for count in counts if count not in large)
    if small:
        yield from _named_cells(config, how, prompts, None, user_messages(config.seed, how.users), small)
    if large:
        groups = groups_of(max(large))
        messages = messages_in_groups(config.seed, how.users, groups_of(min(large)), groups)
        yield from _named_cells(config, how, prompts, groups, messages, large)


def _named_cells(
    config: EvaluationConfig,
    how: IdentificationConfig,
    prompts: Sequence[str],
    groups: int | None,
    messages: Sequence[int],
    counts: tuple[int, ...],
) -> Iterator[Cell]:
    chosen = _first(prompts, how.texts, "identification.texts", least=True)
    rows = [
        (chosen[(PROMPT_STRIDE * user + text) % len(chosen)], 0, messages[user])
        for text in range(how.texts)
        for user in range(how.users)
    ]
    green, gumbel = of_the_paper([how.gamma], [how.window], config.version, groups)
    ends = (config.top_p, config.max_new_tokens)
    for setting in (
        Setting(gumbel, None, how.gumbel_temperature, *ends),
        Setting(green, how.delta, how.greenlist_temperature, *ends),
    ):
        yield Cell(setting, tuple(batches(setting, config.seed, rows, config.batch)), counts)


def user_messages(seed: str, users: int) -> list[int]:
    """Draw the messages of users with texts, all different. With more users, the first messages stay the same.

    Raises:
        Refused: there are more users than messages.
    """
    return _drawn(seed, users, USER_MESSAGES)


def messages_in_groups(seed: str, users: int, first: int, groups: int) -> list[int]:
    """Draw messages of users under a key with groups, from its first groups and their first users.

    Every search under the key includes these groups.

    Args:
        seed: seed of the draw.
        users: number of users.
        first: number of first groups.
        groups: number of groups of the key.

    Raises:
        Refused: there are more users than messages.
    """
    return [place // first * groups + place % first for place in _drawn(seed, users, first**2)]


def _drawn(seed: str, users: int, places: int) -> list[int]:
    if users > places // 2:
        raise Refused(f"identification.users = {users}: at most {places // 2} users can have texts")
    order = np.random.default_rng(list(seed.encode("ascii"))).permutation(places)
    return [int(place) for place in order[:users]]


def _first(prompts: Sequence[str], count: int, field: str, least: bool = False) -> dict[int, str]:
    distinct = list(dict.fromkeys(prompts))
    if len(distinct) < count:
        raise Refused(f"{field} = {count}: the file has {len(distinct)} distinct prompts; ask for fewer or add prompts")
    return dict(enumerate(distinct if least else distinct[:count]))
