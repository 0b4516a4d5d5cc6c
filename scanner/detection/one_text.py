"""Test one text under each key of a registry separately: the verdict of a scan, without Ray and tables."""

import contextlib
import functools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.detection.attribution import BatchOrigin, BatchResult, NamesUsers, OpenedKey
from scanner.detection.detector import Detector
from scanner.detection.open_plan import open_keys, open_prover
from scanner.detection.rules import Rules
from scanner.error_shares import AS_WRITTEN, ErrorShares
from scanner.errors import Refused
from scanner.key_support import ScanFilter, supported_keys
from scanner.power import Strengths, measure
from scanner.registry import NO_RECORD, Record, VerifiedHolders, load_registry
from scanner.registry.leases import take_lease
from scanner.registry.shown_seeds import ShownSeeds, ShownUpTo, shown_now, shown_since
from scanner.scan_plan import keys_tested, keys_under_test, read_config
from scanner.storage.locations import absolute
from scanner.watermark.formats import can_have_levels, format_of
from scanner.watermark.kernel import interpreted
from scanner.watermark.laws import Law
from scanner.watermark.rule import long_enough, search
from schemas.config import ScanConfig
from schemas.key_record import parse_label
from schemas.registry import CanaryStrength, MasterKey, Registry
from schemas.tables import DOCUMENTS
from schemas.words import Dedup

NOWHERE = BatchOrigin("", "", "")
"""Origin of a single text, which comes from no scan and no file."""

_LEAST_LOG10_P = -1000.0

MOST_INTERPRETED = 2**20
"""Threshold below which no kernels are compiled for a text: its bytes times the numbers that its search counts.

For example, a post of 3,000 bytes under one key of 10^5 users, whose 325 groups are counted.
"""


def _read_scan(config_file: Path) -> tuple[ScanConfig, str, Registry]:
    """Read the configuration of a scan. Return it, its registry's folder, and the registry."""
    config = read_config(config_file)
    folder = absolute("registry", config.registry, config_file.absolute().parent)
    return config, folder, load_registry(folder)


@dataclass(frozen=True)
class TextCheck:
    """The keys under which a text is tested, the rules, and the record of users by which messages are named."""

    registry: str | Path
    keys: tuple[MasterKey, ...]
    rules: Rules
    record: Record = NO_RECORD

    @classmethod
    def of_config(cls, config_file: Path, key_ids: Sequence[str] = ()) -> "TextCheck":
        """Make the check of a scan's configuration.

        Raises:
            Refused: it cannot be right, or a key is not in its registry.
        """
        config, folder, registry = _read_scan(config_file)
        chosen = tuple(key_ids) or config.keys
        rules = Rules.of(config, keys_tested(registry))
        return cls(folder, keys_under_test(registry, config.registry, chosen), rules)

    @classmethod
    def of_scan(cls, config_file: Path, scan_filter: ScanFilter | None) -> "tuple[TextCheck, tuple[str, ...]]":
        """Make the check of a scan's configuration, only with keys whose p-values a law or an audit supports in scans.

        scan_filter: as for scanner.key_support.lacks.

        Returns:
            The check.
            The ids of all keys of its registry.

        Raises:
            Refused: the configuration cannot be right, or no key is left.
        """
        config, folder, registry = _read_scan(config_file)
        keys, tested = keys_under_test(registry, config.registry, config.keys), keys_tested(registry)
        supported, _ = supported_keys(keys, config, tested, scan_filter)
        return cls(folder, supported, Rules.of(config, tested)), tuple(key.key_id for key in registry.keys)

    @classmethod
    def of_registry(cls, folder: Path | str, key_ids: Sequence[str], false_positive_rate: float) -> "TextCheck":
        """Make the check for a registry and a rate, with the looks that `brickscan init` writes.

        Raises:
            Refused: there is no registry, or no such key in it.
        """
        registry: Registry = load_registry(folder)
        keys = keys_under_test(registry, str(folder), tuple(key_ids) or None)
        return cls(folder, keys, Rules(false_positive_rate, keys_tested(registry), weights=ErrorShares.by_default()))


@dataclass(frozen=True)
class ScannedKey:
    """A key as scans of a configuration test it in whole documents that have parts and are their own normal form.

    correction: K (SPEC §3).
    looks: in words.
    registry: its folder.

    The other fields are those of ScanConfig.
    """

    key: MasterKey
    correction: float
    looks: str
    registry: str
    false_positive_rate: float
    misnaming_rate: float | None
    dedup: Dedup
    min_scored: int

    @classmethod
    def of_config(cls, config_file: Path, key_id: str | None) -> "ScannedKey":
        """Return the key of this id, or without an id the only key under test.

        Raises:
            Refused: the configuration cannot be right, or does not test such a key.
        """
        config, folder, registry = _read_scan(config_file)
        keys, tested = keys_under_test(registry, config.registry, config.keys), keys_tested(registry)
        chosen = [key for key in keys if key_id in (None, key.key_id)]
        if len(chosen) != 1:
            key_ids = ", ".join(key.key_id for key in keys)
            raise Refused(f"--key {key_id or 'is missing'}: name a key of {config_file}: {key_ids}")
        weights, (key,) = ErrorShares.of(config), chosen
        others = {"normalised text": weights.normalised, "spans": weights.span, "accounts": weights.account}
        others["tokens weighted by a model"] = weights.levels if can_have_levels(key) else None
        others_tested = ", ".join(look for look, weight in others.items() if weight is not None)
        return cls(
            key,
            weights.corrections(key, tested)[AS_WRITTEN, 0, 1],
            f"by {config_file}, key {key.key_id} has 1/{key.tested_among(tested)} of the rate, documents as a whole"
            f" {weights.document:g}, and text that is its own normal form"
            f" {weights.as_written + (weights.normalised or 0.0):g} of that"
            + (f"; also tested, which finds some more: {others_tested}" if others_tested else "")
            + ("; the filter leaves out n-grams in addition" if config.filter else ""),
            folder,
            config.false_positive_rate,
            config.misnaming_rate,
            config.dedup,
            config.min_scored,
        )


class OpenedCheck:
    """A check with open keys, tokenizers and users, for a process that tests many texts.

    Args:
        check: the check.
        holders: tells who holds a message. None: the present holders, by verified users.
        fast: as for scanner.text.
        reader: kind of a reader that tests texts for a long time. It holds a lease on the shown seeds
            (scanner.registry.leases), and reads them anew each minute. None: texts are tested now and not later.

    Raises:
        SecretError, TokenizerError: a key cannot be opened.
        Refused: the users cannot be read, or a lease cannot be held.
    """

    def __init__(
        self, check: TextCheck, holders: NamesUsers | None = None, *, fast: bool = True, reader: str | None = None
    ) -> None:
        can_be_shown = any(key.record is not None for key in check.keys)
        self._lease = take_lease(check.registry, reader or "", needed=reader is not None and can_be_shown)
        end = weakref.finalize(self, self._lease.end)
        try:
            self._open(check, holders, fast=fast)
        except BaseException:
            end()  # the error may be kept for long, as in a notebook, and claims would wait for nobody
            raise

    def _open(self, check: TextCheck, holders: NamesUsers | None, *, fast: bool) -> None:
        self._shown = shown_now(check.registry, check.keys)
        self._lease.read(_numbers(self._shown))  # claims wait for a lease without it, and opening keys takes long
        self._check, self.opened_keys = check, open_keys(check.registry, check.keys, fast=fast, shown=self._shown)
        key_ids = [key.key_id for key in check.keys]
        self._holders = holders or VerifiedHolders(check.registry, key_ids, check.record)
        self._together = self._detector(self.opened_keys)
        self._lease.follow(self.read_anew)

    def read_anew(self) -> dict[str, int]:
        """Read the shown seeds of the keys and leave them out from now on. Return the number of each key's last event.

        Raises:
            Refused: they cannot be read, or seeds that were read before are missing.
        """
        then = dict(self._shown)
        seeds = {
            key.key_id: shown_since(self._check.registry, key, then[key.key_id])
            for key in self._check.keys
            if key.key_id in then
        }
        shown = tuple((key_id, of_key.last) for key_id, of_key in seeds.items())
        if shown != self._shown:
            opened_keys = [
                opened_key.leave_out(seeds.get(opened_key.key.key_id, ShownSeeds()).buckets)
                for opened_key in self.opened_keys
            ]
            self._together = self._detector(opened_keys)
            self.opened_keys, self._shown = opened_keys, shown
            vars(self).pop("_of_each_key", None)  # the cached detectors have the old keys
        return _numbers(shown)

    @property
    def holds(self) -> bool:
        """Return whether texts are tested. Once its lease is over, no text is tested any more."""
        return self._lease.holds

    def score_batch(self, texts: Sequence[bytes]) -> BatchResult:
        """Return the verdicts of a scan on texts as stored. `row` is their place, and flags are proved.

        Raises:
            ScanFailed: the lease is over.
        """
        self._lease.check()
        return self._together.score_batch(_documents(texts), NOWHERE)

    def of_each_key(self, raw: bytes) -> list[Mapping[str, Any]]:
        """Return the verdict on a text of each key on its own, in the registry's order.

        These are rows of schemas.tables.VERDICTS.

        Raises:
            Refused: the text cannot be read.
        """
        return [_verdict(detector, raw) for detector in self._of_each_key]

    @functools.cached_property
    def _of_each_key(self) -> list[Detector]:
        return [self._detector([opened_key]) for opened_key in self.opened_keys]

    def compile(self) -> None:
        """Test texts of several kinds and flag most of them.

        Then everything is compiled, imported and read before a first text.

        The reference tokenizer reads them, because a fast one judges itself by the first texts that it reads.
        """
        self._together.compile()
        letters = np.random.default_rng(0).integers(97, 105, 40_000, dtype=np.uint8)
        letters[::5] = ord(" ")  # words of four letters
        words = letters.tobytes().decode()
        texts = [
            words,
            *(words[:size] for size in (2000, 500, 50)),
            words[:500].upper(),
            f"{words[:500]}\u200b \u201c{words[500:1000]}\u201d",
            "".join(f"> {words[begin : begin + 60]}\n" for begin in range(0, 1200, 60)) + words[1200:2000],
            "\n\n".join(words[begin : begin + 400] for begin in range(0, 2000, 400)),
        ]
        opened_keys = [replace(opened_key, tokenizer=opened_key.tokenizer.reference) for opened_key in self.opened_keys]
        # at this rate most texts are flagged, so their proofs are compiled too
        flags_most = replace(self._check.rules, false_positive_rate=0.99, misnaming_rate=None)
        for batch in (texts, texts[1:2], texts[:1]):
            self._detector(opened_keys, flags_most).score_batch(_documents([text.encode() for text in batch]), NOWHERE)

    def _detector(self, opened_keys: list[OpenedKey], rules: Rules | None = None) -> Detector:
        rules = rules or self._check.rules
        return Detector(opened_keys, self._holders, rules, open_prover(self._check.registry, opened_keys, rules))


def _numbers(shown: Iterable[tuple[str, ShownUpTo]]) -> dict[str, int]:
    return {key_id: event.number for key_id, event in shown}


def check_text(check: TextCheck, raw: bytes) -> list[Mapping[str, Any]]:
    """Return the verdict of each key on a text: rows of schemas.tables.VERDICTS, in the registry's order.

    Flags are proved.

    raw: the text as stored, UTF-8.

    Raises:
        Refused: the text cannot be read.
        SecretError, TokenizerError: a key cannot be opened.
    """
    with interpreted() if _costs_little(check, raw) else contextlib.nullcontext():
        return OpenedCheck(check, fast=False).of_each_key(raw)  # a fast one checks itself for longer than a text takes


def _costs_little(check: TextCheck, raw: bytes) -> bool:
    """Return whether Python tests a text sooner than its kernels are compiled.

    Lanes of version 3 are arrays, and numpy adds them at once. Other watermarks count one number after the other.
    """
    labels = [parse_label(format_of(key).label()) for key in check.keys if key.record is not None]
    in_lanes = len(labels) == len(check.keys) and all(label.groups is not None for label in labels)
    return in_lanes and len(raw) * sum(label.groups or 0 for label in labels) <= MOST_INTERPRETED


def _documents(texts: Sequence[bytes]) -> pa.RecordBatch:
    values = {"row": pa.array(np.arange(len(texts))), "text": pa.array(texts, pa.large_binary())}
    columns = [values.get(field.name, pa.nulls(len(texts), field.type)) for field in DOCUMENTS]
    return pa.RecordBatch.from_arrays(columns, schema=DOCUMENTS)


def _verdict(detector: Detector, raw: bytes) -> Mapping[str, Any]:
    verdicts, refused, *_ = detector.score_batch(_documents([raw]), NOWHERE)
    if len(refused):
        row = refused.to_pylist()[0]
        raise Refused(f"the text cannot be read ({row['reason']}: {row['detail']}); UTF-8 text is needed")
    verdict: Mapping[str, Any] = verdicts.to_pylist()[0]
    return verdict


def strengths_of(
    registry: Path | str,
    key: MasterKey,
    texts: Sequence[str],
    messages: NDArray[np.int64],
    dedup: Dedup = "ngram",
) -> tuple[Law | None, Strengths]:
    """Measure how strongly texts are marked with a key for their messages, int64[D]. Return its law too.

    dedup: as in the scans.

    Raises:
        SecretError, TokenizerError: the key cannot be opened.
    """
    (opened_key,) = open_keys(registry, [key], fast=False)
    return opened_key.watermark.law, measure(opened_key.watermark, opened_key.tokenizer.encode(texts), messages, dedup)


def canary_strength(
    registry: Path | str, key: MasterKey, texts: Sequence[str], messages: NDArray[np.int64]
) -> CanaryStrength:
    """Read texts back under the key that marked them for some messages, int64[D], by the search of a scan.

    Raises:
        Refused: no text has a scored token.
        SecretError, TokenizerError: the key cannot be opened.
    """
    (opened_key,) = open_keys(registry, [key], fast=False)
    tokens = opened_key.tokenizer.encode(texts)
    documents, positions = long_enough(opened_key.watermark.rule.positions(tokens, "ngram"), 1)
    if not len(documents):
        raise Refused(
            f"key {key.key_id!r}: no text has a token that can be scored; give texts that `brickscan mark` wrote"
        )
    findings = search(opened_key.watermark, tokens, positions, key.messages)
    best = findings.message[:, 0] == messages[documents]

    def rounded(log10_p: NDArray[np.float64]) -> tuple[float, ...]:
        return tuple(np.where(best, np.maximum(log10_p[:, 0], _LEAST_LOG10_P), 0.0).round(2).tolist())

    return CanaryStrength(
        key_id=key.key_id,
        scored=tuple(positions.scored.tolist()),
        log10_p=rounded(findings.log10_p),
        log10_p_own=rounded(findings.log10_p_own),
    )
