"""Choose the unit of a claim: the run of tokens that it is about (SPEC_3 §5).

1. The unit of a flag of the whole text, as written or in its normal form, is that text; of a flagged part, the smallest
   window that holds it.
2. If p of that unit is small enough for everybody (`TRIED`), the claim is about it. Otherwise, of it and all windows of
   the text as written, it is about the one whose claim has the smallest p. A claim counts at most 1,000 positions,
   repeats within its unit only, and positions that were shown before the text at their mean at most. So a marked
   paragraph can be hidden in a larger unit: of a long text, or among words that are repeated, or copied from a claimed
   text.

Nobody could choose words of a text by seeds that were shown after it. So what counts as shown before a text never
changes once the text has an event, and no later claim changes p of a unit. A second claim about a flag has the same
unit, and shows nothing new. Where a flag names two users, each can have the same claim, whoever has one first.

p of each unit is corrected for the look's share, and of a window for all windows of the text. The shares of all looks
add up to 1 at most, so a choice among them is allowed.

A claim's windows are counted over all positions of a text. The h tokens before a window's first position belong to it.
The windows of scans can differ, because scans leave out shown seeds and also examine paragraphs and quotations.
"""

from collections.abc import Sequence
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
from scanner.registry.shown_seeds import ShownSeeds
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


def choose_unit(
    explainer: Explainer, case: FlagCase, first: FlagCase, opened_key: OpenedKey, record: KeyRecord, before: ShownSeeds
) -> Unit:
    """Return the unit of a claim about a flag.

    Args:
        explainer: of the scan.
        case: the flag, about the user of the claim.
        first: the flag, about the first user that it names.
        opened_key: key of the claim.
        record: its public record.
        before: seeds of the key that were shown before the first event about the text.

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
        part_begin, part_end = _flagged_part(explainer, first, text, opened_key)
        holds = np.flatnonzero((begins + rule.context <= part_begin) & (ends >= part_end))
        smallest = holds[np.argmin(grid[holds, 1] - grid[holds, 0])] if len(holds) else len(grid) - 1
        flagged = of_windows[smallest]
    has_windows = look_of_record(SPAN, None) in record.looks and len(of_windows) > 0
    of_flagged = _steps(opened_key, record, ids, row["message"])
    # 2. of equal ones, `argmin` returns the first
    (p,) = _log10_p(opened_key, record, of_flagged, before, [flagged])
    if p <= TRIED or not has_windows:
        return flagged
    as_written = of_flagged if flagged.variant is None else _steps(opened_key, record, tokens.ids, row["message"])
    every_p = _log10_p(opened_key, record, as_written, before, of_windows)
    best = int(np.argmin(every_p))
    return of_windows[best] if every_p[best] < p else flagged


def _flagged_part(explainer: Explainer, case: FlagCase, text: str, opened_key: OpenedKey) -> tuple[int, int]:
    """Return the first token of the part that was flagged, and the one after its last."""
    part = ["path", "row", "scan_id", "shard_id", "key_id", "message", "score", "log10_p"]
    same = pl.all_horizontal(*(pl.col(name) == case.row[name] for name in part))
    found = ask(explainer.results, lambda: spans(explainer.results).filter(same).head(1).collect()).to_dicts()
    if not found:
        raise Refused(f"{case.where}: the flagged part is no longer on record")
    begins = opened_key.tokenizer.reference.encode_with_offsets(text)[1][:, 0]
    begin, end = np.searchsorted(begins, [found[0]["char_from"], found[0]["char_to"]]).tolist()
    return begin, end


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


def _are_shown(opened_key: OpenedKey, shown: ShownSeeds, steps: _Steps) -> NDArray[np.bool_]:
    """Return whether the seed of each position was shown: bool[P]."""
    form = format_of(opened_key.key)
    assert isinstance(form, DrawsFromSeeds)  # noqa: S101 - other formats were refused before
    rule, are_shown = UnshownWindows(steps.h, form.seeds, shown.buckets.tobytes()), np.ones(len(steps.terms), np.bool_)
    are_shown[rule.positions(steps.tokens, "none").index - steps.h] = False
    return are_shown


def _log10_p(
    opened_key: OpenedKey,
    record: KeyRecord,
    steps: _Steps,
    before: ShownSeeds,
    units: Sequence[Unit],
) -> NDArray[np.float64]:
    """Compute log10 p of claims about U units, the larger one of both rules: float64[U].

    It takes no account of other keys, so that the unit of a flag stays the same when some are added.

    Args:
        opened_key: key of the claims.
        record: its public record.
        steps: of the text.
        before: seeds whose positions add their mean at most.
        units: of the text.
    """
    law, messages = opened_key.watermark.law, opened_key.key.messages
    assert law is not None  # noqa: S101 - other formats were refused before
    all_terms = np.where(_are_shown(opened_key, before, steps), np.minimum(steps.terms, law.mean), steps.terms)
    scored, score = np.zeros((2, len(units)), np.int64), np.zeros((2, len(units)))
    for at, unit in enumerate(units):
        counted = unit.begin + choose_steps(steps.ranks[unit.begin : unit.end - steps.h])
        terms, is_user = all_terms[counted], steps.is_user[counted]
        scored[:, at] = len(counted), np.count_nonzero(is_user)
        score[:, at] = terms.sum(), terms[is_user].sum()
    # shares of green tokens are n/2^b, so sums of them are exact, and rounded down as those of a claim
    log10_p = log10_p_of(law, np.floor(score) if law.discrete else score, scored)
    shares = np.array([record.looks[look_of_record(unit.look, unit.variant)] for unit in units])
    tests = np.array([unit.parts for unit in units]) / shares
    return np.maximum(
        corrected(log10_p[0], messages, tests),
        corrected(log10_p[1], steps.groups or messages, tests),
    )
