"""Calibrate on Ray: tokenise a corpus part by part, then score every part under very many keys.

A worker learns a filter once for a tokenizer and window, and all workers read it. A filter has 4 MiB. It is therefore a
file in the folder of the tokens, and only its name is sent through Ray's object store.

The workers return sums that can be added. scanner.audit makes the statistics.
"""

import functools
import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.calibration.calibration_plan import (
    AuditedKeys,
    CalibrationPlan,
    CorpusLesson,
    FragmentCounts,
    count_fragments,
    cut_fragments,
    distinct_documents,
    draw_documents,
    draw_fragments,
    in_halves,
    lessons,
    teaching,
)
from scanner.audit.calibration.calibration_report import FRAGMENT_THRESHOLDS
from scanner.audit.calibration.law_counts import LawCase, LawCounts, law_counts
from scanner.audit.calibration.one_key import KeyCounts, key_counts
from scanner.audit.statistics.hits import THRESHOLDS
from scanner.cluster.corpus import (
    CorpusPart,
    Encoding,
    cut_documents,
    encode,
    load,
    make_scratch,
    read_content,
    remove_scratch,
    sources,
)
from scanner.cluster.machines import cluster
from scanner.cluster.pool import Call, spread
from scanner.detection.left_out import LeftOut
from scanner.errors import FileFault, Refused, ScanFailed
from scanner.filtering import filtering
from scanner.registry import open_key, tokenizer_path
from scanner.storage.toml import digest
from scanner.watermark import Format
from scanner.watermark.formats import format_of
from scanner.watermark.positions import reach_of
from schemas.audit import FigureConfig, LawConfig
from schemas.registry import AuditedFilter, MasterKey


class CorpusFilter(NamedTuple):
    """The n-grams that each half of the corpus leaves out, in a file.

    reach: number of tokens of an n-gram before its last token.
    """

    file: str
    reach: int
    seed: bytes
    audited: AuditedFilter

    def against(self, half: int) -> LeftOut:
        """Return the n-grams that texts of a half are scored without: those common in the other half."""
        return filtering().left_out(self.reach, self.seed, _read(self.file)[1 - half])


def learn_filter(
    encoding: Encoding,
    files: Sequence[str],
    reach: int,
    halves: Sequence[Sequence[CorpusLesson]],
    seed: bytes,
    length: int,
    common_from: int,
) -> CorpusFilter:
    """Learn the n-grams that are common in each half, on a worker, and write them to a file.

    Args:
        encoding: how the corpus was tokenised.
        files: files with the tokens of each part.
        reach: number of tokens of an n-gram before its last token.
        halves: for each half, the lesson from each part.
        seed: seed of the hash of n-grams. The corpus is no secret.
        length: number of first tokens of a document that are learnt.
        common_from: number of distinct texts that make an n-gram common.
    """
    common = np.stack(
        [
            filtering().find_common(
                ((cut_documents(load(files[one.part]), one.documents, length), one.numbers) for one in half),
                reach,
                seed,
                common_from,
            )
            for half in halves
        ]
    )
    buffer = io.BytesIO()
    np.save(buffer, common)
    file = encoding.write(f"common-{reach}", "npy", buffer.getvalue())
    ngrams_sha256 = hashlib.sha256(common.tobytes()).hexdigest()
    sha256 = digest({"tokenizer": encoding.sha256, "reach": reach, "common": ngrams_sha256})
    learnt = min(sum(len(one.documents) for one in half) for half in halves)
    return CorpusFilter(file, reach, seed, AuditedFilter(texts=common_from, learnt=learnt, sha256=sha256))


@functools.lru_cache(maxsize=1)
def _read(file: str) -> NDArray[np.uint8]:
    common: NDArray[np.uint8] = np.load(read_content(file))
    return common


FEWEST_TOKENS_OF_LAW = 64
"""Fewest tokens of a document that is drawn for the law. The score of fewer tokens cannot reach a small p-value."""

TESTS_A_CALL, DOCUMENTS_A_CALL = 1 << 27, 1 << 15
"""Number of p-values of the law that are drawn together, and of their documents: some seconds, to show progress."""

Watch = Callable[[str, int, int], None]
"""Function that is called with the current step, the number of its finished calls, and the number of its calls."""

OfFragments = dict[Format, FragmentCounts]


class CalibrationCounts(NamedTuple):
    """Counts by case, by format and by key id, with the number of documents.

    filters: by key id, of the keys that were audited without common n-grams.
    """

    law: dict[LawCase, LawCounts]
    fragments: OfFragments
    keys: dict[str, KeyCounts]
    filters: dict[str, AuditedFilter]
    documents: int
    distinct: int


def run_calibration(plan: CalibrationPlan, scratch: str, watch: Watch) -> CalibrationCounts:
    """Run a plan on the cluster and return its counts.

    Args:
        plan: the calibration to run.
        scratch: folder or URI for tokens that all workers can reach. It is removed at the end.
        watch: called with the progress.

    Raises:
        ScanFailed: the work had to stop.
        Refused: the corpus does not exist or has too little text.
    """
    make_scratch(scratch)
    try:
        with cluster(plan.config.cluster) as workers:
            corpus = _Corpus(plan, scratch, workers, watch)
            encoding = Encoding(plan.tokenizer, plan.config.tokenizer.sha256, scratch)
            parts = corpus.parts(encoding) if plan.config.law or plan.config.figure else []
            law: dict[LawCase, LawCounts] = {}
            if plan.config.law:
                law = _run(_law_calls(plan, plan.config.law, parts), workers, watch, "law")
            fragments: OfFragments = {}
            if plan.config.figure:
                fragments = _run(_fragment_calls(plan, plan.config.figure, parts), workers, watch, "figure")
            keys: dict[str, KeyCounts] = {}
            filters: dict[str, AuditedFilter] = {}
            if plan.audited:
                for key in plan.audited.keys:
                    without = corpus.filter(plan.audited, key)
                    keys |= _run(_key_calls(plan.audited, key, corpus, without), workers, watch, f"key {key.key_id}")
                    filters |= {key.key_id: without.audited} if without else {}
            return CalibrationCounts(law, fragments, keys, filters, corpus.documents, corpus.distinct)
    finally:
        remove_scratch(scratch)


class _Corpus:
    """The parts of the corpus, tokenised once for each tokenizer, and the n-grams that many of its texts contain."""

    def __init__(self, plan: CalibrationPlan, scratch: str, workers: int, watch: Watch) -> None:
        try:
            self._sources = sources(plan.locations, plan.columns)
        except FileFault as fault:
            if fault.reason in ("missing_column", "wrong_type"):
                raise Refused(f"[input]: {fault.detail}; name columns that every file of the corpus has") from None
            raise ScanFailed(f"corpus: a file cannot be read ({fault.reason}: {fault.detail})") from None
        self._workers, self._watch, self._scratch, self._seed = workers, watch, scratch, plan.seed
        self._known: dict[Encoding, list[CorpusPart]] = {}
        self._filters: dict[tuple[Encoding, int], CorpusFilter] = {}
        self.documents = self.distinct = 0

    def parts(self, encoding: Encoding) -> list[CorpusPart]:
        if encoding not in self._known:
            calls = [Call(f"part {source.number}", encode, (source, encoding)) for source in self._sources]
            parts: list[CorpusPart] = []

            def tell() -> None:
                self._watch("tokenised", len(parts), len(calls))

            for _, part in spread(calls, self._workers, tell):
                parts.append(part)
                tell()
            self._known[encoding] = sorted(parts, key=lambda part: part.number)
            self.documents = sum(len(part.lengths) for part in parts)
            self.distinct = sum(map(len, distinct_documents([part.digests for part in self._known[encoding]])))
        return self._known[encoding]

    def encoding(self, audited: AuditedKeys, key: MasterKey) -> Encoding:
        return Encoding(str(tokenizer_path(audited.registry, key)), key.tokenizer.sha256, self._scratch)

    def filter(self, audited: AuditedKeys, key: MasterKey) -> CorpusFilter | None:
        """Return the n-grams that a key's audit leaves out, learnt once for its tokenizer and window.

        None: there are none.
        """
        requested, encoding, reach = audited.config, self.encoding(audited, key), reach_of(format_of(key).rule())
        if requested.filter is None or reach < filtering().least_reach:
            return None
        if (encoding, reach) not in self._filters:
            parts = self.parts(encoding)
            digests, lengths = [part.digests for part in parts], [part.lengths for part in parts]
            taught_by = teaching(distinct_documents(digests), lengths, reach, requested.filter.min_scored)
            halves = lessons(digests, taught_by, requested.filter.learnt)
            files, limits = [part.file for part in parts], (requested.tokens, requested.filter.texts)
            arguments = encoding, files, reach, halves, self._seed, *limits
            ((_, learnt),) = spread([Call(f"filter {reach}", learn_filter, arguments)], self._workers)
            self._filters[encoding, reach] = learnt
        return self._filters[encoding, reach]


def _run(calls: Iterator[Call], workers: int, watch: Watch, step: str) -> dict[Any, Any]:
    """Make calls that return sums, and add the sums with the same name. They are added in the order of the calls."""
    listed = list(calls)
    numbered = (Call((number, call.name), call.function, call.arguments) for number, call in enumerate(listed))
    results: dict[int, Any] = {}

    def tell() -> None:
        watch(step, len(results), len(listed))

    for (number, _), result in spread(numbered, workers, tell):
        results[number] = result
        tell()
    sums: dict[Any, Any] = {}
    for number, call in enumerate(listed):
        sums[call.name] = sums[call.name].plus(results[number]) if call.name in sums else results[number]
    return sums


def _law_calls(plan: CalibrationPlan, law: LawConfig, parts: Sequence[CorpusPart]) -> Iterator[Call]:
    distinct = distinct_documents([part.digests for part in parts])
    long_enough = [
        places[part.lengths[places] >= FEWEST_TOKENS_OF_LAW] for part, places in zip(parts, distinct, strict=True)
    ]
    if not sum(map(len, long_enough)):
        raise Refused(f"corpus: no document has {FEWEST_TOKENS_OF_LAW} tokens; use a corpus with longer texts")
    listed = plan.law_cases()
    batch = max(min(TESTS_A_CALL // law.messages, DOCUMENTS_A_CALL), 1)
    for number, case in enumerate(listed):
        laws_of_method = sum(other.format.name == case.format.name for other in listed)
        count = -(-law.tests // (laws_of_method * law.messages))
        drawn = draw_documents(long_enough, count, plan.seed, number)
        for part, (documents, numbers) in zip(parts, drawn, strict=True):
            for i in range(0, len(documents), batch):
                places = slice(i, i + batch)
                arguments = part.file, documents[places], numbers[places], plan.seed, law.tokens, THRESHOLDS
                yield Call(case, score_law, (case, *arguments))


def score_law(
    case: LawCase,
    file: str,
    documents: NDArray[np.int64],
    numbers: NDArray[np.int64],
    seed: bytes,
    length: int,
    thresholds: Sequence[float],
) -> LawCounts:
    """Count one case on the drawn documents of one part, on a worker."""
    return law_counts(case, cut_documents(load(file), documents, length), numbers, seed, thresholds)


def _fragment_calls(plan: CalibrationPlan, requested: FigureConfig, parts: Sequence[CorpusPart]) -> Iterator[Call]:
    distinct = distinct_documents([part.digests for part in parts])
    drawn = draw_fragments([part.lengths for part in parts], distinct, requested.pieces, requested.tokens, plan.seed)
    pieces = sum(int(counts.sum()) for counts in drawn)
    if pieces < requested.pieces:
        raise Refused(
            f"figure.pieces = {requested.pieces}: the corpus has {pieces} pieces of {requested.tokens} tokens;"
            " ask for fewer"
        )
    secrets = plan.fragment_secrets()
    for part, counts in zip(parts, drawn, strict=True):
        for how in plan.fragment_formats() if counts.any() else []:
            arguments = (how, secrets, part.file, counts, requested.tokens, FRAGMENT_THRESHOLDS)
            yield Call(how, score_fragments, arguments)


def score_fragments(
    how: Format,
    secrets: Sequence[bytes],
    file: str,
    counts: NDArray[np.int64],
    length: int,
    thresholds: Sequence[float],
) -> FragmentCounts:
    """Count one format on the fragments of one part, on a worker."""
    return count_fragments(how, secrets, cut_fragments(load(file), counts, length), thresholds)


def _key_calls(audited: AuditedKeys, key: MasterKey, corpus: _Corpus, without: CorpusFilter | None) -> Iterator[Call]:
    encoding = corpus.encoding(audited, key)
    parts = corpus.parts(encoding)
    for part, documents in zip(parts, distinct_documents([part.digests for part in parts]), strict=True):
        accounts = part.accounts or tuple(f"{part.number}:{i}" for i in range(len(part.lengths)))
        for half, places in enumerate([documents] if without is None else in_halves(part.digests, documents)):
            if len(places):
                their_accounts = [accounts[i] for i in places]
                yield Call(key.key_id, score_key, (audited, key, part.file, places, their_accounts, without, half))


def score_key(
    audited: AuditedKeys,
    key: MasterKey,
    file: str,
    documents: NDArray[np.int64],
    accounts: Sequence[str],
    without: CorpusFilter | None,
    half: int,
) -> KeyCounts:
    """Score one key of the registry on distinct texts of one part, on a worker. The worker reads the secret itself.

    Args:
        audited: the registry's keys, and how they are audited.
        key: the key.
        file: file with the tokens of the part.
        documents: places of the texts in the part.
        accounts: the account of each text.
        without: n-grams that are left out. None: there are none.
        half: the half of the corpus that the texts are in.
    """
    how = audited.config
    tokens = cut_documents(load(file), documents, how.tokens)
    mark = open_key(audited.registry, key)
    common = None if without is None else without.against(half)
    return key_counts(mark, key.messages, tokens, accounts, how.dedup, THRESHOLDS, how.messages, common)
