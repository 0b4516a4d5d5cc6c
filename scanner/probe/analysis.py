"""Turn answers of a server into a page: the configuration that marks, the marked classes, and the open questions.

1. Answers are read in several ways: by the server's own token ids if it gives them, by the key's tokenizer, and others.
2. Every hypothesis of every key is tested on every class, and on all answers (scanner.probe.evidence).
3. The hypothesis that marks is named, with its differences from the key (scanner.probe.judgement).
4. Under this hypothesis, each class is examined: which answers a scan would find, how many tokens that takes, and who
   is named.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from scanner.error_shares import AS_WRITTEN, ErrorShares
from scanner.errors import Refused
from scanner.power import Aim, MeasuredTexts, measure
from scanner.power import tokens_needed as tokens_for
from scanner.probe.evidence import NO_EVIDENCE, Evidence, OpenedForm, carried, evidence_on, tokens_needed, unfloored
from scanner.probe.hypotheses import Hypothesis, hypotheses_of
from scanner.probe.judgement import (
    MARGIN,
    PAGE_RATE,
    Named,
    Share,
    claimed,
    layers_end,
    name_hypothesis,
    part_share,
    state_of,
    strength_a_root_of,
    unmarked_share,
)
from scanner.probe.readings import (
    Answers,
    Reading,
    answers_of,
    batch_of,
    load_tokenizers,
    prompt_ends,
    readings_of,
    share_split_alike,
)
from scanner.registry import check_secret, load_registry, open_key, tokenizer_path
from scanner.scan_plan import keys_tested, keys_under_test
from scanner.text import Tokenizer, load_tokenizer
from scanner.watermark.formats import format_of
from scanner.watermark.laws import Binomial, Gamma
from scanner.watermark.positions import Tokens, reach_of, select_documents
from scanner.watermark.rule import decide, log10_p_of, long_enough, passes, search
from schemas.config import ScanConfig
from schemas.registry import MasterKey
from schemas.words import Naming

ALL = "all answers"
"""Name of the answers of all classes together."""

OPENINGS = 2
"""Tests of the first tokens of answers for each hypothesis: with the prompt before them, and without."""

MISSING = 2**32 - 1
"""Token id in place of a missing token of a context, in formats whose contexts never include the prompt."""

MIN_SCORED: int = ScanConfig.model_fields["min_scored"].default


@dataclass(frozen=True)
class NamedUsers:
    """Counts of right and wrong names that a scan gives to texts whose user is known.

    texts: number of texts whose user is known.
    """

    texts: int
    right: int
    wrong: int


@dataclass(frozen=True)
class ClassResult:
    """The findings on a class of answers.

    state: marked, unmarked or cannot tell.
    answers: number of answers with a text.
    without_text: number of answers without a text.
    error: most frequent reason for a missing text.
    distinct: number of different texts.
    scored: number of tokens that count, each draw once.
    log10_p: corrected for the whole page.
    found: share of the answers that a scan finds if its key states what the server does.
    carried: share of the tokens that the mark decided, at least. None where the format does not show it.
    tokens_half, tokens_most: tokens of a text that a scan finds with chance 50 % and 95 %. None: not known.
    more_answers: how many more answers are needed to decide. 0 where it is decided.
    unmarked: share of answers without the mark in a marked class. None: all answers carry the mark.
    users: None: no user is known.
    differs: the server's behaviour in this class only, in words. Empty where it is the same as in other classes.
    """

    name: str
    state: str
    answers: int
    without_text: int
    error: str
    distinct: int
    scored: int
    log10_p: float
    found: Share
    carried: Share | None
    tokens_half: int | None
    tokens_most: int | None
    more_answers: int
    unmarked: Share | None
    users: NamedUsers | None
    differs: str


@dataclass(frozen=True)
class KeyResult:
    """The findings on a key.

    stated: label of its configuration.
    basis: of its p-values.
    named: name of the hypothesis that marks. None: no mark is claimed.
    log10_p: of the strongest claim, corrected for the whole page.
    differences: differences between the server and the key, in sentences.
    alike: configurations that cannot be told apart from the named one.
    cannot_tell: open questions, in sentences.
    tried: configurations near the key's and other readings that were tested too: what a server does under each.
    together: marked, unmarked or cannot tell, of the answers of all classes together.
    classes: unmarked ones first.
    """

    key_id: str
    stated: str
    basis: str
    hypotheses: int
    named: str | None
    log10_p: float
    differences: tuple[str, ...]
    alike: tuple[str, ...]
    cannot_tell: tuple[str, ...]
    tried: tuple[str, ...]
    together: str
    classes: tuple[ClassResult, ...]


@dataclass(frozen=True)
class ProbeResult:
    """A whole page.

    page_rate: rate at which a page claims a mark that does not exist.
    false_positive_rate: of the scans that would find the answers.
    tests: number of tests that the page is corrected for.
    notes: notes on single answers, in sentences.
    samples: one text of each class, for pages with texts.
    """

    made_at: str
    version: str
    page_rate: float
    false_positive_rate: float
    tests: int
    answers: int
    keys: tuple[KeyResult, ...]
    notes: tuple[str, ...]
    samples: tuple[tuple[str, str], ...]

    @property
    def classes(self) -> tuple[ClassResult, ...]:
        """Return the classes under the key with the smallest p. Among equal ones, the first key counts."""
        return min(self.keys, key=lambda key: key.log10_p).classes

    def to_json(self) -> dict[str, Any]:
        """Return the page as JSON, without texts."""
        fields = asdict(self)
        del fields["samples"]
        return fields


class _Tested(NamedTuple):
    """A hypothesis under one reading of the answers."""

    hypothesis: Hypothesis
    reading: Reading
    opened: OpenedForm

    @property
    def words(self) -> str:
        return self.reading.words or self.hypothesis.words

    @property
    def name(self) -> str:
        return self.hypothesis.name if not self.reading.words else f"read as {self.reading.name}"


class _OpenedKey(NamedTuple):
    key: MasterKey
    tokenizer: Tokenizer
    tested: list[_Tested]
    known: NDArray[np.int64]
    correction: float

    def as_scanned(self, chosen: _Tested) -> Tokens:
        """Return the tokens that a scan reads: those of the texts, even if the server's ids are the main reading."""
        texts = [one.reading for one in self.tested if one.reading.name == "text"]
        return texts[0].tokens if chosen.reading.name == "ids" and texts else chosen.reading.tokens


def count_hypotheses(registry: Path | str, key_ids: Sequence[str] = ()) -> int:
    """Return how many configurations are tested on each class. Raises as `analyse`."""
    keys = keys_under_test(load_registry(registry), str(registry), tuple(key_ids) or None)
    counts = [
        len(hypotheses_of(format_of(key), check_secret(registry, key), key.messages, _load(registry, key).vocab_size))
        for key in keys
    ]
    return sum(counts)


def users_without_message(registry: Path | str, key_ids: Sequence[str], users: Sequence[str]) -> dict[str, list[str]]:
    """Return those of some users who hold no message, by the keys that have messages. Raises as `analyse`."""
    tested = keys_under_test(load_registry(registry), str(registry), tuple(key_ids) or None)
    keys = [key for key in tested if key.messages > 1]
    if not users or not keys:
        return {}
    from scanner.registry import users_of  # late: it loads tables of users

    rows = [row for row in users_of(registry, sorted(set(users))).to_dicts() if row["removed_at"] is None]
    held = {(row["key_id"], row["user_id"]) for row in rows}
    unknown = {key.key_id: [user for user in users if (key.key_id, user) not in held] for key in keys}
    return {key_id: found for key_id, found in unknown.items() if found}


def analyse(
    answers: pa.Table,
    registry: Path | str,
    key_ids: Sequence[str] = (),
    *,
    tokenizers: Sequence[Path] = (),
    false_positive_rate: float = 1e-6,
    watch: Callable[[int, int], None] = lambda _done, _of: None,
) -> ProbeResult:
    """Analyse answers: which configuration marks them, which classes carry the mark, and which questions stay open.

    Args:
        answers: one answer a row. `text` is required. `class`, `ids`, `prompt`, `prompt_ids`, `user_id`, `error` and
            `note` are read if present.
        registry: folder or URI.
        key_ids: ids of its keys. Empty: all keys.
        tokenizers: further tokenizer.json files that the server may use.
        false_positive_rate: of the scans that would find the answers.
        watch: called with the number of configurations that were tested on a class, and of all.

    Raises:
        Refused: the answers have no text, or there is no such key.
        SecretError, TokenizerError: a key cannot be opened.
    """
    read = answers_of(answers)
    on_record = load_registry(registry)
    keys = keys_under_test(on_record, str(registry), tuple(key_ids) or None)
    units = _units(read)
    opened_keys, notes = _open(read, registry, keys, keys_tested(on_record), load_tokenizers(tokenizers))
    hypotheses = [sum(not one.reading.words for one in opened.tested) for opened in opened_keys]
    steps = len(units) * sum(len(opened.tested) for opened in opened_keys)
    tests = steps + OPENINGS * sum(hypotheses)
    done = itertools.count(1)
    results = tuple(
        _key_result(read, units, opened, tests, false_positive_rate, lambda: watch(next(done), steps))
        for opened in opened_keys
    )
    samples = dict(zip(reversed(read.classes), reversed(read.texts), strict=True))
    return ProbeResult(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        version=version("brickscan"),
        page_rate=PAGE_RATE,
        false_positive_rate=false_positive_rate,
        tests=tests,
        answers=len(read.texts),
        keys=results,
        notes=(*notes, *(f"{count:,} answers: {note}" for note, count in read.notes.items())),
        samples=tuple(sorted(samples.items())),
    )


def _units(answers: Answers) -> dict[str, NDArray[np.int64]]:
    """Return the places of the answers of each class, int64 each.

    With several classes, all answers are one more unit.
    """
    classes = np.array(answers.classes, object)
    units = {name: np.flatnonzero(classes == name) for name in dict.fromkeys(answers.classes)}
    if ALL in units and len(units) > 1:
        raise Refused(f"a class has the name {ALL!r}, which is reserved for all classes together; give it another name")
    return units if len(units) == 1 else {**units, ALL: np.arange(len(classes))}


def _load(registry: Path | str, key: MasterKey) -> Tokenizer:
    return load_tokenizer(tokenizer_path(registry, key), key.tokenizer.sha256, fast=False)


def _open(
    answers: Answers,
    registry: Path | str,
    keys: Sequence[MasterKey],
    tested: int,
    further: list[tuple[str, Tokenizer]],
) -> tuple[list[_OpenedKey], list[str]]:
    """Open the hypotheses of all keys. Return them, and notes on the answers."""
    loaded = {key.tokenizer.sha256: _load(registry, key) for key in keys}
    named = {
        f"that of key {key.key_id}": (key.tokenizer.sha256, loaded[key.tokenizer.sha256]) for key in reversed(keys)
    }
    opened_keys, notes = list[_OpenedKey](), list[str]()
    for key in keys:
        form, secret, tokenizer = format_of(key), check_secret(registry, key), loaded[key.tokenizer.sha256]
        others = {sha256: (name, one) for name, (sha256, one) in named.items() if sha256 != key.tokenizer.sha256}
        readings = readings_of(answers, tokenizer, [*others.values(), *further])
        hypotheses = hypotheses_of(form, secret, key.messages, tokenizer.vocab_size)
        marks = [
            open_key(registry, key) if place == 0 else one.form.open(one.secret.value)
            for place, one in enumerate(hypotheses)
        ]
        forms = [OpenedForm(one.form, mark, one.messages) for one, mark in zip(hypotheses, marks, strict=True)]
        cells = [_Tested(one, readings[0], opened) for one, opened in zip(hypotheses, forms, strict=True)]
        cells += [_Tested(hypotheses[0], reading, forms[0]) for reading in readings[1:]]
        known, unknown_users = _known_messages(registry, key, answers)
        if unknown_users:
            notes.append(f"{unknown_users:,} answers are for users who hold no message of key {key.key_id}")
        if split := share_split_alike(answers, tokenizer):
            notes.append(
                f"the tokenizer of key {key.key_id} splits {split[0]:,} of {split[1]:,} texts into the token ids that "
                "the server returned"
            )
        correction = float(ErrorShares.by_default().corrections(key, tested)[AS_WRITTEN, 0, 1])
        opened_keys.append(_OpenedKey(key, tokenizer, cells, known, correction))
    return opened_keys, notes


def _known_messages(registry: Path | str, key: MasterKey, answers: Answers) -> tuple[NDArray[np.int64], int]:
    """Return the message of each answer's user, int64[A], −1 where it is unknown.

    Also return the number of answers for a user without a message of the key.
    """
    wanted = sorted({user for user in answers.users if user is not None})
    if not wanted or key.messages == 1:
        return np.full(len(answers.texts), 0 if key.messages == 1 else -1, np.int64), 0
    from scanner.registry import users_of  # late: it loads tables of users

    rows = [row for row in users_of(registry, wanted).to_dicts() if row["key_id"] == key.key_id]
    held = {row["user_id"]: int(row["message"]) for row in rows if row["removed_at"] is None}
    known = np.array([-1 if user is None else held.get(user, -1) for user in answers.users], np.int64)
    return known, sum(user is not None and user not in held for user in answers.users)


def _key_result(
    answers: Answers,
    units: Mapping[str, NDArray[np.int64]],
    opened: _OpenedKey,
    tests: int,
    rate: float,
    step: Callable[[], None],
) -> KeyResult:
    cells, stated = opened.tested, opened.tested[0]
    # 1. every hypothesis on every class
    evidence = dict[str, list[Evidence]]()
    for name, unit in units.items():
        evidence[name] = []
        for one in cells:
            evidence[name].append(evidence_on(one.opened, one.reading.tokens, unit, opened.known, tests))
            step()
    # 2. find the hypothesis that marks: from all answers, or else from the class with the strongest evidence
    whole = evidence.get(ALL) or next(iter(evidence.values()))
    named, named_by = _name(cells, evidence, whole)
    differences, place = _differences(cells, named, named_by)
    chosen = cells[place]
    own = {name: of_unit[place] for name, of_unit in evidence.items() if name != ALL}
    strength = strength_a_root_of(own.values())
    # 3. each class under it
    classes = [
        _class_result(answers, name, units[name], opened, chosen, evidence[name], place, tests, rate, strength)
        for name in own
    ]
    classes += [_without_answers(answers, name) for name in answers.without_text if name not in own]
    differences += [*_for_others(classes, tests, rate), *_only_some(classes)]
    differences += [f"in class {one.name} {one.differs}" for one in classes if one.differs]
    order = ("unmarked", "cannot tell", "marked")
    classes.sort(key=lambda one: order.index(one.state))
    # 4. where contexts begin
    cannot_tell = list(_limits_of_formats(stated))
    if named.place is not None:
        cannot_tell += _layers_untold(cells, named_by)
        marked = [units[one.name] for one in classes if one.state == "marked" and not one.differs]
        said, unsaid = _openings(answers, opened, chosen, marked, tests, strength)
        differences += said
        cannot_tell += unsaid
    cannot_tell += [
        f"class {one.name}: too few tokens to tell whether it is marked; about {one.more_answers:,} more answers like "
        "these are needed"
        if one.answers
        else f"class {one.name}: none of its {one.without_text:,} requests got a text"
        for one in classes
        if one.state == "cannot tell"
    ]
    return KeyResult(
        key_id=opened.key.key_id,
        stated=stated.hypothesis.form.label(),
        basis=str(stated.opened.mark.basis),
        hypotheses=len(cells),
        named=None if named.place is None else chosen.name,
        log10_p=min(found.log10_p_page for of_unit in evidence.values() for found in of_unit),
        differences=tuple(differences),
        alike=tuple(cells[other].words or cells[other].name for other in named.alike),
        cannot_tell=tuple(cannot_tell),
        tried=tuple(dict.fromkeys(one.words for one in cells if one.words)),
        together=state_of(whole[place], tests, strength).name,
        classes=tuple(classes),
    )


def _name(
    cells: Sequence[_Tested], evidence: Mapping[str, Sequence[Evidence]], whole: Sequence[Evidence]
) -> tuple[Named, Sequence[Evidence]]:
    """Name the hypothesis that marks, and return the evidence that decided it."""
    for parts_too in (False, True):
        eligible = [parts_too or one.hypothesis.part is None for one in cells]
        for of_unit in (whole, *sorted(evidence.values(), key=lambda found: min(one.log10_p for one in found))):
            named = name_hypothesis(of_unit, eligible)
            if named.place is not None:
                return named, of_unit
    return Named(None), whole


def _differences(cells: Sequence[_Tested], named: Named, evidence: Sequence[Evidence]) -> tuple[list[str], int]:
    """Return differences between server and key, in sentences, and the place of the hypothesis that marks."""
    if named.place is None:
        return [], 0
    place = named.place
    sentences = [f"the server {cells[place].words}"] if place else []
    main = [other for other, one in enumerate(cells) if not one.reading.words]
    # 1. two parts, each of a stated share
    shares = [other for other in main if _share(cells[other]) is not None]
    if len(shares) == 2:
        first, second = (evidence[other] for other in shares)
        stated, found = _share(cells[shares[1]]) or 0.0, part_share(first, second)
        # a server that uses one part only also scores half under both parts, in either order
        is_by_parts = min(first.log10_p, second.log10_p) < evidence[place].log10_p - MARGIN
        if found is not None and (place in (0, *shares) or is_by_parts):
            if not found.agrees(stated) and (found.agrees(0.0) or found.agrees(1.0)):
                place = shares[int(found.agrees(1.0))]
                return [f"the server {cells[place].words}"], place
            words = f"marks about {found.share:.0%} of the tokens with the second key, but the key says {stated:.0%}"
            place, sentences = 0, [] if found.agrees(stated) else [f"the server {words}"]
    # 2. layers that mark nothing
    if place == 0 and (ends := _layers_end(cells, evidence)) is not None and ends[0]:
        sentences.append(f"the server marks only with the keys of the first {ends[1]} layers, but the key has more")
    # 3. token ids of the server that differ from those of the text
    texts = [other for other, one in enumerate(cells) if one.reading.name == "text" and one.reading.words]
    if texts and not cells[place].reading.words and place == 0:
        by_text = evidence[texts[0]]
        if by_text.strength < 0.5 * evidence[0].strength:
            sentences.append(
                "the server's tokenizer differs from the key's: its own token ids carry the mark, but its texts, "
                "split by the key's tokenizer, carry little or none of it"
            )
    return sentences, place


def _for_others(classes: Sequence[ClassResult], tests: int, rate: float) -> list[str]:
    """Return a sentence if answers are marked, and not for the users whom they were asked for.

    By chance, a marked answer names another user with at most the scans' false-positive rate (SPEC_3 §4, rule 2).
    """
    users = [one.users for one in classes if one.users is not None]
    wrong, known = sum(one.wrong for one in users), sum(one.texts for one in users)
    if not wrong or special.bdtrc(wrong - 1, known, rate) > PAGE_RATE / tests:
        return []
    carry = "carries" if wrong == 1 else "carry"
    return [
        f"the server marks for the wrong users: {wrong:,} of {known:,} answers {carry} a message that is not their "
        "user's; compare the requests with `brickscan users show`"
    ]


def _only_some(classes: Sequence[ClassResult]) -> list[str]:
    """Return a sentence if some answers of marked classes show no mark. Text without a choice of words shows none."""
    shares = {one.name: one.unmarked for one in classes if one.unmarked is not None}
    if len(shares) > 1:
        least, most = min(share.value for share in shares.values()), max(share.value for share in shares.values())
        return [
            f"the server marks only some answers of {len(shares)} classes ({', '.join(shares)}): {least:.0%} to "
            f"{most:.0%} show no mark, unless these left it no choice of words; the table has the limits of each"
        ]
    return [
        f"the server marks only some answers of class {name}: {share.value:.0%} show no mark (between {share.low:.0%} "
        f"and {share.high:.0%}), unless these left it no choice of words"
        for name, share in shares.items()
    ]


def _share(one: _Tested) -> float | None:
    return None if one.hypothesis.part is None else one.hypothesis.part.share


def _layers(one: _Tested) -> tuple[int, int] | None:
    return None if one.hypothesis.part is None else one.hypothesis.part.layers


def _layers_end(cells: Sequence[_Tested], evidence: Sequence[Evidence]) -> tuple[bool | None, int] | None:
    """Return whether the key's layers end at its middle (`layers_end`), and how many layers come before the middle.

    None: the key has no layers.
    """
    runs = [other for other, one in enumerate(cells) if not one.reading.words and _layers(one) is not None]
    if len(runs) != 3:
        return None
    (first_run, before, after) = (_layers(cells[other]) or (0, 0) for other in runs)
    steps = float(before[0] - first_run[0]), float(after[0] - before[0])
    return layers_end(evidence[runs[0]], evidence[runs[1]], evidence[runs[2]], steps), after[0]


def _layers_untold(cells: Sequence[_Tested], evidence: Sequence[Evidence]) -> list[str]:
    """Return a sentence if too few tokens show whether the later layers mark."""
    ends = _layers_end(cells, evidence)
    if ends is None or ends[0] is not None:
        return []
    return [f"whether the layers' keys after the first {ends[1]} mark too: more answers are needed"]


def _limits_of_formats(stated: _Tested) -> list[str]:
    """Return the questions that the stated format leaves open, in sentences."""
    form, sentences = stated.hypothesis.form, list[str]()
    if stated.opened.mark.law is None:
        sentences.append("its scores have no law, so nothing can be claimed")
    if form.generator is not None:
        sentences.append(
            f"whether the server draws on a GPU: only draws of torch's {form.generator} are tested, and a GPU draws "
            "different numbers, which are not found"
        )
    if stated.opened.mark.basis.assumed:
        sentences.append("who marked: anybody can make this mark, or its hash is only assumed to behave randomly")
    return sentences


def _openings(
    answers: Answers,
    opened: _OpenedKey,
    chosen: _Tested,
    marked: Sequence[NDArray[np.int64]],
    tests: int,
    strength: float | None,
) -> tuple[list[str], list[str]]:
    """Test whether the first tokens of answers are drawn with the prompt before them.

    Returns:
        Differences between server and key, in sentences.
        Open questions, in sentences.
    """
    mark, tokens = chosen.opened.mark, chosen.reading.tokens
    reach = reach_of(mark.rule)
    if not marked or not reach or strength is None:
        return [], []
    places = np.sort(np.concatenate(marked))
    ends = prompt_ends(answers, opened.tokenizer, reach)
    alone = "partial_contexts" in type(chosen.hypothesis.form).model_fields
    with_prompt = _opening_evidence(chosen, tokens, {int(i): ends[i] for i in places}, reach, opened.known, tests)
    if alone:
        nothing = np.full(reach, MISSING, np.uint32)
        by_itself = _opening_evidence(chosen, tokens, {int(i): nothing for i in places}, reach, opened.known, tests)
        if claimed(with_prompt):
            return [
                "the server puts the prompt into the contexts of its first tokens, but the format leaves it out"
            ], []
        if state_of(by_itself, tests, strength).name == "unmarked":
            words = "writes something before its answers that they do not show, or does not mark"
            return [f"the server {words} their first {reach} tokens, which carry no mark"], []
        return [], []
    if not with_prompt.scored:
        why = "no answer comes with the prompt that the model saw"
        return [], [f"whether the first {reach} tokens of an answer are drawn with the prompt before them: {why}"]
    state = state_of(with_prompt, tests, strength)
    if state.name == "unmarked":
        words = f"leaves the prompt out of the contexts: the first {reach} tokens of an answer carry no mark"
        return [f"the server {words}"], []
    if state.name == "cannot tell":
        more = math.ceil(state.tokens_lacking / reach)
        question = f"whether the prompt is in the contexts of an answer's first {reach} tokens"
        return [], [f"{question}; about {more:,} more answers to other prompts are needed"]
    return [], []


def _opening_evidence(
    chosen: _Tested,
    tokens: Tokens,
    ends: Mapping[int, NDArray[np.uint32] | None],
    reach: int,
    known: NDArray[np.int64],
    tests: int,
) -> Evidence:
    """Test the first tokens of answers, given the tokens before each of them."""
    pairs = [(place, end) for place, end in ends.items() if end is not None]
    if not pairs:
        return NO_EVIDENCE
    openings = [
        np.concatenate([end, tokens.ids[tokens.offsets[place] : tokens.offsets[place + 1]][:reach]])
        for place, end in pairs
    ]
    own = known[[place for place, _ in pairs]]
    return evidence_on(chosen.opened, batch_of(openings), np.arange(len(pairs)), own, tests)


def _class_result(
    answers: Answers,
    name: str,
    unit: NDArray[np.int64],
    opened: _OpenedKey,
    chosen: _Tested,
    evidence: Sequence[Evidence],
    place: int,
    tests: int,
    rate: float,
    strength: float | None,
) -> ClassResult:
    # 1. the hypothesis for this class is the page's, unless another one marks here
    eligible = [one.hypothesis.part is None for one in opened.tested]
    own, differs = evidence[place], ""
    named = name_hypothesis(evidence, eligible)
    is_part = claimed(own) and opened.tested[place].hypothesis.part is not None
    other = named.place
    if other is not None and not is_part and own.log10_p > evidence[other].log10_p + MARGIN:
        chosen, own = opened.tested[other], evidence[other]
        differs = f"the server {chosen.words}" if chosen.words else "the server marks as the key says"
    state = state_of(own, tests, strength)
    tokens = select_documents(chosen.reading.tokens, unit)
    per_answer = max(1.0, own.scored / len(unit))
    mark, messages = chosen.opened.mark, chosen.opened.messages
    # 2. what a scan would find
    scanned = select_documents(opened.as_scanned(chosen), unit)
    known = opened.known[unit] if messages > 1 else np.zeros(len(unit), np.int64)
    aim = Aim(rate, messages, opened.correction)
    documents, long = long_enough(mark.rule.positions(scanned, "ngram"), MIN_SCORED)
    findings = search(mark, scanned, long, messages, opened.correction)
    is_found = passes(findings.log10_p_global, rate).any(axis=1)
    users, under = None, np.where(known >= 0, known, max(own.message, 0))
    if messages > 1 and (known >= 0).any():
        decision = decide([findings], rate)
        message = findings.message[np.arange(len(documents)), decision.candidate]
        is_named = (decision.naming == Naming.NAMED) & (known[documents] >= 0)
        is_right = is_named & (message == known[documents])
        users = NamedUsers(int((known >= 0).sum()), int(is_right.sum()), int((is_named & ~is_right).sum()))
        # an answer that is marked for another user carries a mark all the same
        under[documents] = np.where(is_named & ~is_right, message, under[documents])
    # 3. how strong the mark is
    carried_share, half, most, unmarked = None, None, None, None
    if state.name == "marked":
        positions = mark.rule.positions(tokens, "ngram")
        hits, by_chance = carried(mark, tokens, positions, under)
        if by_chance < 1.0:
            carried_share = Share.of(hits, len(positions.index)).beyond(by_chance)
        half, most = (_needed(chosen.opened, scanned, under, aim, own, power) for power in (0.5, 0.95))
        documents, long = long_enough(positions, MIN_SCORED)
        score = mark.score(tokens, long, under[documents])
        log10_p = log10_p_of(mark.law, np.asarray(score), positions.scored[documents])
        unmarked = unmarked_share(log10_p, positions.scored[documents], own.strength)
    return ClassResult(
        name=name,
        state=state.name,
        answers=len(unit),
        without_text=answers.without_text.get(name, 0),
        error=_error(answers, name),
        distinct=len({answers.texts[i] for i in unit}),
        scored=own.scored,
        log10_p=own.log10_p_page,
        found=Share.of(int(is_found.sum()), len(unit)),
        carried=carried_share,
        tokens_half=half,
        tokens_most=most,
        more_answers=math.ceil(state.tokens_lacking / per_answer),
        unmarked=unmarked,
        users=users,
        differs=differs,
    )


def _without_answers(answers: Answers, name: str) -> ClassResult:
    """Return the result for a class in which no row has a text."""
    return ClassResult(
        name=name,
        state="cannot tell",
        answers=0,
        without_text=answers.without_text[name],
        error=_error(answers, name),
        distinct=0,
        scored=0,
        log10_p=0.0,
        found=Share.of(0, 0),
        carried=None,
        tokens_half=None,
        tokens_most=None,
        more_answers=0,
        unmarked=None,
        users=None,
        differs="",
    )


def _error(answers: Answers, name: str) -> str:
    if name not in answers.errors:
        return ""
    error, count = answers.errors[name]
    return f"{error} (once)" if count == 1 else f"{error} ({count:,} times)"


def _needed(
    opened: OpenedForm, tokens: Tokens, messages: NDArray[np.int64], aim: Aim, evidence: Evidence, power: float
) -> int | None:
    """Return the tokens of a text that a scan finds with a given power. None where the texts are too few to tell."""
    law = opened.mark.law
    if law is not None and isinstance(unfloored(law), Gamma | Binomial):
        try:
            strengths = measure(opened.mark, tokens, messages)
            return tokens_for(MeasuredTexts.of(law, strengths), aim, power)
        except Refused:  # the texts are too short, or marked too weakly
            return None
    if evidence.strength <= 0.0:
        return None
    level = math.log10(aim.false_positive_rate / (aim.messages * aim.correction))
    return math.ceil(tokens_needed(evidence.strength / math.sqrt(evidence.scored), level, power))
