"""How many pages claim a mark of answers that nobody marked: `python -m tests.bench.probe_nulls --pages 1000`.

Each page has a registry of its own, with a key of its own of one of the formats in turn, and answers of three classes
that are drawn from random next-token distributions: sampled, greedy, and sampled with many repeats of other answers.
All hypotheses are tested on all classes. A page claims a mark where any p-value, corrected for the page, is at most the
stated rate. Printed are the pages that do, of all and of each format, with exact limits at 99 % (Clopper and Pearson).

With `--keys 250 --only vllm-gumbel` the same answers serve for 250 pages, each under a key of its own: p-values hold
over the draw of the key. Registry, texts and page are left out; the tests are the same, and take some 15 ms a page.
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from scanner.audit.statistics.judgement import binomial_limits
from scanner.probe.analysis import OPENINGS, analyse
from scanner.probe.evidence import OpenedForm, evidence_on
from scanner.probe.hypotheses import hypotheses_of
from scanner.probe.judgement import claimed
from scanner.probe.readings import batch_of
from scanner.watermark.formats import make_format
from tests.probe.planted import (
    GREEDY,
    PLAIN,
    VOCABULARY,
    answers_table,
    make_registry,
    prompts_of,
    secret_for,
    token_ids,
)

FORMS = {
    "gumbel-v3": ({"window": 4}, 32, 100),
    "greenlist-v3": ({"window": 4, "gamma": "1/4"}, 32, 100),
    "greenlist": ({"window": 2, "gamma": "1/2"}, 32, 100),
    "vllm-gumbel": ({}, 8, 1),
    "vllm-dual-key": ({}, 8, 1),
    "sglang-two-keys": ({}, 16, 1),
    "sbw": ({}, 8, 1),
    "synthid-table": ({}, 240, 1),
}
RISK = 0.005


def answers_of_classes(seed: int, answers: int, length: int) -> dict[str, np.ndarray]:
    """Token ids of answers, uint32[A, length] of each class."""
    prompts = prompts_of(answers, seed)
    sampled = token_ids(PLAIN, prompts, length, 3 * seed)
    greedy = token_ids(GREEDY, prompts, length, 3 * seed + 1)
    repeats = sampled[np.random.default_rng(seed).integers(answers, size=answers)]
    return {"sampled": sampled, "greedy": greedy, "repeats": repeats}


def page_claims(form: str, seed: int, answers: int, length: int) -> tuple[bool, int]:
    """Whether a page claims a mark, and of how many tests it is."""
    parameters, size, messages = FORMS[form]
    with tempfile.TemporaryDirectory() as folder:
        secret = secret_for(f"null {form} {seed}", size)
        if form == "sbw":  # a hash key is odd, below 2^63
            secret = (int.from_bytes(secret, "big") >> 1 | 1).to_bytes(8, "big")
        registry = make_registry(Path(folder), form, secret, messages, **parameters)
        prompts = prompts_of(answers, seed)
        classes = answers_of_classes(seed, answers, length)
        result = analyse(pa.concat_tables(answers_table(ids, prompts, name) for name, ids in classes.items()), registry)
    return any(key.named is not None for key in result.keys), result.tests


def pages_of_keys(name: str, seed: int, answers: int, length: int, keys: int) -> Iterator[tuple[bool, int]]:
    """As `page_claims`, of the same answers under so many keys. For formats whose keys carry one message."""
    parameters, size, messages = FORMS[name]
    assert messages == 1
    form, classes = make_format(name, parameters), answers_of_classes(seed, answers, length)
    tokens = batch_of([row for ids in classes.values() for row in ids])
    units = [*np.split(np.arange(3 * answers), 3), np.arange(3 * answers)]
    for number in range(keys):
        hypotheses = hypotheses_of(form, secret_for(f"null {name} {seed} {number}", size), 1, len(VOCABULARY) + 1)
        opened = [OpenedForm(one.form, one.form.open(one.secret.value), one.messages) for one in hypotheses]
        tests, known = (len(units) + OPENINGS) * len(opened), np.zeros(3 * answers, np.int64)
        yield any(claimed(evidence_on(one, tokens, unit, known, tests)) for one in opened for unit in units), tests


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.probe_nulls", description=__doc__)
    parser.add_argument("--pages", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first page")
    parser.add_argument("--answers", type=int, default=10, help="of a class")
    parser.add_argument("--length", type=int, default=60, help="tokens of an answer")
    parser.add_argument("--json", type=Path, help="write the counts to this file after each page")
    parser.add_argument("--keys", type=int, default=0, help="pages that share their answers, under as many keys")
    parser.add_argument("--only", choices=sorted(FORMS), nargs="*", default=list(FORMS), help="these formats alone")
    options = parser.parse_args()
    pages, claims, tests = Counter[str](), Counter[str](), 0
    for seed in range(options.first, options.first + options.pages // max(options.keys, 1)):
        form = options.only[seed % len(options.only)]
        of_seed = (form, seed, options.answers, options.length)
        found = pages_of_keys(*of_seed, options.keys) if options.keys else [page_claims(*of_seed)]
        for claims_mark, tests_of_page in found:
            pages[form] += 1
            claims[form] += claims_mark
            tests += tests_of_page
        if options.json:
            options.json.write_text(json.dumps({"pages": pages, "claims": claims, "tests": tests}) + "\n")
    for name in ("all", *pages):
        of = pages.total() if name == "all" else pages[name]
        hits = claims.total() if name == "all" else claims[name]
        low, high = binomial_limits(hits, of, RISK)
        print(f"{name}: {hits} of {of:,} pages claim a mark ({low:.4f} to {high:.4f})")
    print(f"{tests:,} tests")


if __name__ == "__main__":
    main()
