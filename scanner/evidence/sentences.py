"""Write a flag as JSON, and in sentences that a moderator, a user and a court can follow.

They claim only the numbers.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from scanner.detection.proving import LONGEST_PROVED
from scanner.evidence.copied_text import CopiedShare
from scanner.evidence.explanation import Explanation, PartFinding
from scanner.evidence.related_flags import GroupCounts
from scanner.printable import at_most, counted, one_in, printable, safe
from scanner.results.decision_log import users_of
from scanner.results.shown_p_values import log10_p_shown
from scanner.watermark.formats import format_of
from schemas.registry import MasterKey
from schemas.words import LEVELS, WHY_NOBODY, AuditState, Naming, Proof

LONGEST_ID = 60

PARTS_TOLD = 8
"""Most marked parts that get a sentence, in the order of the text."""

SHARE_OF_QUOTED_LINES = 0.9
"""Share of quoted characters from which a part counts as quoted lines."""

DOES_NOT_SAY = (
    "who wrote the text, or who posted it: marked text may be quoted, copied, translated or spliced",
    "that the rest of the text was generated",
    "how likely it is that this flag is false: the p-value says how often chance alone reaches this score",
)

_AUDIT: Mapping[str | None, str] = {
    None: "this scan has not been audited yet",
    AuditState.ALARM: "ALARM: this scan's check of its own error rate failed",
    AuditState.CANARIES_LOST: "this scan missed marked texts that were planted to test it",
    AuditState.POSSIBLE_FRAMING: "this scan saw signs of framing, so names may be wrong",
}


def name(value: str | None) -> str:
    """Return an id for display. It is `unknown` if there is none."""
    return "unknown" if value is None else printable(value, LONGEST_ID)


def account_of(row: Mapping[str, Any]) -> str:
    """Return whose post a row is: `account x`, an id that itself begins with the word, or `an unknown account`."""
    if row["account_id"] is None:
        return "an unknown account"
    account = name(row["account_id"])
    return account if account.casefold().startswith("account") else f"account {account}"


def signature_in_words(not_checked: str | None) -> str:
    """Return a sentence on whether the tables were checked against their signatures."""
    if not_checked is not None:
        return f"not checked: {not_checked}"
    return (
        "valid: everything that was read for this is exactly as brickscan wrote it, according to the audit secret of "
        "the configuration's registry"
    )


def what_was_found(explained: Explanation) -> Iterator[tuple[str, str]]:
    """Yield pairs of a heading and a sentence, in the order in which people ask."""
    row = explained.row
    if explained.alarm is not None:
        yield "Alarm", explained.alarm
    yield "Document", f"{name(row['doc_id'])}, row {row['row']} of {printable(row['path'])}"
    posted = "at an unknown time" if row["created_at"] is None else f"{row['created_at']:%Y-%m-%d %H:%M} UTC"
    if row["manifest"] is not None:
        yield "C2PA", "the text carries a C2PA manifest. It is not scored, and its issuer is not verified"
    if row["status"] == "scored_in_part":
        yield "Text", f"only a part of it was scored ({row['reason']})"
    if explained.not_from_file is not None:
        yield "Text kept by the scan", f"you see the copy that the scan kept. Its file: {explained.not_from_file}"
    if row["variant"] is not None:
        yield "Variant", f"the text was scored, and is shown, {row['variant']}: without characters that hide a mark"
    yield "Posted", f"by {account_of(row)}, {posted}; scanned {row['scanned_at']:%Y-%m-%d %H:%M} UTC"
    yield "Marked for", _marked_for(explained)
    yield "Signature", signature_in_words(explained.not_checked)
    if explained.key is not None:
        cautions = format_of(explained.key).cautions(explained.key.messages)
        if cautions:
            yield "Beware of this key", "; ".join(cautions)
    yield "Computed again", _proof(row)
    yield "Audit", _AUDIT.get(row["audit"], f"the audit of this scan says: {row['audit']}")
    if row["naming"] == Naming.NAMED and row["user_id"] is not None and row["account_id"] is not None:
        yield "Account and user", _account_and_user(explained)
    if explained.spans:
        yield "Marked parts", _spans(explained)
    if explained.findings_of_parts:
        yield "Quoted lines and own words", _parts(explained)
    sure = _how_sure(explained)
    if sure is not None:
        yield "How sure the name is", sure
    yield "How rarely chance does this", _chance(explained)
    if explained.expected is not None and explained.case.scan is not None:
        yield (
            "Chance in a night of this size",
            f"among the {counted(explained.case.scan['documents'], 'document')} of this scan, expect "
            f"{at_most(explained.expected)} flags this strong by chance",
        )
    if explained.key is not None:
        yield "Key", _key(explained)
        yield "Who can mark with it", _holders(explained.key)
    if explained.generator is not None:
        yield (
            "Drawn by",
            f"torch's {explained.generator}. The same code on a GPU makes a different mark, which is not found. So a "
            "text without a flag may still be marked",
        )
    yield "Other flags", _others(explained)
    if explained.offer is not None:
        yield "Have it checked", explained.offer


def _marked_for(explained: Explanation) -> str:
    row = explained.row
    if row["naming"] != Naming.NAMED:
        return f"no user is named: {WHY_NOBODY[row['naming']]}"
    since = (
        "" if row["held_since"] is None else f", who has had the message since {row['held_since']:%Y-%m-%d %H:%M} UTC"
    )
    user = "a user whose name was erased" if row["user_id"] is None else f"user {name(row['user_id'])}"
    sentence = f"the text contains text marked for {user}{since}"
    others = [
        entry for entry in row["named"] or [] if entry["message"] != row["message"] or entry["key_id"] != row["key_id"]
    ]
    more = (
        "; it also contains text marked for " + ", ".join(name(entry["user_id"]) for entry in others) if others else ""
    )
    return sentence + more


def _account_and_user(explained: Explanation) -> str:
    users = users_of(explained.row)
    user = f"user {name(users[0])}" if len(users) == 1 else f"any of {', '.join(map(name, users[:PARTS_TOLD]))}"
    account = f"account {name(explained.row['account_id'])}"
    if explained.owned is not None:
        return f"your records say that {account} is {'' if explained.owned else 'not '}the account of {user}"
    equal = " Equal names prove nothing: anyone can take a name." if explained.row["account_id"] in users else ""
    return f"brickscan does not know whether {account} belongs to {user}.{equal} Your own records decide"


def _how_sure(explained: Explanation) -> str | None:
    """Return how rarely chance names another user of the group, for a key with groups. None: there is no group."""
    finding, scan = explained.user_evidence, explained.case.scan
    if finding is None:
        return None
    question = ""
    if scan is not None:
        rate = scan["misnaming_rate"] or scan["false_positive_rate"]
        question = f". This scan asks for {one_in(math.log10(rate))} or less"
    return (
        f"{finding.group:,} users share a part of this mark, and {counted(finding.scored, 'scored token')} tell them "
        f"apart. If these tokens were marked for none of them, {one_in(explained.log10_p_own or 0.0)} texts would "
        f"point to one of them as strongly{question}"
    )


_WHICH = {
    None: "score as high",
    LEVELS: "score as high, when a token counts more the less a language model expected it,",
}
"""Words for the results of chance, by the look of a flag."""


def _chance(explained: Explanation) -> str:
    row = explained.row
    correction, messages = row["correction"], row["messages_tested"]
    if row["basis"] == "assumed":
        return (
            f"anyone can make this mark. Under decoy keys, {one_in(log10_p_shown(row))} unmarked texts would score as "
            f"high. By the format's hash, which an audit counted on traffic, {one_in(row['log10_p_global'])}"
        )
    which = _WHICH.get(row["look"], "have a part that scores as high")
    by_hash = row["basis"] not in (None, "key")
    by_hash_words = f". By the format's hash, {one_in(row['log10_p_global'])}" if by_hash else ""
    return (
        f"{one_in(log10_p_shown(row))} unmarked texts would {which} for any of this key's "
        f"{counted(messages, 'message')}{' or of a decoy' * by_hash}, after a correction for "
        f"{round(correction, 1):g} test{'s' * (correction > 1)}. "
        f"{row['scored']:,} of {row['tokens']:,} tokens were scored{by_hash_words}"
    )


def _key(explained: Explanation) -> str:
    key = explained.key
    if key is None or key.admission is None or key.admitted_by is None:
        return (
            f"{explained.row['key_id']}: not calibrated yet, so its p-values rest on theory and on the audit of each "
            "scan"
        )
    tried = key.admission.candidates
    factor = f". It was chosen from {tried} keys that were tried, so multiply p by {tried}" if tried > 1 else ""
    filtered = ", with a filter that leaves out common n-grams" if key.admission.filter else ""
    down_to = f"{key.admission.holds_down_to:g}{filtered}"
    return f"{key.key_id}: a calibration on unmarked texts showed that its p-values hold down to {down_to}{factor}"


def _holders(key: MasterKey) -> str:
    if format_of(key).basis().assumed:
        return "anyone, so a flag under this key does not tell who made the text"
    others = "No other holder is on record" if key.held_by is None else f"So has {printable(key.held_by)}"
    return f"anyone who has the key's secret, for any user. The registry's owner has it. {others}"


def _proof(row: Mapping[str, Any]) -> str:
    long = (row["tokens"] or 0) > LONGEST_PROVED
    meaning: Mapping[str | None, str] = {
        Proof.PROVED: "yes: a slower method that shares no code with the first found the same score and p-value",
        Proof.DIFFERS: "yes, and the slower method found a different result: do not use this flag",
        Proof.NOT_OFFERED: "no: there is no second method for this format",
        Proof.NOT_DRAWN: f"no: the text has more than {LONGEST_PROVED:,} tokens"
        if long
        else "no: there were too many flags, so only a sample was computed again",
    }
    return meaning.get(row["proof"], "not on record")


def _others(explained: Explanation) -> str:
    def in_words(around: GroupCounts, which: str) -> str:
        """Say how many flags there are, including this one."""
        documents, texts, accounts = around
        if documents == 1:
            return f"only this one {which}"
        accounts_of = f", of {counted(accounts, 'account')}" if accounts > 1 else ""
        of_these = f"({counted(texts, 'distinct text')}{accounts_of})"
        return f"{documents:,} flagged documents, counting this one {of_these}, {which}"

    others = explained.of_text[0] - 1
    copies = f"{others:,} other flagged document{'s' * (others != 1)}" if others else "no other flagged document"
    counts = [f"{copies} with exactly this text"]
    if explained.near_duplicates is not None and explained.near_duplicates.texts > 1:
        counts.append(
            in_words(
                explained.near_duplicates,
                "with this text or near-duplicates of it, which together are one piece of evidence",
            )
        )
    if explained.of_user is not None:
        counts.insert(
            0, in_words(explained.of_user, f"marked for user {name(explained.row['user_id'])}, under any key")
        )
    elif explained.row["message"] is not None:
        counts.insert(0, in_words(explained.of_message, "for this message"))
    if explained.of_account is not None:
        counts.append(in_words(explained.of_account, "of this account"))
    return "; ".join(counts) + _copied(explained.copied)


def _copied(copied: CopiedShare | None) -> str:
    """Return sentences on the part of a text that may be copied. Empty: there are no earlier posts of others."""
    if copied is None:
        return ""
    not_read = counted(copied.not_read, "earlier flagged post")
    not_compared = f". {not_read} of other accounts cannot be read, so it is unknown whether the text copies them"
    return _copied_from(copied) + (not_compared if copied.not_read else "")


def _copied_from(copied: CopiedShare) -> str:
    if not copied.posts:
        return ""
    posts = f"{copied.posts:,} earlier flagged post{'s' * (copied.posts != 1)}"
    where = f"{printable(copied.path or '')}:{copied.row}"
    others = f"{copied.accounts:,} other account{'s' * (copied.accounts != 1)}"
    sentence = f". {copied.share:.0%} of what was scored is also in {posts} of {others}, so it may be copied"
    return f"{sentence}. Most of it is in {where}"


def _spans(explained: Explanation) -> str:
    """Return a sentence for each marked part.

    It gives the part's place, its user, and how rarely chance makes such a part anywhere in a text.
    """
    spans = "; ".join(_span(span) for span in explained.spans[:PARTS_TOLD])
    more = len(explained.spans) - PARTS_TOLD
    rest = f"; and {more:,} more" if more > 0 else ""
    if all(span["quoted"] >= SHARE_OF_QUOTED_LINES for span in explained.spans):
        rest += ". All of them are in quoted lines: the account that posted this quotes marked text"
    return spans + rest


def _span(span: Mapping[str, Any]) -> str:
    where = f"characters {span['char_from']:,} to {span['char_to']:,} ({counted(span['tokens'], 'token')}"
    where += f", {span['quoted']:.0%} of it quoted)" if span["quoted"] > 0 else ")"
    by_chance = f"{one_in(span['log10_p_global'])} texts would do as much by chance"
    if span["naming"] == Naming.NAMED:
        return f"{where}: text marked for user {name(span['user_id'])}; {by_chance}"
    return f"{where}: marked text; {by_chance}; {WHY_NOBODY[span['naming']]}"


def _parts(explained: Explanation) -> str:
    findings = "; ".join(_part(part, explained.row) for part in explained.findings_of_parts)
    conclusion = {
        "quoted": " Only the quoted lines carry the mark: the account that posted this quotes marked text.",
        "own": " Only the account's own words carry the mark.",
        None: "",
    }[explained.carried_by]
    return f"{findings}. These numbers are only for information: they do not flag a text or name a user.{conclusion}"


def _part(part: PartFinding, row: Mapping[str, Any]) -> str:
    which = {"quoted": "quoted lines", "own": "own words"}[part.kind]
    if not part.scored:
        return f"{which}: nothing is scored"
    if row["basis"] == "assumed" or math.isnan(part.log10_p_any):
        chance = "p is not known"
    else:
        part_row = {**row, "log10_p_global": part.log10_p_any, "p_rank": None}
        chance = f"{one_in(log10_p_shown(part_row))} texts would do as much by chance"
    return f"{which}: {chance} ({counted(part.scored, 'token')} scored)"


_FIELDS = (
    *("path", "row", "doc_id", "account_id", "key_id", "message", "user_id", "naming", "scan_id", "audit", "proof"),
    *("log10_p_global", "tokens", "scored", "messages_tested", "correction", "look"),
)

_OF_SPANS = (
    *("char_from", "char_to", "tokens", "scored", "quoted", "key_id", "message", "user_id", "naming", "proof"),
    *("form", "log10_p_in_document", "log10_p_global"),
)


def record_of(explained: Explanation) -> dict[str, Any]:
    """Return a record for json.dumps. Missing numbers are null. `begin` and `end` count characters of the text."""
    row, evidence = explained.row, explained.text_evidence
    return {
        **{name: row[name] for name in _FIELDS},
        "text_sha256": row["text_sha256"].hex(),
        "generator": explained.generator,
        "held_by": explained.key.held_by if explained.key else None,
        "log10_p_shown": log10_p_shown(row),
        "expected_by_chance_at_most": explained.expected,
        "checked": explained.not_checked is None,
        "name": None
        if explained.user_evidence is None
        else explained.user_evidence._asdict() | {"log10_p": _plain(explained.log10_p_own)},
        "carried_by": explained.carried_by,
        "parts": [
            {name: _plain(value) for name, value in part._asdict().items()} for part in explained.findings_of_parts
        ],
        "spans": [{name: span[name] for name in _OF_SPANS} for span in explained.spans],
        "copied": None if explained.copied is None else explained.copied._asdict(),
        "runs": [{"begin": run.begin, "end": run.end, "level": run.level} for run in evidence.runs] if evidence else [],
        "no_text": explained.no_text,
        "not_weighed": explained.no_evidence,
        "text_not_from_file": explained.not_from_file,
        "says": [{"heading": heading, "sentence": safe(sentence)} for heading, sentence in what_was_found(explained)],
        "does_not_say": list(DOES_NOT_SAY),
    }


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
