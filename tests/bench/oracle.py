"""What answers give away: `python -m tests.bench.oracle`, minutes. Attackers ask `serve`, or a server that tells p.

All is in process: the server's own scorer, budget and table, and a clock that stands still, so that everything happens
in one window of the budget. Texts have one token a word, and the attacker knows the tokenizer. Per key (h = 2, 4):

- near-duplicates: share of edited, cut, padded and quoting texts that hold the text that they come from, as the budget
  sees it, and share of unrelated texts that do, of all pairs of a corpus (--corpus) or of random texts;
- honest use: share of a corpus (--honest texts, of the --sources of its column `source`) that is refused where each
  text is another caller's, all ask in one window, nobody edits anything, and every text is marked from end to end;
- scrubbing: edits until a marked text of 300 tokens is not flagged, by who gets no answers and edits as many tokens as
  19 of 20 texts need, and by who sees p and keeps edits that raise it; edits until `serve` answers `not found`, by who
  asks about more and fewer edits in one order, by who begins with many and takes away one after the other until a text
  is found, and by who makes them anew each time, so that variants hardly repeat each other;
- forging: unmarked texts that are flagged after 1,000 queries of hill-climbing;
- draws: n-grams that callers choose and that they take for green or not, right beyond chance: one caller and 100, with
  10,000 queries each, and who sees p. The budget refuses most queries, by the code that refuses them in `serve`.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from scanner.audit.statistics.judgement import binomial_limits
from scanner.detection.sketches import gram_key, keyed_grams
from scanner.registry import new_key
from scanner.service.budget import Budget, BudgetSpent, Caller, Outcome, holds
from scanner.service.scoring import Scorer, ServedScan
from schemas.service import BudgetConfig, DetectorConfig, DetectorResult
from tests.fixed import fix_secrets
from tests.support.detecting import configured
from tests.support.two_keys import TOKENIZER, Words, marked_text, plain_text, words_of_one_token

SECRET = bytes(range(32))
LENGTH = 300
FLAGGED = 1e-6
QUERIES = 10_000
"""Queries of a caller who wants to learn draws."""

CHOSEN = 400
"""n-grams whose draws who sees p learns."""

STEP, TRIES = 8, 5
"""Edits that who edits anew takes away at a time, and most variants of as many edits that he asks about."""


class Server:
    """The detector without HTTP: its scorer, its budget, and a clock."""

    def __init__(self, scorer: Scorer, budget: BudgetConfig, folder: Path) -> None:
        self.scorer, self.now, self.answered, self.asked = scorer, 1e9, 0, 0
        self.budget = Budget(folder, SECRET, budget, lambda: self.now)

    def ask(self, text: str, caller: str) -> DetectorResult | None:
        """The answer to a text; None: its budget is used up."""
        self.asked += 1
        (payment,) = self.budget.pay(Caller(caller, expert=False), [(self.budget.digest(text.encode()), 0.0)])
        if isinstance(payment, BudgetSpent):
            return None
        (finding,) = self.scorer.find_marks([text.encode()])
        if self.budget.settle([Outcome(payment, finding.result, finding.grams, finding.marked)]) != [None]:
            return None
        self.answered += 1
        return finding.result

    def has_spent(self, caller: str) -> bool:
        """Whether a caller has no new text left, as a refusal says."""
        return not self.budget.has_left(Caller(caller, expert=False))

    def queries(self) -> str:
        return f"asked {self.asked:,}, answered {self.answered:,}"

    def log10_p(self, text: str) -> float:
        """What a server that tells p answers."""
        (p,) = self.scorer._opened.score_batch([text.encode()]).verdicts["log10_p_global"].to_pylist()
        return float(p)


def edited_words(words: Sequence[str], places: Sequence[int], drawn: Sequence[str]) -> list[str]:
    found = list(words)
    for place in places:
        found[place] = drawn[place]
    return found


def edited(words: Sequence[str], places: Sequence[int], drawn: Sequence[str]) -> str:
    return " " + " ".join(edited_words(words, places, drawn))


def scrub(server: Server, text: str, others: str, rng: np.random.Generator) -> tuple[int, int, list[int]]:
    """Edits that a text needs in a random order; edits made by who sees p; that order."""
    words, drawn = text.split(), others.split()
    order = rng.permutation(len(words)).tolist()
    low, high = 0, len(words)
    while low < high:  # the first number of edits that is enough, by p itself
        middle = (low + high) // 2
        enough = server.log10_p(edited(words, order[:middle], drawn)) > np.log10(FLAGGED)
        low, high = (low, middle) if enough else (middle + 1, high)
    kept, now, made = list(words), server.log10_p(text), 0
    for place in order:
        if now > np.log10(FLAGGED):
            break
        tried = edited_words(kept, [place], drawn)
        p = server.log10_p(" " + " ".join(tried))
        if p > now:
            kept, now, made = tried, p, made + 1
    return high, made, order


def scrub_in_order(server: Server, text: str, others: str, order: Sequence[int], blind: int, caller: str) -> int:
    """Edits made by who halves their number by answers, and stays at what was answered last when there are no more."""
    words, drawn, low, high = text.split(), others.split(), 0, blind
    while low < high:
        answer = server.ask(edited(words, order[: (middle := (low + high) // 2)], drawn), caller)
        if answer is None:
            break
        low, high = (low, middle) if answer == DetectorResult.NOT_FOUND else (middle + 1, high)
    return high


def scrub_from_below(server: Server, text: str, others: str, order: Sequence[int], blind: int, callers: str) -> int:
    """Edits made by who takes one away after the other until a text is found, for which others have to ask, too."""
    words, drawn = text.split(), others.split()
    for edits in range(blind - 1, -1, -1):
        answer = server.ask(edited(words, order[:edits], drawn), f"{callers}, {edits // 50}")
        if answer != DetectorResult.NOT_FOUND:
            return edits + 1
    return 0


def scrub_anew(server: Server, text: str, others: str, rng: np.random.Generator, blind: int, caller: str) -> int:
    """Edits of the least edited variant that is not found, by who makes all edits anew for each, so that few are alike.

    He takes away STEP edits where a variant is not found, and gives up after TRIES that are.
    """
    words, drawn, edits = text.split(), others.split(), blind - STEP
    while edits > 0:
        for _ in range(TRIES):
            answer = server.ask(edited(words, rng.permutation(len(words))[:edits].tolist(), drawn), caller)
            if answer in (None, DetectorResult.NOT_FOUND):
                break
        if answer != DetectorResult.NOT_FOUND:
            break
        edits -= STEP
    return edits + STEP


def forge(ask: Callable[[str], float | None], words: Words, rng: np.random.Generator, queries: int) -> bool:
    """Whether hill-climbing flags an unmarked text. ask: what is to fall, None: no more answers."""
    chosen = rng.integers(len(words.words), size=LENGTH)

    def text() -> str:
        return "".join(" " + words.words[i] for i in chosen)

    now = ask(text())
    for _ in range(queries):
        if now is None or now <= np.log10(FLAGGED):
            break
        place, before = rng.integers(LENGTH), chosen.copy()
        chosen[place] = rng.integers(len(words.words))
        found = ask(text())
        if found is None:
            return False
        now, chosen = (found, chosen) if found < now else (now, before)
    return now is not None and now <= np.log10(FLAGGED)


def draws(
    server: Server, window: int, marked: Callable[[int], str], words: Words, callers: int
) -> tuple[int, int, int]:
    """n-grams told, told right, right by chance: near the threshold, one more green word turns an answer."""
    rng, told, right = np.random.default_rng(5), 0, 0
    for caller in range(callers):
        for attempt in range(100):
            name = f"{callers} callers, {caller}"
            text = marked(1_000_000 + 1000 * caller + attempt).split()
            low, high = 20, len(text)  # the shortest beginning that is found
            answer = None
            while low < high:
                answer = server.ask(" " + " ".join(text[: (middle := (low + high) // 2)]), name)
                if answer is None:
                    break
                low, high = (low, middle) if answer == DetectorResult.FOUND else (middle + 1, high)
            if server.has_spent(name):
                break
            if answer is None:
                continue
            base = text[: low - 1]
            while True:
                chosen = rng.integers(len(words.words), size=window + 1).tolist()
                answer = server.ask(" " + " ".join(base + [words.words[i] for i in chosen]), name)
                if answer is None:
                    break
                told += 1
                right += (answer == DetectorResult.FOUND) == is_green(server, chosen, words)
    return told, right, round(0.75 * told)


def draws_by_p(server: Server, window: int, marked: Callable[[int], str], words: Words) -> int:
    """How many of CHOSEN draws who sees p takes right, in two queries each: with the last word, and without it."""
    rng, right, base = np.random.default_rng(6), 0, marked(999)
    for _ in range(CHOSEN):
        chosen = rng.integers(len(words.words), size=window + 1).tolist()
        before = base + "".join(" " + words.words[i] for i in chosen[:-1])
        fell = server.log10_p(before + " " + words.words[chosen[-1]]) < server.log10_p(before)
        right += fell == is_green(server, chosen, words)
    return right


def is_green(server: Server, chosen: Sequence[int], words: Words) -> bool:
    """Whether the last of some words is green after the others, for message 1."""
    mark, ids = server.scorer._opened.opened_keys[0].watermark, words.tokens[list(chosen)].astype(np.uint32)
    green = mark.green(mark.window_nonces(ids[None, :-1]), np.array([1]), int(words.tokens.max()) + 1)[0]
    return bool(green[ids[-1]])


def ask_on(server: Server, callers: int) -> int:
    """Number of answers to the queries that callers have left, who go on with other texts until they made QUERIES."""
    before = server.answered
    for number in range(callers * QUERIES - server.asked):
        server.ask(f"query {number}", f"{callers} callers, {number % callers}")
    return server.answered - before


def shares(texts: Sequence[str]) -> None:
    """Prints the share of variants that hold their text, and of unrelated pairs that do."""
    rng, key = np.random.default_rng(1), gram_key(SECRET)
    every = [word for text in texts for word in text.split()]

    def edit(text: str, share: float) -> str:
        words = text.split(" ")
        for place in rng.permutation(len(words))[: round(share * len(words))]:
            words[place] = every[rng.integers(len(every))]
        return " ".join(words)

    def pad(text: str, times: int) -> str:
        others = [texts[i] for i in rng.integers(len(texts), size=times)]
        return " ".join([*others[: times // 2], text, *others[times // 2 :]])

    def quoted(text: str, share: float) -> str:
        other = texts[rng.integers(len(texts))]
        return f"{other} {text[: round(share / (1 - share) * len(other))]}"

    kinds: dict[str, Callable[[str], str]] = {
        f"{share:.0%} of words edited": lambda text, share=share: edit(text, share) for share in (0.05, 0.1, 0.2, 0.4)
    }
    kinds |= {
        "cut in half": lambda text: text[len(text) // 2 :],
        "padded by 3 texts": lambda text: pad(text, 3),
        "padded by 10 texts": lambda text: pad(text, 10),
        "padded by 100 texts": lambda text: pad(text, 100),
    }
    kinds |= {
        f"{share:.0%} of another are a quote": lambda text, share=share: quoted(text, share)
        for share in (0.1, 0.2, 0.3)
    }
    grams = [keyed_grams(text, key) for text in texts]
    for kind, change in kinds.items():
        met = sum(holds(np.isin(keyed_grams(change(text), key), grams[i])) for i, text in enumerate(texts))
        low, high = binomial_limits(met, len(texts), 0.025)
        print(f"  {kind:28} {met:5} of {len(texts)} hold their text ({low:.4f} to {high:.4f})")
    pairs = len(texts) * (len(texts) - 1) // 2
    shared = [(i, j) for i, one in enumerate(grams) for j in range(i) if holds(np.isin(one, grams[j]))]
    low, high = binomial_limits(len(shared), pairs, 0.025)
    print(f"  unrelated pairs: {len(shared)} of {pairs:,} ({low:.2e} to {high:.2e})")


def refused(texts: Sequence[str], limits: Sequence[int], folder: Path) -> None:
    """Prints how many texts, each of another caller, are refused by what others asked about in the same window."""
    grams = [keyed_grams(text, gram_key(SECRET)) for text in texts]
    for limit in limits:
        (folder / f"honest {limit}").mkdir()
        config = BudgetConfig(near_duplicates=limit)
        budget, count = Budget(folder / f"honest {limit}", SECRET, config, lambda: 1e9), 0
        for place, each in enumerate(grams):
            (payment,) = budget.pay(Caller(f"{place}", expert=False), [(place.to_bytes(32), 0.0)])
            assert not isinstance(payment, BudgetSpent)
            count += budget.settle([Outcome(payment, DetectorResult.FOUND, each, each)]) != [None]
        low, high = binomial_limits(count, len(texts), 0.025)
        print(f"  {limit} near-duplicates: {count} of {len(texts)} refused ({low:.4f} to {high:.4f})", flush=True)


def read_corpus(file: Path, sources: Sequence[str], count: int) -> list[str]:
    """Texts of 800 to 4,000 characters, each once."""
    import polars as pl

    corpus = pl.scan_parquet(file)
    if sources:
        corpus = corpus.filter(pl.col("source").is_in(sources))
    long_enough = corpus.filter(pl.col("text").str.len_chars().is_between(801, 3999)).select("text").collect()["text"]
    texts: list[str] = long_enough.unique(maintain_order=True).sample(count, seed=3).to_list()
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.oracle", description=__doc__)
    parser.add_argument("--texts", type=int, default=40, help="texts that are scrubbed; 0: none")
    parser.add_argument("--forged", type=int, default=4)
    parser.add_argument("--corpus", type=Path, help="Parquet with a column `text`; else random texts")
    parser.add_argument("--sources", nargs="+", default=[], help="of the corpus' column `source`; all, unless stated")
    parser.add_argument("--honest", type=int, default=0, help="texts of the corpus that different callers ask about")
    parser.add_argument("--near-duplicates", type=int, nargs="+", default=[10, 3, 1])
    parser.add_argument("--windows", type=int, nargs="*", default=[2, 4], help="of the keys that are attacked")
    parser.add_argument("--callers", type=int, nargs="*", default=[1, 100], help="who learn draws together")
    parser.add_argument("--shares", type=int, default=1000, help="texts of which variants are made; 0: none")
    options = parser.parse_args()
    words = words_of_one_token()
    texts = [plain_text(words)(250, seed) for seed in range(options.shares)]
    if options.corpus and options.shares:
        texts = read_corpus(options.corpus, options.sources, options.shares)
    with tempfile.TemporaryDirectory() as name:
        if texts:
            print(f"near-duplicates, {len(texts)} texts")
            shares(texts)
        if options.honest:
            print(f"honest use, sources {', '.join(options.sources) or 'all'}:")
            honest = read_corpus(options.corpus, options.sources, options.honest)
            refused(honest, options.near_duplicates, Path(name))
        for window in options.windows:
            folder = Path(name) / f"h{window}"
            folder.mkdir()
            fix_secrets(folder / "registry", "green")
            new_key(
                folder / "registry",
                "green",
                format="greenlist",
                window=window,
                gamma="1/4",
                messages=20,
                tokenizer=TOKENIZER,
            )
            configured(folder, folder / "registry")
            scorer = Scorer(ServedScan.of(DetectorConfig(version=2), folder), SECRET)
            one_window(scorer, folder / "registry", window, words, options, folder)


def mean(values: Sequence[int]) -> str:
    error = 1.96 * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.1f} ± {error:.1f}"


NewServer = Callable[[int, str], Server]
"""Makes a server with a limit of near-duplicates and an empty table, whose name is given."""


def scrubbing(new_server: NewServer, texts: Sequence[tuple[str, str]], limits: Sequence[int]) -> None:
    """Prints edits saved in scrubbing marked texts, beside each of which stand other words."""
    rng, telling = np.random.default_rng(9), new_server(1, "telling p")
    scrubbed = [scrub(telling, *pair, rng) for pair in texts]
    blind = int(np.quantile([needed for needed, _, _ in scrubbed], 0.95, method="higher"))
    saved = mean([blind - made for _, made, _ in scrubbed])
    print(f"  scrubbing, n={len(texts)}: blind {blind} edits; saved by p {saved}", flush=True)
    for limit in limits:
        in_order, anew, below = (new_server(limit, way) for way in ("in order", "anew", "from below"))
        made, made_anew, made_below = [], [], []
        for place, (pair, (_, _, order)) in enumerate(zip(texts, scrubbed, strict=True)):
            made.append(scrub_in_order(in_order, *pair, order, blind, f"caller {place}"))
            made_anew.append(scrub_anew(anew, *pair, rng, blind, f"caller {place}"))
            made_below.append(scrub_from_below(below, *pair, order, blind, f"callers {place}"))
        print(
            f"  {limit} near-duplicates: saved by answers, in one order {mean([blind - each for each in made])} "
            f"({in_order.queries()}), edited anew {mean([blind - each for each in made_anew])} ({anew.queries()}), "
            f"from below {mean([blind - each for each in made_below])} ({below.queries()})",
            flush=True,
        )


def learning(server: Server, window: int, marked: Callable[[int], str], words: Words, callers: int) -> None:
    """Prints how many draws callers learn who have QUERIES each."""
    n, right, chance = draws(server, window, marked, words, callers)
    late = ask_on(server, callers)
    print(
        f"  draws, {callers} callers: {n} n-grams told, {right} right, {chance} by chance: {max(right - chance, 0)} "
        f"beyond chance; {server.queries()}, {late} of these after nothing was learnt any more",
        flush=True,
    )


def forging(server: Server, words: Words, count: int) -> None:
    """Prints how many of so many unmarked texts hill-climbing flags."""
    value = {DetectorResult.FOUND: -9.0, DetectorResult.CANNOT_TELL: -6.1, DetectorResult.NOT_FOUND: 0.0}
    by_answers = by_p = 0
    for seed in range(count):
        ask = lambda text, seed=seed: value.get(server.ask(text, f"forger {seed}"))  # noqa: E731
        by_answers += forge(ask, words, np.random.default_rng(seed), 1000)
        by_p += forge(server.log10_p, words, np.random.default_rng(seed), 1000)
    print(f"  forged in 1,000 queries: by answers {by_answers}, by p {by_p}, of {count}", flush=True)


def one_window(
    scorer: Scorer, registry: Path, window: int, words: Words, options: argparse.Namespace, folder: Path
) -> None:
    marked, plain = marked_text(registry, words), plain_text(words)

    def new_server(limit: int, name: str) -> Server:
        place = folder / f"{limit} {name}"
        place.mkdir()
        return Server(scorer, BudgetConfig(near_duplicates=limit), place)

    print(f"h={window}:", flush=True)
    if options.texts:
        texts = [(marked(1, LENGTH, seed), plain(LENGTH, 10**5 + seed)) for seed in range(options.texts)]
        scrubbing(new_server, texts, options.near_duplicates)
    if options.callers:
        right = draws_by_p(new_server(1, "draws by p"), window, lambda seed: marked(1, 200, seed), words)
        print(f"  draws by p: {right} of {CHOSEN} right in {2 * CHOSEN} queries, {round(0.75 * CHOSEN)} by chance")
    for limit in options.near_duplicates:
        for callers in options.callers:
            print(f"  {limit} near-duplicates:", end="", flush=True)
            learning(new_server(limit, f"{callers}"), window, lambda seed: marked(1, 200, seed), words, callers)
    if options.forged:
        forging(new_server(3, "forged"), words, options.forged)


if __name__ == "__main__":
    main()
