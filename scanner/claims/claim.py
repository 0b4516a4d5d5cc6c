"""A claim about one flag that anybody can check without the key (SPEC_3 §5).

It shows the seeds that one unit of the text meets, with their paths to the root of the key's public record. What was
shown is marked and scored never again, so a claim is made in this order:

1. `prepare` computes it, and check_claim.py checks it as it would be: nothing is shown for a claim that fails.
2. `show` writes the event that shows the seeds, into the registry. From here on they count as public.
3. `wait_for_readers` sees that nobody scores or marks any more who does not know the event.
4. `refuse_if_changed` sees that the registry has what the claim says still: hours can lie between.
5. `write` puts the folder in its place in one step.

Who was interrupted calls all again: a text and unit that have an event keep it, and nothing more is shown.
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
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from scanner.detection.attribution import OpenedKey
from scanner.errors import Refused
from scanner.evidence import check_claim
from scanner.evidence.case import FlagCase
from scanner.evidence.check_claim import NO_RECORD, chosen_of, corrected_p, places_in
from scanner.evidence.explainer import Explainer
from scanner.evidence.offered_claim import OTHER_WAY, look_of_record, refusal
from scanner.evidence.replay import Replay, replay
from scanner.looks.marked_accounts import marked_accounts
from scanner.registry import check_secret, load_registry
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
    find_event,
    read_shown,
    refuse_above_cap,
    shown_since,
)
from scanner.results.queries import ask, scans, spans
from scanner.results.registry_record import refuse_lost_events
from scanner.scan_plan import read_config
from scanner.signing import unchecked
from scanner.storage.locations import sync_to_disk
from scanner.watermark.format import DrawsFromSeeds
from scanner.watermark.formats import format_of
from scanner.watermark.native.claim import claimed_positions, score_claim
from scanner.watermark.native.tree import ShownSeed, leaf_of, show_seeds
from scanner.watermark.text_windows import windows
from schemas.config import ClaimsConfig
from schemas.key_record import KeyRecord, parse_label
from schemas.registry import MasterKey
from schemas.words import SPAN, Naming

SECONDS_BETWEEN_LOOKS = 5.0
"""Seconds between two looks at who still reads."""

README = """\
A claim that a text contains text marked for one message of a key. Anybody can check it, without the key:

  python3 -m pip install tokenizers
  python3 -I check_claim.py FOLDER [LIST HEAD]

check_claim.py is scanner/evidence/check_claim.py of brickscan: take it from a copy of brickscan that you trust, never
from who makes the claim. LIST is the public list of commitments, taken from where it is public, and HEAD a head of it
that somebody kept from before the text was posted. Each line of the answer says what holds, what FAILS, or what was NOT
CHECKED, and why. Then it says what no claim can show: first of all, that whoever holds the key did not mark the text
themselves. Its last line sums up.

claim.json      the claim: key, message, what it is about (the text, or a part of it), score, p-values, and the
                number and salt of its event
text.txt        the text, byte for byte
scored.txt      is there where something else was scored: a normal form, or a text without what is no UTF-8
tokens.csv      each token of the text in order, and whether it is scored; else why not: "window" (it has no whole
                window before it), "repeat" (it came before with the same window), "not chosen" (1,000 count at
                most) or "outside the part" (the claim is about a part of the text)
tokenizer.json  the tokenizer
record.json     the key's public record, byte for byte as it was published
seeds.json      the seeds that the claim shows, by bucket, each with its path to the root in the record
events.jsonl    what claims showed, this one and others
name.json       is there where the flag names a user: the record that the message was given to them, and when, with
                its path to a root in the published list, which shows no other user

The folder goes to the parties, and to nobody else: whoever holds it sees every message that is marked there, and
can mark the same windows of words for anybody. That is why brickscan marks and scores them no more.

The claim says that the text contains text marked for the message. It does not say who wrote or posted it.
"""


class Unit(NamedTuple):
    """What a claim is about: a run of the tokens of a text.

    begin, end: its first token, and the one after its last.
    variant: `normalised`, or None: the text as written.
    look: `span` of a window; None: the whole text.
    parts: W, how many such units the text has.
    """

    begin: int
    end: int
    variant: str | None
    look: str | None
    parts: int

    @property
    def words(self) -> str:
        """The unit among those of its text, as the registry keeps it."""
        return f"{self.variant or 'as written'}, tokens {self.begin} to {self.end}"


class PreparedClaim(NamedTuple):
    """A claim that holds, and is not made yet. Its repr shows nothing.

    folder: the registry's.
    key: of the flag.
    where: the flag, in words.
    unit: what it is about.
    fields: of claim.json that no event decides.
    files: of the folder that no event decides, by their names.
    ids: tokens of the unit.
    seeds: that it shows, with their paths.
    event: number of the event of an earlier claim about the same unit; None: there is none.
    newly: how many seeds no claim showed before.
    known: up to which event seeds were shown when it was computed.
    log10_p: the larger one of both rules, corrected.
    list_paths: the published list and its head, if it was named.
    settings: of scan.toml on claims.
    not_checked: why nobody checked that the tables are as brickscan wrote them; None: they are.
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
    log10_p: float
    list_paths: Sequence[str]
    settings: ClaimsConfig
    not_checked: str | None

    def __repr__(self) -> str:
        return f"PreparedClaim({self.where!r}, …)"


def prepare(config: Path, document: str, published: Path | None) -> PreparedClaim:
    """Compute a claim and check it. Nothing is written.

    Args:
        config: of the scan.
        document: its id, or PATH:ROW.
        published: the list of published commitments; None: p is corrected for the keys of the registry.

    Raises:
        Refused: there is no such flag, it has no such claim, it comes out differently today, or the claim fails.
        SecretError: the key's secret cannot be read.
        TokenizerError: its tokenizer cannot be used.
    """
    explainer = Explainer(config)
    try:
        again = replay(config, document)
    except Refused:
        if marked_accounts(explainer, None, [document]):
            raise Refused(
                f"{document!r} is an account, and claims that show seeds are about one text; `brickscan explain "
                f"--account` shows its posts, and {OTHER_WAY} of one of them"
            ) from None
        raise
    if not again.evidence_equal:
        raise Refused(f"{again.case.where}: its verdict comes out differently today, so that there is none to claim")
    case = again.case
    text, tokens, opened_key = explainer.scored_text(case)
    key = opened_key.key
    record, raw = (None, b"") if key.record is None else read_record(explainer.registry, key)
    refused = refusal(case.row, case.scan, key, record.looks if record else ())
    if refused is not None or record is None:
        raise Refused(f"{case.where}: {refused}")
    refuse_lost_events(explainer.results, explainer.registry, [key])  # else the next event takes a number of those lost
    refuse_unread(explainer.registry, _last_read(explainer, key))
    unit = _unit(explainer, case, text, tokens.ids.tolist(), opened_key)
    share = record.looks[look_of_record(unit.look, unit.variant)]
    lines = read_published(published) if published else []
    refuse_lost_heads(explainer.registry, key, lines)
    ids = tokens.ids.tolist()[unit.begin : unit.end]
    fields = {
        "label": record.label,
        "commitment": key.commitment,
        "tokenizer_sha256": key.tokenizer.sha256,
        "text_sha256": case.row["text_sha256"].hex(),
        "message": case.row["message"],
        "messages": key.messages,
        "correction": max(case.row["correction"], _keys(explainer.registry, key, record, lines) / share),
        "variant": unit.variant,
        "look": unit.look,
        "parts": unit.parts,
        "begin": unit.begin,
        "end": unit.end,
        "beacon_value": key.beacon_value,
    }
    stored = explainer.stored_text(case)
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
    name = _name(explainer.registry, again, key, lines)
    if name is not None:
        files["name.json"] = name
    files["README"] = README.encode()
    refuse_lost_reads(explainer.registry, key)
    shown = read_shown(explainer.registry, key)
    found, settings = find_event(explainer.registry, key, stored, unit.words), read_config(config).claims
    leaves = {leaf_of(one.seed) for one in seeds} - shown.leaves
    if found is None and leaves:
        refuse_above_cap(explainer.registry, key, settings.most_a_month)
    paths = [str(published), lines[-1].head] if published and lines else []
    claim = PreparedClaim(
        explainer.registry,
        key,
        case.where,
        unit,
        fields,
        files,
        ids,
        seeds,
        found[0].number if found else None,
        0 if found else len(leaves),
        shown.last,
        math.nan,
        paths,
        settings,
        unchecked(explainer.results),  # after all rows were read
    )
    event, salt = found or _would_be(shown, stored, leaves)
    whole = _all_files(claim, shown, event, salt)
    failing = check_claim.failing(whole, None, paths)
    if failing:
        raise Refused(
            f"{case.where}: the script that checks a claim would not hold it ({failing[0]}), so nothing is shown; "
            f"{OTHER_WAY}"
        )
    scores = json.loads(whole["claim.json"])
    return claim._replace(log10_p=max(scores["log10_p_global"], scores["log10_p_user_global"]))


def _last_read(explainer: Explainer, key: MasterKey) -> datetime:
    """Return when the newest scan under a key began that has ended; the flag's own has."""

    def newest() -> pl.DataFrame:
        rows = scans(explainer.results).select("started_at", pl.col("keys").list.eval(pl.element().struct["key_id"]))
        return rows.filter(pl.col("keys").list.contains(key.key_id)).select(pl.col("started_at").max()).collect()

    began: datetime = ask(explainer.results, newest).item()
    return began


def _unit(explainer: Explainer, case: FlagCase, text: str, ids: Sequence[int], opened_key: OpenedKey) -> Unit:
    """Return the unit of a flag: the whole text, or the smallest window that holds the part that was flagged.

    The windows of a claim lie among all positions of a text, and the h tokens before a window's first position belong
    to it. Scans leave out what was shown, and look at paragraphs and quotations too: so theirs may lie otherwise.
    """
    row = case.row
    if row["look"] is None:
        return Unit(0, len(ids), row["variant"], None, 1)
    part = ["path", "row", "scan_id", "shard_id", "key_id", "message", "score", "log10_p"]
    same = pl.all_horizontal(*(pl.col(name) == row[name] for name in part))
    found = ask(explainer.results, lambda: spans(explainer.results).filter(same).head(1).collect()).to_dicts()
    if not found:
        raise Refused(f"{case.where}: the part that was flagged is not on record any more")
    begins = opened_key.tokenizer.reference.encode_with_offsets(text)[1][:, 0]
    first = int(np.searchsorted(begins, found[0]["char_from"]))
    last = first + found[0]["tokens"] - 1
    tokens = opened_key.tokenizer.reference.encode([text])
    rule = format_of(opened_key.key).rule()
    index = rule.positions(tokens, "ngram").index
    grid = windows(len(index))
    holds = (index[grid[:, 0]] <= first) & (index[grid[:, 1] - 1] >= last)
    begin, end = min(grid[holds].tolist(), key=lambda window: window[1] - window[0], default=(0, len(index)))
    return Unit(int(index[begin]) - rule.context, int(index[end - 1]) + 1, None, SPAN, len(grid))


def _keys(folder: str, key: MasterKey, record: KeyRecord, lines: Sequence[PublishedLine]) -> int:
    """Count the keys for which p of a claim is corrected: all that whoever checks it may know of."""
    known = {
        (other.commitment, other.tokenizer.sha256, other.record or NO_RECORD)
        for other in load_registry(folder).keys
        if other.commitment is not None
    } | {(line.commitment, line.tokenizer, line.record) for line in lines}
    return len(known) + len({*record.earlier} - {digest for _, _, digest in known})


def _mark(label: str, key: MasterKey) -> check_claim.Mark:
    return check_claim.Mark(label, {}, bytes.fromhex(beacon_of_key(key)))


def _tokens(label: str, key: MasterKey, ids: list[int], unit: Unit) -> bytes:
    """Return tokens.csv: each token of the text, and why it is scored or not."""
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
    """Return the seeds that positions of a unit meet, with their paths."""
    form = format_of(key)
    assert isinstance(form, DrawsFromSeeds)  # noqa: S101 - else it was refused
    seed_key = form.seed_key(check_secret(folder, key))
    buckets = claimed_positions(ids, record.label).buckets.tolist()
    return show_seeds(seed_key, form.seeds, read_tree(folder, key), buckets)


def _shown_json(seeds: Sequence[ShownSeed]) -> bytes:
    shown = {str(one.bucket): {"seed": one.seed.hex(), "path": [node.hex() for node in one.path]} for one in seeds}
    return json.dumps(shown, separators=(",", ":")).encode()


def _name(folder: str, again: Replay, key: MasterKey, lines: Sequence[PublishedLine]) -> bytes | None:
    """Return the record of the name of a flag, None: it names nobody, by its row or today, or the name was erased."""
    row, today = again.case.row, {field.field: field.again for field in again.fields}
    if row["naming"] != Naming.NAMED or row["user_id"] is None or not _is_named(folder, row, today["naming"]):
        return None
    of_key = (line.dealt for line in lines if (line.key_id, line.commitment) == (key.key_id, key.commitment))
    ours = [Dealt.of(words) for words in of_key if ":" in words]
    if ours:  # held against all of them: an older registry could have been put back between two
        dealt_now(folder, {key.key_id: ours})
    found = find_record(folder, key.key_id, row["message"], ours)
    if found is None:
        return None
    if found.user_id != row["user_id"]:
        raise Refused(
            f"{again.case.where}: the registry gave the message to another user than the flag names; see `brickscan "
            "users verify`"
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
    """Return whether a row that names a user does so rightly, by its naming today; its table may be unsigned.

    A user who was removed since held the message when the text was there, and not one who was removed before.
    """
    if naming != Naming.REMOVED:
        return naming == Naming.NAMED
    (removed,) = given_rows(folder, pl.DataFrame({name: [row[name]] for name in ("key_id", "message")}))["removed_at"]
    return row["first_seen_at"] is not None and row["first_seen_at"] < removed


def _would_be(shown: ShownSeeds, text: bytes, leaves: set[bytes]) -> tuple[ShownEvent, bytes]:
    """Return the event that a claim will have, as far as is known now; nobody keeps it."""
    salt = secrets.token_bytes(16)
    digest = hashlib.sha256(salt + text).hexdigest()
    return ShownEvent(shown.number + 1, shown.head, digest, tuple(sorted(leaf.hex() for leaf in leaves))), salt


def _all_files(claim: PreparedClaim, shown: ShownSeeds, event: ShownEvent, salt: bytes) -> dict[str, bytes]:
    """Return the files of a claim's folder with its event, whose score counts what earlier events showed."""
    before = shown.up_to(event.number - 1)
    fields, label = dict(claim.fields), parse_label(claim.fields["label"])
    score = score_claim(
        claim.ids,
        fields["message"],
        fields["label"],
        bytes.fromhex(beacon_of_key(claim.key)),
        {one.bucket: one.seed for one in claim.seeds},
        before.leaves,
    )
    corrected = functools.partial(corrected_p, claim=fields)
    numbers = {
        **score._asdict(),
        "log10_p_global": corrected(score.log10_p, fields["messages"]),
        "log10_p_user_global": corrected(score.log10_p_user, label.groups or fields["messages"]),
        "event": event.number,
        "salt": salt.hex(),
    }
    del numbers["shows"]
    lines = [event_bytes(one) for one in (*before.events, event, *shown.events[event.number :])]
    files = {"claim.json": json.dumps({**fields, **numbers}, indent=1).encode() + b"\n", **claim.files}
    return {**files, "events.jsonl": b"".join(line + b"\n" for line in lines)}


def show(claim: PreparedClaim) -> dict[str, bytes]:
    """Write the event of a claim, unless its text and unit have one, and return the files of its folder.

    Raises:
        Refused: the event cannot be written; the month has as many as it may have; an older registry was put back since
            the claim was computed; or other claims showed so much meanwhile that this one fails.
    """
    refuse_lost_reads(claim.folder, claim.key)  # once more: somebody was asked meanwhile
    shown_since(claim.folder, claim.key, claim.known)
    buckets, leaves = [one.bucket for one in claim.seeds], [leaf_of(one.seed) for one in claim.seeds]
    text = claim.files["text.txt"]
    event, salt = append_event(
        claim.folder,
        claim.key.key_id,
        text,
        claim.unit.words,
        buckets,
        leaves,
        most_a_month=claim.settings.most_a_month,
    )
    files = _all_files(claim, read_shown(claim.folder, claim.key), event, salt)
    failing = check_claim.failing(files, None, claim.list_paths)
    if failing:
        raise Refused(
            f"{claim.where}: other claims about the same words were made meanwhile, and with them this one fails "
            f"({failing[0]}); its seeds count as shown (event {event.number}); {OTHER_WAY}"
        )
    return files


def wait_for_readers(
    claim: PreparedClaim, files: Mapping[str, bytes], *, wait: bool, tell: Callable[[str], object]
) -> None:
    """See that every scan, detector and server that began before a claim's event has ended, or read it.

    Args:
        claim: the claim.
        files: of its folder, as `show` returned them.
        wait: whether to wait for that.
        tell: called with a sentence on each reader that is waited for.

    Raises:
        Refused: there is one, and nobody waits; or leases cannot be read.
    """
    number, told = json.loads(files["claim.json"])["event"], set[str]()
    while leases := readers_before(claim.folder, claim.key.key_id, number):
        if not wait:
            more = f", and {len(leases) - 1} more" if leases[1:] else ""
            raise Refused(
                f"{claim.where}: its seeds count as shown (event {number}), and the claim is not written yet: "
                f"{leases[0]}{more}, and goes on as if they were secret. Call this again once it has ended, or with "
                "--wait"
            )
        for lease in leases:
            if lease.name not in told:
                tell(f"not yet: {lease}, and is waited for")
                told.add(lease.name)
        time.sleep(SECONDS_BETWEEN_LOOKS)


def refuse_if_changed(claim: PreparedClaim, files: Mapping[str, bytes]) -> None:
    """Refuse a claim that the registry does not bear out any more, just before it is written.

    Args:
        claim: the claim.
        files: of its folder, as `show` returned them.

    Raises:
        Refused: an older registry was put back, which lacks the event, so that what the claim shows would be scored as
            if it were secret; or the name that the claim carries was erased.
    """
    fields = json.loads(files["claim.json"])
    number = fields["event"]
    head = hashlib.sha256(files["events.jsonl"].split(b"\n")[number - 1]).hexdigest()
    shown_since(claim.folder, claim.key, ShownUpTo(number, head))
    if "name.json" not in files:
        return
    name = json.loads(files["name.json"])
    found = find_record(claim.folder, claim.key.key_id, fields["message"], ())
    if found is None or (found.user_id, found.salt.hex()) != (name["user_id"], name["salt"]):
        raise Refused(
            f"{claim.where}: the name that the claim would carry was erased meanwhile, so it is not written; call this "
            "again, and it names nobody"
        )


def write(files: Mapping[str, bytes], out: Path) -> None:
    """Write the folder of a claim, in one step, for its owner alone.

    Raises:
        Refused: it is there already, or cannot be written.
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
        raise Refused(f"--out {out}: cannot be written ({error.strerror}); name a folder that is new") from None
    finally:
        if unfinished is not None:
            shutil.rmtree(unfinished, ignore_errors=True)


def refuse_folder(out: Path) -> None:
    """Raise Refused where a folder of a claim cannot be written."""
    if os.path.lexists(out):
        raise Refused(f"--out {out}: is there already; name a folder that is new")
    if not out.absolute().parent.is_dir():
        raise Refused(f"--out {out}: there is no folder {out.parent}; make it first")
    if not os.access(out.absolute().parent, os.W_OK | os.X_OK):
        raise Refused(f"--out {out}: nothing can be written into {out.absolute().parent}; name another folder")
