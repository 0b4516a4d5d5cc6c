"""Checks one claim about a watermarked text. It needs Python 3.9 or newer, and for one of its checks a library.

  python -I check_claim.py FOLDER SECRET_FILE [LIST HEAD]

Take this file from a copy of brickscan that you trust, never from who makes the claim. FOLDER is theirs, data alone:
claim.json (what is claimed), text.txt, tokens.csv (each token of the text in order, and whether it is scored),
tokenizer.json, and at most scored.txt and README; with anything else in it a claim is refused. SECRET_FILE holds the
key as hexadecimal text; whoever keeps it in escrow, or a court, has it. LIST is a copy of the list of published
commitments from where it is public, and HEAD a head of it that somebody kept from before the text was posted. The
library `tokenizers` tokenises the text again; without it the script checks all the rest, says NOT CHECKED of the
tokens, and exits with 3.

It prints what holds, what FAILS, what was NOT CHECKED for want of something, and what it never checks. It exits with 1
where something fails, with 3 where something could not be checked, else with 0. The watermark is specified in SPEC.md
and SPEC_2.md of brickscan; this file was written from them, and shares no code with what scans.
"""

import sys

# a module that is imported from here on could be a forger's, from beside this file or from PYTHONPATH
if __name__ == "__main__" and not sys.flags.isolated:
    sys.exit("run it as: python -I check_claim.py FOLDER SECRET_FILE [LIST HEAD]; -I keeps modules of others out")

import contextlib
import csv
import datetime
import decimal
import functools
import hashlib
import io
import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

M32, M64 = 2**32 - 1, 2**64 - 1
MOST_BYTES = 2**24  # of a text that are scored
LABEL = re.compile(r"(greenlist|gumbel)(-v2)?;h=([0-9]|1[0-6])(;gamma=([0-9]+/[0-9]+))?(;groups=([0-9]+))?")
LINE = re.compile(
    r"[1-9][0-9]* [0-9]{4}-[0-9]{2}-[0-9]{2} [a-z0-9._-]+ [0-9a-f]{64} [1-9][0-9]* [0-9a-f]{64} [0-9a-f]{64}"
)
FIELDS = (
    *("label", "commitment", "tokenizer_sha256", "text_sha256", "message", "messages", "correction", "scored", "score"),
    *("log10_p", "log10_p_global", "variant", "look", "parts"),
)
WEAK = -3.0  # log10 p, corrected, above which a claim fails: chance alone would do that too often
LARGEST = 2**30  # bytes of a file of a claim
KNOWN = {"claim.json", "text.txt", "scored.txt", "tokens.csv", "tokenizer.json", "README"}
BLANK = "\u2581"  # the sign of a blank in many tokenizers
UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]{10,}"
)
LINE_BEGIN = r"[^\S\n]*(?:(?:#|//|--|/\*|<!--|;|%|NOTE)[^\S\n]*)?"
LINE_END = r"[^\S\n]*(?:(?:\*/|-->)[^\S\n]*)?"
REFERENCE = r"\s{1,2}(?:https?://[!-~]{1,2048}|data:application/c2pa;base64,[A-Za-z0-9+/=_-]{1,1000000})\s{1,2}"
BLOCK = f"{LINE_BEGIN}-----BEGIN C2PA MANIFEST-----{REFERENCE}-----END C2PA MANIFEST-----{LINE_END}"
ARMOUR = re.compile(rf"(?:\r?\n|\A){BLOCK}\Z|(?:(?<=\n)|\A){BLOCK}\r?\n")
MOST_TERMS = 10_000_000  # that are computed for the other messages of a key of version 1: a minute or so
RESERVED_EVERY = 20  # messages, of which the last is never given to anybody
PLAIN = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt", "BertNormalizer", "ByteLevel"}
CONDITIONS = {
    "text": "that scored.txt, or text.txt, is what is scored of the text",
    "tokens": "that the tokens are those of the text",
    "positions": "that each token counts, or is left out for a reason",
    "part": "that a part is one of those that are looked at in every text",
    "key": "that the key is the one that was committed to",
    "tests": "that p is corrected for all messages, parts and tests",
    "score": "that score and p follow from key, message and tokens",
    "rate": "that chance alone does this seldom",
    "own evidence": "that the text is not as well explained by another message",
    "reserved": "that the message can be given to a user",
}
"""What must hold before brickscan names a user by a text, and is checked here; NEVER has the rest of it."""
NEVER = {
    "holder": "which user the message belongs to, who wrote the text, and who posted it; text can be quoted",
    "other keys": "that no message of another key, or in the text's normal form, is found as well; under keys of "
    "version 1 several that are found name nobody",
    "length": "that the text is as long as scans ask for; p holds for texts of any length",
    "marked by others": "that whoever holds the key did not mark the text themselves: they can, for any message",
    "looks": "how many texts were looked at before this one was chosen; multiply p by their number",
    "choice": "that key and tokenizer were not chosen so that ordinary text seems marked: draw of the key, and whether "
    "the SHA-256 of the tokenizer is that which the model's maker publishes",
    "list": "that no other list of keys was published, and that HEAD is older than the text",
    "README": "what README says: whoever makes the claim wrote it",
    "script": "that this file is brickscan's own: take it from a copy that you trust, never from who makes the claim",
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


@functools.lru_cache(maxsize=1024)
def chacha8(key: bytes, counter: int, nonce: int) -> list[int]:
    """Compute one ChaCha block of 8 rounds: 16 words."""
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
        match = LABEL.fullmatch(label)
        if match is None:
            raise ValueError(f"label {label!r} is of no native format")
        name, later, window, _, gamma, _, groups = match.groups()
        self.version, self.green, self.window = (2 if later else 1), name == "greenlist", int(window)
        self.gamma = Fraction(gamma) if gamma else Fraction(1)
        self.groups = int(groups) if groups else None
        if self.green != (gamma is not None) or (self.green and not self._is_share(gamma)):
            raise ValueError(f"label {label!r}: a green list has a gamma n/2^b in lowest terms, b from 1 to 8")
        if groups and not (later and self.window and 2 <= int(groups) <= 2**16 and groups == str(self.groups)):
            raise ValueError(f"label {label!r}: groups are of version 2 with a window, 2 to 65536")
        if not 16 <= len(secret) <= 64:
            raise ValueError(f"the secret has {len(secret)} bytes; 16 to 64 are allowed")
        data, who = label.encode("ascii"), f"-v{self.version}".encode("ascii")
        self.commitment = hashlib.blake2b(data, key=secret, digest_size=32, person=b"commitment" + who).hexdigest()
        keys = hashlib.blake2b(data, key=secret, digest_size=48, person=b"watermark" + who).digest()
        self.chacha, self.sip = keys[:32], keys[32:]

    def _is_share(self, gamma: str) -> bool:
        """Return whether γ is n/2^b as the law takes it. Else fewer tokens would be green than it says."""
        n, whole = self.gamma.numerator, self.gamma.denominator
        return gamma == f"{n}/{whole}" and n < whole <= 256 and whole & (whole - 1) == 0

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - one mark a process
    def nonce(self, window: "tuple[int, ...]") -> int:
        """Compute the nonce of a window."""
        return siphash24(self.sip, b"".join(token.to_bytes(4, "little") for token in window))

    def is_shared(self, ngram: "tuple[int, ...]") -> bool:
        """Return whether all users of a group read the same number at this step."""
        return self.groups is not None and (self.nonce(ngram[:-1]) >> 32) * 3 >> 32 == 0

    def term(self, ngram: "tuple[int, ...]", message: int) -> float:
        """Compute what one scored token adds to the score of a message."""
        nonce = self.nonce(ngram[:-1])
        number = message
        if self.groups is not None:
            group, user = divmod(message, self.groups)
            number = group if self.is_shared(ngram) else group * 2**16 + user
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
        """Return a word of a plane. Its place is part of the specification."""
        height = 16 // planes
        if self.version == 1:
            group, r = divmod(index, 16 * height)
            counter, row = 16 * group + r % 16, r // 16
        else:
            counter, row = divmod(index, height)
        return chacha8(self.chacha, counter, nonce)[plane * height + row]

    def log10_p(self, score: float, scored: int) -> float:
        """Compute log10 P(a score at least this large), if nothing was marked.

        It is exact for the green list, and computed in 60 digits for Gumbel.
        """
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


def windows_of(counted: int) -> "set[tuple[int, int]]":
    """Return the windows of so many tokens that are looked at.

    They are all of the tokens, and windows of 24·√2^i tokens, begun anew after each quarter.
    """
    lengths = [math.isqrt(24**2 * 2**i - 1) + 1 for i in range(64)]
    found = {(b, b + n) for n in lengths if n < counted for b in (*range(0, counted - n, n // 4), counted - n)}
    return found | {(0, counted)}


def any_of(log10_p: float, tests: float) -> float:
    """Compute log10(1 − (1 − p)^tests)."""
    if log10_p + math.log10(tests) < -20:  # then it is tests · p, to 20 digits
        return log10_p + math.log10(tests)
    with decimal.localcontext() as context:
        context.prec = 60 + int(-2 * log10_p)
        p = decimal.Decimal(10) ** decimal.Decimal(log10_p)
        return float((1 - (1 - p) ** decimal.Decimal(tests)).log10())


class Findings:
    """The findings so far, by condition. Every line is printed as it is found."""

    def __init__(self) -> None:
        self.of: dict[str, set[str]] = {}
        self.failing: list[str] = []

    @property
    def failed(self) -> bool:
        """Whether something fails."""
        return bool(self.failing)

    @property
    def unchecked(self) -> bool:
        """Whether something was not checked."""
        return any("NOT CHECKED" in found for found in self.of.values())

    def equal(self, condition: str, what: str, found: Any, claimed: Any) -> None:  # noqa: ANN401 - as claims have it
        """Compare a value with the claimed one, floats to nine digits."""
        same = type(found) is type(claimed) and found == claimed
        if isinstance(found, float) and type(claimed) in (int, float):
            same = math.isclose(found, claimed, rel_tol=1e-9)
        self.holds(condition, same, f"{what}: {found}" + ("" if same else f", claimed {claimed!a}"))

    def holds(self, condition: str, is_so: bool, what: str) -> None:
        """Note a check that was made."""
        self.note(condition, "holds" if is_so else "FAILS", what)

    def left(self, condition: str, what: str) -> None:
        """Note what is claimed and was not checked."""
        self.note(condition, "NOT CHECKED", what)

    def note(self, condition: str, result: str, what: str) -> None:
        """Print one result."""
        self.of.setdefault(condition, set()).add(result)
        if result == "FAILS":
            self.failing.append(what)
        print(f"{result:11} {what}")


def first_bytes(raw: bytes) -> bytes:
    """Return at most MOST_BYTES bytes of a text.

    They end where a character does, so up to three bytes of a character that would be cut are left out.
    """
    end = min(len(raw), MOST_BYTES)
    while end < len(raw) and end > MOST_BYTES - 3 and raw[end] & 0xC0 == 0x80:
        end -= 1
    return raw[:end]


def without_manifests(text: str) -> str:
    """Return a text without C2PA manifests (C2PA 2.4, A.8, A.9) and other long runs of unseen characters."""
    return ARMOUR.sub("", UNSEEN.sub("", text))


def check_text(folder: Path, claim: "dict[str, Any]", findings: Findings) -> str:
    """Check the text that was scored against the text of the claim, and return it."""
    raw = (folder / "text.txt").read_bytes()
    findings.equal("text", "SHA-256 of text.txt", hashlib.sha256(raw).hexdigest(), claim["text_sha256"])
    name = "scored.txt" if (folder / "scored.txt").exists() else "text.txt"
    scored = (folder / name).read_bytes().decode("utf-8", errors="replace")
    if claim["variant"] is None:
        what = f"{name} is what is scored of the text, its first 16 MiB at most, without a manifest"
        findings.holds("text", scored == scored_text(raw), what)
    else:
        findings.left("text", f"that {name} is what is scored of the text, normalised: read both")
    return scored


def scored_text(raw: bytes) -> str:
    """Return what is scored of a text that was posted, as it stands.

    That is its first 16 MiB without manifests, with U+FFFD for bytes that are no UTF-8.
    """
    replaced = first_bytes(raw).decode("utf-8", errors="replace").encode("utf-8")
    return without_manifests(first_bytes(replaced).decode("utf-8", errors="replace"))


def check_tokens(
    folder: Path, claim: "dict[str, Any]", mark: Mark, findings: Findings
) -> "tuple[list[int], list[tuple[int, ...]], tuple[int, int, int]]":
    """Check that each scored n-gram is new in the text, and that no token is left out unnoticed.

    Returns:
        The tokens of the text; its scored n-grams; and their part: the place of the first scored one, the place after
        the last, and how many could be scored.
    """
    with (folder / "tokens.csv").open(encoding="ascii", newline="") as file:
        rows = [(int(token), status) for token, status in csv.reader(file)]
    tokens = [token for token, _ in rows]
    if any(not 0 <= token < 2**32 for token in tokens):
        raise ValueError("tokens.csv: a token is no number of 32 bits")
    met = set()
    ngrams, inside, wrong, filtered, counted = [], [], [], 0, 0
    for index, (_, status) in enumerate(rows):
        ngram = tuple(tokens[index - mark.window : index + 1])
        expected = "window" if index < mark.window else "repeat" if ngram in met else "scored"
        met |= {ngram} if index >= mark.window else set()
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
        what = f"{filtered} tokens are left out as common n-grams: chosen by their scores, they would make p small"
        findings.left("positions", what)
    return tokens, ngrams, (inside[0], inside[-1] + 1, counted) if inside else (0, 0, counted)


def check_part(
    claim: "dict[str, Any]", part: "tuple[int, int, int]", scored: int, log10_p: float, findings: Findings
) -> None:
    """Check that the part of a text is one of those that are looked at in every text, and that all of them count."""
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


def corrected_p(log10_p: float, messages: int, claim: "dict[str, Any]") -> float:
    """Compute log10 p of the best of so many messages, of all parts and all tests."""
    return any_of(any_of(any_of(log10_p, messages), claim["parts"]), claim["correction"])


def own_p(mark: Mark, ngrams: "list[tuple[int, ...]]", claim: "dict[str, Any]") -> float:
    """Compute log10 p of a group's message on the user steps, corrected (rule 2).

    No other message of the group reads these steps.
    """
    own = [mark.term(ngram, claim["message"]) for ngram in ngrams if not mark.is_shared(ngram)]
    return corrected_p(mark.log10_p(math.fsum(own), len(own)), mark.groups or 1, claim)


def check_own_evidence(
    mark: Mark, ngrams: "list[tuple[int, ...]]", claim: "dict[str, Any]", score: float, findings: Findings
) -> None:
    """Check that the text speaks for this message, and not for one near it (SPEC_2, "Naming", rule 2).

    Text that was marked for somebody of a group raises the scores of the whole group, on the steps that it shares. Text
    that was marked under version 1 can raise those of any message.
    """
    messages, message = claim["messages"], claim["message"]
    if mark.groups is not None:
        p, steps = own_p(mark, ngrams, claim), sum(not mark.is_shared(ngram) for ngram in ngrams)
        what = f"on the {steps} steps that no other of its group reads, log10 p of the best of its group: {p:.6g}"
        findings.holds("own evidence", p <= WEAK, what)
    elif mark.version == 2 or messages == 1:
        findings.holds("own evidence", True, "no other message reads what this one reads")
    elif messages * len(ngrams) > MOST_TERMS:
        findings.left("own evidence", f"that none of {messages} messages is found as well: it would take too long")
    else:
        scores = [0.0] * messages
        for ngram in ngrams:  # one after the other, so that a block of the cipher serves many messages
            scores = [sum_before + mark.term(ngram, other) for other, sum_before in enumerate(scores)]
        best, other = max((scores[other], other) for other in range(messages) if other != message)
        p = corrected_p(mark.log10_p(best, len(ngrams)), messages, claim)
        what = f"of all other messages the best is {other}, log10 p: {p:.6g}"
        if p <= WEAK and best < score:
            findings.left("own evidence", f"whose the text is: {what}; several that are found name nobody")
        else:
            findings.holds("own evidence", p > WEAK, what)


def check_tokenizer(folder: Path, claim: "dict[str, Any]", text: str, tokens: "list[int]", findings: Findings) -> None:
    """Check that the tokens are those of the text."""
    data = (folder / "tokenizer.json").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    findings.equal("tokens", "SHA-256 of tokenizer.json", digest, claim["tokenizer_sha256"])
    if findings.failed:
        findings.left("tokens", "that the tokens are those of the text: the tokenizer of a claim that fails is not run")
        return
    try:
        import tokenizers
    except ImportError:
        findings.left("tokens", "that the tokens are those of the text: install the library `tokenizers`")
        return
    if not adds_nothing(json.loads(data)["normalizer"]):
        what = "that the tokenizer puts no marked words into any text: its normalizer could; read it"
        findings.left("tokens", what)
    inner = tokenizers.Tokenizer.from_buffer(data)
    inner.encode_special_tokens = True
    inner.no_truncation()
    inner.no_padding()
    token_ids = inner.encode(text, add_special_tokens=False).ids
    what = f"the tokens are those of the text, by tokenizers {tokenizers.__version__}"
    findings.holds("tokens", token_ids == tokens, what)


def adds_nothing(normalizer: "dict[str, Any] | None") -> bool:
    """Return whether a tokenizer's normalizer can put nothing into a text but the sign of a blank."""
    if normalizer is None:
        return True
    kind = normalizer["type"]
    if kind == "Sequence":
        return all(map(adds_nothing, normalizer["normalizers"]))
    if kind == "Prepend":
        return bool(normalizer["prepend"] in (" ", BLANK))
    if kind == "Replace":
        return bool(normalizer["pattern"] == {"String": " "} and normalizer["content"] == BLANK)
    return kind in PLAIN


def check_list(paths: "list[str]", claim: "dict[str, Any]", log10_p: float, findings: Findings) -> None:
    """Check that key, messages and tokenizer stand in the published list, up to the head that somebody kept."""
    if not paths:
        findings.left(
            "announced", "that key and tokenizer were announced before the text was posted: name LIST and HEAD"
        )
        if "groups=" not in claim["label"]:
            findings.left("tests", f"messages = {claim['messages']}: claimed; a list of published commitments says it")
        return
    head, lines, at = "0" * 64, [], None
    for number, line in enumerate(Path(paths[0]).read_text(encoding="ascii").splitlines(), start=1):
        body, _, ending = line.rpartition(" ")
        head = hashlib.sha256(f"brickscan commitments 2\n{head}\n{body}".encode("ascii")).hexdigest()
        if LINE.fullmatch(line) is None or not body.startswith(f"{number} ") or head != ending:
            raise ValueError(f"{paths[0]}, line {number}: does not follow from the line before")
        datetime.date.fromisoformat(body.split(" ")[1])
        lines.append(body.split(" "))
        at = number if head == paths[1] else at
    findings.holds("announced", at is not None, f"the list has the head {paths[1]}")
    announced = lines[: at or 0]
    ours = [line for line in announced if line[3] == claim["commitment"]]
    when = f", on {ours[0][1]} as key {ours[0][2]}" if ours else ""
    findings.holds("announced", bool(ours), f"the list has the commitment at or before that head{when}")
    if ours:
        most = max(int(line[4]) for line in ours)
        findings.holds("tests", claim["messages"] >= most, f"messages = {claim['messages']}: the list has {most}")
        is_announced = claim["tokenizer_sha256"] in {line[5] for line in ours}
        findings.holds("tokens", is_announced, "the tokenizer is that of the list")
    keys = len({(line[3], line[5]) for line in announced})  # a key counts once for each tokenizer that reads texts
    if keys > claim["correction"]:
        p = any_of(any_of(any_of(log10_p, claim["messages"]), claim["parts"]), keys)
        findings.left(
            "tests",
            f"why correction = {claim['correction']}: {keys} keys were announced by then; all counted alike, "
            f"log10 p is {p:.6g}",
        )


def read_claim(folder: Path, findings: Findings) -> "dict[str, Any]":
    """Read the claim, and check that its numbers are such as a claim can have."""

    def distinct(pairs: "list[tuple[str, object]]") -> "dict[str, Any]":
        if len(dict(pairs)) < len(pairs):
            raise ValueError("claim.json: a field stands there twice")
        return dict(pairs)

    claim: dict[str, Any] = json.loads((folder / "claim.json").read_text(encoding="utf-8"), object_pairs_hook=distinct)
    for name in sorted(set(FIELDS) ^ set(claim)):
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


def check_names(folder: Path) -> None:
    """Refuse what no claim has: a module that hides another, a link to somewhere else, a pipe that never ends.

    Raises:
        ValueError: the folder has such a file, or one of more than LARGEST bytes.
    """
    for path in sorted(folder.iterdir()):
        if path.name not in KNOWN or path.is_symlink() or not path.is_file():
            raise ValueError(f"{path.name!a} is no file of a claim: {', '.join(sorted(KNOWN))}")
        if path.stat().st_size > LARGEST:
            raise ValueError(f"{path.name!a} has more than {LARGEST} bytes")


def check(folder: Path, secret: bytes, paths: "list[str]", findings: Findings) -> None:
    """Check the claim of a folder.

    Raises:
        ValueError: a file of it cannot be read as what it is.
    """
    check_names(folder)
    claim = read_claim(folder, findings)
    if findings.failed:
        return
    mark = Mark(claim["label"], secret)
    findings.equal("key", "the key is the one that was committed to", mark.commitment, claim["commitment"])
    if mark.groups is not None:
        what = "messages of so many groups of as many users"
        findings.equal("tests", what, mark.groups**2, claim["messages"])
    can_be_given = claim["message"] % RESERVED_EVERY != RESERVED_EVERY - 1
    findings.holds("reserved", can_be_given, f"message {claim['message']} is none of those that no user is given")
    text = check_text(folder, claim, findings)
    tokens, ngrams, part = check_tokens(folder, claim, mark, findings)
    score = math.fsum(mark.term(ngram, claim["message"]) for ngram in ngrams)
    log10_p = mark.log10_p(score, len(ngrams))
    findings.equal("score", "scored tokens", len(ngrams), claim["scored"])
    findings.equal("score", "score", score, claim["score"])
    findings.equal("score", "log10 p of this message", log10_p, claim["log10_p"])
    corrected = corrected_p(log10_p, claim["messages"], claim)
    what = "log10 p, corrected for all messages, parts and tests"
    findings.equal("tests", what, corrected, claim["log10_p_global"])
    findings.holds("rate", corrected <= WEAK, "chance alone does this in at most 1 of 1,000 texts without a mark")
    check_own_evidence(mark, ngrams, claim, score, findings)
    if claim["look"] is not None:
        check_part(claim, part, len(ngrams), log10_p, findings)
    check_list(paths, claim, log10_p, findings)
    check_tokenizer(folder, claim, text, tokens, findings)
    findings.note(
        "tests",
        "claimed",
        f"correction = {claim['correction']}: the weight of this key, look and variant, fixed before",
    )


def failing(folder: Path, secret: bytes) -> "list[str]":
    """Return what fails of a claim, and print nothing."""
    findings = Findings()
    with contextlib.redirect_stdout(io.StringIO()):
        check(folder, secret, [], findings)
    return findings.failing


def main() -> int:
    """Check the claim of a folder.

    Returns:
        0 where all holds, 1 where something fails, 2 for wrong arguments, 3 where something could not be checked.
    """
    if len(sys.argv) not in (3, 5):
        print("usage: python -I check_claim.py FOLDER SECRET_FILE [LIST HEAD]")
        return 2
    findings = Findings()
    try:
        secret = bytes.fromhex(Path(sys.argv[2]).read_text(encoding="ascii"))
        check(Path(sys.argv[1]), secret, sys.argv[3:], findings)
    except Exception as error:
        findings.holds("claim", False, f"this cannot be read: {error!a}")
    for condition, what in CONDITIONS.items():
        if condition not in findings.of:
            findings.left(condition, what)
    print("what this file never checks:", *NEVER.values(), sep="\n- ")
    return 1 if findings.failed else 3 if findings.unchecked else 0


if __name__ == "__main__":
    sys.exit(main())
