"""Prove every flag before its row is committed: compute it again from the stored text and the key's secret.

The slow path has code of its own: the reference tokenizer, plain ciphers, and p-values in high precision
(scanner.watermark.proof). The number of tests that corrects p has a path of its own too
(scanner.detection.stated_shares). So the two paths share only the normal form of a text.

A proof covers every message that passed, by its whole score and by the user evidence that names need
(scanner.watermark.format.UserEvidence). It also covers the second-best message of the key that gives the verdict. Spans
are proved by scanner.looks.parts. Two steps are not repeated. The search is not, because its only possible error is a
miss. The scores of decoys that a key must beat are not computed again either.
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
from scanner.detection.rounding import equal_numbers, nearly_equal
from scanner.detection.rules import Rules
from scanner.looks.normalising import normalise
from scanner.looks.text_parts import PARTS_LOOKS, parts_look
from scanner.text import HuggingFaceTokenizer
from scanner.watermark.by_levels import BoundsRounding
from scanner.watermark.format import ProofPath, ProvesParts, ProvesUserEvidence
from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.rule import LEAST_RANK, Decision, KeyFindings
from schemas.words import Naming, Proof

TOKENS_PROVED = 2**18
"""Tokens of flagged texts that are proved among texts scored together (4 MiB at most, about a million tokens).

If there are more, a sample is drawn under a key's secret. So people who post texts cannot know which are proved.
"""

TOKENS_A_FLAG = 256
"""Cost of a flag's p-values in a proof, in tokens."""

LONGEST_PROVED = 2**16
"""Largest number of tokens in a text that may be drawn. A proof's memory grows with the tokens."""

SECONDS_A_TOKEN = 5e-5
"""Seconds that a proof may take for a token, a generous estimate. The stall limit is made of it."""


class ProvedKey(NamedTuple):
    """A key under test, as the proof of a flag needs it.

    open_path: function that opens its slow path. None: its format has none.
    tokenizer: the reference tokenizer.
    messages: M of SPEC §3.
    corrections: K of whole texts, float64[variant, has_normal_form, has_parts] (scanner.detection.stated_shares).
    correction_of_spans: K of spans. None: spans are not tested.
    correction_of_accounts: K of all posts of an account. None: accounts are not tested.
    common: n-grams that are left out of scoring. None: none are.
    """

    open_path: Callable[[], ProofPath] | None
    tokenizer: HuggingFaceTokenizer
    messages: int
    corrections: NDArray[np.float64]
    correction_of_spans: float | None = None
    correction_of_accounts: float | None = None
    common: LeftOut | None = None

    @property
    def path(self) -> ProofPath | None:
        """Return the slow path. It is opened at the first flag, because its imports take longer than opening a key."""
        return self.open_path and self.open_path()


class Claim(NamedTuple):
    """A key's claim about a candidate.

    log10_p_global: None where a decoy's score raised it.
    log10_p_own: None where names need no further evidence.
    passes_rank: as in KeyFindings.
    named: whether it is to be named.
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
    """A flagged document: its place in the batch, its text as written, and the variant that was scored."""

    place: int
    text: str
    variant: int


class TextReading(NamedTuple):
    """A text as a key reads it.

    ids: its tokens, uint32[N].
    left_out: places of tokens that are not scored.
    correction: K of SPEC §3.
    """

    ids: NDArray[np.uint32]
    left_out: Collection[int]
    correction: float


ReadText = Callable[[int, ProofPath], TextReading]
"""A function that reads a text for a key, given the key's place and slow path."""


class RecomputedClaim(NamedTuple):
    """A key's claim after it was computed again.

    passes: whether it passes by its whole score.
    passes_user: whether it also passes by its user evidence.
    """

    key: int
    claim: Claim
    passes: bool
    passes_user: bool

    @property
    def message(self) -> tuple[int, int]:
        """Return the key and the message."""
        return self.key, self.claim.message


class Prover:
    """Proves flags by computing them again.

    Args:
        keys: the keys of a `Detector`, in its order.
        draw: secret that decides which flags are drawn if there are too many, 8 to 64 bytes.
        rules: the rules of the `Detector`.
    """

    def __init__(self, keys: Sequence[ProvedKey], draw: bytes, rules: Rules) -> None:
        self._kinds = rules.weights.part_kinds
        self._keys, self._draw = HiddenValue(tuple(keys)), HiddenValue(draw)
        self._dedup, self._min_scored = rules.dedup, rules.min_scored
        self._log10_rate, self._log10_misnaming = map(float, np.log10(rules.rates))

    def prove(
        self,
        text_of: Callable[[int], str],
        tokens: Sequence[NDArray[np.int64]],
        findings: Sequence[KeyFindings],
        decision: Decision,
        salt: bytes,
        normalised: NDArray[np.bool_],
    ) -> NDArray[np.object_]:
        """Prove the flags of a batch of D documents.

        Args:
            text_of: function that returns the text of a document as written.
            tokens: for each key int64[D], the number of tokens that it reads in each document.
            findings: the findings of each key.
            decision: the decision on the D documents.
            salt: salt of the batch. Together with the text it decides whether a flag is drawn.
            normalised: bool[D], documents whose normalised text was scored.

        Returns:
            object[D], a schemas.words.Proof for each document. None where nothing is flagged.
        """
        proofs = np.full(len(decision.flagged), None, object)
        flags = [
            Flag(place, text_of(place), int(normalised[place])) for place in np.flatnonzero(decision.flagged).tolist()
        ]
        tokens_left = TOKENS_PROVED
        for flag in sorted(flags, key=lambda flag: self._lot(flag.text, salt)):
            key = int(decision.key[flag.place])
            if not self.offers(key):
                proofs[flag.place] = Proof.NOT_OFFERED
                continue
            size = int(tokens[key][flag.place])
            if size > LONGEST_PROVED or size + TOKENS_A_FLAG > tokens_left:
                proofs[flag.place] = Proof.NOT_DRAWN
                continue  # a shorter text may still fit
            tokens_left -= size + TOKENS_A_FLAG
            sizes = [int(lengths[flag.place]) for lengths in tokens]
            holds = self.confirms(flag.place, partial(self._read, flag), sizes, findings, decision)
            proofs[flag.place] = Proof.PROVED if holds else Proof.DIFFERS
        return proofs

    def offers(self, key: int) -> bool:
        """Return whether a key has a slow path. `key` is its place."""
        return self._keys.value[key].open_path is not None

    def correction_of_accounts(self, key: int) -> float:
        """Return K of all posts of an account under a key, by its place. NaN where accounts are not tested."""
        correction = self._keys.value[key].correction_of_accounts
        return math.nan if correction is None else correction

    def prove_spans(self, text: str, key: int, document_spans: Sequence[DocumentSpan]) -> Proof:
        """Compute a key's spans in a text again. The result is `differs` if one of them differs. `key` is its place."""
        proved = self._keys.value[key]
        tests, common = (proved.messages, proved.correction_of_spans or math.nan), proved.common
        return parts_look().prove_spans(
            proved.path, proved.tokenizer, text, document_spans, tests, self._dedup, self._kinds, common
        )

    def draw(
        self,
        texts: Iterable[tuple[int, str, int]],
        salt: bytes,
        *,
        most: int | None = None,
        longest: int | None = None,
    ) -> set[int]:
        """Draw the texts of a batch whose spans are proved. Return their places.

        Args:
            texts: place, text, and number of its tokens under all keys with spans in it. For accounts: place, name, and
                number of tokens in all posts.
            salt: as for `prove`.
            most: largest number of tokens in all. None: TOKENS_PROVED.
            longest: largest number of tokens in a text. None: LONGEST_PROVED.
        """
        tokens_left, longest, drawn = most or TOKENS_PROVED, longest or LONGEST_PROVED, set()
        for place, _, size in sorted(texts, key=lambda text: self._lot(text[1], salt)):
            if size <= longest and size + TOKENS_A_FLAG <= tokens_left:
                tokens_left -= size + TOKENS_A_FLAG
                drawn.add(place)
        return drawn

    def _lot(self, text: str, salt: bytes) -> bytes:
        # keyed, so that people who post texts cannot choose texts that are never drawn
        data = salt + hashlib.sha256(text.encode()).digest()
        return hashlib.blake2b(data, key=self._draw.value, digest_size=16, person=b"proof-draw-v1").digest()

    def confirms(
        self, place: int, read: ReadText, sizes: Sequence[int], findings: Sequence[KeyFindings], decision: Decision
    ) -> bool:
        """Return whether every claim on one of D texts is confirmed, and the rule gives the naming of the decision.

        Args:
            place: place of the text.
            read: reads the text for a key.
            sizes: number of tokens of the text under each key.
            findings: the findings of each key.
            decision: the decision on the D texts.
        """
        # 1. Compute every claim again. A single difference is enough.
        key, candidate, naming = int(decision.key[place]), int(decision.candidate[place]), decision.naming[place]
        recomputed: list[RecomputedClaim] = []
        for number, under_key in enumerate(findings):
            named, second = decision.named[number][place], number == key
            claims = claims_of(under_key, named, place, self._log10_rate, second=second)
            if claims and (path := self._keys.value[number].path) is not None:
                text = read(number, path)
                claims_again = self._recompute(
                    path, number, text, (sizes[number], int(under_key.scored[place])), claims
                )
                if claims_again is None:
                    return False
                recomputed += claims_again

        # 2. Name by the rule: by user evidence, or without it only if a single message passes (SPEC_3 §4).
        passing = [claim for claim in recomputed if claim.passes]
        may_be_named = {
            claim.message
            for claim in passing
            if (claim.passes_user if findings[claim.key].independent else len(passing) == 1)
        }

        # 3. Check that the verdict's message passes, and that no user is named against the rule.
        named_messages = {claim.message for claim in recomputed if claim.claim.named}
        verdict = key, int(findings[key].message[place, candidate])
        return (
            verdict in {claim.message for claim in passing}
            and named_messages <= may_be_named
            and (naming != Naming.NAMED or verdict in named_messages)
        )

    def _read(self, flag: Flag, number: int, path: ProofPath) -> TextReading:
        """Read a flagged document for a key, in the variant that was scored."""
        key, normalised = self._keys.value[number], normalise(flag.text)
        ids = key.tokenizer.encode([normalised if flag.variant else flag.text]).ids
        has_normal_form, has_parts = normalised != flag.text, self._has_parts(path, key, flag.text)
        correction = float(key.corrections[flag.variant, int(has_normal_form), int(has_parts)])
        return TextReading(ids, places_left_out(key.common, ids), correction)

    def _recompute(
        self, path: ProofPath, number: int, text: TextReading, sizes: tuple[int, int], claims: Sequence[Claim]
    ) -> list[RecomputedClaim] | None:
        """Compute a key's claims about a text again. None: one of them differs.

        sizes: number of its tokens and of its scored positions.
        """
        key, messages = self._keys.value[number], [claim.message for claim in claims]
        ids, left_out, correction = text
        scored, scores = path.scores(ids, messages, self._dedup, left_out)
        if (len(ids), scored) != sizes:
            return None
        recomputed, rounding = [], path.rounding(scored) if isinstance(path, BoundsRounding) else 0.0
        evidence = (
            path.user_evidence(ids, messages, self._dedup, left_out) if isinstance(path, ProvesUserEvidence) else None
        )
        for claim, score, log10_p_user in zip(
            claims, scores, self._log10_p_user(path, evidence, len(messages), correction), strict=True
        ):
            passes = self._passes(claim, path.log10_p(claim.score, scored), (key.messages, correction))
            if (
                passes is None
                or not nearly_equal(claim.score, score, rounding)
                or not equal_numbers(claim.log10_p_own, log10_p_user, rounding)
            ):
                return None
            recomputed.append(RecomputedClaim(number, claim, passes, self._passes_user(claim, log10_p_user)))
        return recomputed

    def _has_parts(self, path: ProofPath, key: ProvedKey, text: str) -> bool:
        """Return whether a text has parts that are tested under a key. This decides K of the whole text."""
        if key.correction_of_spans is None or not isinstance(path, ProvesParts) or not PARTS_LOOKS:
            return False
        ids = key.tokenizer.encode([text]).ids
        places = path.parts(ids, [0], self._dedup, places_left_out(key.common, ids))[0]
        parts = parts_look().parts_of(self._kinds, key.tokenizer, text, places)
        return len(places) >= self._min_scored and len(parts) > 1

    def _log10_p_user(
        self, path: ProofPath, evidence: tuple[int, list[float], int] | None, messages: int, correction: float
    ) -> list[float | None]:
        """Compute log10 p of each message's user evidence, corrected as in `KeyFindings`. None: not needed."""
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
        """Return whether a candidate passes. None if one of its p-values differs from the claim.

        tests: M and K of SPEC §3.
        """
        # log10_p is taken at the claimed score, so that the rounding of scores does not count twice
        from scanner.watermark.proof import log10_any_of  # only flags need mpmath

        whole = log10_any_of(log10_any_of(log10_p, tests[0]), tests[1])
        stated = whole if claim.log10_p_global is None else claim.log10_p_global
        if not (nearly_equal(claim.log10_p, log10_p) and nearly_equal(stated, whole)):
            return None
        if nearly_equal(whole, self._log10_rate):  # rounding decides, so either result is right
            return claim.passes
        return whole <= self._log10_rate and claim.passes_rank


def claims_of(
    findings: KeyFindings, named: NDArray[np.bool_], place: int, log10_rate: float, *, second: bool
) -> list[Claim]:
    """Return a key's claims about a document: on the candidates that pass and, if `second`, always on its best two.

    named: bool[C], candidates that are named.
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
