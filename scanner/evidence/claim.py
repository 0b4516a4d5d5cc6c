"""The folder with which a third party checks one flag without brickscan, once the key is revealed to them.

It holds data alone: the claim, the text, its tokens and the tokenizer. None of these hold key material, or show any
single token's score. The script that checks it, check_claim.py, is not among them: a forger could change it there.
"""

import contextlib
import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanner.detection.proving import alike, parts_of
from scanner.errors import Refused
from scanner.evidence.case import FlagCase
from scanner.evidence.check_claim import WEAK, Mark, any_of
from scanner.evidence.explainer import Explainer
from scanner.registry import check_secret
from scanner.scan_plan import recorded_tests
from scanner.watermark.formats import format_of

_README = """\
A claim that a text contains text marked for one message of a key.

claim.json      the claim: key, commitment, message, score, p-values, and digests of the text and of the tokenizer
tokens.csv      each token of the text in order, and whether it is scored; else why not: "window" (it has no whole
                window before it), "repeat" (it came before with the same window), "filter" (a common n-gram) or
                "outside the part" (the claim is of a part of the text: unit "span", one of so many `parts`)
text.txt        the text, byte for byte; the claim has its SHA-256
scored.txt      is there where something else was scored: without what hides a mark (variant "normalised"), with U+FFFD
                for bytes that are no UTF-8, without a C2PA manifest, or a first part of a long text
tokenizer.json  the tokenizer; the claim has its SHA-256

check_claim.py checks the claim, once the key is known: python -I check_claim.py FOLDER SECRET_FILE LIST HEAD
It is scanner/evidence/check_claim.py of brickscan: take it from a copy of brickscan that you trust, never from who
makes the claim. LIST is the public list of commitments (`brickscan keys publish`), taken from where it is public, and
HEAD a head of it that somebody kept from before the text was posted. The script says what it did not check, and what
nobody can check so.

The claim says that the text contains text marked for the message. It does not say who wrote or posted it.
"""


def write_claim(explainer: Explainer, case: FlagCase, out: Path) -> None:
    """Write the folder.

    Args:
        explainer: explainer of the results, from a configuration.
        case: the flag.
        out: a new folder.

    Raises:
        Refused: the folder is there, the text is gone, or the key is of a format that the script does not know.
    """
    text, tokens, test = explainer.scored_text(case)
    row, key = case.row, test.key
    form = format_of(key)
    if key.commitment is None:
        raise Refused(f"--proof: key {key.key_id!r} has no commitment, so that nothing shows later which key it was")
    if row["message"] is None:
        raise Refused(f"--proof: {case.where}: no message is shown for this flag, so that there is none to prove")
    if row["log10_p_global"] > WEAK:
        raise Refused(
            f"--proof: {case.where}: chance alone does this in more than 1 of 1,000 texts (log10 p "
            f"{row['log10_p_global']:.2f}); nobody can go by such a claim"
        )
    rule, dedup = test.watermark.rule, (case.scan or {}).get("dedup", "ngram")
    if dedup != "ngram":
        raise Refused(f"--proof: the scan counted repeats by dedup = {dedup!r}; the script knows 'ngram' alone")
    places, common = rule.positions(tokens, "ngram"), explainer.common(case)
    scored = places if common is None else common.without(tokens, places)
    ngrams = [rule.ngram(tokens, int(place)) for place in scored.index]
    mark = _mark(form.label(), check_secret(explainer.registry, key))
    terms = [mark.term(ngram, row["message"]) for ngram in ngrams]
    looked_at = [(0, len(ngrams), -1)]
    if row["unit"] is not None:
        looked_at = parts_of(explainer.parts_tested, test.tokenizer.reference, text, scored.index)
    begin, end = _part(mark, terms, looked_at, row, case.where)
    claim: dict[str, Any] = {
        "label": form.label(),
        "commitment": key.commitment,
        "tokenizer_sha256": key.tokenizer.sha256,
        "text_sha256": row["text_sha256"].hex(),
        "message": row["message"],
        "messages": row["messages_tested"],
        "tests": recorded_tests(row),
        "scored": end - begin,
        **{name: row[name] for name in ("score", "log10_p", "log10_p_global", "variant", "unit")},
        "parts": len(looked_at),
    }
    try:
        out.mkdir(mode=0o700)
        _write(out / "claim.json", json.dumps(claim, indent=1) + "\n")
        with _new(out / "tokens.csv") as file:
            statuses = _statuses(len(tokens.ids), rule.context, places.index, scored.index, (begin, end))
            csv.writer(file, lineterminator="\n").writerows(zip(tokens.ids.tolist(), statuses, strict=True))
        stored = explainer.stored_text(case)
        _write(out / "text.txt", stored)
        if stored != text.encode():
            _write(out / "scored.txt", text)
        _write(out / "tokenizer.json", test.tokenizer.reference.data)
        _write(out / "README", _README)
    except OSError as error:
        raise Refused(f"--proof {out}: cannot be written ({error.strerror}); name a folder that is new") from None


def _statuses(
    tokens: int, window: int, places: NDArray[np.int64], scored: NDArray[np.int64], part: tuple[int, int]
) -> list[str]:
    """Why each token is scored or not, as check_claim.py knows it."""
    found = np.full(tokens, "repeat", object)
    found[:window] = "window"
    found[places] = "filter"
    found[scored] = "outside the part"
    found[scored[slice(*part)]] = "scored"
    return found.tolist()


def _mark(label: str, secret: bytes) -> Mark:
    """The key as the script knows it. Raises Refused: the script was not written for the format."""
    with contextlib.suppress(KeyError, ValueError):
        return Mark(label, secret)
    raise Refused(f"--proof: the script that checks a claim does not know the marks of {label!r}")


def _part(
    mark: Mark, terms: Sequence[float], looked_at: Sequence[tuple[int, int, int]], row: Mapping[str, Any], where: str
) -> tuple[int, int]:
    """First scored position of the part that the row is about, and position after its last, as the script finds it."""
    sums = np.concatenate([[0.0], np.cumsum(terms)])
    for begin, end, _ in looked_at:
        if alike(float(sums[end] - sums[begin]), row["score"]):
            log10_p = mark.log10_p(math.fsum(terms[begin:end]), end - begin)
            of_parts = any_of(any_of(log10_p, row["messages_tested"]), len(looked_at))
            if alike(log10_p, row["log10_p"]) and alike(any_of(of_parts, recorded_tests(row)), row["log10_p_global"]):
                return begin, end
    raise Refused(f"--proof: {where}: the script that checks a claim finds another score or p-value than the row has")


def _new(path: Path) -> TextIOWrapper:
    return open(path, "x", encoding="utf-8", newline="", opener=lambda name, flags: os.open(name, flags, 0o600))


def _write(path: Path, text: str | bytes) -> None:
    with _new(path) as file:
        file.buffer.write(text.encode() if isinstance(text, str) else text)
