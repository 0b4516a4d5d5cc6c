"""Every flag is proved before its row is committed: computed again from the stored text and the key's secret.

The slow path has code of its own (scanner.watermark.proof): the reference tokenizer, plain ciphers, and p-values in
high precision. It shares with the first the normal form of a text and the number of tests that p is corrected for. It
covers every message that passed, by its whole score and by what names need besides
(scanner.watermark.format.UserEvidence), the second best of the key that gives the verdict, and spans. The search is
not made again: it can only miss. Where a key must beat decoys, their scores are not computed again either.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.detection.attribution import DocumentSpan
from scanner.detection.left_out import LeftOut, places_left_out
from scanner.detection.rules import Rules
from scanner.text import HuggingFaceTokenizer
from scanner.text.normal_form import normalise
from scanner.text.quoting import segments_of
from scanner.watermark.by_levels import BoundsRounding
from scanner.watermark.format import ProofPath as SlowPath
from scanner.watermark.format import ProvesParts, ProvesUserEvidence
from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.rule import LEAST_RANK, Decision, KeyFindings
from scanner.watermark.span_search import Span
from schemas.words import Dedup, Naming, Proof


class PartKinds(NamedTuple):
    """Parts at which documents are tested besides the whole."""

    windows: bool
    segments: bool


def parts_of(
    kinds: PartKinds, tokenizer: HuggingFaceTokenizer, text: str, places: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    """All parts of a text: first scored position, position after the last, number of its segment, −1: none.

    Segments have SHORTEST_PART scored positions or more and are not the whole; a position is where its token
    begins. places: which of its tokens are scored, int64[P].
    """
    from scanner.watermark.proof import SHORTEST_PART, windows_of  # flags alone need mpmath

    found = [(*window, -1) for window in (windows_of(len(places)) if kinds.windows else {(0, len(places))})]
    if kinds.segments:
        at = tokenizer.begins(text)[places]
        for number, segment in enumerate(segments_of(text)):
            begin, end = (int(np.searchsorted(at, edge)) for edge in (segment.begin, segment.end))
            if SHORTEST_PART <= end - begin < len(places):
                found.append((begin, end, number))
    return found


def span_holds(
    span: Span,
    terms: NDArray[np.float64],
    of_user: NDArray[np.bool_] | None,
    path: SlowPath,
    parts: Collection[tuple[int, int, int]],
    tests: tuple[int, int, float],
) -> bool:
    """Whether a span's score and p-values are confirmed, and its place is one of its document's parts.

    terms: what each position of the document adds to the message's score, float64[P]. of_user: positions that the
    message shares with no other, bool[P]; None: names need no second p-value. tests: M; number of messages among which
    it is the best by its own positions; K.
    """
    from scanner.watermark.proof import log10_any_of  # flags alone need mpmath

    messages, users, correction = tests
    part = slice(span.begin, span.end)
    if (span.begin, span.end, span.segment) not in parts or not nearly_equal(
        span.score, math.fsum(terms[part].tolist())
    ):
        return False
    # p of the claimed score, so that rounding of scores does not count twice
    uncorrected = path.log10_p(span.score, span.end - span.begin)
    of_all = log10_any_of(log10_any_of(uncorrected, messages), len(parts))
    stated = [(span.log10_p, uncorrected), (span.log10_p_in_document, of_all)]
    stated.append((span.log10_p_global, log10_any_of(of_all, correction)))
    if of_user is None:
        by_group = span.log10_p_own == -math.inf
    else:
        user_terms = terms[part][of_user[part]]
        p = log10_any_of(path.log10_p(math.fsum(user_terms.tolist()), len(user_terms)), users * len(parts))
        by_group = nearly_equal(span.log10_p_own, log10_any_of(p, correction))
    return by_group and all(nearly_equal(a, b) for a, b in stated)


def prove_spans(
    path: SlowPath | None,
    tokenizer: HuggingFaceTokenizer,
    text: str,
    document_spans: Sequence[DocumentSpan],
    tests: tuple[int, float],
    dedup: Dedup,
    kinds: PartKinds,
    common: LeftOut | None = None,
) -> Proof:
    """Prove all spans of one key in a text: `differs` where one is not confirmed.

    path: the key's slow path; None: its format has none. common: n-grams that are left out of scoring; None: none are.
    """
    if not isinstance(path, ProvesParts):
        return Proof.NOT_OFFERED
    ids = tokenizer.encode([text]).ids
    messages = sorted({one.span.message for one in document_spans})
    places, terms, of_user, users = path.parts(ids, messages, dedup, places_left_out(common, ids))
    parts = frozenset(parts_of(kinds, tokenizer, text, places))
    of_message = dict(zip(messages, terms, strict=True))
    tests_of = tests[0], users, tests[1]
    holds = (
        span_holds(one.span, of_message[one.span.message], of_user, path, parts, tests_of) for one in document_spans
    )
    return Proof.PROVED if all(holds) else Proof.DIFFERS


TOKENS_PROVED = 2**18
"""Tokens of flagged texts that are proved among texts scored together (4 MiB at most, a million tokens or so). If there
are more, a sample is drawn under a key's secret, so that nobody who posts texts knows which are proved.
"""

TOKENS_A_FLAG = 256
"""Tokens that the p-values of a flag count as in the cost of a proof."""

LONGEST_PROVED = 2**16
"""Most tokens of a text that may be drawn: a proof's memory grows with them."""

SECONDS_A_TOKEN = 5e-5
"""Seconds that a proof may take for a token, generously: the stall limit's price."""


class ProvedKey(NamedTuple):
    """A key under test, as flags are proved.

    open_path: opens its slow path; None: its format has none.
    tokenizer: the reference tokenizer.
    messages: M of SPEC §3.
    corrections: K of whole texts, float64[variant, has_normal_form, has_parts] (ErrorShares.corrections).
    correction_of_spans: K of spans; None: spans are not tested.
    common: n-grams that are left out of scoring; None: none are.
    """

    open_path: Callable[[], SlowPath] | None
    tokenizer: HuggingFaceTokenizer
    messages: int
    corrections: NDArray[np.float64]
    correction_of_spans: float | None = None
    common: LeftOut | None = None

    @property
    def path(self) -> SlowPath | None:
        """The slow path, which is opened when a flag asks for it: it imports for longer than a key is opened."""
        return self.open_path and self.open_path()


class Claim(NamedTuple):
    """A key's claim about a candidate.

    log10_p_global: None where a decoy's score raised it; log10_p_own: None where names need nothing besides;
    passes_rank: as in KeyFindings; named: whether it is to be named.
    """

    message: int
    score: float
    log10_p: float
    log10_p_global: float | None
    log10_p_own: float | None
    passes_rank: bool
    passes: bool
    named: bool


class Flag(NamedTuple):
    """A flagged document: its place in the batch, its text as it stands, and 0, it was scored so, or 1, normalised."""

    place: int
    text: str
    variant: int


class TextReading(NamedTuple):
    """A text as a key reads it: its tokens, uint32[N], places of tokens that are not scored, and K of SPEC §3."""

    ids: NDArray[np.uint32]
    left_out: Collection[int]
    correction: float


ReadText = Callable[[int, SlowPath], TextReading]
"""Reads a text for a key, by its place, with the key's slow path."""


class RecomputedClaim(NamedTuple):
    """A key's claim, computed again. passes: as a whole; passes_user: also by what it shares with no other."""

    key: int
    claim: Claim
    passes: bool
    passes_user: bool

    @property
    def message(self) -> tuple[int, int]:
        """The key and the message."""
        return self.key, self.claim.message


class Prover:
    """Computes flags again, with the keys of a `Detector` in its order.

    draw: secret that decides which flags are drawn, if there are too many: 8 to 64 bytes.
    """

    def __init__(self, keys: Sequence[ProvedKey], draw: bytes, rules: Rules) -> None:
        self._kinds = PartKinds(rules.weights.windows, rules.weights.segments)
        self._keys, self._draw = HiddenValue(tuple(keys)), HiddenValue(draw)
        self._dedup, self._min_scored = rules.dedup, rules.min_scored
        self._log10_rate, self._log10_misnaming = map(float, np.log10(rules.rates))

    def prove(
        self,
        text_of: Callable[[int], str],
        tokens: Sequence[NDArray[np.int64]],
        found: Sequence[KeyFindings],
        decided: Decision,
        salt: bytes,
        normalised: NDArray[np.bool_],
    ) -> NDArray[np.object_]:
        """Prove the flags of a batch of D documents.

        tokens: how many each of K tokenizers made of each document, int64[D] a key; salt: the batch's salt, which
        decides with the text whether a flag is drawn; normalised: bool[D], whose text is the normalised one.

        Returns:
            object[D]: a schemas.words.Proof; None where nothing is flagged.
        """
        proofs = np.full(len(decided.flagged), None, object)
        flags = [
            Flag(place, text_of(place), int(normalised[place])) for place in np.flatnonzero(decided.flagged).tolist()
        ]
        left = TOKENS_PROVED
        for flag in sorted(flags, key=lambda flag: self._lot(flag.text, salt)):
            key = int(decided.key[flag.place])
            if not self.offers(key):
                proofs[flag.place] = Proof.NOT_OFFERED
                continue
            size = int(tokens[key][flag.place])
            if size > LONGEST_PROVED or size + TOKENS_A_FLAG > left:
                proofs[flag.place] = Proof.NOT_DRAWN
                continue
            left -= size + TOKENS_A_FLAG
            sizes = [int(of_key[flag.place]) for of_key in tokens]
            holds = self.confirms(flag.place, partial(self._read, flag), sizes, found, decided)
            proofs[flag.place] = Proof.PROVED if holds else Proof.DIFFERS
        return proofs

    def offers(self, key: int) -> bool:
        """Whether a key, by its place, has a slow path."""
        return self._keys.value[key].open_path is not None

    def prove_spans(self, text: str, key: int, document_spans: Sequence[DocumentSpan]) -> Proof:
        """Compute spans of one key, by its place, in a text again: `differs` where one differs."""
        proved = self._keys.value[key]
        tests, common = (proved.messages, proved.correction_of_spans or math.nan), proved.common
        return prove_spans(proved.path, proved.tokenizer, text, document_spans, tests, self._dedup, self._kinds, common)

    def drawn(
        self,
        texts: Iterable[tuple[int, str, int]],
        salt: bytes,
        *,
        most: int | None = None,
        longest: int | None = None,
    ) -> set[int]:
        """Which texts of a batch have their spans proved: `most` tokens in all, none of more than `longest`.

        texts: their places, the texts, and their tokens, under all keys that have spans in them; of accounts their
        names, and the tokens of their posts; salt: as for `prove`. None: TOKENS_PROVED, LONGEST_PROVED.
        """
        left, longest, found = most or TOKENS_PROVED, longest or LONGEST_PROVED, set()
        for place, _, size in sorted(texts, key=lambda one: self._lot(one[1], salt)):
            if size <= longest and size + TOKENS_A_FLAG <= left:
                left -= size + TOKENS_A_FLAG
                found.add(place)
        return found

    def _lot(self, text: str, salt: bytes) -> bytes:
        data = salt + hashlib.sha256(text.encode()).digest()
        return hashlib.blake2b(data, key=self._draw.value, digest_size=16, person=b"proof-draw-v1").digest()

    def confirms(
        self, place: int, read: ReadText, sizes: Sequence[int], found: Sequence[KeyFindings], decided: Decision
    ) -> bool:
        """Whether every claim of the decision on one of D texts is confirmed, and the rule gives the same naming.

        sizes: tokens of the text under each key.
        """
        key, candidate, naming = int(decided.key[place]), int(decided.candidate[place]), decided.naming[place]
        recomputed: list[RecomputedClaim] = []
        for number, findings in enumerate(found):
            named, second = decided.named[number][place], number == key
            claims = claims_of(findings, named, place, self._log10_rate, second=second)
            if claims and (path := self._keys.value[number].path) is not None:
                text = read(number, path)
                of_key = self._recompute(path, number, text, (sizes[number], int(findings.scored[place])), claims)
                if of_key is None:
                    return False
                recomputed += of_key
        passing = [one for one in recomputed if one.passes]
        may_be_named = {
            one.message for one in passing if (one.passes_user if found[one.key].independent else len(passing) == 1)
        }
        named = {one.message for one in recomputed if one.claim.named}
        best = (key, int(found[key].message[place, candidate]))
        return (
            best in {one.message for one in passing}
            and named <= may_be_named
            and (naming != Naming.NAMED or best in named)
        )

    def _read(self, flag: Flag, number: int, path: SlowPath) -> TextReading:
        """A flagged document, in the variant in which it was scored."""
        key, plain = self._keys.value[number], normalise(flag.text)
        ids = key.tokenizer.encode([plain if flag.variant else flag.text]).ids
        has_normal_form, has_parts = plain != flag.text, self._has_parts(path, key, flag.text)
        correction = float(key.corrections[flag.variant, int(has_normal_form), int(has_parts)])
        return TextReading(ids, places_left_out(key.common, ids), correction)

    def _recompute(
        self, path: SlowPath, number: int, text: TextReading, sizes: tuple[int, int], claims: Sequence[Claim]
    ) -> list[RecomputedClaim] | None:
        """A key's claims about a text of so many tokens and scored positions, computed again; None: one differs."""
        key, messages = self._keys.value[number], [claim.message for claim in claims]
        ids, left_out, correction = text
        scored, scores = path.scores(ids, messages, self._dedup, left_out)
        if (len(ids), scored) != sizes:
            return None
        recomputed, room = [], path.rounding(scored) if isinstance(path, BoundsRounding) else 0.0
        evidence = (
            path.user_evidence(ids, messages, self._dedup, left_out) if isinstance(path, ProvesUserEvidence) else None
        )
        for claim, score, log10_p_user in zip(
            claims, scores, self._log10_p_user(path, evidence, len(messages), correction), strict=True
        ):
            passes = self._passes(claim, path.log10_p(claim.score, scored), (key.messages, correction))
            if (
                passes is None
                or not nearly_equal(claim.score, score, room)
                or not equal_numbers(claim.log10_p_own, log10_p_user, room)
            ):
                return None
            recomputed.append(RecomputedClaim(number, claim, passes, self._passes_user(claim, log10_p_user)))
        return recomputed

    def _has_parts(self, path: SlowPath, key: ProvedKey, text: str) -> bool:
        """Whether a text has parts that are tested under a key, which decides K of the whole."""
        if key.correction_of_spans is None or not isinstance(path, ProvesParts):
            return False
        ids = key.tokenizer.encode([text]).ids
        places = path.parts(ids, [0], self._dedup, places_left_out(key.common, ids))[0]
        return len(places) >= self._min_scored and len(parts_of(self._kinds, key.tokenizer, text, places)) > 1

    def _log10_p_user(
        self, path: SlowPath, evidence: tuple[int, list[float], int] | None, messages: int, correction: float
    ) -> list[float | None]:
        """log10 p of what each message shares with no other, corrected as in `KeyFindings`; None: nothing is asked."""
        from scanner.watermark.proof import log10_any_of

        if evidence is None:
            return [None] * messages
        scored, scores, users = evidence
        return [log10_any_of(log10_any_of(path.log10_p(s, scored), users), correction) for s in scores]

    def _passes_user(self, claim: Claim, log10_p_user: float | None) -> bool:
        if log10_p_user is None or claim.log10_p_own is None:
            return True
        rounding_decides = nearly_equal(log10_p_user, self._log10_misnaming)
        return (claim.log10_p_own if rounding_decides else log10_p_user) <= self._log10_misnaming

    def _passes(self, claim: Claim, log10_p: float, tests: tuple[int, float]) -> bool | None:
        """Whether a candidate passes; None where one of its p-values differs from the claim. tests: M, K of SPEC §3."""
        # log10_p is that of the claimed score, so that rounding of scores does not count twice
        from scanner.watermark.proof import log10_any_of  # flags alone need mpmath

        whole = log10_any_of(log10_any_of(log10_p, tests[0]), tests[1])
        stated = whole if claim.log10_p_global is None else claim.log10_p_global
        if not (nearly_equal(claim.log10_p, log10_p) and nearly_equal(stated, whole)):
            return None
        if nearly_equal(whole, self._log10_rate):  # rounding decides, either way
            return claim.passes
        return whole <= self._log10_rate and claim.passes_rank


def claims_of(
    findings: KeyFindings, named: NDArray[np.bool_], place: int, log10_rate: float, *, second: bool
) -> list[Claim]:
    """A key's claims about a document: on the candidates that pass and, if `second`, on the best two in any case.

    named: which of its candidates are named, bool[C].
    """
    claims = []
    for c in range(findings.message.shape[1]):
        message = int(findings.message[place, c])
        p, log10_p_user = float(findings.log10_p_global[place, c]), float(findings.log10_p_own[place, c])
        passes_rank = bool(findings.passes_rank[place, c])
        passes = p <= log10_rate and passes_rank
        if message >= 0 and (passes or named[c] or (second and c < 2)):
            beaten = findings.p_rank[place, c] > LEAST_RANK
            score, log10_p = float(findings.score[place, c]), float(findings.log10_p[place, c])
            more = None if log10_p_user == -np.inf else log10_p_user
            claims.append(
                Claim(message, score, log10_p, None if beaten else p, more, passes_rank, passes, bool(named[c]))
            )
    return claims


ROUNDING = 1e-9
"""Largest relative difference between two ways to add up floats, in scores and log10 p. Below p = 1e-300, where less is
promised, a hundred times as much is allowed.
"""


def equal_numbers(a: float | None, b: float | None, room: float = 0.0) -> bool:
    """Whether two numbers are alike, or both are missing; room: as of `nearly_equal`."""
    return a is b if a is None or b is None else nearly_equal(a, b, room)


def nearly_equal(a: float, b: float, room: float = 0.0) -> bool:
    """Whether two numbers are the same up to ROUNDING and so much room; an infinite one is like itself alone."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a == b
    size = max(1.0, abs(a), abs(b))
    return abs(a - b) <= (ROUNDING if min(a, b) >= -300.0 else 100.0 * ROUNDING) * size + room
