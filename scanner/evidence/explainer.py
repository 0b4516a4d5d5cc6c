"""Explain flags: find their rows, scans, keys and texts again, and put them together for a person.

The text is read again from its file. It is shown only if its bytes are those that were scanned.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from scanner.controls.alarms import advise_on_scan
from scanner.detection.attribution import OpenedKey
from scanner.detection.left_out import LeftOut, NgramFilter
from scanner.detection.open_plan import open_keys
from scanner.detection.rows import TextIds
from scanner.error_shares import ErrorShares
from scanner.errors import Refused
from scanner.evidence.account_owners import Owners, read_owners
from scanner.evidence.case import FlagCase, filter_of, find_case, shown_by_scan
from scanner.evidence.copied_text import CopiedShare, EarlierPost, copied_share, earlier_of_others
from scanner.evidence.explanation import (
    Explanation,
    Omissions,
    TextEvidence,
    UserRuns,
    evidence_of_text,
)
from scanner.evidence.offered_claim import offer
from scanner.evidence.related_flags import ACCOUNT, MESSAGE, TEXT, GroupCounts, alike_with, equal_in, naming_users
from scanner.evidence.stored_texts import StoredText, StoredTexts
from scanner.input.columns import Columns
from scanner.input.documents import read_text
from scanner.input.files import resolve
from scanner.looks.normalising import scored_text
from scanner.looks.rescoring import row_look
from scanner.registry import find_key, load_registry, read_audit_secret, read_lasting_secret
from scanner.registry.shown_seeds import ShownUpTo
from scanner.results.decision_log import users_of
from scanner.results.pieces_of_evidence import EVIDENCE_COLUMNS
from scanner.results.queries import ask, spans
from scanner.results.shown_p_values import log10_p_shown
from scanner.scan_plan import read_config
from scanner.signing import open_results, unchecked
from scanner.storage.locations import absolute
from scanner.text.quoting import TextPart, parts_of
from scanner.watermark import Tokens
from scanner.watermark.parts import PartKinds
from scanner.watermark.positions import reach_of
from schemas.config import ScanConfig
from schemas.registry import Canary, MasterKey, Registry
from schemas.words import AuditState, Naming

EARLIER_TEXTS_HELD = 256
"""Number of earlier posts that are held in memory, because many flags may share runs with the same posts."""

_OF_POST = ("path", "row", "text_sha256", "variant", "key_id")
_DOCUMENT = ("scan_id", "shard_id", "path", "row")

LONGEST_LINE = 160
"""Most characters of a text's line in a list."""


class Glance(NamedTuple):
    """The beginning of a text, in one line, and the share of its characters in quoted lines."""

    line: str
    quoted: float


class _TextFindings(NamedTuple):
    """The fields of an Explanation that follow from the text."""

    text: str | None = None
    why_none: str | None = None
    not_from_file: str | None = None
    parts: Sequence[TextPart] = ()
    text_evidence: TextEvidence | None = None
    no_evidence: str | None = None
    others: tuple[UserRuns, ...] = ()


MOST_OTHER_USERS = 3
"""Most users besides the first whose evidence is shown token by token. A page has so many colours."""


def _as_scored(case: FlagCase, stored_text: StoredText) -> str:
    return scored_text(read_text(stored_text.text)[0] or "", case.row["variant"])


class Explainer:
    """Explains flags of one folder of results. A key is opened once, when the first flag under it is explained.

    Args:
        path: the file of a scan's configuration. Or a folder or URI of results: then no text is shown.

    Raises:
        Refused: the configuration cannot be right.
    """

    def __init__(self, path: Path | str) -> None:
        self._config: ScanConfig | None = None
        self.results, self.rate = str(path), 1.0
        if isinstance(path, Path):
            self._file = path
            self._config, self._base = read_config(path), path.absolute().parent
            self.results, self.rate = open_results(self._config, path), self._config.false_positive_rate
            self._folder = absolute("registry", self._config.registry, self._base)
            paths = [path for path in self._config.input.paths if "{date}" not in path]
            locations = [resolve(path, self._base, None) for path in paths]
            columns = Columns(Columns.of(self._config.input).text, None, None, None)
            self._texts = StoredTexts(columns, locations, self.results, self._text_id)
        self._opened: dict[tuple[str, ShownUpTo | None], OpenedKey] = {}
        self._filters: dict[str | None, NgramFilter] = {}
        self._advise = lru_cache(partial(advise_on_scan, self.results))
        self._tokens_of = lru_cache(EARLIER_TEXTS_HELD)(self._read_tokens)

    @cached_property
    def _owners(self) -> Owners | None:
        path = None if self._config is None else self._config.evidence.account_owners
        return None if path is None else read_owners(Path(absolute("evidence.account_owners", path, self._base)))

    def is_owned(self, row: Mapping[str, Any]) -> bool | None:
        """Return whether the account of a flag belongs to a named user, by the platform's record.

        Returns:
            None: the configuration names no record.

        Raises:
            Refused: the record cannot be read.
        """
        if self._owners is None:
            return None
        return not self._owners.get(row["account_id"], frozenset()).isdisjoint(users_of(row))

    def explain(self, document: str) -> Explanation:
        """Explain a flagged document, given by its id or as PATH:ROW.

        Raises:
            Refused: there is no such flag, or the registry is gone.
        """
        (explained,) = self.explain_cases([find_case(self.results, self.rate, document)])
        return explained

    def explain_cases(self, cases: Sequence[FlagCase]) -> Iterator[Explanation]:
        """Explain flags that were already found. Raises as `explain` does."""
        rows = [case.row for case in cases]
        place = self.results, self.rate
        counts_by_columns = {columns: equal_in(*place, rows, columns) for columns in (MESSAGE, ACCOUNT, TEXT)}
        user_counts, piece_counts = naming_users(*place, rows), alike_with(*place, rows)
        spans_of, earlier_posts = self._spans(rows), earlier_of_others(*place, rows)
        for case in cases:
            message_counts, account_counts, text_counts = (
                counts.get(tuple(case.row[name] for name in columns), GroupCounts(1, 1, 1))
                for columns, counts in counts_by_columns.items()
            )
            reading = self._text_of(case)
            parts = spans_of.get(tuple(case.row[name] for name in _DOCUMENT), [])
            alarm = self._advise(case.row["scan_id"]) if case.row["audit"] == AuditState.ALARM else None
            read = case.scan["documents"] if case.scan and alarm is None else None
            stated_rate = case.scan["false_positive_rate"] if case.scan else self.rate
            yield Explanation(
                case=case,
                rate=min(self.rate, stated_rate),
                key=self.key_on_record(case.row["key_id"]),
                text=reading.text,
                no_text=reading.why_none,
                not_from_file=reading.not_from_file,
                parts=reading.parts,
                text_evidence=reading.text_evidence,
                no_evidence=reading.no_evidence,
                others=reading.others,
                of_user=user_counts.get(case.row["user_id"]) if case.row["naming"] == Naming.NAMED else None,
                of_message=message_counts,
                of_account=None if case.row["account_id"] is None else account_counts,
                of_text=text_counts,
                near_duplicates=piece_counts.get(tuple(case.row[name] for name in EVIDENCE_COLUMNS)),
                expected=None if read is None else read * 10.0 ** log10_p_shown(case.row),
                spans=parts,
                copied=self._copied(case, earlier_posts.get((case.row["path"], case.row["row"]), [])),
                canary=self._names_canary(case.row),
                not_checked=unchecked(self.results),
                alarm=alarm,
                owned=self.is_owned(case.row),
                offer=self._offer(case),
            )

    def _offer(self, case: FlagCase) -> str | None:
        if self._config is None:
            return None
        return offer(case, self.key_on_record(case.row["key_id"]), self._folder, self._file, self._config.claims)

    def _spans(self, rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
        documents = pl.LazyFrame([{name: row[name] for name in _DOCUMENT} for row in rows], infer_schema_length=None)

        def query_spans() -> pl.DataFrame:
            return spans(self.results).join(documents, on=_DOCUMENT).sort("char_from", "char_to").collect()

        document_spans: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for span in ask(self.results, query_spans).to_dicts() if rows else []:
            document_spans.setdefault(tuple(span[name] for name in _DOCUMENT), []).append(span)
        return document_spans

    def scored_text(self, case: FlagCase) -> tuple[str, Tokens, OpenedKey]:
        """Return the text of a flag as it was scored, its tokens by the reference tokenizer, and the opened key.

        Raises:
            Refused: there is no configuration, or the text is gone.
            SecretError: the secret of the key cannot be read.
            TokenizerError: the tokenizer of the key cannot be used.
        """
        if self._config is None:
            raise Refused(
                "a text can only be scored with the scan's configuration; name the configuration instead of the results"
            )
        text = _as_scored(case, self._texts.of(case))
        opened_key = self._open(self._key(case), case.scan)
        return text, opened_key.tokenizer.reference.encode([text]), opened_key

    def common(self, case: FlagCase) -> LeftOut | None:
        """Return the n-grams that a flag's scan left out under its key. None: it left out none.

        Raises:
            Refused: they are not known any more.
            SecretError: a secret cannot be read.
            TokenizerError: the tokenizer of the key cannot be used.
        """
        if case.scan is None and self._config is not None and self._config.filter is not None:
            raise Refused(
                "its scan did not finish, so the n-grams that it left out are not on record; if it was killed, `touch` "
                "the file and scan again"
            )
        opened_key = self._open(self._key(case), case.scan)
        digest = (case.scan or {}).get("filter_sha256")
        if digest not in self._filters:  # each filter is opened once, for all flags of a night
            self._filters[digest] = filter_of(self.results, self._folder, case)
        return self._filters[digest].of(opened_key.key.tokenizer.sha256, opened_key.watermark.rule)

    def stored_text(self, case: FlagCase) -> bytes:
        """Return a flag's text as its file had it during the scan. Raises as `scored_text` does."""
        if self._config is None:
            raise Refused(
                "a text can only be scored with the scan's configuration; name the configuration instead of the results"
            )
        return self._texts.of(case).text

    @property
    def reads_texts(self) -> bool:
        """Return whether a configuration names the place of the texts."""
        return self._config is not None

    @property
    def parts_tested(self) -> PartKinds:
        """Return the kinds of parts of a text that the configuration tests."""
        if self._config is None:
            raise Refused(
                "parts of a text depend on the scan's configuration; name the configuration instead of the results"
            )
        return ErrorShares.of(self._config).part_kinds

    def open_key(self, key_id: str, scan: Mapping[str, Any] | None) -> OpenedKey:
        """Open a key with its reference tokenizer as in a scan, by the scan's row of SCANS. Raises as `scored_text`."""
        return self._open(find_key(self._registry, key_id), scan)

    def open_filter(self, sha256: str) -> NgramFilter:
        """Open the filter with a digest. Raises as `common` does."""
        return filter_of(self.results, self._folder, FlagCase({}, {"filter_sha256": sha256}))

    def glance(self, case: FlagCase) -> "Glance | None":
        """Return a line of a flag's text, and the quoted share of the text. None: the text cannot be read."""
        if self._config is None:
            return None
        try:
            text = _as_scored(case, self._texts.of(case))
        except Refused:
            return None
        quoted = sum(part.end - part.begin for part in parts_of(text) if part.kind == "quoted")
        return Glance(" ".join(text[: 4 * LONGEST_LINE].split())[:LONGEST_LINE], quoted / max(len(text), 1))

    def key_on_record(self, key_id: str) -> MasterKey | None:
        """Return the registry's record of a key. None: there is no configuration, or the key is gone."""
        try:
            return find_key(self._registry, key_id) if self._config else None
        except Refused:
            return None

    def _names_canary(self, row: Mapping[str, Any]) -> bool:
        with contextlib.suppress(Refused):
            return any(canary.account_id in users_of(row) for canary in self.canaries or ())
        return False

    def _copied(self, case: FlagCase, earlier_posts: Sequence[Mapping[str, Any]]) -> CopiedShare | None:
        """Compute the share of a flag's text that is also in earlier posts.

        None: there are no such posts, or the text itself cannot be read.
        """
        if not earlier_posts:
            return None
        posts: list[EarlierPost] = []
        for row in earlier_posts:
            with contextlib.suppress(Refused):
                ids = self._tokens_of(*(row[name] for name in _OF_POST))
                posts.append(EarlierPost(row["account_id"], row["path"], row["row"], ids))
        try:
            _, tokens, opened_key = self.scored_text(case)
            common = self.common(case)
        except Refused:
            return None
        rule = opened_key.watermark.rule
        positions = rule.positions(tokens, case.scan["dedup"] if case.scan else "ngram")
        if common is not None:
            positions = common.without(tokens, positions)
        copied = copied_share(tokens.ids, positions.index, reach_of(rule), posts)
        return copied._replace(not_read=len(earlier_posts) - len(posts))

    def _read_tokens(self, *post: object) -> NDArray[np.uint32]:
        """Return the tokens of a flagged post, given by the columns of _OF_POST. Raises as `scored_text` does."""
        return self.scored_text(FlagCase(dict(zip(_OF_POST, post, strict=True)), None))[1].ids

    @property
    def registry(self) -> str:
        """Return the folder or URI of the registry that the configuration names."""
        return self._folder

    @property
    def canaries(self) -> tuple[Canary, ...] | None:
        """Return the registry's canaries, whose flags are left out of lists. None: the registry cannot be read."""
        if self._config is None:
            return None
        try:
            record = self._registry.canaries
        except Refused:
            return None
        return () if record is None else record.made

    @cached_property
    def _registry(self) -> Registry:
        return load_registry(self._folder)

    @cached_property
    def text_ids(self) -> TextIds:
        """Return digests under the registry's audit secret.

        Raises:
            Refused: the registry has no audit secret.
            SecretError: the audit secret cannot be read.

        Raises:
            Refused: the registry has no audit secret.
            SecretError: the audit secret cannot be read.
        """
        return TextIds(read_audit_secret(self._folder), read_lasting_secret(self._folder))

    def _text_id(self, sha256: bytes) -> bytes:
        return bytes(self.text_ids.of(pa.array([sha256], pa.binary()))[0].as_py())

    def _key(self, case: FlagCase) -> MasterKey:
        return find_key(self._registry, case.row["key_id"])

    def _open(self, key: MasterKey, scan: Mapping[str, Any] | None) -> OpenedKey:
        then = dict(shown_by_scan(scan)).get(key.key_id)
        if (key.key_id, then) not in self._opened:
            shown = [] if then is None else [(key.key_id, then)]
            (self._opened[key.key_id, then],) = open_keys(self._folder, [key], fast=False, shown=shown)
        return self._opened[key.key_id, then]

    def _as_it_counted(self, case: FlagCase, text: str) -> OpenedKey:
        """Open a flag's key so that it counts the same tokens as in the flag's scan. Raises as `scored_text` does."""
        opened_key, look = self._open(self._key(case), case.scan), row_look(case.row["look"], case.where)
        if look is None:
            return opened_key
        return look.recorded(self.results, case.row, case.scan, text, case.where).keys([opened_key])[0]

    def _text_of(self, case: FlagCase) -> "_TextFindings":
        if self._config is None:
            return _TextFindings(why_none="name the scan's configuration instead of its results to see the text")
        try:
            stored_text = self._texts.of(case)
        except Refused as error:
            return _TextFindings(why_none=str(error))
        text = _as_scored(case, stored_text)
        parts, message = parts_of(text), case.row["message"]
        if message is None:  # undecided: the best message may be a stranger's
            why = "no message is shown for this flag"
            return _TextFindings(text, None, stored_text.not_from_file, parts, None, why)
        try:
            opened_key, common = self._as_it_counted(case, text), self.common(case)
        except Refused as error:  # other flags are still explained if one key is missing
            return _TextFindings(text, None, stored_text.not_from_file, parts, None, str(error))
        dedup = case.scan["dedup"] if case.scan else self._config.dedup
        tokenizer = opened_key.tokenizer.reference
        about = text, message, opened_key.key.messages, Omissions(dedup, common), parts
        evidence = evidence_of_text(opened_key.watermark, tokenizer, *about)
        others = self._other_users(case, text, Omissions(dedup, common), parts)
        return _TextFindings(text, None, stored_text.not_from_file, parts, evidence, None, others)

    def _other_users(
        self, case: FlagCase, text: str, omissions: Omissions, parts: Sequence[TextPart]
    ) -> tuple[UserRuns, ...]:
        """Compute the evidence for the users whom a flag names besides the first, at most MOST_OTHER_USERS."""
        own_place, user_runs = (case.row["key_id"], case.row["message"]), list[UserRuns]()
        for name in case.row["named"] or ():
            place = name["key_id"], name["message"]
            if place == own_place or name["naming"] != Naming.NAMED or len(user_runs) == MOST_OTHER_USERS:
                continue
            key = self.key_on_record(name["key_id"])
            with contextlib.suppress(Refused):  # without the secret, nothing is coloured for this user
                if key is not None:
                    opened_key = self._open(key, case.scan)
                    about = text, name["message"], key.messages, omissions, parts
                    evidence = evidence_of_text(opened_key.watermark, opened_key.tokenizer.reference, *about)
                    user_runs.append(UserRuns(name["user_id"], evidence.runs))
        return tuple(user_runs)
