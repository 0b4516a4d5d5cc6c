"""Rows 1 to 4: primitives, one message, all messages, p-values; one core, no files."""

import functools
from argparse import Namespace
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from scanner.looks.parts.search import PROMISING
from scanner.watermark import GreenList, Gumbel, Positions, Tokens, scored_positions
from scanner.watermark.format import DrawsKeys, Watermark
from scanner.watermark.formats import FORMATS, make_format
from scanner.watermark.native.format import groups_for
from scanner.watermark.native.secret import commitment
from scanner.watermark.parts import LONGEST_AT_ONCE
from scanner.watermark.positions import Ranges
from scanner.watermark.pvalues import log10_any_of
from scanner.watermark.rule import log10_p_best
from scanner.watermark.text_windows import coarse_of
from tests import reference
from tests.bench.inputs import SECRET, VOCABULARY, WINDOW, documents
from tests.bench.measure import Comparison, Work, compare

GAMMA = Fraction(1, 4)
TOKENS = 1 << 17
MESSAGES = (10**3, 10**4, 10**5, 10**6)


def random_words() -> Work:
    """The baseline of machine speed: numpy's counter-based generator, in words of 32 bits."""
    generator, count = np.random.Philox(1), 1 << 18
    return Work("numpy Philox, words of 32 bits", 2 * count, lambda: generator.random_raw(count))


def both(number: int = 0) -> tuple[GreenList, Gumbel]:
    secret = SECRET[:-1] + bytes([number])
    return GreenList(secret, WINDOW, GAMMA), Gumbel(secret, WINDOW)


def primitives(options: Namespace) -> Iterator[Comparison]:
    green, gumbel = both()
    tokens = documents(256, TOKENS)
    nonces, starts = np.arange(8, dtype=np.uint64), np.zeros(8, np.int64)
    words = Work("secret words", 8 * 16384, lambda: gumbel.draws(nonces, starts, 16384))
    yield compare(1, "words/s", words, random_words(), options.repeats)

    windows = np.lib.stride_tricks.sliding_window_view(tokens.ids, WINDOW).copy()
    label = green.label
    hashed = Work("BLAKE2b of each window", 1000, lambda: [commitment(SECRET, label) for _ in range(1000)])
    ours = Work(f"window nonces, h = {WINDOW}", len(windows), lambda: green.window_nonces(windows))
    yield compare(1, "nonces/s", ours, hashed, options.repeats)

    short = Tokens(tokens.ids[: 256 * 40], tokens.offsets[:41])
    lists = [short.ids[256 * d : 256 * (d + 1)].tolist() for d in range(40)]
    sets = Work(
        "Python sets of tuples",
        len(short.ids),
        lambda: [reference.scored_positions(tokens, WINDOW, "ngram") for tokens in lists],
    )
    for length in (16, 256, 2048, 100_000):
        some = documents(length, TOKENS)
        ours = Work(
            f"scored positions, documents of {length}",
            len(some.ids),
            lambda some=some: scored_positions(some, WINDOW, "ngram"),
        )
        yield compare(1, "tokens/s", ours, sets, options.repeats)


def one_message(options: Namespace) -> Iterator[Comparison]:
    """All steps of scoring one message of one key: repeats, nonces, scores and corrected p-values."""
    for keys in (1, 16):
        marks = [both(number) for number in range(keys)]
        for place, method in enumerate(("greenlist", "gumbel")):
            for length in (16, 20, 64, 256, 2048, 100_000):
                tokens = documents(length, TOKENS if keys == 1 else TOKENS // 4)

                def score(tokens: Tokens = tokens, chosen: list = [mark[place] for mark in marks]) -> None:  # noqa: B006
                    positions = scored_positions(tokens, WINDOW, "ngram")
                    for mark in chosen:
                        log10_any_of(mark.law.log10_p(mark.score(tokens, positions, 0), positions.scored), len(chosen))

                name = f"one message, {method}, documents of {length}, {keys} key{'s' * (keys > 1)}"
                work = Work(name, len(tokens.ids) * keys, score)
                compared = compare(2, "tokens/s", work, random_words(), options.repeats)
                yield compared._replace(note=f"{1e9 / compared.rate:.3g} ns a token and key")


def every_format(options: Namespace) -> Iterator[Comparison]:
    """As `one_message`, for documents of 256 tokens, with each format's rule of positions and its law."""
    tokens = documents(256, TOKENS)
    for name, entry in FORMATS.items():
        sized = {"vocab_size": VOCABULARY} if "vocab_size" in entry.model_fields else {}
        drawn = {"beacon": "00" * 32} if "beacon" in entry.model_fields else {}
        form = make_format(name, {**entry.suggested, **sized, **drawn})
        mark = form.open((form.draw_key if isinstance(form, DrawsKeys) else form.decoy_key)(bytes(32)))

        def score(mark: Watermark = mark) -> None:
            positions = mark.rule.positions(tokens, "ngram")
            log10_p_best(mark.law, mark.score(tokens, positions, 0), positions.scored, messages=1)

        work = Work(f"one message, {mark.label}", len(tokens.ids), score)
        compared = compare(9, "tokens/s", work, random_words(), options.repeats)
        yield compared._replace(note=f"{1e9 / compared.rate:.3g} ns a token")


def all_messages(options: Namespace) -> Iterator[Comparison]:
    for mark in both():
        for count in MESSAGES:
            tokens = documents(256, 256 * max(1, min(16, 10**6 // count)))
            positions = scored_positions(tokens, WINDOW, "ngram")
            scored, held = int(positions.offsets[-1]), len(tokens.offsets) - 1
            ours = Work(
                f"all messages, {mark.label}, M = {count}",
                scored * count,
                lambda mark=mark, tokens=tokens, positions=positions, count=count: mark.best_two(
                    tokens, positions, count
                ),
            )
            many = documents(256, TOKENS)
            places = scored_positions(many, WINDOW, "ngram")
            single = Work(
                "its one-message path, message by message",
                int(places.offsets[-1]),
                lambda mark=mark, many=many, places=places: mark.score(many, places, 0),
            )
            compared = compare(3, "message·tokens/s", ours, single, options.repeats)
            yield compared._replace(note=f"{compared.rate / scored / count * held:.4g} documents/s of 256 tokens")


def many_users(options: Namespace) -> Iterator[Comparison]:
    """Searches of version 3 in documents of 256 tokens, beside version 1 with as many messages or with 100,000."""
    for users, count in ((1, 1), (10**5, 10**5), (10**6, 10**6), (10**9, 10**5)):
        for old, name in zip(both(), ("greenlist-v3", "gumbel-v3"), strict=True):
            groups = None if users == 1 else groups_for(users)
            form = make_format(name, dict(FORMATS[name].suggested) | {"groups": groups, "beacon": "00" * 32})
            works = []
            for mark, messages, some in (
                (form.open(SECRET), 1 if groups is None else groups**2, 64),
                (old, count, max(2, 64 * 10**4 // count)),
            ):
                tokens = documents(256, 256 * (512 if users == 1 else some))
                positions = scored_positions(tokens, WINDOW, "ngram")

                def search(
                    mark: Any = mark, tokens: Tokens = tokens, m: int = messages, at: Positions = positions
                ) -> None:
                    mark.search(tokens, at, m)

                works.append(Work(f"{mark.label}, {messages} messages", len(tokens.offsets) - 1, search))
            yield compare(10, "documents/s", *works, options.repeats)


def parts_for_users(options: Namespace) -> Iterator[Comparison]:
    """Searches of version 3 in texts of 170 tokens, their halves and coarse windows, beside searches of texts alone."""
    tokens = documents(170, 170 * 512)
    for users in (10**5, 10**6):
        for name in ("greenlist-v3", "gumbel-v3"):
            groups = groups_for(users)
            form = dict(FORMATS[name].suggested) | {"groups": groups, "beacon": "00" * 32}
            mark: Any = make_format(name, form).open(SECRET)
            positions = mark.rule.positions(tokens, "ngram")
            begin, end = positions.offsets[:-1], positions.offsets[1:]
            edges = np.stack([begin, (begin + end) // 2, end], axis=1)
            rows = np.arange(len(edges) + 1) * 3
            parts = Ranges(rows, edges[:, [0, 0, 1]].ravel(), edges[:, [2, 1, 2]].ravel())
            request = tokens, positions, parts, coarse_of(positions, 0, LONGEST_AT_ONCE), groups**2, PROMISING
            alone = tokens, positions, groups**2
            works = (
                Work(f"{mark.label}, halves and windows", len(edges), functools.partial(mark.search_parts, *request)),
                Work("texts alone", len(edges), functools.partial(mark.search, *alone)),
            )
            yield compare(11, "documents/s", *works, options.repeats)


def p_values(options: Namespace) -> Iterator[Comparison]:
    """Times p-values, warm (the same marks again) and cold (new marks, so that nothing is remembered)."""
    documents_count = 20_000
    for length in (20, 256, 2048):
        scored = np.full(documents_count, length, np.int64)
        generator = np.random.default_rng(1)
        greens = generator.binomial(length, 0.25, documents_count)
        sums = generator.gamma(length, size=documents_count)
        for place, (score, plain) in enumerate(((greens, _plain_green), (sums, reference.log10_gumbel))):
            mark = both()[place]
            slow = Work(
                "the mpmath reference",
                20,
                lambda plain=plain, score=score, length=length: [plain(value, length) for value in score[:20].tolist()],
            )
            for name, call in (
                ("warm", lambda mark=mark, score=score, scored=scored: mark.law.log10_p(score, scored)),
                ("cold", lambda place=place, score=score, scored=scored: both()[place].law.log10_p(score, scored)),
            ):
                ours = Work(f"p-values, {mark.label}, T = {length}, {name}", documents_count, call)
                yield compare(4, "p-values/s", ours, slow, options.repeats)


def _plain_green(score: int, scored: int) -> object:
    return reference.log10_greenlist(score, scored, GAMMA)
