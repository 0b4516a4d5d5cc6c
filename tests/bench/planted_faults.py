"""Which control of a scan's audit sees which fault, by scans with a fault planted: `make planted-faults`.

Each night is a whole scan of so many texts in this process, without Ray: footers, the worker, the look at accounts,
commits, proofs and the audit are those of every scan. A fault is planted in the code that scans, or in the texts.
Nights grow until a control alarms in every night of a size: the table says that size and those controls, or `not`. It
does so for nights in which text is marked, and for nights without: these have no flags, which proofs need.

Texts are random words: 40 of them, of 2 % 1,150; every second text has another normal form. Accounts post ten texts
with a signature each. In nights with marked text 200 texts are of canaries and 20 of users. Keys: a green list for
100,000 users, whose format has the fault of one format, and a Gumbel key of one message, with the looks of `brickscan
init` and accounts.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from scanner.cluster.scan import ScanOutcome, run_scan
from scanner.controls.decoys import text_observer
from scanner.controls.decoys.draws import Decoys
from scanner.controls.decoys.text_observer import STRATA
from scanner.controls.decoys.whole_texts import DECISIONS, WholeTextDecoys
from scanner.controls.reserved.control import ReservedControl
from scanner.detection.detector import BatchScores, Detector, TextForms
from scanner.error_shares import NORMALISED, ErrorShares
from scanner.looks.accounts import judge as account_judge
from scanner.looks.accounts.judge import AccountJudge
from scanner.looks.parts import search as search_of_parts
from scanner.registry import add_users, list_users, load_registry, make_canaries, new_key, open_key
from scanner.scan_plan import make_plan
from scanner.watermark import Tokens, rule, scored_positions
from scanner.watermark.laws import Binomial
from scanner.watermark.native.version3_marks import Version3Mark
from scanner.watermark.positions import Positions, WholeWindows
from scanner.watermark.rule import KeyFindings
from schemas.config import DEFAULT_LOOKS
from schemas.registry import MasterKey
from schemas.words import AuditState, AuditVerdict
from tests.bench.configured import FOR_USERS, ONE_MESSAGE, VERSION_3
from tests.fixed import fix_secrets
from tests.support.opened_once import keep_inspector, keep_tokenizers
from tests.support.two_keys import TOKENIZER, Words, words_of_one_token
from tests.support.without_ray import put_in_the_place_of_ray

RUNS = {3_000: 2, 12_500: 1, 50_000: 1}
"""Nights of each size."""

POSTS, WORDS, LONG, LONG_SHARE, SIGNATURE = 10, 40, 1150, 0.02, 8
REPEATS, REPEATING = 4, 0.05
CANARIES, CANARY_TEXTS, MARKED, MARKED_WORDS = 20, 200, 20, 60
CONFIG = f"""\
version = 2
registry = "registry"
results = "results"
false_positive_rate = 1e-6
accounts = {{ nights = 1 }}
{DEFAULT_LOOKS}
[input]
paths = ["in.parquet"]
account = "account_id"
"""
DUE = f"[audit]\ncanaries = {CANARY_TEXTS}\n"
"""Audit of a night in which canaries come."""

Patch = pytest.MonkeyPatch


def times(factor: float, long_only: bool = False) -> Callable[[Patch], None]:
    """One format's p-values, or only those of long texts, are so many times what they should be."""

    def plant(patch: Patch) -> None:
        right = Binomial.log10_p

        def wrong(self: Binomial, score: Any, scored: Any) -> Any:
            p = right(self, score, scored)
            is_meant = (np.asarray(scored) > 1000) | (not long_only)
            return np.where(is_meant & np.isfinite(p), np.minimum(p + np.log10(factor), 0.0), p)

        patch.setattr(Binomial, "log10_p", wrong)

    return plant


def tail(patch: Patch) -> None:
    """One format's p-values fall as their power of 1.5 below 1e-4."""
    right = Binomial.log10_p

    def wrong(self: Binomial, score: Any, scored: Any) -> Any:
        p = right(self, score, scored)
        return np.where(p < -4, -4 + 1.5 * (p + 4), p)

    patch.setattr(Binomial, "log10_p", wrong)


def repeats_count(patch: Patch) -> None:
    """Repeated n-grams count each time."""
    patch.setattr(WholeWindows, "positions", lambda self, tokens, _: scored_positions(tokens, self.window, "none"))


def of_key(factor: float) -> Callable[[Patch], None]:
    """The p-values of one key are so many times what they should be, and those of its decoys are right."""

    def plant(patch: Patch) -> None:
        right = rule.findings_of

        def wrong(mark: Any, *arguments: Any) -> KeyFindings:
            findings = right(mark, *arguments)
            if getattr(mark, "commitment", None) != GREEN_COMMITMENT[0]:
                return findings
            more = np.log10(factor)
            return findings._replace(log10_p=findings.log10_p + more, log10_p_global=findings.log10_p_global + more)

        for module in (rule, search_of_parts):
            patch.setattr(module, "findings_of", wrong)

    return plant


GREEN_COMMITMENT: list[str | None] = [None]
"""Commitment of the green list under test."""


def messages_free(patch: Patch) -> None:
    """p is corrected for no message, wherever the best message counts."""
    right = rule.corrected
    patch.setattr(rule, "corrected", lambda p, _messages, keys=1: right(p, 1, keys))


def messages_free_in_the_detector(patch: Patch) -> None:
    """The same where a scan decides: decoys of one look are corrected as they should be."""
    right = rule.findings_of

    def wrong(mark: Any, best: Any, scored: Any, _messages: int, correction: Any = 1) -> KeyFindings:
        return right(mark, best, scored, 1, correction)

    for module in (rule, search_of_parts):
        patch.setattr(module, "findings_of", wrong)


def keys_free(patch: Patch) -> None:
    """p is corrected for no other key."""
    patch.setattr(MasterKey, "tested_among", lambda *_: 1)


def looks_free(patch: Patch) -> None:
    """Whole texts are corrected for no other look."""
    right = ErrorShares.corrections
    whole = ErrorShares(as_written=0.5, normalised=0.5)
    patch.setattr(ErrorShares, "corrections", lambda _, *of: right(whole, *of))


def parts_free(patch: Patch) -> None:
    """Parts pay neither keys nor look: p is a quarter of what it should be, or less."""
    patch.setattr(ErrorShares, "correction_of_spans", lambda *_: 1.0)


def parts_as_one(*modules: Any) -> Callable[[Patch], None]:
    """The parts of a text count as one."""

    def plant(patch: Patch) -> None:
        for module in modules:
            right = module.log10_in_document
            patch.setattr(module, "log10_in_document", lambda p, _looks, messages, right=right: right(p, 1, messages))

    return plant


def one_decoy_key(patch: Patch) -> None:
    """All decoys share one key."""
    patch.setattr(Decoys, "seed", lambda *_: bytes(32))
    patch.setattr(WholeTextDecoys, "seed", lambda *_: bytes(32))


def normalised(factor: float) -> Callable[[Patch], None]:
    """The p-values of normalised texts are so many times what they should be."""

    def plant(patch: Patch) -> None:
        right = Detector._score

        def wrong(self: Detector, tokens: Any, segments: Any, forms: TextForms) -> BatchScores:
            scores, more = right(self, tokens, segments, forms), np.log10(factor)
            if forms.variant != NORMALISED:
                return scores
            return scores._replace(
                findings=[of._replace(log10_p_global=of.log10_p_global + more) for of in scores.findings]
            )

        patch.setattr(Detector, "_score", wrong)

    return plant


def own_free(patch: Patch) -> None:
    """The second p-value that names need pays for no other user of the group."""
    right = Version3Mark._in_best_groups

    def wrong(self: Version3Mark, *arguments: Any) -> Any:
        best = right(self, *arguments)
        assert best.user_evidence is not None
        return best._replace(user_evidence=best.user_evidence._replace(messages=1))

    patch.setattr(Version3Mark, "_in_best_groups", wrong)


def accounts_repeat(patch: Patch) -> None:
    """Accounts count the n-grams of each post."""

    def wrong(of: Any, _reach: int, posts: Any, begins: Any, dedup: Any) -> Positions:
        of_posts = of.positions(posts, dedup)
        return Positions(of_posts.index, of_posts.offsets[begins])

    patch.setattr(account_judge, "pooled_positions", wrong)


def accounts_times(factor: float) -> Callable[[Patch], None]:
    """The p-values of accounts are so many times what they should be."""

    def plant(patch: Patch) -> None:
        right = AccountJudge._score
        patch.setattr(AccountJudge, "_score", lambda self, under, k: right(self, under, k * factor))

    return plant


def nothing(patch: Patch) -> None:
    """Plant no fault."""
    del patch


class Fault(NamedTuple):
    """A fault: its name for people, and how it is planted.

    found: share of the texts of canaries that are marked.
    repeating: whether some texts repeat their n-grams.
    """

    title: str
    plant: Callable[[Patch], None] = nothing
    found: float = 1.0
    repeating: bool = False


FAULTS = (
    Fault("none"),
    *(Fault(f"one format's p × {c}", times(c)) for c in (0.8, 0.5)),
    Fault("its tail: p^1.5 below 1e-4", tail),
    *(Fault(f"texts over 1,000 tokens: p × {c}", times(c, long_only=True)) for c in (0.7, 0.5)),
    Fault("repeated n-grams count each time; 5 % of the texts repeat theirs four times", repeats_count, repeating=True),
    *(Fault(f"one key's p × {c}, its decoys' are right", of_key(c)) for c in (0.5, 0.25)),
    Fault("correction for messages dropped", messages_free),
    Fault("correction for messages dropped, by the detector only", messages_free_in_the_detector),
    Fault("correction for keys dropped", keys_free),
    Fault("correction of whole texts for other looks dropped", looks_free),
    Fault("parts of a text counted as one", parts_as_one(search_of_parts, text_observer)),
    Fault("parts of a text counted as one, by the detector only", parts_as_one(search_of_parts)),
    Fault("parts pay neither keys nor look", parts_free),
    Fault("all decoys share one key", one_decoy_key),
    Fault("normalised texts: p × 0.1", normalised(0.1)),
    Fault("the second p-value of names pays for one user", own_free),
    Fault("accounts count n-grams in each post", accounts_repeat),
    Fault("accounts: p × 0.1", accounts_times(0.1)),
    Fault("half of the marked text is not found", found=0.5),
)


def write_night(folder: Path, fault: Fault, documents: int, run: int, *, marked: bool) -> Path:
    """Write registry, input and configuration of a night, all of them its own by size and run. Returns the latter.

    fault: decides which texts of canaries are marked, and which texts repeat their n-grams.
    marked: whether any text is marked, and canaries come.
    """
    # 1. Two keys, users of the first, and canaries
    registry, random, words = folder / "registry", np.random.default_rng([documents, run]), words_of_one_token()
    green, one = (f"{name}-{documents}-{run}" for name in ("green", "one"))
    fix_secrets(registry, green, one)
    new_key(registry, green, tokenizer=TOKENIZER, **VERSION_3["greenlist-v3"], **FOR_USERS)
    new_key(registry, one, tokenizer=TOKENIZER, **VERSION_3["gumbel-v3"], **ONE_MESSAGE)
    add_users(registry, [green], [f"user-{number}" for number in range(MARKED)])
    canaries = make_canaries(registry, [green], CANARIES, 0.9).made if marked else ()
    mark = open_key(registry, next(key for key in load_registry(registry).keys if key.key_id == green))
    assert isinstance(mark, Version3Mark)
    GREEN_COMMITMENT[0] = mark.commitment

    # 2. Texts of canaries and of users, marked as the fault has it
    held = {row["user_id"]: row["message"] for row in list_users(registry, [green]).to_dicts()}
    due = [(one.account_id, one.message) for one in canaries] * (CANARY_TEXTS // CANARIES)
    is_marked = np.arange(len(due) + MARKED) >= (1.0 - fault.found) * len(due)
    if marked:
        due += [(user, held[user]) for user in held if user.startswith("user-")]
    chosen = marked_words(mark, words, [message for _, message in due], is_marked[: len(due)], random)
    texts = [
        (account, " " + " ".join(words.words[i] for i in row)) for (account, _), row in zip(due, chosen, strict=True)
    ]

    # 3. Texts of people: every second with doubled spaces, some long; each account with a signature
    vocabulary = np.array(words.words)
    for number in range(documents - len(due)):
        if number % POSTS == 0:
            signature = random.choice(vocabulary, SIGNATURE)
        length = LONG if random.random() < LONG_SHARE else WORDS
        own = random.choice(vocabulary, length - SIGNATURE)
        if fault.repeating and random.random() < REPEATING:
            own = np.tile(own[: len(own) // REPEATS], REPEATS)
        texts.append((f"account-{number // POSTS}", " " + ("  " if number % 2 else " ").join([*own, *signature])))

    # 4. In random order
    accounts, written = zip(*[texts[i] for i in random.permutation(len(texts)).tolist()], strict=True)
    pq.write_table(pa.table({"text": written, "account_id": accounts}), folder / "in.parquet", row_group_size=2000)
    (folder / "scan.toml").write_text(CONFIG + DUE * bool(due))
    return folder / "scan.toml"


def marked_words(
    mark: Version3Mark, words: Words, messages: Sequence[int], is_marked: NDArray[np.bool_], random: np.random.Generator
) -> NDArray[np.int64]:
    """Choose the words of texts for messages: each the best of 20 by its score, or the first: int64[D, MARKED_WORDS].

    is_marked: bool[D], texts that are marked.
    """
    texts, window = len(messages), mark.rule.context
    chosen = random.integers(len(words.words), size=(texts, MARKED_WORDS))
    for place in range(window, MARKED_WORDS):
        drawn = random.integers(len(words.words), size=(texts, 20))
        before = np.repeat(chosen[:, None, place - window : place], 20, axis=1)
        ids = words.tokens[np.concatenate([before, drawn[:, :, None]], axis=2)].astype(np.uint32)
        tokens = Tokens(ids.ravel(), np.arange(texts * 20 + 1) * (window + 1))
        scores = mark.score(tokens, mark.rule.positions(tokens, "none"), np.repeat(messages, 20)).reshape(texts, 20)
        chosen[:, place] = drawn[np.arange(texts), np.where(is_marked, scores.argmax(axis=1), 0)]
    return chosen


CONTROLS_SHOWN = ("decoys", "whole decisions", "parts of the traffic", "reserved", "canaries", "proofs")


def alarming(outcome: ScanOutcome) -> dict[str, bool]:
    """Say which of CONTROLS_SHOWN alarm in a scan."""
    audit = outcome.audit
    assert audit is not None
    wrong = {row["kind"] for row in audit.rows if row["verdict"] == AuditVerdict.TOO_SMALL}
    lost = any(conclusion.state == AuditState.CANARIES_LOST for conclusion in audit.conclusions)
    return dict(
        zip(
            CONTROLS_SHOWN,
            (
                any(kind.startswith("decoy") and kind not in STRATA for kind in wrong),
                not wrong.isdisjoint(DECISIONS),
                not wrong.isdisjoint(STRATA),
                not wrong.isdisjoint(ReservedControl.kinds),
                lost,
                audit.traffic.unproved + audit.traffic.unproved_accounts > 0,
            ),
            strict=True,
        )
    )


def nights(title: str, size: int, runs: int, *, marked: bool) -> list[dict[str, bool]]:
    """Scan nights of a fault, of so many documents, and say which controls alarm in each."""
    (fault,) = (fault for fault in FAULTS if fault.title == title)
    seen = []
    for run in range(runs):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            put_in_the_place_of_ray(patch)
            keep_tokenizers(patch)
            keep_inspector(patch)
            config = write_night(Path(folder), fault, size, run, marked=marked)
            fault.plant(patch)
            seen.append(alarming(run_scan(make_plan(config), lambda *_: None)))
    return seen


def first_seen(title: str, sizes: Sequence[int], *, marked: bool) -> tuple[int | None, list[str]]:
    """Return the smallest size of nights in each of which a control alarms, with those that do; None: none does."""
    for size in sorted(sizes):
        seen = nights(title, size, RUNS[size], marked=marked)
        if controls := [control for control in CONTROLS_SHOWN if all(night[control] for night in seen)]:
            return size, controls
    return None, []


def cells(title: str, sizes: Sequence[int]) -> list[str]:
    """Write the cells of a fault: with marked text, and without."""
    written = []
    for marked in (True, False):
        size, controls = first_seen(title, sizes, marked=marked)
        written += ["not" if size is None else f"{size:,}", ", ".join(controls)]
    return written


def main() -> None:
    """Print the table, as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.planted_faults", description=__doc__)
    parser.add_argument("--faults", default="", help="those whose titles hold this")
    parser.add_argument("--sizes", type=int, nargs="+", choices=RUNS, default=[*RUNS])
    options = parser.parse_args()
    print("| fault | text is marked: seen from | by | no text is marked: seen from | by |", flush=True)
    print("|---|---|---|---|---|", flush=True)
    for fault in (fault for fault in FAULTS if options.faults in fault.title):
        # a process of its own: laws remember what they computed
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            began = time.monotonic()
            row = process.submit(cells, fault.title, options.sizes).result()
        print(f"| {fault.title} | {' | '.join(row)} |", flush=True)
        print(f"{fault.title}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
