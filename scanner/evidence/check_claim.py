"""Checks one claim about a watermarked text. It needs Python 3.9 or newer, and nothing else.

  python check.py SECRET_FILE

The folder of this file holds claim.json (what is claimed) and ngrams.csv (the scored tokens of the text, each with the
tokens before it that decide its draw). SECRET_FILE holds the key as hexadecimal text; whoever keeps it in escrow, or a
court, has it. Checked are: that the key is the one that was committed to, the score of the text for the message that
is claimed, its p-value, and that value corrected for all messages and tests. The watermark is specified in SPEC.md and
SPEC_2.md of brickscan; this file was written from them, and shares no code with what scans.
"""

import csv
import decimal
import hashlib
import json
import math
import sys
from fractions import Fraction
from pathlib import Path

M32, M64 = 2**32 - 1, 2**64 - 1


def siphash24(key: bytes, data: bytes) -> int:
    """SipHash-2-4 (Aumasson and Bernstein 2012)."""
    k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rounds(count: int) -> None:
        for _ in range(count):
            for a, b, by, swap in ((0, 1, 13, 0), (2, 3, 16, None), (0, 3, 21, None), (2, 1, 17, 2)):
                v[a] = (v[a] + v[b]) & M64
                v[b] = ((v[b] << by | v[b] >> (64 - by)) & M64) ^ v[a]
                if swap is not None:
                    v[swap] = (v[swap] << 32 | v[swap] >> 32) & M64

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for i in range(0, len(padded), 8):
        word = int.from_bytes(padded[i : i + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def chacha8(key: bytes, counter: int, nonce: int) -> list[int]:
    """One ChaCha block of 8 rounds: 16 words."""
    fixed = b"expand 32-byte k" + key
    start = [int.from_bytes(fixed[i : i + 4], "little") for i in range(0, 48, 4)]
    start += [counter & M32, counter >> 32, nonce & M32, nonce >> 32]
    s = list(start)
    columns = [(i, 4 + i, 8 + i, 12 + i) for i in range(4)]
    diagonals = [(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)]
    for a, b, c, d in (columns + diagonals) * 4:
        for x, y, z, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            s[x] = (s[x] + s[y]) & M32
            mixed = s[z] ^ s[x]
            s[z] = (mixed << by | mixed >> (32 - by)) & M32
    return [(x + y) & M32 for x, y in zip(s, start)]  # noqa: B905 - Python 3.9 has no strict


class Mark:
    """A native watermark under one key: version 1 or 2, green list or Gumbel, with groups of users or without."""

    def __init__(self, label: str, secret: bytes) -> None:
        name, _, rest = label.partition(";")
        fields = dict(part.split("=") for part in rest.split(";"))
        self.version, self.green = (2 if name.endswith("-v2") else 1), name.startswith("greenlist")
        self.gamma = Fraction(fields["gamma"]) if self.green else Fraction(1)
        self.groups = int(fields["groups"]) if "groups" in fields else None
        data, who = label.encode("ascii"), f"-v{self.version}".encode("ascii")
        self.commitment = hashlib.blake2b(data, key=secret, digest_size=32, person=b"commitment" + who).hexdigest()
        keys = hashlib.blake2b(data, key=secret, digest_size=48, person=b"watermark" + who).digest()
        self.chacha, self.sip = keys[:32], keys[32:]

    def term(self, ngram: list[int], message: int) -> float:
        """What one scored token adds to the score of a message."""
        nonce = siphash24(self.sip, b"".join(token.to_bytes(4, "little") for token in ngram[:-1]))
        number = message
        if self.groups is not None:
            group, user = divmod(message, self.groups)
            number = group if (nonce >> 32) * 3 >> 32 == 0 else group * 2**16 + user
        entry = ngram[-1] + number if self.version == 1 else ngram[-1] * 2**32 + number
        if not self.green:
            return -math.log1p(-self.word(nonce, 1, 0, entry) / 2**32)
        digits = self.gamma.denominator.bit_length() - 1
        planes = next(power for power in (1, 2, 4, 8) if power >= digits)
        value = 0
        for plane in range(digits):
            value = 2 * value + (self.word(nonce, planes, plane, entry // 32) >> entry % 32 & 1)
        return float(value < self.gamma.numerator)

    def word(self, nonce: int, planes: int, plane: int, index: int) -> int:
        """A word of a plane: where it stands is part of the specification."""
        height = 16 // planes
        if self.version == 1:
            group, r = divmod(index, 16 * height)
            counter, row = 16 * group + r % 16, r // 16
        else:
            counter, row = divmod(index, height)
        return chacha8(self.chacha, counter, nonce)[plane * height + row]

    def log10_p(self, score: float, scored: int) -> float:
        """P(a score at least this large), if nothing was marked: exact for the green list, in 60 digits for Gumbel."""
        if self.green:
            n, whole = self.gamma.numerator, self.gamma.denominator
            ways = term = n**scored
            for k in range(scored, round(score), -1):  # C(scored, k-1)·n^(k-1)·(whole-n)^(scored-k+1)
                term = term * k * (whole - n) // ((scored - k + 1) * n)
                ways += term
            return math.log10(ways) - scored * math.log10(whole)
        with decimal.localcontext() as context:
            context.prec = 60
            mean = decimal.Decimal(score)
            term = total = decimal.Decimal(1)
            for k in range(1, scored):
                term *= mean / k
                total += term
            return float(total.log10() - mean / decimal.Decimal(10).ln())


def any_of(log10_p: float, tests: float) -> float:
    """log10(1 − (1 − p)^tests)."""
    if log10_p + math.log10(tests) < -20:  # then it is tests · p, to 20 digits
        return log10_p + math.log10(tests)
    with decimal.localcontext() as context:
        context.prec = 60 + int(-2 * log10_p)
        p = decimal.Decimal(10) ** decimal.Decimal(log10_p)
        return float((1 - (1 - p) ** decimal.Decimal(tests)).log10())


def main() -> int:
    """Check the claim beside this file. Returns 0 where all of it holds."""
    here = Path(__file__).parent
    claim = json.loads((here / "claim.json").read_text(encoding="utf-8"))
    with (here / "ngrams.csv").open(encoding="ascii") as file:
        ngrams = [list(map(int, row)) for row in csv.reader(file)]
    mark = Mark(claim["label"], bytes.fromhex(Path(sys.argv[1]).read_text(encoding="ascii")))
    score = math.fsum(mark.term(ngram, claim["message"]) for ngram in ngrams)
    log10_p = mark.log10_p(score, len(ngrams))
    corrected = any_of(any_of(log10_p, claim["messages"]), claim["tests"])
    checks = [
        ("the key is the one that was committed to", mark.commitment, claim["commitment"]),
        ("no token and its window are counted twice", len(set(map(tuple, ngrams))), len(ngrams)),
        ("scored tokens", len(ngrams), claim["scored"]),
        ("score", score, claim["score"]),
        ("log10 p of this message", log10_p, claim["log10_p"]),
        ("log10 p, corrected for all messages and tests", corrected, claim["log10_p_global"]),
    ]
    holds = True
    for what, found, claimed in checks:
        same = math.isclose(found, claimed, rel_tol=1e-9) if isinstance(found, float) else found == claimed
        holds = holds and same
        print(f"{'holds ' if same else 'FAILS '} {what}: {found}" + ("" if same else f", claimed {claimed}"))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
