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
from scanner.error_shares import ErrorShares
from scanner.look_alikes import SCRIPTS, STYLED
from scanner.looks.normal_form.bidirectional import as_read
from scanner.looks.normal_form.normal_form import CHARACTERS_A_CHANGE, WORDS_A_CAPITAL, with_plain_characters
from scanner.looks.normal_form.transport import without_transport
from scanner.looks.normalising import normal_forms, normalise, normalise_all
from scanner.printable import (
    BLANKS,
    COMBINING_LINES,
    CONTROLS,
    INVISIBLE,
    LOOK_ALIKES,
    MOST_COMBINING,
    compose,
    skeleton,
)
from scanner.registry import Holders
from scanner.text.utf8 import Utf8
from schemas.tables import DOCUMENTS
from tests.support.evasions import EVASIONS
from tests.support.opened import opened
from tests.support.two_keys import message_of

ORIGIN = BatchOrigin("scan", "shard", "/in/a.parquet")
RATE = 1e-6
PLAIN = "The cat sat on a mat. It saw me, and I saw it! So we couldn't leave the house, or so it seems.\nThen we ate."
FORM = PLAIN.replace("\n", " ")


def hidden(text: str) -> str:
    return "\u200b".join(text)


UNDONE = {*[*EVASIONS][: [*EVASIONS].index("lower case")], "HTML's numbers for letters"} - {
    "blank lines for blanks",
    "armour of C2PA, empty Braille for blanks",
}
"""Evasions of a text whose normal form is that of the text."""


@pytest.mark.parametrize("name", sorted(UNDONE))
def test_each_evasion_is_undone(name):
    evaded = EVASIONS[name](PLAIN)
    for text in [evaded, hidden(evaded)][: 1 if "HTML" in name else 2]:
        form = normalise(text)
        assert form[0].upper() + form[1:] == FORM


def test_texts_have_together_the_normal_form_that_each_has_by_itself():
    texts = [PLAIN, *(evade(PLAIN) for evade in EVASIONS.values()), "", hidden(PLAIN), PLAIN]
    assert normalise_all(texts) == [normalise(text) for text in texts]
    assert normalise_all([]) == []


def test_an_evasion_that_is_not_undone_changes_no_other_text():
    for name in {*EVASIONS} - UNDONE:
        assert normalise(EVASIONS[name](PLAIN)) != FORM, name


def test_two_evasions_together_are_undone():
    names = ("tabs for blanks", "title case", "twelve Cyrillic look-alikes throughout", "line ends for blanks")
    for one, two in itertools.permutations(names, 2):
        assert normalise(hidden(EVASIONS[one](EVASIONS[two](PLAIN)))) == FORM, (one, two)


@pytest.mark.parametrize("every", [1, 2, 3, 5, 8, 12])
def test_no_share_of_capitals_or_line_ends_is_kept(every):
    """A share below the limits of before hid a mark: 3 capitals in 5 words, 3 words a line."""
    words = PLAIN.split()
    capitals = [w.capitalize() if i % every == 0 else w for i, w in enumerate(words)]
    assert normalise(" ".join(capitals)) == FORM
    assert normalise("".join(w + ("\n" if i % every == 0 else " ") for i, w in enumerate(words)).rstrip()) == FORM
    assert normalise("".join(w + ("\n    " if i % every == 0 else " ") for i, w in enumerate(words)).rstrip()) == FORM


RUSSIAN = "Мы купили новый хлеб и старый стол вчера, а также сок. Ещё я видел кота у окна, и он спал до вечера!"


def test_words_of_two_languages_stay_and_each_gets_its_own_letters_back():
    latin_for_cyrillic = str.maketrans("асеорхуАС", "aceopxyAC")
    assert normalise(RUSSIAN) == RUSSIAN
    assert normalise(hidden(RUSSIAN)) == RUSSIAN
    assert normalise(RUSSIAN.translate(latin_for_cyrillic)) == RUSSIAN
    both = "It was a nice house, and so we bought a copy. " + RUSSIAN
    assert normalise(hidden(both)) == both
    assert normalise(EVASIONS["one Cyrillic look-alike a word"](both)) == both


def test_a_capital_word_of_look_alikes_goes_with_its_neighbours():
    assert normalise("sоmе оthеr wоrds аnd а СОАТ of red") == "some other words and a coat of red"
    assert normalise("sоmе оthеr wоrds. Потом а СОАТ") == "some other words. Потом а соат"


@pytest.mark.parametrize("letters", ["ⅰⅽⅾⅿⅼ", "ꬲ", "ჿ", "ı", "ı̇", "ᏟᎪᎢ", "ⲟⲣ", "ᑌᒪ", "೦", "𐐬", "ɑɡ", "ⅷ"])
def test_look_alikes_of_every_script(letters):
    """Roman numerals, a blackletter e and Georgian, Turkish and other letters stood for Latin ones: 0 of 148 found."""
    plain = {"ı̇": "i", "ⅷ": "viii"}.get(letters) or "".join(STYLED.get(c) or LOOK_ALIKES.get(c) or "i" for c in letters)
    assert re.fullmatch("[A-Za-z]+", plain)
    assert normalise(f"abc{letters}xyz and so on") == f"abc{plain.lower()}xyz and so on"


def test_letters_of_languages_stay():
    for text in (
        "Kız ışıkta kırk kişi gördü, ağaç altında oturdu.",
        "Það er þorskur í ánni og hann er stór, þetta er satt.",
        "모든 글은 사람이 쓴 것이다 ㅋㅋㅋ ㅠㅠ.",
        "ของไทย กับ ลาว ນຳ້",
        "می‌خواهم",
    ):
        assert normalise(unicodedata.normalize("NFD", text)) == normalise(text)
        assert normalise(text) in (text, text.replace("\u200c", ""))


@pytest.mark.seconds
def test_decomposed_characters():
    """All composed characters of Unicode; of Korean ones, as macOS writes them, none had the form of its letter."""
    composed = [c for c in map(chr, range(0x110000)) if unicodedata.normalize("NFD", c) != c]
    assert len(composed) > 12_113  # those of Chinese, whose form is another character, with them
    decomposed = [unicodedata.normalize("NFD", c) for c in composed]
    assert normalise_all(decomposed) == normalise_all(composed)
    words = [f"the {c}{c} of {c}" for c in composed]
    assert normalise_all([unicodedata.normalize("NFD", text) for text in words]) == normalise_all(words)


def test_overrides_of_direction():
    """Words reversed between U+202E and U+202C are shown as they were."""
    reversed_words = " ".join(f"\u202e{word[::-1]}\u202c" for word in FORM.split())
    assert normalise(reversed_words) == FORM
    assert normalise("\u202e" + FORM[::-1]) == FORM
    assert as_read("a \u202e(cb) d\u202c e") == "a d (bc) e"
    assert as_read("\u202eg\u202dabc\u202cf\u202c") == "fabcg"
    assert as_read("\u202eאבג\u202c") == "אבג"
    assert as_read("\u202dגבא\u202c") == "אבג"
    assert as_read("\u2067abc\u2069 \u2066d\u202eab\u2069c\u202c\ne\u202c") == "abc dbac\ne"
    assert as_read("\u202e" * 200 + "ab" + "\u202c" * 200 + "cd").endswith("cd")


@pytest.mark.parametrize("word", ["auch", "für", "ist", "über", "werden", "zur"])
def test_each_german_word_tells_a_sentence(word):
    sentence = f"Katze {word} Hund Wald Haus Brot."
    assert normalise(sentence) == sentence
    assert normalise(sentence.replace(word, word + "x")) != sentence


def test_turkish_keeps_what_other_texts_keep():
    """Its dotless i is no sign of a disguise, so that a single unseen character leaves the text as it is."""
    turkish = "Bu sayfada, seçilen hücrelerin içeriğini ve dışarıdan alınan sayıları nasıl sıraladığınız anlatılır. "
    turkish = turkish * 4 + "Son."
    assert normalise(turkish + "\ufe0e") == turkish + "\ufe0e"
    assert normalise(hidden(turkish)) == turkish


def test_german_sentences_keep_their_nouns():
    german = "Die Katze und der Hund gingen durch den Wald, und dort sahen sie ein Haus aus Brot."
    assert normalise(german) == german
    assert normalise(hidden(german)) == german
    assert normalise(german.upper()) != german  # its nouns are lost


def test_other_texts_stay_what_they_are():
    for text in (
        "",
        FORM,
        "Привет, это русский текст, и word по-английски.",
        "Ελληνικά και english.",
        "café, naïve, 東京, عربي, ภาษาไทย",
        "123 456",
        RUSSIAN,
        "中文，标点！１、２。\n" * 9,
        "α + βx = γ, λ → 0; μm",
        "- milk\n- Eggs\n\n1. Bread\n2. salt",
    ):
        assert normalise(text) == text


def test_few_changes_are_left_alone():
    few = "word " * (CHARACTERS_A_CHANGE // 5)
    assert normalise("two  spaces " + few) == "two  spaces " + few
    assert normalise("two  spaces " + few[:200]) == "two spaces " + few[:200]
    assert normalise("a Name " + "word " * WORDS_A_CAPITAL) == "a Name " + "word " * WORDS_A_CAPITAL
    assert normalise("a Name " + "word " * (WORDS_A_CAPITAL - 2)) == "a name " + "word " * (WORDS_A_CAPITAL - 2)


SIGNS = st.text(
    st.sampled_from(
        "aAbiIsStzZ .!?\n\t\r'\"()-_19\u00ad\u200b\u200d\u00a0\u2003\x00\x0b\x1f\x85\u2028аАвВгсСтТьЬіІεΕνΝλοΟσςΣԱհͰᎠꓐⲅ"
        "éÉßẞıİŉﬁſǅK\u212b\u0301\u0327\u0338\u0332\u0344ＡａＢ！，Ⓐ🅰ᴀʜ⒜ℌ𝐚𝟘ª日の한ᄀ\u1161\u11a8ﷺ\u064b\u0651\u093c\u09be\u09c7\u0958"
    ),
    max_size=60,
)
"""Texts of characters that the rules speak of, and of such as Unicode makes hard."""


@given(SIGNS | st.text() | st.builds("".join, st.lists(SIGNS, max_size=5).map(lambda some: [one * 9 for one in some])))
def test_what_is_normalised_hides_nothing(text):
    once = normalise(text)
    if once != text and len(once) < CHARACTERS_A_CHANGE:
        assert not re.search("[\u200b\u00ad\u2060\ufeff\u00a0\x00\x1f\x85\r]", once)


def utf8(texts: list[str]) -> Utf8:
    stored = [text.encode() for text in texts]
    return Utf8(np.frombuffer(b"".join(stored), np.uint8), np.cumsum([0, *map(len, stored)]))


OF_SCRIPT = {letter: script for script, runs in SCRIPTS.items() for run in runs for letter in map(chr, run)}


def is_cased(letter: str) -> bool:
    script = OF_SCRIPT.get(letter)
    return script in ("Latin", "Greek", "Cyrillic", "Armenian") and letter.lower() != letter.upper()


def disguised(text: str) -> bool:
    """Whether a text has so many characters that a disguise may have left."""
    signs = [INVISIBLE, CONTROLS, BLANKS, COMBINING_LINES, re.compile("[\r\x85\u2028\u2029]")]
    count = 0
    shown = ""
    for i, letter in enumerate(text):
        if any(kind.match(letter) for kind in signs):
            count += 1 + (letter in "\u202d\u202e") * len(text.encode())
            if (
                not BLANKS.match(letter)
                and letter not in "\x85\u2028\u2029"
                and (letter, text[i + 1 : i + 2]) != ("\r", "")
            ) and (letter != "\r" or text[i + 1 : i + 2] == "\n"):
                continue
        last = shown[-1:]
        foreign = [one in LOOK_ALIKES or OF_SCRIPT.get(one, "Latin") != "Latin" for one in (last, letter) if one]
        mixed = len(foreign) == 2 and any(
            foreign[i] and re.match("[A-Za-z]", one) for i, one in ((0, letter), (1, last))
        )
        composes = bool(last) and len(unicodedata.normalize("NFC", last + letter)) == 1
        styled = (letter in STYLED and letter not in "０１２３４５６７８９™№") or letter == "ı"
        if not any(kind.match(letter) for kind in signs):
            count += unicodedata.normalize("NFC", letter) != letter or styled or mixed or composes
        shown += letter
    return count > 0 and count * CHARACTERS_A_CHANGE >= len(text)


def joins(before: str, ends: int, behind: str) -> bool:
    letter = behind.isalpha() and not re.match("[\u0e00-\u0eff\u2e80-\ua4cf]", behind)
    within = before.isalpha() or before.isdigit() or before == ","
    return (ends == 1 and (letter or behind in "'\"’()")) or (
        within and letter and not (is_cased(behind) and behind.isupper())
    )


def of_lines(text: str) -> tuple[str, int]:
    changes = 0

    def blank(run: re.Match[str]) -> str:
        nonlocal changes
        if run.start() == 0 or run.end() == len(text):
            return run[0]
        ends = run[0].count("\n")
        if ends == 0 or joins(text[run.start() - 1], ends, text[run.end()]):
            form = " "
        else:
            form = "\n" * ends + run[0].rpartition("\n")[2]
        changes += form != run[0]
        return form

    return re.sub("[ \t\n]+", blank, text), changes


def of_sentences(text: str) -> tuple[str, int, int]:
    out, words, changes, first, stopped, before = "", 0, 0, 1, False, ""
    for run in re.findall("[A-Za-zß-ÿΑ-ωА-я]+|[ \\t\\n]+|.", text):
        if is_cased(run[0]):
            words += 1
            form = (run[0] if first == 1 else run[0].upper() if first == 2 else run[0].lower()) + run[1:].lower()
            changes += form != run and run != "I"
            out += run if run == "I" else form
            first, stopped = 0, False
        else:
            if run.isspace():
                ends, at = run.count("\n"), len(out) + len(run)
                if stopped:
                    first, stopped = 2, False
                elif ends and not (before and joins(before, ends, text[at : at + 1] or "|")):
                    first = max(first, 1)
            elif run in ".!?":
                stopped, first = not before.isdigit(), 1 if before.isdigit() else first
            elif run in ":;":
                first, stopped = 1, False
            elif run not in "'\"()-_":
                first, stopped = (0 if first == 0 or run == "," or (run[0].isalpha() and run != "中") else 1), False
            out += run
        before = before if run.isspace() else run[-1]
    return out, words, changes


def plain_form(text: str) -> str:
    """The normal form of one text of the letters below, by a plain reading."""
    arrived = without_transport(text)
    if (len(text) - len(arrived)) * CHARACTERS_A_CHANGE >= len(text) > len(arrived):
        text = arrived
    if disguised(text):
        text = with_plain_characters(text)
    cased, words, changes = of_sentences(text)
    if changes and changes * WORDS_A_CAPITAL >= words:
        text = cased
    joined, breaks = of_lines(text)
    return joined if breaks and breaks * CHARACTERS_A_CHANGE >= len(text) else text


_PIECES = (
    "So", "it", "is.", "THE", "СТОЛ", "он", "a\u0430b", "x\u200bx", "\u00a0", "\t", "&amp;", "<b>", "\x0b", "\x1c", "i",
    "I", 'I?"', "’ß", "5_", "ＡＢ", "𝐁ᴀ", "e\u0301", "\u0332", "x, ", "1.", ": ", "\r\n", "한", "ᄒ\u1161", "中",
    " ", " ", "\n", "\n", "\n\n", "(", "- ", "A",
)  # fmt: skip
_WRITTEN = st.lists(st.sampled_from(_PIECES), max_size=60).map("".join)


@pytest.mark.seconds
@given(st.lists(_WRITTEN, max_size=5), st.sampled_from([*EVASIONS]))
def test_fast_forms_are_those_of_a_plain_reading(texts, evasion):
    """What the kernel does for most texts, and Python for others, is what each rule says of each text by itself."""
    texts = [*texts, PLAIN, *map(str.upper, texts), EVASIONS[evasion](PLAIN)]
    forms = normal_forms(texts, utf8(texts))
    assert [*forms] == sorted(forms)
    assert all(form != texts[place] for place, form in forms.items())
    for place, text in enumerate(texts[:-1]):
        assert forms.get(place, text) == plain_form(text)
    assert forms.get(len(texts) - 1, texts[-1]) == normalise(texts[-1])


def test_texts_of_settled_characters_are_their_own_plain_form():
    """Python need not look through a text in which the kernel finds no disguised character."""
    draw = np.random.default_rng(1)
    letters = [c for c in map(chr, range(0xD800)) if not disguised(c) and not unicodedata.combining(c)]
    letters = [c for c in letters if c not in "０１２３４５６７８９™№"]
    assert len(letters) > 50_000
    for _ in range(20):
        text = "".join(np.array(letters)[draw.permutation(len(letters))].tolist())
        parts = [part for part in re.findall("(?s).{1,40}", text) if not disguised(part)]
        assert [with_plain_characters(part) for part in parts] == parts


def source_of_look_alikes(name: str) -> dict:
    package = files(pytest.importorskip("confusable_homoglyphs", reason="pip install -e '.[dev]' installs it"))
    return json.loads((package / f"{name}.json").read_text(encoding="utf-8"))


def test_look_alikes_are_those_of_another_source():
    """The package has Unicode 15.1, our table 17.0: it has all that looked like a letter then."""
    source, missing = source_of_look_alikes("confusables"), {}
    for letter, others in source.items():
        latin = [one["c"] for one in others if re.fullmatch("[A-Za-z]", one["c"])]
        if latin and len(letter) == 1 and not letter.isascii() and letter not in "ıþ":
            ours = STYLED.get(letter, letter)
            ours = LOOK_ALIKES.get(ours, ours)
            if ours.lower() not in [one.lower() for one in latin] and not (latin == ["l"] and ours in "Ii"):
                missing[letter] = (latin, ours)
    others = {letter for letter, (_, ours) in missing.items() if not ours.isdecimal()}
    assert others == {*"\u017f\u037a\u1fbe\u04cf\U0001d6a4"}


@pytest.mark.parametrize(
    ("name", "other"), [("ϲarol", "carol"), ("ϒork", "York"), ("ϱaul", "paul"), ("Ϲarol", "Carol")]
)
def test_names_in_greek_letters_of_other_forms_look_alike(name, other):
    """NFKC makes usual Greek letters of them, which look like none of Latin."""
    assert skeleton(name) == skeleton(other)
    assert normalise(f"{name} saw it") == f"{other} saw it"


@pytest.mark.parametrize(
    "text", ["AB" + "\n" * 40_000, "A" + "\u0315\u0301" * 20_000, "ab " + "\t" * 40_000, "A" + "\u0f73" * 40_000]
)
def test_long_runs_take_no_time(text):
    """The marks took 8 CPU seconds, the line ends 20, when time went by the square of a run's length.

    The last one is a vowel of two marks that is not a mark itself.
    """
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
        same = ("status", "tokens", "scored", "key_id", "message", "score", "log10_p", "log10_p_global", "correction")
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
