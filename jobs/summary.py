"""The summary of a scan, for people who have ten seconds: what was read, what was flagged, what needs a hand."""

import math
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jobs.options import TRIAL
from jobs.text import counted, wrapped
from scanner.printable import one_in, printable

if TYPE_CHECKING:
    from scanner.cluster import Outcome
    from scanner.results.whole_input import WholeInput

WIDTH = 100
"""Columns of a line, without commands and paths, which stay whole."""

_MARGIN = 13


def summary(
    outcome: "Outcome", results: str, false_positive_rate: float, cautions: Sequence[str] = (), *, verbose: bool = False
) -> str:
    """The summary of a scan, and after a resume of all of its input, in a few lines.

    Args:
        outcome: the scan's outcome.
        results: folder or URI.
        false_positive_rate: the scan's rate.
        cautions: sentences about names under its keys.
        verbose: whether to show what the audit counted, when the first commit came, and the query in Python.
    """
    lines = [TRIAL] * outcome.trial + [
        *_read(outcome),
        *_found(outcome, false_positive_rate),
        *_audited(outcome, verbose=verbose),
    ]
    lines += _nothing_found(outcome)
    for caution in cautions:
        lines += _line("careful", printable(caution))
    if outcome.dropped:
        lines += _line("dropped", f"{counted(outcome.dropped, 'row')} of nights that are older than `retain`")
    if verbose and outcome.first_commit is not None:
        peak = outcome.totals.peak_memory / 2**20
        lines += _line("commits", f"first after {outcome.first_commit:.1f} s; a worker needed at most {peak:,.0f} MiB")
    commands = {"tables": results, "list": f"brickscan flagged {shlex.quote(results)}"}
    if verbose:
        commands["query"] = f"from scanner import results; results.flagged({results!r}).collect()"
    lines += [f"{label:<{_MARGIN}}{printable(command)}" for label, command in commands.items()]
    hands = list(_hands(outcome))
    if not hands:
        return "\n".join([*lines, "nothing needs a hand"])
    return "\n".join([*lines, "needs a hand:", *(line for hand in hands for line in wrapped(f"- {hand}", WIDTH, "  "))])


def _line(label: str, said: str) -> list[str]:
    return wrapped(f"{label:<{_MARGIN}}{said}", WIDTH, " " * _MARGIN)


def _read(outcome: "Outcome") -> Iterator[str]:
    """How much was read, how fast, and how much of it was not scored."""
    from scanner.results.reasons import in_words

    work, counts, seconds = outcome.work, outcome.totals.counts, max(outcome.seconds, 1e-9)
    yield from wrapped(
        f"scan {outcome.scan_id}: {counted(counts.documents, 'document')} in {seconds:.1f} s "
        f"({counts.documents / seconds:,.0f} documents/s, {counts.text_bytes / 1e6 / seconds:.2f} MB/s)",
        WIDTH,
        " " * _MARGIN,
    )
    whole = _whole(outcome)
    if outcome.part is not None:
        yield from _line("part", f"{outcome.part} of the input's files; the scan without --part judges all of them")
    if work.skipped:
        before = f"{work.skipped:,} of {counted(work.shards, 'shard')} committed before"
        said = before if outcome.exit_code > 128 else f"{counted(whole.documents, 'document')}; {before}"
        yield from _line("whole input" if outcome.part is None else "whole part", said)
    if whole.too_short:
        yield from _line("too short", counted(whole.too_short, "document"))
    if whole.filtered:
        why = "the filter of common n-grams leaves too few of theirs to be scored"
        yield from _line("filtered", f"{counted(whole.filtered, 'document')}: {why}")
    if whole.scored_in_part:
        part = "invalid bytes replaced, the first 16 MiB scored"
        yield from _line("in part", f"{counted(whole.scored_in_part, 'document')}: {part}")
    why = f" ({in_words(outcome.unread.reasons)})" if outcome.unread.reasons else ""
    files = counted(whole.files_at_fault, "file")
    yield from _line("quarantined", f"{counted(whole.quarantined, 'document')}, {files}{why}")


def _whole(outcome: "Outcome") -> "WholeInput":
    """The totals of the whole input; after an interruption, of what that scan read."""
    if outcome.exit_code <= 128:
        return outcome.unread.whole
    return outcome.totals.counts.whole_input()._replace(files_at_fault=outcome.totals.files_quarantined)


def _found(outcome: "Outcome", false_positive_rate: float) -> Iterator[str]:
    """The flags, and how many of them chance explains."""
    from jobs.audit_words import false_flags_in_words
    from jobs.flag_strength import bet_in_words

    whole = _whole(outcome)
    flagged = counted(whole.flagged, "document")
    if outcome.audit is not None:
        flagged += f", {counted(outcome.audit.traffic.flagged, 'distinct text')}"
    if whole.canaries:
        flagged += f", beside {whole.canaries:,} of canaries, found and named right"
    yield from _line("flagged", f"{flagged}, at a false-positive rate of {one_in(math.log10(false_positive_rate))}")
    yield from _proved(outcome)
    if outcome.accounts is not None:
        looked_at, marked = outcome.accounts
        yield from _line("accounts", f"{counted(marked, 'account')} of {looked_at:,} by their posts together")
    if outcome.audit is not None:
        yield from _line("false flags", false_flags_in_words(outcome.audit))
        if whole.flagged:
            yield from _line("evidence", bet_in_words(false_positive_rate))
    if outcome.second_scores:
        second = f"{outcome.second_scores:,} second scores, from the same draws: they confirm nothing"
        yield from _line("second", second)


def _proved(outcome: "Outcome") -> Iterator[str]:
    """How many of this scan's flags were computed again, and the results of the others."""
    counts = outcome.totals.counts
    if not counts.flagged + counts.canaries:
        return
    others = {
        "came out differently and name nobody": counts.unproved,
        "were not drawn (too many at once, or texts of more than 65,536 tokens)": counts.flagged
        + counts.canaries
        - counts.proved
        - counts.unproved
        - counts.not_offered,
        "are of formats that offer no proof": counts.not_offered,
    }
    said = "".join(f"; {number:,} {what}" for what, number in others.items() if number)
    yield from _line(
        "proved", f"{counted(counts.proved, 'flag')} came out the same when computed again by a slow path{said}"
    )


def _audited(outcome: "Outcome", *, verbose: bool) -> Iterator[str]:
    from jobs.audit_words import canaries_in_words, table, verdict_in_words

    if outcome.audit is None:
        return
    yield from _line("audit", verdict_in_words(outcome.audit))
    for said in canaries_in_words(outcome.audit):
        yield from _line("canaries", said)
    for line in table(outcome.audit) if verbose else ():
        yield from wrapped(f"  {line}", WIDTH, " " * _MARGIN)


def _hands(outcome: "Outcome") -> Iterator[str]:
    """Sentences on what somebody must look at, the worst first."""
    if outcome.audit is not None:
        yield from (f"AUDIT ALARM: {line}" for line in outcome.audit.alarms())
        yield from (f"FRAMING? {line}" for line in outcome.audit.warnings())
    yield from _ended(outcome)
    counts, over = outcome.totals.counts, outcome.unread.passed_over
    yield from (f"LEFT OUT: no text was scored under key {key.key_id}. {key.why}" for key in outcome.left_out)
    if counts.values_not_read:
        documents = counted(counts.values_not_read, "document")
        yield f"{documents} with an id, account or time that cannot be read, and is null"
    if counts.in_future:
        documents = counted(counts.in_future, "document")
        yield f"{documents} of a time to come, which counts as now: is the clock right, and input.time_zone?"
    if counts.older_than_key:
        yield (
            f"{counted(counts.older_than_key, 'flagged document')} older than the key, by the text's own time or, "
            "where it has none, the file's: chance flagged it, these times are wrong, or text was marked with the key "
            "before it came into the registry (then set its `active_from` in keys.toml)"
        )
    if over:
        from scanner.cluster.unread import other_names

        yield (
            f"{counted(len(over), 'file')} passed over, not ending in .parquet ({printable(other_names(over))}), such "
            f"as {printable(over[0])}"
        )


def _nothing_found(outcome: "Outcome") -> Iterator[str]:
    """A note for people who wonder why nothing was found."""
    whole = _whole(outcome)
    if not whole.flagged + whole.canaries and whole.documents:
        yield from _line("found", "no mark; a scan finds only text that was marked under a key of its registry")


def _ended(outcome: "Outcome") -> Iterator[str]:
    """The reason why a scan did not end well."""
    done = outcome.totals.shards + outcome.work.skipped
    if outcome.unread.nothing:
        yield outcome.unread.nothing
    if outcome.exit_code > 128:
        yield (
            f"Interrupted by {'Ctrl-C' if outcome.exit_code == 130 else 'SIGTERM'}: {done:,} of "
            f"{outcome.work.shards:,} shards are committed. Run the same command again to go on from there."
        )
    yield from outcome.unread.too_much
