"""Words about a master key that several `brickscan keys` commands say: what it is, and who else can make its marks."""

from jobs.text import counted, wrapped
from schemas.registry import MasterKey

ASSUMED = "assumed: no law over keys speaks for its p-values, and anyone can make this mark. Nobody is ever named by it"
"""Sentence about a key whose law is assumed."""


def what(key: MasterKey) -> str:
    """The key's format, parameters and messages, in words."""
    parameters = "".join(f", {name} {value}" for name, value in key.parameters.items())
    return f"{key.format}{parameters}, {counted(key.messages, 'message')}"


def weight(key: MasterKey) -> list[str]:
    """The weight of a later key: its share of the false-positive rate, and the share of older keys."""
    if key.one_of is None:
        return []
    kept = "the keys that the registry began with keep one half, and no verdict on record is weakened"
    return [f"weight      1/{key.one_of:,} of a false-positive rate, for ever: {kept}"]


def strength(key: MasterKey) -> list[str]:
    """What its p-values hold over, unless that is a key that nobody can search."""
    from scanner.watermark.formats import format_of

    basis = format_of(key).basis()
    if basis.proven:
        return []
    words = ASSUMED if basis.assumed else f"{basis}: p-values end at {2.0**-basis.bits:.0e}"
    return wrapped(f"  strength {words}", 100, "    ")


def cautions(key: MasterKey) -> list[str]:
    """Sentences for whoever reads the verdicts of a key."""
    from scanner.watermark.formats import format_of

    return format_of(key).cautions(key.messages)
