"""Choose the unit of a claim: the run of tokens that it is about (SPEC_3 §5).

1. The unit of a flag of the whole text, as written or in its normal form, is that text; of a flagged part, the smallest
   window that holds it.
2. If p of that unit is small enough for everybody (`TRIED`), it is the strongest. Otherwise, of it and all windows
   of the text as written, the one whose claim has the smallest p is. A claim counts at most 1,000 positions, repeats
   within its unit only, and positions that an earlier claim showed at their mean at most. So a marked paragraph can
   be hidden in a larger unit: of a long text, or among words that are repeated, or copied from a claimed text.
3. An earlier claim about this text has an event. What it and events before it showed can be claimed under it: nothing
   new is shown, and p is what it was then, with the event's own seeds counted as secret. If p of the strongest such
   unit is small enough for everybody, the claim is about that, under the first such event.
4. Otherwise, it is about the strongest unit of all: under one of these events, or under a new one.

No later claim makes p of a unit smaller, and none is made between this choice and the claim's event. So a second claim
about a flag has the same unit, and shows nothing new. And where a flag names two users, the second can still have a
claim after the first.

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


def choose_unit(
    explainer: Explainer, case: FlagCase, first: FlagCase, opened_key: OpenedKey, record: KeyRecord, shown: ShownSeeds
) -> tuple[Unit, int | None]:
    """Return the unit of a claim about a flag.

    Args:
        explainer: of the scan.
        case: the flag, about the user of the claim.
        first: the flag, about the first user that it names.
        opened_key: key of the claim.
        record: its public record.
        shown: seeds of the key that claims have shown.

    Returns:
        The unit.
        The number of the event under which it is claimed. None: a new one.

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
    as_written = of_flagged if flagged.variant is None else _steps(opened_key, record, tokens.ids, row["message"])

    def find_strongest(before: ShownSeeds, by: ShownSeeds | None) -> tuple[float, Unit]:
        """Return log10 p and the unit. Arguments are as for `_log10_p`."""
        # 2. of equal ones, `min` and `argmin` return the first
        p = float(_log10_p(opened_key, record, of_flagged, before, by, [flagged])[0])
        if p <= TRIED or not has_windows:
            return p, flagged
        every_p = _log10_p(opened_key, record, as_written, before, by, of_windows)
        best = int(np.argmin(every_p))
        return min((p, flagged), (float(every_p[best]), of_windows[best]), key=itemgetter(0))

    # 3.
    choices: list[tuple[float, Unit, int | None]] = []
    for number in find_events(explainer.registry, opened_key.key, explainer.stored_text(case)):
        if number <= shown.number:
            choices.append((*find_strongest(shown.up_to(number - 1), shown.up_to(number)), number))
            if choices[-1][0] <= TRIED:
                return choices[-1][1:]
    # 4.
    choices.append((*find_strongest(shown, None), None))
    return min(choices, key=itemgetter(0))[1:]


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
    by: ShownSeeds | None,
    units: Sequence[Unit],
) -> NDArray[np.float64]:
    """Compute log10 p of claims about U units, the larger one of both rules: float64[U].

    It takes no account of other keys, so that the unit of a flag stays the same when some are added.

    Args:
        opened_key: key of the claims.
        record: its public record.
        steps: of the text.
        before: seeds whose positions add their mean at most.
        by: seeds that may count. ∞ is returned for a unit that counts another one. None: all may.
        units: of the text.
    """
    law, messages = opened_key.watermark.law, opened_key.key.messages
    assert law is not None  # noqa: S101 - other formats were refused before
    all_terms = np.where(_are_shown(opened_key, before, steps), np.minimum(steps.terms, law.mean), steps.terms)
    may_count = np.ones(len(all_terms), np.bool_) if by is None else _are_shown(opened_key, by, steps)
    scored, score, counts = (
        np.zeros((2, len(units)), np.int64),
        np.zeros((2, len(units))),
        np.zeros(len(units), np.bool_),
    )
    for at, unit in enumerate(units):
        counted = unit.begin + choose_steps(steps.ranks[unit.begin : unit.end - steps.h])
        terms, is_user = all_terms[counted], steps.is_user[counted]
        scored[:, at] = len(counted), np.count_nonzero(is_user)
        score[:, at] = terms.sum(), terms[is_user].sum()
        counts[at] = may_count[counted].all()
    # shares of green tokens are n/2^b, so sums of them are exact, and rounded down as those of a claim
    log10_p = log10_p_of(law, np.floor(score) if law.discrete else score, scored)
    shares = np.array([record.looks[look_of_record(unit.look, unit.variant)] for unit in units])
    tests = np.array([unit.parts for unit in units]) / shares
    larger = np.maximum(
        corrected(log10_p[0], messages, tests),
        corrected(log10_p[1], steps.groups or messages, tests),
    )
    return np.where(counts, larger, np.inf)
