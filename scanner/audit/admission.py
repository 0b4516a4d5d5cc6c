"""Does an audit let a key be used? It found nothing too small, and enough data to say that something holds."""

import polars as pl

from scanner.audit.rows import failing
from scanner.errors import Refused
from schemas.registry import Admission, MasterKey

_OF_KEYS = pl.col("kind").is_in(["key", "key_messages"])


def admission_of(key: MasterKey, audits: pl.DataFrame, candidates: int | None = None) -> Admission:
    """What is recorded about a key that passed; its newest audit decides.

    Args:
        key: of the registry; its commitment tells its rows from those of another key of that name. It does not cover
            the number of messages, so only audits of as many count.
        audits: rows of schemas.tables.AUDITS.
        candidates: how many keys were tried before and with this one, where that is more than the table shows: of many
            keys the one that meets the corpus best looks better than it is.

    Raises:
        Refused: no audit of this key is there, the newest was of another number of messages, failed or decides nothing;
            fewer candidates than the table shows.
    """
    of_keys = audits.filter(_OF_KEYS)
    own = of_keys.filter(pl.col("commitment") == key.commitment).sort("at")
    if own.is_empty():
        raise Refused(
            f"key {key.key_id!r} has no audit there; run `brickscan calibrate` with a section [keys] for this registry"
        )
    newest = own.filter(pl.col("audit_id") == own["audit_id"][-1])
    audited = set(newest.filter(pl.col("kind") == "key")["messages"])
    if audited != {key.messages}:
        raise Refused(
            f"key {key.key_id!r} has {key.messages} messages; audit {newest['audit_id'][0]} was of "
            f"{', '.join(map(str, sorted(audited)))}; run `brickscan calibrate` again"
        )
    wrong = list(failing(newest.to_dicts()))
    if wrong:
        raise Refused(f"key {key.key_id!r} failed audit {newest['audit_id'][0]}: {wrong[0]}; make another key")
    holds = newest.filter(pl.col("kind") == "key", pl.col("verdict").is_in(["holds", "conservative"]))
    if holds.is_empty():
        raise Refused(
            f"key {key.key_id!r}: audit {newest['audit_id'][0]} is undecided at every threshold; take a larger corpus"
        )
    tried = of_keys["commitment"].n_unique()
    if candidates is not None and candidates < tried:
        raise Refused(f"--candidates {candidates}: the audits there show {tried} keys that were tried; give no fewer")
    return Admission(
        audit_id=newest["audit_id"][0],
        audited_at=newest["at"][0],
        holds_down_to=float(holds["threshold"].to_numpy().min()),
        candidates=candidates or tried,
        messages=key.messages,
    )
