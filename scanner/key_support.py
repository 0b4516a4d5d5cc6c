"""Select the keys that a scan may use: those whose p-values a law or an audit supports at its rate.

An audit supports a key down to a rate, over the positions that it scores. An audit that left common n-grams out does
not support scans that score them. Its admission holds only for scans that leave out at least as much: as many texts or
fewer make an n-gram common, and the filter was learnt from as many texts or more. An admission over all positions holds
for every scan, because common n-grams only make hits under one key come together.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scanner.error_shares import AS_WRITTEN, ErrorShares
from scanner.errors import Refused
from scanner.watermark.formats import format_of
from scanner.watermark.positions import reach_of
from schemas.config import ScanConfig
from schemas.registry import MasterKey


class ScanFilter(NamedTuple):
    """The limits of a scan's filter.

    texts: distinct texts that make an n-gram common, or accounts if by_account.
    learnt: number of texts from which it was learnt, by the SHA-256 of the tokenizer and by the reach of the n-grams.
        None: the night's filter is not known yet.
    """

    texts: int
    learnt: Mapping[tuple[str, int], int] | None = None
    by_account: bool = False


class UnsupportedKey(NamedTuple):
    """A key that a scan leaves out, the reason why neither law nor audit supports its p-values, and advice."""

    key_id: str
    why: str


def lacks(key: MasterKey, scan_filter: ScanFilter | None) -> str:
    """Return the reason why a scan does not leave out the n-grams that the key's admission left out. Empty if it does.

    scan_filter: None if the scan scores all positions.
    """
    audited = None if key.admission is None else key.admission.filter
    if audited is None:
        return ""
    if scan_filter is None:
        return "it has no filter"
    if scan_filter.by_account:
        return (
            "its filter counts accounts, because [input] names an account column, but the audit's filter counts texts"
        )
    if scan_filter.texts > audited.texts:
        return (
            f"its filter leaves out n-grams of {scan_filter.texts} texts, the audit's filter those of {audited.texts}"
        )
    kind = key.tokenizer.sha256, reach_of(format_of(key).rule())
    learnt = audited.learnt if scan_filter.learnt is None else scan_filter.learnt.get(kind, 0)
    if learnt < audited.learnt:
        return f"its filter was learnt from {learnt:,} texts, the audit's filter from {audited.learnt:,}"
    return ""


def supported_keys(
    keys: Sequence[MasterKey], config: ScanConfig, tested: int, scan_filter: ScanFilter | None
) -> tuple[tuple[MasterKey, ...], tuple[UnsupportedKey, ...]]:
    """Return the keys whose p-values a law or an audit supports in a scan, and the keys that it leaves out.

    Only keys that the configuration does not name are left out. With `audit.require_admission`, no key is left out.

    Args:
        keys: the keys under test.
        config: the scan's configuration.
        tested: number of keys of the registry that give p-values.
        scan_filter: as for `lacks`.

    Raises:
        Refused: a key may not be left out, or none would be left. The message names the key and says what to do.
    """
    found = [UnsupportedKey(key.key_id, _fault(key, config, tested, scan_filter)) for key in keys]
    supported = tuple(key for key, fault in zip(keys, found, strict=True) if not fault.why)
    others = ", ".join(f'"{key.key_id}"' for key in supported)
    leave_it_out = f"; or leave the key out explicitly: keys = [{others}]" if supported else ""
    wrong = tuple(key._replace(why=key.why + leave_it_out) for key in found if key.why)
    if wrong and (config.keys is not None or config.audit.require_admission or not supported):
        raise Refused(wrong[0].why)
    return supported, wrong


def _fault(key: MasterKey, config: ScanConfig, tested: int, scan_filter: ScanFilter | None) -> str:
    """Return the reason why neither law nor audit supports a key, and advice. Empty if one does."""
    # `require_admission` requires an audit of all keys. Otherwise only keys whose p-values no law over keys supports
    # need one. It must reach the rest of the rate after all keys have their share, because an audit is of one key.
    all_keys, of_all = config.false_positive_rate, config.audit.require_admission
    assumed = format_of(key).basis().assumed
    if not of_all and not assumed:
        return ""
    rate = all_keys / ErrorShares.of(config).corrections(key, tested)[AS_WRITTEN, 1, 1] if assumed else all_keys
    setting = "audit.require_admission" if of_all else f"false_positive_rate: {key.format!r} has no law over its keys"
    if key.admission is None or key.admitted_by is None:
        return (
            f"{setting}: key {key.key_id!r} has never passed an audit with its {key.messages} "
            f"message{'s' * (key.messages != 1)}; audit it with `brickscan calibrate` and record the result with "
            f"`brickscan keys admit {key.key_id}`"
        )
    if key.admission.holds_down_to > rate:
        share = "" if rate == all_keys else f", of which this key has {rate:.2g}"
        return (
            f"{setting}: the rate of key {key.key_id!r} is known to hold down to "
            f"{key.admission.holds_down_to:g}, not to false_positive_rate = {all_keys:g}{share}; audit it over "
            f"more documents (`brickscan calibrate --down-to {rate:.2g}` says how many), or scan at a higher rate"
        )
    if key.admission.dedup != config.dedup:
        return (
            f"{setting}: key {key.key_id!r} passed an audit with keys.dedup = {key.admission.dedup!r}, but this scan "
            f"has dedup = {config.dedup!r} and scores other positions; audit it with the scan's dedup"
        )
    lacking = lacks(key, scan_filter)
    if lacking:
        return (
            f"{setting}: key {key.key_id!r} passed an audit that left out common n-grams, but this scan would score "
            f"more: {lacking}; {_advice(scan_filter)}"
        )
    return ""


def _advice(scan_filter: ScanFilter | None) -> str:
    if scan_filter is None or scan_filter.learnt is None:
        return "set `filter` to the audit's keys.filter, or audit the key without keys.filter"
    return (
        "first scan earlier nights under other keys with the same tokenizer and window, or audit the key with a "
        "smaller keys.filter.learnt, or without keys.filter"
    )
