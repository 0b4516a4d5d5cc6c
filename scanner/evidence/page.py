"""A flag as a page: one file that needs no script, no network and no other file, and prints as it looks.

Charts are inline SVG, with words for people who cannot see them.

The text comes from a stranger. Everything is escaped (Jinja2's autoescape), what no eye sees is shown as escapes, and
the page's policy (`default-src 'none'`) lets nothing in it load or run.

The decision that the page recommends is advice: it decides nothing, since only a platform's own records tell whose an
account is, and what is allowed. Beside it stands how often such flags were right. A flag is right where the mark is
there, whoever posted it: `confirmed`, `quoted` and `allowed` say so, `dismissed` says that it is not. Distinct texts
are counted, since copies of one text are one piece of evidence. A text on which decisions differ, or that was left
unclear, counts for neither, and the words say how many such texts there are.
"""

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import polars as pl
from markupsafe import Markup, escape

from scanner.audit.statistics.judgement import Limits, binomial_limits
from scanner.evidence.explanation import RUN_STRENGTHS, Explanation
from scanner.evidence.posted_text import is_inside_letter, shown_characters
from scanner.evidence.sentences import DOES_NOT_SAY, SHARE_OF_QUOTED_LINES, WHY_NOBODY, account_of, name, what_was_found
from scanner.printable import amount, at_most, counted, printable, safe
from scanner.results.decision_log import DECIDED_ON, users_of
from scanner.watermark.formats import format_of
from schemas.registry import MasterKey
from schemas.words import WEIGHED, AuditState, Naming, Proof, ReviewDecision

_WIDTH, _HEIGHT, _LEFT, _BELOW = 520, 300, 60, 50


def rates_chart(rows: Sequence[Mapping[str, Any]], tested: str = "decoy keys") -> Markup:
    """Observed against stated rates, both on a logarithmic scale, with their limits; the line is "as stated".

    rows: of schemas.audit.AUDITS, with tests, hits, expected, low and high; no hits stand at the bottom. tested: what
    the rates are of, in words.
    """
    points = [
        (
            row["expected"] / row["tests"],
            row["hits"] / row["tests"],
            row["low"] / row["tests"],
            row["high"] / row["tests"],
        )
        for row in rows
        if row["tests"] and row["expected"] > 0
    ]
    least = min((stated for stated, *_ in points), default=1e-8) / 10
    decades = -math.log10(least)

    def at(rate: float) -> float:
        return 1 + math.log10(max(rate, least)) / decades

    def x(rate: float) -> float:
        return _LEFT + at(rate) * (_WIDTH - _LEFT - 10)

    def y(rate: float) -> float:
        return 10 + (1 - at(rate)) * (_HEIGHT - _BELOW - 10)

    drawn = [Markup('<path class="stated" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(x(least), y(least), x(1), y(1))]
    for exponent in range(math.floor(decades) + 1):
        rate = 10.0**-exponent
        words = ("1",) if not exponent else (f"1e-{exponent}",)
        drawn += [
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(x(rate), _HEIGHT - 30, *words),
            Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(_LEFT - 6, y(rate) + 4, *words),
        ]
    for stated, observed, low, high in points:
        drawn += [
            Markup('<path class="limits" d="M{0:.1f} {1:.1f}V{2:.1f}"/>').format(x(stated), y(low), y(high)),
            Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3.5"/>').format(x(stated), y(observed)),
        ]
    caption = f"{len(points)} rates on {tested}: observed against stated, with limits."
    axes = Markup('<text x="{}" y="{}" text-anchor="middle">stated rate</text>').format(_WIDTH // 2, _HEIGHT - 4)
    return _svg(caption, _HEIGHT, [*drawn, axes])


def bars_chart(rows: Sequence[tuple[str, int]], caption: str) -> Markup:
    """A bar a row, below its words, with its number beside it; 40 letters fit on a phone."""
    most = max((count for _, count in rows), default=1)
    drawn = []
    for i, (words, count) in enumerate(rows):
        y = 40 * i
        width = max(1.0, 420 * count / most)
        drawn += [
            Markup('<text x="0" y="{}">{}</text>').format(y + 16, words),
            Markup('<rect x="0" y="{}" width="{:.1f}" height="12"/>').format(y + 22, width),
            Markup('<text x="{:.1f}" y="{}">{:,}</text>').format(width + 8, y + 33, count),
        ]
    return _svg(caption, 40 * len(rows), drawn)


def _svg(caption: str, height: int, drawn: Sequence[Markup]) -> Markup:
    head = Markup('<svg role="img" viewBox="0 0 {} {}" aria-label="{}"><title>{}</title>')
    return head.format(_WIDTH, height, escape(caption), escape(caption)) + Markup("").join(drawn) + Markup("</svg>")


CHARACTERS_A_PAGE = 40_000
"""Most characters of a text on a page; fewer where escapes or many short runs would take TEXT_BYTES_A_PAGE and more."""

TEXT_BYTES_A_PAGE = 180_000
"""Most bytes of the text with its marks, so that a page stays below 200 kB."""

LONGEST_TITLE = 400
"""Most characters of a document's id above its page: an id may have as many as a text."""

_SPAN_BYTES = len('<span class="l4 u3 q pb pe" title="very strongly"></span>')

LEVEL_WORDS = ("nothing", "a little", "some", "strongly", "very strongly")


class PageSegment(NamedTuple):
    """Some characters of a text."""

    text: str
    level: int | None
    """Strength of their run, a place in LEVEL_WORDS; None: they are not scored."""
    quoted: bool
    user: int = 0
    """Whose mark their run speaks for: a place in `marked_users`."""
    marked: bool = False
    """Whether they are in a part that is marked by itself."""
    begins_part: bool = False
    ends_part: bool = False


MOST_HUES = 4
"""Most users whose evidence is shaded in one text, each in a hue of its own."""


def marked_users(explained: Explanation) -> list[str]:
    """Return the users whose evidence is shaded, the flag's own first; one where nobody is named."""
    own = name(explained.row["user_id"]) if explained.row["naming"] == Naming.NAMED else "the message of this flag"
    return [own, *(name(other.user_id) for other in explained.others)][:MOST_HUES]


def segments(explained: Explanation, most: int = CHARACTERS_A_PAGE) -> list[PageSegment]:
    """Cut a text's first characters wherever evidence or kind of part changes."""
    text = (explained.text or "")[:most]
    # 1. runs of tokens, the flag's own user first; parts that are marked by themselves, where the text is as it stood
    of_users = [explained.text_evidence.runs if explained.text_evidence else []]
    of_users += [other.runs for other in explained.others[: MOST_HUES - 1]]
    spans = explained.spans if explained.row["variant"] is None else ()
    ends = ("char_from", "char_to")
    marked = [tuple(_behind_letter(text, min(span[end], len(text))) for end in ends) for span in spans]
    # 2. cuts, none of them within a letter
    edges = [edge for runs in of_users for run in runs for edge in (run.begin, run.end)]
    edges += [edge for part in explained.parts for edge in (part.begin, part.end)]
    cuts = {_behind_letter(text, min(edge, len(text))) for edge in (0, *edges, len(text))}
    bounds = sorted(cuts.union(*marked))
    # 3. the strongest run of any user over each segment
    places, part = [0] * len(of_users), 0
    speaking = {kind: kind not in explained.silent for kind in ("quoted", "own")}
    shown, found = shown_characters(text), []
    for begin, end in pairwise(bounds):
        while part < len(explained.parts) and explained.parts[part].end <= begin:
            part += 1
        quoted = part < len(explained.parts) and explained.parts[part].kind == "quoted"
        levels: list[tuple[int, int]] = []
        for user, runs in enumerate(of_users):
            while places[user] < len(runs) and runs[places[user]].end <= begin:
                places[user] += 1
            if places[user] < len(runs) and runs[places[user]].begin <= begin:
                levels.append((runs[places[user]].level, -user))
        level, user = max(levels, default=(None, 0))
        if level is not None and not speaking["quoted" if quoted else "own"]:
            level = 0
        within = [(first, last) for first, last in marked if first <= begin < last]
        begins_part, ends_part = any(first == begin for first, _ in within), any(last == end for _, last in within)
        of_part = bool(within), begins_part, ends_part
        found.append(PageSegment("".join(shown[begin:end]), level, quoted, -user, *of_part))
    return found


class PageLine(NamedTuple):
    """A line of a text, with a line in its margin where a marked part reaches into it."""

    segments: list[PageSegment]
    marked: bool


def lines_of(found: Sequence[PageSegment]) -> list[PageLine]:
    """Cut segments into the lines of their text."""
    lines: list[list[PageSegment]] = [[]]
    for segment in found:
        first, *more = segment.text.split("\n")
        lines[-1].append(segment._replace(text=first, ends_part=segment.ends_part and not more))
        for number, text in enumerate(more, 1):
            ends = segment.ends_part and number == len(more)
            lines.append([segment._replace(text=text, begins_part=False, ends_part=ends)])
    return [PageLine(line, any(part.marked and part.text.strip() for part in line)) for line in lines]


def _behind_letter(text: str, place: int) -> int:
    """The next place that is not within what a reader sees as one letter or emoji."""
    while is_inside_letter(text, place):
        place += 1
    return place


def _fitting(explained: Explanation) -> tuple[list[PageSegment], int]:
    """The text as far as a page holds it, and how many of its characters that are."""
    most = min(CHARACTERS_A_PAGE, len(explained.text or ""))
    while True:
        found = segments(explained, most)
        if sum(len(escape(part.text).encode()) + _SPAN_BYTES for part in found) <= TEXT_BYTES_A_PAGE:
            return found, most
        most = most * 3 // 4


def page(explained: Explanation, back: str | None = None) -> str:
    """The page of a flag, as HTML; `back`: a link to its night."""
    return environment().get_template("flag.html.j2").render(**about(explained), back=back)


def about(explained: Explanation) -> dict[str, Any]:
    """Values for the template `about_flag.html.j2`, and the title of its page."""
    text, (of_text, most) = explained.text or "", _fitting(explained)
    return {
        "title": f"Flag: {printable(explained.row['doc_id'] or explained.case.where, LONGEST_TITLE)}",
        "advice": advise(explained),
        "in_short": safe(in_short(explained)),
        "by_chance": by_chance(explained),
        "alarm": None if explained.alarm is None else safe(explained.alarm),
        "facts": [(heading, safe(sentence)) for heading, sentence in what_was_found(explained)],
        "does_not_say": DOES_NOT_SAY,
        "no_text": explained.no_text and safe(explained.no_text),
        "lines": lines_of(of_text),
        "users": marked_users(explained),
        "more_characters": len(text) - most,
        "text_evidence": explained.text_evidence,
        "by_model": explained.row["unit"] == WEIGHED,
        "spans": explained.spans,
        "no_evidence": explained.no_evidence and safe(explained.no_evidence),
        "levels": list(enumerate(LEVEL_WORDS)),
    }


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read."""
    with open(path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)


@functools.cache
def environment() -> jinja2.Environment:
    """Templates of this package; their values are escaped."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("scanner.evidence", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["amount"] = amount
    return found


PRECISION_RISK = 0.025
"""Risk that one limit of the interval misses; both together: 5 %."""

_RIGHT = (ReviewDecision.CONFIRMED, ReviewDecision.QUOTED, ReviewDecision.ALLOWED)


class Precision(NamedTuple):
    """Distinct texts with decisions: right, wrong, with decisions that differ, and left unclear by all."""

    right: int
    wrong: int
    differ: int
    unclear: int

    @property
    def texts(self) -> int:
        """All texts with decisions."""
        return sum(self)

    @property
    def share(self) -> float | None:
        """Share of right texts among right and wrong ones; None: there are none."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else None

    @property
    def limits(self) -> Limits | None:
        """Exact limits of the share (Clopper and Pearson, 95 %), for texts that were drawn at random."""
        return binomial_limits(self.right, self.right + self.wrong, PRECISION_RISK) if self.right + self.wrong else None

    def in_words(self) -> str:
        """The share of right texts with its interval; the caller says what the share leaves out."""
        if self.share is None or self.limits is None:
            return "not known"
        low, high = self.limits
        return f"{self.share:.1%} ({low:.1%} to {high:.1%} with 95 % confidence)"

    def counts_in_words(self) -> str:
        """All texts with decisions: `12 right, 3 wrong; 4 unclear and 1 on which deciders differ are left out`."""
        not_counted = [f"{self.unclear:,} unclear"] * (self.unclear > 0)
        not_counted += [f"{self.differ:,} on which deciders differ"] * (self.differ > 0)
        counted = f"{self.right:,} right, {self.wrong:,} wrong"
        return f"{counted}; left out: {' and '.join(not_counted)}" if not_counted else counted


def precision(decisions: pl.DataFrame, flags: Sequence[dict[str, object]] | None = None) -> Precision:
    """Count decisions.

    Args:
        decisions: decisions that stand, as in schemas.tables.DECISIONS.
        flags: rows of VERDICTS, on which alone decisions are counted; None: all.
    """
    if flags is not None:
        kinds = {name: decisions.schema[name] for name in DECIDED_ON}
        wanted = pl.DataFrame([{name: row[name] for name in DECIDED_ON} for row in flags], schema=kinds)
        decisions = decisions.join(wanted, on=DECIDED_ON, how="semi")
    texts = decisions.group_by("text_sha256").agg(
        right=pl.col("decision").is_in(list(_RIGHT)).any(), wrong=(pl.col("decision") == ReviewDecision.DISMISSED).any()
    )
    counts = {(right, wrong): 0 for right in (True, False) for wrong in (True, False)}
    counts |= {(right, wrong): count for right, wrong, count in texts.group_by("right", "wrong").len().iter_rows()}
    return Precision(counts[True, False], counts[False, True], counts[True, True], counts[False, False])


SHARE_OF_A_COPY = 0.5
"""Least share of what was scored that stands in earlier posts of other accounts, for a text to be called a copy."""


class AdviceRule(NamedTuple):
    """A row of the table: what is seen, what to record (None: nothing), and whether a flag fits."""

    finding: str
    decision: ReviewDecision | None
    fits: Callable[[Explanation], bool]


def _not_to_be_used(explained: Explanation) -> bool:
    row = explained.row
    refuted = row["proof"] == Proof.DIFFERS or row["naming"] in (Naming.UNPROVED, Naming.CONTRADICTED)
    return bool(refuted or row["audit"] == AuditState.ALARM)


def _for_nobody_known(explained: Explanation) -> bool:
    row = explained.row
    held = row["user_id"] is not None and explained.registry.agrees is True
    return row["naming"] != Naming.EVERYBODY and not (row["naming"] == Naming.NAMED and held)


def others_can_mark(key: MasterKey | None) -> bool:
    """Whether others than the user can make the mark of a key, as far as its record shows."""
    if key is None or format_of(key).generator is not None:  # a generator's caution is about marks that are missed
        return False
    return bool(format_of(key).cautions(key.messages))


def version_of(key: MasterKey | None) -> str:
    """The version of this project's format of a key, or the name of a stack's format, in words."""
    if key is None:
        return "key not on record"
    form = format_of(key)
    return form.name if form.version is None else f"version {form.version}"


def _others_can_make_it(explained: Explanation) -> bool:
    return explained.generator is None and others_can_mark(explained.key)


def _in_quoted_lines(explained: Explanation) -> bool:
    spans = explained.spans
    return explained.carried_by == "quoted" or bool(
        spans and all(span["quoted"] >= SHARE_OF_QUOTED_LINES for span in spans)
    )


def _copied(explained: Explanation) -> bool:
    return explained.copied is not None and explained.copied.share >= SHARE_OF_A_COPY and not explained.owned


RULES = (
    AdviceRule(
        "the audit alarmed, the registry says otherwise, or it came out differently when it was computed again",
        None,
        _not_to_be_used,
    ),
    AdviceRule(
        "the message is reserved: it belongs to nobody",
        ReviewDecision.DISMISSED,
        lambda explained: explained.row["naming"] == Naming.RESERVED,
    ),
    AdviceRule(
        "a test: the mark of a trial, or of a canary",
        ReviewDecision.ALLOWED,
        lambda explained: explained.canary or bool((explained.case.scan or {}).get("trial")),
    ),
    AdviceRule(
        "too little to name a user, or the registry does not know the user", ReviewDecision.UNCLEAR, _for_nobody_known
    ),
    AdviceRule("others can make this key's mark, as under version 1", ReviewDecision.UNCLEAR, _others_can_make_it),
    AdviceRule(
        "the text that was scanned cannot be shown, or not weighed",
        ReviewDecision.UNCLEAR,
        lambda explained: explained.text is None or explained.text_evidence is None,
    ),
    AdviceRule("quoted lines carry it all", ReviewDecision.QUOTED, _in_quoted_lines),
    AdviceRule("most of it stands in earlier posts of other accounts", ReviewDecision.QUOTED, _copied),
    AdviceRule(
        "the account is not known", ReviewDecision.UNCLEAR, lambda explained: explained.row["account_id"] is None
    ),
    AdviceRule(
        "no record of yours says that the account is the user's",
        ReviewDecision.UNCLEAR,
        lambda explained: explained.row["naming"] == Naming.NAMED and not explained.owned,
    ),
    AdviceRule(
        "it is marked for others too than the account's user: see whose each part is",
        ReviewDecision.UNCLEAR,
        lambda explained: len(users_of(explained.row)) > 1,
    ),
    AdviceRule("the mark is there, in words of the account's own", ReviewDecision.CONFIRMED, lambda _: True),
)


class Advice(NamedTuple):
    """The recommended decision, None: to record nothing; rule: the place in RULES of the row that fits."""

    rule: int
    decision: ReviewDecision | None

    @property
    def why(self) -> str:
        """What is seen."""
        return RULES[self.rule].finding


def advise(explained: Explanation) -> Advice:
    """The first row of RULES that fits a flag."""
    number = next(number for number, rule in enumerate(RULES) if rule.fits(explained))
    return Advice(number, RULES[number].decision)


OWNERSHIP = {
    True: "by your records this user's account",
    False: "by your records not this user's account",
    None: "no record says whose account it is",
}
"""What is known of an account that posted a flag, by `Explanation.owned`."""


def in_short(explained: Explanation) -> str:
    """One line to decide by: for whom it is marked, who posted it, and under which key."""
    row = explained.row
    users = ", ".join(name(user) for user in users_of(row)[:3])
    marked = f"Marked for {users or 'a user whose name was erased'}"
    if row["naming"] != Naming.NAMED:
        marked = f"Nobody is named: {WHY_NOBODY[row['naming']]}"
    whose = ""
    if row["naming"] == Naming.NAMED and row["account_id"] is not None:
        whose = f" ({OWNERSHIP[explained.owned]})"
    version = "" if explained.key is None else f", {version_of(explained.key)}"
    version += ": others can make its mark" * _others_can_make_it(explained)
    return f"{marked}; posted by {account_of(row)}{whose}; key {name(row['key_id'])}{version}"


def by_chance(explained: Explanation) -> str | None:
    """Return how many flags like this one chance alone gives in a scan of this size; None where that is not known."""
    if explained.expected is None or explained.case.scan is None:
        return None
    documents = counted(explained.case.scan["documents"], "document")
    return f"In a scan of {documents}, chance alone gives {at_most(explained.expected)} flags with so small a p-value"


if len(LEVEL_WORDS) != len(RUN_STRENGTHS) + 1:  # a level without a word would be shown as nothing
    raise ValueError("each level of evidence needs its word")
