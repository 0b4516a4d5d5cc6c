"""Choose the unit of a claim: the run of tokens that it is about (SPEC_3 §5).

1. The unit of a flag of the whole text, as written or in its normal form, is that text; of a flagged part, the smallest
   window that holds it.
2. If earlier claims were about units of this text, p of each is what it was then: the claim's own seeds counted as
   secret. Of those whose p is small enough for everybody (`TRIED`), the first that was claimed is the unit.
3. Otherwise, if p of the unit of step 1 is small enough for everybody, that is the unit.
4. Otherwise, of all these units and the windows of the text as written, the one whose claim has the smallest p is the
   unit. A claim counts at most 1,000 positions, repeats within its unit only, and positions that an earlier claim
   showed at their mean at most. So a marked paragraph can be hidden in a larger unit: of a long text, or among words
   that are repeated, or copied from a claimed text.

No later claim makes p of a unit smaller, and none is made between this choice and the claim's event. So a second claim
about a flag has the same unit, and shows nothing new.

p of each unit is corrected for the look's share, and of a window for all windows of the text. The shares of all looks
add up to 1 at most, so a choice among them is allowed.

A claim's windows are counted over all positions of a text. The h tokens before a window's first position belong to it.
The windows of scans can differ, because scans leave out shown seeds and also examine paragraphs and quotations.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.detection.attribution import OpenedKey
from scanner.errors import Refused
from scanner.evidence.case import FlagCase
from scanner.evidence.check_claim import TRIED
from scanner.evidence.explainer import Explainer
from scanner.evidence.offered_claim import look_of_record
from scanner.registry.shown_seeds import ShownSeeds, find_events
from scanner.results.queries import ask, spans
from scanner.watermark.format import DrawsFromSeeds, ScoresParts
from scanner.watermark.formats import format_of
from scanner.watermark.native.claim import choose_steps, rank_steps
from scanner.watermark.native.unshown import UnshownWindows
from scanner.watermark.positions import Positions, Tokens
from scanner.watermark.rule import corrected, log10_p_of
from scanner.watermark.text_windows import windows
from schemas.key_record import KeyRecord
from schemas.words import SPAN


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
    explainer: Explainer, case: FlagCase, opened_key: OpenedKey, record: KeyRecord, shown: ShownSeeds
) -> Unit:
    """Return the unit of a claim about a flag.

    Args:
        explainer: of the scan.
        case: the flag.
        opened_key: the flag's key.
        record: its public record.
        shown: seeds of the key that claims have shown.

    Raises:
        Refused: the text is gone, or the flagged part is no longer on record.
    """
    row, rule = case.row, format_of(opened_key.key).rule()
    text, tokens, _ = explainer.scored_text(case.as_written)
    index = rule.positions(Tokens(tokens.ids, np.array([0, len(tokens.ids)])), "ngram").index
    grid = windows(len(index))
    begins, ends = index[grid[:, 0]] - rule.context, index[grid[:, 1] - 1] + 1
    of_windows = [Unit(*place, None, SPAN, len(grid)) for place in zip(begins.tolist(), ends.tolist(), strict=True)]
    # 1.
    ids = tokens.ids if row["variant"] is None else explainer.scored_text(case)[1].ids
    if row["look"] is None:
        flagged = Unit(0, len(ids), row["variant"], None, 1)
    else:
        first, last = _flagged_part(explainer, case, text, opened_key)
        holds = np.flatnonzero((begins + rule.context <= first) & (ends > last))
        smallest = holds[np.argmin(grid[holds, 1] - grid[holds, 0])] if len(holds) else len(grid) - 1
        flagged = of_windows[smallest]
    if look_of_record(SPAN, None) not in record.looks:
        return flagged
    of_flagged = _steps(opened_key, record, ids, row["message"])
    as_written = of_flagged if flagged.variant is None else _steps(opened_key, record, tokens.ids, row["message"])

    def log10_p(shown: ShownSeeds, units: Sequence[Unit]) -> NDArray[np.float64]:
        """Compute log10 p of units of one variant."""
        steps = as_written if all(unit.variant is None for unit in units) else of_flagged
        shares = [record.looks[look_of_record(unit.look, unit.variant)] for unit in units]
        tests = np.array([unit.parts for unit in units]) / np.array(shares)
        return _log10_p(opened_key, steps._replace(terms=_terms(opened_key, shown, steps)), units, tests)

    # 2.
    all_events = find_events(explainer.registry, opened_key.key, explainer.stored_text(case))
    events = {words: number for words, number in all_events.items() if number <= shown.number}
    claimed = [unit for unit in (flagged, *of_windows) if unit.words in events]
    claimed.sort(key=lambda unit: events[unit.words])
    claimed_p = [float(log10_p(shown.up_to(events[unit.words] - 1), [unit])[0]) for unit in claimed]
    for unit, p in zip(claimed, claimed_p, strict=True):
        if p <= TRIED:
            return unit
    # 3.
    flagged_p = float(log10_p(shown, [flagged])[0])
    if flagged_p <= TRIED:
        return flagged
    # 4. of equal ones, `min` returns the first
    every_p = [*claimed_p, flagged_p, *log10_p(shown, of_windows).tolist()]
    return min(zip(every_p, [*claimed, flagged, *of_windows], strict=True), key=itemgetter(0))[1]


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


class _Steps(NamedTuple):
    """The P positions of a text, as a claim counts them.

    tokens: of the text.
    h: token of the first position.
    ranks: of their public hashes, int64[P].
    terms: what each adds to the score, float64[P].
    is_user: whether no other user of the group reads it, bool[P]. Without groups, nobody else reads any.
    groups: number of groups, or None.
    """

    tokens: Tokens
    h: int
    ranks: NDArray[np.int64]
    terms: NDArray[np.float64]
    is_user: NDArray[np.bool_]
    groups: int | None


def _steps(opened_key: OpenedKey, record: KeyRecord, ids: NDArray[np.uint32], message: int) -> _Steps:
    mark, h = opened_key.watermark, format_of(opened_key.key).rule().context
    assert isinstance(mark, ScoresParts)  # noqa: S101 - other formats were refused before
    tokens, places = Tokens(ids, np.array([0, len(ids)])), np.arange(h, len(ids))
    terms = mark.terms(tokens, Positions(places, np.array([0, len(places)])), message)
    each_alone = Positions(places, np.arange(len(places) + 1))
    evidence = mark.user_evidence(tokens, each_alone, np.full(len(places), message))
    ranks = rank_steps(ids, record.label)
    if evidence is None:
        return _Steps(tokens, h, ranks, terms, np.ones(len(places), np.bool_), None)
    return _Steps(tokens, h, ranks, terms, evidence.scored > 0, evidence.messages)


def _terms(opened_key: OpenedKey, shown: ShownSeeds, steps: _Steps) -> NDArray[np.float64]:
    """Return the terms of a text's positions. Where an earlier claim showed the seed, it is the mean at most."""
    law, form = opened_key.watermark.law, format_of(opened_key.key)
    assert isinstance(form, DrawsFromSeeds)  # noqa: S101 - other formats were refused before
    assert law is not None  # noqa: S101 - likewise
    rule = UnshownWindows(steps.h, form.seeds, shown.buckets.tobytes())
    unshown = rule.positions(steps.tokens, "none").index
    terms = np.minimum(steps.terms, law.mean)
    terms[unshown - steps.h] = steps.terms[unshown - steps.h]
    return terms


def _log10_p(
    opened_key: OpenedKey, steps: _Steps, units: Sequence[Unit], tests: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute log10 p of claims about U units, the larger one of both rules: float64[U].

    It takes no account of other keys, so that the unit of a flag stays the same when some are added.

    Args:
        opened_key: the flag's key.
        steps: of the text.
        units: of the text.
        tests: number for which p is corrected, beside the messages, float64[U].
    """
    scored, score = np.zeros((2, len(units)), np.int64), np.zeros((2, len(units)))
    for at, unit in enumerate(units):
        counted = unit.begin + choose_steps(steps.ranks[unit.begin : unit.end - steps.h])
        terms, is_user = steps.terms[counted], steps.is_user[counted]
        scored[:, at] = len(counted), np.count_nonzero(is_user)
        score[:, at] = terms.sum(), terms[is_user].sum()
    law, messages = opened_key.watermark.law, opened_key.key.messages
    assert law is not None  # noqa: S101 - as in `_terms`
    # shares of green tokens are n/2^b, so sums of them are exact, and rounded down as those of a claim
    log10_p = log10_p_of(law, np.floor(score) if law.discrete else score, scored)
    return np.maximum(
        corrected(log10_p[0], messages, tests),
        corrected(log10_p[1], steps.groups or messages, tests),
    )
