"""Texts whose mark somebody hid: their normalised text, and the verdict from both variants."""

import itertools
import json
import re
import time
import unicodedata
from importlib.resources import files

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.detection.attribution import BatchOrigin, OpenedKey
from scanner.detection.detector import Detector
from scanner.detection.rules import Rules
from scanner.printable import (
    BLANKS,
    COMBINING_LINES,
    CONTROLS,
    INVISIBLE,
    LINE_ENDS,
    LOOK_ALIKES,
    MOST_COMBINING,
    SCRIPTS,
    STYLED,
    compose,
    skeleton,
)
from scanner.registry import Holders
from scanner.scan_plan import ErrorShares
from scanner.text import normal_form
from scanner.text.normal_form import (
    _FOREIGN,
    _MIXED,
    counts_of,
    in_capitals,
    in_short_lines,
    normal_forms,
    normalise,
    normalise_all,
)
from scanner.text.quoting import Utf8
from scanner.text.transport import without_transport
from schemas.tables import DOCUMENTS
from tests.support.evasions import EVASIONS
from tests.support.opened import opened
from tests.support.two_keys import message_of

ORIGIN = BatchOrigin("scan", "shard", "/in/a.parquet")
RATE = 1e-6
PLAIN = "The cat sat on a mat. It saw me, and I saw it! So we couldn't leave the house, or so it seems.\nThen we ate."


def hidden(text: str) -> str:
    return "\u200b".join(text)


@given(st.text("abcжеоαΩԱé1_²٣ ,\u0301中", max_size=12))
def test_words_of_letters_of_two_scripts_are_found_before_they_are_mended(text):
    runs = itertools.groupby(text, lambda letter: letter.isalnum() and not letter.isdecimal())
    words = [[letter in _FOREIGN for letter in run] for of_letters, run in runs if of_letters]
    assert bool(_MIXED.search(text)) == any(len(set(word)) == 2 for word in words)


UNDONE = [*EVASIONS][: [*EVASIONS].index("lower case")]
"""Evasions of a text whose normal form is the text again, or the text in one line where line ends were lost."""


def in_one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", UNDONE)
def test_each_evasion_is_undone(name):
    for evaded in (EVASIONS[name](PLAIN), hidden(EVASIONS[name](PLAIN))):
        assert evaded != PLAIN
        assert in_one_line(normalise(evaded)) == in_one_line(PLAIN)
        assert normalise(evaded) == PLAIN or "for" in name


def test_texts_have_together_the_normal_form_that_each_has_by_itself():
    texts = [PLAIN, *(evade(PLAIN) for evade in EVASIONS.values()), "", hidden(PLAIN), PLAIN]
    assert normalise_all(texts) == [normalise(text) for text in texts]
    assert normalise_all([]) == []


def test_an_evasion_that_is_not_undone_changes_no_other_text():
    assert len(EVASIONS) == 45
    for name in {*EVASIONS} - {*UNDONE}:
        assert in_one_line(normalise(EVASIONS[name](PLAIN))) != in_one_line(PLAIN), name


def test_two_evasions_together_are_undone():
    for one, two in itertools.permutations(
        ("tabs for blanks", "title case", "twelve Cyrillic look-alikes throughout"), 2
    ):
        evaded = EVASIONS[one](EVASIONS[two](PLAIN))
        assert in_one_line(normalise(hidden(evaded))) == in_one_line(PLAIN), (one, two)


RUSSIAN = "Мы купили новый iPhone и старый Windows вчера, а также сок. Ещё я видел кота у окна, и он спал до вечера!"


def test_words_of_two_languages_stay_and_each_gets_its_own_letters_back():
    latin_for_cyrillic = str.maketrans("асеорхуАС", "aceopxyAC")
    assert normalise(RUSSIAN) == RUSSIAN
    assert normalise(hidden(RUSSIAN)) == RUSSIAN
    assert normalise(RUSSIAN.translate(latin_for_cyrillic)) == RUSSIAN
    both = "It was a nice house, and so we bought a copy. " + RUSSIAN
    assert normalise(hidden(both)) == both
    assert normalise(EVASIONS["one Cyrillic look-alike a word"](both)) == both


def test_a_capital_word_of_look_alikes_goes_with_its_neighbours():
    assert normalise("sоmе оthеr wоrds аnd а СОАТ of red") == "some other words and a COAT of red"
    assert normalise("sоmе оthеr wоrds. Потом а СОАТ") == "some other words. Потом а СОАТ"


def test_other_texts_stay_what_they_are():
    for text in (
        "",
        PLAIN,
        "def f(x):\n    if x:\n        return 1",
        "Привет, мир: это русский текст, и word по-английски.",
        "Ελληνικά και English.",
        "café, naïve, 東京, عربي, ภาษาไทย",
        "123 456",
        RUSSIAN,
        "Die Katze und der Hund gingen durch den Wald, und dort sahen sie ein Haus aus Brot mit Fenstern aus Zucker.",
        "Die drei Kinder, Anna, Peter und Paul Meier aus Bonn am Rhein, lasen am Abend ein Buch.",
        "class A:\n" + "    def f(self):\n\t\treturn 1\n\n" * 9,
        "Roses are red,\nViolets are blue,\nSugar is sweet,\nAnd so are you.\n" * 3,
        "中文，标点！１、２。" * 9,
        "α + βx = γ, λ → 0; μm, kΩ",
    ):
        assert normalise(text) == text


def test_few_changes_are_left_alone():
    assert normalise("two  spaces" + "x" * 98) == "two  spaces" + "x" * 98
    assert normalise("two  spaces" + "x" * 88) == "two spaces" + "x" * 88


SIGNS = st.text(
    st.sampled_from(
        "aAbiIsStzZ .!?\n\t\r'\"()-_19\u00ad\u200b\u200d\u00a0\u2003\x00\x0b\x1f\x85\u2028аАвВгсСтТьЬіІεΕνΝλοΟσςΣԱհͰᎠꓐⲅ"
        "éÉßẞıİŉﬁſǅK\u212b\u0301\u0327\u0338\u0332\u0344ＡａＢ！，Ⓐ🅰ᴀʜ⒜ℌ𝐚𝟘ª日の한ᄀ\u1161\u11a8ﷺ\u064b\u0651\u093c\u09be\u09c7\u0958"
    ),
    max_size=60,
)
"""Texts of characters that the rules speak of, and of such as Unicode makes hard."""


@given(SIGNS | st.text() | st.builds("".join, st.lists(SIGNS, max_size=5).map(lambda some: [one * 9 for one in some])))
def test_what_is_normalised_stays_so_and_hides_nothing(text):
    once = normalise(text)
    assert normalise(once) == once
    if once != text:
        assert not re.search("[\u200b\u00ad\u2060\ufeff\u00a0\x00\x1f\x85\r]", once)


def plain_counts(text: str) -> dict[str, int]:
    """As Counts, line by line and word by word."""
    lines = [line for line in text.split("\n") if line.strip(" \t")]
    words = re.findall(r"[a-zA-Zа-я]+", text)
    bodies = [line.lstrip(" \t") for line in text.split("\n")]
    ended = [body + "\n" * (i < len(bodies) - 1) for i, body in enumerate(bodies)]
    pairs = [pair for body in ended if body.strip(" \t\n") for pair in itertools.pairwise(body)]
    doubled = sum(two == "\t" or (one in " \t" and two in " \t\n") for one, two in pairs)
    mixed = len(re.findall("(?=[a-zA-Z][а-я]|[а-я][a-zA-Z])", text))
    return {
        "changes": doubled + mixed + sum(text.count(sign) for sign in "\u200b\u00a0\r𝐚"),
        "words": len(re.findall(r"[^ \t\n]+", text)),
        "lines": len(lines),
        "indented": sum(line[0] in " \t" for line in lines),
        "initials": len(words),
        "great_initials": sum(word[0].isupper() for word in words),
        "inner": sum(len(word) - 1 for word in words),
        "great_inner": sum(c.isupper() for word in words for c in word[1:]),
    }


@given(st.lists(st.text(st.sampled_from("abAZвя 1.\t\n\u200b\u00a0\r𝐚日"), max_size=400), max_size=4))
def test_counts_are_those_of_a_plain_reading(texts):
    stored = [text.encode() for text in texts]
    data = np.frombuffer(b"".join(stored), np.uint8)
    counts = counts_of(Utf8(data, np.cumsum([0, *map(len, stored)])))
    for place, text in enumerate(texts):
        assert {name: int(field[place]) for name, field in counts._asdict().items()} == plain_counts(text)


@pytest.mark.seconds
def test_one_class_has_all_characters_that_are_left_out_or_stand_for_another():
    kinds = (INVISIBLE, CONTROLS, BLANKS, LINE_ENDS, COMBINING_LINES)
    for letter in map(chr, range(0x110000)):
        assert bool(normal_form._HIDES.match(letter)) == any(kind.match(letter) for kind in kinds), hex(ord(letter))


def utf8(texts: list[str]) -> Utf8:
    stored = [text.encode() for text in texts]
    return Utf8(np.frombuffer(b"".join(stored), np.uint8), np.cumsum([0, *map(len, stored)]))


_PLAIN_DOUBLED = re.compile(r"(?<=\S)(?:\t[ \t]*+| [ \t]++)(?=\S)")
_PLAIN_WIDE = re.compile("(?<=[０-９Ａ-Ｚａ-ｚ])[！-／：-＠［-｀｛-～]")
_PLAIN_SENTENCE = re.compile(r"(?:\A\s*+|[.!?…]['\"”’)\]]*+\s++|(?<!\s)[^\S\n]*+\n\s*+)['\"“‘(\[]*+[^\W\d_]|\bi\b")


def plain_characters(text: str) -> str:
    text = INVISIBLE.sub("", BLANKS.sub(" ", CONTROLS.sub("", LINE_ENDS.sub("\n", text))))
    text = _PLAIN_WIDE.sub(lambda sign: chr(ord(sign[0]) - 0xFEE0), COMBINING_LINES.sub("", text))
    return compose(normal_form._words_of_one_script(compose(text.translate(str.maketrans(dict(STYLED))))))


def plain_form(text: str) -> str:
    """The normal form of one text, counted anew after each change, and looked through for all that hides in it."""
    text = without_transport(text)
    counts = counts_of(utf8([text]))
    changed = counts.changes[0] and counts.changes[0] * normal_form.CHARACTERS_A_CHANGE >= len(text)
    for _ in range(normal_form._ROUNDS if changed or in_capitals(counts)[0] or in_short_lines(counts)[0] else 0):
        text = normal_form._TRAILING.sub("", _PLAIN_DOUBLED.sub(" ", plain_characters(text)))
        if in_short_lines(counts_of(utf8([text])))[0]:
            text = " ".join(text.split())
        if in_capitals(counts_of(utf8([text])))[0]:
            text = _PLAIN_SENTENCE.sub(normal_form._with_capital, text.lower())
    return text


_WORDS = (
    "So",
    "it",
    "is.",
    "THE",
    "СТОЛ",
    "он",
    "a\u0430b",
    "x\u200bx",
    "\u00a0",
    "\t",
    "=\n",
    "&amp;",
    "\x0b",
    "\x1c",
    "i",
    'I?"',
    "’(ß",
    "5_",
    "ＡＢ！３。",
    "𝐁𝟐ᴀ",
    "e\u0301\u0344",
    "\u0332",
)
_WRITTEN = st.lists(st.sampled_from([*_WORDS, " ", " ", "\n", "\n"]), max_size=60).map("".join)


@pytest.mark.seconds
@given(st.lists(_WRITTEN, max_size=5), st.sampled_from([*EVASIONS]))
def test_texts_of_a_batch_have_the_forms_that_each_has_by_itself(texts, evasion):
    texts = [*texts, PLAIN, EVASIONS[evasion](PLAIN), *map(str.upper, texts)]
    forms = normal_forms(texts, utf8(texts))
    assert [*forms] == sorted(forms)
    assert [forms.get(place, text) for place, text in enumerate(texts)] == [*map(plain_form, texts)]
    assert all(form != texts[place] for place, form in forms.items())


def test_texts_of_settled_characters_are_their_own_plain_form():
    settled = [letter for letter in map(chr, range(0xD800)) if not normal_form._unsettled().match(letter)]
    draw = np.random.default_rng(1)
    assert len(settled) > 50_000
    for _ in range(20):
        text = "".join(np.array(settled)[draw.permutation(len(settled))].tolist())
        assert plain_characters(text) == text


def test_a_second_round_joins_lines_where_small_letters_are_counted_otherwise_than_their_capitals():
    text = "1 A\u2c62A\n" * 9
    assert normalise(text) == plain_form(text) == " ".join(["1 a\u026ba"] * 9)


def test_marks_that_make_one_letter_with_another_are_counted():
    """Unicode's own composition is the reference; texts that are composed already count nothing."""
    for code in (*range(0xC0, 0x250), *range(0x1E00, 0x2000), *range(0x900, 0xE00), 0x3054, 0x30F7):
        letter = chr(code)
        apart = unicodedata.normalize("NFD", letter)
        if unicodedata.normalize("NFC", letter) == letter and len(apart) == 2:
            assert normalise(apart * 9) == letter * 9
        assert normalise("1" + letter) in ("1" + letter, "1" + unicodedata.normalize("NFC", letter))


def seconds_a_byte(text: str) -> float:
    data = np.frombuffer(text.encode(), np.uint8)
    texts, taken = Utf8(data, np.array([0, len(data)])), []
    for _ in range(9):
        begin = time.thread_time()
        counts_of(texts)
        taken.append(time.thread_time() - begin)
    return min(taken) / len(data)


def test_line_ends_cost_no_more_than_blanks():
    """Where a branch was taken at each line end, short lines cost 1.25 times as much, and mixed texts 2.4 ms a MB."""
    draw = np.random.default_rng(1)
    words = ["né"[one % 2] * length for one, length in enumerate(draw.integers(1, 9, 200_000).tolist())]
    ends = draw.choice([" ", "\n", "\n  "], len(words), p=[0.8, 0.1, 0.1]).tolist()
    lines = "".join(map("".join, zip(words, ends, strict=True)))
    assert seconds_a_byte(lines) < 1.12 * seconds_a_byte(" ".join(words))


def source_of_look_alikes(name: str) -> dict:
    package = files(pytest.importorskip("confusable_homoglyphs", reason="pip install -e '.[dev]' installs it"))
    return json.loads((package / f"{name}.json").read_text(encoding="utf-8"))


def test_look_alikes_are_those_of_their_source():
    source, wanted = source_of_look_alikes("confusables"), {"κ": "k", "χ": "x"}
    others = [block for script, blocks in SCRIPTS.items() if script != "Latin" for block in blocks]
    for letter in (chr(code) for block in others for code in block if code not in (0x37A, 0x1FBE)):
        latin = [one["c"] for one in source.get(letter, ()) if re.fullmatch("[A-Za-z]", one["c"])]
        if latin:
            (wanted[letter],) = "I" if latin == ["l"] and letter in "ІΙⲒ" else latin
    assert wanted == LOOK_ALIKES


def test_the_source_of_look_alikes_is_of_version_15_1():
    """Characters that a version added (DerivedAge.txt): 15.1 ideographs and signs, 16.0 Cyrillic, Garay and strokes."""
    ranges = source_of_look_alikes("categories")["code_points_ranges"]
    for code, there in ((0x2EBF0, True), (0x31EF, True), (0x1C89, False), (0x10D40, False), (0x31E4, False)):
        assert any(first <= code <= last for first, last, *_ in ranges) is there, hex(code)


@pytest.mark.parametrize(
    ("name", "other"), [("ϲarol", "carol"), ("ϒork", "York"), ("ϱaul", "paul"), ("Ϲarol", "Carol")]
)
def test_names_in_greek_letters_of_other_forms_look_alike(name, other):
    """NFKC makes usual Greek letters of them, which look like none of Latin."""
    assert skeleton(name) == skeleton(other)
    assert normalise(f"{name} saw it") == f"{other} saw it"


@pytest.mark.parametrize("text", ["AB" + "\n" * 40_000, "A" + "\u0315\u0301" * 20_000, "ab " + "\t" * 40_000])
def test_long_runs_take_no_time(text):
    """The marks took 8 CPU seconds, the line ends 20, when time went by the square of a run's length."""
    begin = time.thread_time()
    normalise(text)
    skeleton(text)
    assert time.thread_time() - begin < 1


@pytest.mark.seconds
@given(
    st.lists(st.tuples(st.sampled_from("a\u00e9\u65e5\U0001f600"), st.sampled_from([0, 1, 30, 31, 40]), st.randoms()))
)
def test_runs_of_marks_are_cut_as_a_plain_reading_cuts_them(letters):
    marks = "\u0301\u0323\u05b0\u302a\U0001d165\U0001e944"
    text = "".join(letter + "".join(drawn.choices(marks, k=count)) for letter, count, drawn in letters)
    kept, run = [], 0
    for character in text:
        run = run + 1 if unicodedata.combining(character) else 0
        kept.append(character if run <= MOST_COMBINING else "")
    assert compose(text) == unicodedata.normalize("NFC", "".join(kept))


def test_marks_beyond_thirty_go():
    assert compose("e" + "\u0316" * 99) == "e" + "\u0316" * 30 == compose("e" + "\u0316" * 30)
    assert normalise("a\u200b\u200b" + "e" + "\u0316" * 99) == "ae" + "\u0316" * 30


@pytest.fixture(scope="module")
def keys(registry) -> list[OpenedKey]:
    return opened(registry)


@pytest.fixture
def rows_of(registry, keys):
    def scan(texts: list[str], *, normalised: bool, each: float = 0.5) -> list[dict]:
        detector = Detector(
            keys,
            Holders.load(registry, [test.key.key_id for test in keys]),
            Rules(RATE, len(keys), weights=ErrorShares(as_written=each, normalised=each if normalised else None)),
        )
        rows = [{"row": i, "text": text.encode()} for i, text in enumerate(texts)]
        verdicts, refused, *_ = detector.score_batch(pa.RecordBatch.from_pylist(rows, DOCUMENTS), ORIGIN)
        assert not len(refused)
        verdicts.validate(full=True)
        return verdicts.to_pylist()

    return scan


@pytest.mark.seconds
def test_a_verdict_is_the_better_of_two_texts_under_twice_the_keys(rows_of, marked, plain, registry):
    alice = message_of(registry, "green", "alice")
    texts = [hidden(marked(alice, 60, 1)), marked(alice, 60, 2), plain(60, 3), plain(60, 4).replace(" ", "  ")]
    texts += ["  ".join(plain(30, seed).split(" ")) + plain(30, seed + 1) for seed in range(40)]
    texts += ["a  b", "", "x" * 3, hidden("ab")]
    both = rows_of(texts, normalised=True)
    as_they_are, plain_ones = (rows_of(some, normalised=False) for some in (texts, [normalise(text) for text in texts]))
    undivided = rows_of(texts, normalised=False, each=1.0)
    seen = set()
    for text, row, raw, other, whole in zip(texts, both, as_they_are, plain_ones, undivided, strict=True):
        second = normalise(text) != text and other["message"] is not None
        second = second and (raw["message"] is None or other["log10_p_global"] < raw["log10_p_global"])
        wanted = other if second else raw if normalise(text) != text else whole
        assert row["variant"] == ("normalised" if second else None)
        same = ("status", "tokens", "scored", "key_id", "message", "score", "log10_p", "log10_p_global", "keys_tested")
        if wanted["message"] is not None:
            assert {name: row[name] for name in same} == {name: wanted[name] for name in same}
        assert row["flagged"] == (wanted["flagged"] or (raw["flagged"] and normalise(text) != text))
        assert row["text_sha256"] == raw["text_sha256"]
        seen.add(row["variant"])
    assert seen == {"normalised", None}
    assert [(row["user_id"], row["variant"]) for row in both[:4]] == [
        ("alice", "normalised"), ("alice", None), (None, None), (None, both[3]["variant"]),
    ]  # fmt: skip


def test_messages_that_pass_in_different_texts_name_nobody(rows_of, marked, registry):
    """One message passes in the text as it stands, another in the normalised text, which shows the hidden part."""
    alice, bob = (message_of(registry, "green", user) for user in ("alice", "bob"))
    row = rows_of([marked(bob, 90, 5) + hidden(marked(alice, 120, 6))], normalised=True)[0]
    assert (row["flagged"], row["naming"], row["user_id"]) == (True, "ambiguous", None)


def test_a_message_that_passes_in_both_texts_is_named(rows_of, marked, registry):
    alice = message_of(registry, "green", "alice")
    row = rows_of([marked(alice, 90, 7) + "  and" + hidden(" more")], normalised=True)[0]
    assert (row["naming"], row["user_id"]) == ("named", "alice")


def test_without_difference_nothing_changes(rows_of, marked, plain, registry):
    alice = message_of(registry, "green", "alice")
    texts = [marked(alice, 60, 8), plain(60, 9), plain(5, 1)]
    for one, two in zip(rows_of(texts, normalised=False, each=1.0), rows_of(texts, normalised=True), strict=True):
        assert {name for name in one if one[name] != two[name]} <= {"scanned_at"}
