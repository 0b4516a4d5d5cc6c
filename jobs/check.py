"""`brickscan check`: one text under the keys of a registry, a verdict a key."""

import datetime
import importlib
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.flagged import marked_for
from jobs.options import Day, NamedPath, Real, key_ids_option
from jobs.text import columns, tell
from scanner.errors import Refused
from scanner.printable import one_in
from scanner.storage.locations import MOST_LIST, is_uri, read_named
from schemas.registry import MasterKey
from schemas.words import Proof

if TYPE_CHECKING:
    from scanner.filtering import FilterOfNight


@click.command()
@click.argument("config", required=False, type=NamedPath(path_type=Path))
@click.option("--registry", metavar="FOLDER", help="Registry, in place of CONFIG (folder or URI)")
@key_ids_option
@click.option(
    "--text", "source", default="-", show_default=True, metavar="FILE", help="File with the text; -: standard input"
)
@click.option(
    "--fpr",
    type=Real(0, 1, min_open=True, max_open=True),
    help="With --registry: p-value at which text counts as marked  [default: 1e-6]",
)
@click.option(
    "--date",
    type=Day(),
    help="Date whose filter of n-grams applies, if CONFIG has one  [default: today, UTC]",
)
@click.option("--why", is_flag=True, help="Explain, for each key without a match, why nothing was found")
def check(
    config: Path | None,
    registry: str | None,
    key_ids: tuple[str, ...],
    source: str,
    fpr: float | None,
    date: datetime.datetime | None,
    why: bool,
) -> int:
    """Look at one text under each key, as a scan would, and print a verdict for each key.

    With CONFIG, the scan's keys, rate, looks and filter apply. With --registry, the text is looked at as the scan.toml
    of `brickscan init` does. p-values are corrected for all messages of all keys, whichever keys you ask about. Nothing
    is written.

    Every match is computed again by a slower, separate method. If the results differ, no user is named and the exit
    code is 3.

    --why tries configurations close to each key's, other ways to read the text, and parts of it. Its answers are not
    flags. Don't show them to strangers: they would help to edit a text until no mark is left.

    \b
    Example:
      brickscan check scan.toml --text post.txt
      brickscan check --registry registry --key summer-2026 < post.txt
      brickscan check scan.toml --text post.txt --why
    """
    if (config is None) == (registry is None):
        raise click.UsageError("Give either CONFIG or --registry.")
    if fpr is not None and config is not None:
        raise click.UsageError("--fpr goes with --registry; CONFIG sets its own rate.")
    if date is not None and config is None:
        raise click.UsageError("--date goes with CONFIG; --registry has no filter.")
    from scanner.detection.one_text import TextCheck, check_text
    from scanner.error_shares import AS_WRITTEN, NO_VARIANTS, looks_lacking
    from scanner.filtering import filter_of_config
    from scanner.key_support import lacks
    from scanner.results.registry_record import (
        refuse_lost_events_beside,
        refuse_lost_events_of_config,
        users_beside,
        users_of_config,
    )
    from scanner.watermark.formats import format_of

    night_filter = None
    if config is not None:
        request = replace(TextCheck.of_config(config, key_ids), record=users_of_config(config))
        refuse_lost_events_of_config(config, request.keys)
        night_filter = filter_of_config(config, (date or datetime.datetime.now(datetime.UTC)).date())
        if night_filter is not None:
            request = replace(request, rules=replace(request.rules, ngram_filter=night_filter.open()))
    elif registry is not None:
        folder = registry if is_uri(registry) else Path(registry)
        request = TextCheck.of_registry(folder, key_ids, 1e-6 if fpr is None else fpr)
        request = replace(request, record=users_beside(folder))
        refuse_lost_events_beside(folder, request.keys)
    raw = _read(source)
    verdicts = check_text(request, raw)
    rate, tested, weights = request.rules.false_positive_rate, request.rules.keys_tested, request.rules.weights
    scan_filter = None if night_filter is None else night_filter.scan_filter
    rows = [
        _line(
            row,
            _admitted_to(key, rate / weights.corrections(key, tested)[AS_WRITTEN, 1, 1], request.rules.dedup)
            and not lacks(key, scan_filter),
            format_of(key).generator,
        )
        for row, key in zip(verdicts, request.keys, strict=True)
    ]
    tell(*columns([("key", "says", "p-value", "tokens scored", "computed again"), *rows]))
    tested_keys = f"of {tested} key{'s' * (tested > 1)}"
    if any(key.one_of is not None for key in request.keys):
        tested_keys = "and for the weight of each key"
    if config is None:
        tested_keys += ", and for three looks: as written, normalised, in parts"
    elif weights != NO_VARIANTS:
        tested_keys += ", and for the looks that CONFIG turns on"
    tell(f"p-values are corrected for all messages {tested_keys}; text counts as marked at {one_in(math.log10(rate))}")
    tell(*(f"under {key.key_id}: {lacking}" for key in request.keys for lacking in looks_lacking(key, weights)))
    if night_filter is not None:
        tell(_filter_in_words(night_filter))
    if why:
        corrections = {key.key_id: float(weights.corrections(key, tested)[AS_WRITTEN, 0, 1]) for key in request.keys}
        silent = [key for row, key in zip(verdicts, request.keys, strict=True) if not row["flagged"]]
        for key_id, sentences in _reasons(request.registry, silent, corrections, rate, raw.decode()).items():
            tell(f"why nothing was found under {key_id}:", *(f"  {sentence}" for sentence in sentences))
    return 3 if any(row["proof"] == Proof.DIFFERS for row in verdicts) else 0


def _reasons(
    registry: Path | str, keys: list[MasterKey], corrections: Mapping[str, float], rate: float, text: str
) -> dict[str, list[str]]:
    """Return the reasons why a text is not found, by the ids of keys; no key has any where the text is empty."""
    if not keys or not text:
        return {}
    try:  # by name: probing can be taken out of an installation, and checking stays
        probe = importlib.import_module("scanner.probe.why")
    except ModuleNotFoundError:
        raise Refused("--why: this installation cannot probe; install brickscan with scanner.probe") from None
    reasons: dict[str, list[str]] = probe.why_not_found(registry, keys, corrections, rate, text)
    return reasons


def _filter_in_words(night_filter: "FilterOfNight") -> str:
    name = f"the filter {night_filter.sha256[:12]} of {night_filter.night}"
    if night_filter.is_empty:
        return f"no n-grams are left out: {name} has no earlier night"
    return f"n-grams that occur in {night_filter.scan_filter.texts} texts of earlier nights are left out, by {name}"


def _read(source: str) -> bytes:
    if source == "-":
        return sys.stdin.buffer.read()
    try:
        return read_named(source, MOST_LIST)
    except OSError as error:
        raise Refused(
            f"--text {source}: cannot be read ({error.strerror}); name a file, or - for standard input"
        ) from None


def _admitted_to(key: MasterKey, rate: float, dedup: str) -> bool:
    """Return whether an audit of the same positions showed that a key's p-values hold down to its share of a rate."""
    passed = key.admission if key.admitted_by is not None else None
    return passed is not None and passed.dedup == dedup and passed.holds_down_to <= rate


def _line(row: Mapping[str, Any], admitted: bool, generator: str | None) -> tuple[str, str, str, str, str]:
    from scanner.results.shown_p_values import log10_p_shown

    chance = "-" if row["log10_p_global"] is None else one_in(log10_p_shown(row))
    device = f" ({generator})" if generator else ""
    if row["status"] == "too_short":
        says, p = "too short to be scored", "-"
        if row["shown"]:
            says += f" without {row['shown']:,} tokens whose seeds claims showed"
    elif row["status"] == "filtered":
        says, p = "too short to be scored without its common n-grams", "-"
    elif row["flagged"] and row["basis"] == "assumed":
        says, p = f"reads like its mark{device}, which anyone can make", chance
        if not admitted:
            says, p = f"{says}; no audit has shown that its p-values hold, so a scan refuses this key", "-"
    elif row["flagged"]:
        says, p = f"contains text marked for {marked_for(row)}", chance
    else:
        says, p = f"no mark found{device}", chance
    if row["status"] == "scored_in_part":
        says += " (in the part that can be read)"
    if row["status"] != "too_short" and row["shown"] > row["scored"]:
        says += f" (most is left out: claims showed the seeds of {row['shown']:,} tokens)"
    return row["key_id"], says, p, f"{row['scored']:,}", row["proof"] or "-"
