"""Claims by the secret, after claims that showed seeds: such a position counts, and adds its mean at most."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from scanner.errors import Refused
from scanner.evidence import check_claim
from scanner.evidence.case import FlagCase, find_case
from scanner.evidence.check_claim import Mark, leaf_of, windows_of
from scanner.evidence.explainer import Explainer
from scanner.evidence.replay import write_claim
from scanner.registry.shown_seeds import event_bytes
from tests.support.claiming import MESSAGE, Platform, make_registry
from tests.support.command_line import call
from tests.support.forged_claims import Forger, event_after

METHODS = ["greenlist-v3", "gumbel-v3"]
OTHER = "ab" * 32
NO_OTHER = "holds       the list has no claim that shows seeds of this key and does not count here"


def plain_score(mark: Mark, ngrams: Sequence[tuple[int, ...]], message: int) -> float:
    """The score by the words of SPEC_3 §5, one position after the other."""
    new, old = 0.0, []
    for ngram in ngrams:
        if leaf_of(mark.seed(mark.bucket(ngram))) in mark.known:
            old.append(mark.term(ngram, message))
        else:
            new += mark.term(ngram, message)
    return new + (math.floor(sum(old) * mark.gamma) if mark.green else sum(min(term, 1.0) for term in old))


def ngrams_of(rows: Iterable[tuple[int, str]], window: int, *statuses: str) -> list[tuple[int, ...]]:
    tokens, whys = zip(*rows, strict=True)
    return [tokens[at - window : at + 1] for at, why in enumerate(whys) if why in statuses]


class Shower(Forger):
    """A forger who knows of claims that showed seeds."""

    def show(self, buckets: Iterable[int]) -> None:
        """Append an event of a claim that shows these buckets, or those of them that are new."""
        mark = self.mark()
        new = {leaf_of(mark.seed(bucket)) for bucket in buckets} - mark.known
        self.events.append(event_after(self.events, {leaf.hex() for leaf in new}, "another text"))

    def buckets(self) -> list[int]:
        """The buckets of the positions of the text, in order."""
        mark = self.mark()
        return [mark.bucket(ngram) for ngram in ngrams_of(self.rows(self.text), mark.window, "scored")]

    def heads(self) -> list[str]:
        return [f"{at}:{hashlib.sha256(line.encode()).hexdigest()}" for at, line in enumerate(self.events, start=1)]

    def list_of(self, *shown: str) -> tuple[Path, str]:
        """A list with a line of the key for each of these fields `shown`, and its last head."""
        head, lines, record = "0" * 64, [], hashlib.sha256(self.record).hexdigest()
        for number, one in enumerate(shown, start=1):
            key = self.key.commitment, self.key.messages, self.key.tokenizer.sha256, record
            body = " ".join(map(str, (number, "2026-01-01", "green", *key, one, "-")))
            head = hashlib.sha256(f"brickscan commitments 5\n{head}\n{body}".encode()).hexdigest()
            lines.append(f"{body} {head}\n")
        self.listed.write_text("".join(lines))
        return self.listed, head


@pytest.fixture(scope="module")
def registries(tmp_path_factory) -> dict[str, Path]:
    return {method: make_registry(tmp_path_factory.mktemp(method) / "registry", method) for method in METHODS}


def make(folder: Path, registry: Path, words) -> Shower:
    forger = Shower(folder / "forged", registry, "", MESSAGE)
    forger.text = forger.mark_words(words, MESSAGE, 240, 1)
    return forger


@pytest.fixture
def forger(tmp_path, registries, words) -> Shower:
    """Of a text, a part of whose positions two claims had shown."""
    forger = make(tmp_path, registries["greenlist-v3"], words)
    forger.show(forger.buckets()[:20])
    forger.show(forger.buckets()[20:40])
    return forger


def assert_fails(answer: tuple[int, str], why: str) -> None:
    code, said = answer
    assert (code, re.search(f"^FAILS       .*{why}", said, re.MULTILINE) is not None) == (1, True), said


@pytest.mark.parametrize("method", METHODS)
def test_positions_whose_seeds_were_shown_add_their_mean_at_most(tmp_path, registries, words, method):
    forger = make(tmp_path, registries[method], words)
    assert forger.claim()[0] == 0
    whole = json.loads((forger.folder / "claim.json").read_text())
    forger.show(forger.buckets()[:40])
    forger.claim()
    code, said = forger.checked(published=forger.list_of(*forger.heads()))
    assert (code, "FAILS" in said, "NOT CHECKED" in said, NO_OTHER in said) == (0, False, False, True), said
    claim, mark = json.loads((forger.folder / "claim.json").read_text()), forger.mark()
    ngrams = ngrams_of(forger.rows(forger.text), mark.window, "scored")
    assert claim["score"] == pytest.approx(plain_score(mark, ngrams, MESSAGE), rel=1e-12)
    assert (claim["score"] < whole["score"] - 20, claim["log10_p"] > whole["log10_p"] + 5) == (True, True)
    assert_fails(forger.claim(**{name: whole[name] for name in ("score", "log10_p", "log10_p_global")}), "score: ")


@pytest.mark.parametrize("method", METHODS)
def test_a_text_that_was_forged_from_shown_seeds_gains_nothing(tmp_path, registries, words, method):
    """Without their events its p is small, and the list tells that it counts for nothing."""
    forger = make(tmp_path, registries[method], words)
    forger.show(forger.buckets())
    events, forger.events = forger.events, []
    listed = forger.list_of(f"1:{OTHER}")
    forger.claim()
    code, said = forger.checked(published=listed)
    assert (code, "FAILS" in said, "the list has 1 claims of this key, of which 0 count here" in said) == (
        (3, False, True)
    ), said
    forger.events = events
    assert_fails(forger.claim(), "chance alone does this in at most 1 of 1,000 texts")
    assert json.loads((forger.folder / "claim.json").read_text())["log10_p_global"] > -0.1


def test_the_list_tells_which_events_do_not_count(forger):
    forger.claim()
    first, second = forger.heads()
    what = "NOT CHECKED that nobody marked words with seeds that claims showed: the list has"
    for shown, more in (
        (["-"], None),
        ([first], None),
        ([first, second], None),
        (["-", second], None),
        ([f"3:{OTHER}"], 3),
        ([second, f"7:{OTHER}"], 7),
    ):
        code, said = forger.checked(published=forger.list_of(*shown))
        assert (code, "FAILS" in said, NO_OTHER in said) == ((3, False, False) if more else (0, False, True)), said
        assert (f"{what} {more} claims of this key, of which 2 count here" in said) == (more is not None)
    code, said = forger.checked(published=())
    assert (code, "NOT CHECKED that no claim showed seeds of this key" in said) == (3, True), said
    for shown in ([f"1:{OTHER}"], [f"2:{OTHER}"], [f"2:{first[2:]}"], [f"1:{OTHER}", f"3:{OTHER}"]):
        answer = forger.checked(published=forger.list_of(*shown))
        assert_fails(answer, "the list has the heads of these events: that of event [12] is different")
        assert NO_OTHER not in answer[1]
    for shown in ([second, first], [f"3:{OTHER}", second], [second, "-"]):
        answer = forger.checked(published=forger.list_of(*shown))
        assert_fails(answer, "events of the key are only ever added: the list goes back to [012] of them")
        assert NO_OTHER not in answer[1]


def test_events_that_were_changed(forger):
    forger.claim()
    first, second = forger.events
    leaf = json.loads(first)["leaves"][0]
    wrong = {
        "left out": [second],
        "in another order": [second, first],
        "without a leaf": [first.replace(f'"{leaf}",', "", 1), second],
        "twice": [first, first],
        "a leaf twice": [first, event_after([first], [leaf], "another text")],
        "no canonical JSON": [first.replace(":", ": ", 1), second],
        "a real number": [first.replace('"number":1', '"number":1.0'), second],
        "a blank line": [first, "", second],
    }
    for what, lines in wrong.items():
        (forger.folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
        code, said = forger.checked()
        assert (code, "FAILS       this cannot be read" in said) == (1, True), (what, said)
    (forger.folder / "events.jsonl").write_text("\n".join(forger.events))
    assert_fails(forger.checked(), "this cannot be read")
    (forger.folder / "events.jsonl").unlink()
    assert_fails(forger.checked(), "score: ")


def test_a_chain_from_which_all_numbers_follow_is_told_by_the_list(forger):
    """Without the last event or a leaf of it, or of another key: whoever makes the claim computes all numbers anew."""
    listed = forger.list_of(*forger.heads())
    first, second = forger.events
    fewer = json.loads(second)["leaves"][1:]
    uncounted = "NOT CHECKED that nobody marked words .*: the list has 2 claims of this key, of which 1 count here"
    other_head = "FAILS       the list has the heads of these events: that of event {} is different"
    for lines, code, why in (
        ([first], 3, uncounted),
        ([first, event_after([first], fewer, "another text")], 1, other_head.format(2)),
        ([event_after([], [OTHER], "a text of another key")], 1, other_head.format(1)),
    ):
        forger.events = lines
        forger.claim()
        found, said = forger.checked(published=listed)
        assert (found, re.search(f"^{why}", said, re.MULTILINE) is not None, NO_OTHER in said) == (code, True, False)


def test_trash_ends_in_a_sentence(forger, monkeypatch):
    forger.claim()
    for trash in (b"[]\n", b"{", b"null\n", b"3\n", b"\xff\x00\n1,2,3\n", b"[" * 100_000 + b"\n", b'{"0":{}}\n'):
        (forger.folder / "events.jsonl").write_bytes(trash)
        code, said = forger.checked()
        assert (code, "FAILS       this cannot be read" in said, len(said) < 10_000) == (1, True, True), said
    monkeypatch.setitem(check_claim.LARGEST_OF, "events.jsonl", 3)
    assert_fails(forger.checked(), "'events.jsonl' has more than 3 bytes")


@pytest.mark.parametrize(("method", "window"), [("greenlist", 4), ("greenlist-v3", 2)])
def test_events_beside_a_key_whose_seeds_are_never_shown(tmp_path, words, method, window):
    forger = make(tmp_path, make_registry(tmp_path / "registry", method, window), words)
    assert "FAILS" not in forger.claim()[1]
    forger.events = [event_after([], [OTHER], "another text")]
    assert_fails(forger.claim(), "this cannot be read: .*events.jsonl: no claim shows seeds of a key of label")


# ---- what brickscan writes


def proof(platform: Platform, document: str, out: str) -> str:
    code, said, err = call("replay", platform.night.config, document, "--proof", platform.folder / out)
    assert code == 0, said + err
    return said


def published(platform: Platform) -> tuple[Path, str]:
    listed = platform.folder / "list.txt"
    assert call("keys", "publish", listed, "--registry", platform.registry)[0] == 0
    return listed, listed.read_text().split()[-1]


def checker(platform: Platform, events: int) -> Mark:
    """The script's mark, which knows the first events."""
    mark = platform.forger.mark()
    mark.known = platform.shown().up_to(events).leaves
    return mark


def rows_of(platform: Platform, out: str) -> list[tuple[int, str]]:
    lines = (platform.folder / out / "tokens.csv").read_text().splitlines()
    return [(int(token), why) for token, why in (line.split(",") for line in lines)]


def scan_second(platform: Platform, *texts: str) -> list[dict]:
    """Scan texts after a claim about another one. Their rows, by the night's order."""
    platform.scan(platform.text())
    assert platform.claim("--yes")[0] == 0
    platform.night.write("b", texts)
    platform.night.scan()
    rows = sorted(platform.night.verdicts().to_dicts(), key=lambda row: (row["path"], row["row"]))
    return [row for row in rows if row["path"].endswith("b.parquet")]


costly = pytest.mark.costly
on_a_night = pytest.mark.usefixtures("without_ray", "opened_once")


@costly
@on_a_night
@pytest.mark.parametrize("method", METHODS)
def test_a_flag_whose_scan_left_positions_out_has_a_proof(tmp_path, words, method):
    """It counts the events that the scan knew, whatever is claimed later."""
    platform = Platform(tmp_path, words, method=method)
    secret = platform.forger.secret
    (row,) = scan_second(platform, platform.text(200, 2))
    listed, head = published(platform)
    proof(platform, "b:0", "proof")
    claim, rows, mark = platform.read("claim.json", "proof"), rows_of(platform, "proof"), checker(platform, 1)
    ngrams = ngrams_of(rows, mark.window, "scored")
    assert (claim["scored"], row["scored"] < len(ngrams)) == (len(ngrams), True)
    assert claim["score"] == pytest.approx(plain_score(mark, ngrams, MESSAGE), rel=1e-12)
    assert claim["log10_p"] == mark.log10_p(claim["score"], len(ngrams))
    assert claim["log10_p"] > row["log10_p"]
    lines = b"".join(event_bytes(event) + b"\n" for event in platform.shown().events)
    assert (platform.folder / "proof" / "events.jsonl").read_bytes() == lines
    assert "events.jsonl" in (platform.folder / "proof" / "README").read_text()
    code, said = platform.checked(secret, listed, head, out="proof")
    assert (code, "FAILS" in said, "NOT CHECKED" in said, NO_OTHER in said) == (0, False, False, True), said
    assert platform.claim("--yes", document="b:0", out="second")[0] == 0
    code, said = platform.checked(secret, *published(platform), out="proof")
    assert (code, said.count("NOT CHECKED"), "has 2 claims of this key, of which 1 count here" in said) == (3, 1, True)
    proof(platform, "b:0", "again")
    assert platform.read("claim.json", "again") == claim


@costly
@on_a_night
def test_a_flag_with_nothing_left_out_has_the_numbers_of_its_row(tmp_path, words):
    """Where there is an event, and where there is none: then the folder does not speak of events."""
    platform = Platform(tmp_path, words, seeds=20)
    (row,) = scan_second(platform, platform.text(60, 2))
    proof(platform, "a:0", "first")
    proof(platform, "b:0", "second")
    names = ("scored", "score", "log10_p", "log10_p_global")
    assert [platform.read("claim.json", "second")[name] for name in names] == [row[name] for name in names]
    assert [(platform.folder / out / "events.jsonl").exists() for out in ("first", "second")] == [False, True]
    assert "events" not in (platform.folder / "first" / "README").read_text()
    explainer = Explainer(platform.night.config)
    case = find_case(explainer.results, explainer.rate, "b:0")
    for name in names[1:]:
        other = FlagCase({**case.row, name: case.row[name] + 1}, case.scan)
        with pytest.raises(Refused, match="computes a score or p-value that differs from the row's"):
            write_claim(explainer, other, tmp_path / "other")


@costly
@on_a_night
def test_a_part_whose_scan_left_positions_out_is_claimed_as_the_strongest_window(tmp_path, words, plain):
    platform = Platform(tmp_path, words)
    platform.night.configure(more="spans = { windows = true }")
    (row,) = scan_second(platform, f"{plain(500, 1)}{platform.text(70, 2)}{plain(500, 2)}")
    assert row["look"] == "span"
    proof(platform, "b:0", "proof")
    claim, rows, mark = platform.read("claim.json", "proof"), rows_of(platform, "proof"), checker(platform, 1)
    ngrams = ngrams_of(rows, mark.window, "scored", "outside the part")
    windows = windows_of(len(ngrams))
    assert (claim["look"], claim["parts"]) == ("span", len(windows))
    terms = [mark.term(ngram, MESSAGE) for ngram in ngrams]
    scores = {one: plain_score(mark, ngrams[slice(*one)], MESSAGE) for one in windows if sum(terms[slice(*one)]) > 12}
    of_best = min((mark.log10_p(score, end - begin), score) for (begin, end), score in scores.items())
    assert (claim["log10_p"], claim["score"]) == of_best
    _, said = platform.checked(platform.forger.secret, *published(platform), out="proof")
    assert ("FAILS" in said, NO_OTHER in said, "the part is a window of the text" in said) == (False, True, True), said


@costly
@on_a_night
def test_a_long_diluted_text_that_has_no_claim_for_anybody_has_a_proof(tmp_path, words, plain):
    """Its marked words are too few among 1,000 positions, and words of a claimed text were put into it."""
    platform = Platform(tmp_path, words, seeds=14)
    own, filler, claimed = platform.text(600, 8).split(), plain(6000, 5).split(), platform.text().split()
    parts = [own[i * 15 : (i + 1) * 15] + filler[i * 150 : (i + 1) * 150] for i in range(40)]
    (row,) = scan_second(platform, " " + " ".join(word for part in [*parts, claimed[20:30]] for word in part))
    assert row["flagged"]
    code, said = platform.claim("--yes", document="b:0", out="second")
    assert (code, "`brickscan replay --proof` writes a claim" in said) == (2, True), said
    proof(platform, "b:0", "proof")
    _, said = platform.checked(platform.forger.secret, *published(platform), out="proof")
    assert ("FAILS" in said, NO_OTHER in said) == (False, True), said
