"""Keys that a scan may use: those whose p-values a law or an audit supports at its rate.

An audit supports a key down to a rate, over the positions that it scores. An audit that left common n-grams out says
nothing of scans that score them. So its admission holds for scans that leave out as much: as many texts or fewer make
an n-gram common, and the filter was learnt from as many texts or more. An admission over all positions holds for every
scan, since common n-grams make hits under one key come together.
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
    """What the filter of a scan leaves out.

    texts: distinct texts that make an n-gram common, or accounts where by_account.
    learnt: how many texts it was learnt from, by the SHA-256 of the tokenizer and by how far the n-grams reach; None:
        the night's filter is not known yet.
    """

    texts: int
    learnt: Mapping[tuple[str, int], int] | None = None
    by_account: bool = False


class UnsupportedKey(NamedTuple):
    """A key that a scan leaves out, and why neither law nor audit supports its p-values, with what to do."""

    key_id: str
    why: str


def lacks(key: MasterKey, scan_filter: ScanFilter | None) -> str:
    """Say what a scan lacks to leave out the n-grams that the key's admission left out; empty: nothing.

    scan_filter: None: the scan scores all positions.
    """
    audited = None if key.admission is None else key.admission.filter
    if audited is None:
        return ""
    if scan_filter is None:
        return "it has no filter"
    if scan_filter.by_account:
        return "its filter counts accounts, since [input] names a column of them, and that of the audit counts texts"
    if scan_filter.texts > audited.texts:
        return f"its filter leaves out n-grams of {scan_filter.texts} texts, the audit those of {audited.texts}"
    kind = key.tokenizer.sha256, reach_of(format_of(key).rule())
    learnt = audited.learnt if scan_filter.learnt is None else scan_filter.learnt.get(kind, 0)
    if learnt < audited.learnt:
        return f"its filter was learnt from {learnt:,} texts, that of the audit from {audited.learnt:,}"
    return ""


def supported_keys(
    keys: Sequence[MasterKey], config: ScanConfig, tested: int, scan_filter: ScanFilter | None
) -> tuple[tuple[MasterKey, ...], tuple[UnsupportedKey, ...]]:
    """Return the keys whose p-values law or audit supports in a scan, and the keys that it leaves out.

    Only keys that the configuration does not name are left out. Where it has `audit.require_admission`, none is.

    Args:
        keys: the keys under test.
        config: the scan's configuration.
        tested: keys of the registry that give p-values.
        scan_filter: as for `lacks`.

    Raises:
        Refused: a key may not be left out, or none would be left; names the key, and what to do.
    """
    found = [UnsupportedKey(key.key_id, _fault(key, config, tested, scan_filter)) for key in keys]
    supported = tuple(key for key, fault in zip(keys, found, strict=True) if not fault.why)
    others = ", ".join(f'"{key.key_id}"' for key in supported)
    leave_it_out = f"; or leave it out on purpose: keys = [{others}]" if supported else ""
    wrong = tuple(key._replace(why=key.why + leave_it_out) for key in found if key.why)
    if wrong and (config.keys is not None or config.audit.require_admission or not supported):
        raise Refused(wrong[0].why)
    return supported, wrong


def _fault(key: MasterKey, config: ScanConfig, tested: int, scan_filter: ScanFilter | None) -> str:
    """Say why neither law nor audit supports a key, and what to do; empty: one does."""
    # The audit is asked of all keys by `require_admission`, else of keys whose p-values no law over keys supports. For
    # these it must reach what is left of the rate when all keys have their share, since an audit is of one key.
    all_keys, of_all = config.false_positive_rate, config.audit.require_admission
    assumed = format_of(key).basis().assumed
    if not of_all and not assumed:
        return ""
    rate = all_keys / ErrorShares.of(config).corrections(key, tested)[AS_WRITTEN, 1, 1] if assumed else all_keys
    setting = "audit.require_admission" if of_all else f"false_positive_rate: {key.format!r} has no law over its keys"
    if key.admission is None or key.admitted_by is None:
        return (
            f"{setting}: key {key.key_id!r} never passed an audit with its {key.messages} message"
            f"{'s' * (key.messages != 1)}; audit it with `brickscan calibrate` and record that with `brickscan keys "
            f"admit {key.key_id}`"
        )
    if key.admission.holds_down_to > rate:
        share = "" if rate == all_keys else f", of which it has {rate:.2g} among the registry's keys"
        return (
            f"{setting}: the rate of key {key.key_id!r} is known to hold down to "
            f"{key.admission.holds_down_to:g}, not to false_positive_rate = {all_keys:g}{share}; audit it over "
            f"more documents (`brickscan calibrate --down-to {rate:.2g}` says how many), or scan at a higher rate"
        )
    if key.admission.dedup != config.dedup:
        return (
            f"{setting}: key {key.key_id!r} passed an audit with keys.dedup = {key.admission.dedup!r}, which scores "
            f"other positions than this scan with dedup = {config.dedup!r}; audit it as it is scanned"
        )
    lacking = lacks(key, scan_filter)
    if lacking:
        return (
            f"{setting}: key {key.key_id!r} passed an audit that left out common n-grams, and this scan would score "
            f"more: {lacking}; {_advice(scan_filter)}"
        )
    return ""


def _advice(scan_filter: ScanFilter | None) -> str:
    if scan_filter is None or scan_filter.learnt is None:
        return "set `filter` as the audit's keys.filter is, or audit the key without keys.filter"
    return (
        "scan earlier nights under other keys of its tokenizer and window first, or audit the key with a smaller "
        "keys.filter.learnt, or without keys.filter"
    )
