"""Have a model read the documents of a pass, and score them by levels.

A worker leaves out texts that already name somebody or nobody for good, and texts that the cut holds back. The model
reads the rest.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from scanner.controls.control import Observer, Subject
from scanner.controls.observation import OpenControls
from scanner.detection.attribution import BatchOrigin, FileHistory, OpenedKey, ScoreObserver
from scanner.detection.detector import Detector
from scanner.detection.left_out import NgramFilter
from scanner.detection.open_plan import open_keys, open_prover, open_text_ids
from scanner.detection.rows import TextIds, flagged_rows, texts_of_flags, with_canaries, with_ids
from scanner.detection.rules import Rules
from scanner.filtering import open_filter
from scanner.input.documents import read_text
from scanner.looks.levels.token_levels import (
    LevelPaths,
    LevelsName,
    TextLevels,
    keys_with_levels,
    pinned_reader,
    reader_config,
    worth_reading,
)
from scanner.registry import Holders
from scanner.scan_plan import Plan
from schemas.tables import DOCUMENTS, FLAG_LEVELS
from schemas.words import LEVELS

if TYPE_CHECKING:
    import torch

    from scanner.generation import TextReader

BYTES_READ_TOGETHER = 2**16
"""Bytes of text that are read together, unless a single text has more."""

SECONDS_A_BYTE = 1e-10
"""Seconds that a model takes for a byte of text, for each byte of its folder, a generous estimate.

A core multiplies at least 10¹⁰ numbers a second. A token has two bytes of text and takes each parameter, of two bytes
or four, once.
"""


class FlaggedRows(NamedTuple):
    """Rows of a file that were flagged without levels.

    decided: rows that name somebody, or name no user for good.
    undecided: the others.
    """

    decided: frozenset[int]
    undecided: frozenset[int]


NO_ROWS = FlaggedRows(frozenset(), frozenset())


class ModelScoring:
    """Reads texts with a model, and scores them by levels. The driver makes it with a plan, which holds no secrets.

    Args:
        plan: the plan of the pass (scanner.looks.levels.token_levels.model_pass_of).
        flagged: rows that were flagged before, by path.
        on_gpu: whether the model reads on a GPU of each worker.
    """

    holds_model = True

    def __init__(self, plan: Plan, flagged: Mapping[str, FlaggedRows], on_gpu: bool) -> None:
        self._plan, self._flagged, self._by = plan, flagged, reader_config(plan)
        self._reading_device = "cuda" if on_gpu else "cpu"

    @cached_property
    def _opened_keys(self) -> list[OpenedKey]:
        return open_keys(self._plan.registry, self._plan.keys, shown=self._plan.shown)

    @cached_property
    def _levels(self) -> TextLevels:
        return TextLevels.of_keys(self._opened_keys)

    @cached_property
    def _text_ids(self) -> TextIds:
        return open_text_ids(self._plan)

    @cached_property
    def _controls(self) -> OpenControls:
        return OpenControls(self._plan)

    @cached_property
    def _rules(self) -> Rules:
        plan = self._plan
        ngram_filter = open_filter(plan.results, plan.filter_sha256, self._text_ids.ngram_secret())
        return Rules.of(plan.config, plan.keys_tested, ngram_filter)

    @cached_property
    def _text_reader(self) -> "TextReader":
        return pinned_reader(self._by, self._plan.reader_sha256, self._reading_device)

    @cached_property
    def detector(self) -> Detector:
        """Open keys under which tokens count by levels, users and the filter."""
        return open_model_pass(self._plan, self._opened_keys, self._levels, self._rules.ngram_filter)

    @cached_property
    def reading_seconds(self) -> float:
        """Return the seconds that the model takes for a byte of text, a generous estimate."""
        return reading_seconds(Path(self._by.model))

    def prepare(self, device: "torch.device | None") -> None:
        """Open everything that is needed, with the model, and score a text to compile everything.

        Raises: as `open_keys`, and as TextReader.
        """
        del device  # a model reads few texts, so they are scored on the CPU
        text = "One, two, three, four: " * 40
        documents = pa.RecordBatch.from_pylist([{"row": 0, "text": text.encode()}], DOCUMENTS)
        self._levels.put([text], self._text_reader.surprise([text]))
        self.detector.score_batch(documents, BatchOrigin("", "", ""))

    def observer(self, origin: BatchOrigin, start: int) -> Observer | None:
        """Create the observer that counts for controls in a piece that begins at this row. None: no control counts."""
        return self._controls.observers(Subject.LEVELS, origin, f"{origin.shard_id};{start};")

    def score(
        self, documents: pa.RecordBatch, origin: BatchOrigin, observer: ScoreObserver | None, history: FileHistory
    ) -> dict[str, list[pa.RecordBatch]]:
        """Have the model read the documents that are worth it, and score these. Returns rows for each table."""
        batches = defaultdict[str, list[pa.RecordBatch]](list)
        stored = documents["text"].to_pylist()
        # 1. Select texts without a final decision. The cut and the share of texts leave few.
        decided = self._flagged.get(origin.path, NO_ROWS).decided
        texts = {
            index: text
            for index, row in enumerate(documents["row"].to_pylist())
            if row not in decided and (text := read_text(stored[index])[0])
        }
        drawn = self._text_ids.for_model_pass([hashlib.sha256(stored[index]).digest() for index in texts])
        passing = worth_reading(self._opened_keys, self._rules, self._by, [*texts.values()]) & (drawn < self._by.share)
        to_read = {index: text for (index, text), reads in zip(texts.items(), passing.tolist(), strict=True) if reads}
        for places in texts_read_together(to_read, self._levels.names([*to_read.values()])):
            # 2. Read with the model, copies once: rounding depends on the texts that are read together, and the reading
            # that is kept must be the one that counted.
            distinct = [*dict.fromkeys(texts[index] for index in places)]
            steps_of = dict(zip(distinct, self._text_reader.surprise(distinct), strict=True))
            # 3. Score, with tokens that count by levels.
            self._levels.put(distinct, [*steps_of.values()])
            few = documents.take(pa.array(places))
            result = self.detector.score_batch(few, origin, observer, history)
            verdicts = _as_weighed(with_canaries(result.verdicts, self._plan.canaries_made))
            batches["verdicts"].append(verdicts)
            batches["lengths"].append(result.lengths)
            # 4. Keep text and reading of flags.
            if verdicts["flagged"].true_count:
                kept = texts_of_flags(few, verdicts)
                if self._plan.config.evidence.keep_text:
                    batches["flag_texts"].append(kept)
                of_row = dict(zip(few["row"].to_pylist(), (steps_of[texts[index]] for index in places), strict=True))
                steps = [of_row[row].tobytes() for row in kept["row"].to_pylist()]
                batches["flag_levels"].append(readings_of_flags(kept, self._plan, steps))
        return batches

    def count_flags(self, verdicts: pa.RecordBatch, path: str) -> int:
        """Count the flags of a batch of a file that are no canaries, and were no flags before."""
        undecided = pa.array(self._flagged.get(path, NO_ROWS).undecided, pa.int64())
        before = pc.and_(verdicts["flagged"], pc.is_in(verdicts["row"], undecided)).true_count
        return int(verdicts["flagged"].true_count - verdicts["canary"].true_count - before)

    def tables(self, batches: defaultdict[str, list[pa.RecordBatch]]) -> dict[str, list[pa.RecordBatch]]:
        """Make the rows of flags, with their texts and readings, and of decoys. All other rows were written before."""
        exact = [with_ids(batch, self._text_ids) for batch in batches["verdicts"] if batch["flagged"].true_count]
        return {
            "flags": [flagged_rows(batch, self._plan.key_set) for batch in exact],
            **{name: batches[name] for name in ("flag_texts", "flag_levels", "audit_counts")},
        }


def open_model_pass(
    plan: Plan, opened_keys: Sequence[OpenedKey], levels: TextLevels, ngram_filter: NgramFilter
) -> Detector:
    """Open a detector as `open_detector` does, for the pass in which tokens count by levels.

    Args:
        plan: plan of the pass.
        opened_keys: keys, opened without levels.
        levels: levels of the texts that were read.
        ngram_filter: n-grams that are left out of scoring.
    """
    rules = Rules.of(plan.config, plan.keys_tested, ngram_filter).for_levels()
    holders = Holders.load(plan.registry, [key.key_id for key in plan.keys])
    prover = open_prover(plan.registry, opened_keys, rules, LevelPaths(levels))
    return Detector(keys_with_levels(opened_keys, levels), holders, rules, prover)


def reading_seconds(folder: Path) -> float:
    """Return the seconds that the model in a folder takes for a byte of text, a generous estimate."""
    return SECONDS_A_BYTE * sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def reading_cost(plan: Plan) -> tuple[float, float]:
    """Measure the CPU seconds of a pass's model for a byte of text on this machine.

    Returns:
        The seconds.
        The largest share of unmarked texts that the model reads.
    """
    from scanner.generation.model import SAMPLE_TEXT, TextReader

    by, sample = reader_config(plan), SAMPLE_TEXT * 32
    reader = TextReader(Path(by.model), "cpu", by.dtype)
    reader.surprise([sample])
    began = time.process_time()
    reader.surprise([sample])
    passing = min(1.0, sum(by.cut if key.messages == 1 else 1.0 for key in plan.keys))
    return (time.process_time() - began) / len(sample), by.share * passing


def texts_read_together(texts: Mapping[int, str], names: Sequence[Collection[LevelsName]]) -> list[list[int]]:
    """Return places of texts that are read together, at most BYTES_READ_TOGETHER bytes or a single text.

    Texts of one name that are read together are copies.
    """
    found, text_of, size = list[list[int]](), dict[LevelsName, str](), BYTES_READ_TOGETHER
    for (index, text), of_text in zip(texts.items(), names, strict=True):
        more = len(text.encode())
        if size + more > BYTES_READ_TOGETHER or any(text_of.get(name, text) != text for name in of_text):
            found.append([])
            size, text_of = 0, {}
        found[-1].append(index)
        size += more
        text_of |= dict.fromkeys(of_text, text)
    return found


def _as_weighed(exact: pa.RecordBatch) -> pa.RecordBatch:
    """Return exact rows of VERDICTS, with the look LEVELS for those that are flagged."""
    look = pc.if_else(exact["flagged"], pa.scalar(LEVELS), pa.scalar(None, pa.string()))
    return exact.set_column(exact.schema.get_field_index("look"), exact.schema.field("look"), look)


def readings_of_flags(texts: pa.RecordBatch, plan: Plan, surprise: Sequence[bytes]) -> pa.RecordBatch:
    """Return rows of FLAG_LEVELS.

    Args:
        texts: rows of FLAG_TEXTS.
        plan: plan of the pass.
        surprise: steps of surprise of each text, as bytes.
    """
    columns = {name: texts[name] for name in FLAG_LEVELS.names if name in texts.schema.names}
    columns["reader_sha256"] = pa.repeat(pa.scalar(plan.reader_sha256, pa.string()), len(texts))
    columns["surprise"] = pa.array(surprise, pa.large_binary())
    return pa.RecordBatch.from_arrays([columns[name] for name in FLAG_LEVELS.names], schema=FLAG_LEVELS)
