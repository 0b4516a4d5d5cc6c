"""A verdict computed again from its file, the registry and what its scan recorded; said to be equal or not, by field.

The reference tokenizer makes the tokens. Of the message that the verdict names, score and p-value come from the
format's slow path, which shares no code with the scan's; the search among all messages, which can only miss, is made
again as a scan makes it.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from scanner.detection.detector import Detector, Origin
from scanner.detection.existence import OfFile
from scanner.detection.normalising import normalise
from scanner.detection.proving import alike
from scanner.detection.scan_plan import open_keys, open_prover, read_config, results_of
from scanner.errors import Refused
from scanner.evidence.case import Case, find_case, stored_row
from scanner.input.columns import Columns
from scanner.input.documents import Reader, read_text
from scanner.input.files import resolve
from scanner.registry import Holders, check_secret, find_key, load_registry
from scanner.storage.locations import absolute
from scanner.watermark.format import Proves
from scanner.watermark.formats import format_of
from schemas.config import ScanConfig
from schemas.registry import MasterKey, Registry
from schemas.tables import DOCUMENTS
from schemas.words import Proof

FIELDS = (
    *("status", "tokens", "scored", "key_id", "message", "score", "log10_p", "log10_p_global", "messages_tested"),
    *("keys_tested", "flagged", "basis", "variant", "runner_up_log10_p", "runner_up_log10_p_global"),
    *("naming", "user_id", "held_since", "named", "proof"),
)
"""Columns of schemas.tables.VERDICTS that follow from text, keys and users."""

OF_USERS = ("naming", "user_id", "held_since", "named")
"""Those that follow from the users table."""

OF_FILE = {"doc_id": "id", "account_id": "account", "created_at": "time"}
"""Those that stand beside the text, by the name of their column in a configuration."""

_LATER = ("basis", "variant", "runner_up_log10_p_global", "held_since", "named", "proof")
"""Those that rows of older versions have not."""


class Compared(NamedTuple):
    """A field as it was recorded and as it comes out today. why: what may explain a difference; None: nothing."""

    field: str
    recorded: object
    again: object
    equal: bool
    why: str | None = None


class Replay(NamedTuple):
    """A verdict and what comes out today; equal: all fields are."""

    case: Case
    fields: list[Compared]

    @property
    def equal(self) -> bool:
        """Whether every field comes out as it was recorded."""
        return all(field.equal for field in self.fields)

    @property
    def evidence_equal(self) -> bool:
        """Whether all is equal but for what the users table says, which changes."""
        return all(field.equal for field in self.fields if field.field not in OF_USERS)


def replay(config_file: Path, document: str) -> Replay:
    """Compute the verdict on a flagged document again.

    Args:
        config_file: of the scan; its registry, columns and normalised texts are taken from here, all else from `scans`.
        document: its id, or PATH:ROW.

    Raises:
        Refused: there is no such flag, its scan recorded too little, or the text or a key is gone; SecretError,
            TokenizerError.
    """
    config, base = read_config(config_file), config_file.absolute().parent
    case = find_case(results_of(config, config_file), config.false_positive_rate, document)
    if case.scan is None:
        raise Refused(f"{case.where}: its scan did not end, so that what it tested is not on record; scan again")
    folder = absolute("registry", config.registry, base)
    registry = load_registry(folder)
    keys = _keys_then(registry, case)
    locations = [resolve(path, base, None) for path in config.input.paths if "{date}" not in path]
    columns = Columns.of(config.input)
    stored = stored_row(case, columns, locations, Reader())
    raw = bytes(stored["text"])
    again = dict(_detected(config, folder, keys, case, raw))
    again |= _by_slow_path(folder, registry, case, raw)
    beside = [name for name, kind in OF_FILE.items() if columns.names[kind] is not None]
    again |= {name: stored[name] for name in beside}
    return Replay(case, [_compare(name, case.row, again) for name in (*beside, *FIELDS) if name in case.row])


def _keys_then(registry: Registry, case: Case) -> list[MasterKey]:
    """The keys that the scan tested, in its order; with the commitments that they had then."""
    keys = []
    for then in (case.scan or {})["keys"]:
        key = find_key(registry, then["key_id"])
        if then["commitment"] is not None and key.commitment != then["commitment"]:
            raise Refused(f"key {key.key_id!r}: the registry has another commitment than the scan recorded")
        if key.tokenizer.sha256 != then["tokenizer_sha256"]:
            raise Refused(f"key {key.key_id!r}: the registry has another tokenizer than the scan recorded")
        keys.append(key)
    return keys


def _detected(config: ScanConfig, folder: str, keys: Sequence[MasterKey], case: Case, raw: bytes) -> Mapping[str, Any]:
    """A row of VERDICTS, by the scan's own rule."""
    row, scan = case.row, case.scan or {}
    normalised = config.variants.normalised
    tested = _keys_tested(keys, row, normalised)
    rates = (scan["false_positive_rate"], scan["misnaming_rate"])
    tests = open_keys(folder, keys, fast=False)
    detector = Detector(
        tests,
        Holders.load(folder, [key.key_id for key in keys]),
        keys_tested=tested,
        dedup=scan["dedup"],
        min_scored=scan["min_scored"],
        false_positive_rate=rates[0],
        misnaming_rate=rates[1],
        prover=open_prover(folder, tests, tested, scan["dedup"], *rates, normalised=normalised),
        normalised=normalised,
    )
    columns = {name: [None] for name in DOCUMENTS.names} | {"row": [row["row"]], "text": [raw]}
    document = pa.RecordBatch.from_pydict(columns, schema=DOCUMENTS)
    first = row["first_seen_at"]
    known = OfFile(scan["started_at"], {row["text_sha256"]: first} if first else {}, None, None)
    verdicts, _ = detector.detect(document, Origin(row["scan_id"], row["shard_id"], row["path"]), known=known)
    found: Mapping[str, Any] = verdicts.to_pylist()[0]
    return found


def _keys_tested(keys: Sequence[MasterKey], row: Mapping[str, Any], normalised: bool) -> int:
    """K as the scan had it, from what it recorded beside the verdict's key; one of a key with a weight says nothing."""
    (own,) = (key for key in keys if key.key_id == row["key_id"])
    recorded: int = max(row["keys_tested"], sum(format_of(key).law() is not None for key in keys))
    return recorded if own.one_of is None else len(keys) * (1 + normalised)


def _by_slow_path(folder: str, registry: Registry, case: Case, raw: bytes) -> dict[str, Any]:
    """Score and p-value of the verdict's message, where its format has a slow path."""
    row = case.row
    key = find_key(registry, row["key_id"])
    form = format_of(key)
    if row["message"] is None or not isinstance(form, Proves):
        return {}
    (test,) = open_keys(folder, [key], fast=False)
    text = read_text(raw)[0] or ""
    ids = test.tokenizer.reference.encode([normalise(text) if row["variant"] is not None else text]).ids
    path = form.proof(check_secret(folder, key))
    scored, (score,) = path.scores(ids, [row["message"]], (case.scan or {})["dedup"])
    return {"tokens": len(ids), "scored": scored, "score": score, "log10_p": path.log10_p(score, scored)}


def _compare(name: str, row: Mapping[str, Any], again: Mapping[str, Any]) -> Compared:
    recorded, found = row[name], again[name]
    if name == "named":
        recorded, found = _who(recorded), _who(found)
    if isinstance(recorded, float) and isinstance(found, float) and math.isfinite(recorded) and math.isfinite(found):
        return Compared(name, recorded, found, alike(recorded, found))
    equal = recorded == found
    why = None
    if not equal and recorded is None and name in _LATER:
        why = "an older version did not record it"
        equal = True
    elif not equal and name in OF_USERS:
        why = "the users table changed since: `brickscan users verify` follows its chain"
    elif not equal and name == "proof":
        why = "too many flags came together, and it was not computed again then"
        equal = recorded == Proof.NOT_DRAWN
    return Compared(name, recorded, found, equal, why)


def _who(named: Sequence[Mapping[str, Any]] | None) -> list[str] | None:
    """Whom a list names for what; their p-values follow from the other fields."""
    if named is None:
        return None
    return [f"{one['key_id']}:{one['message']}:{one['user_id']}:{one['naming']}" for one in named]
