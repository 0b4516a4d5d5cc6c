"""Error rates that a provider can publish: how often a scan flags unmarked texts, and finds and names marked ones.

Every text is decided as a scan decides it (scanner.detection). A rate has Clopper and Pearson's limits, a share those
of `scanner.evaluation.scores.share` with users as clusters. A cell that is too small for its claim says what it lacks.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from scanner.audit.statistics.judgement import binomial_limits, poisson_limits
from scanner.detection.detector import Detector
from scanner.detection.one_text import NOWHERE, Check
from scanner.detection.open_plan import open_keys
from scanner.evaluation.attacks import EDITS, REMOVERS, Tools, attacked, imitated, new_share
from scanner.evaluation.scores import RISK, share
from scanner.registry import Holders, tokenizer_path
from scanner.text import Tokenizer
from scanner.watermark.positions import reach_of
from schemas.tables import DOCUMENTS
from schemas.words import Naming

LENGTHS: tuple[tuple[int, int | None], ...] = ((0, 49), (50, 99), (100, 199), (200, 399), (400, None))
"""Tokens of the texts of a row: from, to."""

LONG = 200
"""Tokens from which a text counts as long: shorter free-form text is out of the European code's scope."""

COARSE = 0.01
"""Rate that a few hundred texts can show; parts of a corpus are held against it besides the stated one."""

LEAST_TEXTS = 106
"""Fewest texts whose share is stated: from there on, exact limits of any share are at most 0.1 away from it."""

MOST_ROWS = 20
"""Most kinds, languages or sources with a row of their own; the others together have one."""

FORGERIES, FORGED_TOKENS = 120, 300
"""Forgeries of each window, and tokens of each."""

HUMAN_CHARACTERS = 20_000
"""Characters of an unmarked text that marked text is pasted into."""

LONGEST_REWRITTEN = 600
"""Most tokens of a text that a model rewrites."""

BATCH = 256  # texts that are decided at a time

Rewrite = Callable[[Sequence[str]], list[str]]
Watch = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ErrorCell:
    """One count with its limits.

    part, row, among: where it stands: a section, a line of it, and which texts (`all` or a stratum); measure: what is
    counted; texts, hits: n and how many of them; low, high: 95 % limits; share: hits over texts, null where there are
    too few texts to state it; rate: the rate that the hits are held against, null for a share; lacks: how many texts
    more it takes to show the rate (as long as hits stay as they are) or to state the share; 0: none.
    """

    part: str
    row: str
    among: str
    measure: str
    texts: int
    hits: int
    low: float
    high: float
    share: float | None
    rate: float | None
    lacks: int

    @property
    def too_high(self) -> bool:
        """Whether even the lower limit is above the rate that the cell is held against."""
        return self.rate is not None and self.low > self.rate


class CellPlace(NamedTuple):
    """Where a cell stands: section, line and stratum."""

    part: str
    row: str
    among: str = "all"


def rate_cell(place: CellPlace, measure: str, hits: NDArray[np.bool_], rate: float) -> ErrorCell:
    """A count that is held against a rate; hits: bool[N], N ≥ 1, of texts that count as independent draws."""
    texts, found = len(hits), int(hits.sum())
    low, high = binomial_limits(found, texts, RISK)
    needed = math.ceil(poisson_limits(found, RISK).high / rate)  # never less than the binomial law asks for
    lacks = 0 if high <= rate else max(needed - texts, 1)
    return ErrorCell(*place, measure, texts, found, low, high, found / texts, rate, lacks)


def share_cell(place: CellPlace, measure: str, hits: NDArray[np.bool_], users: NDArray[Any]) -> ErrorCell:
    """A share of N ≥ 1 texts; users: label of each text's user, [N]: texts of one user count as alike."""
    found, lacks = share(hits, users), max(LEAST_TEXTS - len(hits), 0)
    stated = None if lacks else found.value
    return ErrorCell(*place, measure, found.n, int(hits.sum()), found.low, found.high, stated, None, lacks)


class Decided(NamedTuple):
    """A scan's decisions on D texts.

    log10_p: the smallest corrected p, float64[D], 0 where the text is not scored; flagged, scored: bool[D]; users: who
    is named for each.
    """

    log10_p: NDArray[np.float64]
    flagged: NDArray[np.bool_]
    scored: NDArray[np.bool_]
    users: list[frozenset[str]]

    def named(self, user_ids: Sequence[str | None]) -> NDArray[np.bool_]:
        """Texts for which their own user is named."""
        return np.array([user in users for user, users in zip(user_ids, self.users, strict=True)], np.bool_)

    def misnamed(self, user_ids: Sequence[str | None]) -> NDArray[np.bool_]:
        """Texts for which somebody else is named."""
        return np.array([bool(users - {user}) for user, users in zip(user_ids, self.users, strict=True)], np.bool_)


class Decider:
    """A scan's keys and rules, which decide texts one by one, without its filter."""

    def __init__(self, check: Check) -> None:
        tests = open_keys(check.registry, check.keys)
        holders = Holders.load(check.registry, [key.key_id for key in check.keys])
        self._detector = Detector(tests, holders, check.rules)
        self.tokenizer: Tokenizer = tests[0].tokenizer
        self.tokenizer_file = Path(tokenizer_path(check.registry, check.keys[0]))
        self.windows = sorted({reach_of(test.watermark.rule) for test in tests})
        self.rate = check.rules.false_positive_rate

    def measured(self, texts: pl.DataFrame) -> pl.DataFrame:
        """Texts with the column `tokens`."""
        return texts.with_columns(tokens=pl.Series(self.lengths(texts["text"].to_list())))

    def lengths(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Tokens of each text under the first key's tokenizer."""
        return np.diff(self.tokenizer.encode(texts).offsets)

    def decide(self, texts: Sequence[str]) -> Decided:
        """Decide texts as a scan does."""
        rows: list[Mapping[str, Any]] = []
        for begin in range(0, len(texts), BATCH):
            some = [
                {"row": row, "text": text.encode(errors="surrogatepass")}
                for row, text in enumerate(texts[begin : begin + BATCH])
            ]
            verdicts, refused = self._detector.detect(pa.RecordBatch.from_pylist(some, DOCUMENTS), NOWHERE)
            unread: list[Mapping[str, Any]] = [
                {
                    "row": row,
                    "log10_p_global": None,
                    "flagged": False,
                    "status": "unreadable",
                    "naming": None,
                    "named": [],
                }
                for row in refused["row"].to_pylist()
            ]
            rows += sorted(verdicts.to_pylist() + unread, key=lambda row: int(row["row"]))
        return Decided(
            np.array([row["log10_p_global"] or 0.0 for row in rows], np.float64),
            np.array([row["flagged"] for row in rows], np.bool_),
            np.array([row["status"].startswith("scored") for row in rows], np.bool_),
            [_users(row) for row in rows],
        )


def _users(row: Mapping[str, Any]) -> frozenset[str]:
    named = (row["named"] or []) if row["flagged"] else []
    return frozenset(one["user_id"] for one in named if one["naming"] == Naming.NAMED and one["user_id"] is not None)


def strata(texts: pl.DataFrame, columns: Sequence[str]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Rows of tables: ranges of lengths, then the values of columns that the texts have, each with its texts."""
    tokens = texts["tokens"].to_numpy()
    for least, most in LENGTHS:
        words = f"{least} tokens and more" if most is None else f"{least} to {most} tokens"
        yield words, (tokens >= least) & (tokens <= (np.inf if most is None else most))
    for column in columns:
        if column not in texts.columns:
            continue
        values = texts[column].fill_null("unknown").to_numpy()
        names, counts = np.unique(values.astype(str), return_counts=True)
        first = names[np.lexsort((names, -counts))]
        for name in first[:MOST_ROWS].tolist():
            yield f"{column} {name}", values == name
        if len(first) > MOST_ROWS:
            yield f"{column}: {len(first) - MOST_ROWS} others", np.isin(values, first[MOST_ROWS:])


def false_positives(decided: Decided, texts: pl.DataFrame, rate: float) -> Iterator[ErrorCell]:
    """How often unmarked texts are flagged, and reach each p-value, as a whole and by stratum."""
    decades = [10.0**-k for k in range(1, 13) if 10.0**-k > rate * 1.001]
    for threshold in [*decades, rate]:
        row = f"p of {threshold:g} and less"
        yield rate_cell(CellPlace("p-values", row), "reached", decided.log10_p <= np.log10(threshold), threshold)
    everything = ("all texts", np.ones(texts.height, np.bool_))
    yield _unscored("unmarked", decided)
    for words, these in (everything, *strata(texts, ("kind", "language", "source"))):
        if not these.any():
            continue
        place = CellPlace("false positives", words)
        yield rate_cell(place, "flagged", decided.flagged[these], rate)
        yield rate_cell(place, "reached", decided.log10_p[these] <= np.log10(COARSE), COARSE)


def _unscored(row: str, decided: Decided) -> ErrorCell:
    return share_cell(CellPlace("too short", row), "unscored", ~decided.scored, np.arange(len(decided.scored)))


def found_cells(part: str, row: str | None, decided: Decided, texts: pl.DataFrame) -> Iterator[ErrorCell]:
    """Shares of marked texts that are found, named and misnamed: all, those that are long, and by stratum.

    A text without a user counts as found alone. row: the line of the section; None: a line a stratum.
    """
    users = texts["user_id"].to_list() if "user_id" in texts.columns else [None] * texts.height
    labels = np.array([str(i) if user is None else f"user {user}" for i, user in enumerate(users)])
    everything, known = np.ones(texts.height, np.bool_), np.array([user is not None for user in users])
    measures = {"found": (decided.flagged, everything)}
    if known.any():
        measures |= {"named": (decided.named(users), known), "misnamed": (decided.misnamed(users), known)}
    long = (f"{LONG} tokens and more", texts["tokens"].to_numpy() >= LONG)
    for words, these in (("all", everything), long, *strata(texts, ("kind",))):
        place = CellPlace(part, words) if row is None else CellPlace(part, row, words)
        for measure, (hits, counted) in measures.items():
            chosen = these & counted
            if chosen.any():
                yield share_cell(place, measure, hits[chosen], labels[chosen])


def error_rates(
    decider: Decider,
    unmarked: pl.DataFrame,
    marked: pl.DataFrame,
    seed: str,
    rewrites: Mapping[str, Rewrite],
    watch: Watch,
) -> list[ErrorCell]:
    """Every cell of the page.

    Args:
        decider: keys and rules.
        unmarked: distinct texts that nobody marked: text, tokens; kind, language, source where they are known.
        marked: texts that were marked under one of the keys: likewise, and user_id where a user is to be named.
        seed: seed of the edits.
        rewrites: what a model does with texts, by the words of its row.
        watch: is called with the next step, how many steps are done, and how many there are.
    """
    tools = Tools.load(decider.tokenizer_file, human=[text[:HUMAN_CHARACTERS] for text in unmarked["text"]])
    steps = 3 + len(EDITS) + len(REMOVERS) + len(rewrites)
    texts, done = marked["text"].to_list(), 0

    def decide(what: str, of: Sequence[str]) -> Decided:
        nonlocal done
        watch(what, done, steps)
        done += 1
        return decider.decide(of)

    cells = list(false_positives(decide("unmarked texts", unmarked["text"].to_list()), unmarked, decider.rate))
    as_written = decide("marked texts", texts)
    cells += [_unscored("marked", as_written), *found_cells("marked", None, as_written, marked)]
    for part, edits in (("edits", EDITS), ("removers", REMOVERS)):
        for name, words in edits:
            cells += found_cells(part, words, decide(name, attacked(name, texts, seed, tools)), marked)
    short = marked.filter(pl.col("tokens") <= LONGEST_REWRITTEN)
    for words, rewrite in rewrites.items():
        cells += found_cells("rewriting", words, decide(words, rewrite(short["text"].to_list())), short)
    watch("forgeries", steps - 1, steps)
    for window in decider.windows:
        cells += _imitation(decider, marked, window, seed, tools)
    watch("done", steps, steps)
    return cells


def _imitation(decider: Decider, marked: pl.DataFrame, window: int, seed: str, tools: Tools) -> Iterator[ErrorCell]:
    """Forgeries out of n-grams of one user's marked texts each: how often they are found, and named for that user."""
    by_user = {"everybody": marked["text"].to_list()}
    if "user_id" in marked.columns:
        known = marked.drop_nulls("user_id")
        by_user = {user: part["text"].to_list() for (user,), part in known.group_by("user_id", maintain_order=True)}
    texts, users, new = [], [], []
    for number in range(FORGERIES):
        user = list(by_user)[number % len(by_user)]
        ids = [tools.ids(text) for text in by_user[user]]
        made = imitated(ids, window, FORGED_TOKENS, f"{seed} {number}")
        texts.append(str(tools.tokenizer.decode(made, skip_special_tokens=False)))
        users.append(user)
        new.append(new_share(made, ids))
    frame = pl.DataFrame({"text": texts, "user_id": users, "tokens": decider.lengths(texts)})
    row = f"n-grams of window {window}; {np.nanmean(new):.0%} of the runs of 8 tokens are in no marked text"
    named = frame if "user_id" in marked.columns else frame.drop("user_id")
    yield from (cell for cell in found_cells("imitation", row, decider.decide(texts), named) if cell.among == "all")
