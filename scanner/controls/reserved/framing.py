"""Find possible framing: reserved messages that hit too often in the texts of only a few accounts, while the law holds.

If messages share draws, or a key can be searched for, a person with marked text can write text that carries another
message, which perhaps no user holds. Two such texts are more than chance allows. Without this file, anybody could raise
the alarm of every night. A key that fits the traffic badly hits in the texts of all accounts, not only of a few.
"""

from collections.abc import Mapping

from scanner.audit.statistics.audit_rows import rate_rows, wrong_rows
from scanner.audit.statistics.hits import THRESHOLDS
from scanner.audit.statistics.judgement import KEY_BOUND
from scanner.controls.control import JudgedScan
from scanner.controls.reserved.accounts import account_answers
from scanner.controls.reserved.expectation import reserved_answers
from scanner.controls.reserved.reserved_counts import ReservedCounts
from scanner.controls.reserved.top_accounts import LARGEST_SHARE_OF_TOP_ACCOUNTS, MOST_TOP_ACCOUNTS
from scanner.watermark.formats import format_of


def framing_accounts(scan: JudgedScan, counts: ReservedCounts) -> dict[str, int]:
    """Return, by key, the number of accounts that raise the alarm by their posts. Empty unless they explain all of it.

    Args:
        scan: the scan with its rows, of all controls.
        counts: counts of reserved messages.
    """
    wrong = {row["key_id"] for row in wrong_rows(scan.rows)}
    suspects = counts.without_top_accounts.keys() | {
        key_id for key_id, of in counts.accounts.items() if len(of.message)
    }
    if not wrong or not scan.law_holds or not wrong <= suspects:  # a decoy's row names no key
        return {}
    suspected = [key for key in scan.plan.keys if key.key_id in wrong]
    if not all(format_of(key).can_be_framed() for key in suspected):
        return {}
    fewest = {key.key_id: _fewest_accounts(scan, counts, key.key_id) for key in suspected}
    explained = {key_id: accounts for key_id, accounts in fewest.items() if accounts is not None}
    return explained if len(explained) == len(fewest) else {}


def _fewest_accounts(scan: JudgedScan, counts: ReservedCounts, key_id: str) -> int | None:
    """Count the accounts without whose posts no count is too high under a key. None: no few accounts explain it."""
    texts, accounts = counts.without_top_accounts.get(key_id, ()), counts.accounts.get(key_id)
    for number in range(1, MOST_TOP_ACCOUNTS + 1):
        text_hits, account_hits = dict(counts.hits), dict(counts.accounts)
        shares = []
        if texts:
            remainder = texts[min(number, len(texts)) - 1]
            text_hits[key_id] = remainder.hits
            shares.append(remainder.share)
        if accounts is not None and accounts.accounts:
            account_hits[key_id] = accounts.without(number)
            shares.append(number / accounts.accounts)
        if max(shares, default=0.0) > LARGEST_SHARE_OF_TOP_ACCOUNTS:
            return None
        answers = [*reserved_answers(scan.plan, scan.traffic, text_hits), *account_answers(scan.plan, account_hits)]
        rows = rate_rows(scan.audit, answers, THRESHOLDS, KEY_BOUND)
        if key_id not in {row["key_id"] for row in wrong_rows(rows)}:
            return number
    return None


def framing_warnings(accounts: Mapping[str, int]) -> list[str]:
    """Return a sentence on each key, with advice: so many accounts, or more, may be framing others."""
    return [
        f"key {key_id}: messages that no user holds hit too often. Without the texts of {number} "
        f"account{'s' * (number != 1)} they hit as often as expected, and so do decoy keys. So the p-values are "
        "right, but somebody may be writing text that carries other users' messages. Do not name anyone by this key "
        "for texts of these accounts (they posted the flags marked `reserved`), and find out who they are."
        for key_id, number in accounts.items()
    ]
