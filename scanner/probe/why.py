"""Explain why no mark was found in one text: too short, left out, read or marked differently, damaged, or not marked.

Each reason has a number of its own. p-values are corrected for everything that is tried here, under all keys. The
result is never a flag: a text that a scan does not flag stays unflagged. It is not for strangers either, because they
could edit a text until the reasons change. `brickscan serve` never gives it.

1. Count the tokens that count, and those that a strongly or weakly marked text needs.
2. Test every hypothesis of every key, and the stated configuration under every reading of the text.
3. Test halves, quarters and eighths of the tokens under the stated configuration, because edits leave some parts
   unchanged.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from scanner.printable import one_in
from scanner.probe.evidence import Evidence, OpenedForm, evidence_on, tokens_needed
from scanner.probe.hypotheses import Hypothesis, hypotheses_of
from scanner.probe.judgement import PAGE_RATE, claimed
from scanner.probe.readings import Reading, answers_of, readings_of
from scanner.registry import check_secret, open_key, tokenizer_path
from scanner.text import load_tokenizer
from scanner.watermark.formats import format_of
from scanner.watermark.positions import Tokens
from schemas.registry import MasterKey

STRONG, WEAK = 0.5, 0.2
"""Strength of a token in standard deviations, in strongly and in weakly marked text."""

POWER = 0.95
"""Chance to be found for which the needed number of tokens is stated."""

CUTS = (2, 4, 8)
"""Numbers of parts that a text is cut into."""


class _Opened(NamedTuple):
    key: MasterKey
    hypotheses: list[Hypothesis]
    forms: list[OpenedForm]
    readings: list[Reading]


def why_not_found(
    registry: Path | str, keys: Sequence[MasterKey], corrections: Mapping[str, float], rate: float, text: str
) -> dict[str, list[str]]:
    """Return reasons why no mark is found in a text, in sentences, by the ids of keys.

    Args:
        registry: folder or URI.
        keys: keys under which no mark is found.
        corrections: K of each key in a scan, by its id.
        rate: the scan's false-positive rate.
        text: not empty.

    Raises:
        SecretError, TokenizerError: a key cannot be opened.
    """
    opened_keys = [_open(registry, key, text) for key in keys]
    tests = sum(len(one.hypotheses) + len(one.readings) - 1 + sum(CUTS) for one in opened_keys)
    return {
        one.key.key_id: _reasons(one, tests, rate / (one.key.messages * corrections[one.key.key_id]))
        for one in opened_keys
    }


def _open(registry: Path | str, key: MasterKey, text: str) -> _Opened:
    tokenizer = load_tokenizer(tokenizer_path(registry, key), key.tokenizer.sha256, fast=False)
    hypotheses = hypotheses_of(format_of(key), check_secret(registry, key), key.messages, tokenizer.vocab_size)
    marks = [open_key(registry, key), *(one.form.open(one.secret.value) for one in hypotheses[1:])]
    forms = [OpenedForm(one.form, mark, one.messages) for one, mark in zip(hypotheses, marks, strict=True)]
    return _Opened(key, hypotheses, forms, readings_of(answers_of(pa.table({"text": [text]})), tokenizer, []))


def _reasons(opened: _Opened, tests: int, level: float) -> list[str]:
    stated, tokens = opened.forms[0], opened.readings[0].tokens
    scored = int(stated.mark.rule.positions(tokens, "ngram").scored[0])
    every = int(stated.mark.rule.positions(tokens, "none").scored[0])
    # 1. length
    strong, weak = (math.ceil(tokens_needed(strength, math.log10(level), POWER)) for strength in (STRONG, WEAK))
    sentences = [f"{len(tokens.ids):,} tokens, of which {scored:,} count"]
    if every > scored:
        sentences[0] += f" ({every - scored:,} repeat earlier ones or are left out)"
    short = "too short for most marks" if scored < strong else "too short for a weak mark" if scored < weak else ""
    needs = f"a fairly strong mark is found from about {strong:,} tokens on, a weak one from {weak:,}"
    sentences.append(f"{short}: {needs}" if short else f"long enough for a weak mark: {needs}")
    # 2. other configurations, other readings
    evidence = [_evidence(form, tokens, tests) for form in opened.forms]
    others = [_evidence(stated, reading.tokens, tests) for reading in opened.readings[1:]]
    words = [f"a server {one.words}" for one in opened.hypotheses[1:] if one.words]
    words += [f"a server {reading.words}" for reading in opened.readings[1:]]
    near = [(found, said) for found, said in zip([*evidence[1:], *others], words, strict=True) if claimed(found)]
    near = [(found, said) for found, said in near if found.log10_p < evidence[0].log10_p]
    if near:
        found, said = min(near, key=lambda pair: pair[0].log10_p)
        sentences.append(f"it looks as if {said}: {_chance(found)}")
    # 3. the stated configuration on the whole and on parts
    parts = _parts(stated, tokens, tests)
    best, begin, end = min(parts, key=lambda part: part[0].log10_p, default=(evidence[0], 0, 0))
    if claimed(evidence[0]):
        sentences.append(f"it shows the key's own mark, too weakly for a scan: {_chance(evidence[0])}")
    if claimed(best) and best.log10_p < evidence[0].log10_p:
        sentences.append(
            f"tokens {begin + 1:,} to {end:,} carry the key's mark and the rest do not, as after edits: {_chance(best)}"
        )
    tried = [*evidence, *others, *(part for part, _, _ in parts)]
    if not any(claimed(found) for found in tried):
        least = min(tried, key=lambda found: found.log10_p_page)
        sentences.append(f"there is no evidence for any mark that was tried; the best one: {_chance(least)}")
    return sentences


def _evidence(form: OpenedForm, tokens: Tokens, tests: int) -> Evidence:
    known = np.full(1, 0 if form.messages == 1 else -1, np.int64)
    return evidence_on(form, tokens, np.zeros(1, np.int64), known, tests)


def _parts(form: OpenedForm, tokens: Tokens, tests: int) -> list[tuple[Evidence, int, int]]:
    """Return the evidence of each part, its first token, and the token after its last one."""
    parts = []
    for cut in CUTS:
        edges = np.linspace(0, len(tokens.ids), cut + 1).astype(int).tolist()
        for begin, end in itertools.pairwise(edges):
            part = Tokens(tokens.ids[begin:end], np.array([0, end - begin], np.int64))
            parts.append((_evidence(form, part, tests), begin, end))
    return parts


def _chance(found: Evidence) -> str:
    chance = "1" if found.log10_p_page > -1e-3 else one_in(found.log10_p_page)
    return f"among texts without a mark, {chance} scores as high by chance (1 in {1 / PAGE_RATE:g} or rarer counts)"
