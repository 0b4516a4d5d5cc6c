"""Measure error rates that a provider can publish: how often a scan flags unmarked texts, and finds and names marked.

Every text is decided as in a scan (scanner.detection). The page has two kinds of figures, both with limits by Clopper
and Pearson:

- A rate refers to the texts that are scored. Its limits are those for the number of independent pieces that the texts
  are worth (scanner.detection.sketches).
- A share refers to all texts. Its limits are those for the number of texts that independent users would have.

A cell with too few texts for its claim says how many are missing. The page is one HTML file in the look of a report,
with the same content as JSON. Equal inputs give equal bytes.
"""

import importlib.util
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.audit.statistics.judgement import binomial_limits, clusters_of_one_size, few_clusters, poisson_limits
from scanner.detection.one_text import OpenedCheck, TextCheck
from scanner.detection.sketches import CORPUS_CONTEXT, EQUAL_IN_CORPUS, pieces_of, sketch
from scanner.errors import Refused, install_of
from scanner.evidence.charts import rates_chart
from scanner.evidence.page import environment
from scanner.printable import amount, counted, printable
from scanner.registry import tokenizer_path
from scanner.research.attacks import EDITS, REMOVERS, Tools, attack_texts, followers, imitate_text, new_share
from scanner.research.scores import LIMIT_RISK, effective_texts
from scanner.text import Tokenizer
from scanner.watermark.positions import reach_of
from schemas.words import Naming

LENGTH_CLASSES = ((0, 49), (50, 99), (100, 199), (200, 399), (400, None))  # tokens of the texts of a row: from, to
LONG_TEXT = 200  # tokens from which a text is long; the European code covers free-form text only from this length
COARSE_RATE = 0.01  # a few hundred texts can show it; parts of a corpus are compared with it and with the stated rate
FEWEST_TEXTS = 106  # so many independent texts bring the exact limits of any share within 0.1 of it
ROWS_A_COLUMN = 20  # kinds, languages or sources with a row of their own; the others share one
FORGERIES, FORGED_TOKENS = 120, 300  # forgeries for each window, and tokens of each
HUMAN_CHARACTERS = 20_000  # of an unmarked text that marked text is pasted into
LONGEST_REWRITTEN = 600  # most tokens of a text that a model rewrites
TEXTS_A_BATCH = 256  # texts that are decided together

Rewrite = Callable[[Sequence[str]], list[str]]
Watch = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ErrorCell:
    """One count with its limits.

    part: section of the page.
    row: line of the section.
    stratum: the texts that are counted, `all` or a stratum.
    measure: name of the count.
    texts: number of texts, n.
    hits: number of texts that are counted.
    low, high: 95 % limits.
    share: hits over texts. Null if there are too few texts for the cell's claim.
    rate: the rate that the hits are compared with. Null for a share.
    lacks: number of texts that are missing to show the rate (if hits stay as they are) or to state the share (from
        other users). 0: none.
    pieces: number of independent texts that the texts of a rate are worth. Fillings of one template count together.
        Null for a share.
    """

    part: str
    row: str
    stratum: str
    measure: str
    texts: int
    hits: int
    low: float
    high: float
    share: float | None
    rate: float | None
    lacks: int
    pieces: int | None = None

    @property
    def too_high(self) -> bool:
        """Return whether even the lower limit is above the rate that the cell is compared with."""
        return self.rate is not None and self.low > self.rate


class CellPlace(NamedTuple):
    """The place of a cell: section, line and stratum."""

    part: str
    row: str
    stratum: str = "all"


def rate_cell(
    place: CellPlace, measure: str, hits: NDArray[np.bool_], rate: float, pieces: NDArray[np.int64]
) -> ErrorCell:
    """Count hits that are compared with a rate.

    Args:
        place: place of the cell.
        measure: name of the count.
        hits: bool[N], N ≥ 1.
        rate: the rate.
        pieces: piece of each text, int64[N].
    """
    texts, count, worth = len(hits), int(hits.sum()), clusters_of_one_size(pieces)
    effective = worth
    if count not in (0, texts) and worth < texts:  # equal results do not show how alike a piece's texts are
        alike = effective_texts(hits, pieces) * few_clusters(len(np.unique(pieces)), LIMIT_RISK)
        effective = alike / few_clusters(worth, LIMIT_RISK) if worth >= 2 else 0.0
    hits_of_pieces = count / texts * effective
    low, high = binomial_limits(hits_of_pieces, effective, LIMIT_RISK) if effective > 0 else (0.0, 1.0)
    # at least as many as the binomial law needs
    needed = math.ceil(poisson_limits(hits_of_pieces, LIMIT_RISK).high / rate - effective)
    lacks = 0 if high <= rate else max(needed, 1)
    share = None if lacks else count / texts
    return ErrorCell(*place, measure, texts, count, low, high, share, rate, lacks, int(worth))


def share_cell(place: CellPlace, measure: str, hits: NDArray[np.bool_], users: NDArray[Any]) -> ErrorCell:
    """Count a share of N ≥ 1 texts.

    If all texts have the same result, they do not show how alike a user's texts are. Then each user counts as one text.

    users: label of each text's user, [N]. Texts of one user count as alike.
    """
    texts, count, clusters = len(hits), int(hits.sum()), len(np.unique(users))
    by_users = count in (0, texts) or clusters == texts
    effective = float(clusters) if by_users else effective_texts(hits, users)
    low, high = binomial_limits(count / texts * effective, effective, LIMIT_RISK) if effective > 0 else (0.0, 1.0)
    lacks = _lacking(texts, effective if effective > 0 else 1.0)
    return ErrorCell(*place, measure, texts, count, low, high, None if lacks else count / texts, None, lacks)


def _lacking(texts: int, effective: float) -> int:
    """Return how many texts, each of another user, must be added to show as much as FEWEST_TEXTS independent texts."""
    # With m more, the variance of the share is that of (N + m)² / (N² / effective + m) independent texts.
    if effective >= FEWEST_TEXTS:
        return 0
    root = math.sqrt(FEWEST_TEXTS**2 + 4 * FEWEST_TEXTS * texts * (texts / effective - 1))
    return math.ceil((FEWEST_TEXTS - 2 * texts + root) / 2)


class TextDecisions(NamedTuple):
    """A scan's decisions on D texts.

    log10_p: the smallest corrected p, float64[D]. 0 if the text is not scored.
    flagged, scored: bool[D].
    users: the users who are named for each text.
    """

    log10_p: NDArray[np.float64]
    flagged: NDArray[np.bool_]
    scored: NDArray[np.bool_]
    users: list[frozenset[str]]


class Decider:
    """A scan's keys and rules. It decides texts one by one, without the scan's filter.

    windows: how many previous tokens decide a token's draw, for each key, without repeats.
    rate: rate at which texts are flagged.
    """

    def __init__(self, check: TextCheck) -> None:
        self._opened, self.rate = OpenedCheck(check), check.rules.false_positive_rate
        self.tokenizer: Tokenizer = self._opened.opened_keys[0].tokenizer
        self.tokenizer_file = Path(tokenizer_path(check.registry, check.keys[0]))
        self.windows = sorted({reach_of(opened_key.watermark.rule) for opened_key in self._opened.opened_keys})

    def measured(self, texts: pl.DataFrame) -> pl.DataFrame:
        """Return texts with two more columns.

        tokens: number of tokens by the first key's tokenizer.
        piece: number of the text's piece.
        """
        tokens = self.tokenizer.encode(texts["text"].to_list())
        bounds = zip(tokens.offsets, tokens.offsets[1:], strict=False)
        sketches = [sketch(tokens.ids[begin:end], CORPUS_CONTEXT) for begin, end in bounds]
        piece = pieces_of(sketches, equal_places=EQUAL_IN_CORPUS)
        return texts.with_columns(tokens=np.diff(tokens.offsets), piece=piece)

    def decide(self, texts: Sequence[str]) -> TextDecisions:
        """Decide texts as a scan does. A text that a scan cannot read is not scored."""
        count = len(texts)
        decided = TextDecisions(
            np.zeros(count), np.zeros(count, np.bool_), np.zeros(count, np.bool_), [frozenset()] * count
        )
        for begin in range(0, count, TEXTS_A_BATCH):
            batch = [text.encode() for text in texts[begin : begin + TEXTS_A_BATCH]]
            for row in self._opened.score_batch(batch).verdicts.to_pylist():
                place = begin + row["row"]
                decided.log10_p[place] = row["log10_p_global"] or 0.0
                decided.flagged[place] = row["flagged"]
                decided.scored[place] = row["status"].startswith("scored")
                named = (row["named"] or []) if row["flagged"] else []
                decided.users[place] = frozenset(user["user_id"] for user in named if user["naming"] == Naming.NAMED)
        return decided


def strata(texts: pl.DataFrame, columns: Sequence[str]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield rows of tables with their texts, bool[N]: ranges of lengths, then values of columns that the texts have."""
    tokens = texts["tokens"].to_numpy()
    for least, limit in LENGTH_CLASSES:
        words = f"{least} tokens and more" if limit is None else f"{least} to {limit} tokens"
        yield words, (tokens >= least) & (tokens <= (np.inf if limit is None else limit))
    for column in columns:
        if column not in texts.columns:
            continue
        values = texts[column].fill_null("unknown")
        counts = values.value_counts().sort("count", column, descending=[True, False])
        first, others = counts[column][:ROWS_A_COLUMN], counts[column][ROWS_A_COLUMN:]
        for name in first:
            yield f"{column} {name}", (values == name).to_numpy()
        if len(others):
            yield f"{column}: {len(others)} others", values.is_in(others.implode()).to_numpy()


def false_positives(decided: TextDecisions, texts: pl.DataFrame, rate: float) -> Iterator[ErrorCell]:
    """Count how often scored unmarked texts are flagged, and reach each p-value, in all and by stratum."""
    scored, log10_p, pieces = decided.scored, decided.log10_p, texts["piece"].to_numpy()
    yield _unscored("unmarked", decided)
    if scored.any():
        decades = [10.0**-k for k in range(1, 13) if 10.0**-k > rate * 1.001]
        for threshold in [*decades, rate]:
            place = CellPlace("p-values", f"p of {threshold:g} and less")
            yield rate_cell(place, "reached", log10_p[scored] <= np.log10(threshold), threshold, pieces[scored])
    everything = ("all texts", np.ones(texts.height, np.bool_))
    for words, these in (everything, *strata(texts, ("kind", "language", "source"))):
        counted = these & scored
        if counted.any():
            place = CellPlace("false positives", words)
            yield rate_cell(place, "flagged", decided.flagged[counted], rate, pieces[counted])
            coarse = log10_p[counted] <= np.log10(COARSE_RATE)
            yield rate_cell(place, "reached", coarse, COARSE_RATE, pieces[counted])


def _unscored(row: str, decided: TextDecisions) -> ErrorCell:
    return share_cell(CellPlace("too short", row), "unscored", ~decided.scored, np.arange(len(decided.scored)))


def found_cells(part: str, row: str | None, decided: TextDecisions, texts: pl.DataFrame) -> Iterator[ErrorCell]:
    """Count shares of marked texts that are found, named and misnamed: of all texts, of long ones, and by stratum.

    A text without a user is only counted as found.

    row: the line of the section. None: one line for each stratum.
    """
    users = texts["user_id"].to_list() if "user_id" in texts.columns else [None] * texts.height
    labels = np.array([str(i) if user is None else f"user {user}" for i, user in enumerate(users)])
    everything, has_user = np.ones(texts.height, np.bool_), np.array([user is not None for user in users], np.bool_)
    named = np.array([user in names for user, names in zip(users, decided.users, strict=True)], np.bool_)
    misnamed = np.array([bool(names - {user}) for user, names in zip(users, decided.users, strict=True)], np.bool_)
    measures = {"found": (decided.flagged, everything), "named": (named, has_user), "misnamed": (misnamed, has_user)}
    long = (f"{LONG_TEXT} tokens and more", texts["tokens"].to_numpy() >= LONG_TEXT)
    for words, these in (("all", everything), long, *strata(texts, ("kind",))):
        place = CellPlace(part, words) if row is None else CellPlace(part, row, words)
        for measure, (hits, mask) in measures.items():
            chosen = these & mask
            if chosen.any():
                yield share_cell(place, measure, hits[chosen], labels[chosen])


def error_rates(
    decider: Decider, unmarked: pl.DataFrame, marked: pl.DataFrame, seed: str, rewrites: Mapping[str, Rewrite],
    watch: Watch,
) -> list[ErrorCell]:  # fmt: skip
    """Count every cell of the page.

    Args:
        decider: keys and rules.
        unmarked: distinct texts without a mark: text, tokens, piece. Also kind, language and source if they are known.
        marked: texts that were marked under one of the keys. Columns as for `unmarked`, and user_id if a user is to be
            named.
        seed: seed of the edits.
        rewrites: functions that rewrite texts with a model, by the words of their row.
        watch: called with the next step, the number of finished steps, and the number of all steps.
    """
    tools = Tools.load(decider.tokenizer_file, human=[text[:HUMAN_CHARACTERS] for text in unmarked["text"]])
    steps = 3 + len(EDITS) + len(REMOVERS) + len(rewrites)
    texts, done = marked["text"].to_list(), 0

    def decide(step: str, of: Sequence[str]) -> TextDecisions:
        nonlocal done
        watch(step, done, steps)
        done += 1
        return decider.decide(of)

    cells = list(false_positives(decide("unmarked texts", unmarked["text"].to_list()), unmarked, decider.rate))
    as_written = decide("marked texts", texts)
    cells += [_unscored("marked", as_written), *found_cells("marked", None, as_written, marked)]
    for part, edits in (("edits", EDITS), ("removers", REMOVERS)):
        for name, words in edits:
            cells += found_cells(part, words, decide(name, attack_texts(name, texts, seed, tools)), marked)
    short = marked.filter(pl.col("tokens") <= LONGEST_REWRITTEN)
    for words, rewrite in rewrites.items():
        cells += found_cells("rewriting", words, decide(words, rewrite(short["text"].to_list())), short)
    watch("forgeries", steps - 1, steps)
    for window in decider.windows:
        cells += _imitation(decider, marked, window, seed, tools)
    watch("done", steps, steps)
    return cells


def _imitation(decider: Decider, marked: pl.DataFrame, window: int, seed: str, tools: Tools) -> Iterator[ErrorCell]:
    """Count how often forgeries are found, and name the user. Each is built from n-grams of one user's marked texts."""
    by_user: dict[str | None, list[str]] = {None: marked["text"].to_list()}
    if "user_id" in marked.columns and marked["user_id"].count():
        groups = marked.drop_nulls("user_id").group_by("user_id", maintain_order=True)
        by_user = {str(user): part["text"].to_list() for (user,), part in groups}
    rows, forgers = [], list(by_user.items())[:FORGERIES]
    for first, (user, texts) in enumerate(forgers):
        ids = [tools.ids(text) for text in texts]
        followers_of = followers(ids, window)
        for number in range(first, FORGERIES, len(forgers)):
            made = imitate_text(followers_of, window, FORGED_TOKENS, f"{seed} {number}")
            if made:
                text = str(tools.tokenizer.decode(made, skip_special_tokens=False))
                rows.append({"text": text, "user_id": user, "new": new_share(made, ids)})
    if rows:
        forged = decider.measured(pl.DataFrame(rows, schema_overrides={"user_id": pl.String}))
        new = f"{np.mean([row['new'] for row in rows]):.0%} of the runs of 8 tokens do not occur in any marked text"
        decided = decider.decide(forged["text"].to_list())
        cells = found_cells("imitation", f"n-grams of window {window}; {new}", decided, forged)
        yield from (cell for cell in cells if cell.stratum == "all")


PARAPHRASE = "Rewrite this text in other words. Keep its meaning and its length. Write the new text alone.\n\n{}"
TO_FRENCH = "Translate this text into French. Write the translation alone.\n\n{}"
TO_ENGLISH = "Translate this text into English. Write the translation alone.\n\n{}"

PARAMETERS_OF_A_PARAPHRASER = 1_000_000_000
"""Fewest parameters of a model whose paraphrases are a test of robustness. Smaller models repeat or ramble."""

_AT_ONCE = 8


class Rewriter:
    """A loaded model. Every answer is sampled from one seed.

    Raises:
        Refused: transformers is missing, or the folder holds no model.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        if importlib.util.find_spec("transformers") is None:
            raise Refused(f"--model needs transformers; install it with {install_of('model')}")
        from scanner.generation import load_model

        self._name, self._seed, self._model = folder.name, seed, load_model(folder)

    def steps(self) -> dict[str, Callable[[Sequence[str]], list[str]]]:
        """Return the functions that rewrite texts with the model, by the words of their row."""
        return {
            "paraphrased": lambda texts: self._ask(PARAPHRASE, texts),
            "translated into French and back": lambda texts: self._ask(TO_ENGLISH, self._ask(TO_FRENCH, texts)),
        }

    def about(self) -> dict[str, Any]:
        """Describe the model for the page."""
        parameters = sum(tensor.numel() for tensor in self._model.model.parameters())
        size = {"parameters": parameters, "small": parameters < PARAMETERS_OF_A_PARAPHRASER}
        return {"name": self._name, "longest": LONGEST_REWRITTEN} | size

    def _ask(self, request: str, texts: Sequence[str]) -> list[str]:
        from scanner.generation.mark import Sampling, complete

        sampling = Sampling(max_new_tokens=LONGEST_REWRITTEN, temperature=0.7)
        rewrites: list[str] = []
        for begin in range(0, len(texts), _AT_ONCE):
            prompts = [request.format(text) for text in texts[begin : begin + _AT_ONCE]]
            completions = complete(self._model, prompts, sampling, self._seed + begin)
            rewrites += [completion.text for completion in completions]
        return rewrites


LONGEST_ROW = 120

_ALL, _LONG = "all", f"{LONG_TEXT} tokens and more"

_FOUND = (("found", _ALL, "found"), ("named", _ALL, "its user named"), ("misnamed", _ALL, "somebody else named"))

_EDITED = tuple(
    (measure, stratum, f"{words}, {lengths}")
    for stratum, lengths in ((_ALL, "all lengths"), (_LONG, _LONG))
    for measure, _, words in _FOUND
)


class PageCell(NamedTuple):
    """A cell in words: its count, its limits, and a note on missing texts or a warning (empty: no note)."""

    counted: str
    limits: str
    lacks: str


def in_words(cell: ErrorCell | None) -> PageCell:
    """Write a cell in the words of the page. None: the cell has no text."""
    if cell is None:
        return PageCell("no text", "", "")
    count = f"{cell.hits:,} of {cell.texts:,}"
    if cell.rate is not None:
        lacks = f"lacks {cell.lacks:,} texts to show {cell.rate:g}" if cell.lacks else ""
        if cell.pieces is not None and cell.pieces < cell.texts:
            count += f", worth {counted(cell.pieces, 'independent piece')}"
        if cell.too_high:
            lacks = f"above {cell.rate:g}: do not trust any flag until the cause is known"
        return PageCell(count, f"{_rounded(cell.low, math.floor):.2g} to {_rounded(cell.high, math.ceil):.2g}", lacks)
    limits = f"{math.floor(100 * cell.low) / 100:.2f} to {math.ceil(100 * cell.high) / 100:.2f}"
    if cell.share is None:
        return PageCell(count, limits, f"lacks {cell.lacks:,} texts to state a share")
    return PageCell(count, f"{cell.share:.2f} ({limits})", "")


def _rounded(limit: float, outwards: Callable[[float], int]) -> float:
    """Round a limit to two digits, away from the estimate."""
    step = 10.0 ** (math.floor(math.log10(limit)) - 1) if limit > 0 else 1.0
    return outwards(round(limit / step, 9)) * step


def table(
    cells: Sequence[ErrorCell], part: str, heading: str, columns: Sequence[tuple[str, str, str]]
) -> dict[str, Any]:
    """Return a section as a table with one line for each row of it.

    columns: measure, stratum, heading. Empty columns are left out.
    """
    cell_of = {(cell.row, cell.measure, cell.stratum): cell for cell in cells if cell.part == part}
    shown_columns = [column for column in columns if any(key[1:] == column[:2] for key in cell_of)]
    rows = list(dict.fromkeys(row for row, *_ in cell_of))
    heads, by_column = [], []
    for measure, stratum, words in shown_columns:
        listed = [cell_of.get((row, measure, stratum)) for row in rows]
        in_column = [in_words(cell) for cell in listed]
        needed = [cell.texts + cell.lacks for cell in listed if cell and cell.lacks and not cell.too_high]
        if len(needed) == len(rows) > 1:  # a note that every row has is written once
            in_column = [cell._replace(lacks="") for cell in in_column]
            words = f"{words}; too few texts in every row, about {amount(min(needed))} are needed"
        heads.append(words)
        by_column.append(in_column)
    cells_of = zip(*by_column, strict=True)
    lines = [(printable(row, LONGEST_ROW), list(in_row)) for row, in_row in zip(rows, cells_of, strict=True)]
    return {"heading": heading, "heads": heads, "lines": lines}


def page(about: Mapping[str, Any], cells: Sequence[ErrorCell]) -> str:
    """Write the page as HTML.

    about: as for `twin`.
    """
    rate = f"{about['rules']['false_positive_rate']:g}"
    rates = [cell for cell in cells if cell.part == "p-values"]
    points = [
        {"tests": 1, "hits": cell.hits / cell.texts, "expected": cell.rate, "low": cell.low, "high": cell.high}
        for cell in rates
    ]
    at_rate = [("flagged", _ALL, f"flagged at {rate}"), ("reached", _ALL, f"p of {COARSE_RATE:g} and less")]
    return _environment().get_template("error_rates.html.j2").render(
        title="Error rates of a watermark detector",
        about=about,
        cells=len(cells),
        held=sum(cell.rate is not None for cell in cells),
        rate=rate,
        least=FEWEST_TEXTS,
        forged=FORGED_TOKENS,
        chart=rates_chart(points, "unmarked texts"),
        p_values=table(cells, "p-values", "All unmarked texts", [("reached", _ALL, "texts with such a small p-value")]),
        unmarked=table(cells, "false positives", "By part of the corpus", at_rate),
        marked=table(cells, "marked", "By length and kind", _FOUND),
        edits=table(cells, "edits", "After edits", _EDITED),
        removers=table(cells, "removers", "After edits by public removers", _EDITED),
        rewriting=table(cells, "rewriting", "After a model rewrote them", _EDITED),
        imitation=table(cells, "imitation", "Forgeries", _FOUND),
    )  # fmt: skip


def twin(about: Mapping[str, Any], cells: Sequence[ErrorCell]) -> str:
    """Write the page as JSON: how it was made, and all cells, including cells that the page leaves out.

    `among` is the stratum.
    """
    listed = [{"among" if name == "stratum" else name: value for name, value in asdict(cell).items()} for cell in cells]
    return json.dumps({**about, "cells": listed}, indent=1, ensure_ascii=False) + "\n"


def _environment() -> jinja2.Environment:
    evidence = environment()
    loaders = [jinja2.PackageLoader("scanner.research", "."), evidence.loader]
    return evidence.overlay(loader=jinja2.ChoiceLoader([loader for loader in loaders if loader is not None]))
