"""Claims that show seeds: anybody checks them without the key, and every forgery of SPEC_3 §5 fails."""

import ast
import functools
import hashlib
import itertools
import json
import math
import random
import re
import resource
import subprocess
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.evidence import check_claim
from scanner.evidence.check_claim import Mark, chosen_of, leaf_of, places_in
from tests.support.forged_claims import LIBRARY, SALT, check, encode, event_after
from tests.support.shown_claims import SEEDS, ShownForger, Unit

ANSWERS = Path(check_claim.__file__).parents[1] / "watermark" / "native"
KNOWN = json.loads((ANSWERS / "known_answers_3.json").read_text())["claims"]
OTHER = "ab" * 32
ALIKE = "\U0001d5ba\uff41 \U0001d5be\u212f \u2170 \U0001d5c8\u2134 \u217d \u217c \u217f \U0001d5cd"
NO_HEAD = "NOT CHECKED that no earlier event was left out"
NO_LIST = "NOT CHECKED that key and tokenizer were announced"


def make(folder: Path, words, method: str = "greenlist", groups: int | None = 50, **more: Any) -> ShownForger:
    forger = ShownForger(folder / "case", method, groups, **more)
    forger.text = forger.mark_words(words, 130)
    return forger


@pytest.fixture
def forger(tmp_path, words) -> ShownForger:
    return make(tmp_path, words)


@pytest.fixture
def window_forger(forger, plain) -> ShownForger:
    """Of a marked window within a person's text."""
    forger.text = plain(60, 1) + forger.text + plain(60, 2)
    forger.correction = 4.0
    forger.take_window()
    return forger


def lines_of(said: str, word: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith(word)]


def assert_fails(answer: tuple[int, str], why: str) -> None:
    code, said = answer
    assert (code, re.search(f"^FAILS       .*{why}", said, re.MULTILINE) is not None) == (1, True), said


@pytest.mark.parametrize("groups", [50, None])
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_an_honest_claim_holds(tmp_path, words, method, groups):
    forger = make(tmp_path, words, method, groups)
    code, said = forger.claim()
    unchecked = lines_of(said, "NOT CHECKED")
    assert (code, "FAILS" in said, len(unchecked)) == (3, False, 2 if groups else 3), said
    assert [line for line in unchecked if line.startswith((NO_HEAD, NO_LIST))] == unchecked[:2]
    assert f"the path of each seed has {SEEDS} hashes" in said
    head = hashlib.sha256(forger.held("events.jsonl").rstrip("\n").encode()).hexdigest()
    published = forger.publish((forger.record_sha256(), "-"), (forger.record_sha256(), f"1:{head}"))
    code, said = forger.checked(*published)
    assert (code, "FAILS" in said, "NOT CHECKED" in said) == (0, False, False), said
    code, said = forger.checked(*published, library=False)
    (unchecked,) = lines_of(said, "NOT CHECKED")
    told = "NOT CHECKED that the tokens are those of the text: install the library `tokenizers` into a venv"
    assert (code, unchecked[: len(told)]) == (3, told)


def test_pythons_that_are_too_old_can_read_the_script():
    """Such as RHEL 8's 3.6: else it ends in a traceback with exit code 1, which says that the claim is void."""
    ast.parse(Path(check_claim.__file__).read_text(), feature_version=(3, 6))


def test_a_claim_is_checked_without_brickscan(forger):
    forger.claim()
    code, said = check(forger.folder)
    assert (code, "FAILS" in said, "NOT CHECKED that the tokens are those of the text: install" in said) == (
        (3, False, True)
    )


def test_a_mistake_of_whoever_checks_is_no_fault_of_the_claim(forger, tmp_path):
    """They name another folder, the list without its head, a list that is not there, or what is no head."""
    forger.claim()
    here, head, published = forger.folder, "0" * 64, tmp_path / "commitments.txt"
    published.write_text("")
    for named in ((tmp_path / "gone",), (published,), (here, published), (here, tmp_path / "gone", head)):
        code, said = check(*named)
        assert (code, said.startswith("nothing was checked: "), "FAILS" in said) == (2, True, False), named
    for none in ("1234", head[:-1], head.replace("0", "G")):
        assert check(here, published, none)[0] == 2
    assert check(here, published, head)[0] == 2  # no line is in it
    listed, _ = forger.publish((forger.record_sha256(), "-"))
    assert check(here, listed, head)[0] == 1


def test_the_last_line_sums_up(forger):
    forger.claim()
    for expected in (3, 1):
        code, said = check(forger.folder)
        counts = [len(lines_of(said, word)) for word in ("holds", "FAILS", "NOT CHECKED")]
        held, failing, left = map(int, re.findall(r"\d+", said.splitlines()[-1]))
        assert (code, [held, failing, left], failing > 0) == (expected, counts, expected == 1)
        (forger.folder / "text.txt").write_text("other words")


def test_a_secret_belongs_to_claims_that_show_no_seeds(forger, tmp_path):
    forger.claim()
    secret = tmp_path / "secret"
    secret.write_text("00" * 32)
    assert "the claim shows the seeds: leave SECRET_FILE out" in check(forger.folder, secret)[1]
    (forger.folder / "seeds.json").unlink()
    code, said = check(forger.folder)
    assert (code, "nothing was checked: the claim shows no seeds: name SECRET_FILE" in said) == (2, True)


@pytest.mark.parametrize("number", range(len(KNOWN)))
def test_known_answers(number, monkeypatch):
    """The script's own functions give the claims of the specification, by the seeds that these show alone."""
    case = KNOWN[number]
    monkeypatch.setattr(check_claim, "MOST_POSITIONS", case["most"])
    beacon = bytes.fromhex(case["beacon"])
    whole, mark = Mark(label_of(case), bytes.fromhex(case["secret"]), beacon), Mark(label_of(case), {}, beacon)
    tokens = case["tokens"]
    places = chosen_of(mark, tokens, places_in(mark, tokens, 0, len(tokens)))
    ngrams = [tuple(tokens[at - mark.window : at + 1]) for at in places]
    assert mark.shown is not None
    mark.shown.update({bucket: whole.seed(bucket) for bucket in map(mark.bucket, ngrams)})
    mark.known = frozenset(map(bytes.fromhex, case["shown_before"]))
    own = [ngram for ngram in ngrams if not mark.is_shared(ngram)]
    score, score_user = mark.score(ngrams, case["message"]), mark.score(own, case["message"])
    assert (len(ngrams), len(own)) == (case["scored"], case["scored_user"])
    assert (score, score_user) == pytest.approx((case["score"], case["score_user"]), rel=1e-9)
    found = mark.log10_p(score, len(ngrams)), mark.log10_p(score_user, len(own))
    assert found == pytest.approx((case["log10_p"], case["log10_p_user"]), rel=1e-9, abs=1e-12)
    assert sorted({leaf_of(seed).hex() for seed in mark.shown.values()} - {*case["shown_before"]}) == case["shows"]


def label_of(case: dict[str, Any]) -> str:
    label = f"{case['method']}-v3;h={case['window']}" + (f";gamma={case['gamma']}" if "gamma" in case else "")
    return label + (f";groups={case['groups']}" if case["groups"] else "") + f";seeds={case['seeds']}"


@pytest.mark.parametrize("label", ["greenlist;h=4;gamma=1/4", "greenlist-v3;h=2;gamma=1/4;seeds=8", "gumbel"])
def test_marks_whose_seeds_are_never_shown(label):
    with pytest.raises(ValueError, match="label"):
        Mark(label, {}, bytes(32))


# ---- whose mark it is


def test_a_stranger_of_the_marked_group(forger):
    forger.message += 1
    code, said = forger.claim()
    assert (code, len(lines_of(said, "FAILS"))) == (1, 1), said
    assert re.search(r"FAILS       on the \d+ steps that no other of its group reads", said)


def test_another_message(forger):
    forger.message = 71
    assert_fails(forger.claim(), "chance alone does this")
    assert_fails(forger.claim(message=1203), "score: ")


def test_messages_that_nobody_has(forger, words):
    """Reserved ones are never dealt. Whether another was dealt before the text, no claim shows, and each says so."""
    forger.message = 1219
    forger.text = forger.mark_words(words, 130)
    assert_fails(forger.claim(), "message 1219 is not reserved: a user can have it")
    for message in (2500, -1, 1203.0, True, "7"):
        assert forger.claim(message=message)[0] == 1
    forger.message = 1203
    assert "Which user the message belongs to, except for" in forger.claim()[1]


@pytest.mark.parametrize("messages", [2499, 2501, 2401])
def test_messages_that_are_no_square_of_the_groups(forger, messages):
    forger.messages = messages
    assert_fails(forger.claim(), "messages of so many groups of as many users: 2500")


# ---- positions


def test_a_position_that_is_left_out(forger):
    forger.claim()
    rows = forger.held("tokens.csv").splitlines()
    for status in ("repeat", "window", "not chosen", "filter", "outside the part", ""):
        left_out = [*rows[:40], f"{rows[40].split(',')[0]},{status}", *rows[41:]]
        forger.write("tokens.csv", "".join(f"{row}\n" for row in left_out))
        assert_fails(forger.checked(), "each of 130 tokens is scored.*the first that is not: row 41")
    forger.write("tokens.csv", "".join(f"{row}\n" for row in (*rows[:40], *rows[41:])))
    assert forger.checked()[0] == 1


def test_a_seed_that_is_left_out_or_too_many(forger):
    forger.claim()
    assert_fails(
        forger.edit("seeds.json", lambda seeds: drop_first(seeds)), "each position has its seed.*1 are missing"
    )
    forger.claim()
    unused = next(bucket for bucket in range(2**SEEDS) if bucket not in forger.claimed().buckets)
    answer = forger.edit("seeds.json", lambda seeds: seeds.update(forger.shown([unused])))
    assert_fails(answer, "each position has its seed.*1 do not belong to any position")


def drop_first(seeds: dict[str, Any]) -> None:
    del seeds[next(iter(seeds))]


def test_of_many_positions_those_of_smallest_hash_count(forger, monkeypatch):
    monkeypatch.setattr(check_claim, "MOST_POSITIONS", 60)
    code, said = forger.claim()
    assert (code, "holds       scored tokens: 60" in said, "FAILS" in said) == (3, True, False), said
    first = forger.claimed().places[:60]
    monkeypatch.setattr("tests.support.shown_claims.chosen_of", lambda *_: first)
    assert_fails(forger.claim(), "each of 130 tokens is scored")


# ---- seeds, tree, record


def change_first(name: str, new: object) -> Any:
    def change(seeds: dict[str, Any]) -> None:
        seeds[next(iter(seeds))][name] = new

    return change


def test_a_seed_that_was_changed(forger):
    forger.claim()
    assert_fails(forger.edit("seeds.json", change_first("seed", OTHER)), "leads to the root of the record; the path of")


def test_a_path_that_was_changed(forger):
    forger.claim()

    def reverse(seeds: dict[str, Any]) -> None:
        next(iter(seeds.values()))["path"].reverse()

    assert_fails(forger.edit("seeds.json", reverse), "leads to the root of the record; the path of")


@pytest.mark.parametrize("length", [0, SEEDS - 1, SEEDS + 1])
def test_a_path_of_another_length(forger, length):
    """A shorter one passes a node off as a seed's leaf, or a seed of another tree."""
    forger.claim()
    bucket = min(forger.claimed().buckets)
    path = [*forger.shown([bucket])[str(bucket)]["path"], OTHER][:length]
    answer = forger.edit("seeds.json", lambda seeds: seeds[str(bucket)].update(path=path))
    assert_fails(answer, f"the path of each seed has {SEEDS} hashes; the path of bucket {bucket} has not")


def test_a_path_with_sides_of_its_own(forger):
    """A seed of another bucket, which scores more, with that bucket's own path: sides follow from the bucket."""
    forger.claim()
    buckets = sorted(forger.claimed().buckets)
    stolen = forger.shown([buckets[1]])[str(buckets[1])]
    answer = forger.edit("seeds.json", lambda seeds: seeds.update({str(buckets[0]): stolen}))
    assert_fails(answer, f"leads to the root of the record; the path of bucket {buckets[0]} does not")
    assert_fails(answer, "seeds of different buckets are different")
    forger.claim()
    sides = stolen | {"sides": [0] * SEEDS}
    assert_fails(
        forger.edit("seeds.json", lambda seeds: seeds.update({str(buckets[1]): sides})), "not a bucket with seed"
    )


def test_equal_seeds_in_different_buckets(forger, words):
    """Whoever makes the tree so chooses ordinary words that score alike; all paths lead to the root."""
    forger.seeds = [forger.seeds[bucket % 7] for bucket in range(2**SEEDS)]
    forger.text = forger.mark_words(words, 130)
    code, said = forger.claim()
    assert lines_of(said, "FAILS") == ["FAILS       seeds of different buckets are different"], said
    assert code == 1


def test_another_root(forger):
    forger.claim()
    answer = forger.edit("record.json", lambda record: record | {"root": OTHER})
    assert_fails(answer, "leads to the root of the record")


@pytest.mark.parametrize(
    ("name", "value"),
    [("earlier", [OTHER]), ("looks", {"as written/1": 1.0}), ("normal_form", {"name": "x", "sha256": OTHER})],
)
def test_a_record_that_was_edited(forger, name, value):
    """Another record gives another R, and so other draws."""
    forger.claim()
    assert_fails(forger.edit("record.json", lambda record: record | {name: value}), "score: ")


def test_another_key_of_the_record(forger):
    forger.claim()
    for name, value in (
        ("label", forger.label.replace("50", "49")),
        ("commitment", OTHER),
        ("tokenizer_sha256", OTHER),
    ):
        forger.claim()
        assert_fails(
            forger.edit("record.json", lambda record, new={name: value}: record | new), f"{name} of the record"
        )


def test_two_records_of_one_key(forger):
    """The same seeds under a second record: whoever publishes both chooses between two R."""
    forger.claim()
    published = forger.publish((OTHER, "-"), (forger.record_sha256(), "-"))
    assert_fails(forger.checked(*published), "the record's SHA-256 is the one on the list")


def test_another_tokenizer(forger):
    forger.claim()
    (forger.folder / "tokenizer.json").write_bytes(forger.tokenizer.read_bytes() + b" ")
    assert_fails(forger.checked(), "SHA-256 of tokenizer.json")


def test_tokens_of_another_text(forger, plain):
    rows, forger.text = forger.tokens(), plain(130, 7)
    forger.tokens = lambda: rows  # type: ignore[method-assign]
    assert_fails(forger.claim(), "the tokens are those of the text")


def test_values_of_beacons(tmp_path, words, forger):
    """R is never taken from the claim; where the record names a beacon, only its source says which value it gave."""
    assert_fails(forger.claim(beacon_value="52df"), "where the record names one, and none where it names none")
    (tmp_path / "of").mkdir()
    of_beacon = make(tmp_path / "of", words, value="52df9d6c")
    code, said = of_beacon.claim()
    assert (code, "NOT CHECKED that 52df9d6c is what 'drand' published for '4711'" in said) == (3, True)
    assert_fails(of_beacon.claim(beacon_value="52df9d6d"), "score: ")
    assert of_beacon.claim(beacon_value=None)[0] == 1


# ---- the text as people see it


@pytest.mark.parametrize("signs", ["\u200b\u200d\u2060", " \t\n"])
def test_a_text_of_somebody_else_that_was_marked_by_signs_that_nobody_sees(forger, plain, signs):
    """Word for word what they wrote, with signs between words or blanks after the last one."""
    innocent = plain(100, 1)
    forger.text, mark, generator = innocent if signs.isspace() else "", forger.mark(), random.Random(1)
    for word in [""] * 100 if signs.isspace() else re.findall(r"\s*\S+", innocent):
        hidden = ["".join(generator.choices(signs, k=generator.randint(1, 5))) for _ in range(8)]
        forger.text = max((forger.text + one + word for one in hidden), key=lambda text: strength(mark, forger, text))
    assert re.sub(f"[{signs}]", "", forger.text) == re.sub(f"[{signs}]", "", innocent)
    code, said = forger.claim()
    assert (code, "FAILS" in said) == (3, False), said
    assert re.search(r"NOT CHECKED that \d{3} characters of the text, which programs do not show", said), said


def test_a_text_of_somebody_else_that_was_marked_by_signs_that_look_the_same(forger, plain):
    """Word for word what they wrote, in letters and digits of other styles: all held, and nothing told of it."""
    innocent = plain(40, 1)
    same = {one: [one, *styles] for one, styles in zip("aeioclmt", ALIKE.split(), strict=True)}
    forger.text, mark, generator = "", forger.mark(), random.Random(1)
    for word in re.findall(r"\s*\S+", innocent):
        alike = ["".join(generator.choice(same.get(one, [one])) for one in word) for _ in range(24)]
        forger.text = max((forger.text + one for one in alike), key=lambda text: strength(mark, forger, text))
    assert unicodedata.normalize("NFKC", forger.text) == innocent
    code, said = forger.claim()
    assert (code, "FAILS" in said) == (3, False), said
    assert re.search(r"NOT CHECKED that \d+ characters of the text, which programs do not show", said), said


@pytest.mark.parametrize(
    "pairs",
    [
        "long/Iong AI/Al Please/PIease 1984/l984 Black/BIack",
        "modern/modem colour/color it's/it\u2019s nine-ten/nine\u2013ten so,then/so,\nthen grey/gray e-mail/email",
    ],
)
def test_a_text_of_somebody_else_that_was_marked_by_signs_that_look_alike(forger, pairs):
    """Nobody can list all of them; so whoever has the post compares it."""
    forger.text, posted, mark, generator = "", "", forger.mark(), random.Random(1)
    for _ in range(100):
        words = [generator.choice(pairs.split(" ")).split("/") for _ in range(3)]
        posted += "".join(" " + first for first, _ in words)
        others = ["".join(" " + generator.choice(pair) for pair in words) for _ in range(8)]
        forger.text += max(others, key=lambda other: strength(mark, forger, forger.text[-40:] + other))
    code, said = forger.claim()
    assert (code, "FAILS" in said, "save your own copy of the post" in said) == (3, False, True), said
    code, said = checked_with_copy(forger, posted.encode())
    assert (code, "FAILS" in said, "save your own copy of the post" in said) == (3, False, False), said
    where = "by which text.txt differs from the posted copy, first at character"
    assert re.search(rf"NOT CHECKED that (\d+|more than 200) characters {where} \d+, were posted", said), said


def test_a_copy_of_the_post(tmp_path, words):
    """It is compared as text; a small p is no chance even if the few characters that differ were chosen."""
    forger = make(tmp_path, words, groups=None)
    forger.text = forger.mark_words(words, 200)
    forger.claim()
    for copy in (forger.text, forger.text + "\r\n", "\ufeff" + forger.text):
        said = checked_with_copy(forger, copy.encode())[1]
        assert "holds       text.txt is the posted copy, character for character" in said, said
    said = checked_with_copy(forger, forger.text.replace(" ", "  ", 1).encode())[1]
    assert re.search("holds +log10 p is at most .* even if 1 character by which text.txt differs", said), said
    said = checked_with_copy(forger, forger.text.replace(" ", "  ", 2).encode())[1]
    (least,) = re.findall(r"holds +log10 p is at most (-[\d.]+) even if 2 characters by which text.txt differs", said)
    (p,) = re.findall(r"log10 p, corrected for all messages, parts and tests: (-[\d.]+)", said)
    assert float(p) + 2 * math.log10(2 * check_claim.CHARACTERS) + 4 < float(least) < -24
    for copy, number in ((forger.text.replace(" ", "  ", 30), "30"), ("Other words. " * 60, "more than 200")):
        said = checked_with_copy(forger, copy.encode())[1]
        assert f"NOT CHECKED that {number} characters by which text.txt differs from the posted copy" in said, said
    assert "5ec4e7" not in checked_with_copy(forger, b"5ec4e7" * 9)[1]  # a secret that was named by mistake
    answers = [checked_with_copy(forger, b"\xff")]
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    answers += [forger.checked("--posted", file) for file in (loop, forger.folder / "text.txt")]
    for answer, why in zip(answers, ("is not UTF-8 text", "cannot be read", "not your own copy"), strict=True):
        assert (answer[0], why in answer[1]) == (2, True), answer


@given(st.text("ab", max_size=7), st.text("ab", max_size=7), st.integers(0, 7))
def test_changes_between_texts(before, after, most):
    """Beside Levenshtein's recursion."""

    @functools.cache
    def least(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        same = least(i - 1, j - 1) + (before[i - 1] != after[j - 1])
        return min(same, least(i - 1, j) + 1, least(i, j - 1) + 1)

    assert check_claim.changes_between(before, after, most) == min(least(len(before), len(after)), most + 1)


@pytest.mark.parametrize("signs", ["a", "ab", "abc"])
def test_texts_that_are_a_few_changes_away(signs, monkeypatch):
    """Counted one by one: never more of them than the bound says."""
    monkeypatch.setattr(check_claim, "CHARACTERS", len(signs))
    for length, changes in itertools.product(range(5), range(4)):
        original = (signs * 5)[:length]
        lengths = range(max(length - changes, 0), length + changes + 1)
        near = sum(
            check_claim.changes_between(original, "".join(other), changes) <= changes
            for size in lengths
            for other in itertools.product(signs, repeat=size)
        )
        assert near <= 10 ** check_claim.log10_texts_near(length, changes) * (1 + 1e-9)


def test_a_few_characters_that_readers_do_not_see_say_nothing_against_a_small_p(tmp_path, words):
    """As in an honest text with a typo: nobody can reach its p by choosing so few characters."""
    forger = make(tmp_path, words, groups=None)
    forger.text = forger.mark_words(words, 200).replace(" ", "  ", 1)
    code, said = forger.claim()
    assert (code, "FAILS" in said) == (3, False), said
    (least,) = re.findall(r"holds +log10 p is at most (-[\d.]+) even if 2 characters of the text, which programs", said)
    (p,) = re.findall(r"log10 p, corrected for all messages, parts and tests: (-[\d.]+)", said)
    assert float(p) + 2 * math.log10(2 * check_claim.CHARACTERS) + 4 < float(least) < -24
    forger.text = forger.text.replace("  ", " ").replace(" ", "  ", 9)
    assert "NOT CHECKED that 18 characters of the text, which programs do not show" in forger.claim()[1]


def test_a_copy_with_the_byte_order_mark_of_the_post(tmp_path, words):
    """It was taken off the copy alone: the same bytes differed in a character."""
    forger = make(tmp_path, words, groups=None)
    forger.text = "\ufeff" + forger.mark_words(words, 60)
    forger.claim()
    for copy in (forger.text, forger.text[1:]):
        said = checked_with_copy(forger, copy.encode())[1]
        assert "holds       text.txt is the posted copy, character for character" in said, said


def checked_with_copy(forger: ShownForger, raw: bytes) -> tuple[int, str]:
    copy = forger.folder.with_name("posted.txt")
    copy.write_bytes(raw)
    return forger.checked("--posted", copy)


def strength(mark: Mark, forger: ShownForger, text: str) -> float:
    """How much the new positions of a text's end speak for the message, beyond their mean."""
    tokens = encode(forger.tokenizer, text[-200:])
    ngrams = {tuple(tokens[at - 3 : at + 1]) for at in places_in(mark, tokens, 0, len(tokens))}
    return sum(mark.term(ngram, forger.message) - 0.25 for ngram in ngrams)


@pytest.mark.parametrize(
    ("text", "hard"),
    [
        ("Words, and\nmore.\n\nThe end.\n", 0),
        ("Words, and\r\nmore.\r\n\r\nThe end.\r\n", 0),
        ("Words,\r\nmore\n", 2),
        ("a\n b", 2),
        ("Grüße, œuvre, łódź, İş, Ελλάδα, Привет, ґанок, α and β: “all” as they stand… 3², 25 °C, 5 €, \U0001f600", 0),
        ("a  b", 2),
        ("a\n\n\nb", 3),
        ("a\n \t b\n\n\n", 4),
        ("a\u00a0b\u2003c\x1cd", 3),
        ("a\x00\x1b[8mb\x9b\ufffd", 4),
        ("a\u200bb\ufe0f\U000e0041\u2800\u3164", 5),
        ("p\u0430ss cаn", 7),
        ("cafe\u0301 n\u0323\u0307 i\u0307", 12),
        ("\u1112\u1161\u11ab \u212a \u037e", 8),
        ("\ufb01 \u2170 \U0001d5ba \uff41 \ufe8e", 7),
        ("\u217cong in 1\U0001d7eb\U0001d7fa4, \u2f00", 4),
        ("one\ufffc and\U0001d159 two", 2),
        ("joi\u2d7fned\u1039, \u17d2 a\u0651\U00016fe4", 5),
        ("\u0939\u093f\u0928\u094d\u0926\u0940", 0),
        ("\u0628\u064e\u0651, \u05d1\u05b0\u0591", 0),
        ("\u1001\u103b\u1005\u103a", 0),
        ("\u4f60\u597d, \u0e19\u0e49\u0e33, \u0641\u064a, \u05d0, T\u30b7\u30e3\u30c4 \u306e AI, \uffff\ue000", 2),
        ("it\u02bcs, \u0131 \u0430 person \u0456\u0455 \ua4f2 \u13aa \u1d04 on", 10),
        ("\u041c\u044b \u0441 \u043d\u0438\u043c, \u0438 \u043e\u043d c Python a", 2),
        ("\u0391\u039b\u039b\u0391 \u03a4\u0397\u039d THN", 3),
        ("I and l, rn and m: as they look", 0),
        ("\u6628\u65e5\u306f\u30b9\u30fc\u30d1\u30fc\u3067\u30b3\u30fc\u30d2\u30fc\u3092\u8cb7\u3063\u305f\u3002", 0),
        ("\u30b3\u4e00\u30d2 \u6f22\u30fc", 2),
        ("\u0e19\u0e49\u0e33 \u0e17\u0e33 \u0e17\u0e4d\u0e32", 1),
        ("\u0645\u0631\u062d\u0628\u0627\u060c \u0643\u064a\u0641\u061f", 0),
        ("\u0939\u093e\u0901\u0964 \u09b9\u09cd\u09af\u09be\u0981\u0964", 0),
        ("\u0661\u0662\u0663\u0661\u06f2 \u06f4", 1),
        ("a\u060c b\u1362 \u2c6d", 1),
        ("a, b, c\u201a d \u0964\u0964 \u0965 \u301c\uff5e", 3),
        ("12 34\x01 \ue000\U0001f600", 2),
        ("\u6211\u53bb\u2ed4\u53e3\u4e70\u31d0\u672c\u4e66\u3002", 2),
        ("\u05d0\u05d1: \u05d2\u05d3\u05c3 \u05d4\u05be\u05d5", 1),
        ("\u0562\u0561\u0580\u0565\u0582\u0589 \u0562\u0561:\u0562 \u0561\u058a\u0561 \u03b1\u0375", 3),
        ("a\u1d04\u1d0f\u1d20\u1d21\u1d22\ua731\u0261 \u01c3 \u01c0 \ua78c \u0251", 11),
        ("\u0256\u0254\u025b \u014b\u0253 \u0259n", 0),
        ("\u0111 \u0110 \u0110 \u00d0, \u0219i \u0219i \u015fi", 2),
        ("\u0641\u064a \u0643\u0627\u0646 \u064a\u06cc\u06a9", 2),
        ("\u0e40\u0e40\u0e21\u0e48 \u0e41\u0e21\u0e48 \u0e41", 1),
        ("\u6d77\u3078 \u3078\u30eb\u30d7 \u5c71\u30d8 \u30ab\u30e1\u30e9 \u30c6\u4e8c\u30b9 \u4e8c", 2),
        ("a\u2010b \u2212 c\u201a d\u2024 \u2215 \u2502 \U0001d17b \u2e3a", 7),
    ],
)
def test_characters_that_programs_do_not_show(text, hard):
    assert check_claim.characters_unseen(text) == hard


# ---- what was shown before


def test_a_second_claim_of_another_unit(window_forger):
    """What the first claim showed adds its mean at most; the event names what is new alone."""
    forger = window_forger
    code, said = forger.claim()
    assert (code, "FAILS" in said) == (3, False), said
    first, score = forger.claimed(), json.loads(forger.held("claim.json"))["score"]
    forger.show(first.buckets, forger.text)
    forger.unit, forger.parts, forger.correction = (0, None), None, 2.0
    code, said = forger.claim()
    assert re.search("FAILS       chance alone does this", said), said
    assert json.loads(forger.held("claim.json"))["score"] < score


def test_a_bucket_that_was_shown_is_not_scored_in_full(forger):
    """All numbers follow as if nothing had been shown before."""
    forger.claim()
    honest = json.loads(forger.held("claim.json"))
    forger.show([*forger.claimed().buckets][:50])
    names = ("score", "score_user", "log10_p", "log10_p_user", "log10_p_global", "log10_p_user_global")
    code, said = forger.claim(**{name: honest[name] for name in names})
    assert (code, lines_of(said, "FAILS")[0].startswith("FAILS       score on them: ")) == (1, True), said
    assert_fails((code, said), "score: ")
    code, said = forger.claim()
    assert (code, "FAILS" in said) == (3, False), said


@pytest.mark.costly
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_an_innocent_text_whose_low_draws_were_shown_first(tmp_path, words, plain, method):
    """Whoever leaves shown positions out frames a victim by each of 20 texts; as positions count, by none.

    That an innocent text passes by chance: 20 · 1e-3 is its bound by p, of caps alone; so the texts are fixed.
    """
    framed = 0
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        forger = ShownForger(tmp_path / str(number) / "case", method)
        forger.text = plain(500, number)
        unit = forger.claimed()
        mark, mean = unit.mark, 0.25 if method == "greenlist" else 1.0
        low = [ngram for ngram in unit.ngrams if mark.term(ngram, forger.message) <= mean]
        high = [ngram for ngram in unit.ngrams if ngram not in set(low)]
        framed += mark.log10_p(mark.score(high, forger.message), len(high)) < -10
        forger.show({mark.bucket(ngram) for ngram in low})
        assert_fails(forger.claim(), "chance alone does this")
    assert framed == 20


def test_events_that_were_changed(forger):
    forger.show(range(10))
    forger.show(range(20, 30))
    forger.claim()
    lines = forger.held("events.jsonl").splitlines()
    wrong = {
        "left out": [lines[0], lines[2]],
        "in another order": [lines[1], lines[0], lines[2]],
        "without a leaf": [lines[0].replace(json.loads(lines[0])["leaves"][0] + '","', "", 1), *lines[1:]],
        "leaves in another order": [with_leaves(lines[0], lambda leaves: leaves[::-1]), *lines[1:]],
        "no canonical JSON": [lines[0].replace(":", ": ", 1), *lines[1:]],
        "a name twice": [lines[0].replace("{", '{"number":1,', 1), *lines[1:]],
        "another number": [lines[0].replace('"number":1', '"number":2'), *lines[1:]],
        "a real number": [lines[0].replace('"number":1', '"number":1.0'), *lines[1:]],
        "capitals": [lines[0].replace("a", "A"), *lines[1:]],
        "a blank line": [lines[0], "", *lines[1:]],
        "none": [],
    }
    for what, held in wrong.items():
        forger.write("events.jsonl", "".join(f"{line}\n" for line in held))
        code, said = forger.checked()
        assert (code, "FAILS       this cannot be read" in said) == (1, True), what
    forger.write("events.jsonl", "\n".join(lines))
    assert_fails(forger.checked(), "this cannot be read")
    forger.write("events.jsonl", "".join(f"{line}\n" for line in lines))
    assert forger.checked()[0] == 3


def with_leaves(line: str, change: Any) -> str:
    event = json.loads(line)
    return json.dumps(event | {"leaves": change(event["leaves"])}, sort_keys=True, separators=(",", ":"))


def test_the_event_of_a_claim_names_what_it_shows_and_its_text(forger, monkeypatch):
    forger.show(range(10))
    forger.claim()
    lines = forger.held("events.jsonl").splitlines()
    for change in (lambda leaves: leaves[1:], lambda leaves: sorted([*leaves[1:], OTHER])):
        forger.write("events.jsonl", f"{lines[0]}\n{with_leaves(lines[1], change)}\n")
        assert_fails(forger.checked(), "name the .* seeds that no earlier one shows")
    forger.write("events.jsonl", f"{lines[0]}\n{with_leaves(lines[1], lambda leaves: sorted([*leaves, OTHER]))}\n")
    assert "FAILS" not in forger.checked()[1]  # of a claim about another part of the text
    fewer, missing = with_leaves(lines[1], lambda leaves: leaves[1:]), json.loads(lines[1])["leaves"][:1]
    later = event_after([lines[0], fewer], {*missing}, forger.text)
    forger.write("events.jsonl", f"{lines[0]}\n{fewer}\n{later}\n")
    assert "FAILS" not in forger.checked()[1]  # of a later claim about the text
    again = [json.loads(lines[0])["leaves"][0], *json.loads(lines[1])["leaves"]]
    forger.write("events.jsonl", f"{lines[0]}\n{with_leaves(lines[1], lambda leaves: sorted(again))}\n")
    assert_fails(forger.checked(), "does not follow from the lines before")  # a leaf is shown first once
    forger.write("events.jsonl", f"{lines[0]}\n")
    assert_fails(forger.checked(), "event = 2: not one of the 1 in events.jsonl")
    forger.claim(salt=SALT[::-1].hex())
    assert_fails(forger.checked(), "the claim's own event is about its text")
    for salt in (None, SALT.hex()[:-2], SALT.hex() + "00", "zz" * 16, [7]):
        assert forger.claim(salt=salt)[0] == 1
    for event in (1, 3, 0, -1, 2.0, True, None, "2"):
        assert forger.claim(event=event)[0] == 1


def test_published_heads_tell_that_no_event_was_left_out(forger):
    """A head up to the claim's event, or of a later one that the folder has, ties all events to the list."""
    forger.show(range(10))
    forger.claim()
    first, own = (hashlib.sha256(line.encode()).hexdigest() for line in forger.held("events.jsonl").splitlines())
    record = forger.record_sha256()
    for shown, code in (
        (["-"], 3),
        ([f"1:{first}"], 3),
        ([f"1:{first}", f"2:{own}"], 0),
        ([f"2:{own}"], 0),
        ([f"3:{OTHER}"], 3),
        ([f"1:{OTHER}"], 1),
        ([f"1:{OTHER}", f"2:{own}"], 1),
        ([f"2:{first}"], 1),
        ([f"2:{own}", f"2:{own}", f"3:{OTHER}"], 0),
    ):
        found, said = forger.checked(*forger.publish(*((record, one) for one in shown)))
        assert found == code, said
        assert (NO_HEAD in said) == (code == 3)
        assert ("the list has event 3; a newer folder of the same claim has it" in said) == (shown == [f"3:{OTHER}"])
        assert ("the list has the heads of these events" in said) == (code != 3)
    for shown in ([f"3:{OTHER}", f"2:{own}"], [f"2:{own}", "-"], ["-", f"2:{own}", f"1:{first}"]):
        answer = forger.checked(*forger.publish(*((record, one) for one in shown)))
        assert_fails(answer, "events of the key are only ever added: the list goes back to [012] of them")
    list_of_other = forger.publish(("-", f"2:{own}"), commitment=OTHER)
    assert NO_HEAD in forger.checked(*list_of_other)[1]


def test_later_events_change_no_score(forger):
    forger.claim()
    before = forger.held("events.jsonl")
    forger.events = before.splitlines()
    forger.show(range(2**SEEDS), "a later text")
    forger.write("events.jsonl", "".join(f"{line}\n" for line in forger.events))
    code, said = forger.checked()
    assert (code, "FAILS" in said, "2 events follow from each other; the claim's own is event 1" in said) == (
        (3, False, True)
    ), said
    last = hashlib.sha256(forger.events[-1].encode()).hexdigest()
    assert forger.checked(*forger.publish((forger.record_sha256(), f"2:{last}")))[0] == 0


# ---- units


def test_a_window_of_a_text_is_a_unit(window_forger):
    code, said = window_forger.claim()
    assert (code, "are a window of the text" in said, "FAILS" in said) == (3, True, False), said


def test_a_unit_off_the_grid(window_forger):
    begin, end = window_forger.unit
    assert end is not None
    for unit in ((begin + 1, end), (begin, end - 1), (begin - 1, end - 1), (begin, begin)):
        window_forger.unit = unit
        assert_fails(window_forger.claim(), f"tokens {unit[0] + 1} to {unit[1]} are a window of the text")


def test_a_window_of_a_normal_form_is_no_unit(window_forger):
    assert_fails(window_forger.claim(variant="normalised"), "windows are only tested in the text as written")


def test_the_best_of_many_units(window_forger):
    windows = window_forger.parts
    window_forger.parts = 1
    assert_fails(window_forger.claim(), f"parts = 1: the text has {windows} windows")
    window_forger.parts = windows - 1
    assert_fails(window_forger.claim(), "parts = ")


def test_a_part_is_no_whole_text(forger):
    forger.unit = (2, 100)
    assert_fails(forger.claim(), "the unit is the whole text: 130 tokens")
    for begin, end in ((-1, 130), (0, 131), (0, 130.0), (0, None), (True, 130), (5, 4)):
        assert_fails(forger.claim(begin=begin, end=end), "this cannot be read")


def test_positions_are_those_of_the_unit_alone(forger, words):
    """What repeats words from before the unit counts in it; scans count it once in the whole text."""
    part = forger.text
    forger.text = part + forger.mark_words(words, 60, 2) + part
    whole, count = forger.claimed(), len(forger.tokens())
    within = Unit(whole.mark, whole.tokens, count - 130, count)
    assert within.places == list(range(count - 127, count))
    assert whole.places[-1] < count - 100


# ---- what p is corrected for


def test_keys_and_looks_that_are_understated(forger, words):
    forger.correction = 1.9
    assert_fails(forger.claim(), r"correction = 1.9: 1 keys, one look of which has 0.5 of the rate")
    forger.earlier = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(3)]
    forger.text = forger.mark_words(words, 130)
    forger.correction = 2.0
    assert_fails(forger.claim(), r"correction = 2.0: 4 keys")
    forger.correction = 8.0
    code, said = forger.claim()
    assert (code, "FAILS" in said) == (3, False), said


def test_messages_and_keys_that_were_added_after_the_head(tmp_path, words):
    """A search goes through all that exist; a claim of fewer would make p too small by thousands."""
    forger = make(tmp_path, words, groups=None)
    forger.claim()
    record, key = forger.record_sha256(), forger.commitment
    head = hashlib.sha256(forger.held("events.jsonl").rstrip("\n").encode()).hexdigest()
    shown = [(record, "-"), (record, "-"), (record, "-"), (record, f"1:{head}"), (record, f"1:{head}")]
    (own,) = re.findall(r'"log10_p": (-[\d.]+)', forger.held("claim.json"))
    for second, last, times in (
        ((key, 60000), (key, 60000), 60000 * 2),
        ((OTHER, 1), (OTHER, 1), 2000 * 4),
        ((key, 2000), (key, 60000), None),
        ((key, 2000), (OTHER, 1), None),
    ):
        path, _ = forger.publish(*shown, lines=[(key, 2000), second, (key, 2000), (key, 2000), last])
        code, said = forger.checked(path, path.read_text().split("\n")[0].rsplit(" ", 1)[1])
        assert (code, "FAILS" in said) == (3 if times else 0, False), said
        found = re.findall(r"before event 1, the list .*; if all were searched, log10 p is (-[\d.]+)", said)
        expected = [float(own) + math.log10(times)] if times else []
        assert [float(p) for p in found] == pytest.approx(expected, abs=1e-3), said


def test_keys_that_were_added_between_two_claims_about_the_text(tmp_path, words):
    """The second one shows the last seeds: what was on the list before its event could be searched."""
    forger = make(tmp_path, words, groups=None)
    forger.claim()
    (line,) = forger.held("events.jsonl").splitlines()
    first, missing = with_leaves(line, lambda leaves: leaves[1:]), json.loads(line)["leaves"][:1]
    second = event_after([first], {*missing}, forger.text)
    forger.write("events.jsonl", f"{first}\n{second}\n")
    heads = [hashlib.sha256(one.encode()).hexdigest() for one in (first, second)]
    record, key = forger.record_sha256(), forger.commitment
    shown = [
        (record, "-"),
        (record, f"1:{heads[0]}"),
        (record, "-"),
        (record, f"1:{heads[0]}"),
        (record, f"2:{heads[1]}"),
    ]
    path, _ = forger.publish(*shown, lines=[(key, 2000), (key, 2000), (OTHER, 1), (key, 2000), (key, 2000)])
    code, said = forger.checked(path, path.read_text().split("\n")[0].rsplit(" ", 1)[1])
    assert (code, "after HEAD, but before event 2, the list has 2000 messages and 2 keys" in said) == (3, True), said


def test_a_look_that_the_record_does_not_have(window_forger, words):
    window_forger.looks = {"as written/1": 1.0}
    assert_fails(window_forger.claim(), "the record has the look 'parts/1'")


def test_a_normal_form_is_told(forger):
    """Python's Unicode tables are not brickscan's: whoever checks reads both."""
    forger.correction = 4.0
    forger.claim(variant="normalised")
    forger.write("scored.txt", forger.text)
    code, said = forger.checked()
    assert (code, "NOT CHECKED that scored.txt is the scored text, normalised" in said) == (3, True)


def test_a_normal_form_that_was_marked_by_signs_that_nobody_sees(tmp_path, words):
    """Whoever reads both does not see them, and text.txt may be the post all the same."""
    forger = make(tmp_path, words, groups=None)
    forger.correction, forger.text = 4.0, forger.mark_words(words, 200).replace(" ", "  ", 9)
    forger.claim(variant="normalised")
    forger.write("scored.txt", forger.text)
    unseen = "NOT CHECKED that 18 characters of the normalised text, which programs do not show"
    for code, said in (forger.checked(), checked_with_copy(forger, forger.text.encode())):
        assert (code, unseen in said) == (3, True), said
    assert "holds       text.txt is the posted copy, character for character" in said


@pytest.mark.parametrize(
    "name",
    [
        "score",
        "log10_p",
        "log10_p_global",
        "score_user",
        "log10_p_user",
        "log10_p_user_global",
        "scored",
        "scored_user",
    ],
)
def test_numbers_that_do_not_follow(forger, name):
    forger.claim()
    for factor in (1 + 1e-8, 2):
        held = json.loads(forger.held("claim.json"))[name]
        assert forger.claim(**{name: held * factor})[0] == 1
    assert forger.claim(**{name: None})[0] == 1


# ---- files


def test_names_that_stand_twice(forger):
    for name in ("seeds.json", "claim.json", "record.json"):
        forger.claim()
        held = (forger.folder / name).read_text()
        first = re.match(r'\{"([^"]+)"', held)
        assert first is not None
        forger.write(name, held.replace("{", f'{{"{first[1]}": 1, ', 1))
        assert_fails(forger.checked(), f"{name}: a field occurs twice")


@pytest.mark.parametrize("name", ["seeds.json", "events.jsonl"])
def test_trash_ends_in_a_sentence(forger, name):
    forger.claim()
    for trash in (b"", b"[]", b"{", b"null", b"3\n", b"\xff\x00\n1,2,3", b"[" * 100_000, b'{"0":1}', b'{"0":{}}\n'):
        (forger.folder / name).write_bytes(trash)
        code, said = forger.checked()
        assert (code, "FAILS" in said, "what this file never checks" in said) == (1, True, True)
        assert len(said) < 10_000
    (forger.folder / name).unlink()
    assert forger.checked()[0] == (2 if name == "seeds.json" else 1)  # without seeds it is a claim by the secret


def test_seeds_of_other_kinds(forger):
    forger.claim()
    bucket = min(forger.claimed().buckets)
    good = forger.shown([bucket])[str(bucket)]
    for wrong in (
        good | {"seed": good["seed"].upper()},
        good | {"seed": good["seed"][2:]},
        good | {"seed": 7},
        good | {"path": "".join(good["path"])},
        good | {"path": dict.fromkeys(good["path"], 1)},
        good | {"path": None},
        good | {"more": 1},
    ):
        forger.claim()
        assert_fails(forger.edit("seeds.json", lambda seeds, w=wrong: seeds.update({str(bucket): w})), "cannot be read")
    for name in (f"0{bucket}", f" {bucket}", f"{bucket}.0", "-1", "1" * 30, "\u0661"):
        forger.claim()
        assert_fails(forger.edit("seeds.json", lambda seeds, n=name: seeds.update({n: good})), "cannot be read")


def test_a_flood_of_edits(forger):
    """Of 200 edits of one byte in a file that decides, none holds."""
    forger.claim()
    draw = random.Random(1)
    for _ in range(200):
        name = draw.choice(["seeds.json", "events.jsonl", "record.json", "tokens.csv", "text.txt"])
        held = (forger.folder / name).read_bytes()
        at = draw.randrange(len(held))
        other = bytes([draw.choice([byte for byte in b"0123456789abcdef ,{" if byte != held[at]])])
        (forger.folder / name).write_bytes(held[:at] + other + held[at + 1 :])
        assert forger.checked()[0] == 1, (name, at, other)
        (forger.folder / name).write_bytes(held)
    assert forger.checked()[0] == 3


def test_a_tokenizer_that_ends_its_library_in_a_panic(forger, words, tmp_path):
    """No Exception of Python's, and still a sentence."""
    reads, panics = forger.tokenizer, tmp_path / "panics.json"
    cut = {"pre_tokenizer": {"type": "FixedLength", "length": 0}}
    panics.write_text(json.dumps(json.loads(reads.read_bytes()) | cut))
    forger.tokenizer = panics
    forger.tokens = lambda: encode(reads, forger.text)
    forger.text = forger.mark_words(words, 130)
    code, said = forger.claim()
    assert (code, "FAILS       this cannot be read: " in said, "what this file never checks" in said) == (1, True, True)
    assert "PanicException" in said


def test_a_tokenizer_that_takes_all_memory_leaves_a_last_line(forger, words, plain, tmp_path):
    """Its tokens are not those of the text. All lines that said `holds` were lost, or stood there as the answer."""
    reads, grows = forger.tokenizer, tmp_path / "grows.json"
    step = {"type": "Replace", "pattern": {"String": " "}, "content": " " * 1000}
    more = {"normalizer": {"type": "Sequence", "normalizers": [step] * 9}}
    grows.write_text(json.dumps(json.loads(reads.read_bytes()) | more))
    forger.tokenizer = grows
    tokens = encode(reads, forger.mark_words(words, 130))
    forger.tokens = lambda: tokens
    forger.text = plain(130, 7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forger, "checked", lambda: (0, ""))
        forger.claim()
    limit = 2**32
    done = subprocess.run(
        [sys.executable, "-I", check_claim.__file__, forger.folder],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    last = done.stdout.splitlines()[-2:]
    assert (done.returncode, last[0].startswith("nothing was checked to its end: ")) == (2, True), done
    assert last[1] == "the lines above are no answer"
    assert len(lines_of(done.stdout, "holds")) > 10


def test_an_old_library_makes_no_claim_void(forger, monkeypatch):
    """Releases up to 0.19 cannot open the tokenizers of later ones; whoever has one was told that it is void."""
    forger.claim()

    def refuse(data: bytes) -> None:
        raise ValueError(f"Cannot instantiate Tokenizer from buffer of {len(data)} bytes")

    monkeypatch.setattr(LIBRARY.Tokenizer, "from_buffer", refuse)
    code, said = forger.checked()
    assert (code, "FAILS" in said, "cannot open their tokenizer, as the newest may" in said) == (3, False, True), said


def test_a_library_that_splits_texts_otherwise_makes_no_claim_void(forger, monkeypatch):
    """Up to 0.15.0 it reads `<s>` of a text as a control token, up to 0.18 it leaves out `ignore_merges`.

    Up to 0.21.1 it knows no letters of Unicode 15.
    """
    forger.claim()
    other = SimpleNamespace(no_truncation=bool, no_padding=bool, encode=lambda *_, **__: SimpleNamespace(ids=[1, 2]))
    monkeypatch.setattr(LIBRARY.Tokenizer, "from_buffer", lambda data: other)
    assert forger.checked()[0] == 1
    for release in ("0.13.3", "0.15.2", "0.19.0rc1", "0.20.3", "0.21.1"):
        monkeypatch.setattr(LIBRARY, "__version__", release)
        code, said = forger.checked()
        assert (code, "FAILS" in said, f"tokenizers {release} is too old" in said) == (3, False, True), said


@pytest.mark.parametrize("where", ["Path.read_bytes", "json.loads", "spell"])
def test_too_little_memory_makes_no_claim_void(forger, where, monkeypatch, tmp_path):
    """As for a long text on a small machine: it was told that the claim is void, or there was a traceback."""
    forger.claim()
    posted = tmp_path / "posted.txt"
    posted.write_text(forger.text)

    def refuse(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(f"scanner.evidence.check_claim.{where}", refuse)
    code, said = forger.checked("--posted", posted)
    *_, told, last = said.splitlines()
    assert (code, "FAILS" in said) == (2, False), said
    assert told == "nothing was checked to its end: there is too little memory here"
    assert last == "the lines above are no answer"


@pytest.mark.parametrize("function", ["exists", "iterdir", "read_bytes"])
def test_a_folder_that_cannot_be_read_here_makes_no_claim_void(forger, function, monkeypatch):
    """As one of another owner: the claim's is readable by whoever made it alone."""
    forger.claim()

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, function, refuse)
    code, said = forger.checked()
    assert (code, len(said.splitlines())) == (2, 1)
    assert said.startswith("nothing was checked: '")
    assert said.endswith("' cannot be read (Permission denied)\n")


def test_more_tokens_than_a_text_has_are_refused_unread(forger, monkeypatch):
    """Each line takes thirty times its bytes: a file below the limit of files would take all memory."""
    forger.claim()
    monkeypatch.setattr(check_claim, "MOST_TOKENS", 100)
    assert_fails(forger.checked(), "tokens.csv has more than 100 lines")


def test_a_file_that_would_take_all_memory_is_refused_unread(forger):
    """JSON takes thirty times its size once it is read, and a file of blanks a thousandth of it on the way."""
    assert {"tokens.csv", "tokenizer.json"} < {*check_claim.LARGEST_OF}
    for name in check_claim.LARGEST_OF:
        forger.claim()
        with (forger.folder / name).open("ab") as file:
            file.truncate(check_claim.LARGEST_OF[name] + 1)
        assert_fails(forger.checked(), f"'{name}' has more than {check_claim.LARGEST_OF[name]} bytes")
        (forger.folder / name).unlink()


def test_no_claim_is_made_with_a_file_that_would_be_refused(forger, monkeypatch):
    forger.claim()
    files = check_claim.read_folder(forger.folder)
    assert check_claim.failing(files, None) == []
    monkeypatch.setitem(check_claim.LARGEST_OF, "tokenizer.json", 100)
    assert check_claim.failing(files, None) == ["'tokenizer.json' has more than 100 bytes"]


def test_no_line_holds_a_file_of_whoever_makes_the_claim(forger):
    """An error of Python's shows all bytes of what it cannot read."""
    forger.claim()
    (forger.folder / "seeds.json").write_bytes(b"\xff" * 100_000)
    code, said = forger.checked()
    assert (code, len(said) < 20_000) == (1, True)
