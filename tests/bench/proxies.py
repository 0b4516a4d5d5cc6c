"""Proxies of a model that wrote texts: how surely each would have written a token, from the text alone."""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scanner.generation import LocalModel
from scanner.research.attacks import Tools

Floats = NDArray[np.float64]


class Ngrams:
    """Probabilities of tokens from counts of n-grams, each length backed off to the next shorter one.

    Args:
        texts: token ids of texts that nobody marked.
        longest: n.
    """

    def __init__(self, texts: Sequence[Sequence[int]], longest: int = 4) -> None:
        ids = np.fromiter(itertools.chain.from_iterable((*text, 2**32 - 1) for text in texts), np.uint64)
        self._counts = [np.unique(self._hashes(ids, n), return_counts=True) for n in range(longest + 1)]

    @staticmethod
    def _hashes(ids: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
        """A hash of the n tokens that end at each place; shorter at the beginning."""
        value = np.zeros(len(ids), np.uint64)
        for back in range(n):
            shifted = np.concatenate([np.full(min(back, len(ids)), 2**32 - 2, np.uint64), ids[: len(ids) - back]])
            value = (value * np.uint64(0x9E3779B97F4A7C15)) ^ (shifted + np.uint64(1))
            value = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        return value

    def _count(self, n: int, hashes: NDArray[np.uint64]) -> Floats:
        known, counts = self._counts[n]
        at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        return np.where(known[at] == hashes, counts[at].astype(np.float64), 0.0)

    def probabilities(self, text: Sequence[int]) -> Floats:
        """p̂ of each token, float64[T]."""
        ids = np.array(text, np.uint64)
        p = np.full(len(ids), 1e-5)
        before = np.concatenate([np.full(1, 2**32 - 1, np.uint64), ids[:-1]])
        for n in range(1, len(self._counts)):
            whole, context = self._count(n, self._hashes(ids, n)), self._count(n - 1, self._hashes(before, n - 1))
            p = (whole + 2.0 * p) / (context + 2.0)
        return np.minimum(p, 1.0)


class Proxies:
    """Everything that gives p̂ of each token of a text, by name.

    Args:
        model: the model that wrote the texts.
        corpus: texts that nobody marked; none: only what the writer's own logits give, in half the time.
        tools: its tokenizer, and another one for n-grams of its tokens.
    """

    def __init__(self, model: LocalModel, corpus: Sequence[str], tools: Tools) -> None:
        self._model, self._tools, self._tables = model, tools, dict[str, Ngrams]()
        if not corpus:
            return
        ids = [tools.ids(text) for text in corpus]
        self._tables = {"n-grams of 4 M tokens": Ngrams(ids), "n-grams of 0.5 M tokens": Ngrams(ids[: len(ids) // 8])}
        assert tools.other is not None
        other = [tools.other.encode(text, add_special_tokens=False).ids for text in corpus]
        self._other = Ngrams(other)
        self._by_place = self._places(ids[: len(ids) // 8])

    def of(self, text: str) -> dict[str, Floats]:
        """p̂ of each token by each proxy: float64[T]."""
        ids = self._tools.ids(text)
        found = {name: table.probabilities(ids) for name, table in self._tables.items()}
        if found:
            found["n-grams of another tokenizer"] = self._through_characters(text)
            found["a table by place in the word"] = self._by_place[self._place_in_word(ids)]
        for dropped, name in ((0, "the writer"), (10, "10 of 30 layers left out"))[: 1 + bool(found)]:
            logits = self._logits(ids, dropped)
            found[name] = _probabilities(logits, ids)
            if not dropped:
                found["the writer at temperature 2"] = _probabilities(logits / 2.0, ids)
                noise = np.random.default_rng(ids).standard_normal(logits.shape, np.float32)
                found |= {
                    f"the writer, logits with noise of {size}": _probabilities(logits + size * noise, ids)
                    for size in (1, 2)
                }
        return found

    def _logits(self, ids: Sequence[int], dropped: int) -> NDArray[np.float32]:
        """Logits for each token from those before it, [T, |V|]; the first one's are zero."""
        import torch

        inner = self._model.model.model
        layers = inner.layers
        out = np.zeros((len(ids), self._model.model.config.vocab_size), np.float32)
        gone = {round(2 + i * (len(layers) - 4) / dropped) for i in range(dropped)} if dropped else set()
        inner.layers = torch.nn.ModuleList(layer for i, layer in enumerate(layers) if i not in gone)
        inner.config.num_hidden_layers = len(inner.layers)
        try:
            with torch.inference_mode():
                seen = self._model.model(input_ids=torch.tensor([ids[:-1]]), use_cache=False)
                out[1:] = seen.logits[0].float().numpy()
        finally:
            inner.layers, inner.config.num_hidden_layers = layers, len(layers)
        return out

    def _through_characters(self, text: str) -> Floats:
        """Surprise by the other tokenizer's n-grams, shared out evenly over characters and summed over our tokens."""
        assert self._tools.other is not None
        encoded = self._tools.other.encode(text, add_special_tokens=False)
        surprise = np.zeros(len(text) + 1)
        for (begin, end), p in zip(encoded.offsets, self._other.probabilities(encoded.ids), strict=True):
            surprise[begin:end] += -np.log(p) / max(end - begin, 1)
        total = np.concatenate([[0.0], np.cumsum(surprise)])
        ours = self._tools.tokenizer.encode(text, add_special_tokens=False)
        return np.array([np.exp(total[begin] - total[end]) for begin, end in ours.offsets])

    def _place_in_word(self, ids: Sequence[int]) -> NDArray[np.int64]:
        """How many tokens of its word stand before each: 0 to 4."""
        places, place = [], 0
        for token in ids:
            begins = not (self._tools.tokenizer.id_to_token(token) or "").isalpha()
            place = 0 if begins else min(place + 1, 4)
            places.append(place)
        return np.array(places)

    def _places(self, texts: Sequence[Sequence[int]]) -> Floats:
        """Mean p̂ at each place in a word by the n-grams of the other texts: float64[5]."""
        table = Ngrams(texts[: len(texts) // 2])
        sums, counts = np.zeros(5), np.zeros(5)
        for text in texts[len(texts) // 2 :]:
            place = self._place_in_word(text)
            sums += np.bincount(place, table.probabilities(text), 5)
            counts += np.bincount(place, minlength=5)
        return sums / np.maximum(counts, 1.0)


def _probabilities(logits: NDArray[np.float32], ids: Sequence[int]) -> Floats:
    import torch

    of_token = logits[np.arange(len(ids)), ids].astype(np.float64)
    return np.exp(of_token - torch.logsumexp(torch.from_numpy(logits), 1).numpy().astype(np.float64))
