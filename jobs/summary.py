"""Write the summary of a scan and of its audit, for people who have ten seconds."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobs.options import TRIAL_LINE
from jobs.text import wrap_line
from scanner.audit.statistics.audit_rows import holds_down_to, number
from scanner.controls.alarms import USE_NO_FLAG
from scanner.controls.controls import CONTROLS
from scanner.controls.scan_audit import ScanAudit
from scanner.printable import counted, one_in, printable
from scanner.results.scan_list import WholeInput, in_words
from scanner.results.shown_shares import shown_in_words, used_up
from schemas.words import WHY_NOBODY, AuditState, Naming

if TYPE_CHECKING:
    from scanner.cluster.scan import ScanOutcome
    from scanner.controls.traffic import Traffic
    from scanner.results.scan_list import WholeInput

SHOWN_DOWN_TO = 0.99e-4
"""Smallest threshold that is shown. Smaller ones are only in the table `audits`."""

AUDIT_STATE_WORDS: Mapping[AuditState, str] = {
    AuditState.NO_ALARM: "all observed rates are compatible with the stated ones",
    AuditState.ALARM: "an observed rate contradicts the stated one, or a flag could not be proved",
    AuditState.CANARIES_LOST: "planted marked texts were missed, or the wrong users were named",
    AuditState.POSSIBLE_FRAMING: "a few accounts sent texts with messages that no user holds. All else is in order",
    AuditState.NO_DECOYS: "no document was scored under decoy keys, so p-values were not tested",
}
"""Meaning of each state of an audit, for a scan that ended."""

_NAMES = {kind: words for control in CONTROLS for kind, words in control.kinds.items() if words}
_LAW_KINDS = {kind for control in CONTROLS for kind in control.law_kinds}

Row = Mapping[str, Any]


def verdict_in_words(audit: ScanAudit) -> str:
    """Return how an audit ended, and down to which threshold rates are known to hold, if that is known."""
    ending = f"{audit.state}: {AUDIT_STATE_WORDS[audit.state]}"
    if audit.state != AuditState.NO_ALARM:
        return ending
    law_rows = [row for row in audit.rows if row["kind"] in _LAW_KINDS]
    down_to = [holds_down_to(rows) for rows in questions(law_rows).values()]
    limits = [least for least in down_to if least is not None]
    if len(limits) < len(down_to) or not limits:
        return f"{ending}. A night of this size cannot show down to which p-value the rates hold"
    return f"{ending}. On decoy keys, rates are at most twice the stated ones, down to p = {max(limits):g}"


def has_near_duplicates(traffic: "Traffic") -> bool:
    """Return whether flagged texts are fewer independent pieces. False: the same number, or not counted."""
    return traffic.pieces is not None and 0 < traffic.pieces < traffic.flagged


def texts_and_pieces(traffic: "Traffic") -> str:
    """Write the number of distinct flagged texts, and of independent pieces if they are fewer."""
    texts = counted(traffic.flagged, "distinct text")
    if traffic.pieces is None or not has_near_duplicates(traffic):
        return texts
    return f"{texts}, {traffic.pieces:,} without near-duplicates"


def questions(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group the rows of an audit that are shown to people by question, in words."""
    rows_of: dict[str, list[Row]] = {}
    for row in rows:
        if row["kind"] in _NAMES:
            messages = "" if row["messages"] == 1 else f", {counted(row['messages'], 'message')}"
            subject = row["key_id"] or f"{row['label'] or row['method']}{messages}"
            rows_of.setdefault(f"{_NAMES[row['kind']]}, {subject}", []).append(row)
    return rows_of


def table(audit: ScanAudit) -> list[str]:
    """Write the counts, by question and threshold, in lines of about 100 columns."""
    lines = []
    for question, rows in questions(audit.rows).items():
        cells = [
            f"{row['threshold']:g}: {row['hits']:,} / {number(row['expected'])}"
            for row in rows
            if row["threshold"] >= SHOWN_DOWN_TO
        ]
        least = holds_down_to(rows)
        words = "too few to measure" if least is None else f"shown to hold down to p = {least:g}"
        lines += [f"{question}: {words}", f"    hits / expected, p <= {'; '.join(cells)}"]
    return lines


LINE_WIDTH = 100
"""Columns of a line, except commands and paths, which stay whole."""

_MARGIN = 13


def summary(
    outcome: "ScanOutcome",
    results: str,
    false_positive_rate: float,
    cautions: Sequence[str] = (),
    *,
    verbose: bool = False,
) -> str:
    """Write the summary of a scan, and after a resume of all of its input, in a few lines.

    cautions: sentences about names under its keys and about this machine.
    verbose: whether to show what the audit counted, when the first commit came, and the query in Python.
    """
    advice = None if outcome.audit is None else outcome.audit.advice
    lines = [
        *[TRIAL_LINE] * outcome.trial,
        *(wrap_line(advice.replace(USE_NO_FLAG, USE_NO_FLAG.upper()), LINE_WIDTH, "") if advice else ()),
        *_read(outcome),
        *_flags(outcome, false_positive_rate),
        *_audited(outcome, verbose=verbose),
    ]  # the advice stands first, where nobody misses it
    lines += _nothing_found(outcome)
    if outcome.unread.allowed:
        lines += _line("careful", f"{outcome.unread.nothing} With allow_empty such a night ends with exit code 0.")
    for caution in cautions:
        lines += _line("careful", printable(caution))
    if outcome.dropped:
        lines += _line("dropped", f"{counted(outcome.dropped, 'row')} of nights that are older than `retain`")
    if verbose and outcome.first_commit is not None:
        peak = outcome.totals.peak_memory / 2**20
        lines += _line("commits", f"first after {outcome.first_commit:.1f} s; a worker needed at most {peak:,.0f} MiB")
    commands = {"tables": results, "list": f"brickscan flagged {shlex.quote(results)}"}
    if verbose:
        commands["query"] = f"import brickscan; brickscan.results({results!r}).flagged.collect()"
    lines += [f"{label:<{_MARGIN}}{printable(command)}" for label, command in commands.items()]
    hands = list(_hands(outcome, None if verbose else ALARMS_SHOWN))
    if not hands:
        return "\n".join([*lines, "nothing needs your attention"])
    return "\n".join(
        [
            *lines,
            "needs your attention:",
            *(line for hand in hands for line in wrap_line(f"- {hand}", LINE_WIDTH, "  ")),
        ]
    )


def _line(label: str, text: str) -> list[str]:
    return wrap_line(f"{label:<{_MARGIN}}{text}", LINE_WIDTH, " " * _MARGIN)


def _read(outcome: "ScanOutcome") -> Iterator[str]:
    """Yield lines on how much was read, how fast, and how much of it was not scored."""
    work, counts, seconds = outcome.work, outcome.totals.counts, max(outcome.seconds, 1e-9)
    yield from wrap_line(
        f"scan {outcome.scan_id}: {counted(counts.documents, 'document')} in {seconds:.1f} s "
        f"({counts.documents / seconds:,.0f} documents/s, {counts.text_bytes / 1e6 / seconds:.2f} MB/s)",
        LINE_WIDTH,
        " " * _MARGIN,
    )
    whole = _whole(outcome)
    if outcome.share is not None:
        yield from _line("part", f"{outcome.share} of the input's files; the scan without --part judges all of them")
    if work.skipped:
        skipped = f"{work.skipped:,} of {counted(work.shard_count, 'shard')} already committed"
        text = skipped if outcome.exit_code > 128 else f"{counted(whole.documents, 'document')}; {skipped}"
        yield from _line("whole input" if outcome.share is None else "whole part", text)
    if whole.too_short:
        yield from _line("too short", counted(whole.too_short, "document"))
    if whole.filtered:
        why = "the filter of common n-grams leaves too few of their n-grams to be scored"
        yield from _line("filtered", f"{counted(whole.filtered, 'document')}: {why}")
    if whole.scored_in_part:
        part = "invalid bytes were replaced, or only the first 16 MiB were scored"
        yield from _line("in part", f"{counted(whole.scored_in_part, 'document')}: {part}")
    for key in _keys(outcome):
        shown, scored = key["positions_shown"], key["positions"]
        yield from _line("shown", shown_in_words(key["key_id"], shown, shown + scored))
    why = f" ({in_words(outcome.unread.reasons)})" if outcome.unread.reasons else ""
    files = counted(whole.files_at_fault, "file")
    yield from _line("quarantined", f"{counted(whole.quarantined, 'document')}, {files}{why}")


def _keys(outcome: "ScanOutcome") -> list[dict[str, Any]]:
    """Return the keys that left something out since claims showed its seeds, as the column `keys` of SCANS has them."""
    of_keys = outcome.totals.counts.of_keys
    return [
        {"key_id": key_id, "positions": of_keys[key_id, "scored"], "positions_shown": of_keys[key_id, "shown"]}
        for key_id in sorted({key_id for key_id, _ in of_keys})
    ]


def _whole(outcome: "ScanOutcome") -> "WholeInput":
    """Return the totals of the whole input; after an interruption, of what that scan read."""
    if outcome.exit_code <= 128:
        return outcome.unread.whole
    return WholeInput.of(outcome.totals.counts)._replace(files_at_fault=outcome.totals.files_quarantined)


def _flags(outcome: "ScanOutcome", false_positive_rate: float) -> Iterator[str]:
    """Yield lines on the flags, and on how many of them chance explains."""
    whole = _whole(outcome)
    flagged = counted(whole.flagged, "document")
    if outcome.audit is not None:
        flagged += f", {texts_and_pieces(outcome.audit.traffic)}"
    if whole.canaries:
        flagged += f", and {counted(whole.canaries, 'canary text')}"
    yield from _line("flagged", f"{flagged}, at a false-positive rate of {one_in(math.log10(false_positive_rate))}")
    if outcome.work.looks_price > 1:
        yield from _line(
            "looks added",
            "earlier scans tested texts of this input with other shares of looks. Over all these scans, unmarked "
            f"texts may be flagged {outcome.work.looks_price:.4g} times as often",
        )
    yield from _proved(outcome)
    for look in outcome.looks.values():
        for heading, sentence in look.summary:
            yield from _line(heading, sentence)
    if outcome.audit is not None and outcome.audit.expected_false is not None and whole.flagged:
        yield from _line("false flags", outcome.audit.expected_false.in_words())
        if has_near_duplicates(outcome.audit.traffic):
            caution = "This is an average: near-duplicates are flagged together or not at all, so nights differ widely."
            yield from _line("", caution)


def _proved(outcome: "ScanOutcome") -> Iterator[str]:
    """Write how many of this scan's flags were computed again, and the results of the others."""
    counts = outcome.totals.counts
    if not counts.flagged + counts.canaries:
        return
    counts_by_result = {
        f"name no user: {WHY_NOBODY[Naming.UNPROVED]}": counts.unproved,
        "were not computed again (too many at once, or more than 65,536 tokens)": counts.flagged
        + counts.canaries
        - counts.proved
        - counts.unproved
        - counts.not_offered,
        "are of formats without a second method": counts.not_offered,
    }
    differing = "".join(f"; {number:,} {result}" for result, number in counts_by_result.items() if number)
    yield from _line(
        "proved",
        f"{counted(counts.proved, 'flag')} gave the same result when a slower method computed them again{differing}",
    )


def _audited(outcome: "ScanOutcome", *, verbose: bool) -> Iterator[str]:
    if outcome.audit is None:
        return
    yield from _line("audit", verdict_in_words(outcome.audit))
    for label, text in outcome.audit.lines():
        yield from _line(label, text)
    for line in table(outcome.audit) if verbose else ():
        yield from wrap_line(f"  {line}", LINE_WIDTH, " " * _MARGIN)


ALARMS_SHOWN = 10
"""Rates that raise an alarm, of which a summary without --verbose shows so many."""


def _hands(outcome: "ScanOutcome", most_alarms: int | None) -> Iterator[str]:
    """Write sentences on what needs attention, the worst first.

    most_alarms: None: all.
    """
    if outcome.audit is not None:
        alarms = outcome.audit.alarms()
        # lost canaries leave the flags as they are, so they are not to be read as an alarm
        heading = "CANARIES LOST" if outcome.audit.state == AuditState.CANARIES_LOST else "AUDIT ALARM"
        yield from (f"{heading}: {line}" for line in alarms[:most_alarms])
        if most_alarms is not None and len(alarms) > most_alarms:
            yield f"{heading}: {len(alarms) - most_alarms:,} more (--verbose, and the table `audits`)"
        yield from (f"FRAMING? {line}" for line in outcome.audit.warnings())
    yield from _ended(outcome)
    yield from (hand for look in outcome.looks.values() for hand in look.hands)
    yield from used_up(_keys(outcome))
    yield from (f"AMBER: {night.moved}" for night in outcome.compared if night.moved)
    counts, over = outcome.totals.counts, outcome.unread.passed_over
    yield from (f"LEFT OUT: no text was scored under key {key.key_id}. {key.why}" for key in outcome.unsupported_keys)
    if counts.values_not_read:
        documents = counted(counts.values_not_read, "document")
        yield f"{documents} with an id, account or time that cannot be read and is null"
    if counts.in_future:
        documents = counted(counts.in_future, "document")
        yield f"{documents} with a time in the future, which counts as now: are the clock and input.time_zone right?"
    if counts.older_than_key:
        yield (
            f"{counted(counts.older_than_key, 'flagged document')} older than the key, by the text's own time or, "
            "where it has none, the file's: it was flagged by chance, these times are wrong, or text was marked with "
            "the key before it was added to the registry (then set its `active_from` in keys.toml)"
        )
    if over:
        from scanner.cluster.unread_input import passed_over_in_words

        yield from passed_over_in_words(over)


def _nothing_found(outcome: "ScanOutcome") -> Iterator[str]:
    whole = _whole(outcome)
    if not whole.flagged + whole.canaries and whole.documents:
        yield from _line("found", "no mark; a scan finds only text that was marked under a key of its registry")


def _ended(outcome: "ScanOutcome") -> Iterator[str]:
    done = outcome.totals.shards + outcome.work.skipped
    if outcome.unread.nothing and not outcome.unread.allowed:
        yield outcome.unread.nothing
    if outcome.exit_code > 128:
        yield (
            f"Interrupted by {'Ctrl-C' if outcome.exit_code == 130 else 'SIGTERM'}: {done:,} of "
            f"{outcome.work.shard_count:,} shards are committed. Run the same command again to continue."
        )
    yield from outcome.unread.too_much
