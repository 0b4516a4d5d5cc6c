"""What a person has to know of one flag: what was found, how likely chance does it, where it stands in the text.

Nothing here decides: the verdict was given by the scan. The text is read again from its file, and is shown only if it
is, byte for byte, the one that was scanned.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from scanner.detection.detector import KeyUnderTest
from scanner.detection.normalising import normalise
from scanner.detection.scan_plan import open_keys, read_config, results_of
from scanner.errors import Refused
from scanner.evidence.case import Case, find_case, stored_text
from scanner.evidence.quoting import Kind, Part, parts_of
from scanner.evidence.weighing import RUN, PartSaid, Weighed, weigh
from scanner.input.columns import Columns
from scanner.input.documents import Reader, read_text
from scanner.input.files import resolve
from scanner.registry import find_key, load_registry
from scanner.results.queries import ask, standing_flags
from scanner.storage.locations import absolute
from scanner.watermark import Tokens
from schemas.config import ScanConfig
from schemas.registry import MasterKey, Registry

ALIKE = 0.01
"""A part whose p-value is above it reads like text without a mark."""

_MESSAGE, _ACCOUNT, _TEXT = ("key_id", "message"), ("account_id",), ("text_sha256",)


class Around(NamedTuple):
    """Flagged documents, and distinct texts among them."""

    documents: int
    texts: int


@dataclass(frozen=True)
class Explanation:
    """A flag explained.

    case: its row and scan; key: on record, None without a configuration; text: as it was scored, None where it cannot
    be shown, for the reason `no_text`; parts of the text; weighed: how it speaks for the verdict's message, None where
    none is shown; of_message, of_account, of_text: other flags; expected: N·p, how many texts of its scan chance alone
    brings to this p-value; false_flags: how many flags of its scan chance alone makes; None: the scan did not end.
    """

    case: Case
    rate: float
    key: MasterKey | None
    text: str | None
    no_text: str | None
    parts: list[Part]
    weighed: Weighed | None
    of_message: Around
    of_account: Around | None
    of_text: Around
    expected: float | None
    false_flags: float | None

    @property
    def row(self) -> Mapping[str, Any]:
        """Of schemas.tables.VERDICTS."""
        return self.case.row

    @property
    def said_of_parts(self) -> list[PartSaid]:
        """What quoted lines and own words say, where the text has both."""
        return self.weighed.parts if self.weighed and len(self.weighed.parts) > 1 else []

    @property
    def carried_by(self) -> Kind | None:
        """Which part alone carries the mark, while the other reads like text without one: `quoted`, `own` or None."""
        said = {part.kind: part.log10_p_any for part in self.said_of_parts}
        orders: tuple[tuple[Kind, Kind], ...] = (("quoted", "own"), ("own", "quoted"))
        for kind, other in orders:
            if said and said[kind] <= math.log10(self.rate) and said[other] > math.log10(ALIKE):
                return kind
        return None


class Explainer:
    """Explains flags of one folder of results. Keys are opened once, when the first flag under them is explained.

    Args:
        place: the file of a scan's configuration; or a folder or URI of results, with which no text is shown.
        run: scored tokens that are weighed as one; below RUN a page shows material of the key.

    Raises:
        Refused: the configuration cannot be right.
    """

    def __init__(self, place: Path | str, run: int = RUN) -> None:
        self._run = run
        self._config: ScanConfig | None = None
        self.results, self.rate = str(place), 1.0
        if isinstance(place, Path):
            self._config, self._base = read_config(place), place.absolute().parent
            self.results, self.rate = results_of(self._config, place), self._config.false_positive_rate
            self._folder = absolute("registry", self._config.registry, self._base)
            paths = [path for path in self._config.input.paths if "{date}" not in path]
            self._locations = [resolve(path, self._base, None) for path in paths]
        self._reader = Reader()
        self._opened: dict[str, KeyUnderTest] = {}

    def explain(self, document: str) -> Explanation:
        """Explain a flagged document, named by its id or as PATH:ROW.

        Raises:
            Refused: there is no such flag, or no such key any more; SecretError, TokenizerError.
        """
        (explained,) = self.explain_cases([find_case(self.results, self.rate, document)])
        return explained

    def explain_cases(self, cases: Sequence[Case]) -> Iterator[Explanation]:
        """Explain flags that were found. Raises as `explain` does."""
        rows = [case.row for case in cases]
        around = {columns: self._around(rows, columns) for columns in (_MESSAGE, _ACCOUNT, _TEXT)}
        for case in cases:
            of_message, of_account, of_text = (
                counts.get(tuple(case.row[name] for name in columns), Around(1, 1))
                for columns, counts in around.items()
            )
            text, why, parts, weighed = self._text_of(case)
            read = case.scan["documents"] if case.scan else None
            stated = case.scan["false_positive_rate"] if case.scan else self.rate
            yield Explanation(
                case=case,
                rate=min(self.rate, stated),
                key=self._key(case) if self._config else None,
                text=text,
                no_text=why,
                parts=parts,
                weighed=weighed,
                of_message=of_message,
                of_account=None if case.row["account_id"] is None else of_account,
                of_text=of_text,
                expected=None if read is None else read * 10.0 ** case.row["log10_p_global"],
                false_flags=None if read is None else read * stated,
            )

    def scored_text(self, case: Case) -> tuple[str, Tokens, KeyUnderTest]:
        """The text of a flag as it was scored, its tokens by the reference tokenizer, and the opened key.

        Raises:
            Refused: there is no configuration, or the text is gone; SecretError, TokenizerError.
        """
        if self._config is None:
            raise Refused("a text is looked at with the scan's configuration; name it instead of its results")
        text = self._scored(case, self._config)
        test = self._open(self._key(case))
        return text, test.tokenizer.reference.encode([text]), test

    def stored_text(self, case: Case) -> bytes:
        """The text of a flag as its file holds it. Raises as `scored_text` does."""
        if self._config is None:
            raise Refused("a text is looked at with the scan's configuration; name it instead of its results")
        return stored_text(case, Columns.of(self._config.input), self._locations, self._reader)

    @property
    def registry(self) -> str:
        """Folder or URI of the registry that the configuration names."""
        return self._folder

    def _scored(self, case: Case, config: ScanConfig) -> str:
        raw = stored_text(case, Columns.of(config.input), self._locations, self._reader)
        text = read_text(raw)[0] or ""
        return text if case.row["variant"] is None else normalise(text)

    @cached_property
    def _registry(self) -> Registry:
        return load_registry(self._folder)

    def _key(self, case: Case) -> MasterKey:
        return find_key(self._registry, case.row["key_id"])

    def _open(self, key: MasterKey) -> KeyUnderTest:
        if key.key_id not in self._opened:
            (self._opened[key.key_id],) = open_keys(self._folder, [key], fast=False)
        return self._opened[key.key_id]

    def _text_of(self, case: Case) -> tuple[str | None, str | None, list[Part], Weighed | None]:
        """Text, why there is none, its parts, and what it says."""
        if self._config is None:
            return None, "name the scan's configuration instead of its results to see the text", [], None
        try:
            text = self._scored(case, self._config)
        except Refused as error:
            return None, str(error), [], None
        parts, message = parts_of(text), case.row["message"]
        if message is None:  # undecided: whoever is best may be a stranger
            return text, None, parts, None
        test = self._open(self._key(case))
        dedup = case.scan["dedup"] if case.scan else self._config.dedup
        tokenizer = test.tokenizer.reference
        return (
            text,
            None,
            parts,
            weigh(test.watermark, tokenizer, text, message, test.key.messages, dedup, parts, self._run),
        )

    def _around(self, rows: Sequence[Mapping[str, Any]], columns: tuple[str, ...]) -> dict[tuple[Any, ...], Around]:
        """Flags, and distinct texts among them, that have in these columns what a row has; null is like nothing."""
        values = {name: {row[name] for row in rows} - {None} for name in columns}
        wanted = pl.all_horizontal(*(pl.col(name).is_in(list(found)) for name, found in values.items()))
        counts = [pl.len().alias("documents"), pl.col("text_sha256").n_unique().alias("texts")]
        same = [pl.col(name).alias(f"same_{name}") for name in columns]
        flags = standing_flags(self.results, self.rate, wanted).group_by(same).agg(counts)
        found = ask(self.results, flags.collect)
        return {row[:-2]: Around(*row[-2:]) for row in found.iter_rows()}
