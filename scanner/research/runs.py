"""Run the paper's experiments on Ray: actors with the model write texts, which are kept as they come and then measured.

Only texts, small arrays and figures cross Ray's object store. Workers draw the experiments' keys from the seed.
"""

import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.cluster.corpus import sources
from scanner.cluster.machines import device_of_worker, share_gpus
from scanner.cluster.pool import Call, on_actors, spread
from scanner.errors import FileFault, Refused, ScanFailed
from scanner.input.columns import Columns
from scanner.input.documents import Unreadable, read, read_text
from scanner.research.attacks import Tools
from scanner.research.plan import Cell, EvaluationPlan, Exam, ExamAnswer, ExamRecords
from scanner.research.robustness import CellTexts, SentenceModel, detect, detection_figures, similarity_figure
from scanner.research.scores import Figure, GroupSearch, Search, identification_figures, search_texts, together
from scanner.research.units import Setting, WritingUnit, WrittenTexts, write_texts
from scanner.text import Tokenizer, load_tokenizer
from schemas.config import ClusterConfig, InputConfig, ReaderDtype

_log = logging.getLogger(__name__)

TEXTS_A_SEARCH = 16
"""Number of texts that are searched for all messages in one call."""

TEXTS_AN_EMBEDDING = 64
"""Number of texts that are embedded in one call."""

HUMAN_TEXTS, HUMAN_CHARACTERS = 200, 10_000
"""Number of human texts that marked text is pasted into, and most characters of each."""

Watch = Callable[[str, int, int], None]
"""Function that is called with the current step, the number of its finished items, and the number of its items."""


class DetectionSettings(NamedTuple):
    """How texts are attacked and tested, for workers. Paths are valid on every machine."""

    seed: str
    min_scored: int
    false_positive_rate: float
    counts: tuple[int, ...]
    attacks: tuple[str, ...]
    tokenizer: Path
    tokenizer_sha256: str
    other_tokenizer: Path | None

    @classmethod
    def of(cls, plan: EvaluationPlan, counts: tuple[int, ...] = ()) -> "DetectionSettings":
        """Return the part of a plan that workers need.

        counts: numbers of messages among which texts are searched.
        """
        config = plan.config
        return cls(
            config.seed,
            config.min_scored,
            config.robustness.false_positive_rate if config.robustness else 1.0,
            counts,
            plan.attacks,
            plan.tokenizer,
            plan.tokenizer_sha256,
            plan.other_tokenizer,
        )


class Writer:
    """An actor that holds the language model, on a GPU if it was given one, and writes units."""

    def __init__(self, folder: Path, dtype: ReaderDtype, cluster: ClusterConfig) -> None:
        _stay_offline()
        from scanner.generation import load_model

        self._model = load_model(folder, threads=1, device=_device(cluster), dtype=dtype)

    def do(self, unit: WritingUnit) -> list[tuple[str, int]]:
        """Write a unit: text and number of tokens of each row."""
        return [(completion.text, completion.tokens) for completion in write_texts(self._model, unit)]


class Candidate:
    """An actor that holds the language model, on a GPU if it was given one, and takes exams."""

    def __init__(self, folder: Path, dtype: ReaderDtype, cluster: ClusterConfig) -> None:
        _stay_offline()
        from scanner.research.examine import Examiner

        self._examiner = Examiner(folder, threads=1, device=_device(cluster), dtype=dtype)

    def do(self, exam: Exam) -> list[ExamAnswer]:
        """Take an exam and return the answers."""
        return self._examiner.take(exam)


class Embedder:
    """An actor that holds the sentence model."""

    def __init__(self, folder: Path) -> None:
        _stay_offline()
        self._model = SentenceModel(folder, threads=1)

    def do(self, texts: tuple[str, ...]) -> NDArray[np.float32]:
        """Compute embeddings of texts, float32[D, size]."""
        return self._model.embed(texts)


def _device(cluster: ClusterConfig) -> str:
    device, why = device_of_worker(cluster)
    if why:
        _log.warning(why)
    return "cpu" if device is None else str(device)


def _stay_offline() -> None:
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"  # before transformers is imported
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def write_missing(plan: EvaluationPlan, texts: WrittenTexts, workers: int, watch: Watch) -> int:
    """Write the units that are not kept yet, in order, and return their number.

    This needs a connection to Ray.

    Raises:
        BrickscanError: see scanner.errors. Texts that were written stay.
    """
    missing = texts.missing(list(plan.units()))
    done = _on_models(Writer, plan, missing, workers)
    for number, (unit, completions) in enumerate(done):
        texts.write(unit, completions)
        watch("batches written", number + 1, len(missing))
    return len(missing)


def take_missing(plan: EvaluationPlan, answers: ExamRecords, workers: int, watch: Watch) -> int:
    """Take the exams that are not kept yet, and return their number.

    This needs a connection to Ray.

    Raises:
        BrickscanError: see scanner.errors. Exams that were taken stay.
    """
    missing = answers.missing(plan.exams)
    for number, (exam, answered) in enumerate(_on_models(Candidate, plan, missing, workers)):
        answers.write(exam, answered)
        watch("exams taken", number + 1, len(missing))
    return len(missing)


def _on_models(kind: type, plan: EvaluationPlan, items: Sequence[Any], workers: int) -> Iterator[tuple[Any, Any]]:
    """Yield what actors with the language model make of items. They take GPUs as the configuration says."""
    if items:
        cluster = plan.config.cluster
        workers, gpus = share_gpus(cluster, workers)
        yield from on_actors(kind, (plan.model, plan.config.dtype, cluster), items, workers, gpus=gpus)


def measure(plan: EvaluationPlan, texts: WrittenTexts, workers: int, watch: Watch) -> list[Figure]:
    """Compute all figures from texts that are kept. This needs a connection to Ray.

    Raises:
        BrickscanError: see scanner.errors.
    """
    cells = [read_cell(cell, texts) for cell in plan.robustness]
    pairs = [(read_cell(first, texts), read_cell(second, texts)) for first, second in plan.unmarked]
    figures = _detected(plan, cells, {cell.setting.temperature: cell for cell, _ in pairs}, workers, watch)
    if plan.sentence_model is not None:
        figures += _similarities(plan.sentence_model, cells, pairs, workers, watch)
    if plan.config.identification:
        for cell in plan.identification:
            settings = DetectionSettings.of(plan, cell.searched)
            rates = plan.config.identification.false_positive_rates
            figures += _identified(settings, rates, read_cell(cell, texts), workers, watch)
    return figures


def read_cell(cell: Cell, texts: WrittenTexts) -> CellTexts:
    """Read the texts of a cell. Raises as `WrittenTexts.read`."""
    return CellTexts.of(
        cell.units, [texts.read(unit) for unit in cell.units], [texts.lengths(unit) for unit in cell.units]
    )


@functools.lru_cache(maxsize=1)
def _tokenizer(path: Path, sha256: str) -> Tokenizer:
    return load_tokenizer(path, sha256)


def _detected(
    plan: EvaluationPlan, cells: Sequence[CellTexts], unmarked: dict[float, CellTexts], workers: int, watch: Watch
) -> list[Figure]:
    corpus = plan.config.robustness.human if plan.config.robustness else None
    pasted = any(attack.startswith("paste") for attack in plan.attacks)
    human = human_texts(plan, corpus) if corpus and pasted else ()
    calls = []
    for number, cell in enumerate(cells):
        without_mark = unmarked[cell.setting.temperature]
        plain = dict(zip(without_mark.prompts, without_mark.texts, strict=True))
        calls.append(Call(number, detect_cell, (DetectionSettings.of(plan), cell, plain, human)))
    figures_of: dict[int, list[Figure]] = {}
    for number, figures in spread(calls, workers):
        figures_of[number] = figures
        watch("cells detected", len(figures_of), len(cells))
    return [row for _, rows in sorted(figures_of.items()) for row in rows]


def detect_cell(
    settings: DetectionSettings, cell: CellTexts, plain: dict[str, str], human: tuple[str, ...]
) -> list[Figure]:
    """Attack the texts of a cell, test them, and count, on a worker."""
    tools = Tools.load(settings.tokenizer, settings.other_tokenizer, human)
    tokenizer = _tokenizer(settings.tokenizer, settings.tokenizer_sha256)
    detections = detect(cell, plain, settings.attacks, settings.seed, tools, tokenizer, settings.min_scored)
    return detection_figures(cell, detections, settings.false_positive_rate)


def human_texts(plan: EvaluationPlan, corpus: InputConfig) -> tuple[str, ...]:
    """Draw human texts from random parts of the corpus, one after another. The same seed gives the same texts.

    Raises:
        Refused: there is no text.
        ScanFailed: a file cannot be read.
    """
    random = np.random.default_rng(list(plan.config.seed.encode("ascii")))
    texts: list[str] = []
    try:
        parts = sources(plan.human, Columns.of(corpus))
        for index in random.permutation(len(parts)):
            part = parts[index]
            for batch in read(part.file, part.columns, part.start, part.stop):
                if not isinstance(batch, Unreadable):
                    read_texts = (read_text(raw)[0] for raw in batch["text"].to_pylist())
                    texts += [text[:HUMAN_CHARACTERS] for text in read_texts if text and text.strip()]
            if len(texts) >= HUMAN_TEXTS:
                break
    except FileFault as fault:
        raise ScanFailed(f"robustness.human: a file cannot be read ({fault.reason}: {fault.detail})") from None
    if not texts:
        raise Refused(f"robustness.human: {', '.join(plan.human)} has no text; name files with texts")
    return tuple(texts[i] for i in random.permutation(len(texts))[:HUMAN_TEXTS])


def _similarities(
    folder: Path, cells: Sequence[CellTexts], pairs: Sequence[tuple[CellTexts, CellTexts]], workers: int, watch: Watch
) -> list[Figure]:
    distinct = list(
        dict.fromkeys(text for cell in [*cells, *itertools.chain.from_iterable(pairs)] for text in cell.texts)
    )
    chunks = [tuple(distinct[i : i + TEXTS_AN_EMBEDDING]) for i in range(0, len(distinct), TEXTS_AN_EMBEDDING)]
    vectors: dict[str, NDArray[np.float32]] = {}
    for chunk, embedded in on_actors(Embedder, (folder,), chunks, workers):
        vectors |= dict(zip(chunk, embedded, strict=True))
        watch("texts embedded", len(vectors), len(distinct))

    def of(cell: CellTexts) -> NDArray[np.float32]:
        return np.stack([vectors[text] for text in cell.texts])

    reference = {first.setting.temperature: first for first, _ in pairs}
    compared = [(cell, reference[cell.setting.temperature]) for cell in cells] + [(two, first) for first, two in pairs]
    return [similarity_figure(cell, unmarked, of(cell), of(unmarked)) for cell, unmarked in compared]


def _identified(
    settings: DetectionSettings, false_positive_rates: Sequence[float], cell: CellTexts, workers: int, watch: Watch
) -> list[Figure]:
    begins = range(0, len(cell.texts), TEXTS_A_SEARCH)
    calls = []
    for begin in begins:
        rows = slice(begin, begin + TEXTS_A_SEARCH)
        calls.append(Call(begin, search_part, (settings, cell.setting, cell.texts[rows], cell.messages[rows])))
    parts: dict[int, list[Search | GroupSearch]] = {}
    for begin, searches in spread(calls, workers):
        parts[begin] = searches
        watch(f"{cell.setting.columns()['method']} searched", len(parts), len(begins))
    each = zip(*(parts[begin] for begin in begins), strict=True)
    searches_of = {count: together(searches) for count, searches in zip(settings.counts, each, strict=True)}
    prompts = np.array(cell.prompts)
    return identification_figures(cell.setting, searches_of, np.array(cell.messages), prompts, false_positive_rates)


def search_part(
    settings: DetectionSettings, setting: Setting, texts: tuple[str, ...], messages_of_texts: tuple[int, ...]
) -> list[Search | GroupSearch]:
    """Search some texts for all numbers of messages, on a worker."""
    tokenizer = _tokenizer(settings.tokenizer, settings.tokenizer_sha256)
    return search_texts(
        setting, settings.seed, texts, messages_of_texts, settings.counts, tokenizer, settings.min_scored
    )
