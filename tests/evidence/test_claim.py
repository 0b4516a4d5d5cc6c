"""A claim that a third party checks with a separate script, which knows both versions and finds every lie."""

import ast
import contextlib
import hashlib
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import c2pa_text
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from scanner.evidence import check_claim
from scanner.evidence.check_claim import Findings, Mark, any_of, first_bytes, scored_text, windows_of
from scanner.input import documents
from scanner.watermark import proof
from scanner.watermark.laws import Binomial, Gamma
from scanner.watermark.proof import log10_any_of
from schemas.words import UNMET_CONDITION, Naming, NamingCondition
from tests.support.command_line import call
from tests.support.forged_claims import Forger, check
from tests.support.two_keys import TOKENIZER, Words, message_of

DATA = Path(__file__).parents[1] / "data"
ANSWERS = Path(check_claim.__file__).parents[1] / "watermark" / "native"


def mark_of(case: dict) -> Mark:
    label = f"{case['method']}-v3" if case.get("version") == 3 else case["method"]
    label += f";h={case['window']}" + (f";gamma={case['gamma']}" if case["method"] == "greenlist" else "")
    label += f";groups={case['groups']}" if case.get("groups") else ""
    label += f";seeds={case['seeds']}" if "seeds" in case else ""
    return Mark(label, bytes.fromhex(case["secret"]), bytes.fromhex(case["beacon"]) if "beacon" in case else None)


def ngrams_of(mark: Mark, tokens: list[int]) -> list[tuple[int, ...]]:
    """The n-grams that count, each once."""
    ngrams = [tuple(tokens[t - mark.window : t + 1]) for t in range(mark.window, len(tokens))]
    return list({mark.place(ngram): ngram for ngram in reversed(ngrams)}.values())


@pytest.mark.parametrize("name", ["known_answers.json", "known_answers_3.json"])
def test_the_script_gives_the_known_answers(name):
    tried = set()
    for case in json.loads((ANSWERS / name).read_text())["documents"]:
        if case["method"] == "gumbel-log" or case["dedup"] != "ngram" or case.get("shown"):
            continue
        mark = mark_of(case)
        ngrams = ngrams_of(mark, case["tokens"])
        score = sum(mark.term(ngram, case["message"]) for ngram in ngrams)
        assert len(ngrams) == case["scored"]
        assert sum(map(mark.is_shared, ngrams)) == case.get("scored_group", 0)
        assert score == pytest.approx(case["score"], rel=1e-9)
        if ngrams:
            assert mark.log10_p(case["score"], len(ngrams)) == pytest.approx(case["log10_p"], rel=1e-9, abs=1e-12)
        tried.add((case["method"], bool(case.get("groups"))))
    assert len(tried) == (4 if "3" in name else 2)


def test_the_script_gives_the_known_roots():
    """Of trees of fewer seeds than stand side by side, and of more."""
    cases = json.loads((ANSWERS / "known_answers_3.json").read_text())["trees"]
    for case in cases:
        mark = Mark(case["label"], bytes.fromhex(case["secret"]), bytes(32))
        assert mark.root().hex() == case["root"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(check_claim, "LANES", 16)
            assert mark.root().hex() == case["root"]
    assert len(cases) >= 4


def test_user_evidence():
    """The steps that one user of a group alone reads, and their p, are those of the specification's searches."""
    tried = 0
    for case in json.loads((ANSWERS / "known_answers_3.json").read_text())["searches"]:
        if case["dedup"] != "ngram" or case["shown"]:
            continue
        mark = mark_of(case)
        ngrams = ngrams_of(mark, case["tokens"])
        claim = {"messages": case["groups"] ** 2, "parts": 1, "correction": 1}
        assert sum(map(mark.is_shared, ngrams)) == case["scored_group"]
        for found in case["candidates"]:
            assert check_claim.own_p(mark, ngrams, claim | {"message": found["message"]}) == pytest.approx(
                found["log10_p_user"], rel=1e-9, abs=1e-12
            )
            tried += 1
    assert tried >= 20


@pytest.mark.parametrize("tests", [1, 3, 2 / 0.72, 2000, 10**9])
@pytest.mark.parametrize("log10_p", [-300.0, -28.5, -3.0, -0.1])
def test_corrections(log10_p, tests):
    assert any_of(log10_p, tests) == pytest.approx(log10_any_of(log10_p, tests), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("label", "law", "score", "scored"),
    [
        ("greenlist;h=4;gamma=1/4", Binomial(Fraction(1, 4)), 30_000.0, 50_000),
        ("greenlist;h=4;gamma=1/4", Binomial(Fraction(1, 4)), 100_500.0, 400_000),
        ("gumbel;h=4", Gamma(), 2_405_000.0, 2_400_000),
    ],
)
def test_a_long_text_is_checked_in_seconds(label, law, score, scored):
    """A green list's law in whole numbers took hours for 16 MiB, and Gumbel's sum was too large for the arithmetic."""
    began = time.process_time()
    found = Mark(label, bytes(32)).log10_p(score, scored)
    assert time.process_time() - began < 5
    assert found == pytest.approx(float(law.log10_p(score, scored)), rel=1e-9)


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_claim_holds_the_text_that_was_posted(night, registry, marked, tmp_path):
    """Invalid UTF-8 is scored as U+FFFD, but the claim's digest is that of the posted bytes."""
    raw = b"\xff\xfe\r\n" + marked(message_of(registry, "green", "alice"), 80, 1).encode()
    night.write("a", [raw])
    night.scan()
    case = tmp_path / "case"
    code, out, err = call("replay", night.config, "a:0", "--proof", case)
    assert code == 0, out + err
    claim = json.loads((case / "claim.json").read_text())
    assert (case / "text.txt").read_bytes() == raw
    assert hashlib.sha256(raw).hexdigest() == claim["text_sha256"]
    assert (case / "scored.txt").read_bytes() == raw.decode(errors="replace").encode()
    assert check(case, registry / "secrets" / "green.key", library=True)[0] == 3  # no list was named
    assert "only a part of it was scored (invalid_utf8)" in call("explain", night.config, "a:0")[1]


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_claim_of_a_text_with_a_manifest_holds_without_the_manifest(night, registry, marked, tmp_path):
    """The script cuts what a scan cuts, and finds other words that were cut or hidden with it."""
    text = marked(message_of(registry, "green", "alice"), 80, 1)
    armour = "-----BEGIN C2PA MANIFEST-----\nhttps://c2pa.example/1\n-----END C2PA MANIFEST-----"
    carried = [c2pa_text.embed_manifest(text, bytes(300)), f"{text}\n{armour}", f"<!-- {armour} -->\r\n{text}"]
    night.write("a", carried)
    night.scan()
    secret = registry / "secrets" / "green.key"
    for row, raw in enumerate(carried):
        case = tmp_path / f"case{row}"
        assert call("replay", night.config, f"a:{row}", "--proof", case)[0] == 0
        assert ((case / "text.txt").read_bytes(), (case / "scored.txt").read_text()) == (raw.encode(), text)
        code, said = check(case, secret, library=True)
        assert (code, "FAILS" in said) == (3, False), said  # no list was named
        for other in (text + " more", text[1:]):
            (case / "scored.txt").write_text(other)
            assert "FAILS       scored.txt is the part of the text" in check(case, secret, library=True)[1]


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_claim_is_checked_without_brickscan(night, registry, marked, plain, tmp_path):
    night.write("a", [marked(message_of(registry, "green", "alice"), 80, 1), plain(80, 1)])
    night.scan()
    case = tmp_path / "case"
    code, out, _ = call("replay", night.config, "a:0", "--proof", case)
    assert (code, f"check_claim.py {case} SECRET_FILE LIST HEAD" in out) == (0, True)
    secret = registry / "secrets" / "green.key"
    code, said = check(case, secret)
    assert (code, "FAILS" in said, said.count("NOT CHECKED")) == (3, False, 3)
    listed = tmp_path / "list.txt"
    assert call("keys", "publish", listed, "--registry", registry)[0] == 0
    head = listed.read_text().split()[-1]
    code, said = check(case, secret, listed, head, library=True)
    assert (code, "FAILS" in said, "NOT CHECKED" in said) == (0, False, False), said
    code, said = check(case, registry / "secrets" / "gum.key")
    assert (code, "FAILS       the key is the one that was committed to" in said) == (1, True)
    held = secret.read_text().strip()
    assert [path.name for path in case.iterdir() if held in path.read_text()] == []
    code, _, err = call("replay", night.config, "a:0", "--proof", case)
    assert (code, "name a new folder" in err) == (2, True), err


@pytest.fixture
def forger(tmp_path, registry, marked) -> Forger:
    message = message_of(registry, "green", "alice")
    return Forger(tmp_path / "case", registry, marked(message, 80, 1), message)


def test_what_the_forger_claims_honestly_holds(forger):
    assert forger.claim()[0] == 0


def test_a_text_that_was_swapped_is_refused(forger, plain):
    forger.claim()
    (forger.folder / "text.txt").write_text(plain(80, 7))
    code, said = forger.checked()
    assert (code, "FAILS       SHA-256 of text.txt" in said) == (1, True)


def test_ngrams_of_another_text_are_refused_and_without_the_library_told(forger, plain):
    rows, forger.text = forger.rows(forger.text), plain(80, 7)
    code, said = forger.claim(rows)
    assert (code, "FAILS       the tokens are those of the text" in said) == (1, True)
    code, said = forger.checked(library=False)
    assert (code, "NOT CHECKED that the tokens are those of the text" in said) == (3, True)


@pytest.mark.parametrize("why", ["repeat", "window", "filter", "outside", ""])
def test_the_60_best_ngrams_of_a_persons_text_are_no_claim(forger, plain, why):
    """The green tokens of a plain text alone are scored; the others are left out for a reason that is made up."""
    forger.text = plain(300, 7)
    mark, rows = forger.mark(), forger.rows(forger.text)
    ids = [token for token, _ in rows]
    best = [place for place in range(2, len(ids)) if mark.term(tuple(ids[place - 2 : place + 1]), 7) == 1][:60]
    picked = [(token, old if place < 2 or place in best else why) for place, (token, old) in enumerate(rows)]
    forger.numbers["message"] = 7
    code, said = forger.claim(picked)
    assert (code, "FAILS       each of 300 tokens" in said) == ((3, False) if why == "filter" else (1, True))
    assert ("tokens are left out as common n-grams" in said) == (why == "filter")
    chained = forger.claim([(ids[0], "window"), (ids[1], "window"), *((ids[place], "scored") for place in best)])
    assert chained[0] == 1  # tokens that follow each other there are no n-grams of the text
    gone = forger.claim([row for place, row in enumerate(rows) if place < 2 or place in best])
    assert gone[0] == 1


def test_two_messages_of_version_1(forger, marked):
    """Where two messages pass, version 1 names nobody; a text that speaks more for another one is no claim."""
    own, other = forger.numbers["message"], 7
    for words, code, said in (
        (120, 1, "FAILS       of all other messages the best is 7"),
        (50, 3, "NOT CHECKED whose"),
    ):
        forger.text = marked(own, 80, 1) + marked(other, words, 2)
        assert (found := forger.claim())[0] == code, found[1]
        assert said in found[1]


def test_so_many_messages_that_none_is_compared(forger, monkeypatch):
    monkeypatch.setattr(check_claim, "MOST_TERMS", 1000)
    code, said = forger.claim()
    assert (code, "NOT CHECKED that none of 2000 messages is found as well" in said) == (3, True)


@pytest.mark.parametrize("case", json.loads((DATA / "scored_texts.json").read_text()), ids=lambda case: case["what"])
def test_what_is_scored_of_a_text(case):
    """The script and scans hold to one file of known answers; scans do in tests/input/test_part_of_a_text.py."""
    assert scored_text(bytes.fromhex(case["posted"])) == case["scored"]


def outcomes(forger: Forger) -> dict[str, set[str]]:
    """What the script finds of each condition."""
    findings, published = Findings(), [str(forger.listed), forger.listed.read_text().split()[-1]]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(ValueError):
        check_claim.check(
            check_claim.read_folder(forger.folder), bytes.fromhex(forger.secret.read_text()), published, findings
        )
    return findings.of


class TestEveryConditionOfNaming:
    """What scans ask before they name somebody, the script asks, or says that it does not."""

    def test_lists(self):
        here, never = check_claim.CONDITIONS.keys(), check_claim.NEVER.keys()
        assert set(NamingCondition) <= here | never
        assert here <= set(NamingCondition)
        assert not here & never
        assert UNMET_CONDITION.keys() == set(Naming) - {Naming.NAMED, Naming.QUOTED}  # quoted: of accounts alone

    def test_an_honest_claim_meets_all(self, forger):
        assert forger.claim()[0] == 0
        found = outcomes(forger)
        assert {name: "holds" in found[name] and not {"FAILS", "NOT CHECKED"} & found[name] for name in found} == (
            dict.fromkeys(found, True)
        )
        assert check_claim.CONDITIONS.keys() <= found.keys()

    @pytest.mark.parametrize("condition", check_claim.CONDITIONS)
    def test_a_claim_that_lacks_one(self, forger, plain, marked, condition):
        """Each has a claim in which it does not hold, though numbers follow from each other: it does not pass."""
        rows = forger.rows(forger.text)
        if condition == "text":
            forger.claim()
            (forger.folder / "scored.txt").write_text(forger.text[:-9])
        elif condition == "tokens":
            forger.text = plain(80, 7)
            forger.claim(rows)
        elif condition == "positions":
            forger.claim([*rows[:-1], (rows[-1][0], "repeat")])
        elif condition == "part":
            forger.numbers["parts"] = 1
            forger.claim(of_part(rows, 3, 60), look="span")
        elif condition == "key":
            forger.claim(commitment="0" * 64)
        elif condition == "tests":
            forger.numbers["messages"] = 1000
            forger.claim()
        elif condition == "score":
            forger.claim(score=70.0)
        elif condition == "rate":
            forger.text = plain(80, 7)
            forger.claim()
        elif condition == "own evidence":
            forger.text += marked(7, 150, 2)
            forger.claim()
        else:
            forger.numbers["message"] = 19
            forger.text = marked(19, 80, 1)
            forger.claim()
        assert {"FAILS", "NOT CHECKED"} & outcomes(forger)[condition]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("messages", value) for value in (1e-9, 1, 0, -5, 2000.0, True, None, "2000", 1999)),
        *(("correction", value) for value in (0.0001, 0, -1, math.nan, math.inf, True, "4")),
        *(("message", value) for value in (-1, 2000, 3.0, True)),
    ],
)
def test_numbers_that_no_scan_has_are_refused(forger, name, value):
    if type(value) in (int, float) and math.isfinite(value) and value > 0 and name != "message":
        forger.numbers |= {"message": 0, name: value}  # p follows from it
        code, said = forger.claim()
    else:
        code, said = forger.claim(**{name: value})
    assert (code, f"FAILS       {name} = " in said) == (1, True), said


def test_one_message_is_told_as_not_checked_where_no_list_is_named(forger, marked):
    forger.numbers |= {"messages": 1, "message": 0}
    forger.text = marked(0, 80, 1)
    forger.claim()
    code, said = forger.checked(published=())
    assert (code, "NOT CHECKED messages = 1: claimed" in said) == (3, True)


def test_a_label_that_was_never_announced_is_refused_and_without_a_list_told(forger, words):
    """Whoever has the secret marks a text under a label of their own."""
    forger.label = "greenlist;h=2;gamma=3/4"
    mark, chosen = forger.mark(), [0, 1]
    while len(chosen) < 120:
        window = tuple(int(words.tokens[word]) for word in chosen[-2:])
        marked_by = ((mark.term((*window, int(words.tokens[word])), forger.numbers["message"]), word)
                     for word in range(len(chosen), len(words.words)))  # fmt: skip
        chosen.append(next(word for green, word in marked_by if green))
    forger.text = "".join(f" {words.words[word]}" for word in chosen)
    code, said = forger.claim()
    assert (code, "FAILS       the list has the commitment" in said) == (1, True)
    code, said = forger.checked(published=())
    assert (code, "NOT CHECKED that key and tokenizer were announced" in said) == (3, True)


def test_a_head_before_the_key_or_of_another_list_and_a_list_that_was_edited_are_refused(forger, tmp_path):
    forger.claim()
    assert forger.checked(published=(forger.listed, "0" * 64))[0] == 1
    lines = forger.listed.read_text().splitlines()
    edited = tmp_path / "edited.txt"
    edited.write_text("\n".join([lines[0].replace(" 2000 ", " 1 "), *lines[1:]]) + "\n")
    code, said = forger.checked(published=(edited, lines[-1].split()[-1]))
    assert (code, "line 1: does not follow" in said) == (1, True)


def test_another_tokenizer_than_the_published_one_is_refused(forger, byte_tokenizer):
    """One that turns a person's text into marked tokens can always be made."""
    data = byte_tokenizer.read_bytes()
    forger.claim(tokenizer_sha256=hashlib.sha256(data).hexdigest())
    (forger.folder / "tokenizer.json").write_bytes(data)
    code, said = forger.checked()
    assert (code, "FAILS       the tokenizer is the one on the list" in said) == (1, True)


@pytest.mark.parametrize(
    ("label", "why"),
    [
        ("greenlist;h=2;gamma=1/3", "n/2^b"),  # every other entry is green, but the law says a third
        ("greenlist;h=2;gamma=2/4", "n/2^b"),
        ("greenlist;h=2;gamma=4/4", "n/2^b"),
        ("greenlist;h=2", "n/2^b"),
        ("greenlist;h=2;gamma=1/4;groups=10", "version 3"),
        ("greenlist-v3;h=0;gamma=1/4;groups=10;seeds=8", "version 3"),
        ("greenlist-v3;h=2;gamma=1/4;groups=1;seeds=8", "version 3"),
        ("greenlist-v3;h=2;gamma=1/4;groups=050;seeds=8", "version 3"),
        ("greenlist-v3;h=2;gamma=1/4", "seeds=n"),
        ("greenlist;h=2;gamma=1/4;seeds=8", "seeds=n"),
        ("gumbel-v3;h=2;seeds=3", "4 to 28"),
        ("gumbel-v3;h=2;seeds=29", "4 to 28"),
        ("gumbel-v3;h=2;seeds=08", "4 to 28"),
        ("gumbel-v3;h=2;seeds=\uff18", "a native format"),
        ("gumbel-v3;h=2;seeds=" + 10_000 * "8", "a native format"),
        ("greenlist-v2;h=2;gamma=1/4", "a native format"),
        ("gumbel-v2;h=2;groups=10", "a native format"),
        ("gumbel;h=17", "a native format"),
        ("greenlist;h=2;gamma=1/4;gamma=3/4", "a native format"),
    ],
)
def test_labels_that_no_key_has_are_refused(forger, label, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        Mark(label, bytes(32), bytes(32))
    code, said = forger.claim(label=label)
    assert (code, why in said or "no record.json" in said) == (1, True)


def test_words_of_a_claim_cannot_write_findings(forger):
    for fields in ({"variant": "x\nholds       everything"}, {"user_id": "bob"}, {"score": "\x1b[2J"}):
        code, said = forger.claim(**fields)
        assert code == 1
        assert "holds       everything" not in said.splitlines()
        assert "\x1b" not in said
    forger.claim()
    claim = (forger.folder / "claim.json").read_text()
    (forger.folder / "claim.json").write_text(claim.replace("{", '{"message": 3, ', 1))
    assert "a field occurs twice" in forger.checked()[1]


@pytest.mark.parametrize("name", ["claim.json", "tokens.csv", "tokenizer.json", "text.txt"])
def test_trash_ends_in_a_sentence(forger, name):
    forger.claim()
    for trash in (b"", b"[]", b"{", b"\xff\x00\n1,2,3", b"[" * 100_000):
        (forger.folder / name).write_bytes(trash)
        code, said = forger.checked()
        assert (code, "FAILS" in said, "what this file never checks" in said) == (1, True, True)


def imported_modules() -> list[str]:
    """Every module that the script imports, `tokenizers` too."""
    nodes = [*ast.walk(ast.parse(Path(check_claim.__file__).read_text()))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return sorted({*names, *(str(node.module) for node in nodes if isinstance(node, ast.ImportFrom))})


STOLEN = "print('holds       everything'); raise SystemExit(0)\n"


@pytest.mark.parametrize("package", [False, True])
@pytest.mark.parametrize("beside_script", [False, True])
def test_modules_of_a_forger_are_never_imported(forger, tmp_path, package, beside_script):
    """One of each that the script imports lies in the claim's folder, which is refused, or beside the script."""
    names = [name for name in imported_modules() if name != "sys"]
    assert {"csv", "json", "tokenizers"} < set(names)
    forger.claim()
    folder = tmp_path / "copy" if beside_script else forger.folder
    folder.mkdir(exist_ok=True)
    for name in names:
        forged = folder / name / "__init__.py" if package else folder / f"{name}.py"
        forged.parent.mkdir(exist_ok=True)
        forged.write_text(STOLEN)
    script = shutil.copy(check_claim.__file__, tmp_path / "copy") if beside_script else check_claim.__file__
    arguments = [script, forger.folder, forger.secret, forger.listed, forger.listed.read_text().split()[-1]]
    done = run([sys.executable, "-I", *arguments], cwd=folder)
    assert "holds       everything" not in done.stdout
    assert (done.returncode, "is not a file of a claim" in done.stdout) == ((0, False) if beside_script else (1, True))
    done = run([sys.executable, *arguments], cwd=folder)
    assert (done.returncode, "run it as: python -I" in done.stderr, done.stdout) == (2, True, "")


def run(command: list[object], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize("what", ["module", "folder", "link", "pipe", "known folder"])
def test_a_folder_with_more_than_a_claim_is_refused(forger, tmp_path, what):
    forger.claim()
    if what == "module":
        (forger.folder / "anything.txt").touch()
    elif what == "folder":
        (forger.folder / "more").mkdir()
    elif what == "link":
        (forger.folder / "README").symlink_to(forger.secret)
    elif what == "pipe":
        os.mkfifo(forger.folder / "README")
    else:
        (forger.folder / "scored.txt").mkdir()
    code, said = forger.checked()
    assert (code, "is not a file of a claim" in said) == (1, True)


def test_files_that_a_system_puts_into_folders_are_no_part_of_a_claim(forger):
    """Whoever opened the folder to read the text has not made the claim void."""
    forger.claim()
    for name in (".DS_Store", "._text.txt", "Thumbs.db", "desktop.ini"):
        (forger.folder / name).write_bytes(b"anything")
    assert forger.checked()[0] == 0


@pytest.fixture
def short_texts(monkeypatch):
    """Scans and the script score the first 256 bytes alone, so that no test needs 16 MiB."""
    assert check_claim.MOST_BYTES == documents.MAX_TEXT_BYTES
    monkeypatch.setattr(check_claim, "MOST_BYTES", 256)
    monkeypatch.setattr(documents, "MAX_TEXT_BYTES", 256)


@pytest.mark.usefixtures("short_texts")
def test_a_part_of_the_text_is_no_scored_text(forger):
    """The first bytes of a long text are scored, and not those where the claim chooses to end."""
    whole = forger.text
    first = whole[:256]
    for scored, code in ((whole[:200], 1), (whole[:255], 1), (whole[:257], 1), (first, 0)):
        forger.text = whole
        forger.claim(forger.rows(scored))
        (forger.folder / "scored.txt").write_text(scored)
        found, said = forger.checked()
        assert (found, "FAILS       scored.txt is the part" in said) == (code, code == 1)


@pytest.mark.usefixtures("short_texts")
@pytest.mark.parametrize(
    "end", [b"a", "é".encode(), "€".encode(), "🌊".encode(), b"\xff", b"\x80\x80\x80\x80\x80", b"\xe2\x82"]
)
@pytest.mark.parametrize("shift", range(5))
def test_the_script_cuts_long_texts_as_a_scan_does(end, shift):
    raw = b"a" * (256 - shift) + (end.encode() if isinstance(end, str) else end) * 3
    text = documents.read_text(raw)[0]
    assert text.encode() == first_bytes(first_bytes(raw).decode(errors="replace").encode())


def test_one_key_with_a_thousand_tokenizers_counts_a_thousand_times(forger, tmp_path):
    """Whoever announces many tokenizers for one key chooses among them after the text; the bound says so."""
    forger.claim()
    lines, head = [], "0" * 64
    for number in range(1, 1001):
        other = hashlib.sha256(str(number).encode()).hexdigest()
        tokenizer = forger.key.tokenizer.sha256 if number == 1 else other
        body = f"{number} 2026-01-01 green {forger.key.commitment} 2000 {tokenizer} - - -"
        head = hashlib.sha256(f"brickscan commitments 5\n{head}\n{body}".encode()).hexdigest()
        lines.append(f"{body} {head}")
    many = tmp_path / "many.txt"
    many.write_text("\n".join(lines) + "\n")
    code, said = forger.checked(published=(many, head))
    assert (code, "NOT CHECKED why correction = 4.0: 1000 keys were announced" in said) == (3, True), said


PIECES = [*" abcdefgh.éÉ\n\u2581", "ab", "cd", "\u2581a", "e\u0301"]


def usual_tokenizer(kind: str) -> Tokenizer:
    """Make a tokenizer of a kind that models have, whose vocabulary has all of PIECES."""
    if kind == "bytes":
        return Tokenizer.from_file(str(TOKENIZER))
    if kind == "words":
        whole = {piece: number for number, piece in enumerate(["[UNK]", *PIECES, *(f"##{piece}" for piece in PIECES)])}
        tokenizer = Tokenizer(models.WordPiece(whole, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in PIECES], None, byte_fallback=False))
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        return tokenizer
    units = [*(f"<0x{byte:02X}>" for byte in range(256)), *dict.fromkeys("".join(PIECES)), "ab"]
    whole = {piece: number for number, piece in enumerate(units)}
    tokenizer = Tokenizer(models.BPE(whole, [("a", "b")], byte_fallback=True))
    first = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    tokenizer.normalizer = normalizers.Sequence(first)
    return tokenizer


@pytest.mark.parametrize("kind", ["bytes", "words", "unigram", "bytes for unheard signs"])
@given(text=st.text("abcdefgh. é\n", min_size=1, max_size=40), place=st.integers(0, 40))
@settings(max_examples=25)
def test_tokens_of_usual_tokenizers_spell_their_text_and_no_other(kind, text, place):
    tokenizer = usual_tokenizer(kind)
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    assume(tokens)
    raw = tokenizer.to_str().encode()
    assert check_claim.spell(raw, tokens, text)
    letter = tokenizer.encode("c", add_special_tokens=False).ids[-1:]
    place %= len(tokens) + 1
    assert not check_claim.spell(raw, tokens[:place] + letter + tokens[place:], text)
    if "c" in text:
        assert not check_claim.spell(raw, tokens, text.replace("c", "", 1))


def test_tokens_of_a_text_with_a_tokenizers_own_sign_for_a_blank_spell_it():
    tokenizer = usual_tokenizer("bytes for unheard signs")
    tokens = tokenizer.encode("a\u2581b c", add_special_tokens=False).ids
    raw = tokenizer.to_str().encode()
    assert check_claim.spell(raw, tokens, "a\u2581b c")
    assert not check_claim.spell(raw, [*tokens[:2], *tokens[1:]], "a\u2581b c")


@pytest.mark.parametrize(
    "marks", ["\u0315\u0301" * 20_000, "\u0f73" * 20_000, ("\u0315\u0301" * 15 + "\uff9e") * 5_000]
)
def test_a_post_with_many_accents_on_a_letter_takes_no_time(marks):
    """It took the square of their number: a claim about a post of 16 MiB would have taken hours."""
    raw, text = TOKENIZER.read_bytes(), f"a{marks}"
    tokens = Tokenizer.from_buffer(raw).encode(text, add_special_tokens=False).ids
    begin = time.thread_time()
    assert check_claim.spell(raw, tokens, text)
    assert not check_claim.spell(raw, tokens[1:], text)
    assert time.thread_time() - begin < 2


@pytest.mark.parametrize(
    "change",
    [
        {"vocab": {"a": 0, "b": 1, "": 2}},
        {"vocab": {"a": 0, "b": 1, "x": 2, "y": 2}},  # a token that stands for either
        {"vocab": {"a": 0, "b": 1, "##": 2}, "type": "WordPiece"},
        {"vocab": {"a": 0, "b": 1, "\u0301": 2}},  # an accent, put in where blanks are left out
        {"vocab": {"a": 0, "b": 1}},
        {"vocab": [["a", 0.0], ["b", 0.0], ["c", 0.0]]},
        {"vocab": 3},
    ],
)
def test_a_token_that_stands_for_no_part_of_the_text_is_told(change):
    fields = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, " ": 2}}, "added_tokens": None}
    assert check_claim.spell(json.dumps(fields).encode(), [2, 0, 2, 1], "a b")
    changed = json.dumps(fields | {"model": fields["model"] | change}).encode()
    assert not check_claim.spell(changed, [2, 0, 2, 1], "a b")
    assert not check_claim.spell(json.dumps(fields).encode(), [2, 2, 0, 2, 1], "a b")  # one blank, not two


METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}


def made_to_mark(words: str, way: str) -> str:
    """A tokenizer that writes words before every text."""
    made = json.loads(TOKENIZER.read_text())
    if way == "pre-tokenizer":  # after the bytes have their letters, of which the blank's is one
        letters = reversed(words.replace(" ", "\u0120"))
        signs = [METASPACE | {"replacement": letter} for letter in letters]
        return json.dumps(
            made | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [made["pre_tokenizer"], *signs]}}
        )
    told = json.dumps(made | {"normalizer": {"type": "Prepend", "prepend": words}})
    if way == "type of another":  # whose fields it does not have: then the library goes by those that it has
        return told.replace("Prepend", "BertNormalizer")
    return told if way == "normalizer" else told.replace('"type": "Prepend"', '"type": "Prepend", "type": "ByteLevel"')


@pytest.mark.parametrize("way", ["normalizer", "pre-tokenizer", "type that stands twice", "type of another"])
def test_a_tokenizer_that_was_made_and_announced_to_mark_every_text_is_told(forger, words, plain, way):
    """Whoever holds a key announces it with a tokenizer that writes marked words before each text, and then waits."""
    once = [place for place, word in enumerate(words.words) if re.search(r"(.)\1", word) is None]
    spelled = Words(words.tokens[once], [words.words[place] for place in once])
    made = made_to_mark(forger.mark_words(spelled, forger.numbers["message"], 80, 9), way)
    forger.tokenizer = forger.folder.parent / "made.json"
    forger.tokenizer.write_text(made)
    digest = hashlib.sha256(forger.tokenizer.read_bytes()).hexdigest()
    forger.publish("2026-01-01", "green", forger.key.commitment, 2000, digest, "-")
    forger.text = plain(20, 7)
    code, said = forger.claim(tokenizer_sha256=digest)
    assert "FAILS" not in said
    assert (code, "NOT CHECKED that the tokenizer adds no marked words to a text" in said) == (3, True)


@pytest.mark.parametrize(("date", "code"), [("2026-13-01", 1), ("2026-02-30", 1), ("----------", 2), ("1234567890", 2)])
def test_a_list_with_dates_that_are_none_is_refused(forger, date, code):
    forger.claim()
    forger.publish(date, "green", forger.key.commitment, 2000, forger.key.tokenizer.sha256, "-")
    assert forger.checked()[0] == code


def test_a_list_of_the_form_before_records_is_refused(forger):
    forger.claim()
    body = f"1 2026-01-01 green {forger.key.commitment} 2000 {forger.key.tokenizer.sha256}"
    head = hashlib.sha256(f"brickscan commitments 2\n{'0' * 64}\n{body}".encode()).hexdigest()
    forger.listed.write_text(f"{body} {head}\n")
    code, said = forger.checked()
    assert (code, "is not a list of commitments" in said) == (2, True), said


@pytest.mark.parametrize("saved", ["utf-16", "utf-8-sig", "as a page", "empty", "in part", "unreadable"])
def test_a_list_that_was_saved_in_another_form_makes_no_claim_void(forger, saved, monkeypatch):
    """As by `curl … > commitments.txt` in PowerShell: the copy is at fault, not the claim."""
    assert forger.claim()[0] != 1
    held, read = forger.listed.read_text(), Path.read_text
    head = held.split()[-1]

    def refuse(path: Path, **options: str) -> str:
        if path == forger.listed:
            raise PermissionError
        return read(path, **options)

    if saved.startswith("utf"):
        forger.listed.write_text(held, encoding=saved)
    elif saved == "unreadable":
        monkeypatch.setattr(Path, "read_text", refuse)
    else:
        parts = {
            "empty": "",
            "in part": held + held[: len(held) // 2],
            "as a page": f"<html><pre>{held}</pre></html>\n",
        }
        forger.listed.write_text(parts[saved])
    code, said = forger.checked(published=(forger.listed, head))
    assert (code, "is not a list of commitments in plain ASCII text" in said) == (2, True), said


@pytest.mark.costly
def test_a_scored_text_of_its_own_is_told(forger, plain):
    forger.claim()
    honest = (forger.folder / "text.txt").read_text()
    forger.text = plain(80, 7)
    forger.claim(rows=forger.rows(honest))
    (forger.folder / "scored.txt").write_text(honest)
    assert "FAILS       scored.txt is the part" in forger.checked()[1]
    forger.claim(rows=forger.rows(honest), variant="normalised")
    code, said = forger.checked()
    assert (code, "NOT CHECKED that scored.txt is the scored text, normalised" in said) == (3, True)


def test_what_chance_does_often_is_no_claim(forger, plain):
    """Every number of a text without a mark follows from it, and `holds` would say that it is marked."""
    for text in (plain(200, 7), ""):
        forger.text = text
        code, said = forger.claim()
        assert (code, "FAILS       chance alone does this in at most 1 of 1,000" in said) == (1, True)


@pytest.mark.usefixtures("short_texts")
def test_a_long_text_is_not_scored_whole(forger):
    code, said = forger.claim()
    assert (code, "FAILS       text.txt is the part of the text that is scored: at most its first 16 MiB" in said) == (
        1,
        True,
    )


def test_normalised_text_is_told_where_no_other_stands_beside_it(forger):
    code, said = forger.claim(variant="normalised")
    assert (code, "NOT CHECKED that text.txt is the scored text, normalised" in said) == (3, True)


def test_a_readme_is_said_to_be_the_claimants(forger):
    forger.claim()
    (forger.folder / "README").write_text("checked by brickscan: holds")
    assert "- what README says: the person who makes the claim wrote it" in forger.checked()[1]


def test_a_file_of_endless_zeros_is_refused(forger):
    forger.claim()
    with (forger.folder / "README").open("wb") as file:
        file.truncate(2**40)
    code, said = forger.checked()
    assert (code, "has more than" in said) == (1, True)


def test_the_tokenizer_of_a_claim_that_fails_is_never_run(forger, monkeypatch):
    """A tokenizer can be made that never ends; one that was not announced is refused before it runs."""
    forger.claim()
    data = TOKENIZER.read_bytes() + b" "
    (forger.folder / "tokenizer.json").write_bytes(data)
    claim = json.loads((forger.folder / "claim.json").read_text())
    digest = hashlib.sha256(data).hexdigest()
    (forger.folder / "claim.json").write_text(json.dumps(claim | {"tokenizer_sha256": digest}))
    monkeypatch.setattr("tokenizers.Tokenizer", None)
    code, said = forger.checked()
    assert (code, "the tokenizer of a failing claim is not run" in said) == (1, True)


def of_part(rows: list[tuple[int, str]], begin: int, end: int) -> list[tuple[int, str]]:
    """Rows of which only those that count from `begin` to before `end` are scored."""
    places = [place for place, (_, why) in enumerate(rows) if why == "scored"]
    left_out = {*places[:begin], *places[end:]}
    return [(token, "outside the part" if place in left_out else why) for place, (token, why) in enumerate(rows)]


@pytest.fixture
def long_forger(forger, plain) -> Forger:
    """A marked text within a person's."""
    forger.text = plain(200, 1) + forger.text + plain(120, 2)
    return forger


def span_of(forger: Forger) -> tuple[list[tuple[int, str]], int, tuple[int, int]]:
    """Rows of the window of smallest p, the number of windows, and where the window stands."""
    rows = forger.rows(forger.text)
    ids, mark = [token for token, _ in rows], forger.mark()
    places = [place for place, (_, why) in enumerate(rows) if why == "scored"]
    terms = [mark.term(tuple(ids[place - 2 : place + 1]), forger.numbers["message"]) for place in places]
    windows = windows_of(len(terms))
    begin, end = min(windows, key=lambda one: mark.log10_p(sum(terms[slice(*one)]), one[1] - one[0]))
    return of_part(rows, begin, end), len(windows), (begin, end)


@pytest.mark.parametrize("counted", [0, 1, 23, 24, 25, 34, 100, 577, 4000])
def test_windows_of_the_script_are_those_of_scans(counted):
    assert windows_of(counted) == proof.windows_of(counted)


def test_a_window_of_a_text_is_a_claim_of_its_part(long_forger):
    rows, windows, _ = span_of(long_forger)
    long_forger.numbers["parts"] = windows
    code, said = long_forger.claim(rows, look="span")
    assert (code, "holds       the part is a window of the text" in said) == (0, True), said


def test_parts_that_were_not_counted_are_told_with_the_p_of_all_runs(long_forger):
    rows, windows, (begin, end) = span_of(long_forger)
    long_forger.numbers["parts"] = windows - 1
    code, said = long_forger.claim(rows, look="span")
    assert (code, "NOT CHECKED that the part is a paragraph" in said) == (3, True)
    long_forger.numbers["parts"] = windows
    picked = of_part(long_forger.rows(long_forger.text), begin + 1, end - 1)  # no window: where the claim likes
    code, said = long_forger.claim(picked, look="span")
    assert (code, "chosen by its score among all" in said) == (3, True)


def test_parts_of_lies_are_refused(long_forger):
    rows, windows, _ = span_of(long_forger)
    long_forger.numbers["parts"] = windows
    holes = [
        (token, "outside the part" if at % 7 == 0 and why == "scored" else why) for at, (token, why) in enumerate(rows)
    ]
    code, said = long_forger.claim(holes, look="span")
    assert (code, "FAILS       the part is one run" in said) == (1, True)
    code, said = long_forger.claim(rows)  # a part in a claim of the whole text
    assert (code, "FAILS       parts = " in said) == (1, True)
    long_forger.numbers["parts"] = 1
    code, said = long_forger.claim(rows)
    assert (code, "FAILS       each of" in said) == (1, True)
    for parts in (0, -1, 1e-9, 2.5, True, None, "7"):
        long_forger.numbers.pop("parts", None)
        code, said = long_forger.claim(rows, look="span", parts=parts)
        assert (code, "FAILS       parts = " in said) == (1, True)
    assert long_forger.claim(rows, look="x")[0] == 1


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize(
    "kinds", ["windows = true", "windows = false, segments = true", "windows = true, segments = true"]
)
def test_a_flag_of_a_part_has_a_claim(night, registry, marked, plain, tmp_path, kinds):
    night.configure(more=f"spans = {{ {kinds} }}")
    part = marked(message_of(registry, "green", "alice"), 80, 2)
    night.write("a", ["\n\n".join(f"{text.strip()}." for text in (plain(900, 1), part, plain(700, 3)))])
    night.scan()
    (flag,) = night.verdicts().to_dicts()
    assert flag["look"] == "span"
    case, listed = tmp_path / "case", tmp_path / "list.txt"
    code, out, err = call("replay", night.config, "a:0", "--proof", case)
    assert code == 0, out + err
    call("keys", "publish", listed, "--registry", registry)
    head = listed.read_text().split()[-1]
    code, said = check(case, registry / "secrets" / "green.key", listed, head, library=True)
    assert "FAILS" not in said
    is_window = "holds       the part is a window of the text" in said
    assert (code, is_window) == ((0, True) if kinds == "windows = true" else (3, False)), said
