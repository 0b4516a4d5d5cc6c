"""Check one claim about a watermarked text. This needs Python 3.9 or newer, and for one of its checks a library.

  python -I check_claim.py FOLDER [LIST HEAD] [--posted FILE]               if FOLDER has seeds.json: anybody can
  python -I check_claim.py FOLDER SECRET_FILE [LIST HEAD] [--posted FILE]   if it has none

Take this file from a trusted copy of brickscan, never from the person who makes the claim. The arguments are:

- FOLDER: the claim. It comes from the person who makes it and is only read as data. Its files are listed below. With
  any other file in it, the claim is refused.
- SECRET_FILE: the key as hexadecimal text. The holder of the key in escrow, or a court, has it.
- LIST: a copy of the list of published commitments, from the place where it is public.
- HEAD: a head of that list that somebody kept from before the text was posted.
- FILE: your own copy of the text as it was posted. The script then tells in how many characters the claim's text
  differs, and whether a mark can be made of them.

Files of FOLDER:

- claim.json: the claimed values.
- text.txt: the text.
- scored.txt: the text as it is scored, if that differs.
- tokens.csv: each token of the text in order, and whether it is scored.
- tokenizer.json: the tokenizer.
- record.json: the public record of a key of version 3.
- seeds.json: the seeds that the claim shows.
- events.jsonl: which seeds claims have shown. Beside SECRET_FILE: before the text was scanned.
- name.json: the user who has the message, and since when.
- README: not read.

The library `tokenizers` tokenises the text again. Without it the script checks everything else, prints NOT CHECKED for
the tokens and exits with 3. With SECRET_FILE it computes all seeds of a key of version 3. For 2^24 seeds this takes a
minute.

The script prints the checks that hold, those that FAIL, those that were NOT CHECKED for lack of something, the
questions that it never checks, and a last line that sums up. Its exit code is:

- 0: all checks hold.
- 1: a check fails.
- 2: wrong arguments, a folder that cannot be read, too little memory, or Python was ended before the last line. This is
  no answer.
- 3: a check could not be made, and none fails.

The watermark is specified in SPEC.md and SPEC_3.md of brickscan. This file was written from them and shares no code
with the scanner.
"""

import sys

# modules imported after this point could be a forger's, from the folder of this file or from PYTHONPATH
if __name__ == "__main__":
    if not sys.flags.isolated:
        print("run it as: python -I check_claim.py FOLDER [SECRET_FILE] [LIST HEAD] [--posted FILE]", file=sys.stderr)
        print("-I keeps other people's modules out", file=sys.stderr)
        sys.exit(2)
    if sys.version_info < (3, 9):  # noqa: UP036 - whoever checks may have an older one
        print("nothing was checked: Python 3.9 or newer is needed", file=sys.stderr)
        sys.exit(2)

import collections
import contextlib
import csv
import datetime
import decimal
import functools
import hashlib
import io
import itertools
import json
import math
import os
import re
import subprocess
import unicodedata
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

M32, M64 = 2**32 - 1, 2**64 - 1
MOST_BYTES = 2**24  # of a text: the rest is not scored
MOST_TOKENS = 2 * MOST_BYTES  # of a text
LABEL = re.compile(
    r"(greenlist|gumbel)(-v3)?;h=([0-9]|1[0-6])(;gamma=([0-9]{1,3}/[0-9]{1,3}))?(;groups=([0-9]{1,5}))?"
    r"(;seeds=([0-9]{1,2}))?"
)
LINE = re.compile(
    r"[1-9][0-9]{0,19} [0-9]{4}-[0-9]{2}-[0-9]{2} [a-z0-9._-]+ [0-9a-f]{64} [1-9][0-9]{0,19} [0-9a-f]{64} "
    r"([0-9a-f]{64}|-) ([1-9][0-9]{0,9}:[0-9a-f]{64}|-) ([1-9][0-9]{0,19}:[0-9a-f]{64}|-) [0-9a-f]{64}"
)
NO_RECORD = "-"  # in the list, for a key of version 1
FIELDS = (
    *("label", "commitment", "tokenizer_sha256", "text_sha256", "message", "messages", "correction", "scored", "score"),
    *("log10_p", "log10_p_global", "variant", "look", "parts", "beacon_value"),
)
SHOWN_FIELDS = (
    *("begin", "end", "scored_user", "score_user", "log10_p_user", "log10_p_user_global", "event", "salt"),
)  # further fields of a claim that shows seeds
EVENT_FIELDS = ("before", "leaves", "line", "number", "text")
NAME_FIELDS = ("at", "events", "key_id", "path", "place", "salt", "seq", "text_at", "user_id")
RECORD_FIELDS = (
    *("version", "label", "root", "commitment", "tokenizer_sha256", "messages", "normal_form", "looks", "beacon"),
    "earlier",
)
DIGEST = re.compile("[0-9a-f]{64}")
WEAK = -3.0  # a claim fails if its corrected log10 p is above this: chance alone would reach it too often
TRIED = -24.0  # at or below this corrected log10 p, nobody can have tried as many keys as it takes
LARGEST = 2**30  # bytes of a file of a claim
LARGEST_OF = {  # and of these
    "claim.json": 2**20,
    "name.json": 2**20,
    "seeds.json": 2**23,
    "events.jsonl": 2**29,
    "tokens.csv": 2**29,
    "tokenizer.json": 2**27,
}
LARGEST_RECORD = 2**23
LONGEST_VALUE = 4096  # bytes of a beacon's value
LONGEST_LINE = 6000  # characters of what is printed
MOST_WORDS = 500  # characters of a beacon's source, and of its round
MOST_DIGITS = 20  # of a whole number in a claim
MOST_SEEDS = 24  # n: up to 2^n seeds are computed. Each more doubles the time
LANES = 4096  # seeds that are computed at once
MOST_ACCENTS = 30  # on one letter of a text that is normalised: ordering them takes the square of their number
MOST_CHANGES = 200  # characters in which a text and its posted copy are compared; no p is small enough for more
CHARACTERS = 0x110000 - 2048  # of Unicode
LATEST = 253_402_300_800 * 10**6  # microseconds until the year 10000
MOST_POSITIONS = 1000  # positions that count in a claim with seeds
FEWEST_BEFORE = 3  # least h of a key whose seeds are shown: shorter windows occur in too many texts
OLDEST_LIBRARY = (0, 21, 2)  # of `tokenizers`: older ones split some texts otherwise, and know no newer tokenizer
TOO_LITTLE = "there is too little memory here"
ALONE = "CHECK_CLAIM_ALONE"  # in the environment of the process that checks
KNOWN = {
    *("claim.json", "text.txt", "scored.txt", "tokens.csv", "tokenizer.json", "record.json", "README"),
    *("seeds.json", "events.jsonl", "name.json"),
}
LEFT_BY_SYSTEMS = re.compile(r"\.DS_Store|\._.*|Thumbs\.db|desktop\.ini", re.DOTALL)  # of macOS and Windows; never read
BLANK = "\u2581"  # stands for a blank in many tokenizers
VISIBLE = (*range(33, 127), *range(161, 173), *range(174, 256))
INVISIBLE_BYTES = sorted({*range(256)} - {*VISIBLE})
BYTES = {  # by the letter that stands for it in GPT-2's vocabulary, and in most since
    **{chr(byte): byte for byte in VISIBLE},
    **{chr(256 + at): byte for at, byte in enumerate(INVISIBLE_BYTES)},
}
BYTE = re.compile("<0x[0-9A-F]{2}>")  # stands for a byte in many tokenizers
INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
UNSEEN = re.compile(f"[{INVISIBLE}]{{10,}}")
LOOK_ALIKE = (  # letters of Latin, Greek and Cyrillic that look like one of another of these alphabets
    "ABCEHIJKMNOPSTXYZaceghijopqsuvwxy\u0391-\u0393\u0395-\u0397\u0399\u039a\u039c\u039d\u039f-\u03a1\u03a4-\u03a7\u03b5\u03ba"
    "\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u0404-\u0408\u0410\u0412\u0413\u0415\u041a\u041c-\u0425\u0430\u0435\u043a\u043e"
    "\u0440-\u0443\u0445\u0454-\u0458"
)
ALL_LOOK_ALIKE = re.compile(f"[{LOOK_ALIKE}]+")
USUAL = {"LATIN", "GREEK", "CYRILLIC"}
LIKE_NO_OTHER = {  # alphabets whose letters look like none of another
    *("ARABIC", "CJK", "DEVANAGARI", "HANGUL", "HEBREW", "HIRAGANA", "IDEOGRAPHIC", "KATAKANA", "KATAKANA-HIRAGANA"),
    "THAI",
}
HIDDEN = re.compile(f"[{INVISIBLE}]")
# letters of phonetic and of old spelling, many of which look like usual ones, without those of African alphabets
PHONETIC = re.compile(
    "(?![\u0253\u0254\u0256\u0257\u0259\u025b\u0260\u0263\u0268\u0269\u0272\u0283\u0289-\u028b\u0292])"
    "[\u0138\u0184\u0185\u01a6-\u01a8\u01bb-\u01c3\u021c\u021d\u0222\u0223\u0250-\u02af\u03f3\u1c80-\u1c8f"
    "\u1d00-\u1dbf\u2c60-\u2c7f\ua640-\ua69f\ua720-\ua7ff\uab30-\uab6f\U00010780-\U000107bf\U0001df00-\U0001dfff]"
)
ONE_SHAPE = (  # spellings within one alphabet that look alike, in some place or form of the word
    *(("\u00d0", "\u0110", "\u0189"), ("\u015e", "\u0218"), ("\u015f", "\u0219"), ("\u0162", "\u021a")),
    *(("\u0163", "\u021b"), ("\u018e", "\u018f"), ("\u01dd", "\u0259"), ("\u0406", "\u04c0"), ("\u0473", "\u04e9")),
    *(("\u05d5\u05d5", "\u05f0"), ("\u05d5\u05d9", "\u05f1"), ("\u05d9\u05d9", "\u05f2"), ("\u064a", "\u06cc")),
    *(("\u0649", "\u06cc"), ("\u0643", "\u06a9"), ("\u0647", "\u06c1"), ("\u0647", "\u06d5"), ("'", "\u05f3")),
    *(("\u0e40\u0e40", "\u0e41"), ("\u0ec0\u0ec0", "\u0ec1"), ("\u0e33", "\u0e4d\u0e32"), ("\u0eb3", "\u0ecd\u0eb2")),
    *((":", "\u0589"), ("|", "\u0964", "\u104a"), (",", "\u066b", "\u201a"), ("%", "\u066a")),
    *(('"', "\u05f4"), ("\u0964\u0964", "\u0965"), ("\u104a\u104a", "\u104b"), ("\u301c", "\uff5e")),
    *((chr(0x660 + digit), chr(0x6F0 + digit)) for digit in (0, 1, 2, 3, 7, 8, 9)),
)
WHOLE = {"\u0e33", "\u0eb3"}  # letters that normal forms take apart, and nobody writes apart
OTHER_KANA = re.compile(  # Japanese signs that look like those of another kind, which stand beside them
    "(?<![\u30a1-\u30ff])[\u30ab\u30a8\u30bf\u30c8\u30cb\u30cf\u30d8-\u30da\u30ed](?![\u30a1-\u30ff])"
    "|(?<=[\u30a1-\u30ff])[\u3078-\u307a\u4e8c\u529b\u53e3\u5de5\u5915\u535c\u516b\u4e00](?=[\u30a1-\u30ff])"
    "|(?<![\u3041-\u30ff])\u30fc"
)
SIGNS = re.compile(  # that programs show, and of which only quotation marks, dashes and ONE_SHAPE look like others
    "[!-/:-@\\[-`{-~\u00a1-\u00a7\u00a9\u00ab\u00ac\u00ae\u00b0-\u00b3\u00b6\u00b7\u00b9\u00bb-\u00bf\u00d7\u00f7\u2013\u2014"
    "\u2018-\u201e\u2020-\u2022\u2026\u2030\u2032\u2033\u2039\u203a\u2070-\u209c\u20a0-\u20bf\u2116\u2122\u2150-\u215e\u2190-\u21ff"
    "\u221a\u221e\u2248\u2260-\u2265\u2460-\u24ff\u25a0-\u27bf\uff01-\uff5e\U0001f300-\U0001faff"
    "\u055b-\u055e\u0589\u05be\u05f3\u05f4\u060c\u061b\u061f\u066a-\u066c\u06d4\u0964\u0965\u0e3f\u0f0b\u0f0d\u104a\u104b"
    "\u1362-\u1367\u17d4\u17d5\u203b\u3001-\u3003\u3008-\u3012\u3014\u3015\u301c\u30fb]"  # of other alphabets
)
WORD = re.compile(r"[^\W\d_]+")
BLANKS = re.compile(r"\s+")
SEEN_BLANKS = {" ", "\n", "\n\n"}
LINE_BEGIN = r"[^\S\n]*(?:(?:#|//|--|/\*|<!--|;|%|NOTE)[^\S\n]*)?"
LINE_END = r"[^\S\n]*(?:(?:\*/|-->)[^\S\n]*)?"
REFERENCE = r"\s{1,2}(?:https?://[!-~]{1,2048}|data:application/c2pa;base64,[A-Za-z0-9+/=_-]{1,1000000})\s{1,2}"
BLOCK = f"{LINE_BEGIN}-----BEGIN C2PA MANIFEST-----{REFERENCE}-----END C2PA MANIFEST-----{LINE_END}"
ARMOUR = re.compile(rf"(?:\r?\n|\A){BLOCK}\Z|(?:(?<=\n)|\A){BLOCK}\r?\n")
MOST_TERMS = 10_000_000  # terms to compute for other messages of a key of version 1: about a minute
RESERVED_EVERY = 20  # of each 20 messages, the last is given to no user
CONDITIONS = {
    "text": "that scored.txt, or text.txt, is the part of the text that is scored",
    "tokens": "that the tokens are those of the text",
    "positions": "that each token counts, or is left out for a reason",
    "part": "that a part is one of the parts that are tested in every text",
    "key": "that the key is the one that was committed to, and for version 3 the one in its record",
    "tests": "that p is corrected for all messages, parts and tests",
    "score": "that score and p follow from key, message and tokens",
    "rate": "that chance alone rarely does this",
    "own evidence": "that the text is not as well explained by another message",
    "reserved": "that the message can be given to a user",
}
"""Conditions under which brickscan names a user by a text, as far as they are checked here. NEVER has the others."""
NEVER = {
    "holder": "who wrote the text, and who posted it; text can be quoted. Which user the message belongs to, except "
    "for what is said above about the record of a name; that the message was not taken back from that user before the "
    "text; and that no other name has a record of the same message",
    "other keys": "that no message of another key, or in the text's normal form, is found as well; under keys of "
    "version 1, if several are found, no user is named",
    "length": "that the text is as long as scans ask for; p holds for texts of any length",
    "marked by others": "that the holder of the key did not mark the text themselves: they can, for any message",
    "looks": "how many texts were tested before this one was chosen; multiply p by their number",
    "choice": "that key and tokenizer were not chosen so that ordinary text seems marked: how the key was drawn, and "
    "whether the tokenizer has the SHA-256 that the model's maker publishes; a beacon's value that came after all "
    "records leaves nothing to choose",
    "list": "that no other list of keys, and no other record, was published, and that HEAD is older than the text",
    "dates": "that a record is older than its beacon's value, and both than the text; without a witness's time stamp, "
    "dates are the word of the person who makes the claim",
    "others": "which other users' messages are marked in the text: anyone who has the seeds that a claim shows can "
    "see them all",
    "posted": "that text.txt is character for character what was posted. Other words, signs that look alike (I and l, "
    "quotation marks, dashes), blanks and line ends can carry a mark that the post never had: save your own copy of "
    "the post as a file, and run this again with --posted FILE",
    "README": "what README says: the person who makes the claim wrote it",
    "script": "that this file is brickscan's own: take it from a copy that you trust, never from the person who makes "
    "the claim",
}


def siphash24(key: bytes, data: bytes) -> int:
    """Compute SipHash-2-4 (Aumasson and Bernstein 2012)."""
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


def chacha8_words(start: "list[int]", mask: int) -> "list[int]":
    """Compute the words of a ChaCha block of 8 rounds, or of many blocks at once, in lanes of 64 bits.

    start: the words of the block. For many blocks, each word is one big number that holds one block in every lane.
    mask: has the lower 32 bits of every lane.
    """
    s = list(start)
    columns = [(i, 4 + i, 8 + i, 12 + i) for i in range(4)]
    diagonals = [(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)]
    for a, b, c, d in (columns + diagonals) * 4:
        for x, y, z, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            s[x] = (s[x] + s[y]) & mask
            mixed = s[z] ^ s[x]
            s[z] = (mixed << by | mixed >> (32 - by)) & mask
    return [(x + y) & mask for x, y in zip(s, start)]  # noqa: B905 - Python 3.9 has no strict


def words_of(data: bytes) -> "list[int]":
    """Split bytes into words of 32 bits."""
    return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]


@functools.lru_cache(maxsize=1)
def in_lanes(lanes: int) -> "tuple[int, int]":
    """Return two whole numbers whose lanes of 64 bits hold 1, 1, 1 … and 0, 1, 2 …."""
    ones, counted = (b"".join(i.to_bytes(8, "little") for i in those) for those in ([1] * lanes, range(lanes)))
    return int.from_bytes(ones, "little"), int.from_bytes(counted, "little")


@functools.lru_cache(maxsize=1024)
def chacha8(key: bytes, counter: int, nonce: int) -> "list[int]":
    """Compute one ChaCha block of 8 rounds: 16 words."""
    place = [counter & M32, counter >> 32, nonce & M32, nonce >> 32]
    return chacha8_words([*words_of(b"expand 32-byte k" + key), *place], M32)


class Step(NamedTuple):
    """The inputs to the random streams of one window.

    key: 32 bytes.
    nonces: N. Version 3 also has N', which tells repeats of a token.
    """

    key: bytes
    nonces: "tuple[int, ...]"


class Mark:
    """A native watermark under one key: version 1 or 3, green list or Gumbel, with or without groups of users.

    secret: the key. For a claim with seeds, the shown seeds by bucket, 32 bytes each.
    beacon: R of a key of version 3, 32 bytes.
    known: leaves of the seeds that earlier claims showed.
    """

    def __init__(self, label: str, secret: "bytes | dict[int, bytes]", beacon: "bytes | None" = None) -> None:
        match = LABEL.fullmatch(label)
        if match is None:
            raise ValueError(f"label {label!a} is not of a native format")
        name, later, window, _, gamma, _, groups, _, seeds = match.groups()
        self.version, self.green, self.window = (3 if later else 1), name == "greenlist", int(window)
        self.gamma = Fraction(gamma) if gamma else Fraction(1)
        self.groups = int(groups) if groups else None
        if self.green != (gamma is not None) or (self.green and not self._is_share(gamma)):
            raise ValueError(f"label {label!r}: a green list has a gamma n/2^b in lowest terms, b from 1 to 8")
        if groups and not (later and self.window and 2 <= int(groups) <= 2**16 and groups == str(self.groups)):
            raise ValueError(f"label {label!r}: groups are of version 3 with a window, 2 to 65536")
        if bool(later) != bool(seeds) or (seeds and not (4 <= int(seeds) <= 28 and seeds == str(int(seeds)))):
            raise ValueError(f"label {label!r}: version 3 has seeds=n with n from 4 to 28, and version 1 has none")
        self.seeds, self.shown = int(seeds or 0), secret if isinstance(secret, dict) else None
        self.known: frozenset[bytes] = frozenset()
        if isinstance(secret, dict):
            if not self.shows_seeds:
                raise ValueError(f"label {label!r}: only version 3 with h of {FEWEST_BEFORE} or more shows seeds")
        else:
            self._take(label, secret)
        if self.version == 3:
            if beacon is None:
                raise ValueError(f"label {label!r}: version 3 needs R, which follows from record and beacon")
            windows = f"h={self.window};seeds={self.seeds}".encode("ascii")
            public = hashlib.blake2b(windows, digest_size=32, person=b"windows-v3").digest()
            self.sip, self.beacon = [public[:16], public[16:]], int.from_bytes(beacon, "little")

    @property
    def shows_seeds(self) -> bool:
        """Return whether claims can show seeds of the key."""
        return self.version == 3 and self.window >= FEWEST_BEFORE

    def _take(self, label: str, secret: bytes) -> None:
        """Derive the keys of the streams (or seeds) and the commitment from a secret."""
        if not 16 <= len(secret) <= 64:
            raise ValueError(f"the secret has {len(secret)} bytes; 16 to 64 are allowed")
        data, who = label.encode("ascii"), f"-v{self.version}".encode("ascii")
        self.commitment = hashlib.blake2b(data, key=secret, digest_size=32, person=b"commitment" + who).hexdigest()
        size = 48 if self.version == 1 else 32
        keys = hashlib.blake2b(data, key=secret, digest_size=size, person=b"watermark" + who).digest()
        self.chacha, self.sip = keys[:32], [keys[32:]]

    def _is_share(self, gamma: str) -> bool:
        """Return whether γ is n/2^b as the law assumes. Otherwise fewer tokens would be green than γ says."""
        n, whole = self.gamma.numerator, self.gamma.denominator
        return gamma == f"{n}/{whole}" and n < whole <= 256 and whole & (whole - 1) == 0

    @functools.lru_cache(maxsize=2**18)  # noqa: B019 - one mark a process
    def nonces(self, window: "tuple[int, ...]") -> "tuple[int, ...]":
        """Compute the nonce of a window. Version 3 has two."""
        data = b"".join(token.to_bytes(4, "little") for token in window)
        return tuple(siphash24(key, data) for key in self.sip)

    def place(self, ngram: "tuple[int, ...]") -> "tuple[int, ...]":
        """Return the identity of a position, by which repeats are found.

        It is window and token. In version 3 it is both nonces and the token.
        """
        return ngram if self.version == 1 else (*self.nonces(ngram[:-1]), ngram[-1])

    def bucket(self, ngram: "tuple[int, ...]") -> int:
        """Return the bucket of the seed that a position uses."""
        return self.nonces(ngram[:-1])[0] >> (64 - self.seeds)

    def seed(self, bucket: int) -> bytes:
        """Return the seed of a bucket, 32 bytes, from the shown seeds or from the secret."""
        if self.shown is not None:
            return self.shown[bucket]
        return b"".join(word.to_bytes(4, "little") for word in chacha8(self.chacha, 0, bucket)[:8])

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - one mark a process
    def step(self, window: "tuple[int, ...]") -> Step:
        """Compute the key and the nonces of a window."""
        nonces = self.nonces(window)
        if self.version == 1:
            return Step(self.chacha, nonces)
        seed = int.from_bytes(self.seed(self.bucket((*window, 0))), "little")
        return Step((seed ^ self.beacon ^ nonces[1]).to_bytes(32, "little"), nonces)

    def is_shared(self, ngram: "tuple[int, ...]") -> bool:
        """Return whether all users of a group use the same number at this step."""
        return self.groups is not None and words_of(self.step(ngram[:-1]).key)[7] * 3 >> 32 == 0

    def term(self, ngram: "tuple[int, ...]", message: int) -> float:
        """Compute the term that one scored token adds to the score of a message."""
        step, number = self.step(ngram[:-1]), message
        if self.groups is not None:
            group, user = divmod(message, self.groups)
            number = group if self.is_shared(ngram) else group * 2**16 + user
        entry = ngram[-1] + number if self.version == 1 else ngram[-1] * 2**32 + number
        if not self.green:
            draw = self.word(step, 1, 0, entry)
            if self.groups is not None:
                draw = self.digits(step, 8, 8, entry, 2**63) * 2**24 + (draw >> 8)
            return -math.log1p(-draw / 2**32)
        digits = self.gamma.denominator.bit_length() - 1
        planes = next(power for power in (1, 2, 4, 8) if power >= digits)
        return float(self.digits(step, planes, digits, entry) < self.gamma.numerator)

    def score(self, ngrams: "list[tuple[int, ...]]", message: int) -> float:
        """Compute the score of a message.

        Positions that an earlier claim showed add at most their mean. A reader of that claim can choose words by its
        seeds, and a platform can choose which seeds it shows (SPEC_3 §5).
        """
        old: list[float] = []
        new: list[float] = []
        for ngram in ngrams:
            was_shown = bool(self.known) and leaf_of(self.seed(self.bucket(ngram))) in self.known
            (old if was_shown else new).append(self.term(ngram, message))
        if self.green:
            return math.fsum(new) + math.floor(self.gamma * int(math.fsum(old)))
        return math.fsum(new + [min(term, 1.0) for term in old])

    def digits(self, step: Step, planes: int, digits: int, entry: int, first_block: int = 0) -> int:
        """Return the number whose binary digits are the bits of an entry in the first planes, highest digit first."""
        value = 0
        for plane in range(digits):
            value = 2 * value + (self.word(step, planes, plane, entry // 32, first_block) >> entry % 32 & 1)
        return value

    def word(self, step: Step, planes: int, plane: int, index: int, first_block: int = 0) -> int:
        """Return a word of a plane. The specification fixes its place."""
        height = 16 // planes
        if self.version == 1:
            group, r = divmod(index, 16 * height)
            counter, row = 16 * group + r % 16, r // 16
        else:
            counter, row = divmod(index, height)
        return chacha8(step.key, first_block + counter, step.nonces[0])[plane * height + row]

    def root(self) -> bytes:
        """Compute the root of the tree over all seeds (SPEC_3 §2). Its leaf b is the leaf of bucket b."""
        lanes = min(LANES, 2**self.seeds)
        return root_of([root_of(self.leaves(first, lanes)) for first in range(0, 2**self.seeds, lanes)])

    def leaves(self, first: int, lanes: int) -> "list[bytes]":
        """Compute the leaves of `lanes` buckets at once, by arithmetic on big numbers with one seed in each lane."""
        ones, counted = in_lanes(lanes)
        start = [word * ones for word in words_of(b"expand 32-byte k" + self.chacha)]
        words = chacha8_words([*start, 0, 0, first * ones + counted, 0], M32 * ones)
        pairs = [(words[i] | words[i + 1] << 32).to_bytes(8 * lanes, "little") for i in (0, 2, 4, 6)]
        seeds = (b"".join(pair[i : i + 8] for pair in pairs) for i in range(0, 8 * lanes, 8))
        return [leaf_of(seed) for seed in seeds]

    def log10_p(self, score: float, scored: int) -> float:
        """Compute log10 P(a score at least this large) of unmarked text, in 60 digits."""
        with decimal.localcontext() as context:
            context.prec, context.Emax, context.Emin = 60, decimal.MAX_EMAX, decimal.MIN_EMIN
            if self.green:
                n, whole = self.gamma.numerator, self.gamma.denominator
                term = total = decimal.Decimal(1)
                for k in range(scored, round(score), -1):  # C(scored, k-1)·(whole/n-1)^(scored-k+1)
                    term = term * (k * (whole - n)) / ((scored - k + 1) * n)
                    total += term
                return min(0.0, float(total.log10() - scored * (decimal.Decimal(whole) / n).log10()))
            mean = decimal.Decimal(score)
            term = total = decimal.Decimal(1)
            for k in range(1, scored):
                term *= mean / k
                total += term
            return float(total.log10() - mean / decimal.Decimal(10).ln())


def leaf_of(seed: bytes) -> bytes:
    """Return the leaf of a seed of 32 bytes (SPEC_3 §2)."""
    return hashlib.sha256(b"\0" + seed).digest()


def root_of(nodes: "list[bytes]") -> bytes:
    """Return the root over the nodes of one level. Their number is a power of two."""
    while len(nodes) > 1:
        nodes = [hashlib.sha256(b"\1" + nodes[i] + nodes[i + 1]).digest() for i in range(0, len(nodes), 2)]
    return nodes[0]


def root_by(leaf: bytes, bucket: int, path: "list[bytes]") -> bytes:
    """Return the root at the end of a leaf's path. The bits of its bucket give the sides, lowest bit first."""
    for height, neighbour in enumerate(path):
        pair = neighbour + leaf if bucket >> height & 1 else leaf + neighbour
        leaf = hashlib.sha256(b"\1" + pair).digest()
    return leaf


def windows_of(counted: int) -> "set[tuple[int, int]]":
    """Return the windows that a look at parts examines, for so many scored tokens.

    They are all tokens, and windows of 24·√2^i tokens that start after each quarter of their length.
    """
    lengths = [math.isqrt(24**2 * 2**i - 1) + 1 for i in range(64)]
    found = {(b, b + n) for n in lengths if n < counted for b in (*range(0, counted - n, n // 4), counted - n)}
    return found | {(0, counted)}


def any_of(log10_p: float, tests: float) -> float:
    """Compute log10(1 − (1 − p)^tests)."""
    if log10_p + math.log10(tests) < -20:  # then tests · p is right to 20 digits
        return log10_p + math.log10(tests)
    with decimal.localcontext() as context:
        context.prec = 60 + int(-2 * log10_p)
        p = decimal.Decimal(10) ** decimal.Decimal(log10_p)
        return float((1 - (1 - p) ** decimal.Decimal(tests)).log10())


class Findings:
    """The findings so far, by condition. Each line is printed at once."""

    def __init__(self) -> None:
        self.of: dict[str, set[str]] = {}
        self.failing: list[str] = []
        self.lines: collections.Counter[str] = collections.Counter()

    @property
    def failed(self) -> bool:
        """Return whether a check failed."""
        return bool(self.failing)

    @property
    def unchecked(self) -> bool:
        """Return whether a check could not be made."""
        return self.lines["NOT CHECKED"] > 0

    @property
    def in_sum(self) -> str:
        """Return a line that sums up the findings."""
        held, left = self.lines["holds"], self.lines["NOT CHECKED"]
        means = "no fault in what was checked" if left else "all that this file checks holds"
        means = "the claim is void" if self.failed else means
        return f"in sum: {held} hold, {len(self.failing)} fail, {left} not checked: {means}"

    def equal(self, condition: str, what: str, found: Any, claimed: Any) -> None:  # noqa: ANN401 - as claims have it
        """Compare a computed value with the claimed one. Floats are compared to nine digits."""
        same = type(found) is type(claimed) and found == claimed
        if isinstance(found, float) and type(claimed) in (int, float):
            same = math.isclose(found, claimed, rel_tol=1e-9)
        self.holds(condition, same, f"{what}: {found}" + ("" if same else f", claimed {claimed!a}"))

    def holds(self, condition: str, is_so: bool, what: str) -> None:
        """Note a check and its result."""
        self.note(condition, "holds" if is_so else "FAILS", what)

    def left(self, condition: str, what: str) -> None:
        """Note a claimed value that was not checked."""
        self.note(condition, "NOT CHECKED", what)

    def note(self, condition: str, result: str, what: str) -> None:
        """Print one result."""
        self.of.setdefault(condition, set()).add(result)
        self.lines[result] += 1
        if len(what) > LONGEST_LINE:  # an error of Python's can hold a whole file of whoever makes the claim
            what = f"{what[:LONGEST_LINE]} ..."
        if result == "FAILS":
            self.failing.append(what)
        print(f"{result:11} {what}", flush=True)


def first_bytes(raw: bytes) -> bytes:
    """Return at most MOST_BYTES bytes of a text.

    They end at the end of a character: up to three bytes of a character that would be cut are left out.
    """
    end = min(len(raw), MOST_BYTES)
    while end < len(raw) and end > MOST_BYTES - 3 and raw[end] & 0xC0 == 0x80:
        end -= 1
    return raw[:end]


def without_manifests(text: str) -> str:
    """Return a text without C2PA manifests (C2PA 2.4, A.8, A.9) and without other long runs of invisible characters."""
    return ARMOUR.sub("", UNSEEN.sub("", text))


def check_text(files: "dict[str, bytes]", claim: "dict[str, Any]", findings: Findings) -> str:
    """Check the scored text against the text of the claim, and return it."""
    raw = files["text.txt"]
    findings.equal("text", "SHA-256 of text.txt", hashlib.sha256(raw).hexdigest(), claim["text_sha256"])
    name = "scored.txt" if "scored.txt" in files else "text.txt"
    scored = files[name].decode("utf-8", errors="replace")
    if claim["variant"] is None:
        what = f"{name} is the part of the text that is scored: at most its first 16 MiB, without a manifest"
        findings.holds("text", scored == scored_text(raw), what)
    else:
        findings.left("text", f"that {name} is the scored text, normalised: read both")
    return scored


def check_posted(text: str, posted: str, log10_p: float, findings: Findings) -> None:
    """Check that the text of a claim is what was posted.

    text: the claim's.
    posted: a copy of the text as it was posted.
    log10_p: the larger one of both rules, corrected.
    """
    text, posted = as_saved(text), as_saved(posted)
    changes = changes_between(posted, text, MOST_CHANGES)
    if not changes:
        findings.holds("text", True, "text.txt is the posted copy, character for character")
        return
    at = same_run(posted, 0, text, 0)
    number = f"more than {characters(MOST_CHANGES)}" if changes > MOST_CHANGES else characters(changes)
    what = f"{number} by which text.txt differs from the posted copy, first at character {at + 1},"
    advice = f"there it has {text[at : at + 20]!a}"  # never the copy's: it can be another file, such as a secret
    check_changes(what, advice, len(text), changes, log10_p, findings)


def check_unseen(text: str, variant: "str | None", log10_p: float, findings: Findings) -> None:
    """Check that a text is not marked by characters that its readers do not see.

    text: the part of the claim's text that is scored.
    variant: the form in which it was tested. None: as written.
    log10_p: the larger one of both rules, corrected.
    """
    changes = characters_unseen(text)
    if changes:
        own, advice = "text", "give a copy of what was posted with --posted"
        if variant is not None:
            own, advice = f"{variant} text", "look for them in your own copy of the post"
        what = f"{characters(changes)} of the {own}, which programs do not show or show as others,"
        check_changes(what, advice, len(text), changes, log10_p, findings)


def check_changes(what: str, advice: str, length: int, changes: int, log10_p: float, findings: Findings) -> None:
    """Check that no mark can be made of so many characters, because p is too small to be reached by choosing them."""
    p = log10_p + log10_texts_near(length + changes, changes)
    if changes <= MOST_CHANGES and p <= TRIED:
        findings.holds("text", True, f"log10 p is at most {p:.6g} even if {what} were chosen for it")
    else:
        were = "was" if changes == 1 else "were"
        findings.left("text", f"that {what} {were} posted: such characters can make a mark; {advice}")


def characters(number: int) -> str:
    """Write a number of characters."""
    return f"{number} character" + ("" if number == 1 else "s")


def log10_texts_near(length: int, changes: int) -> float:
    """Return log10 of a bound on the number of texts that so many changes, or fewer, make of a text.

    A change inserts a character, removes one or puts one in the place of another. So there are 2 C + 1 kinds of them
    for C characters, and they are some of the length + changes steps in which both texts are read side by side.
    """
    steps = length + changes
    places = math.lgamma(steps + 1) - math.lgamma(changes + 1) - math.lgamma(length + 1)
    return places / math.log(10) + changes * math.log10(2 * CHARACTERS + 1)


def changes_between(before: str, after: str, most: int) -> int:
    """Return how many characters must be inserted, removed or replaced to make one text of another.

    This is Ukkonen's algorithm (Algorithms for approximate string matching, 1985): for each number of changes, how far
    into `before` one can get when `after` is ahead by so many characters.

    most: the number of changes after which it gives up, and returns one more.
    """
    reach, changes = {0: same_run(before, 0, after, 0)}, 0
    while reach.get(len(after) - len(before), -1) < len(before):
        changes += 1
        if changes > most:
            break
        further = {}
        for ahead in range(-changes, changes + 1):
            ways = [reach[ahead] + 1] if ahead in reach else []  # replace, insert, remove
            ways += [reach[ahead - 1]] if ahead - 1 in reach else []
            ways += [reach[ahead + 1] + 1] if ahead + 1 in reach else []
            at = min(max(ways, default=-1), len(before), len(after) - ahead)
            if at >= max(0, -ahead):
                further[ahead] = at + same_run(before, at, after, at + ahead)
        reach = further
    return changes


def same_run(one: str, begin: int, other: str, other_begin: int) -> int:
    """Return how many characters two texts share from a place in each on."""
    run, step = 0, 1
    while step:
        i, j = begin + run, other_begin + run
        if max(i + step - len(one), j + step - len(other)) <= 0 and one[i : i + step] == other[j : j + step]:
            run, step = run + step, step * 2
        else:
            step //= 2
    return run


def with_line_ends(text: str) -> str:
    """Return a text with line ends as Unix writes them, and none at its end.

    They stay as they are where lines end in several ways.
    """
    if text.count("\r\n") == text.count("\n"):
        text = text.replace("\r\n", "\n")
    return text[:-1] if text.endswith("\n") else text


def as_saved(text: str) -> str:
    """Return a text without what editors change when they save it: line ends, and a byte order mark before it."""
    return with_line_ends(text[1:] if text.startswith("\ufeff") else text)


def characters_unseen(text: str) -> int:
    """Count the characters of a text that programs do not show, or show as others.

    By them, whoever makes a claim could mark a text that somebody else wrote, and change no word. Characters that show
    a difference, however small, are not counted: I and l, for example.
    """
    text = with_line_ends(text)
    # 1. blanks, except for single ones and ends of lines and paragraphs
    unseen = sum(len(run) for run in BLANKS.findall(text) if run not in SEEN_BLANKS)
    # 2. accents apart from their letters, and all else that is another spelling of the same characters
    unseen += sum(len(word) for word in text.split() if not unicodedata.is_normalized("NFC", word))
    # 3. characters without a shape, letters of another style, and accents that no letter before them has
    letter = ""
    for one in text:
        is_accent = unicodedata.category(one)[0] == "M"
        letter = letter if is_accent else one
        is_strange = is_accent and alphabet_of(one) != alphabet_of(letter)
        unseen += not one.isspace() and (is_strange or is_hidden(one))
    # 4. words of several alphabets, and those of another one than most
    words = [(word, [alphabet_of(one) for one in word if one.isalpha()]) for word in WORD.findall(text)]
    (own, _), *_ = [*collections.Counter(name for _, names in words for name in names).most_common(1), ("", 0)]
    for word, names in words:
        others = {*names} - LIKE_NO_OTHER
        is_foreign = others and own not in others and (ALL_LOOK_ALIKE.fullmatch(word) or not others <= USUAL)
        unseen += len(word) if len(others) > 1 or is_foreign else 0
    # 5. of spellings that look alike, all but the most usual
    unseen += len(OTHER_KANA.findall(text))
    counts = [[text.count(spelling) for spelling in spellings] for spellings in ONE_SHAPE]
    return unseen + sum(sum(of_spellings) - max(of_spellings) for of_spellings in counts)


def is_hidden(one: str) -> bool:
    """Return whether a character is none of SIGNS, and no usual letter, accent or digit with a shape."""
    if HIDDEN.match(one) is not None:
        return True
    kind, is_plain = unicodedata.category(one), one in WHOLE or unicodedata.is_normalized("NFKC", one)
    if kind[0] == "L" or kind in ("Nd", "Nl"):
        return PHONETIC.match(one) is not None or not is_plain
    return kind[0] != "M" and SIGNS.match(one) is None


@functools.lru_cache(maxsize=2**16)
def alphabet_of(letter: str) -> str:
    """Return the first word of a letter's name, such as LATIN. Without a letter, it has none."""
    return unicodedata.name(letter, "").split(" ", 1)[0] if letter else ""


def scored_text(raw: bytes) -> str:
    """Return the part of a posted text, as it stands, that is scored.

    It is the first 16 MiB without manifests, with U+FFFD in place of bytes that are not UTF-8.
    """
    replaced = first_bytes(raw).decode("utf-8", errors="replace").encode("utf-8")
    return without_manifests(first_bytes(replaced).decode("utf-8", errors="replace"))


def read_tokens(files: "dict[str, bytes]") -> "list[tuple[int, str]]":
    """Read the tokens of the text, and whether each is scored.

    Raises:
        ValueError: a token is not a number of 32 bits, or there are more than any text has.
    """
    raw = files["tokens.csv"]
    if raw.count(b"\n") > MOST_TOKENS:
        raise ValueError(f"tokens.csv has more than {MOST_TOKENS} lines")
    lines = csv.reader(io.StringIO(raw.decode("ascii")))
    rows = [(int(token), sys.intern(status)) for token, status in lines]
    if any(not 0 <= token < 2**32 for token, _ in rows):
        raise ValueError("tokens.csv: a token is not a 32-bit number")
    return rows


def check_tokens(
    rows: "list[tuple[int, str]]", claim: "dict[str, Any]", mark: Mark, findings: Findings
) -> "tuple[list[tuple[int, ...]], tuple[int, int, int]]":
    """Check that each scored n-gram is new in the text, and that no token is left out without a reason.

    Returns:
        The scored n-grams of the text.
        Their part: places of the first one and after the last one, among all tokens that could be scored, and the
        number of these.
    """
    tokens = [token for token, _ in rows]
    met = set()
    ngrams, inside, wrong, filtered, counted = [], [], [], 0, 0
    for index, (_, status) in enumerate(rows):
        ngram = tuple(tokens[index - mark.window : index + 1])
        place = mark.place(ngram) if index >= mark.window else ()
        expected = "window" if index < mark.window else "repeat" if place in met else "scored"
        met.add(place)
        if expected == "scored" and status == "filter":
            filtered += 1
        elif expected == "scored" and (status == "scored" or (claim["look"] and status == "outside the part")):
            if status == "scored":
                ngrams.append(ngram)
                inside.append(counted)
            counted += 1
        elif status != expected:
            wrong.append(index)
    detail = f"; the first that is not: row {wrong[0] + 1}" if wrong else ""
    findings.holds(
        "positions", not wrong, f"each of {len(tokens)} tokens is scored, or has no whole window, or repeats{detail}"
    )
    if filtered:
        what = (
            f"{filtered} tokens are left out as common n-grams: if they were chosen by their scores, p would be too "
            "small"
        )
        findings.left("positions", what)
    return ngrams, (inside[0], inside[-1] + 1, counted) if inside else (0, 0, counted)


def check_part(
    claim: "dict[str, Any]", part: "tuple[int, int, int]", scored: int, log10_p: float, findings: Findings
) -> None:
    """Check that the part is one of those that are examined in every text, and that p is corrected for all of them."""
    begin, end, counted = part
    findings.holds(
        "part", end - begin == scored, f"the part is one run: tokens {begin + 1} to {end} of {counted} that count"
    )
    windows = windows_of(counted)
    if (begin, end) in windows and claim["parts"] >= len(windows):
        findings.holds(
            "part", True, f"the part is a window of the text; parts = {claim['parts']}: it has {len(windows)}"
        )
        return
    runs = counted * (counted + 1) // 2
    p = any_of(any_of(any_of(log10_p, claim["messages"]), runs), claim["correction"])
    findings.left(
        "part",
        f"that the part is a paragraph or a quotation, one of {claim['parts']} parts: read it; chosen by its score "
        f"among all {runs} runs, log10 p is {p:.6g}",
    )


def places_in(mark: Mark, tokens: "list[int]", begin: int, end: int) -> "list[int]":
    """Return the tokens of a run that count: those whose whole window is in the run, and of repeats only the first."""
    first: dict[tuple[int, ...], int] = {}
    for at in range(begin + mark.window, end):
        first.setdefault(mark.place(tuple(tokens[at - mark.window : at + 1])), at)
    return list(first.values())


def chosen_of(mark: Mark, tokens: "list[int]", places: "list[int]") -> "list[int]":
    """Return the positions of a unit that its claim counts, in order: at most 1,000, chosen by a public hash."""

    def choice(at: int) -> bytes:
        *nonces, token = mark.place(tuple(tokens[at - mark.window : at + 1]))
        return hashlib.sha256(b"".join(n.to_bytes(8, "little") for n in nonces) + token.to_bytes(4, "little")).digest()

    return sorted(sorted(places, key=choice)[:MOST_POSITIONS]) if len(places) > MOST_POSITIONS else places


def check_unit(
    rows: "list[tuple[int, str]]", claim: "dict[str, Any]", mark: Mark, findings: Findings
) -> "list[tuple[int, ...]]":
    """Check unit and positions of a claim with seeds (SPEC_3 §5). Return the n-grams that count.

    A unit has its own positions, as if it were a text. It is the whole text or one of its windows. A window is a run of
    the text's tokens that count, with the h tokens before the first one.
    """
    tokens, (begin, end) = [token for token, _ in rows], (claim["begin"], claim["end"])
    if not (type(begin) is type(end) is int and 0 <= begin <= end <= len(tokens)):
        raise ValueError(f"begin = {begin!a}, end = {end!a}: not a range of the {len(tokens)} tokens")
    if claim["look"] is None:
        findings.holds("part", (begin, end) == (0, len(tokens)), f"the unit is the whole text: {len(tokens)} tokens")
    else:
        counted = places_in(mark, tokens, 0, len(tokens))
        windows = {(counted[b] - mark.window, counted[e - 1] + 1) for b, e in windows_of(len(counted)) if e > b}
        what = f"tokens {begin + 1} to {end} are a window of the text"
        findings.holds("part", (begin, end) in windows, what)
        findings.holds("part", claim["variant"] is None, "windows are only tested in the text as written")
        what = f"parts = {claim['parts']}: the text has {len(windows)} windows"
        findings.holds("part", claim["parts"] >= len(windows), what)
    places = places_in(mark, tokens, begin, end)
    scored = chosen_of(mark, tokens, places)
    expected = ["outside the part"] * len(tokens)
    expected[begin:end] = ["repeat"] * (end - begin)
    expected[begin : begin + mark.window] = ["window"] * min(mark.window, end - begin)
    for at in places:
        expected[at] = "not chosen"
    for at in scored:
        expected[at] = "scored"
    wrong = [at for at, (_, status) in enumerate(rows) if status != expected[at]]
    detail = f"; the first that is not: row {wrong[0] + 1}" if wrong else ""
    what = f"each of {end - begin} tokens is scored, or has no whole window, or repeats, or is not among the"
    findings.holds("positions", not wrong, f"{what} {MOST_POSITIONS} of smallest hash{detail}")
    return [tuple(tokens[at - mark.window : at + 1]) for at in scored]


class ShownSeed(NamedTuple):
    """A seed that a claim shows.

    seed: 32 bytes.
    path: hashes of 32 bytes, beginning with the neighbour of the leaf.
    """

    seed: bytes
    path: "list[bytes]"


def read_seeds(files: "dict[str, bytes]") -> "dict[int, ShownSeed]":
    """Read the seeds that a claim shows, by their buckets.

    Raises:
        ValueError: seeds.json is not valid.
    """
    shown = read_json(files["seeds.json"], "seeds.json")
    seeds = {}
    for bucket, one in shown.items():
        if re.fullmatch("0|[1-9][0-9]{0,8}", bucket) is None or set(one) != {"seed", "path"}:
            raise ValueError(f"seeds.json: {bucket!a}: not a bucket with seed and path")
        if not all(map(is_digest, (one["seed"], *one["path"]))) or type(one["path"]) is not list:
            raise ValueError(f"seeds.json: bucket {bucket}: a seed or hash is not 32 bytes in hexadecimal text")
        seeds[int(bucket)] = ShownSeed(bytes.fromhex(one["seed"]), [bytes.fromhex(node) for node in one["path"]])
    return seeds


def check_seeds(
    shown: "dict[int, ShownSeed]", mark: Mark, ngrams: "list[tuple[int, ...]]", record: "Record", findings: Findings
) -> bool:
    """Check that every position has its seed, and that each seed's path leads to the record's root.

    Return whether all positions have one.
    """
    met = {mark.bucket(ngram) for ngram in ngrams}
    missing, more = len(met - set(shown)), len(set(shown) - met)
    detail = f"; {missing} are missing" if missing else f"; {more} do not belong to any position" if more else ""
    findings.holds("positions", not missing and not more, f"each position has its seed: {len(met)} seeds{detail}")
    twice = len(shown) - len({one.seed for one in shown.values()})
    findings.holds("key", not twice, "seeds of different buckets are different")
    short = [bucket for bucket, one in shown.items() if len(one.path) != mark.seeds]
    detail = f"; the path of bucket {short[0]} has not" if short else ""
    findings.holds("key", not short, f"the path of each seed has {mark.seeds} hashes{detail}")
    root = bytes.fromhex(record.fields["root"])
    astray = [bucket for bucket, one in shown.items() if root_by(leaf_of(one.seed), bucket, one.path) != root]
    detail = f"; the path of bucket {astray[0]} does not" if astray else ""
    findings.holds("key", not astray, f"the path of each seed leads to the root of the record{detail}")
    return not missing


class Event(NamedTuple):
    """An event of a key: a claim about a text shows seeds (SPEC_3 §5).

    head: SHA-256 of its line, as hex.
    text: SHA-256 of the claim's salt and text, as hex.
    leaves: leaves of the seeds that it shows first, as hex.
    """

    head: str
    text: str
    leaves: "list[str]"


def read_events(files: "dict[str, bytes]") -> "list[Event]":
    """Read the events of the key, each of which follows from the one before.

    Raises:
        ValueError: events.jsonl is not valid.
    """
    lines = files["events.jsonl"].split(b"\n")
    if lines.pop() != b"":
        raise ValueError("events.jsonl: the last line is incomplete")
    before, met, events = "0" * 64, set[str](), list[Event]()
    for number, line in enumerate(lines, start=1):
        event = read_json(line, "events.jsonl")
        if (
            type(event) is not dict
            or set(event) != set(EVENT_FIELDS)
            or type(event["leaves"]) is not list
            or not all(map(is_digest, (event["before"], event["line"], event["text"], *event["leaves"])))
            or json.dumps(event, sort_keys=True, separators=(",", ":")).encode("ascii") != line
        ):
            raise ValueError(f"events.jsonl, line {number}: not an event in canonical JSON")
        named = set(event["leaves"])
        follows = type(event["number"]) is int and (event["number"], event["before"]) == (number, before)
        if not follows or event["leaves"] != sorted(named) or named & met:
            raise ValueError(f"events.jsonl, line {number}: does not follow from the lines before")
        met |= named
        before = hashlib.sha256(line).hexdigest()
        events.append(Event(before, event["text"], event["leaves"]))
    return events


def leaves_in(events: "list[Event]") -> "frozenset[bytes]":
    """Return the leaves of all seeds that events show."""
    return frozenset(bytes.fromhex(leaf) for event in events for leaf in event.leaves)


def check_events(
    files: "dict[str, bytes]",
    claim: "dict[str, Any]",
    shown: "dict[int, ShownSeed]",
    published: "list[list[str]]",
    findings: Findings,
) -> "tuple[frozenset[bytes], int]":
    """Check the events of the key (SPEC_3 §5). Return the leaves that were shown before the claim's own event.

    Return also the number of the event by which all seeds of the claim were shown.

    The own event is the first one about the text. Later events belong to other claims, or to later ones about the text,
    by which its words could not be chosen. They connect the claim's event to a head that is published.

    Raises:
        ValueError: events.jsonl, or the claim's event or salt, is not valid.
    """
    events, salt, own = read_events(files), claim["salt"], claim["event"]
    if type(salt) is not str or re.fullmatch("[0-9a-f]{32}", salt) is None:
        raise ValueError("salt has 16 bytes, in digits 0 to 9 and a to f")
    if type(own) is not int or not 1 <= own <= len(events):
        raise ValueError(f"event = {own!a}: not one of the {len(events)} in events.jsonl")
    findings.holds("events", True, f"{len(events)} events follow from each other; the claim's own is event {own}")
    digest = hashlib.sha256(bytes.fromhex(salt) + files["text.txt"]).hexdigest()
    findings.holds("events", digest == events[own - 1].text, "the claim's own event is about its text")
    earlier = leaves_in(events[: own - 1])
    new = {leaf_of(one.seed) for one in shown.values()} - earlier
    what = f"this event and later ones name the {len(new)} seeds that no earlier one shows"
    findings.holds("events", new <= leaves_in(events[own - 1 :]), what)
    stated = events_of(published, claim)
    if check_heads(events, stated, findings):
        if any(own <= number <= len(events) for number, _ in stated):
            findings.holds("events", True, "the list has the heads of these events: none was left out")
        else:
            what = f"that no earlier event was left out, which can make p too small: {events[-1].head} is the head"
            later = min((number for number, _ in stated if number > len(events)), default=0)
            why = f"the list has event {later}; a newer folder of the same claim has it, ask for one"
            why = why if later else f"the list has none from event {own} on"
            findings.left("events", f"{what} after event {len(events)}, and {why}")
    last = max([own, *(at for at, event in enumerate(events, 1) if not new.isdisjoint(leaves_in([event])))])
    return earlier, last


def check_heads(events: "list[Event]", stated: "list[tuple[int, str]]", findings: Findings) -> bool:
    """Check that the list has no other heads of the key's events. Return whether it is so.

    stated: number and head of the last event, in each line of the key.
    """
    # if the list goes back, events were removed: the ones that follow would not know of the seeds shown before
    numbers = [number for number, _ in stated]
    fallen = [b for a, b in zip(numbers, numbers[1:]) if b < a]  # noqa: B905, RUF007 - Python 3.9
    if fallen:
        what = f"events of the key are only ever added: the list goes back to {fallen[0]} of them"
        findings.holds("events", False, what)
    others = [number for number, head in stated if 0 < number <= len(events) and events[number - 1].head != head]
    if others:
        what = f"the list has the heads of these events: that of event {others[0]} is different"
        findings.holds("events", False, what)
    return not (fallen or others)


def events_of(published: "list[list[str]]", claim: "dict[str, Any]") -> "list[tuple[int, str]]":
    """Return the number and the head of the last event of the claim's key, as each line of the key states them.

    0: nothing was shown.
    """
    return [(events_in(line), line[7].partition(":")[2]) for line in published if line[3] == claim["commitment"]]


def events_in(line: "list[str]") -> int:
    """Return the number of events of its key that a line of the list states."""
    return 0 if line[7] == "-" else int(line[7].split(":")[0])


def check_unshown(
    events: "list[Event]", published: "list[list[str]]", claim: "dict[str, Any]", findings: Findings
) -> None:
    """Check by the list that a claim with the secret has all events by which claims showed seeds of the key.

    Readers of claims with seeds can choose words by them (SPEC_3 §5). Where the claim has their event, such words add
    their mean at most. Of other events, this script cannot tell which words those are.
    """
    stated = events_of(published, claim)
    if not stated:
        what = "that no claim showed seeds of this key, which let others than its holder mark: name LIST and HEAD"
        findings.left("positions", what)
    elif not events or check_heads(events, stated, findings):
        most = max(number for number, _ in stated)
        if most > len(events):
            what = f"that nobody marked words with seeds that claims showed: the list has {most} claims of this key, of"
            why = f"which {len(events)} count here, and anyone who has another one can mark for any user where its"
            findings.left("positions", f"{what} {why} seeds occur")
        else:
            what = "the list has no claim that shows seeds of this key and does not count here"
            findings.holds("positions", True, what)


def check_user(mark: Mark, ngrams: "list[tuple[int, ...]]", claim: "dict[str, Any]", findings: Findings) -> None:
    """Check the second p-value of a claim with seeds: on the steps that no other user of the group reads."""
    own = [ngram for ngram in ngrams if not mark.is_shared(ngram)]
    score = mark.score(own, claim["message"])
    log10_p = mark.log10_p(score, len(own))
    findings.equal(
        "own evidence", "scored tokens that no other user of the group reads", len(own), claim["scored_user"]
    )
    findings.equal("own evidence", "score on them", score, claim["score_user"])
    findings.equal("own evidence", "log10 p of this message on them", log10_p, claim["log10_p_user"])
    corrected = corrected_p(log10_p, mark.groups or claim["messages"], claim)
    findings.equal("own evidence", "the same, corrected", corrected, claim["log10_p_user_global"])


def check_name(
    files: "dict[str, bytes]",
    claim: "dict[str, Any]",
    published: "tuple[list[list[str]], int | None]",
    findings: Findings,
) -> None:
    """Check that the message was given to the user of the claim, and when (SPEC_3 §5).

    For each key, the list has the root of a tree (RFC 9162) over the records of all messages given until then. A line
    at or before HEAD is older than the text, whoever wrote it.

    Raises:
        ValueError: name.json is not valid.
    """
    if "name.json" not in files:
        return
    name = read_json(files["name.json"], "name.json")
    check_name_shape(name)
    at, place, events = name["at"], name["place"], name["events"]
    when, what = iso_time(at), f"message {claim['message']} was given to {name['user_id']!a}"
    if name["text_at"] is not None:
        # no user is named by these dates: whoever writes name.json can write any name beside any date
        dates = f"the message was given on {when}, and the text has been known since {iso_time(name['text_at'])}"
        findings.holds("holder", at <= name["text_at"], f"by the claim's own dates {dates}: the message came first")
    label = f"{len(name['key_id'].encode('utf-8'))}:{name['key_id']}allocated"
    seal = hashlib.sha256(bytes.fromhex(name["salt"]) + b"\1" + name["user_id"].encode("utf-8")).digest()
    numbers = b"".join(number.to_bytes(8, "big") for number in (name["seq"], claim["message"], at))
    leaf = hashlib.sha256(b"\0" + numbers + hashlib.sha256(label.encode("utf-8")).digest() + seal).digest()
    if events is None:
        what = f"that {what} on {when}: no list has a root with its record, and so it is the platform's word"
        findings.left("holder", what)
        return
    root = root_of_log(leaf, place, events, [bytes.fromhex(node) for node in name["path"]])
    lines, head_at = published
    of_key, count = [name["key_id"], claim["commitment"]], f"{events}:"
    ours = [line for line in lines if line[2:4] == of_key and line[8].startswith(count)]
    # without this bound, every message could be given to every user before any text. A claim can state more messages
    messages = min([claim["messages"], *(int(line[4]) for line in ours)])
    bound = f"{events} records of names: a message is given once and taken back once, and there are {messages}"
    findings.holds("holder", events <= 2 * messages, bound)
    if root is None or any(line[8] != count + root.hex() for line in ours):
        findings.holds("holder", False, f"{what}: its record is one of the {events} that the list has a root of")
    elif ours and int(ours[0][0]) <= (head_at or 0):
        before = f"the list has its record on {ours[0][1]}, at or before HEAD"
        findings.holds("holder", True, f"{what}: {before}, and so before the text if HEAD is")
    else:
        why = (
            f"the list has its record on {ours[0][1]}, after HEAD" if ours else "no list that you named has its record"
        )
        findings.left("holder", f"that {what} before HEAD was kept: {why}; {when} is the platform's word")


def check_name_shape(name: object) -> None:
    """Check that name.json has its fields, each of the right kind.

    Raises:
        ValueError: it does not.
    """
    if type(name) is not dict or set(name) != set(NAME_FIELDS):
        raise ValueError(f"name.json: not an object with the fields {', '.join(NAME_FIELDS)}")
    events, path, words = name["events"], name["path"], (name["key_id"], name["user_id"])
    numbers = [name["at"], name["seq"], name["place"], *(n for n in (events, name["text_at"]) if n is not None)]
    right = (
        all(type(number) is int and 0 <= number < LATEST for number in numbers)
        and all(type(word) is str and 1 <= len(word) <= MOST_WORDS for word in words)
        and type(name["salt"]) is str
        and re.fullmatch("[0-9a-f]{32}", name["salt"]) is not None
        and type(path) is list
        and all(map(is_digest, path))
        and (events is None or name["place"] < events)
    )
    if not right:
        raise ValueError("name.json: a field has a type that no record of a name has")


def iso_time(microseconds: int) -> str:
    """Write a time of microseconds since 1970 (UTC) as text, to the second."""
    began = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)  # noqa: UP017 - Python 3.9 has no UTC
    return f"{began + datetime.timedelta(seconds=microseconds // 10**6):%Y-%m-%d %H:%M:%S} UTC"


def root_of_log(leaf: bytes, place: int, leaves: int, path: "list[bytes]") -> "bytes | None":
    """Return the root of a tree with so many leaves, from a leaf and its path (RFC 9162, 2.1.3.2).

    None: the path has the wrong length.
    """
    last = leaves - 1
    for neighbour in path:
        if last == 0:
            return None
        if place & 1 or place == last:
            leaf = hashlib.sha256(b"\1" + neighbour + leaf).digest()
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            leaf = hashlib.sha256(b"\1" + leaf + neighbour).digest()
        place, last = place >> 1, last >> 1
    return leaf if last == 0 else None


def corrected_p(log10_p: float, messages: int, claim: "dict[str, Any]") -> float:
    """Compute log10 p of the best of so many messages, corrected for all parts and all tests."""
    return any_of(any_of(any_of(log10_p, messages), claim["parts"]), claim["correction"])


def own_p(mark: Mark, ngrams: "list[tuple[int, ...]]", claim: "dict[str, Any]") -> float:
    """Compute log10 p of a group's message on the user steps, corrected (rule 2).

    Only this message of the group reads these steps.
    """
    own = [ngram for ngram in ngrams if not mark.is_shared(ngram)]
    log10_p = mark.log10_p(mark.score(own, claim["message"]), len(own))
    return corrected_p(log10_p, mark.groups or 1, claim)


def check_own_evidence(
    mark: Mark, ngrams: "list[tuple[int, ...]]", claim: "dict[str, Any]", score: float, findings: Findings
) -> None:
    """Check that the text is evidence for this message and not for a similar one (SPEC_3 §4, "Naming", rule 2).

    Text that was marked for one user of a group raises the scores of the whole group on the shared steps. Text that was
    marked under version 1 can raise the score of any message.
    """
    messages, message = claim["messages"], claim["message"]
    if mark.groups is not None:
        p, steps = own_p(mark, ngrams, claim), sum(not mark.is_shared(ngram) for ngram in ngrams)
        what = f"on the {steps} steps that no other of its group reads, log10 p of the best of its group: {p:.6g}"
        findings.holds("own evidence", p <= WEAK, what)
    elif mark.version == 3 or messages == 1:
        findings.holds("own evidence", True, "no other message reads the tokens that this one reads")
    elif messages * len(ngrams) > MOST_TERMS:
        findings.left("own evidence", f"that none of {messages} messages is found as well: it would take too long")
    else:
        scores = [0.0] * messages
        for ngram in ngrams:  # n-grams in the outer loop, because one block of the cipher serves many messages
            scores = [sum_before + mark.term(ngram, other) for other, sum_before in enumerate(scores)]
        best, other = max((scores[other], other) for other in range(messages) if other != message)
        p = corrected_p(mark.log10_p(best, len(ngrams)), messages, claim)
        what = f"of all other messages the best is {other}, log10 p: {p:.6g}"
        if p <= WEAK and best < score:
            findings.left("own evidence", f"whose text it is: {what}; if several are found, no user is named")
        else:
            findings.holds("own evidence", p > WEAK, what)


def check_tokenizer(
    files: "dict[str, bytes]", claim: "dict[str, Any]", text: str, tokens: "list[int]", findings: Findings
) -> None:
    """Check that the tokens are the tokens of the text."""
    data = files["tokenizer.json"]
    digest = hashlib.sha256(data).hexdigest()
    findings.equal("tokens", "SHA-256 of tokenizer.json", digest, claim["tokenizer_sha256"])
    if findings.failed:
        findings.left("tokens", "that the tokens are those of the text: the tokenizer of a failing claim is not run")
        return
    if not spell(data, tokens, text):
        what = "that the tokenizer adds no marked words to a text: its tokens do not spell this text; read it"
        findings.left("tokens", what)
    try:
        import tokenizers
    except ImportError:
        what = "install the library `tokenizers` into a venv, since -I ignores what is installed only for your user"
        findings.left("tokens", f"that the tokens are those of the text: {what}")
        return
    if tuple(map(int, re.findall("[0-9]+", tokenizers.__version__)[:3])) < OLDEST_LIBRARY:
        what = f"tokenizers {tokenizers.__version__} is too old: it splits some texts otherwise; install the newest"
        findings.left("tokens", f"that the tokens are those of the text: {what}")
        return
    try:
        inner = tokenizers.Tokenizer.from_buffer(data)
        inner.encode_special_tokens = True
    except Exception as error:  # such as of an old library, which does not know newer tokenizers
        opened_by = f"tokenizers {tokenizers.__version__} cannot open their tokenizer, as the newest may: {error!a}"
        findings.left("tokens", f"that the tokens are those of the text: {opened_by}")
        return
    inner.no_truncation()
    inner.no_padding()
    token_ids = inner.encode(text, add_special_tokens=False).ids
    what = f"the tokens are those of the text, by tokenizers {tokenizers.__version__}"
    findings.holds("tokens", token_ids == tokens, what)


def spell(tokenizer: bytes, tokens: "list[int]", text: str) -> bool:
    """Return whether tokens, one after the other, stand for a text and for nothing else.

    A tokenizer is a program: its steps can put words before every text. Each token that stands for a part of the text
    shows that they did not, whatever the steps are.
    """
    try:
        fields = read_json(tokenizer, "tokenizer.json")
        names = token_names(fields)
        written = {written for read in (read_bytes, read_blanks) for written in read(fields, names, tokens)}
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError):
        return False  # not the form of a tokenizer, or two names of a token
    texts = {text, text.replace(BLANK, " ")}  # tokens of a text that has the sign itself read as tokens of a blank
    return any(written & {form, f" {form}"} for one in texts for form in text_forms(one))


def token_names(fields: "dict[str, Any]") -> "dict[int, str]":
    """Return the name of each token in its vocabulary, by number.

    Raises:
        ValueError: a token has two names, so it could stand for either.
    """
    vocabulary = fields["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram
        pairs = [(number, name) for number, (name, _) in enumerate(vocabulary)]
    else:
        pairs = [(number, name) for name, number in vocabulary.items()]
    pairs += [(token["id"], token["content"]) for token in fields.get("added_tokens") or ()]
    names = dict(pairs)
    if any(names[number] != name for number, name in pairs):
        raise ValueError("a token has two names")
    return names


def read_bytes(fields: "dict[str, Any]", names: "dict[int, str]", tokens: "list[int]") -> "set[str]":
    """Return the text of tokens whose names have a letter for each byte, as GPT-2's. Empty: theirs have not."""
    added = {token["id"]: token["content"].encode() for token in fields.get("added_tokens") or ()}
    try:
        parts = [added.get(token) or bytes(map(BYTES.__getitem__, names[token])) for token in tokens]
    except KeyError:
        return set()
    return join_parts(parts)


def read_blanks(fields: "dict[str, Any]", names: "dict[int, str]", tokens: "list[int]") -> "set[str]":
    """Return the text of tokens whose names have a sign for a blank, or for the inside or the end of a word."""
    inside = "##" if fields["model"].get("type") == "WordPiece" else ""
    parts = []
    for token in tokens:
        name = names[token].removeprefix(inside).removesuffix("</w>").replace(BLANK, " ")
        parts.append(bytes([int(name[3:5], 16)]) if BYTE.fullmatch(name) else name.encode())
    return join_parts(parts)


def join_parts(parts: "list[bytes]") -> "set[str]":
    """Return the text of its parts. Empty: they are no text, or one of them stands for nothing."""
    try:
        return {b"".join(parts).decode("utf-8")} if all(parts) else set()
    except UnicodeDecodeError:
        return set()


def text_forms(text: str) -> "Iterator[str]":
    """Return a text and what usual tokenizers make of it first: normal forms, lower case, no accents, fewer blanks."""
    yield text
    runs = (sum(1 for _ in run) for is_mark, run in itertools.groupby(text, is_accent) if is_mark)
    if max(runs, default=0) > MOST_ACCENTS:
        return
    for form in (None, "NFC", "NFKC", "NFD", "NFKD"):
        whole = unicodedata.normalize(form, text) if form else text
        letters = unicodedata.normalize("NFD", whole)
        for accents in (whole, "".join(letter for letter in letters if unicodedata.category(letter) != "Mn")):
            for case in (accents, accents.lower()):
                single = BLANKS.sub(" ", case)
                yield from (case, case.strip(), single, single.strip(), BLANKS.sub("", case))


@functools.lru_cache(maxsize=2**16)
def is_accent(one: str) -> bool:
    """Return whether normal forms order a character among those behind a letter."""
    return unicodedata.combining(unicodedata.normalize("NFKD", one)[0]) > 0


def read_list(paths: "list[str]") -> "tuple[list[list[str]], int | None]":
    """Read the published list.

    Returns:
        The words of its lines.
        The number of lines up to the head. None: the list does not have that head.

    Raises:
        ValueError: a line was changed.
    """
    head, lines, at = "0" * 64, [], None
    for number, line in enumerate(Path(paths[0]).read_text(encoding="ascii").splitlines() if paths else (), start=1):
        body, _, ending = line.rpartition(" ")
        head = hashlib.sha256(f"brickscan commitments 5\n{head}\n{body}".encode("ascii")).hexdigest()
        if LINE.fullmatch(line) is None or not body.startswith(f"{number} ") or head != ending:
            raise ValueError(f"{paths[0]}, line {number}: does not follow from the line before")
        datetime.date.fromisoformat(body.split(" ")[1])
        lines.append(body.split(" "))
        at = number if head == paths[1] else at
    return lines, at


def is_list(path: str) -> bool:
    """Return whether a file can be read, and all its lines have the form of those of a list."""
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    return bool(lines) and all(map(LINE.fullmatch, lines))


def check_list(
    paths: "list[str]",
    published: "tuple[list[list[str]], int | None]",
    claim: "dict[str, Any]",
    last: int,
    record: "Record | None",
    log10_p: float,
    findings: Findings,
) -> None:
    """Check that key, record, messages and tokenizer are in the published list, at or before the kept head.

    last: as for `check_later_lines`.
    """
    lines, at = published
    if not paths:
        findings.left(
            "announced", "that key and tokenizer were announced before the text was posted: name LIST and HEAD"
        )
        check_number_of_keys([], claim, record, log10_p, findings)
        if "groups=" not in claim["label"]:
            findings.left(
                "tests", f"messages = {claim['messages']}: claimed; only a list of published commitments confirms it"
            )
        return
    findings.holds("announced", at is not None, f"the list has the head {paths[1]}")
    announced = lines[: at or 0]
    ours = [line for line in announced if line[3] == claim["commitment"]]
    when = f", on {ours[0][1]} as key {ours[0][2]}" if ours else ""
    findings.holds("announced", bool(ours), f"the list has the commitment at or before that head{when}")
    if ours:
        most = max(int(line[4]) for line in ours)
        findings.holds("tests", claim["messages"] >= most, f"messages = {claim['messages']}: the list has {most}")
        check_later_lines(lines, claim, last, record, log10_p, findings)
        is_announced = claim["tokenizer_sha256"] in {line[5] for line in ours}
        findings.holds("tokens", is_announced, "the tokenizer is the one on the list")
        sha256 = NO_RECORD if record is None else record.sha256
        what = f"the record's SHA-256 is the one on the list: {sha256}"
        findings.holds("key", {line[6] for line in ours} == {sha256}, what)
    check_number_of_keys(announced, claim, record, log10_p, findings)


def check_later_lines(
    lines: "list[list[str]]",
    claim: "dict[str, Any]",
    last: int,
    record: "Record | None",
    log10_p: float,
    findings: Findings,
) -> None:
    """Check that p is corrected for messages and keys that were added after HEAD, but before a claim that shows seeds.

    The list can tell this: a line of the key that states fewer events than those by which the claim's seeds were shown
    is older than the claim, and so are all lines before it. The claim may have been computed before such a line and
    shown after it, so this is not reported as a failure.

    last: number of the last event that shows a seed of the claim. 0: it shows none.
    """
    ours = [line for line in lines if line[3] == claim["commitment"] and events_in(line) < last]
    if ours:
        messages = max(claim["messages"], *(int(line[4]) for line in ours))
        keys, share = keys_in(lines[: int(ours[-1][0])], claim, record), share_of(claim, record)[1]
        correction = max(claim["correction"], keys / (share or 1) * (1 - 1e-9))
        if (messages, correction) != (claim["messages"], claim["correction"]):
            p = any_of(any_of(any_of(log10_p, messages), claim["parts"]), correction)
            findings.left(
                "tests",
                f"that p is corrected for all: after HEAD, but before event {last}, the list has {messages} "
                f"messages and {keys} keys; if all were searched, log10 p is {p:.6g}",
            )


def share_of(claim: "dict[str, Any]", record: "Record | None") -> "tuple[str, float | None]":
    """Return the look of a claim, and its share of the rate in the key's record. None: the record does not have it."""
    look = "parts/1" if claim["look"] else "as written/1" if claim["variant"] is None else "normalised/1"
    return look, record.fields["looks"].get(look) if record else None


def keys_in(lines: "list[list[str]]", claim: "dict[str, Any]", record: "Record | None") -> int:
    """Count the keys of lines of the list, with the claim's own and the earlier ones that its record names.

    Each tokenizer and each record of a key counts as a key of its own, because each gives another draw.
    """
    others = set(record.fields["earlier"] if record else ()) - {line[6] for line in lines}
    ours = {(claim["commitment"], claim["tokenizer_sha256"], record.sha256 if record else NO_RECORD)}
    return len({(line[3], line[5], line[6]) for line in lines} | ours) + len(others)


def check_number_of_keys(
    announced: "list[list[str]]",
    claim: "dict[str, Any]",
    record: "Record | None",
    log10_p: float,
    findings: Findings,
) -> None:
    """Check that p is corrected for all known keys: those of a list, and the earlier ones that the record names.

    Where seeds are shown, p is also corrected for the look's share of the rate, which the record states.
    """
    keys = keys_in(announced, claim, record)
    if record and "event" in claim:
        look, share = share_of(claim, record)
        findings.holds("tests", share is not None, f"the record has the look {look!r}")
        tests = keys / (share or 1)
        what = f"correction = {claim['correction']}: {keys} keys, one look of which has {share} of the rate, or more"
        findings.holds("tests", claim["correction"] >= tests * (1 - 1e-9), what)
    elif keys > claim["correction"]:
        p = any_of(any_of(any_of(log10_p, claim["messages"]), claim["parts"]), keys)
        findings.left(
            "tests",
            f"why correction = {claim['correction']}: {keys} keys were announced by then; if all count equally, log10 "
            f"p is {p:.6g}",
        )


class Record(NamedTuple):
    """The public record of a key of version 3 (SPEC_3 §2).

    fields: fields of the record.
    sha256: SHA-256 of its bytes, as hex.
    value: value of the beacon that it names. Empty if it names none.
    """

    fields: "dict[str, Any]"
    sha256: str
    value: bytes

    @property
    def beacon(self) -> bytes:
        """Return R, 32 bytes."""
        return hashlib.sha256(b"brickscan-beacon-v3" + bytes.fromhex(self.sha256) + self.value).digest()


def read_record(files: "dict[str, bytes]", claim: "dict[str, Any]", findings: Findings) -> "Record | None":
    """Read the record of the claim's key and compare it with the claim. None for version 1.

    R is always computed and never taken from the claim. A person who chose R after the text could make any text look
    marked for any user.

    Raises:
        ValueError: the record is missing or not valid.
    """
    raw, value = files.get("record.json"), claim["beacon_value"]
    if not str(claim["label"]).startswith(("greenlist-v3;", "gumbel-v3;")):
        findings.holds("key", value is None and raw is None, "a key of this version has no record and no beacon")
        return None
    if raw is None:
        raise ValueError("there is no record.json, which all draws of a key of version 3 depend on")
    if len(raw) > LARGEST_RECORD:
        raise ValueError(f"record.json has more than {LARGEST_RECORD} bytes")
    fields = read_json(raw, "record.json")
    check_shape(fields)
    is_hex = value is None or (
        type(value) is str
        and 2 <= len(value) <= 2 * LONGEST_VALUE
        and re.fullmatch("([0-9a-f]{2})+", value) is not None
    )
    what = f"beacon_value is null, or 1 to {LONGEST_VALUE} bytes in digits 0 to 9 and a to f"
    findings.holds("key", is_hex, what)
    what = "the claim has a value of a beacon where the record names one, and none where it names none"
    findings.holds("key", (value is None) == (fields["beacon"] is None), what)
    for name in ("label", "commitment", "tokenizer_sha256"):
        findings.equal("key", f"{name} of the record", fields[name], claim[name])
    what = f"messages of the record: {fields['messages']}; the claim has {claim['messages']}, no fewer"
    findings.holds("tests", fields["messages"] <= claim["messages"], what)
    record = Record(fields, hashlib.sha256(raw).hexdigest(), bytes.fromhex(value) if is_hex and value else b"")
    if fields["beacon"] is not None and not findings.failed:
        source, round_ = fields["beacon"]["source"], fields["beacon"]["round"]
        what = (
            f"that {value} is what {source!a} published for {round_!a}, after the record was published: compare it "
            "there"
        )
        findings.left("key", what)
    return record


def check_shape(record: object) -> None:
    """Check that a record has the fields of SPEC_3 §2, each of the right kind.

    Raises:
        ValueError: it does not.
    """
    if type(record) is not dict or set(record) != set(RECORD_FIELDS):
        raise ValueError(f"record.json: not an object with the fields {', '.join(RECORD_FIELDS)}")
    beacon, looks, earlier, form = (record[name] for name in ("beacon", "looks", "earlier", "normal_form"))
    messages = record["messages"]
    right = {
        "version": type(record["version"]) is int and record["version"] == 3,
        **{name: is_digest(record[name]) for name in ("root", "commitment", "tokenizer_sha256")},
        "label": type(record["label"]) is str and LABEL.fullmatch(record["label"]) is not None,
        "messages": type(messages) is int and 1 <= messages <= 2**32,
        "normal_form": form is None or (have_words(form, "name", "sha256") and is_digest(form["sha256"])),
        "looks": type(looks) is dict
        and all(type(share) in (int, float) and 0 < share <= 1 for share in looks.values())
        and math.fsum(looks.values()) <= 1,
        "beacon": beacon is None or have_words(beacon, "source", "round"),
        "earlier": type(earlier) is list and all(map(is_digest, earlier)) and len(set(earlier)) == len(earlier),
    }
    wrong = [name for name, is_right in right.items() if not is_right]
    if wrong:
        raise ValueError(f"record.json: {', '.join(wrong)}: of a type that no record has")


def is_digest(value: object) -> bool:
    """Return whether a value is a SHA-256 in hexadecimal text."""
    return type(value) is str and DIGEST.fullmatch(value) is not None


def have_words(value: object, *names: str) -> bool:
    """Return whether a value is an object with exactly these fields, each a short text."""
    return (
        type(value) is dict
        and set(value) == set(names)
        and all(type(words) is str and 1 <= len(words) <= MOST_WORDS for words in value.values())
    )


def check_choice(record: Record, log10_p: float, findings: Findings) -> None:
    """Check whether p is too small to be reached by trying keys (SPEC_3 §2).

    The maker of a key can create many records, stamp them all at once and publish the best one. The more records, the
    smaller p can get for an ordinary text. The evidence against this is not part of a claim. So a p above TRIED does
    not make the claim false, and is reported as NOT CHECKED. If a beacon's value came after all records, nothing was
    left to choose. Without a beacon, only the key's maker knows how many records there were.

    log10_p: the larger one of both rules, corrected.
    """
    if log10_p <= TRIED:
        findings.holds("rate", True, f"log10 p is at most {TRIED:.0f}: nobody can try as many keys as that takes")
    elif record.fields["beacon"] is None:
        findings.left(
            "rate",
            f"that log10 p = {log10_p:.6g} counts: it is above {TRIED:.0f}, and the record names no beacon. The maker "
            "of the key could try one after the other until ordinary text seemed marked for somebody, and publish "
            "that one; p is evidence only for those who trust its maker not to have done so",
        )
    else:
        findings.left(
            "rate",
            f"that log10 p = {log10_p:.6g} counts: it is above {TRIED:.0f}. It does if the beacon's value is the "
            "round's, and an auditor or a public log says that before it there were no more records than `correction` "
            "counts; else one of many could be chosen by its value",
        )


def check_root(mark: Mark, record: Record, findings: Findings) -> None:
    """Check that the record's root is the root over the key's seeds."""
    what = "the root of the record is the root of the key's seeds"
    if findings.failed:
        findings.left("key", f"that {what}: the seeds of a failing claim are not computed")
    elif mark.seeds > MOST_SEEDS:
        findings.left("key", f"that {what}: they are 2^{mark.seeds}, and would take too long")
    else:
        findings.equal("key", what, mark.root().hex(), record.fields["root"])


def read_json(raw: bytes, name: str) -> Any:  # noqa: ANN401 - any JSON
    """Read JSON without repeated names, and without whole numbers longer than those of a claim.

    Raises:
        ValueError: it is not such JSON.
    """

    def distinct(pairs: "list[tuple[str, object]]") -> "dict[str, Any]":
        if len(dict(pairs)) < len(pairs):
            raise ValueError(f"{name}: a field occurs twice")
        return dict(pairs)

    def whole(digits: str) -> int:
        if len(digits) > MOST_DIGITS:
            raise ValueError(f"{name}: a number has more than {MOST_DIGITS} digits")
        return int(digits)

    return json.loads(raw.decode("utf-8"), object_pairs_hook=distinct, parse_int=whole)


def read_claim(files: "dict[str, bytes]", findings: Findings) -> "dict[str, Any]":
    """Read the claim, and check that its numbers are in range."""
    claim: dict[str, Any] = read_json(files["claim.json"], "claim.json")
    fields = {*FIELDS, *(SHOWN_FIELDS if "seeds.json" in files else ())}
    for name in sorted(fields ^ set(claim)):
        findings.holds("claim", False, f"claim.json: field {name!a} is {'unknown' if name in claim else 'missing'}")
    messages, correction = claim["messages"], claim["correction"]
    findings.holds("tests", type(messages) is int and messages >= 1, f"messages = {messages!a}: whole, and 1 or more")
    findings.holds(
        "tests",
        type(correction) in (int, float) and 1 <= correction < math.inf,
        f"correction = {correction!a}: 1 or more",
    )
    if not findings.failed:
        in_range = type(claim["message"]) is int and 0 <= claim["message"] < messages <= 2**32
        findings.holds("tests", in_range, f"message = {claim['message']!a}: one of them")
        is_known = claim["variant"] in (None, "normalised")
        findings.holds("text", is_known, f"variant = {claim['variant']!a}: one that is known")
        parts, look = claim["parts"], claim["look"]
        findings.holds("part", look in (None, "span"), f"look = {look!a}: one that is known")
        most = 1 if look is None else math.inf
        findings.holds(
            "part", type(parts) is int and 1 <= parts <= most, f"parts = {parts!a}: 1 or more, 1 of a whole text"
        )
    return claim


def read_folder(folder: Path) -> "dict[str, bytes]":
    """Read the files of a claim, by their names.

    Raises:
        ValueError: a file has more than LARGEST bytes, or the folder has an entry that no claim has, such as a module
            that shadows another, a link to another place or a pipe that never ends.
    """
    paths = [path for path in sorted(folder.iterdir()) if LEFT_BY_SYSTEMS.fullmatch(path.name) is None]
    for path in paths:
        if path.name not in KNOWN or path.is_symlink() or not path.is_file():
            what = "; delete it if you, or your computer, put it there"
            raise ValueError(f"{path.name!a} is not a file of a claim: {', '.join(sorted(KNOWN))}{what}")
        refuse_large(path.name, path.stat().st_size)
    return {path.name: path.read_bytes() for path in paths if path.name != "README"}


def refuse_large(name: str, size: int) -> None:
    """Raise ValueError if a file of a claim has so many bytes that reading it could take all memory."""
    largest = LARGEST_OF.get(name, LARGEST)  # no operator of Python 3.8: an older one could not say that it is too old
    if size > largest:
        raise ValueError(f"{name!a} has more than {largest} bytes")


def check(
    files: "dict[str, bytes]",
    secret: "bytes | None",
    paths: "list[str]",
    findings: Findings,
    posted: "str | None" = None,
) -> "tuple[Mark, Record | None] | None":
    """Check a claim, except for the root of a record whose seeds are not shown.

    files: files of the claim's folder, by their names.
    secret: the key. None: the claim shows seeds.
    posted: a copy of the text as it was posted. None: there is none.

    Returns:
        The mark, and the record of its key. None: the claim fails at once.

    Raises:
        ValueError: a file of it cannot be read.
    """
    if (secret is None) != ("seeds.json" in files):
        which = "shows no seeds: name SECRET_FILE" if secret is None else "shows the seeds: leave SECRET_FILE out"
        raise ValueError(f"the claim {which}")
    claim, published = read_claim(files, findings), read_list(paths)
    if findings.failed:
        return None
    record = read_record(files, claim, findings)
    shown = read_seeds(files) if secret is None else {}
    seeds = {bucket: one.seed for bucket, one in shown.items()}
    mark = Mark(claim["label"], seeds if secret is None else secret, None if record is None else record.beacon)
    if mark.groups is not None:
        what = "messages of so many groups of as many users"
        findings.equal("tests", what, mark.groups**2, claim["messages"])
        if record is not None:
            findings.equal("tests", f"{what}, as the record says", mark.groups**2, record.fields["messages"])
    can_be_given = claim["message"] % RESERVED_EVERY != RESERVED_EVERY - 1
    findings.holds("reserved", can_be_given, f"message {claim['message']} is not reserved: a user can have it")
    text, rows = check_text(files, claim, findings), read_tokens(files)
    part, events, last = None, list[Event](), 0
    if secret is not None:
        findings.equal("key", "the key is the one that was committed to", mark.commitment, claim["commitment"])
        if "events.jsonl" in files:
            if not mark.shows_seeds:
                raise ValueError(f"events.jsonl: no claim shows seeds of a key of label {claim['label']!a}; delete it")
            events = read_events(files)
            mark.known = leaves_in(events)
            what = f"{len(events)} events follow from each other; positions of their seeds add their mean at most"
            findings.holds("events", True, what)
        ngrams, part = check_tokens(rows, claim, mark, findings)
    else:
        ngrams = check_unit(rows, claim, mark, findings)
        if record is None or not check_seeds(shown, mark, ngrams, record, findings):
            return None
        mark.known, last = check_events(files, claim, shown, published[0], findings)
        check_user(mark, ngrams, claim, findings)
    score = mark.score(ngrams, claim["message"])
    log10_p = mark.log10_p(score, len(ngrams))
    findings.equal("score", "scored tokens", len(ngrams), claim["scored"])
    findings.equal("score", "score", score, claim["score"])
    findings.equal("score", "log10 p of this message", log10_p, claim["log10_p"])
    corrected = corrected_p(log10_p, claim["messages"], claim)
    what = "log10 p, corrected for all messages, parts and tests"
    findings.equal("tests", what, corrected, claim["log10_p_global"])
    findings.holds("rate", corrected <= WEAK, "chance alone does this in at most 1 of 1,000 texts without a mark")
    check_own_evidence(mark, ngrams, claim, score, findings)
    weaker = corrected if mark.groups is None else max(corrected, own_p(mark, ngrams, claim))
    if posted is not None:
        check_posted(files["text.txt"].decode("utf-8", "replace"), posted, weaker, findings)
    if posted is None or claim["variant"] is not None:  # nothing compares a normalised text with the post
        check_unseen(text, claim["variant"], weaker, findings)
    if record is not None:
        check_choice(record, weaker, findings)
    if part is not None and claim["look"] is not None:
        check_part(claim, part, len(ngrams), log10_p, findings)
    check_list(paths, published, claim, last, record, log10_p, findings)
    if secret is not None and mark.shows_seeds:
        check_unshown(events, published[0], claim, findings)
    check_name(files, claim, published, findings)
    check_tokenizer(files, claim, text, [token for token, _ in rows], findings)
    if secret is not None:
        what = f"correction = {claim['correction']}: the weight of this key, look and variant, fixed before"
        findings.note("tests", "claimed", what)
    return mark, record


def failing(files: "dict[str, bytes]", secret: "bytes | None", paths: "Sequence[str]" = ()) -> "list[str]":
    """Return the checks of a claim that fail, and print nothing.

    It does not compute the key's seeds: the root in the record was computed from them when the key was made.
    """
    findings = Findings()
    try:
        for name, raw in files.items():
            refuse_large(name, len(raw))
    except ValueError as error:
        return [str(error)]
    with contextlib.redirect_stdout(io.StringIO()):
        check(files, secret, list(paths), findings)
    return findings.failing


def read_arguments(words: "list[str]") -> "tuple[Path, bytes | None, list[str]]":
    """Read the arguments. A mistake in them does not make the claim false.

    Returns:
        The claim's folder.
        The secret. None: none was given.
        The list's path and head, or nothing.

    Raises:
        ValueError: an argument leads to nothing, or to a wrong kind of file.
    """
    if not 1 <= len(words) <= 4:
        raise ValueError("name the claim's folder, and the other files that you have")
    folder, secret, paths = Path(words[0]), None, words[1:]
    if not folder.is_dir():
        raise ValueError(f"FOLDER: {words[0]!a} is not a folder")
    if len(paths) % 2:
        if (folder / "seeds.json").exists():
            raise ValueError("the claim shows the seeds: leave SECRET_FILE out; of LIST and HEAD, name both or neither")
        try:
            secret = bytes.fromhex(Path(paths[0]).read_text(encoding="ascii"))
        except OSError as error:
            raise ValueError(f"SECRET_FILE: {paths[0]!a} cannot be read ({error.strerror})") from None
        except ValueError:
            raise ValueError(f"SECRET_FILE: {paths[0]!a} is not a file of hexadecimal text") from None
        paths = paths[1:]
    elif not (folder / "seeds.json").exists():
        raise ValueError("the claim shows no seeds: name SECRET_FILE too, which the escrow agent of the key has")
    if paths and not Path(paths[0]).is_file():
        raise ValueError(f"LIST: {paths[0]!a} is not a file")
    if paths and not is_list(paths[0]):  # such as a page, a copy that an editor saved in UTF-16, or half a download
        what = "is not a list of commitments in plain ASCII text; download it again, and do not change it"
        raise ValueError(f"LIST: {paths[0]!a} {what}")
    if paths and not is_digest(paths[1]):
        raise ValueError(f"HEAD: {paths[1]!a} is not a head; a head has 64 digits 0 to 9 and a to f")
    return folder, secret, paths


def read_posted(words: "list[str]") -> "tuple[list[str], str | None]":
    """Read the copy of the text that --posted names, if it does.

    Returns:
        The other arguments.
        The copy. None: none was given.

    Raises:
        ValueError: the file cannot be read, is not UTF-8, or is one of the claim's.
    """
    if "--posted" not in words:
        return words, None
    at = words.index("--posted")
    others, files = words[:at] + words[at + 2 :], words[at + 1 : at + 2]
    if not files or "--posted" in others:
        raise ValueError("--posted: name one file, your copy of the text")
    copy, *folder = (Path(os.path.realpath(name)) for name in (*files, *others[:1]))  # a loop of links raises nothing
    if {*folder} & {*copy.parents}:
        raise ValueError(f"--posted: {files[0]!a} is in FOLDER, and so not your own copy of the text")
    try:
        return others, Path(files[0]).read_bytes().decode("utf-8")
    except OSError as error:
        raise ValueError(f"--posted: {files[0]!a} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ValueError(f"--posted: {files[0]!a} is not UTF-8 text; save it as UTF-8") from None


def main() -> int:
    """Check the claim of a folder.

    Returns:
        0: all checks hold. 1: a check fails. 2: wrong arguments. 3: a check could not be made.
    """
    findings = Findings()
    try:
        words, posted = read_posted(sys.argv[1:])
        folder, secret, paths = read_arguments(words)
    except ValueError as error:
        print(f"nothing was checked: {error}")
        print("usage: python -I check_claim.py FOLDER [SECRET_FILE] [LIST HEAD] [--posted FILE]")
        return 2
    except OSError as error:
        return refuse_unreadable(error)
    except MemoryError:
        return end_early(TOO_LITTLE)
    try:
        checked = check(read_folder(folder), secret, paths, findings, posted)
        if checked is not None and checked[1] is not None and secret is not None:
            check_root(checked[0], checked[1], findings)
    except OSError as error:
        return refuse_unreadable(error)
    except MemoryError:
        return end_early(TOO_LITTLE)
    except BaseException as error:  # a fault in a tokenizer makes the library panic, and a panic is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        findings.holds("claim", False, f"this cannot be read: {error!a}")
    for condition, what in CONDITIONS.items():
        if condition not in findings.of:
            findings.left(condition, what)
    never = [what for question, what in NEVER.items() if question != "posted" or posted is None]
    print("what this file never checks:", *never, sep="\n- ")
    print(findings.in_sum)
    return 1 if findings.failed else 3 if findings.unchecked else 0


def refuse_unreadable(error: OSError) -> int:
    """Say that a file cannot be read here, such as one of another owner. This does not make the claim false."""
    print(f"nothing was checked: {error.filename!a} cannot be read ({error.strerror})")
    return 2


def end_early(why: str) -> int:
    """Say that the check did not come to its end here. This does not make the claim false."""
    print(f"nothing was checked to its end: {why}")
    print("the lines above are no answer")
    return 2


def main_in_process() -> int:
    """Check the claim in a process of its own. Return what `main` returns.

    A tokenizer of whoever makes the claim can take all memory, and then its library, or the system, ends the process.
    """
    options = ["-I", *(["-S"] if sys.flags.no_site else [])]
    command, inner = [sys.executable, *options, __file__, *sys.argv[1:]], {**os.environ, ALONE: "1"}
    code = subprocess.run(command, env=inner, check=False).returncode
    if code in range(4):
        return code
    return end_early(f"Python was ended ({code}), as by a tokenizer that takes all memory")


if __name__ == "__main__":
    sys.exit(main() if ALONE in os.environ else main_in_process())
