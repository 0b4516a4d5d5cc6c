"""Run `brickscan keys …`: the master keys of a registry from the command line."""

import math
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from pydantic import ValidationError
from tqdm import tqdm

from jobs.calibrate import admit, audit_secret, publish_, verify
from jobs.options import (
    DATE_OR_MINUTE,
    Folder,
    NamedPath,
    Real,
    Whole,
    confirm,
    dry_run_option,
    groups_of,
    held_by_option,
    refuse_wrong_clock,
    results_at,
    time_of,
    yes_option,
)
from jobs.text import complain, tell, wrap_line
from scanner.errors import Refused
from scanner.printable import counted, printable
from scanner.registry import TRIAL_BEGAN, find_key, load_registry, new_key, open_key, retire_key, suggested_parameters
from scanner.registry.key_records import ONE_LOOK, RecordTerms, read_record, record_path, set_beacon
from scanner.registry.keys import is_on_record
from scanner.registry.keys_file import beacon_of_key, local_folder
from scanner.registry.secrets import secret_path
from scanner.registry.shown_seeds import read_shown
from scanner.registry.tokenizer_files import narrow, pin_tokenizer
from scanner.storage.locations import parse_json, read_named
from scanner.storage.toml import explain_error
from schemas.key_record import FEWEST_SEEDS, MOST_SEEDS, NamedBeacon, NormalFormDigest, parse_label
from schemas.registry import MAX_MESSAGES, MOST_NUMBERS, MasterKey

if TYPE_CHECKING:
    from scanner.watermark.stacks.stack import StackKey

ASSUMED = (
    "assumed: its p-values are not backed by a law over keys, and anyone can make this mark. No user is ever named by "
    "it"
)
"""Sentence on a key whose law is assumed."""


def format_in_words(key: MasterKey) -> str:
    """Write the key's format, parameters and messages in words.

    R is left out, because it follows from the key's record.
    """
    parameters = "".join(f", {name} {value}" for name, value in key.parameters.items() if name != "beacon")
    return f"{key.format}{parameters}, {counted(key.messages, 'message')}"


def weight_in_words(key: MasterKey) -> list[str]:
    """Write the weight of a later key: its share of the false-positive rate, and the share of older keys."""
    if key.one_of is None:
        return []
    note = "the registry's first keys keep one half, and no recorded verdict becomes weaker"
    return [f"weight      1/{key.one_of:,} of a false-positive rate, permanently: {note}"]


def strength_in_words(key: MasterKey) -> list[str]:
    """Write over what its p-values hold. Empty: over a key that no search finds."""
    from scanner.watermark.formats import format_of

    basis = format_of(key).basis()
    if basis.proven:
        return []
    words = ASSUMED if basis.assumed else f"{basis}: p-values end at {2.0**-basis.bits:.0e}"
    return wrap_line(f"  strength {words}", 100, "    ")


def cautions(key: MasterKey) -> list[str]:
    """Write sentences for readers of the verdicts of a key."""
    from scanner.watermark.formats import format_of

    return format_of(key).cautions(key.messages)


USERS = 100_000
"""Number of users that a new key has room for by default. In version 1: number of messages of a default key."""


@click.command("new", short_help="Make a master key.")
@click.argument("key_id")
@click.option("--registry", required=True, type=Folder(), help="Folder of the registry")
@click.option("--method", default="greenlist", show_default=True, help="greenlist or gumbel")
@click.option(
    "--version",
    type=click.Choice(["1", "3"]),
    default="3",
    show_default=True,
    help="Version of the watermark: 1 is the paper's, 3 is ours",
)
@click.option("--users", type=Real(), help="Largest number of users, up to 4e9, fixed for good  [default: 100,000]")
@click.option(
    "--window", type=Whole(0, 16), help="Number of previous tokens that decide a token's mark: 0 to 16  [default: 4]"
)
@click.option("--gamma", help="Share of green tokens, as a fraction n/2^b (green list)  [default: 1/4]")
@click.option(
    "--messages",
    type=Whole(1, MAX_MESSAGES),
    help="Number of messages without groups, at most 65,536, instead of --users  [default for version 1: 100,000]",
)
@click.option("--tokenizer", required=True, metavar="PATH", help="tokenizer.json of the model that will be marked")
@click.option(
    "--secret",
    metavar="REFERENCE",
    help=(
        "file:PATH (created if it does not exist; relative to the registry) or env:NAME, with 16 to 64 bytes as "
        "hexadecimal text  [default: file:secrets/KEY_ID.key]"
    ),
)
@click.option(
    "--active-from", type=DATE_OR_MINUTE, help="Time (UTC) from which text may be marked with it  [default: now]"
)
@click.option(
    "--active-until", type=DATE_OR_MINUTE, help="Time (UTC) from which nothing is marked with it; it is still scanned"
)
@held_by_option
@click.option(
    "--seeds",
    type=Whole(FEWEST_SEEDS, MOST_SEEDS),
    help="Version 3: 2^SEEDS seeds to draw from; each claim shows some of them  [default: 24]",
)
@click.option(
    "--beacon-source", metavar="TEXT", help="Version 3: public source of randomness whose future value is mixed in"
)
@click.option("--beacon-round", metavar="TEXT", help="Version 3: round or time of that value")
@click.option(
    "--looks",
    type=NamedPath(path_type=Path),
    help="Version 3: scan.toml whose looks and shares go into the record  [default: as `brickscan init` writes]",
)
def new(
    key_id: str,
    registry: Path | str,
    method: str,
    version: str,
    users: float | None,
    window: int | None,
    gamma: str | None,
    messages: int | None,
    tokenizer: str,
    secret: str | None,
    active_from: datetime | None,
    active_until: datetime | None,
    held_by: str | None,
    seeds: int | None,
    beacon_source: str | None,
    beacon_round: str | None,
    looks: Path | None,
) -> None:
    """Make a master key, and its registry if there is none, and print the commitment to publish.

    KEY_ID has lower-case letters, digits, dots, dashes and underscores. Each user gets a message of their own; 5 % of
    the messages are reserved and test the key. A key of version 3 gets a public record, which you should publish at
    once. Making it takes seconds.

    \b
    Example:
      brickscan keys new summer-2026 --registry registry --tokenizer tokenizer.json
      brickscan keys new summer-2026 --registry registry --method gumbel --users 1e9 --tokenizer tokenizer.json
    """
    form = method if version == "1" else f"{method}-v{version}"
    refuse_wrong_clock(registry)
    exists = secret is None and os.path.lexists(Path(registry, "secrets", f"{key_id}.key"))
    if exists and not is_on_record(Path(registry), key_id):
        # of a key that was lost: seeds that its claims showed would be scored as if they were secret
        raise Refused(
            f"secret file:secrets/{key_id}.key: exists already, perhaps of a key that the registry lost; choose "
            "another id, or move the file away. If nothing was ever marked or claimed with it, name it with --secret"
        )
    groups, messages = _messages(version, users, messages, window)
    if version == "1" and (seeds, beacon_source, beacon_round, looks) != (None, None, None, None):
        raise Refused("--seeds, --beacon-source, --beacon-round and --looks are of --version 3; leave them out")
    terms = _record_terms(beacon_source, beacon_round, looks) if version == "3" else ONE_LOOK
    given: dict[str, Any] = {"window": window, "gamma": gamma, "groups": groups, "seeds": seeds}
    given = {name: value for name, value in given.items() if value is not None}
    with tqdm(unit=" nodes", disable=None if version == "3" else True, dynamic_ncols=True, leave=False) as bar:

        def show(done: int, of: int) -> None:
            bar.total = of
            bar.update(done - bar.n)

        key = new_key(
            registry,
            key_id,
            format=form,
            **(suggested_parameters(form) | given),
            messages=messages,
            tokenizer=tokenizer,
            secret=secret,
            active_from=active_from and active_from.replace(tzinfo=UTC),
            active_until=active_until and active_until.replace(tzinfo=UTC),
            held_by=held_by,
            terms=terms,
            watch=show,
        )
    tell(f"key         {key.key_id}: {format_in_words(key)}")
    tell(f"tokenizer   {key.tokenizer.file}, SHA-256 {key.tokenizer.sha256}")
    tell(f"secret      {key.secret}")
    tell(f"decoys      {load_registry(registry).audit_secret or 'none: see `brickscan keys audit-secret`'}")
    tell(f"commitment  {key.commitment or 'none: keys of this format are too short to be committed to'}")
    tell(*record_in_words(registry, key))
    tell(f"made        {time_of(key.created_at)}")
    tell(*([] if key.held_by is None else [f"held by     {printable(key.held_by)}, who can mark for anybody"]))
    tell(*weight_in_words(key))
    complain(*(f"key {key.key_id!r}: {caution}" for caution in cautions(key)))
    if active_from == TRIAL_BEGAN:  # a trial proves nothing to others, so none of it is published
        return
    tell(
        "",
        "Publish the commitment today (`brickscan keys publish`). It reveals nothing about the secret, and it shows",
        "later that this key was not chosen after the text. Back the secret up: without it, text that was marked",
        "with this key can never be recognised again.",
        *_scan_anew(registry),
    )
    if key.record is not None:
        tell(
            "",
            f"Publish {record_path(registry, key.key_id)} today, byte for byte, and its SHA-256 with it.",
            "Put such records where their owner cannot rewrite them: with an auditor or a notary, in a public log, or "
            "with a",
            "time-stamping authority (RFC 3161). Name every earlier record there, including those of keys you gave up.",
        )


def _record_terms(source: str | None, round_: str | None, looks: Path | None) -> RecordTerms:
    from scanner.error_shares import ErrorShares
    from scanner.looks.normalising import normal_form_sha256
    from scanner.scan_plan import read_config

    if (source is None) != (round_ is None):
        raise Refused(
            "--beacon-source and --beacon-round go together: give both, or neither for a key without a beacon"
        )
    shares = ErrorShares.by_default() if looks is None else ErrorShares.of(read_config(looks))
    digest = normal_form_sha256() if shares.normalised is not None else None
    try:
        return RecordTerms(
            looks=shares.published(),
            normal_form=None if digest is None else NormalFormDigest(name="brickscan normal form/1", sha256=digest),
            beacon=None if source is None or round_ is None else NamedBeacon(source=source, round=round_),
        )
    except ValidationError as error:
        raise Refused(f"--beacon-source, --beacon-round: {explain_error(error, NamedBeacon)}") from None


def record_in_words(registry: Path | str, key: MasterKey) -> list[str]:
    """Write the place of a key's public record, and the beacon that it names. Empty: the key has no record."""
    if key.record is None:
        return []
    record, _ = read_record(registry, key)
    lines = [f"record      {record_path(registry, key.key_id)}, SHA-256 {key.record}"]
    if record.beacon is None:
        return [*lines, "beacon      none, so others should trust only p-values below 1e-24"]
    named = f"round {printable(record.beacon.round)} of {printable(record.beacon.source)}"
    if key.beacon_value is not None:
        return [*lines, f"beacon      {named}: {key.beacon_value}"]
    return [
        *lines,
        f"beacon      {named}: nothing is marked or scanned until `brickscan keys beacon {key.key_id}` sets it",
    ]


@click.command("beacon", short_help="Set the value of a beacon.")
@click.argument("key_id")
@click.option("--registry", required=True, type=Folder(), help="Folder of the registry")
@click.option("--value", required=True, metavar="HEX", help="Value of the round that the record names")
def beacon(key_id: str, registry: Path | str, value: str) -> None:
    """Set the value of the beacon that a key's public record names, before anything is marked.

    The value was unknown when the record was published, so the key's draws could not be chosen. It is set once and for
    good, and anybody can compare it with the named round.

    \b
    Example:
      brickscan keys beacon summer-2027 --registry registry \\
          --value 52df9d6cf7b1e0c0bd6d1a8e21a0e0f4d4f7f8c9b0a1d2c3e4f5a6b7c8d9e0f1
    """
    before = find_key(load_registry(local_folder(registry)), key_id)
    if not re.fullmatch(r"([0-9a-fA-F]{2})+", value):
        raise Refused("--value: an even number of digits 0 to 9 and a to f is needed: the bytes of the round's value")
    key = set_beacon(registry, key_id, bytes.fromhex(value))
    said = "was set before; nothing changed" if before.beacon_value == key.beacon_value else "is set, for good"
    tell(f"{key_id}: the beacon's value {said}. R is {beacon_of_key(key)}.")


def _scan_anew(registry: Path | str) -> Sequence[str]:
    """Write the effect of a new key on nights that were already scanned. Empty for the first key of a registry."""
    if len(load_registry(registry).keys) == 1:
        return ()
    return (
        "Nights that were already scanned are only tested with it if you scan them again: `brickscan status",
        "scan.toml` lists those whose texts may carry its mark.",
    )


def _messages(version: str, users: float | None, messages: int | None, window: int | None) -> tuple[int | None, int]:
    if users is not None and (messages is not None or version == "1"):
        raise Refused("--users makes a key of version 3 with groups; leave out --messages and --version 1")
    if version == "1":
        return None, USERS if messages is None else messages
    if messages is not None and messages > MOST_NUMBERS:
        raise Refused(
            f"--messages {messages} is not allowed: a key without groups has at most {MOST_NUMBERS}. Give --users "
            f"{messages} instead, which costs less; or --version 1, under which users can accuse each other"
        )
    if messages is not None or (users is None and window == 0):
        return None, MOST_NUMBERS if messages is None else messages
    groups = groups_of(USERS if users is None else users)
    return groups, groups**2


@click.command("add", short_help="Add another stack's key.")
@click.argument("key_id")
@click.option("--registry", required=True, type=Folder(), help="Folder of the registry")
@click.option("--format", "name", help="Name such as vllm-gumbel (see `brickscan formats`); not needed with --from")
@click.option(
    "--from", "config", type=NamedPath(path_type=Path), help="The stack's JSON configuration, to copy the key from"
)
@click.option(
    "--set", "words", multiple=True, metavar="NAME=VALUE", help="Parameter in the stack's own words (repeatable)"
)
@click.option(
    "--messages",
    type=Whole(1, MAX_MESSAGES),
    default=1,
    show_default=True,
    help="Number of users, one message each, for formats that name users",
)
@click.option("--tokenizer", required=True, metavar="PATH", help="tokenizer.json of the model that is marked")
@click.option("--secret", metavar="REFERENCE", help="Location of the key, or of a copy, as for `keys new`")
@click.option(
    "--active-from", type=DATE_OR_MINUTE, help="Time (UTC) from which the stack marks with it  [default: now]"
)
@held_by_option
def add(
    key_id: str,
    registry: Path | str,
    name: str | None,
    config: Path | None,
    words: tuple[str, ...],
    messages: int,
    tokenizer: str,
    secret: str | None,
    active_from: datetime | None,
    held_by: str | None,
) -> None:
    """Add a key that another stack marks with: vLLM, SGLang, transformers, SynthID or the paper's code.

    With --from, the key is copied out of the stack's own configuration, and the registry keeps a copy that only you can
    read. Otherwise put the key as hexadecimal text into the file that --secret names: 16 digits a number, so 32 digits
    for two keys of SGLang, and 480 for the 30 keys of SynthID.

    \b
    Example:
      brickscan keys add chat --registry registry --from watermark-config.json --tokenizer tokenizer.json
      brickscan keys add chat --registry registry --format vllm-gumbel --set context_width=4 \\
          --secret file:/etc/keys/chat.key --tokenizer tokenizer.json
    """
    from scanner.watermark.formats import format_of

    refuse_wrong_clock(registry)
    stack = _read_stack_config(config) if config else None
    if stack is not None and name not in (None, stack.format):
        raise Refused(f"--format {name}: {config} is a key of {stack.format}; leave one of the two out")
    format_name = stack.format if stack else name
    if format_name is None:
        raise Refused(
            "name the format with --format (see `brickscan formats`), or the stack's configuration with --from"
        )
    path = secret_path(secret, registry) if secret and not stack else None
    if path is not None and not os.path.lexists(path):
        raise Refused(
            f"--secret {secret}: {path} does not exist; give the file with the key that marks, or its configuration "
            "with --from"
        )
    parameters: dict[str, Any] = {
        **suggested_parameters(format_name),
        **(stack.parameters if stack else {}),
        **_parameters(words),
    }
    key = new_key(
        registry,
        key_id,
        format=format_name,
        **parameters,
        messages=messages,
        tokenizer=tokenizer,
        secret=secret,
        secret_value=stack.secret if stack else None,
        active_from=active_from and active_from.replace(tzinfo=UTC),
        held_by=held_by,
    )
    tell(f"key         {key.key_id}: {format_in_words(key)}")
    tell(f"tokenizer   {key.tokenizer.file}, SHA-256 {key.tokenizer.sha256}")
    tell(f"secret      {key.secret}")
    tell(*weight_in_words(key))
    tell(*_floor(registry, key))
    tell(*_price(registry, key))
    tell(*(f"careful     {caution}" for caution in cautions(key)))
    tell(*_scan_anew(registry))
    caution = narrow(format_of(key), pin_tokenizer(local_folder(registry), tokenizer))
    complain(*([] if caution is None else [f"key {key.key_id!r}: {caution}"]))


def _read_stack_config(path: Path) -> "StackKey":
    from scanner.watermark.stacks.configs import read_config

    try:
        return read_config(read_named(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"--from {path}: cannot be read ({getattr(error, 'strerror', None) or 'no UTF-8'})") from None
    except ValueError as error:
        raise Refused(f"--from {path}: {error}") from None


def _parameters(words: tuple[str, ...]) -> dict[str, Any]:
    """Parse parameters of the form NAME=VALUE. A value that looks like a number is one."""
    given: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise Refused("--set: NAME=VALUE is needed, such as context_width=4")
        try:
            given[name] = parse_json(value)
        except ValueError:
            given[name] = value
    return given


def _floor(registry: Path | str, key: MasterKey) -> list[str]:
    """Write the effect of a key's few bits on its flags. Empty: it has many."""
    from scanner.audit.calibration.admission import USUAL_RATE
    from scanner.scan_plan import keys_tested
    from scanner.watermark.formats import format_of
    from scanner.watermark.rule import corrected

    basis = format_of(key).basis()
    if basis.proven:
        return []
    least = float(
        corrected(
            np.array(-basis.bits * math.log10(2.0)),
            key.messages,
            key.tested_among(keys_tested(load_registry(registry))),
        )
    )
    lines = [f"strength    {basis}: {2.0**basis.bits:.0e} trials find a key that makes the same marks"]
    if basis.assumed:
        lines = [
            f"strength    {ASSUMED}. A scan uses it down to the rate that an audit of your own texts showed "
            "(`brickscan calibrate`, then `brickscan keys admit`). Until then a scan uses only the other keys, says "
            "that it left this one out, and its night is amber. To leave it out without that, list only the other "
            "keys in scan.toml: `keys = [...]`. A scan whose `keys` includes it is refused."
        ]
    if least > math.log10(USUAL_RATE):
        lines.append(
            f"No text can ever be flagged at {USUAL_RATE:g} under it: with {key.messages:,} messages the smallest "
            f"p-value is {10**least:.1e}. Fewer messages, or a looser rate, are needed."
        )
    return lines


def _price(registry: Path | str, key: MasterKey) -> list[str]:
    """Write the cost of a key in every scan. Empty: it is small."""
    from scanner.watermark.formats import format_of, price

    cost = price(format_of(key), open_key(registry, key), key.messages)
    return [] if cost is None else [f"cost        {cost.words()} (timed here)"]


@click.group()
def keys() -> None:
    """Make, list, publish and retire master keys.

    \b
    Example:
      brickscan keys new summer-2026 --registry registry --tokenizer tokenizer.json
      brickscan keys list --registry registry
      brickscan keys publish commitments.txt --registry registry
      brickscan keys retire summer-2026 --registry registry
    """


@keys.command("list", short_help="List keys, parameters and commitments.")
@click.option("--registry", required=True, type=Folder(), help="Folder or URI of the registry")
def _list_keys(registry: Path | str) -> None:
    """Show the keys of a registry, their parameters, when they mark, and their commitments.

    \b
    Example:
      brickscan keys list --registry registry
    """
    for key in load_registry(registry).keys:
        tell(*_lines(registry, key))


def _lines(registry: Path | str, key: MasterKey) -> list[str]:
    admitted = "not yet"
    if key.admission and key.admitted_by:
        admitted = f"to p = {key.admission.holds_down_to:g}{', with a filter' if key.admission.filter else ''}"
    return [
        key.key_id,
        *wrap_line(f"  {format_in_words(key)}, tokenizer {key.tokenizer.sha256[:12]}", 100, "    "),
        f"  made {time_of(key.created_at)}, {_marks(key)}",
        f"  calibrated: {admitted}",
        f"  commitment {key.commitment or 'none'}",
        *_record_lines(key),
        *(f"  {line}; `brickscan keys status` says for what share of texts" for line in _shown_lines(registry, key)),
        *([] if key.held_by is None else wrap_line(f"  held by {printable(key.held_by)}", 100, "    ")),
        *strength_in_words(key),
        *([] if key.one_of is None else [f"  weight 1/{key.one_of:,} of a false-positive rate"]),
        *(line for caution in cautions(key) for line in wrap_line(f"  careful: {caution}", 100, "    ")),
    ]


def _record_lines(key: MasterKey) -> list[str]:
    if key.record is None:
        return []
    waiting = (
        ["  waits for the beacon that its record names: see `brickscan keys beacon`"] if key.waits_for_beacon else []
    )
    return [f"  record {key.record}", *waiting]


def _shown_lines(registry: Path | str, key: MasterKey) -> list[str]:
    """Write how much of a key claims have shown. Empty: nothing."""
    from scanner.watermark.formats import format_of

    if key.record is None or not (shown := read_shown(registry, key)).number:
        return []
    seeds = 2 ** parse_label(format_of(key).label()).seeds
    claims = counted(shown.number, "event")
    return [f"shown by claims: {claims}, {len(shown.buckets):,} of {counted(seeds, 'seed')}"]


@keys.command("status", short_help="Show how much of each key is public.")
@click.argument("config", type=NamedPath(path_type=Path, dir_okay=False, exists=True))
def _status(config: Path) -> None:
    """Show how much of each key its claims have made public.

    The share is the part of positions that the newest scans left out for it. From 5 % on, make a new key.

    \b
    Example:
      brickscan keys status scan.toml
    """
    from scanner.results.registry_record import refuse_lost_events
    from scanner.results.shown_shares import shown_in_words, shown_shares
    from scanner.signing import unchecked_notes

    results = results_at(str(config))
    assert results.registry is not None  # noqa: S101 - a file names one
    shares, keys = shown_shares(results.folder), load_registry(results.registry).keys
    complain(*unchecked_notes(results.folder))
    refuse_lost_events(results.folder, results.registry, keys)
    for key in keys:
        if key.record is None:
            tell(f"{key.key_id}: keys of this format have no seeds that claims could show")
            continue
        lines = _shown_lines(results.registry, key)
        tell(f"{key.key_id}: {lines[0] if lines else 'nothing was shown'}")
        if share := shares.get(key.key_id):
            by = f"{share.shown:,} of {share.positions:,}, by scans that read event {share.event:,}"
            tell(*wrap_line(f"  {shown_in_words(key.key_id, share.shown, share.positions)} ({by})", 100, "    "))
        elif lines:
            tell("  no scan has read that event yet")


def _marks(key: MasterKey) -> str:
    if key.retired_at is not None:
        return f"retired {time_of(key.retired_at)}"
    times = [
        f"{word} {time_of(time)}" for word, time in (("from", key.active_from), ("until", key.active_until)) if time
    ]
    return "marks " + (" ".join(times) or "until it is retired")


@keys.command("retire", short_help="Retire a key for good.")
@click.argument("key_id")
@click.option("--registry", required=True, type=Folder(), help="Folder of the registry")
@yes_option
@dry_run_option
def _retire(key_id: str, registry: Path | str, yes: bool, dry_run: bool) -> None:
    """Retire a key for good: nothing is marked with it any more, but its text is still found.

    You are asked first.

    \b
    Example:
      brickscan keys retire summer-2026 --registry registry --dry-run
      brickscan keys retire summer-2026 --registry registry --yes
    """
    refuse_wrong_clock(registry)
    key = find_key(load_registry(local_folder(registry)), key_id)
    if key.retired_at is not None:
        tell(f"{key_id} was retired {time_of(key.retired_at)}; nothing changed")
    elif confirm(
        [f"retires {key_id} permanently: nothing is marked with it, and users get no messages of it"], yes, dry_run
    ):
        retire_key(registry, key_id)
        tell(
            f"{key_id} is retired: scans still test it, but nothing is marked with it and users get no messages of it."
        )


for _command in (new, add, beacon, admit, audit_secret, publish_, verify):
    keys.add_command(_command)
