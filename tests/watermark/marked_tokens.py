"""Token ids marked as strongly as a test asks, under any mark that scores parts."""

import numpy as np

from scanner.watermark import Positions, Tokens

VOCABULARY = 50_000


def plain_tokens(generator: np.random.Generator, length: int) -> list[int]:
    """Unmarked token ids."""
    return generator.integers(VOCABULARY, size=length).tolist()


def marked_tokens(mark, message: int, length: int, generator: np.random.Generator, choices: int = 4) -> list[int]:
    """Token ids of which each is the best for a message among `choices` random ones."""
    window = mark.rule.context
    ids = plain_tokens(generator, window)
    while len(ids) < length:
        tokens = generator.integers(VOCABULARY, size=choices).astype(np.uint32)
        context = np.tile(np.array(ids[len(ids) - window :], np.uint32), (choices, 1))
        each = np.concatenate([context, tokens[:, None]], axis=1)
        offsets = np.arange(choices + 1) * (window + 1)
        positions = Positions(offsets[:-1] + window, np.arange(choices + 1))
        scores = mark.score(Tokens(each.ravel(), offsets), positions, message)
        ids.append(int(tokens[scores.argmax()]))
    return ids
