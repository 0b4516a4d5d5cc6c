"""What answers give away: `python -m tests.bench.oracle`, minutes. Attackers ask `serve`, or a server that tells p.

All is in process: the server's own scorer, budget and table, and a clock that stands still, so that everything happens
in one window of the budget. Texts have one token a word, and the attacker knows the tokenizer. Per key (h = 2, 4):

- near-duplicates: share of edited, cut and padded texts that are charged to the text that they come from, and share of
  unrelated texts that are, of all pairs of a corpus (--corpus) or of random texts;
- scrubbing: edits until a marked text of 300 tokens is not flagged, by who gets no answers and edits as many tokens as
  19 of 20 texts need, by who asks `serve`, and by who sees p and keeps edits that raise it;
- forging: unmarked texts that are flagged after 1,000 queries of hill-climbing;
- draws: n-grams of the 1,000 commonest that are told green or not, right beyond chance.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from scanner.audit.statistics.judgement import binomial_limits
from scanner.detection.sketches import gram_key, keyed_sketches
from scanner.registry import new_key
from scanner.service.budget import Budget, BudgetSpent
from scanner.service.scoring import Scorer, Served
from schemas.service import BudgetConfig, DetectorConfig, DetectorResult
from tests.fixed import fix_secrets
from tests.support.detecting import configured
from tests.support.two_keys import TOKENIZER, Words, marked_text, plain_text, words_of_one_token

SECRET = bytes(range(32))
LENGTH = 300
FLAGGED = 1e-6


class Server:
    """The detector without HTTP: its scorer, its budget, and a clock."""

    def __init__(self, scorer: Scorer, budget: BudgetConfig, folder: Path) -> None:
        self.scorer, self.now, self.answered, self.asked = scorer, 1e9, 0, 0
        self.budget = Budget(folder / "budget.sqlite", SECRET, budget, lambda: self.now)

    def ask(self, text: str, caller: str) -> DetectorResult | None:
        """The answer to a text; None: its budget is used up."""
        self.asked += 1
        digest = self.budget.digest(text.encode())
        try:
            if not self.budget.is_free(digest):
                self.budget.refuse_spent(caller, expert=False)
            (finding,) = self.scorer.look([text.encode()])
            self.budget.charge(digest, caller, finding.passages, expert=False)
        except BudgetSpent:
            return None
        self.answered += 1
        return finding.result

    def log10_p(self, text: str) -> float:
        """What a server that tells p answers."""
        (p,) = self.scorer._opened.score_batch([text.encode()]).verdicts["log10_p_global"].to_pylist()
        return float(p)


def edited(words: Sequence[str], places: Sequence[int], drawn: Sequence[str]) -> list[str]:
    found = list(words)
    for place in places:
        found[place] = drawn[place]
    return found


def scrub(server: Server, text: str, others: str, rng: np.random.Generator, caller: str) -> tuple[int, int, int]:
    """Edits that a text needs in a random order; edits made by who asks `serve`; by who sees p."""
    words, drawn = text.split(), others.split()
    order = rng.permutation(len(words)).tolist()

    def after(edits: int) -> str:
        return " " + " ".join(edited(words, order[:edits], drawn))

    low, high = 0, len(words)
    while low < high:  # the first number of edits that is enough, by p itself
        middle = (low + high) // 2
        low, high = (low, middle) if server.log10_p(after(middle)) > np.log10(FLAGGED) else (middle + 1, high)
    needed = high
    low, high = 0, len(words)
    while low < high:  # the same by answers, until no more are given: then he stays at what was answered last
        answer = server.ask(after(middle := (low + high) // 2), caller)
        if answer is None:
            break
        low, high = (middle + 1, high) if answer == DetectorResult.FOUND else (low, middle)
    by_answers = high
    kept, now = list(words), server.log10_p(text)
    made = 0
    for place in order:
        if now > np.log10(FLAGGED):
            break
        tried = edited(kept, [place], drawn)
        p = server.log10_p(" " + " ".join(tried))
        if p > now:
            kept, now, made = tried, p, made + 1
    return needed, by_answers, made


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
    rng, told, right, mark = np.random.default_rng(5), 0, 0, server.scorer._opened.keys_under_test[0].watermark
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
            if answer is None:
                if server.ask(plain_text(words)(120, 10**6 + caller), name) is None:
                    break  # this caller has no new text left
                continue
            base = text[: low - 1]
            while True:
                gram = [words.words[i] for i in rng.integers(len(words.words), size=window + 1)]
                answer = server.ask(" " + " ".join(base + gram), name)
                if answer is None:
                    break
                told += 1
                ids = np.array([words.tokens[words.words.index(word)] for word in gram], np.uint32)
                green = mark.green(mark.window_nonces(ids[None, :-1]), np.array([1]), int(words.tokens.max()) + 1)[0]
                right += (answer == DetectorResult.FOUND) == bool(green[ids[-1]])
    return told, right, round(0.75 * told)


def shares(budget: Budget, texts: Sequence[str]) -> None:
    """Prints the share of variants that meet their budget, and of unrelated pairs that do."""
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

    kinds: dict[str, Callable[[str], str]] = {
        f"{share:.0%} of words edited": lambda text, share=share: edit(text, share) for share in (0.05, 0.1, 0.2, 0.4)
    }
    kinds |= {
        "cut in half": lambda text: text[len(text) // 2 :],
        "padded by 3 texts": lambda text: pad(text, 3),
        "padded by 10 texts": lambda text: pad(text, 10),
        "padded by 100 texts": lambda text: pad(text, 100),
    }
    firsts = [{budget._begin(passage) for passage in keyed_sketches(text, key)} for text in texts]

    def met_by(text: str) -> set[int]:
        return {first for passage in keyed_sketches(text, key) for first in budget.near_duplicates_of(passage)}

    for kind, change in kinds.items():
        met = sum(bool(firsts[i] & met_by(change(text))) for i, text in enumerate(texts))
        low, high = binomial_limits(met, len(texts), 0.025)
        print(f"  {kind:24} {met:5} of {len(texts)} meet their budget ({low:.4f} to {high:.4f})")
    pairs, found = len(texts) * (len(texts) - 1) // 2, set[frozenset[int]]()
    for i, text in enumerate(texts):
        met_here = met_by(text)
        found |= {frozenset((i, j)) for j, own in enumerate(firsts) if j != i and own & met_here}
    low, high = binomial_limits(len(found), pairs, 0.025)
    print(f"  unrelated pairs: {len(found)} of {pairs:,} ({low:.2e} to {high:.2e})")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.oracle", description=__doc__)
    parser.add_argument("--texts", type=int, default=40, help="texts that are scrubbed")
    parser.add_argument("--forged", type=int, default=4)
    parser.add_argument("--corpus", type=Path, help="Parquet with a column `text`; else random texts")
    parser.add_argument("--near-duplicates", type=int, nargs="+", default=[10, 3, 1])
    options = parser.parse_args()
    words = words_of_one_token()
    texts = [plain_text(words)(250, seed) for seed in range(400)]
    if options.corpus:
        import polars as pl

        column = pl.read_parquet(options.corpus, columns=["text"])["text"]
        lengths = column.str.len_chars()
        texts = column.filter((lengths > 800) & (lengths < 4000)).unique().sample(1000, seed=3).to_list()
    with tempfile.TemporaryDirectory() as name:
        budget = Budget(Path(name) / "shares.sqlite", SECRET, BudgetConfig())
        print(f"near-duplicates, {len(texts)} texts")
        shares(budget, texts)
        for window in (2, 4):
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
            scorer = Scorer(Served.of(DetectorConfig(version=0), folder), SECRET)
            one_window(scorer, folder / "registry", window, words, options, folder)


def one_window(
    scorer: Scorer, registry: Path, window: int, words: Words, options: argparse.Namespace, folder: Path
) -> None:
    marked, plain = marked_text(registry, words), plain_text(words)
    for limit in options.near_duplicates:
        place = folder / f"budget-{limit}"
        place.mkdir()
        server, rng = Server(scorer, BudgetConfig(near_duplicates=limit), place), np.random.default_rng(9)
        found = np.array(
            [
                scrub(server, marked(1, LENGTH, s), plain(LENGTH, 10**5 + s), rng, f"caller {s}")
                for s in range(options.texts)
            ]
        )
        blind = int(np.quantile(found[:, 0], 0.95, method="higher"))
        saved, told = blind - found[:, 1], blind - found[:, 2]
        errors = [1.96 * np.std(each, ddof=1) / np.sqrt(len(each)) for each in (saved, told)]
        print(
            f"h={window}, {limit} near-duplicates: scrubbing, n={len(found)}: blind {blind} edits; saved by serve "
            f"{saved.mean():.1f} ± {errors[0]:.1f}, by p {told.mean():.1f} ± {errors[1]:.1f}"
        )
        for callers in (1, 10):
            n, right, chance = draws(server, window, lambda seed: marked(1, 200, seed), words, callers)
            print(
                f"  draws, {callers} callers: {n} n-grams told, {right} right, {chance} by chance: "
                f"{max(right - chance, 0)} beyond chance; by p, 1,000 of 1,000 in 2,000 queries"
            )
        print(f"  asked {server.asked}, answered {server.answered}")
    value = {DetectorResult.FOUND: -9.0, DetectorResult.CANNOT_TELL: -6.1, DetectorResult.NOT_FOUND: 0.0}
    last = Server(scorer, BudgetConfig(), folder)
    by_answers = by_p = 0
    for seed in range(options.forged):
        ask = lambda text, seed=seed: value.get(last.ask(text, f"forger {seed}"))  # noqa: E731
        by_answers += forge(ask, words, np.random.default_rng(seed), 1000)
        by_p += forge(last.log10_p, words, np.random.default_rng(seed), 1000)
    print(f"h={window}: forged in 1,000 queries: by answers {by_answers}, by p {by_p}, of {options.forged}")


if __name__ == "__main__":
    main()
