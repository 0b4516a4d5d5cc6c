"""Define vLLM's own watermarks, `gumbel` and `dual_key_gumbel`, as vLLM 0.30 to 0.33 make them.

Each token is the one of largest logit − ln(−ln u). A keyed function (Philox) draws u from the token and the
`context_width` response tokens before it. A context never contains the prompt, so no position is lost at the start of a
separate answer. Repeated contexts, greedy requests and requests that opt out are not marked, which only dilutes the
mark.
"""

import hashlib
import math
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from scanner.watermark.format import Basis, Case, KnownAnswers, OtherKey, Pairs, ProofPath
from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.laws import Floored, Gamma, Law, SeveralWeights, WeightedGamma, checked_weight
from scanner.watermark.positions import (
    WIDEST_WINDOW,
    Dedup,
    Positions,
    Tokens,
    batch_tokens,
    scored_positions,
    with_opening,
)
from scanner.watermark.stacks.shared import DrawnFormat, StackMark, check_message
from scanner.watermark.stacks.vllm.draws import MISSING_TOKEN, sum_terms, terms_of, words_of_positions

GRID_BITS = 24
"""Number of bits in a uniform: vLLM drops the low 8 bits of a word."""


OF_DRAFTS = 0.2
"""Share of the error of the weight 1/2. Under speculative decoding vLLM ignores alpha, and key A marks all drafts.

Measured by `python -m tests.bench.dual_keys` (docs/measurements/dual-key-weights.json).
"""


LEAST_BY_LEVELS = 0.1
"""Smallest weight of either key, if it counts at all, with which tokens count by levels."""


def weights_of(alpha: float) -> tuple[tuple[float, float], ...]:
    """Return the weights of key B by which a text is scored, with the share of the error of each."""
    return ((0.5, 1.0),) if alpha == 0.5 else ((alpha, 1.0 - OF_DRAFTS), (0.5, OF_DRAFTS))


def sub_keys(master: int) -> tuple[int, int]:
    """Return keys A and B, which vLLM derives from the master key of `dual_key_gumbel`."""
    derived = (hashlib.sha256(name + master.to_bytes(8, "big")).digest()[:8] for name in (b"key_a", b"key_b"))
    first, second = (int.from_bytes(part, "big") for part in derived)
    return first, second


def uniforms(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return the uniforms that vLLM makes of words, a float32 in double precision: float64[P]."""
    exact = ((words >> 8) + 1.0) / (2.0**GRID_BITS + 1.0)
    rounded: NDArray[np.float64] = exact.astype(np.float32).astype(np.float64)
    return rounded


def stack_terms(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return the terms −ln(1−u) of vLLM's own detector: float64[P]. They are for comparison, not for verdicts.

    In half of the cells they exceed the safe `term`, by up to 6e-8. So their sum exceeds its law.
    """
    terms: NDArray[np.float64] = -np.log1p(-uniforms(words))
    return terms


@dataclass(frozen=True)
class ResponsePositions:
    """The first position of each context (dedup `context`, as in vLLM's detector), or of each context and token.

    opening: whether the first `width` positions count, whose context lacks tokens. All responses share the contexts
        (−1, …, −1), (−1, …, x). So under one key, all responses that open with the same words have the same terms
        there.
    """

    width: int
    opening: bool

    @property
    def context(self) -> int:
        """Return 0, or the whole width."""
        return 0 if self.opening else self.width

    def positions(self, tokens: Tokens, dedup: Dedup) -> Positions:
        """See PositionRule."""
        whole_positions = scored_positions(tokens, self.width, dedup)
        return with_opening(tokens, whole_positions, self.width, 0) if self.opening else whole_positions

    def ngram(self, tokens: Tokens, place: int) -> tuple[int, ...]:
        """See PositionRule. A missing token is −1."""
        begin = int(tokens.offsets[np.searchsorted(tokens.offsets, place, side="right") - 1])
        window = tokens.ids[max(begin, place - self.width) : place + 1].tolist()
        return (-1,) * (self.width + 1 - len(window)) + tuple(window)


class Vllm(StackMark):
    """A key of either format.

    Its score is the sum of one key, or the score that `SeveralWeights` makes of two keys' sums.
    """

    def __init__(self, form: "_VllmFormat", secret: bytes, keys: tuple[int, ...], alpha: float = 0.0) -> None:
        super().__init__(form, form.rule(), secret)
        self._keys, self.width, self.alpha = HiddenValue(keys), form.context_width, alpha

    def words(self, tokens: Tokens, positions: Positions) -> list[NDArray[np.uint32]]:
        """Return the words of the scored tokens, uint32[P] for each key."""
        return [
            words_of_positions(np.uint64(key), tokens.ids, tokens.offsets, positions.index, self.width)
            for key in self._keys.value
        ]

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """See Watermark. The mark has only message 0."""
        check_message(messages)
        sums = [sum_terms(words, positions.offsets) for words in self.words(tokens, positions)]
        if len(sums) == 1:
            return sums[0]
        return SeveralWeights(weights_of(self.alpha)).score(sums[0], sums[1], positions.scored)

    def terms_of_keys(
        self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int
    ) -> NDArray[np.float64]:
        """See TermsOfKeys."""
        check_message(messages)
        return np.stack([terms_of(words) for words in self.words(tokens, positions)])

    def stack_terms(self, tokens: Tokens, positions: Positions) -> NDArray[np.float64]:
        """Return the terms that vLLM's own detector adds up: float64[P]."""
        terms = [stack_terms(words) for words in self.words(tokens, positions)]
        return terms[0] if len(terms) == 1 else (1.0 - self.alpha) * terms[0] + self.alpha * terms[1]


class _VllmFormat(DrawnFormat):
    secret_bytes = range(8, 9)
    context_width: int = Field(default=4, ge=1, le=WIDEST_WINDOW)
    partial_contexts: Literal["scored", "dropped"] = "scored"

    def rule(self) -> ResponsePositions:
        return ResponsePositions(self.context_width, self.partial_contexts == "scored")

    def label(self) -> str:
        return f"{self.name};prf=philox4x32-10-v1;context_width={self.context_width};partial={self.partial_contexts}"

    def basis(self) -> Basis:
        """Return the basis of 64 bits. Philox is no cipher, and its key has 64 bits."""
        return Basis(64)

    def lacks_for_levels(self, messages: int) -> str:
        return ""

    def seconds(self, messages: int) -> float:
        """Return five times the measured time with its p-value."""
        return 2e-7

    def _proof(self, secret: bytes, weight: float | None) -> ProofPath:
        from scanner.watermark.stacks.vllm.proof import VllmProof  # late: only flags need mpmath

        opening = self.partial_contexts == "scored"
        return VllmProof(secret, self.context_width, weight, opening=opening, bits=self.basis().bits)


def _words(case: Case) -> Pairs:
    """Yield words of the PRF on separate contexts."""
    contexts, width = case["contexts"], len(case["contexts"][0])
    tokens = batch_tokens(
        [
            [c & MISSING_TOKEN for c in [*context, token]]
            for context, token in zip(contexts, case["token_ids"], strict=True)
        ]
    )
    index = tokens.offsets[1:] - 1
    words = words_of_positions(np.uint64(case["key"]), tokens.ids, tokens.offsets, index, width)
    yield "words", case["words"], words.tolist()
    if "uniforms_hex" in case:
        yield "uniforms", case["uniforms_hex"], [value.hex() for value in uniforms(words).tolist()]


def _sub_keys(case: Case) -> Pairs:
    yield "key_a, key_b", [case["key_a"], case["key_b"]], list(map(str, sub_keys(int(case["key"]))))


def _detection(case: Case) -> Pairs:
    """Yield the values that vLLM's detector reports, with its p-value where that is exact."""
    parameters = {name: case[name] for name in ("context_width", "alpha") if name in case}
    form = (VllmDualKeyFormat if "alpha" in case else VllmGumbelFormat)(**parameters)
    mark, tokens = form.open(int(case["key"]).to_bytes(8, "big")), batch_tokens([case["token_ids"]])
    positions = mark.rule.positions(tokens, "context" if case["deduplicate_contexts"] else "none")
    terms = mark.stack_terms(tokens, positions)
    score, scored = math.fsum(terms), len(terms)
    yield "num_scored_tokens", case["num_scored_tokens"], scored
    if "scored_positions" in case:
        yield "scored_positions", case["scored_positions"], positions.index.tolist()
    for i, term in enumerate(case.get("token_scores", ())):
        yield f"token_scores[{i}]", term, float(terms[i])
    yield "score", case["score"], score
    if case.get("alpha", 0.0) in (0.0, 0.5, 1.0):
        exact = WeightedGamma(case.get("alpha", 0.0)).log10_p(score, scored)
        yield "p_value", case["p_value"], float(10.0**exact)


class VllmGumbelFormat(_VllmFormat):
    """vLLM's `gumbel`: one key, no message."""

    name = "vllm-gumbel"
    title = "vLLM, gumbel"
    answers = KnownAnswers(files(__package__) / "vllm_gumbel.json", {"vllm_words": _words, "vllm_gumbel": _detection})

    def law(self) -> Law:
        """Return the law of 24-bit draws at the lower end of their cells."""
        return Floored(Gamma(), 64)

    def open(self, secret: bytes) -> Vllm:
        """Open it with the key's 8 bytes, big-endian."""
        return Vllm(self, secret, (key_of(secret),))

    def proof(self, secret: bytes) -> ProofPath:
        """See Proves."""
        return self._proof(secret, None)


class VllmDualKeyFormat(_VllmFormat):
    """vLLM's `dual_key_gumbel`: two keys derived from one. Nothing shows which one marked a token, so both are scored.

    Without speculative decoding key B marks the share `alpha` of the tokens. With it, key B marks all tokens that are
    no drafts.
    """

    name = "vllm-dual-key"
    title = "vLLM, dual_key_gumbel"
    answers = KnownAnswers(
        files(__package__) / "vllm_dual_key.json", {"vllm_sub_keys": _sub_keys, "vllm_dual_key": _detection}
    )
    alpha: Annotated[float, AfterValidator(checked_weight)] = 0.1

    def label(self) -> str:
        """See Format."""
        return f"{super().label()};alpha={self.alpha!r}"

    def lacks_for_levels(self, messages: int) -> str:
        """See CountsByLevels. The law's series grows with 1 over the lighter weight."""
        light = 0.0 < self.alpha < LEAST_BY_LEVELS or 1.0 - LEAST_BY_LEVELS < self.alpha < 1.0
        return (
            f"one of its keys counts less than {LEAST_BY_LEVELS:g}, for which computing its law would take too long"
            if light
            else ""
        )

    def law(self) -> Law:
        """Return the law of the score.

        vLLM's moment match is not used. Its p-values are too small except at a weight of 0, 0.5 and 1.
        """
        return Floored(SeveralWeights(weights_of(self.alpha)), 64)

    def open(self, secret: bytes) -> Vllm:
        """Open it with the master key's 8 bytes, big-endian."""
        return Vllm(self, secret, sub_keys(key_of(secret)), self.alpha)

    def proof(self, secret: bytes) -> ProofPath:
        """See Proves."""
        return self._proof(secret, self.alpha)

    def other_keys(self, secret: bytes) -> list[OtherKey]:
        """See HasOtherKeys: each of the two keys on its own."""
        one_key = VllmGumbelFormat(context_width=self.context_width, partial_contexts=self.partial_contexts)
        keys = [HiddenValue(key.to_bytes(8, "big")) for key in sub_keys(key_of(secret))]
        return [
            OtherKey(f"marks with key {name} of the two alone", one_key, key, share)
            for name, key, share in zip("AB", keys, (1.0 - self.alpha, self.alpha), strict=True)
        ]


def key_of(secret: bytes) -> int:
    """Return the key of 8 bytes, big-endian.

    Raises:
        ValueError: the secret has another length.
    """
    if len(secret) != 8:
        raise ValueError(f"a key of vLLM has 8 bytes; this secret has {len(secret)}")
    return int.from_bytes(secret, "big")
