"""Wrong names in marked text: `python -m tests.bench.wrong_names`. Do they stay below their rates?

The text is written without a language model: at each step the mark's favourite among some random tokens. Windows hardly
ever come twice, so texts of one key are as good as independent. Each batch is under a key of its own, with groups
(SPEC_3 §4). Three questions, each of its own kind: is unmarked text flagged as rarely as the rate says, with the search
over groups; in text that fits a whole group and none of its users, does the best of them pass rule 2 as rarely as the
law says; and in texts of several users, is anybody else named more often than the two rates together allow?
"""

import argparse
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.calibration.law_counts import fresh_entropy
from scanner.audit.statistics.hits import ClusterSums, chances, cluster_sums
from scanner.audit.statistics.judgement import counts, judge
from scanner.errors import Refused
from scanner.watermark import Dedup, Format, Positions, Tokens, Watermark
from scanner.watermark.format import DrawsKeys
from scanner.watermark.native.format import of_the_paper
from scanner.watermark.native.version3_marks import Version3Mark
from scanner.watermark.rule import decide, search
from schemas.words import AuditVerdict

TOKEN_RANGE = 8192, 16384
"""Range of token ids to choose from: from, to."""

CHOICES_A_STEP = 8
"""Tokens that a step chooses among: three bits a token, as much as a model that is free in its words."""

TOKENS_A_TURN = 100
"""Tokens of one user before the next user's, where a text is several users'."""

Ids = NDArray[np.uint32]
Messages = NDArray[np.int64]
Edit = Callable[[Ids, Ids, NDArray[np.int64]], Ids]
"""Function from windows, uint32[D, h], choices, uint32[D, C], and places of the mark's favourites to the written
tokens.
"""


def write_marked(
    mark: Watermark, messages: Messages, length: int, rng: np.random.Generator, edit: Edit | None = None
) -> list[Ids]:
    """Write texts of so many tokens, each marked for a message.

    mark: an opened key of window h; messages: int64[D]. edit: what is written in place of the mark's favourites; None:
    the favourites.

    Returns:
        D texts, uint32[length] each.
    """
    window, texts = mark.rule.context, len(messages)
    out = np.empty((texts, length), np.uint32)
    for t in range(length):
        choices = rng.integers(*TOKEN_RANGE, (texts, CHOICES_A_STEP), dtype=np.uint32)
        if t < window:
            out[:, t] = choices[:, 0]
            continue
        contexts = out[:, t - window : t]
        best = choose_favourites(mark, contexts, choices, messages)
        out[:, t] = choices[np.arange(texts), best] if edit is None else edit(contexts, choices, best)
    return list(out)


def choose_favourites(mark: Watermark, contexts: Ids, choices: Ids, messages: Messages) -> NDArray[np.int64]:
    """Which of C tokens scores highest after each of D windows: int64[D], ties to the first.

    Args:
        mark: an opened key of window h.
        contexts: uint32[D, h].
        choices: uint32[D, C].
        messages: int64[D].
    """
    texts, count = choices.shape
    tokens, places = choices_as_texts(contexts, choices)
    scores = np.asarray(mark.score(tokens, places, np.repeat(messages, count)), np.float64)
    best: NDArray[np.int64] = scores.reshape(texts, count).argmax(axis=1)
    return best


def choices_as_texts(contexts: Ids, choices: Ids) -> tuple[Tokens, Positions]:
    """Each choice behind its window as a text of its own, whose last position alone is scored.

    Args:
        contexts: uint32[D, h].
        choices: uint32[D, C].
    """
    rows = np.concatenate([np.repeat(contexts, choices.shape[1], axis=0), choices.reshape(-1, 1)], axis=1)
    width = rows.shape[1]
    tokens = Tokens(rows.ravel(), np.arange(0, rows.size + 1, width))
    return tokens, Positions(np.arange(width - 1, rows.size, width), np.arange(len(rows) + 1))


def take_turns(texts: Sequence[Ids]) -> Ids:
    """One text made of several, by turns of TOKENS_A_TURN tokens, for as long as each lasts."""
    parts = [[text[at : at + TOKENS_A_TURN] for at in range(0, len(text), TOKENS_A_TURN)] for text in texts]
    longest = max(map(len, parts))
    return np.concatenate([part[i] for i in range(longest) for part in parts if i < len(part)])


def batch_of(texts: Sequence[Ids]) -> Tokens:
    """D texts as a batch."""
    return Tokens(np.concatenate(texts), np.cumsum([0, *map(len, texts)], dtype=np.int64))


DEDUP: Dedup = "ngram"
"""Repeats are left out as in a scan by default."""

NAMES_AT = tuple(10.0**-k for k in range(1, 5))
"""False-positive and misnaming rates that are judged: a hundred thousand texts say nothing about smaller ones."""

RATE_OF_RULE_2_ALONE = 0.5
"""False-positive rate under which rule 2 is tested alone: text that fits a group passes rule 1."""


class NameQuestion(StrEnum):
    """The question of a case."""

    UNMARKED = "unmarked text flagged"
    GROUP = "user of a marked group named"
    WRONG = "wrong user named"


@dataclass(frozen=True)
class NamesCase:
    """A case that is tested, on texts of so many tokens.

    groups: the format's number of groups; users: how many the text of kind WRONG is marked for, else 0; one_group:
    whether they are all of one group.
    """

    format: Format
    groups: int
    kind: NameQuestion
    tokens: int
    users: int = 0
    one_group: bool = False

    @property
    def messages(self) -> int:
        """How many messages rule 1 corrects for: all messages of a key."""
        return self.groups**2

    @property
    def users_in_words(self) -> str:
        """Whose texts these are."""
        if not self.users:
            return "nobody's"
        many = f"{self.users} users" if self.users > 1 else "1 user"
        return many + (", one group" if self.one_group else "")


class NamesCounts(NamedTuple):
    """Counts of one batch of texts; batches can be added.

    sums: over texts, of those that count at J thresholds, each [J]; marked, named: pairs of a text and a user whose
    mark it holds, and those where that user is named at the smallest threshold.
    """

    sums: ClusterSums
    marked: int
    named: int

    def plus(self, other: "NamesCounts") -> "NamesCounts":
        """Both together."""
        return NamesCounts(self.sums.plus(other.sums), self.marked + other.marked, self.named + other.named)


def names_cases(formats: Sequence[Format], groups: int, users: Sequence[int], tokens: Sequence[int]) -> list[NamesCase]:
    """Every kind of text of every length."""
    numbers_of_users = [(count, equally) for count in users for equally in ((True, False) if count > 1 else (False,))]
    return [
        case
        for how in formats
        for length in tokens
        for case in (
            NamesCase(how, groups, NameQuestion.UNMARKED, length),
            NamesCase(how, groups, NameQuestion.GROUP, length),
            *(
                NamesCase(how, groups, NameQuestion.WRONG, length, count, equally)
                for count, equally in numbers_of_users
            ),
        )
    ]


def names_counts(case: NamesCase, texts: int, number: int, seed: bytes, thresholds: Sequence[float]) -> NamesCounts:
    """Write texts under a key of their own and count who is named.

    texts: how many, D. number: the batch's number, which no two batches of an audit share; it decides the key and the
    texts. thresholds: α[J], from large to small: the false-positive rate and the misnaming rate.

    Raises:
        Refused: the format has other groups or none, or draws no keys.
    """
    how = case.format
    [entropy] = fresh_entropy(seed, f"{how.label()};names", np.array([number]))
    mark = how.open(how.draw_key(entropy)) if isinstance(how, DrawsKeys) else None
    if not isinstance(mark, Version3Mark) or mark.groups != case.groups:
        raise Refused(f"names: format {how.label()!r} has no {case.groups} groups; give one that has")
    rng = np.random.default_rng([*seed, number])
    messages = _people(max(case.users, 1), texts, case.groups, rng, one_group=case.one_group)
    tokens = batch_of(_written(case, mark, messages, rng))
    positions = mark.rule.positions(tokens, DEDUP)
    found = search(mark, tokens, positions, case.messages)
    before = np.concatenate([[0], np.cumsum(~mark.group_steps(tokens, positions))])
    of_users = np.diff(before[positions.offsets])
    chance = _chances(case, mark, positions.scored, of_users, thresholds)
    hits = np.zeros(chance.shape, np.bool_)
    authors = (found.message[:, :, None] == messages[:, None, :]).any(axis=2)
    in_group = found.message // case.groups == messages[:, :1] // case.groups
    named = 0
    for j, rate in enumerate(thresholds):
        decision = decide([found], RATE_OF_RULE_2_ALONE if case.kind is NameQuestion.GROUP else rate, rate)
        of_it = decision.named[0]
        if case.kind is NameQuestion.UNMARKED:
            hits[:, j] = decision.flagged
        elif case.kind is NameQuestion.GROUP:
            hits[:, j] = (of_it & in_group).any(axis=1)
        else:
            hits[:, j], named = (of_it & ~authors).any(axis=1), int((of_it & authors).sum())
    return NamesCounts(cluster_sums(hits, np.ones(texts), chance), texts * case.users, named)


def _people(users: int, texts: int, groups: int, rng: np.random.Generator, *, one_group: bool) -> Messages:
    """Different messages for each text, of one group or each of another group: int64[D, users]."""

    def different() -> NDArray[np.int64]:
        return np.stack([rng.choice(groups, users, replace=False, shuffle=False) for _ in range(texts)])

    of_groups, of_users = different(), different()
    return (of_groups[:, :1] if one_group else of_groups) * groups + of_users


def _written(case: NamesCase, mark: Version3Mark, messages: Messages, rng: np.random.Generator) -> list[Ids]:
    """The texts of a case. Several users' texts stand by turns, as much of each."""

    def unmarked(_: Ids, choices: Ids, __: NDArray[np.int64]) -> Ids:
        return choices[:, 0]

    def only_shared(contexts: Ids, choices: Ids, best: NDArray[np.int64]) -> Ids:
        shared = mark.group_steps(*choices_as_texts(contexts, choices[:, :1]))
        return choices[np.arange(len(best)), best * shared]

    if case.kind is not NameQuestion.WRONG:
        edit = unmarked if case.kind is NameQuestion.UNMARKED else only_shared
        return write_marked(mark, messages[:, 0], case.tokens, rng, edit)
    of_each = [write_marked(mark, held, case.tokens // case.users, rng) for held in messages.T]
    return [take_turns(texts) for texts in zip(*of_each, strict=True)]


def _chances(
    case: NamesCase,
    mark: Version3Mark,
    scored: NDArray[np.int64],
    of_users: NDArray[np.int64],
    thresholds: Sequence[float],
) -> NDArray[np.float64]:
    if case.kind is NameQuestion.WRONG:
        stated = np.minimum((1 + case.users) * np.asarray(thresholds), 1.0)
        return np.broadcast_to(stated, (len(scored), len(stated)))
    tests, positions = (case.messages, scored) if case.kind is NameQuestion.UNMARKED else (case.groups, of_users)
    distinct, which = np.unique(positions, return_inverse=True)
    return chances(mark.law, distinct, thresholds, tests)[which]


TOKENS_A_BATCH, TEXTS_A_BATCH = 1 << 21, 1 << 10
"""Most tokens of marked text that are written together, and most texts."""

SEED = b"1"


def batches(cases: Sequence[NamesCase], texts: int) -> Iterator[tuple[NamesCase, int, int]]:
    """Case, texts and number of each batch.

    Each length has the same share of the tokens, and each kind of text the same share of the texts of a length.

    Args:
        cases: all cases.
        texts: of each format, over all lengths.
    """
    lengths, number = {case.tokens for case in cases}, 0
    for case in cases:
        kinds = sum((other.format, other.tokens) == (case.format, case.tokens) for other in cases)
        left = math.ceil(texts / (kinds * sum(case.tokens / tokens for tokens in lengths)))
        while left:
            count = min(left, TEXTS_A_BATCH, max(TOKENS_A_BATCH // case.tokens, 1))
            yield case, count, number
            left, number = left - count, number + 1


def _count(case: NamesCase, texts: int, number: int) -> tuple[NamesCase, NamesCounts]:
    return case, names_counts(case, texts, number, SEED, NAMES_AT)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.wrong_names", description=__doc__)
    parser.add_argument("--texts", type=int, default=100_000, help="of each format, over all lengths")
    parser.add_argument("--users", type=int, nargs="+", default=[1, 2, 3, 6], help="of a text")
    parser.add_argument("--tokens", type=int, nargs="+", default=[200, 1_000, 5_000, 20_000], help="of a text")
    parser.add_argument("--groups", type=int, default=1026, help="of so many users each")
    options = parser.parse_args()
    formats = of_the_paper(["1/4"], [4], 3, options.groups)
    cases = names_cases(formats, options.groups, options.users, options.tokens)
    totals: dict[tuple[str, str, str], NamesCounts] = {}
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for case, found in pool.starmap(_count, batches(cases, options.texts), chunksize=1):
            # Keys and windows of texts of different lengths differ, so each text is a test of its own.
            name = case.format.label(), str(case.kind), case.users_in_words
            totals[name] = totals[name].plus(found) if name in totals else found
    family = [(name, count) for name, found in totals.items() for count in counts(found.sums)]
    judgements = judge([count for _, count in family], 0.01)
    for (name, count), judgement, rate in zip(family, judgements, NAMES_AT * len(totals), strict=True):
        print(
            f"{', '.join(name)}, p <= {rate:g}: {count.hits:.0f} of {count.tests:,.0f} texts, {count.expected:.1f} "
            f"expected, {judgement.verdict}"
        )
    for name, found in totals.items():
        if found.marked:
            print(f"{', '.join(name)}: {found.named:,} of {found.marked:,} users named")
    return int(any(judgement.verdict == AuditVerdict.TOO_SMALL for judgement in judgements))


if __name__ == "__main__":
    sys.exit(main())
