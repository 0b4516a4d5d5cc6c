"""Check a verdict again: compute it from its file and compare every field, or write a claim for a third party.

The reference tokenizer makes the tokens. Score and p-value of the verdict's message come from the format's slow path,
which shares no code with the scan's scoring. The search among all messages, which can only miss some, is the scan's.

With a claim, a third party to whom the key is revealed can check one flag without brickscan. A claim is a folder of
data: the claim, the text, its tokens, the tokenizer, and under version 3 the key's public record and the events by
which seeds had been shown. It holds no key material, and shows no single token's score. The script that checks it,
check_claim.py, is not in the folder, because a forger could change it there.

A claim counts all positions, also those that the scan left out because their seeds had been shown. Such a position adds
its mean at most (SPEC_3 §5).
"""

import contextlib
import csv
import functools
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.detection.attribution import BatchOrigin, FileHistory
from scanner.detection.detector import Detector
from scanner.detection.left_out import NgramFilter, places_left_out
from scanner.detection.open_plan import open_keys, open_prover
from scanner.detection.rounding import nearly_equal
from scanner.detection.rules import Rules
from scanner.error_shares import ErrorShares
from scanner.errors import Refused
from scanner.evidence import check_claim
from scanner.evidence.case import FlagCase, filter_of, find_case
from scanner.evidence.check_claim import Mark, corrected_p
from scanner.evidence.explainer import Explainer
from scanner.evidence.stored_texts import OF_FILE, StoredTexts
from scanner.input.columns import Columns
from scanner.input.documents import read_text
from scanner.input.files import resolve
from scanner.looks.normalising import check_variants, scored_text
from scanner.looks.rescoring import RowScoring, row_look
from scanner.looks.text_parts import parts_look
from scanner.registry import NamedUser, VerifiedHolders, check_secret, find_key, load_registry
from scanner.registry.key_records import read_record
from scanner.registry.keys import first_keys
from scanner.registry.keys_file import beacon_of_key, gives_p_values
from scanner.registry.shown_seeds import event_bytes, shown_then
from scanner.results.earlier_scans import RecordedHistory, recorded_history
from scanner.results.queries import ask
from scanner.results.registry_record import users_on_record
from scanner.scan_plan import read_config
from scanner.signing import open_results, unchecked
from scanner.storage.locations import absolute
from scanner.watermark.by_levels import BoundsRounding
from scanner.watermark.format import LeavesOut, ProofPath, Proves, ScoresParts, Watermark
from scanner.watermark.formats import format_of
from scanner.watermark.positions import Positions, Tokens, rule_with_shown
from scanner.watermark.rule import log10_p_of
from schemas.config import ScanConfig
from schemas.registry import MasterKey, Registry
from schemas.tables import DOCUMENTS
from schemas.words import LEVELS, SPAN, Naming, Proof

COMPARED_COLUMNS = (
    *("status", "tokens", "scored", "key_id", "message", "score", "log10_p", "log10_p_global", "messages_tested"),
    *("correction", "flagged", "basis", "variant", "look", "runner_up_log10_p", "runner_up_log10_p_global"),
    *("naming", "user_id", "held_since", "named", "proof"),
)
"""Columns of schemas.tables.VERDICTS that follow from text, keys and users."""

OF_USERS = ("naming", "user_id", "held_since", "named")
"""Columns that follow from the users table."""

NOBODY_ASKED_FOR = (Naming.ASSUMED, Naming.AMBIGUOUS, Naming.UNPROVED)
"""Namings of flags for which the scan looked for no user. Their document may have no time since when it existed."""

_CHANGED = "the users table has changed since: `brickscan users verify` checks its history"


class FieldComparison(NamedTuple):
    """A field as it was recorded and as it is today.

    why: a possible reason for a difference. None: none is known.
    """

    field: str
    recorded: object
    again: object
    equal: bool
    why: str | None = None


class Replay(NamedTuple):
    """A verdict and its result today.

    named: users whom the text names today, as in VERDICTS.
    not_from_file: why the text is the one that the scan kept. The other columns of its file are then not compared.
    unchecked: why the signatures of the tables that were read were not checked. None: they were.
    """

    case: FlagCase
    fields: list[FieldComparison]
    named: Sequence[Mapping[str, Any]]
    not_from_file: str | None
    unchecked: str | None

    @property
    def equal(self) -> bool:
        """Return whether every field equals its record."""
        return all(field.equal for field in self.fields)

    @property
    def evidence_equal(self) -> bool:
        """Return whether all fields are equal, except those of the users table, which changes."""
        return all(field.equal for field in self.fields if field.field not in OF_USERS)


def replay(config_file: Path, document: str) -> Replay:
    """Compute the verdict on a flagged document again.

    Args:
        config_file: gives registry, columns, normalised texts and weights. Everything else comes from `scans`.
        document: its id, or PATH:ROW.

    Raises:
        Refused: there is no such flag, its scan recorded too little, or the text or a key is gone.
        SecretError: a secret cannot be read.
        TokenizerError: a tokenizer cannot be used.
    """
    config, base = read_config(config_file), config_file.absolute().parent
    results = open_results(config, config_file)
    case = find_case(results, config.false_positive_rate, document)
    if case.scan is None:
        raise Refused(
            f"{case.where}: its scan did not finish, so there is no record of its tests; if it was killed, `touch` the "
            "file and scan again, since a further scan leaves out what is done"
        )
    folder = absolute("registry", config.registry, base)
    registry = load_registry(folder)
    keys = _keys_then(registry, case)
    locations = [resolve(path, base, None) for path in config.input.paths if "{date}" not in path]
    columns = Columns.of(config.input)
    stored_text = StoredTexts(columns, locations, results).of(case)
    ngram_filter = filter_of(results, folder, case)
    look, text = row_look(case.row["look"], case.where), read_text(stored_text.text)[0] or ""
    scoring = None if look is None else look.recorded(results, case.row, case.scan, text, case.where)
    replayed = dict(_detected(config, folder, results, keys, case, stored_text.text, ngram_filter, scoring))
    slowly, room = _by_slow_path(folder, registry, case, text, ngram_filter, scoring)
    replayed |= slowly
    file_columns = [
        name for name, kind in OF_FILE.items() if columns.names[kind] is not None and stored_text.row is not None
    ]
    replayed |= {name: (stored_text.row or {})[name] for name in file_columns}
    rooms = {"score": room, "log10_p": room}
    fields = [
        _compare(name, case.row, replayed, _CHANGED, rooms.get(name, 0.0))
        for name in (*file_columns, *COMPARED_COLUMNS)
        if name in case.row
    ]
    if stored_text.row is not None and case.row["message"] is not None and case.row["naming"] not in NOBODY_ASKED_FOR:
        history = ask(results, lambda: recorded_history(results, case.row, (case.scan or {})["started_at"]))
        fields.append(_existed(case, history, stored_text.row["created_at_latest"]))
    if look is not None:
        today = look.today(config, base, case.scan, text, case.where)
        verdict = (
            None
            if today is None
            else _detected(config, folder, results, keys, case, stored_text.text, ngram_filter, today)
        )
        name, agrees, why_not = look.compare(case.row, verdict)
        again = None if verdict is None else verdict["log10_p_global"]
        fields.append(FieldComparison(name, case.row["log10_p_global"], again, equal=agrees, why=why_not or None))
    return Replay(case, fields, replayed["named"] or (), stored_text.not_from_file, unchecked(results))


def _existed(case: FlagCase, history: RecordedHistory, known_at: datetime | None) -> FieldComparison:
    """Compare the time by which the document existed, which decides whether a user held its message then."""
    # An earlier flag of its text counts only where it can change whom the text names (scanner.results.earlier_scans).
    # So the time may be the one with it or the one without.
    row, began = case.row, (case.scan or {})["started_at"]
    file_times = [
        time for time in (history.written if known_at is None else known_at, history.file) if time is not None
    ]
    times = [
        first if first is not None and first < began else began if row["naming"] == Naming.HELD_LATER else None
        for first in (min(file_times, default=None), min((*file_times, history.text or began), default=None))
    ]
    recorded = row["first_seen_at"]
    if recorded in times:
        return FieldComparison("first_seen_at", recorded, recorded, equal=True)
    if history.dropped and recorded is not None and (times[0] is None or recorded < times[0]):
        why = "nights have been dropped since; one of them may have had the document"
        return FieldComparison("first_seen_at", recorded, times[0], equal=True, why=why)
    return FieldComparison("first_seen_at", recorded, times[0], equal=False)


def _keys_then(registry: Registry, case: FlagCase) -> list[MasterKey]:
    """Return the keys that the scan tested, in its order, with the commitments and weights that they had then."""
    keys = []
    first = first_keys(registry.keys, gives_p_values)
    later = [key.created_at for key in registry.keys if key.one_of is not None and key not in first]
    unweighted = bool(first) and (case.scan or {})["started_at"] < min(later)  # no key had a weight then
    for recorded_key in (case.scan or {})["keys"]:
        key = find_key(registry, recorded_key["key_id"])
        if recorded_key["commitment"] is not None and key.commitment != recorded_key["commitment"]:
            raise Refused(f"key {key.key_id!r}: the registry's commitment differs from the one that the scan recorded")
        if key.tokenizer.sha256 != recorded_key["tokenizer_sha256"]:
            raise Refused(f"key {key.key_id!r}: the registry's tokenizer differs from the one that the scan recorded")
        keys.append(key.model_copy(update={"one_of": None}) if unweighted else key)
    return keys


class _Holders:
    """Finds the user of a message. It names nobody if the registry's users are not as scans saw them."""

    def __init__(self, folder: str, results: str, key_ids: Sequence[str]) -> None:
        self._folder, self._results, self._key_ids = folder, results, key_ids

    @functools.cached_property
    def _verified(self) -> VerifiedHolders | None:
        with contextlib.suppress(Refused):
            return VerifiedHolders(self._folder, self._key_ids, users_on_record(self._folder, self._results))
        return None

    def naming(self, key_id: str, message: int, at: datetime) -> NamedUser:
        """See NamesUsers."""
        with contextlib.suppress(Refused):
            if self._verified is not None:
                return self._verified.naming(key_id, message, at)
        return NamedUser(Naming.UNALLOCATED, None, None)


def _detected(
    config: ScanConfig,
    folder: str,
    results: str,
    keys: Sequence[MasterKey],
    case: FlagCase,
    raw: bytes,
    ngram_filter: NgramFilter,
    scoring: RowScoring | None,
) -> Mapping[str, Any]:
    """Return the verdict by the scan's own rule, a row of VERDICTS.

    scoring: scoring of the row's look. None: by the plain sum.
    """
    row, scan = case.row, case.scan or {}
    if row["key_id"] not in {key.key_id for key in keys}:
        why = "was not tested by its scan, so the row was changed: do not name anyone because of it"
        raise Refused(f"{row['path']}:{row['row']}: the row's key {row['key_id']!r} {why}")
    check_variants(config.variants)
    shares = ErrorShares.of(config)
    if scoring is not None:
        shares, keys = scoring.shares(shares), [key for key in keys if scoring.takes(key)]
    rules = Rules.recorded(scan, scan["keys_tested"], shares, ngram_filter)
    opened_keys = open_keys(folder, keys, fast=False, shown=case.shown)
    holders = _Holders(folder, results, [key.key_id for key in keys])
    prover = open_prover(folder, opened_keys, rules, None if scoring is None else scoring.slow_path)
    scored_keys = opened_keys if scoring is None else scoring.keys(opened_keys)
    detector = Detector(scored_keys, holders, rules, prover)
    columns = {name: [None] for name in DOCUMENTS.names} | {"row": [row["row"]], "text": [raw]}
    document = pa.RecordBatch.from_pydict(columns, schema=DOCUMENTS)
    first = row["first_seen_at"]
    history = FileHistory(scan["started_at"], {row["text_sha256"]: first} if first else {}, None, None)
    origin = BatchOrigin(row["scan_id"], row["shard_id"], row["path"])
    verdicts, *_ = detector.score_batch(document, origin, history=history)
    verdict: Mapping[str, Any] = verdicts.to_pylist()[0]
    return verdict if scoring is None or not verdict["flagged"] else {**verdict, "look": row["look"]}


def _by_slow_path(
    folder: str,
    registry: Registry,
    case: FlagCase,
    text: str,
    ngram_filter: NgramFilter,
    scoring: RowScoring | None,
) -> tuple[dict[str, Any], float]:
    """Compute score and p-value of the verdict's message, and their rounding, by its format's slow path.

    Parts are computed again by scanner.looks.parts.proofs.
    """
    row = case.row
    key = find_key(registry, row["key_id"])
    form = format_of(key)
    if row["message"] is None or row["look"] == SPAN or not isinstance(form, Proves):
        return {}, 0.0
    (opened_key,) = open_keys(folder, [key], fast=False, shown=case.shown)
    ids = opened_key.tokenizer.reference.encode([scored_text(text, row["variant"])]).ids
    path: ProofPath = form.proof(check_secret(folder, key))
    path = path.leave_out(opened_key.shown) if isinstance(path, LeavesOut) else path
    if scoring is not None:
        path = scoring.slow_path(path, opened_key)
    common_places = places_left_out(ngram_filter.of(key.tokenizer.sha256, opened_key.watermark.rule), ids)
    scored, (score,) = path.scores(ids, [row["message"]], (case.scan or {})["dedup"], common_places)
    log10_p = max(path.log10_p(score, scored), opened_key.log10_reach)
    room = path.rounding(scored) if isinstance(path, BoundsRounding) else 0.0
    return {"tokens": len(ids), "scored": scored, "score": score, "log10_p": log10_p}, room


def _compare(
    name: str, row: Mapping[str, Any], replayed: Mapping[str, Any], users_reason: str, room: float
) -> FieldComparison:
    recorded_value, new_value = row[name], replayed[name]
    if name == "named":
        recorded_value, new_value = _who(recorded_value), _who(new_value)
    if (
        isinstance(recorded_value, float)
        and isinstance(new_value, float)
        and math.isfinite(recorded_value)
        and math.isfinite(new_value)
    ):
        return FieldComparison(name, recorded_value, new_value, nearly_equal(recorded_value, new_value, room))
    equal = recorded_value == new_value
    why = None
    if not equal and name in OF_USERS:
        why = users_reason
    elif not equal and name == "proof":
        why = "the scan did not compute it a second time: there were too many flags, or the text is too long"
        equal = recorded_value == Proof.NOT_DRAWN
    return FieldComparison(name, recorded_value, new_value, equal, why)


def _who(named: Sequence[Mapping[str, Any]] | None) -> list[str] | None:
    """Return the users and namings in a list. Their p-values follow from the other fields."""
    if named is None:
        return None
    return [f"{entry['key_id']}:{entry['message']}:{entry['user_id']}:{entry['naming']}" for entry in named]


_README = """\
A claim that a text contains text marked for one message of a key.

claim.json      the claim: key, commitment, message, score, p-values, and digests of the text and of the tokenizer
tokens.csv      each token of the text in order, and whether it is scored; if not, why: "window" (it has no whole
                window before it), "repeat" (it came before with the same window), "filter" (a common n-gram) or
                "outside the part" (the claim is about a part of the text: look "span", one of so many `parts`)
text.txt        the text, byte for byte; the claim has its SHA-256
scored.txt      only if the scored text differs: without characters that hide a mark (variant "normalised"), with U+FFFD
                for bytes that are no UTF-8, without a C2PA manifest, or a first part of a long text
tokenizer.json  the tokenizer; the claim has its SHA-256
record.json     only for a key of version 3: its public record, byte for byte as published. All draws of the
                key follow from the secret, from it, and from the claim's `beacon_value`
{events}
check_claim.py checks the claim, once the key is known:

  python -I check_claim.py FOLDER SECRET_FILE LIST HEAD [--posted FILE]

It is scanner/evidence/check_claim.py of brickscan: take it from a copy of brickscan that you trust, never from who
makes the claim. LIST is the public list of commitments (`brickscan keys publish`), taken from where it is public, and
HEAD a head of it that somebody kept from before the text was posted. FILE is a copy of the post from whoever checks.
The script says what it did not check, and what nobody can check so.

The claim says that the text contains text marked for the message. It does not say who wrote or posted it.
"""

_README_OF_EVENTS = """\
events.jsonl    which seeds claims had shown when the scan of the text began. Whoever has such a claim can choose words
                by them, so a position that uses one adds its mean to the score at most
"""


def write_claim(explainer: Explainer, case: FlagCase, out: Path) -> None:
    """Write the folder of a claim.

    Raises:
        Refused: the folder exists, the text is gone, or the script does not know the key's format.
    """
    text, tokens, opened_key = explainer.scored_text(case)
    row, key = case.row, opened_key.key
    form = format_of(key)
    if key.commitment is None:
        raise Refused(f"--proof: key {key.key_id!r} has no commitment, so nothing could show later which key it was")
    if row["message"] is None:
        raise Refused(f"--proof: {case.where}: no message is shown for this flag, so there is nothing to prove")
    if row["look"] == LEVELS:
        raise Refused(
            f"--proof: {case.where}: its tokens were weighted by how much they surprised a model, and check_claim.py "
            "counts all tokens equally; `brickscan replay` computes the flag again"
        )
    record = None if key.record is None else read_record(explainer.registry, key)[1]
    rule, dedup = opened_key.watermark.rule, (case.scan or {}).get("dedup", "ngram")
    if dedup != "ngram":
        raise Refused(f"--proof: the scan counted repeats by dedup = {dedup!r}; check_claim.py supports only 'ngram'")
    positions, common = rule_with_shown(rule).positions(tokens, "ngram"), explainer.common(case)
    scored = positions if common is None else common.without(tokens, positions)
    was_shown = ~np.isin(scored.index, rule.positions(tokens, "ngram").index)
    shown = shown_then(explainer.registry, key, dict(case.shown).get(key.key_id))
    mark = _mark(form.label(), check_secret(explainer.registry, key), key)
    mark.known = shown.leaves
    spans = [(0, len(scored.index), -1)]
    if row["look"] is not None:
        spans = parts_look().parts_of(explainer.parts_tested, opened_key.tokenizer.reference, text, scored.index)
    begin, end = _part(opened_key.watermark, tokens, scored, was_shown, spans, row)
    ngrams = [rule.ngram(tokens, int(index)) for index in scored.index[begin:end]]
    numbers = _numbers(mark, ngrams, len(spans), row)
    if not was_shown.any():
        recorded = {name: row[name] for name in numbers}
        if not all(nearly_equal(numbers[name], recorded[name]) for name in numbers):
            raise Refused(
                f"--proof: {case.where}: check_claim.py computes a score or p-value that differs from the row's"
            )
        numbers = recorded  # the script's may differ in the last digit
    claim: dict[str, Any] = {
        "label": form.label(),
        "commitment": key.commitment,
        "tokenizer_sha256": key.tokenizer.sha256,
        "text_sha256": row["text_sha256"].hex(),
        "message": row["message"],
        "messages": row["messages_tested"],
        "correction": row["correction"],
        "scored": end - begin,
        **numbers,
        "variant": row["variant"],
        "look": row["look"],
        "parts": len(spans),
        "beacon_value": key.beacon_value,
    }
    try:
        out.mkdir(mode=0o700)
        _write(out / "claim.json", json.dumps(claim, indent=1) + "\n")
        with _new(out / "tokens.csv") as file:
            statuses = _statuses(len(tokens.ids), rule.context, positions.index, scored.index, (begin, end))
            csv.writer(file, lineterminator="\n").writerows(zip(tokens.ids.tolist(), statuses, strict=True))
        stored = explainer.stored_text(case)
        _write(out / "text.txt", stored)
        if stored != text.encode():
            _write(out / "scored.txt", text)
        _write(out / "tokenizer.json", opened_key.tokenizer.reference.data)
        if record is not None:
            _write(out / "record.json", record)
        if shown.events:
            _write(out / "events.jsonl", b"".join(event_bytes(event) + b"\n" for event in shown.events))
        _write(out / "README", _README.format(events=_README_OF_EVENTS if shown.events else ""))
    except OSError as error:
        raise Refused(f"--proof {out}: cannot be written ({error.strerror}); name a new folder") from None
    failing = check_claim.failing(check_claim.read_folder(out), check_secret(explainer.registry, key))
    if failing:
        shutil.rmtree(out)
        raise Refused(
            f"--proof: {case.where}: check_claim.py would reject this claim (this fails: {failing[0]}), so it is not "
            "written"
        )


def _statuses(
    tokens: int, window: int, positions: NDArray[np.int64], scored: NDArray[np.int64], part: tuple[int, int]
) -> list[str]:
    """Return why each token is scored or not, in the words of check_claim.py."""
    statuses = np.full(tokens, "repeat", object)
    statuses[:window] = "window"
    statuses[positions] = "filter"
    statuses[scored] = "outside the part"
    statuses[scored[slice(*part)]] = "scored"
    return statuses.tolist()


def _mark(label: str, secret: bytes, key: MasterKey) -> Mark:
    """Return the mark as the script computes it. Raises Refused: the script does not know the mark."""
    with contextlib.suppress(KeyError, ValueError):
        return Mark(label, secret, None if key.record is None else bytes.fromhex(beacon_of_key(key)))
    raise Refused(f"--proof: check_claim.py does not support the marks of {label!r}")


def _part(
    watermark: Watermark,
    tokens: Tokens,
    scored: Positions,
    was_shown: NDArray[np.bool_],
    spans: Sequence[tuple[int, int, int]],
    row: Mapping[str, Any],
) -> tuple[int, int]:
    """Choose the part that a claim is about: the one that was flagged.

    Where the scan left positions out, no part may have its score and p-value. Then it is the part of smallest p.

    Args:
        watermark: the opened key's.
        tokens: of the text.
        scored: positions that the claim counts.
        was_shown: whether the seed of each had been shown, bool[P].
        spans: parts of the text.
        row: the flag's.

    Returns:
        Its first scored position, and the position after its last.
    """
    assert isinstance(watermark, ScoresParts)  # noqa: S101 - check_claim.py knows no other marks
    law = watermark.law
    assert law is not None  # noqa: S101 - likewise
    terms = watermark.terms(tokens, scored, row["message"])
    sums = np.append(0.0, np.cumsum(np.where(was_shown, np.minimum(terms, law.mean), terms)))
    begin, end, _ = np.array(spans).T
    scores = sums[end] - sums[begin]
    # the mean of a green list is n/2^b, so its sums are exact, and the script rounds them down
    log10_p = log10_p_of(law, np.floor(scores) if law.discrete else scores, end - begin)

    def rank(part: tuple[tuple[int, int, int], float, float]) -> tuple[bool, float]:
        _, score, p = part
        return not (nearly_equal(score, row["score"]) and nearly_equal(p, row["log10_p"])), p

    best, *_ = min(zip(spans, scores.tolist(), log10_p.tolist(), strict=True), key=rank)
    return best[:2]


def _numbers(mark: Mark, ngrams: list[tuple[int, ...]], parts: int, row: Mapping[str, Any]) -> dict[str, float]:
    """Compute score and p-values of a row's message in one of so many parts, as check_claim.py does."""
    score = mark.score(ngrams, row["message"])
    log10_p = mark.log10_p(score, len(ngrams))
    tests = {"parts": parts, "correction": row["correction"]}
    return {
        "score": score,
        "log10_p": log10_p,
        "log10_p_global": corrected_p(log10_p, row["messages_tested"], tests),
    }


def _new(path: Path) -> TextIOWrapper:
    return open(path, "x", encoding="utf-8", newline="", opener=lambda name, flags: os.open(name, flags, 0o600))


def _write(path: Path, text: str | bytes) -> None:
    with _new(path) as file:
        file.buffer.write(text.encode() if isinstance(text, str) else text)
