"""Plan an audit before it begins: every check that can refuse it, and the parts of its corpus.

No text is scored under a filter that learnt from it. A scan's filter learns from earlier nights, but a corpus has none.
So digests divide its texts into two halves, and each half is scored without the n-grams that are common in the other.

The paper's figure shows a few master keys over disjoint fragments of documents, three tests of each fragment (Sec. 3).
Under one key documents share n-grams, so hits are not independent. Keys are the clusters, and bands come from the
spread between them.
"""

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.calibration.law_counts import LawCase, cases
from scanner.audit.statistics.hits import chances
from scanner.errors import Refused
from scanner.input.columns import Columns
from scanner.input.files import resolve
from scanner.registry import find_key, load_registry, open_key, tokenizer_path
from scanner.storage.locations import refuse_password
from scanner.storage.toml import digest, read_toml
from scanner.text import load_tokenizer
from scanner.watermark import Dedup, Format, Tokens
from scanner.watermark.laws import Law, Normal
from scanner.watermark.native.format import of_the_paper
from scanner.watermark.positions import PositionRule
from schemas.audit import CalibrationConfig, RegistryAuditConfig
from schemas.registry import MasterKey

KEY_STRIDE = 2**32
"""Distance between the documents' numbers of two cases. The numbers decide their keys, so none may come twice."""


class AuditedKeys(NamedTuple):
    """The audited keys, how they are audited, and the folder of their registry. No secrets."""

    config: RegistryAuditConfig
    registry: str
    keys: tuple[MasterKey, ...]


@dataclass(frozen=True)
class CalibrationPlan:
    """The whole plan of an audit. It holds no secrets.

    results: folder or URI.
    locations: the corpus, resolved.
    tokenizer: path.
    audited: None if no keys are audited.
    """

    config: CalibrationConfig
    results: str
    locations: tuple[str, ...]
    tokenizer: str
    audited: AuditedKeys | None

    @property
    def columns(self) -> Columns:
        """Return the names of the corpus's columns."""
        return Columns.of(self.config.input)

    @property
    def seed(self) -> bytes:
        """Return the seed of all keys that are drawn."""
        return self.config.seed.encode("ascii")

    @property
    def config_sha256(self) -> str:
        """Return the digest of the configuration as it was read, as hex."""
        return digest(self.config.model_dump(mode="json"))

    def law_cases(self) -> list[LawCase]:
        """Return all cases of the law."""
        law = self.config.law
        if law is None:
            return []
        return cases(of_the_paper(law.gammas, law.windows, law.version), law.dedups, law.messages)

    def fragment_formats(self) -> list[Format]:
        """Return formats of the keys under which disjoint fragments are tested."""
        figure = self.config.figure
        return [] if figure is None else of_the_paper([figure.gamma], figure.windows, figure.version)

    def fragment_secrets(self) -> list[bytes]:
        """Draw the master keys for disjoint fragments from the seed, 32 bytes each. They have no other use."""
        count = self.config.figure.keys if self.config.figure else 0
        return [
            hashlib.blake2b(number.to_bytes(8, "little"), key=self.seed, digest_size=32, person=b"figure-v1").digest()
            for number in range(count)
        ]


def plan_calibration(config_file: Path, date: datetime.date | None = None) -> CalibrationPlan:
    """Read a configuration, and open once every file that it names. Relative paths start at the configuration's folder.

    Args:
        config_file: TOML, see schemas.audit.CalibrationConfig.
        date: fills {date} in the corpus's paths.

    Raises:
        Refused: something cannot be right. The message names file, field, value and the allowed values.
    """
    config = read_toml(config_file, CalibrationConfig)
    base = config_file.absolute().parent
    refuse_password("results", config.results)
    results = config.results if "://" in config.results else str(base / config.results)
    tokenizer = base / config.tokenizer.file
    load_tokenizer(tokenizer, config.tokenizer.sha256)
    return CalibrationPlan(
        config=config,
        results=results,
        locations=tuple(resolve(path, base, date) for path in config.input.paths),
        tokenizer=str(tokenizer),
        audited=None if config.keys is None else _audited(config.keys, str(base / config.keys.registry)),
    )


def _audited(config: RegistryAuditConfig, registry: str) -> AuditedKeys:
    record, key_ids = load_registry(registry), config.keys
    keys = record.keys if key_ids is None else tuple(find_key(record, key_id) for key_id in key_ids)
    if not keys:
        raise Refused(f"keys.registry: {registry} has no keys; make one with `brickscan keys new`")
    for key in keys:
        open_key(registry, key)
        load_tokenizer(tokenizer_path(registry, key), key.tokenizer.sha256)
    return AuditedKeys(config, registry, keys)


def distinct_documents(digests: list[NDArray[np.uint64]]) -> list[NDArray[np.int64]]:
    """Return, for each part, the documents whose text is in no earlier place: int64 places within the part."""
    if not digests:
        return []
    _, first = np.unique(np.concatenate(digests), return_index=True)
    bounds = np.cumsum([0, *map(len, digests)])
    first.sort()
    return [first[(first >= a) & (first < b)] - a for a, b in pairwise(bounds)]


def draw_documents(
    available: list[NDArray[np.int64]], count: int, seed: bytes, case: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Draw documents for one case of the law, without replacement while they last.

    Then all are drawn again, because another key makes another independent draw.

    Returns:
        For each part, the documents, and the numbers that decide their keys.
    """
    part = np.repeat(np.arange(len(available)), [len(documents) for documents in available])
    document = np.concatenate(available)
    generator = np.random.default_rng([*seed, case])
    rounds = -(-count // len(document))
    order = np.concatenate([generator.permutation(len(document)) for _ in range(rounds)])[:count]
    numbers = case * KEY_STRIDE + np.arange(count, dtype=np.int64)
    return [(document[order[part[order] == p]], numbers[part[order] == p]) for p in range(len(available))]


def draw_fragments(
    lengths: list[NDArray[np.int64]], available: list[NDArray[np.int64]], count: int, tokens: int, seed: bytes
) -> list[NDArray[np.int64]]:
    """Draw how many disjoint fragments of `tokens` tokens each document of each part gives: at most `count` in all.

    Documents come in random order, each with all of its fragments.
    """
    offers = [np.zeros(len(part), np.int64) for part in lengths]
    for fragments, part, documents in zip(offers, lengths, available, strict=True):
        fragments[documents] = part[documents] // tokens
    flat_offers = np.concatenate(offers)
    order = np.random.default_rng([*seed, len(flat_offers)]).permutation(len(flat_offers))
    begins = np.cumsum(flat_offers[order]) - flat_offers[order]
    fragment_counts = np.zeros(len(flat_offers), np.int64)
    fragment_counts[order] = np.clip(count - begins, 0, flat_offers[order])
    return list(np.split(fragment_counts, np.cumsum([len(part) for part in lengths])[:-1]))


CORPUS_HALVES = 2
"""Number of halves of a corpus. The filter of each is learnt from the other."""


class CorpusLesson(NamedTuple):
    """Texts of one part of the corpus that a filter learns from: documents, int64[D], and their numbers, uint64[D]."""

    part: int
    documents: NDArray[np.int64]
    numbers: NDArray[np.uint64]


def in_halves(digests: NDArray[np.uint64], documents: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return those of some documents whose texts are in each half, by digests of all texts of a part, uint64[D]."""
    half = digests[documents] % np.uint64(CORPUS_HALVES)
    return [documents[half == number] for number in range(CORPUS_HALVES)]


def teaching(
    distinct: Sequence[NDArray[np.int64]], lengths: Sequence[NDArray[np.int64]], reach: int, least: int
) -> list[NDArray[np.int64]]:
    """Return the distinct texts of each part that have at least `least` n-grams. A scan learns from no others."""
    return [
        documents[part_lengths[documents] - reach >= least]
        for documents, part_lengths in zip(distinct, lengths, strict=True)
    ]


def lessons(
    digests: Sequence[NDArray[np.uint64]], distinct: Sequence[NDArray[np.int64]], most: int
) -> list[list[CorpusLesson]]:
    """Return the texts that a filter learns from in each half: all, or of more than `most` those of least digest.

    Args:
        digests: digests of all texts of each part, uint64[D].
        distinct: documents of each part that a filter learns from, with a text that is in no earlier document.
        most: number of texts of a half.
    """
    halves = []
    for number in range(CORPUS_HALVES):
        half_documents = [in_halves(*part)[number] for part in zip(digests, distinct, strict=True)]
        orders = [part[documents] >> np.uint64(7) for part, documents in zip(digests, half_documents, strict=True)]
        least = np.sort(np.concatenate(orders))[:most] if orders else np.zeros(0, np.uint64)
        halves.append(
            [
                _lesson(part_number, part, documents[order <= least[-1]])
                for part_number, (part, documents, order) in enumerate(
                    zip(digests, half_documents, orders, strict=True)
                )
                if len(least) and (order <= least[-1]).any()
            ]
        )
    return halves


def _lesson(part: int, digests: NDArray[np.uint64], documents: NDArray[np.int64]) -> CorpusLesson:
    return CorpusLesson(part, documents, digests[documents] // np.uint64(CORPUS_HALVES))


PANELS: tuple[tuple[str, Dedup], ...] = (("z", "none"), ("exact", "none"), ("exact", "ngram"))
"""Tests, each with the repeats it leaves out: the former Z-test, the exact test, the exact test without repeats."""


class ExtremeFragment(NamedTuple):
    """The fragment with the smallest p if repeats are scored, and its p if they are left out."""

    log10_p: float
    log10_p_ngram: float
    scored: int
    scored_ngram: int
    key: int
    ids: NDArray[np.uint32]


class FragmentCounts(NamedTuple):
    """Counts of one part of the fragments for one format and window. Parts can be added.

    hits: int64[K, 3, J], of K keys in the PANELS at J thresholds.
    expected: float64[3, J], of one key.
    tests: number of fragments.
    """

    hits: NDArray[np.int64]
    expected: NDArray[np.float64]
    tests: int
    extreme: ExtremeFragment

    def plus(self, other: "FragmentCounts") -> "FragmentCounts":
        """Return both parts together."""
        extreme = min(self.extreme, other.extreme, key=lambda extreme: extreme.log10_p)
        return FragmentCounts(self.hits + other.hits, self.expected + other.expected, self.tests + other.tests, extreme)


def cut_fragments(tokens: Tokens, counts: NDArray[np.int64], length: int) -> Tokens:
    """Cut the first counts[d] disjoint fragments of exactly `length` tokens of each document d."""
    numbers = np.concatenate([np.arange(count) for count in counts]) if len(counts) else np.empty(0, np.int64)
    begins = np.repeat(tokens.offsets[:-1], counts) + length * numbers.astype(np.int64)
    index = begins[:, None] + np.arange(length)[None, :]
    return Tokens(tokens.ids[index].ravel(), np.arange(len(begins) + 1, dtype=np.int64) * length)


def count_fragments(
    how: Format, secrets: Sequence[bytes], tokens: Tokens, thresholds: Sequence[float]
) -> FragmentCounts:
    """Score fragments under every key, with repeats and without.

    Args:
        how: the format.
        secrets: secrets of the K keys.
        tokens: of at least one fragment.
        thresholds: α[J].

    Raises:
        ValueError: there are no keys, or the format has no law.
    """
    marks, exact = [how.open(secret) for secret in secrets], how.law()
    if exact is None:
        raise ValueError(f"{how.label()} has no law; it is needed to test pieces")
    log10_alpha = np.log10(np.asarray(thresholds))
    positions = {dedup: how.rule().positions(tokens, dedup) for dedup in dict.fromkeys(d for _, d in PANELS)}
    laws: dict[str, Law] = {"z": Normal(exact), "exact": exact}
    hits = np.zeros((len(marks), len(PANELS), len(thresholds)), np.int64)
    extreme: ExtremeFragment | None = None
    for k, mark in enumerate(marks):
        score = {dedup: mark.score(tokens, dedup_positions, 0) for dedup, dedup_positions in positions.items()}
        p = {panel: laws[panel[0]].log10_p(score[panel[1]], positions[panel[1]].scored) for panel in PANELS}
        for i, panel in enumerate(PANELS):
            hits[k, i] = (p[panel][:, None] <= log10_alpha[None, :]).sum(axis=0)
        fragment = int(p["exact", "none"].argmin())
        if extreme is None or p["exact", "none"][fragment] < extreme.log10_p:
            extreme = ExtremeFragment(
                float(p["exact", "none"][fragment]),
                float(p["exact", "ngram"][fragment]),
                int(positions["none"].scored[fragment]),
                int(positions["ngram"].scored[fragment]),
                k,
                tokens.ids[tokens.offsets[fragment] : tokens.offsets[fragment + 1]],
            )
    if extreme is None:
        raise ValueError("no keys: at least one is needed to test pieces")
    expected = [_expected(laws[test], positions[dedup].scored, thresholds) for test, dedup in PANELS]
    return FragmentCounts(hits, np.array(expected), len(tokens.offsets) - 1, extreme)


def _expected(law: Law, scored: NDArray[np.int64], thresholds: Sequence[float]) -> NDArray[np.float64]:
    distinct, times = np.unique(scored, return_counts=True)
    if isinstance(law, Normal):  # the Z-test treats scores as continuous, so it promises the threshold itself
        return len(scored) * np.asarray(thresholds, np.float64)
    return np.asarray(times @ chances(law, distinct, thresholds), np.float64)


def repeated_ngrams(ids: NDArray[np.uint32], rule: PositionRule, most: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return the n-grams that occur more than once in a text: (times, tokens), most frequent first."""
    counts: dict[tuple[int, ...], int] = {}
    text = Tokens(ids, np.array([0, len(ids)], np.int64))
    for place in rule.positions(text, "none").index.tolist():
        gram = rule.ngram(text, place)
        counts[gram] = counts.get(gram, 0) + 1
    return sorted(((times, gram) for gram, times in counts.items() if times > 1), key=lambda pair: -pair[0])[:most]
