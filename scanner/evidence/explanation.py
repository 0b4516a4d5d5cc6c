"""Explain a flag: how strongly one text supports one message, and everything a person must know about the flag.

Nothing here decides or names anybody: the scan's verdict uses the whole text. The message was chosen by these same
positions. The p-value of a part is therefore that of the best of all messages.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.detection.left_out import LeftOut
from scanner.evidence.case import FlagCase
from scanner.evidence.copied_text import CopiedShare
from scanner.evidence.related_flags import GroupCounts
from scanner.text import HuggingFaceTokenizer
from scanner.text.quoting import Kind, TextPart
from scanner.watermark import Positions, Tokens, Watermark
from scanner.watermark.format import TellsUserEvidence
from scanner.watermark.formats import generator_of
from scanner.watermark.positions import Dedup, rule_with_shown
from scanner.watermark.rule import corrected, log10_p_of, search
from schemas.registry import MasterKey
from schemas.words import LEVELS, Naming

TOKENS_A_RUN = 8
"""Number of scored tokens that are shown together. The score of a single token would reveal material of the key."""

RUN_STRENGTHS = (-0.5, -1.0, -2.0, -4.0)
"""log10 p of a run at or below which it supports the mark: a little, some, strongly, very strongly."""


class ScoreRun(NamedTuple):
    """Consecutive scored tokens.

    begin: place of their first character.
    end: place after their last character.
    scored: number of scored tokens.
    unscored: number of tokens in between that are not scored.
    log10_p: of the run under the message alone. NaN where the format has no law.
    """

    begin: int
    end: int
    scored: int
    unscored: int
    log10_p: float

    @property
    def level(self) -> int:
        """Return how strongly the run supports the mark, from 0, not at all, to len(RUN_STRENGTHS)."""
        return sum(self.log10_p <= level for level in RUN_STRENGTHS)


class PartFinding(NamedTuple):
    """The evidence of all parts of one kind.

    log10_p: of the verdict's message, as the best of all M messages.
    log10_p_any: of the best message of these parts.

    Both are NaN where there is no law, and 0 where nothing is scored.
    """

    kind: Kind
    characters: int
    scored: int
    log10_p: float
    log10_p_any: float


class UserEvidenceFinding(NamedTuple):
    """The evidence of positions that only one message of a group reads. No other message of the group shares them.

    log10_p: of the score of these positions only, not corrected.
    """

    scored: int
    group: int
    log10_p: float


class TextEvidence(NamedTuple):
    """The evidence of a text for a message.

    tokens: number of tokens of the text.
    scored: number of tokens that are scored.
    repeats: number of tokens left out because their n-gram came before.
    unscored: number of tokens without a whole window, or without a draw.
    user_evidence: None where messages share nothing.
    common: number of tokens left out because many texts contain their n-grams.
    log10_p: of the message alone, not corrected. NaN where the format has no law.
    shown: number of tokens left out because claims showed their seeds.
    """

    tokens: int
    scored: int
    repeats: int
    unscored: int
    score: float
    runs: list[ScoreRun]
    parts: list[PartFinding]
    user_evidence: UserEvidenceFinding | None = None
    common: int = 0
    log10_p: float = math.nan
    shown: int = 0


class UserRuns(NamedTuple):
    """The evidence of a text for one of several users whom its flag names."""

    user_id: str | None
    runs: list[ScoreRun]


class Omissions(NamedTuple):
    """The positions that are left out of scoring.

    dedup: the rule for repeats.
    common: n-grams that many texts contain. None: none are left out for that.
    """

    dedup: Dedup
    common: LeftOut | None = None


def evidence_of_text(
    mark: Watermark,
    tokenizer: HuggingFaceTokenizer,
    text: str,
    message: int,
    messages: int,
    omissions: Omissions,
    parts: Sequence[TextPart],
    run: int = TOKENS_A_RUN,
) -> TextEvidence:
    """Compute the evidence of a text for a message.

    Args:
        mark: the watermark under the flag's key.
        tokenizer: the key's reference tokenizer.
        text: the text as it was scored.
        message: the message whose evidence is computed.
        messages: number of messages of the key.
        omissions: the positions that are left out of scoring.
        parts: the quoted and own parts of the text.
        run: number of scored tokens that are shown together.
    """
    ids, offsets = tokenizer.encode_with_offsets(text)
    tokens = Tokens(ids, np.array([0, len(ids)], np.int64))
    distinct, with_shown = mark.rule.positions(tokens, omissions.dedup), rule_with_shown(mark.rule)
    not_repeated, all_positions = (with_shown.positions(tokens, dedup) for dedup in (omissions.dedup, "none"))
    positions = distinct if omissions.common is None else omissions.common.without(tokens, distinct)
    score = mark.score(tokens, positions, message)
    return TextEvidence(
        len(ids),
        int(positions.scored[0]),
        int(all_positions.scored[0] - not_repeated.scored[0]),
        len(ids) - int(all_positions.scored[0]),
        float(score[0]),
        _runs(mark, tokens, positions.index, offsets, message, run),
        _findings(mark, tokens, positions.index, offsets, message, messages, parts),
        _user_evidence(mark, tokens, positions, message),
        int(distinct.scored[0] - positions.scored[0]),
        float(log10_p_of(mark.law, score, positions.scored)[0]),
        int(not_repeated.scored[0] - distinct.scored[0]),
    )


def _user_evidence(mark: Watermark, tokens: Tokens, positions: Positions, message: int) -> UserEvidenceFinding | None:
    evidence = (
        mark.user_evidence(tokens, positions, np.array([message])) if isinstance(mark, TellsUserEvidence) else None
    )
    if evidence is None:
        return None
    log10_p = log10_p_of(mark.law, evidence.score[:, 0], evidence.scored)
    return UserEvidenceFinding(int(evidence.scored[0]), evidence.messages, float(log10_p[0]))


def _runs(
    mark: Watermark, tokens: Tokens, index: NDArray[np.int64], offsets: NDArray[np.int64], message: int, run: int
) -> list[ScoreRun]:
    """Score each run as a document of its own.

    Each document begins at the start of the text, so its draws are the same as in the text.
    """
    if not len(index):
        return []
    bounds = np.append(np.arange(0, len(index), run), len(index))
    begins = np.zeros(len(bounds), np.int64)
    begins[-1] = len(tokens.ids)
    scores = mark.score(Tokens(tokens.ids, begins), Positions(index, bounds), message)
    counts = np.diff(bounds)
    log10_p = log10_p_of(mark.law, scores, counts)
    first, last = index[bounds[:-1]], index[bounds[1:] - 1]
    return [
        ScoreRun(int(offsets[a, 0]), int(offsets[b, 1]), int(count), int(b - a + 1 - count), float(p))
        for a, b, count, p in zip(first.tolist(), last.tolist(), counts, log10_p, strict=True)
    ]


def _findings(
    mark: Watermark,
    tokens: Tokens,
    index: NDArray[np.int64],
    offsets: NDArray[np.int64],
    message: int,
    messages: int,
    parts: Sequence[TextPart],
) -> list[PartFinding]:
    """Compute the evidence of each kind of part. Empty: the text is a single part, with the verdict's evidence."""
    if len(parts) < 2:
        return []
    begins = np.array([part.begin for part in parts], np.int64)
    part_numbers = np.searchsorted(begins, offsets[index, 0], side="right") - 1
    kinds = np.array([part.kind for part in parts], object)
    findings = []
    for kind in sorted({part.kind for part in parts}):
        chosen = index[kinds[part_numbers] == kind]
        characters = sum(part.end - part.begin for part in parts if part.kind == kind)
        if not len(chosen):
            findings.append(PartFinding(kind, characters, 0, 0.0, 0.0))
            continue
        positions = Positions(chosen, np.array([0, len(chosen)], np.int64))
        log10_p = log10_p_of(mark.law, mark.score(tokens, positions, message), positions.scored)
        best = search(mark, tokens, positions, messages)
        p_any = float(best.log10_p_global[0, 0])
        findings.append(PartFinding(kind, characters, len(chosen), float(corrected(log10_p, messages)[0]), p_any))
    return findings


P_OF_UNMARKED = 0.01
"""Largest p-value of a part that counts as evidence for a mark. Above it, the part reads like text without a mark."""


@dataclass(frozen=True)
class Explanation:
    """The explanation of a flag.

    case: its row and scan.
    key: the key's record. None: there is no configuration, or the key is gone.
    text: the text as it was scored. None: it cannot be shown.
    no_text: why the text cannot be shown.
    not_from_file: why the text comes from the scan's copy and not from its file.
    parts: parts of the text.
    text_evidence: evidence of the text for the verdict's message. None for the reason in `no_evidence`.
    of_user: flags that name the flag's own user. None: nobody is named.
    of_message: flags with the same message.
    of_account: flags with the same account.
    of_text: flags with the same text.
    near_duplicates: flags that are one piece of evidence with this flag. None: there are too many to tell.
    expected: N·p, an upper bound on how many texts of its scan reach this p-value by chance. None: the scan did not
        end, or its audit alarmed.
    spans: its marked parts, rows of schemas.tables.SPANS in the order of the text.
    copied: text that it shares with earlier flagged posts of other accounts. None: no such post is alike, or the texts
        cannot be read.
    canary: whether it names a canary of the registry.
    not_checked: why nobody checked that the tables are as brickscan wrote them. None: they are.
    offer: how others can check the flag. None: there is no configuration, or no claim can be made.
    """

    case: FlagCase
    rate: float
    key: MasterKey | None
    text: str | None
    no_text: str | None
    not_from_file: str | None
    parts: Sequence[TextPart]
    text_evidence: TextEvidence | None
    no_evidence: str | None
    of_user: GroupCounts | None
    of_message: GroupCounts
    of_account: GroupCounts | None
    of_text: GroupCounts
    near_duplicates: GroupCounts | None
    expected: float | None
    spans: Sequence[Mapping[str, Any]] = ()
    copied: CopiedShare | None = None
    canary: bool = False
    not_checked: str | None = None
    alarm: str | None = None
    """What to do, and why, if the audit of its scan alarmed. None: it did not."""
    owned: bool | None = None
    """Whether the platform's record says that the account belongs to a named user. None: there is no record."""
    others: Sequence[UserRuns] = ()
    """Evidence for the other users whom the flag names."""
    offer: str | None = None

    @property
    def row(self) -> Mapping[str, Any]:
        """Return the flag's row of schemas.tables.VERDICTS."""
        return self.case.row

    @property
    def user_evidence(self) -> UserEvidenceFinding | None:
        """Return evidence that tells the named user from others of a group.

        None: nobody is named, or there is no group.

        It is also None for a text that is flagged because of a part of it: its names depend on that part only.
        """
        named = self.row["naming"] == Naming.NAMED and self.row["look"] in (None, LEVELS)
        return self.text_evidence.user_evidence if named and self.text_evidence else None

    @property
    def log10_p_own(self) -> float | None:
        """Return log10 p of the second rule (SPEC_3 §4), the chance to name a stranger of the group.

        None as for `user_evidence`.
        """
        if self.user_evidence is None:
            return None
        return float(corrected(np.array(self.user_evidence.log10_p), self.user_evidence.group, self.row["correction"]))

    @property
    def generator(self) -> str | None:
        """Return the generator whose random numbers made the mark. None: the numbers are the same on all devices."""
        keys = (self.case.scan or {}).get("keys") or []
        name = next((key["method"] for key in keys if key["key_id"] == self.row["key_id"]), None)
        return generator_of(name or (self.key.format if self.key else ""))

    @property
    def findings_of_parts(self) -> list[PartFinding]:
        """Return the evidence in quoted lines and in own words, if the text has both."""
        return self.text_evidence.parts if self.text_evidence and len(self.text_evidence.parts) > 1 else []

    @property
    def silent(self) -> set[Kind]:
        """Return the kinds of part that read like text without the mark.

        None of their runs is shown as support for it.
        """
        return {part.kind for part in self.findings_of_parts if part.log10_p > math.log10(P_OF_UNMARKED)}

    @property
    def carried_by(self) -> Kind | None:
        """Return the only part that carries the mark, `quoted` or `own`.

        None: the other part does not read as unmarked.
        """
        log10_p_of = {part.kind: part.log10_p_any for part in self.findings_of_parts}
        orders: tuple[tuple[Kind, Kind], ...] = (("quoted", "own"), ("own", "quoted"))
        for kind, other in orders:
            if (
                log10_p_of
                and log10_p_of[kind] <= math.log10(self.rate)
                and log10_p_of[other] > math.log10(P_OF_UNMARKED)
            ):
                return kind
        return None
