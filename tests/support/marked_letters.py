"""Texts of letters that carry the mark of any stack's key, under a tokenizer of bytes, and admissions for such keys."""

from datetime import UTC, datetime

import numpy as np
import tokenizers

from scanner.watermark import Positions, batch_tokens
from schemas.registry import Admission

LETTERS = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.,;"
SIZE = 160


def admission(down_to: float, messages: int) -> Admission:
    """Admission of a key down to a p-value."""
    now = datetime.now(UTC)
    return Admission(audit_id="a", audited_at=now, holds_down_to=down_to, candidates=1, messages=messages)


def marked_letters(mark, tokenizer: tokenizers.Tokenizer, seed: int, alphabet: str = LETTERS) -> str:
    """A marked text; each letter is the one of eight that adds most to the score."""
    letters = {tokenizer.encode(letter).ids[0]: letter for letter in alphabet}
    random, ids = np.random.default_rng(seed), list(letters)[:6]
    while len(ids) < SIZE:
        some = random.choice(list(letters), 8, replace=False).tolist()
        tokens = batch_tokens([[*ids[-6:], letter] for letter in some])
        last = Positions(tokens.offsets[1:] - 1, np.arange(len(some) + 1))
        gain = mark.ones(tokens, last) @ mark._weights if hasattr(mark, "ones") else mark.score(tokens, last, 0)
        ids.append(some[int(np.argmax(gain))])
    return "".join(letters[token] for token in ids)
