"""Looks for key bytes in anything that people can see, in any form in which a program may write them."""

import base64
import re
from collections.abc import Iterator
from typing import NamedTuple

PIECE = 8
"""Length of the pieces of a key that are looked for, in bytes, so that a part of a key is found too."""


class Needle(NamedTuple):
    """A piece of a key in one form, and the view of the text in which to look for it."""

    form: str
    view: str
    text: bytes


def views(text: bytes) -> dict[str, bytes]:
    """The text itself, its hexadecimal digits without what programs put between bytes, and its decimal numbers."""
    return {
        "raw": text,
        "hex": re.sub(rb"0x|\\x|[\s:,_\-\[\]\"']+", b"", text.lower()),
        "decimal": b" " + b" ".join(re.findall(rb"\d+", text)) + b" ",
    }


def needles(secret: bytes) -> Iterator[Needle]:
    """All forms of each piece of a secret."""
    for start in range(0, len(secret) - PIECE + 1, PIECE):
        piece = secret[start : start + PIECE]
        yield Needle("raw", "raw", piece)
        yield Needle("escaped", "raw", repr(piece)[2:-1].encode())
        yield Needle("hex", "hex", piece.hex().encode())
        yield Needle("hex words", "hex", b"".join(piece[i : i + 4][::-1].hex().encode() for i in (0, 4)))
        yield Needle("hex long", "hex", piece[::-1].hex().encode())
        for lead in range(3):  # base64 letters depend on where the piece begins within a group of three bytes
            whole = base64.b64encode(bytes(lead) + piece)
            inner = whole[-(-lead * 8 // 6) : (lead + PIECE) * 8 // 6]
            yield Needle("base64", "raw", inner)
            yield Needle("base64 url", "raw", inner.translate(bytes.maketrans(b"+/", b"-_")))
        for order in ("little", "big"):
            words = [int.from_bytes(piece[i : i + 4], order) for i in (0, 4)]
            yield Needle(f"{order}-endian words", "decimal", numbers(words))
            yield Needle(f"{order}-endian long", "decimal", numbers([int.from_bytes(piece, order)]))
        yield Needle("bytes", "decimal", numbers(list(piece)))


def numbers(values: list[int]) -> bytes:
    return b" " + b" ".join(str(value).encode() for value in values) + b" "


def found(secrets: dict[str, bytes], shown: dict[str, bytes]) -> set[tuple[str, str, str]]:
    """(where, which secret, which form) of all that is found."""
    wanted = {name: set(needles(secret)) for name, secret in secrets.items()}
    hits = set()
    for where, text in shown.items():
        seen = views(text)
        hits |= {(where, name, n.form) for name, of_one in wanted.items() for n in of_one if n.text in seen[n.view]}
    return hits
