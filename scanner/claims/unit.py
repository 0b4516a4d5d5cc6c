"""Choose the unit of a claim: the run of tokens that it is about (SPEC_3 §5).

1. The unit of a flag of the whole text is the text; of a flagged part, the smallest window that holds it.
2. If p of that claim is small enough for everybody (`TRIED`), that is the unit.
3. Otherwise, of the windows inside, take those whose scores have the smallest p. A claim counts at most 1,000
   positions, repeats within its unit only, and positions that an earlier claim showed at their mean at most. So a
   marked paragraph of a long text, or one among words that the text repeats or copies from a claimed text, can be
   hidden in a larger unit.
4. Of these units, the one whose claim has the smallest p is the unit.

Earlier claims are those before the first one about the text, and those that the flag's scan knew. So a second claim
about a flag has the same unit, and shows nothing new.

p of each unit is corrected for all windows of the text and for the look's share, so a choice among them is allowed.

A claim's windows are counted over all positions of a text. The h tokens before a window's first position belong to it.
The windows of scans can differ, because scans leave out shown seeds and also examine paragraphs and quotations.
"""

import functools
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.detection.attribution import OpenedKey
from scanner.errors import Refused
from scanner.evidence.case import FlagCase, shown_by_scan
from scanner.evidence.check_claim import MOST_POSITIONS, TRIED, corrected_p
from scanner.evidence.explainer import Explainer
from scanner.evidence.offered_claim import look_of_record
from scanner.registry import check_secret
from scanner.registry.keys_file import beacon_of_key
from scanner.registry.shown_seeds import ShownSeeds, shown_before
from scanner.results.queries import ask, spans
from scanner.watermark.format import DrawsFromSeeds, ScoresParts
from scanner.watermark.formats import format_of
from scanner.watermark.laws import Law
from scanner.watermark.native.claim import claimed_positions, score_claim
from scanner.watermark.native.tree import seed_of
from scanner.watermark.native.unshown import UnshownWindows
from scanner.watermark.positions import Positions, Tokens
from scanner.watermark.text_windows import windows
from schemas.key_record import KeyRecord, parse_label
from schemas.registry import MasterKey
from schemas.words import SPAN

CANDIDATES = 8
"""Number of windows whose p is computed as in a claim: by both rules, and on the positions that are drawn."""


class Unit(NamedTuple):
    """The subject of a claim: a run of tokens of a text.

    begin, end: its first token, and the token after its last one.
    variant: `normalised`, or None for the text as written.
    look: `span` for a window. None: the whole text.
    parts: W, the number of such units in the text.
    """

    begin: int
    end: int
    variant: str | None
    look: str | None
    parts: int

    @property
    def words(self) -> str:
        """Return words that tell the unit from others of its text, as the registry keeps them."""
        return f"{self.variant or 'as written'}, tokens {self.begin} to {self.end}"


def choose_unit(
    explainer: Explainer, case: FlagCase, text: str, ids: NDArray[np.uint32], opened_key: OpenedKey, record: KeyRecord
) -> Unit:
    """Return the unit of a claim about a flag.

    Args:
        explainer: of the scan.
        case: the flag.
        text: the text as it is scored.
        ids: its tokens.
        opened_key: the flag's key.
        record: its public record.

    Raises:
        Refused: the flagged part is no longer on record.
        SecretError: the key's secret cannot be read.
    """
    row, rule = case.row, format_of(opened_key.key).rule()
    index = rule.positions(Tokens(ids, np.array([0, len(ids)])), "ngram").index
    grid = windows(len(index))

    def unit_of(begin: int, end: int) -> Unit:
        return Unit(int(index[begin]) - rule.context, int(index[end - 1]) + 1, None, SPAN, len(grid))

    if row["look"] is None:
        unit = Unit(0, len(ids), row["variant"], None, 1)
    else:
        first, last = _flagged_part(explainer, case, text, opened_key)
        holds = (index[grid[:, 0]] <= first) & (index[grid[:, 1] - 1] >= last)
        unit = unit_of(*min(grid[holds].tolist(), key=lambda window: window[1] - window[0], default=(0, len(index))))
    then = dict(shown_by_scan(case.scan)).get(opened_key.key.key_id)
    shown = shown_before(explainer.registry, opened_key.key, explainer.stored_text(case), then)
    log10_p = functools.partial(_log10_p, explainer.registry, opened_key.key, record, row["message"], shown.leaves, ids)
    if unit.variant is not None or look_of_record(SPAN, None) not in record.looks or log10_p(unit) <= TRIED:
        return unit
    places = np.arange(unit.begin + rule.context, unit.end)
    excess = _excess(opened_key, shown, ids, places, row["message"])
    inside = grid[(index[grid[:, 0]] >= places[0]) & (index[grid[:, 1] - 1] <= places[-1])]
    begin, end = index[inside[:, 0]] - places[0], index[inside[:, 1] - 1] + 1 - places[0]
    strongest = inside[_strongest(_law(opened_key), excess, _last_before(ids, places, rule.context), begin, end)]
    return min([unit, *(unit_of(*window) for window in strongest.tolist())], key=log10_p)


def _flagged_part(explainer: Explainer, case: FlagCase, text: str, opened_key: OpenedKey) -> tuple[int, int]:
    """Return the first and the last token of the part that was flagged."""
    part = ["path", "row", "scan_id", "shard_id", "key_id", "message", "score", "log10_p"]
    same = pl.all_horizontal(*(pl.col(name) == case.row[name] for name in part))
    found = ask(explainer.results, lambda: spans(explainer.results).filter(same).head(1).collect()).to_dicts()
    if not found:
        raise Refused(f"{case.where}: the flagged part is no longer on record")
    begins = opened_key.tokenizer.reference.encode_with_offsets(text)[1][:, 0]
    first = int(np.searchsorted(begins, found[0]["char_from"]))
    return first, first + found[0]["tokens"] - 1


def _law(opened_key: OpenedKey) -> Law:
    law = opened_key.watermark.law
    assert law is not None  # noqa: S101 - other formats were refused before
    return law


def _excess(
    opened_key: OpenedKey, shown: ShownSeeds, ids: NDArray[np.uint32], places: NDArray[np.int64], message: int
) -> NDArray[np.float64]:
    """Return by how much the term of each place, repeats too, is above its mean: float64[P].

    Where earlier claims showed the seed, it is 0 at most, as in the score of a claim.
    """
    mark, form = opened_key.watermark, format_of(opened_key.key)
    assert isinstance(mark, ScoresParts)  # noqa: S101 - other formats were refused before
    assert isinstance(form, DrawsFromSeeds)  # noqa: S101 - likewise
    tokens, positions = Tokens(ids, np.array([0, len(ids)])), Positions(places, np.array([0, len(places)]))
    excess = mark.terms(tokens, positions, message) - _law(opened_key).mean
    unshown = UnshownWindows(form.rule().context, form.seeds, shown.buckets.tobytes()).positions(tokens, "none").index
    return np.where(np.isin(places, unshown), excess, np.minimum(excess, 0))


def _last_before(ids: NDArray[np.uint32], places: NDArray[np.int64], h: int) -> NDArray[np.int64]:
    """Return for each place the number of the last place before it that has the same tokens, or -1: int64[P]."""
    raw, met = ids.astype("<u4").tobytes(), dict[bytes, int]()
    before = np.empty(len(places), np.int64)
    for number, place in enumerate(places.tolist()):
        ngram = raw[4 * (place - h) : 4 * (place + 1)]
        before[number] = met.get(ngram, -1)
        met[ngram] = number
    return before


def _strongest(
    law: Law,
    excess: NDArray[np.float64],
    before: NDArray[np.int64],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the numbers of the windows whose scores have the smallest p, that first: int64[C].

    In each window, those places count that have no repeat earlier in it. At most 1,000 of them are drawn, which have
    their share of the score.

    Args:
        law: law of the scores.
        excess: of P places, float64[P].
        before: as `_last_before` returns it.
        begins: first place of each window, int64[W].
        ends: place after the last one, int64[W].
    """

    def counted(begin: int, end: int) -> tuple[int, float]:
        counts = before[begin:end] < begin
        return int(np.count_nonzero(counts)), float(excess[begin:end][counts].sum())

    of_windows = [counted(begin, end) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    positions, above = np.array(of_windows).T
    scored = np.minimum(positions, MOST_POSITIONS)
    score = (law.mean + above / positions) * scored
    log10_p = law.log10_p(np.floor(score + 1e-9) if law.discrete else score, scored)
    return np.argsort(log10_p, kind="stable")[:CANDIDATES]


def _log10_p(
    folder: str,
    key: MasterKey,
    record: KeyRecord,
    message: int,
    earlier: Collection[bytes],
    ids: NDArray[np.uint32],
    unit: Unit,
) -> float:
    """Compute log10 p of a claim about a unit, the larger one of both rules.

    It takes no account of other keys, so that the unit of a flag stays the same when some are added.

    earlier: leaves that earlier claims showed.
    """
    seed_key, tokens = open_seed_key(folder, key), ids[unit.begin : unit.end].tolist()
    seeds = {bucket: seed_of(seed_key, bucket) for bucket in claimed_positions(tokens, record.label).buckets.tolist()}
    score = score_claim(tokens, message, record.label, bytes.fromhex(beacon_of_key(key)), seeds, earlier)
    fields = {"parts": unit.parts, "correction": 1 / record.looks[look_of_record(unit.look, unit.variant)]}
    groups = parse_label(record.label).groups
    return max(
        corrected_p(score.log10_p, key.messages, fields),
        corrected_p(score.log10_p_user, groups or key.messages, fields),
    )


def open_seed_key(folder: str, key: MasterKey) -> NDArray[np.uint32]:
    """Return the key that draws the seeds of a key, uint32[8]. It is as secret as the key itself.

    Raises:
        SecretError: the key's secret cannot be read.
    """
    form = format_of(key)
    assert isinstance(form, DrawsFromSeeds)  # noqa: S101 - the refusal of a flag refuses other formats
    return form.seed_key(check_secret(folder, key))
