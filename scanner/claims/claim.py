"""Make a claim about one flag that anybody can check without the key (SPEC_3 §5).

A claim shows the seeds that one unit of the text uses, with their paths to the root of the key's public record. Shown
seeds are never marked or scored again. A claim is therefore made in this order:

1. `prepare` computes it and runs check_claim.py on it. For a claim that fails, no seed is shown.
2. `show` writes the event that shows the seeds into the registry. From here on they count as public.
3. `wait_for_readers` waits until every process that scores or marks knows the event.
4. `refuse_if_changed` checks that the registry still agrees with the claim, because hours may have passed.
5. `write` puts the folder in its place in one step.

The event of a claim is the first one about its text, because no words of a text can be chosen by seeds that are shown
after it. A later claim about the text names this event too, and writes one only for seeds that no claim has shown. So
after an interruption, all steps can be repeated, and nothing more is shown.
"""

import csv
import functools
import hashlib
import io
import json
import math
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from scanner.claims.unit import Unit, choose_unit
from scanner.errors import Refused
from scanner.evidence import check_claim
from scanner.evidence.case import FlagCase
from scanner.evidence.check_claim import NO_RECORD, chosen_of, corrected_p, places_in
from scanner.evidence.explainer import Explainer
from scanner.evidence.offered_claim import OTHER_WAY, look_of_record, refusal
from scanner.evidence.replay import Replay, replay
from scanner.looks.marked_accounts import marked_accounts
from scanner.registry import check_secret, load_registry
from scanner.registry.clock import refuse_clock_far_from
from scanner.registry.dealt import Dealt, dealt_now, find_record, microseconds_of
from scanner.registry.holders import given_rows
from scanner.registry.key_records import read_record, read_tree
from scanner.registry.keys_file import PublishedLine, beacon_of_key, read_published, refuse_lost_heads
from scanner.registry.leases import readers_before, refuse_lost_reads, refuse_unread
from scanner.registry.shown_seeds import (
    ShownEvent,
    ShownSeeds,
    ShownUpTo,
    append_event,
    event_bytes,
    event_head,
    find_events,
    read_event,
    read_shown,
    refuse_above_cap,
    refuse_changed_keys,
    shown_since,
)
from scanner.results.current_rows import ranges_ever
from scanner.results.earlier_scans import SCAN_BEGAN
from scanner.results.queries import ask, scans
from scanner.results.registry_record import refuse_lost_events, users_on_record
from scanner.scan_plan import read_config
from scanner.signing import unchecked
from scanner.storage.locations import sync_to_disk
from scanner.watermark.format import DrawsFromSeeds
from scanner.watermark.formats import format_of
from scanner.watermark.native.claim import claimed_positions, score_claim
from scanner.watermark.native.tree import ShownSeed, leaf_of, show_seeds
from schemas.config import ClaimsConfig
from schemas.key_record import KeyRecord, parse_label
from schemas.registry import MasterKey
from schemas.words import Naming

SECONDS_BETWEEN_LOOKS = 5.0
"""Seconds between two checks for remaining readers."""

README = """\
A claim that a text contains text marked for one message of a key. Anybody can check it, without the key:

  python3 -m venv checking
  checking/bin/python -m pip install tokenizers
  checking/bin/python -I check_claim.py FOLDER [LIST HEAD] [--posted FILE]

On Windows, write py for python3, and checking\\Scripts\\python for checking/bin/python. If the tokens FAIL and nothing
else does, install tokenizers=={version}, which made them: other releases split some new letters differently.

check_claim.py is scanner/evidence/check_claim.py of brickscan: take it from a copy of brickscan that you trust, never
from the person who makes the claim. LIST is the public list of commitments, downloaded from where it is published.
HEAD is a head of that list that was saved before the text was posted. FILE is your own copy of the post. Each line of
the output says what holds, what FAILS, or what was NOT CHECKED, and why. The script then says what no claim can show:
above all, that the holder of the key did not mark the text themselves. The last line sums up.

claim.json      the claim: key, message, what it is about (the text, or a part of it), score, p-values, and the
                number and salt of its event
text.txt        the text, byte for byte
scored.txt      only if the scored text differs: a normal form, or a text without its invalid UTF-8
tokens.csv      each token of the text in order, and whether it is scored; if not, why: "window" (it has no whole
                window before it), "repeat" (it came before with the same window), "not chosen" (1,000 count at
                most) or "outside the part" (the claim is about a part of the text)
tokenizer.json  the tokenizer
record.json     the key's public record, byte for byte as published
seeds.json      the seeds that the claim shows, by bucket, each with its path to the root in the record
events.jsonl    which seeds claims have shown, this one and others
name.json       only if the flag names a user: the record that they were given the message, and when, with
                its path to a root in the published list, which reveals no other user

Give the folder only to the parties. Anyone who has it sees every message that is marked there, and can mark the same
windows of words for any user. That is why brickscan no longer marks or scores them.

The claim says that the text contains text marked for the message. It does not say who wrote or posted it.
"""


class PreparedClaim(NamedTuple):
    """A claim that passes all checks and is not written yet. Its repr shows only the flag.

    folder: the registry's folder.
    key: key of the flag.
    where: the flag, in words.
    unit: subject of the claim.
    fields: fields of claim.json that do not depend on an event.
    files: files of the folder that do not depend on an event, by their names.
    ids: tokens of the unit.
    seeds: shown seeds, with their paths.
    event: number of the first event about the text. None: there is none.
    newly: how many of the seeds no claim has shown.
    known: last event by which seeds had been shown when the claim was computed.
    keys: of the registry then.
    last_read: when the newest scan under the key began.
    log10_p: the larger one of both rules, corrected.
    list_paths: the published list and its head, if it was named.
    settings: settings for claims in scan.toml.
    not_checked: why the signatures of the tables were not checked. None: they were.
    """

    folder: str
    key: MasterKey
    where: str
    unit: Unit
    fields: Mapping[str, Any]
    files: Mapping[str, bytes]
    ids: Sequence[int]
    seeds: Sequence[ShownSeed]
    event: int | None
    newly: int
    known: ShownUpTo
    keys: Sequence[MasterKey]
    last_read: datetime
    log10_p: float
    list_paths: Sequence[str]
    settings: ClaimsConfig
    not_checked: str | None

    def __repr__(self) -> str:
        return f"PreparedClaim({self.where!r}, …)"

    @property
    def user_id(self) -> str | None:
        """Return the user whom the claim names. None: nobody."""
        name: str | None = json.loads(self.files["name.json"])["user_id"] if "name.json" in self.files else None
        return name


def prepare(config: Path, document: str, published: Path | None, user: str | None = None) -> PreparedClaim:
    """Compute a claim and check it. Nothing is written.

    Args:
        config: of the scan.
        document: its id, or PATH:ROW.
        published: the list of published commitments. None: p is corrected for the keys of the registry.
        user: user whom the flag names, or KEY_ID:MESSAGE. None: the first.

    Raises:
        Refused: there is no such flag, it has no such claim, it comes out differently today, or the claim fails.
        SecretError: the key's secret cannot be read.
        TokenizerError: its tokenizer cannot be used.
    """
    explainer = Explainer(config)
    keys = load_registry(explainer.registry).keys
    try:
        again = replay(config, document)
    except Refused:
        if marked_accounts(explainer, None, [document]):
            raise Refused(
                f"{document!r} is an account, but a claim that shows seeds is about one text; `brickscan explain "
                f"--account` shows its posts, and {OTHER_WAY} of one of them"
            ) from None
        raise
    if not again.evidence_equal:
        raise Refused(f"{again.case.where}: its verdict comes out differently today, so there is nothing to claim")
    case = again.case.about(user)
    text, tokens, opened_key = explainer.scored_text(case)
    key = opened_key.key
    record, raw = (None, b"") if key.record is None else read_record(explainer.registry, key)
    refused = refusal(case.row, case.scan, key, record.looks if record else ())
    if refused is not None or record is None:
        raise Refused(f"{case.where}: {refused}")
    # without this check, the next event could get the number of one that was lost
    refuse_lost_events(explainer.results, explainer.registry, [key])
    users_on_record(explainer.registry, explainer.results)  # it refuses a registry without a key that p must count
    refuse_clock_far_from(_newest_scan(explainer.results), explainer.results)  # the event's date counts for its month
    last_read = _last_read(explainer, key)
    refuse_unread(explainer.registry, last_read)
    # before the events, because another claim may be made and published in the meantime
    lines = read_published(published) if published else []
    if published and not lines:
        raise Refused(f"--list {published}: has no commitment yet; `brickscan keys publish` writes them")
    shown = read_shown(explainer.registry, key)
    stored = explainer.stored_text(case)
    events = [one for one in find_events(explainer.registry, key, stored) if one <= shown.number]
    number = min(events, default=None)
    before = shown if number is None else shown.up_to(number - 1)
    unit = choose_unit(explainer, case, again.case, opened_key, record, before)
    if unit.variant != case.row["variant"]:
        text, tokens, _ = explainer.scored_text(case.as_written)
    share = record.looks[look_of_record(unit.look, unit.variant)]
    refuse_lost_heads(explainer.registry, key, lines)
    ids = tokens.ids.tolist()[unit.begin : unit.end]
    fields = {
        "label": record.label,
        "commitment": key.commitment,
        "tokenizer_sha256": key.tokenizer.sha256,
        "text_sha256": case.row["text_sha256"].hex(),
        "message": case.row["message"],
        "messages": key.messages,
        "correction": max(_correction(explainer, again.case, key), _count_keys(keys, record, lines) / share),
        "variant": unit.variant,
        "look": unit.look,
        "parts": unit.parts,
        "begin": unit.begin,
        "end": unit.end,
        "beacon_value": key.beacon_value,
    }
    files = {
        "text.txt": stored,
        "tokens.csv": _tokens(record.label, key, tokens.ids.tolist(), unit),
        "tokenizer.json": opened_key.tokenizer.reference.data,
        "record.json": raw,
    }
    if stored != text.encode():
        files["scored.txt"] = text.encode()
    seeds = _seeds(explainer.registry, key, record, ids)
    files["seeds.json"] = _shown_json(seeds)
    name = _name(explainer.registry, case, again, key, lines)
    if name is not None:
        files["name.json"] = name
    files["README"] = README.format(version=version("tokenizers")).encode()
    refuse_lost_reads(explainer.registry, key)
    settings, newly = read_config(config).claims, len({leaf_of(one.seed) for one in seeds} - shown.leaves)
    if newly:
        refuse_above_cap(explainer.registry, key, settings.most_a_month)
    paths = [str(published), lines[-1].head] if published else []
    claim = PreparedClaim(
        explainer.registry,
        key,
        case.where,
        unit,
        fields,
        files,
        ids,
        seeds,
        number,
        newly,
        shown.last,
        keys,
        last_read,
        math.nan,
        paths,
        settings,
        unchecked(explainer.results),  # the answer is complete only after all rows were read
    )
    return claim._replace(log10_p=_check_as_of_now(claim, shown, before))


def _check_as_of_now(claim: PreparedClaim, shown: ShownSeeds, before: ShownSeeds) -> float:
    """Check a claim with the event that it would get as of now. Return the larger log10 p of both rules, corrected.

    Args:
        claim: the claim.
        shown: what claims have shown until now.
        before: what they had shown before the first event about the text.

    Raises:
        Refused: the claim fails.
    """
    salt = secrets.token_bytes(16)
    digest = hashlib.sha256(salt + claim.files["text.txt"]).hexdigest()
    of_claim = {leaf_of(one.seed) for one in claim.seeds}
    leaves = tuple(sorted(leaf.hex() for leaf in of_claim - shown.leaves))
    # the event is not kept, and nothing reads the digest of its line
    added = ShownEvent(shown.number + 1, shown.head, digest, digest, leaves)
    if claim.event is not None:
        salt = read_event(claim.folder, claim.key, claim.event)[1]
    events = (*shown.events, added) if leaves or claim.event is None else shown.events
    files = _all_files(claim, events, claim.event or added.number, salt, before.leaves)
    failing = check_claim.failing(files, None, claim.list_paths)
    if failing:
        shown_before = len(of_claim & before.leaves)
        why = (
            f"claims under this key before the first one about this text showed {shown_before:,} of its "
            f"{len(claim.seeds):,} seeds, which are no evidence"
        )
        raise Refused(
            f"{claim.where}: the script that checks a claim would reject it (this fails: {failing[0]}), so no seeds "
            f"are shown; {f'{why}; ' if shown_before else ''}{OTHER_WAY}"
        )
    scores = json.loads(files["claim.json"])
    return float(max(scores["log10_p_global"], scores["log10_p_user_global"]))


def _newest_scan(results: str) -> datetime:
    """Return when the newest scan that has ended began. There is one: the flag's."""
    began: datetime = ask(results, lambda: scans(results).select("started_at").max().collect()).item()
    return began


def _last_read(explainer: Explainer, key: MasterKey) -> datetime:
    """Return when the newest scan under a key began.

    It counts scans that have ended, as the flag's own scan has, and scans that committed anything.
    """

    def newest() -> pl.DataFrame:
        rows = scans(explainer.results).select("started_at", pl.col("keys").list.eval(pl.element().struct["key_id"]))
        ended = rows.filter(pl.col("keys").list.contains(key.key_id)).select("started_at")
        read = pl.col("events").str.contains(f'"{key.key_id}"', literal=True)  # a key id in the column's JSON
        begun = ranges_ever(explainer.results).filter(read).select(started_at=SCAN_BEGAN)
        return pl.concat([ended, begun]).max().collect()

    began: datetime = ask(explainer.results, newest).item()
    return began


def _correction(explainer: Explainer, first: FlagCase, key: MasterKey) -> float:
    """Return the number of tests that the scan corrected p of a key for, from that of the first user's key."""
    first_key, tested = explainer.key_on_record(first.row["key_id"]), (first.scan or {})["keys_tested"]
    assert first_key is not None  # noqa: S101 - it was replayed
    correction: float = first.row["correction"]
    return correction * key.tested_among(tested) / first_key.tested_among(tested)


def _count_keys(keys: Sequence[MasterKey], record: KeyRecord, lines: Sequence[PublishedLine]) -> int:
    """Count the keys that p of a claim is corrected for: those of the registry, and all that a checker may know of."""
    known = {
        (other.commitment, other.tokenizer.sha256, other.record or NO_RECORD)
        for other in keys
        if other.commitment is not None
    } | {(line.commitment, line.tokenizer, line.record) for line in lines}
    uncommitted = sum(other.commitment is None for other in keys)  # of other stacks, with secrets that can be guessed
    return len(known) + uncommitted + len({*record.earlier} - {digest for _, _, digest in known})


def _mark(label: str, key: MasterKey) -> check_claim.Mark:
    return check_claim.Mark(label, {}, bytes.fromhex(beacon_of_key(key)))


def _tokens(label: str, key: MasterKey, ids: list[int], unit: Unit) -> bytes:
    """Return tokens.csv: each token of the text, and whether it is scored or why not."""
    mark, h = _mark(label, key), format_of(key).rule().context
    places = places_in(mark, ids, unit.begin, unit.end)
    statuses = np.full(len(ids), "outside the part", object)
    statuses[unit.begin : unit.end] = "repeat"
    statuses[unit.begin : min(unit.begin + h, unit.end)] = "window"
    statuses[places] = "not chosen"
    statuses[chosen_of(mark, ids, places)] = "scored"
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(zip(ids, statuses.tolist(), strict=True))
    return out.getvalue().encode()


def _seeds(folder: str, key: MasterKey, record: KeyRecord, ids: Sequence[int]) -> list[ShownSeed]:
    """Return the seeds that the positions of a unit use, with their paths."""
    form = format_of(key)
    assert isinstance(form, DrawsFromSeeds)  # noqa: S101 - the refusal of a flag refuses other formats
    seed_key = form.seed_key(check_secret(folder, key))
    buckets = claimed_positions(ids, record.label).buckets.tolist()
    return show_seeds(seed_key, form.seeds, read_tree(folder, key), buckets)


def _shown_json(seeds: Sequence[ShownSeed]) -> bytes:
    shown = {str(one.bucket): {"seed": one.seed.hex(), "path": [node.hex() for node in one.path]} for one in seeds}
    return json.dumps(shown, separators=(",", ":")).encode()


def _name(folder: str, case: FlagCase, again: Replay, key: MasterKey, lines: Sequence[PublishedLine]) -> bytes | None:
    """Return the record of the name of a flag.

    None: the flag names no user, by its row or by today's naming, or the name was erased.

    Raises:
        Refused: the registry gave the message to another user. Or its users are not those of the list.
    """
    row = case.row
    of_key = (line.dealt for line in lines if (line.key_id, line.commitment) == (key.key_id, key.commitment))
    ours = [Dealt.of(words) for words in of_key if ":" in words]
    if ours:  # check against all lines, because an older registry could have been put back between two of them
        dealt_now(folder, {key.key_id: ours})
    today = {(named["key_id"], named["message"]): named["naming"] for named in again.named}
    naming = today.get((row["key_id"], row["message"]))
    if row["naming"] != Naming.NAMED or row["user_id"] is None or not _is_named(folder, row, naming):
        return None
    found = find_record(folder, key.key_id, row["message"], ours)
    if found is None:
        return None
    if found.user_id != row["user_id"]:
        raise Refused(
            f"{case.where}: the flag names a different user from the one the registry gave the message to; see "
            "`brickscan users verify`"
        )
    text_at = None if row["first_seen_at"] is None else microseconds_of(row["first_seen_at"])
    fields = {
        **found._asdict(),
        "salt": found.salt.hex(),
        "path": [node.hex() for node in found.path],
        "key_id": key.key_id,
        "text_at": text_at,
    }
    return json.dumps(fields, indent=1).encode() + b"\n"


def _is_named(folder: str, row: Mapping[str, Any], naming: object) -> bool:
    """Return whether a row that names a user is right by its naming today. The row's table may be unsigned.

    If the user was removed later than the text was first seen, the user held the message at that time. A user who was
    removed earlier did not.
    """
    if naming != Naming.REMOVED:
        return naming == Naming.NAMED
    (removed,) = given_rows(folder, pl.DataFrame({name: [row[name]] for name in ("key_id", "message")}))["removed_at"]
    return row["first_seen_at"] is not None and row["first_seen_at"] < removed


def _all_files(
    claim: PreparedClaim, events: Sequence[ShownEvent], number: int, salt: bytes, before: Collection[bytes]
) -> dict[str, bytes]:
    """Return the files of a claim's folder.

    Args:
        claim: the claim.
        events: of the key.
        number: of the first one about the text.
        salt: of that event.
        before: leaves of the seeds that were shown before it.
    """
    fields, label = dict(claim.fields), parse_label(claim.fields["label"])
    score = score_claim(
        claim.ids,
        fields["message"],
        fields["label"],
        bytes.fromhex(beacon_of_key(claim.key)),
        {one.bucket: one.seed for one in claim.seeds},
        before,
    )
    corrected = functools.partial(corrected_p, claim=fields)
    numbers = {
        **score._asdict(),
        "log10_p_global": corrected(score.log10_p, fields["messages"]),
        "log10_p_user_global": corrected(score.log10_p_user, label.groups or fields["messages"]),
        "event": number,
        "salt": salt.hex(),
    }
    del numbers["shows"]
    lines = [event_bytes(one) + b"\n" for one in events]
    files = {"claim.json": json.dumps({**fields, **numbers}, indent=1).encode() + b"\n", **claim.files}
    return {**files, "events.jsonl": b"".join(lines)}


def _last_shown(claim: PreparedClaim, files: Mapping[str, bytes]) -> ShownUpTo:
    """Return the event by which all seeds of a claim were shown."""
    lines = files["events.jsonl"].splitlines()
    leaves, last = {leaf_of(one.seed).hex() for one in claim.seeds}, json.loads(files["claim.json"])["event"]
    for number, line in enumerate(lines, 1):
        if not leaves.isdisjoint(json.loads(line)["leaves"]):
            last = max(last, number)
    return ShownUpTo(last, hashlib.sha256(lines[last - 1]).hexdigest())


def show(claim: PreparedClaim) -> dict[str, bytes]:
    """Write an event for the seeds that no claim has shown, and return the files of the claim's folder.

    Raises:
        Refused: the event cannot be written. Keys changed, or another claim under the key was made, since this one was
            computed. Or an older registry, or another folder of leases, was put in place.
    """
    refuse_unread(claim.folder, claim.last_read)  # check all again: a person was asked in between, which takes time
    refuse_lost_reads(claim.folder, claim.key)
    shown_since(claim.folder, claim.key, claim.known)
    known = claim.known
    if claim.event is None or claim.newly:
        buckets, leaves = [one.bucket for one in claim.seeds], [leaf_of(one.seed) for one in claim.seeds]
        where, text = (claim.folder, claim.key.key_id), claim.files["text.txt"]
        added, _ = append_event(*where, text, buckets, leaves, known=claim.known, keys=claim.keys)
        known = ShownUpTo(added.number, event_head(added))
    else:
        refuse_changed_keys(load_registry(claim.folder), claim.keys)
    number = claim.event or known.number
    shown = shown_since(claim.folder, claim.key, known)
    salt = read_event(claim.folder, claim.key, number)[1]
    return _all_files(claim, shown.events, number, salt, shown.up_to(number - 1).leaves)


def wait_for_readers(
    claim: PreparedClaim, files: Mapping[str, bytes], *, wait: bool, tell: Callable[[str], object]
) -> None:
    """Check that every scan, detector and server that began before a claim's event has ended or has read the event.

    Args:
        claim: the claim.
        files: of its folder, as `show` returned them.
        wait: whether to wait for that.
        tell: called with a sentence on each reader that it waits for.

    Raises:
        Refused: there is such a reader, and `wait` is false. Or leases cannot be read, or are no longer where scans
            write them.
    """
    number, told = _last_shown(claim, files).number, set[str]()
    while True:
        leases = readers_before(claim.folder, claim.key.key_id, number)
        refuse_unread(claim.folder, claim.last_read)  # in each round: an unmounted volume leaves an empty folder
        if not leases:
            return
        if not wait:
            more = f", and {len(leases) - 1} more" if leases[1:] else ""
            raise Refused(
                f"{claim.where}: its seeds count as shown (event {number}), but the claim is not written yet: "
                f"{leases[0]}{more}, and still treats them as secret. Run this again once it has ended, or with --wait"
            )
        for lease in leases:
            if lease.name not in told:
                tell(f"not yet: {lease}; waiting for it")
                told.add(lease.name)
        time.sleep(SECONDS_BETWEEN_LOOKS)


def refuse_if_changed(claim: PreparedClaim, files: Mapping[str, bytes]) -> None:
    """Refuse a claim that the registry no longer supports, just before it is written.

    Args:
        claim: the claim.
        files: of its folder, as `show` returned them.

    Raises:
        Refused: an older registry without the event was put back, so the claim's seeds would be scored as if they were
            secret. Or the name that the claim carries was erased.
    """
    if "name.json" in files:
        name = json.loads(files["name.json"])
        found = find_record(claim.folder, claim.key.key_id, claim.fields["message"], ())
        if found is None or (found.user_id, found.salt.hex()) != (name["user_id"], name["salt"]):
            raise Refused(
                f"{claim.where}: the name in the claim was erased in the meantime, so the claim was not written; run "
                "this again for a claim without a name"
            )
    # last, because finding a name can take minutes
    shown_since(claim.folder, claim.key, _last_shown(claim, files))


def write(files: Mapping[str, bytes], out: Path) -> None:
    """Write the folder of a claim in one step. Only its owner can read it.

    Raises:
        Refused: the folder exists already, or cannot be written.
    """
    refuse_folder(out)
    unfinished = None
    try:
        unfinished = Path(tempfile.mkdtemp(prefix=".claim.", suffix=".unfinished", dir=out.absolute().parent))
        for name, content in files.items():
            with open(unfinished / name, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        unfinished.rename(out)
        sync_to_disk(out.absolute().parent)
    except OSError as error:
        raise Refused(f"--out {out}: cannot be written ({error.strerror}); name a new folder") from None
    finally:
        if unfinished is not None:
            shutil.rmtree(unfinished, ignore_errors=True)


def refuse_folder(out: Path) -> None:
    """Raise Refused if the folder of a claim cannot be written."""
    if os.path.lexists(out):
        raise Refused(f"--out {out}: already exists; name a new folder")
    if not out.absolute().parent.is_dir():
        raise Refused(f"--out {out}: there is no folder {out.parent}; create it first")
    if not os.access(out.absolute().parent, os.W_OK | os.X_OK):
        raise Refused(f"--out {out}: cannot write into {out.absolute().parent}; name another folder")
