"""`brickscan claim`: from a flag to a folder that anybody checks, and what it refuses before anything is shown."""

import hashlib
import json
import os
import re
import shutil
import struct
import time
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from scanner.claims import claim as claims
from scanner.claims.claim import prepare, show, write
from scanner.cluster.commits import ScanTotals
from scanner.cluster.scan import run_scan
from scanner.errors import Refused
from scanner.evidence.case import FlagCase
from scanner.evidence.check_claim import Mark, windows_of
from scanner.registry import clock, find_key, load_registry
from scanner.registry.leases import CLOCK_MAY_DIFFER, HeldLease, leased, refuse_unread
from scanner.registry.shown_seeds import append_event, event_head, shown_path
from scanner.registry.signed_tables import SIGNED_TABLES_FOLDER
from scanner.results.queries import spans
from scanner.watermark.formats import format_of
from scanner.watermark.native.proof import siphash24
from scanner.watermark.native.secret import window_key
from tests.support.claiming import LOOKS, MESSAGE, Platform, make_registry
from tests.support.command_line import call
from tests.support.two_keys import TOKENIZER

pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("without_ray", "opened_once")]

NO_HEAD = "NOT CHECKED that no earlier event was left out"


@pytest.fixture
def platform(tmp_path, words) -> Platform:
    return Platform(tmp_path, words)


@pytest.mark.parametrize("method", ["greenlist-v3", "gumbel-v3"])
def test_a_flag_becomes_a_claim_that_anybody_checks(tmp_path, words, method):
    platform = Platform(tmp_path, words, method=method)
    platform.scan(platform.text())
    code, said = platform.claim("--dry-run")
    assert (code, "nothing was done" in said, platform.shown().number) == (0, True, 0), said
    assert not platform.case.exists()
    code, said = platform.claim()
    assert (code, "nobody is there to ask" in said, platform.shown().number) == (2, True, 0), said
    listed = tmp_path / "list.txt"
    call("keys", "publish", listed, "--registry", platform.registry)
    code, said = platform.claim("--yes", "--list", listed)
    assert code == 0, said
    for told in ("of them for the first time", "permanent", "time for a new key", "an erasure removes", "claim: "):
        assert told in said, said
    assert "proves something only" not in said
    head = listed.read_text().split()[-1]  # from before the claim
    code, said = platform.checked(listed, head)
    unchecked = [line for line in said.splitlines() if line.startswith("NOT CHECKED")]
    assert ("FAILS" in said, [line[: len(NO_HEAD)] for line in unchecked]) == (False, [NO_HEAD]), said
    call("keys", "publish", listed, "--registry", platform.registry)
    code, said = platform.checked(listed, head)
    assert (code, "FAILS" in said, "NOT CHECKED" in said) == (0, False, False), said
    shown = platform.shown()
    claim = platform.read("claim.json")
    assert (shown.number, claim["event"], claim["message"]) == (1, 1, MESSAGE)
    assert {*platform.read("seeds.json")} == {*map(str, shown.buckets.tolist())}
    assert event_head(shown.events[0]) == shown.head
    assert oct(platform.case.stat().st_mode)[-3:] == "700"
    assert {path.stat().st_mode & 0o777 for path in platform.case.iterdir()} == {0o600}
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".unfinished")] == []


def test_a_claim_says_where_nobody_checked_the_tables(platform):
    """As where a registry was put back that lacks its record of them: whoever makes it is told before it shows."""
    platform.scan(platform.text())
    code, said = platform.claim("--dry-run")
    assert (code, "not checked" in said) == (0, False), said
    restored, lacks = platform.folder / "restored", shutil.ignore_patterns(SIGNED_TABLES_FOLDER)
    shutil.copytree(platform.registry, restored, ignore=lacks)
    platform.night.config.write_text(platform.night.config.read_text().replace(str(platform.registry), str(restored)))
    code, said = platform.claim("--dry-run")
    unchecked = "signatures of tables were not checked: the registry has no record of these results"
    assert (code, unchecked in said) == (0, True), said


def test_a_claim_says_whom_it_cannot_convince_before_it_shows_anything(platform):
    """As of a short text: the script says NOT CHECKED of its p, which whoever made the key could come to by trying."""
    platform.scan(platform.text(60))
    code, said = platform.claim("--dry-run")
    assert (code, "proves something only to those who trust" in said) == (0, True), said
    assert platform.claim("--yes")[0] == 0
    assert re.search(r"NOT CHECKED that log10 p = \S+ counts: .* names no beacon", platform.checked()[1])


def test_a_claim_holds_nothing_of_the_key_but_what_it_shows(platform):
    platform.scan(platform.text())
    assert platform.claim("--yes")[0] == 0
    key = find_key(load_registry(platform.registry), "green")
    secret = bytes.fromhex((platform.registry / "secrets" / "green.key").read_text())
    seed_key = format_of(key).seed_key(secret).astype("<u4").tobytes()
    mark = Mark(format_of(key).label(), secret, bytes(32))
    assert mark.chacha == seed_key
    shown = {*map(int, platform.read("seeds.json"))}
    others = [mark.seed(bucket) for bucket in range(2**10) if bucket not in shown]
    for path in platform.case.iterdir():
        held = path.read_bytes()
        for hidden in (secret, seed_key, *others):
            assert hidden not in held
            assert hidden.hex().encode() not in held.lower()
    own = mark.seed(min(shown)).hex().encode()
    assert own in (platform.case / "seeds.json").read_bytes()  # so a seed would be found


def test_a_second_call_shows_nothing_new(platform):
    platform.scan(platform.text())
    assert platform.claim("--yes")[0] == 0
    first = platform.read("claim.json")
    code, said = platform.claim("--yes")
    assert (code, "already exists" in said) == (2, True)
    code, said = platform.claim("--yes", out="again")
    assert (code, "all shown by earlier claims; nothing new is shown" in said) == (0, True), said
    assert platform.read("claim.json", "again") == first
    assert platform.shown().number == 1


@pytest.mark.parametrize("where", ["before the event", "after the event"])
def test_a_claim_that_was_interrupted_is_finished_by_the_same_call(platform, where, monkeypatch):
    platform.scan(platform.text())

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(claims, "show" if where.startswith("before") else "write", die)
        assert platform.claim("--yes")[0] == 130
    assert (platform.shown().number, platform.case.exists()) == (0 if where.startswith("before") else 1, False)
    assert platform.claim("--yes")[0] == 0
    assert platform.shown().number == 1
    assert "FAILS" not in platform.checked()[1]


def test_a_folder_that_cannot_be_written_leaves_none(platform, monkeypatch):
    platform.scan(platform.text())
    prepared = prepare(platform.night.config, "a:0", None)
    files = show(prepared)
    monkeypatch.setattr(claims, "sync_to_disk", lambda _: None)
    with pytest.raises(Refused, match="cannot be written"):
        write({**files, "no/such": b""}, platform.case)
    assert not platform.case.exists()
    assert [path.name for path in platform.folder.iterdir() if path.name.endswith(".unfinished")] == []
    write(files, platform.case)
    assert "green" in repr(prepared) or "a.parquet" in repr(prepared)
    assert "seed" not in repr(prepared)


def test_seeds_that_an_earlier_claim_showed_add_their_mean_at_most(platform):
    """Two texts that share words: the second claim's p is larger than the scan's, and it holds."""
    text = platform.text()
    platform.scan(text, text[: len(text) // 4] + platform.text(100, 2))
    assert platform.claim("--yes")[0] == 0
    code, said = platform.claim("--yes", document="a:1", out="second")
    assert code == 0, said
    assert "FAILS" not in platform.checked(out="second")[1]
    events = platform.shown().events
    assert len(events) == 2
    second = platform.read("claim.json", "second")
    assert second["event"] == 2
    flag = platform.night.verdicts().to_dicts()[1]
    assert second["log10_p"] > flag["log10_p"]
    assert len(platform.read("seeds.json", "second")) > len(events[1].leaves)


def test_flags_of_a_scan_that_left_shown_positions_out(platform, plain):
    """Its claim counts what the scan left out, at its mean at most; a part of it lies on the grid of all positions."""
    platform.night.configure(more="spans = { windows = true }")
    first = platform.text()
    platform.scan(first)
    assert platform.claim("--yes")[0] == 0
    shared = first[: len(first) // 4]
    platform.night.write("b", [shared + platform.text(150, 2), plain(300, 1) + shared + platform.text(100, 3)])
    platform.night.scan()
    flags = {row["doc_id"]: row for row in platform.night.verdicts().to_dicts()}
    for document in ("b:0", "b:1"):
        code, said = platform.claim("--yes", document=document, out=document)
        assert code == 0, said
        code, said = platform.checked(out=document)
        assert "FAILS" not in said
        claim = platform.read("claim.json", document)
        assert claim["log10_p"] > flags[document]["log10_p"]
        assert len(platform.read("seeds.json", document)) > len(platform.shown().events[-1].leaves)
    assert [event.number for event in platform.shown().events] == [1, 2, 3]
    assert platform.claim("--yes", document="a:0", out="again")[0] == 0
    assert platform.read("claim.json", "again") == platform.read("claim.json")
    assert platform.shown().number == 3


def test_a_claim_that_would_not_hold_shows_nothing(platform):
    """A text of the same words: all its seeds are shown, so that it proves nothing any more."""
    text = platform.text()
    platform.scan(text, text + " again")
    assert platform.claim("--yes")[0] == 0
    code, said = platform.claim("--yes", document="a:1", out="second")
    assert (code, "(this fails: chance alone does this" in said, "so no seeds are shown" in said) == (2, True, True)
    assert re.search(r"showed (\d+) of its (\d+) seeds", said), said
    assert platform.shown().number == 1


def test_claims_that_are_made_meanwhile(platform):
    text = platform.text()
    platform.scan(text, text + " again")
    first, second = (prepare(platform.night.config, document, None) for document in ("a:0", "a:1"))
    show(first)
    with pytest.raises(Refused, match=r"another claim was made in the meantime.*no seeds are shown; run this again"):
        show(second)
    assert platform.shown().number == 1


def claim_a_part(platform, text: str) -> tuple[dict, dict]:
    """Scan a text of which a part is flagged. Returns the flag and the claim, of which every check holds."""
    platform.scan(text)
    (flag,) = platform.night.verdicts().to_dicts()
    assert flag["look"] == "span"
    assert platform.claim("--yes")[0] == 0
    _, said = platform.checked()
    assert ("FAILS" in said, "are a window of the text" in said) == (False, True), said
    return flag, platform.read("claim.json")


def test_a_window_that_was_flagged_is_the_unit(platform, plain):
    platform.night.configure(more="spans = { windows = true }")
    _, claim = claim_a_part(platform, plain(600, 1) + platform.text(80) + plain(600, 2))
    rows = (platform.case / "tokens.csv").read_text().splitlines()
    assert len(rows) == 1280
    assert claim["end"] - claim["begin"] < 200
    assert sum(row.endswith(",outside the part") for row in rows) == 1280 - (claim["end"] - claim["begin"])
    (span,) = spans(platform.night.results).collect().to_dicts()
    assert claim["end"] - claim["begin"] == span["tokens"] + 3  # the scan's own window, with the words before it
    assert claim["scored"] == span["tokens"] == span["scored"] + 1  # a repeat of words before it counts in the unit
    assert claim["parts"] == len(windows_of(1276))


def test_words_that_a_poster_writes_twice_around_marked_ones_hide_no_claim(platform, plain):
    """The scan leaves the repeated words out of the part that it flags, but a claim counts them once in its unit."""
    platform.night.configure(more="spans = { windows = true }")
    marked = platform.text(180)
    half = len(marked.split()) // 2
    first, second = (f" {' '.join(words)}" for words in (marked.split()[:half], marked.split()[half:]))
    platform.scan(plain(1500, 1) + first + plain(1500, 1) + second)
    (span,) = spans(platform.night.results).collect().to_dicts()
    assert (span["tokens"] > 1500, span["scored"] < 300) == (True, True)
    code, said = platform.claim("--yes")
    assert code == 0, said
    claim = platform.read("claim.json")
    assert (claim["look"], claim["scored"] < 200, platform.checked()[0]) == ("span", True, 3)


def test_words_that_a_poster_writes_between_all_marked_ones_hide_no_claim(platform, plain):
    """No window holds much of the mark and none of the words, so the unit is a window with both."""
    platform.night.configure(more="spans = { windows = true }")
    marked, filler = platform.text(300).split(), plain(700, 1)
    pieces = (f" {' '.join(marked[at : at + 30])}{filler}" for at in range(0, 300, 30))
    platform.scan(plain(4000, 2) + filler + "".join(pieces) + plain(4000, 3))
    assert spans(platform.night.results).collect()["tokens"].to_list() > [5000]
    code, said = platform.claim("--yes")
    assert code == 0, said
    claim = platform.read("claim.json")
    assert (claim["scored"] > 800, claim["log10_p_user_global"] < -10, platform.checked()[0]) == (True, True, 3)


def test_a_marked_paragraph_of_a_long_text_is_claimed_where_the_whole_text_was_flagged(platform, plain):
    """A claim counts at most 1,000 positions: of the whole text, these have too little of the mark."""
    platform.night.configure(more="spans = { windows = true }")
    platform.scan(plain(1750, 1) + platform.text(400) + plain(1750, 2))
    (flag,) = platform.night.verdicts().to_dicts()
    code, said = platform.claim("--yes")
    assert (flag["look"], code) == (None, 0), said
    claim = platform.read("claim.json")
    assert (claim["look"], claim["log10_p_global"] < -24, platform.checked()[0]) == ("span", True, 3)
    assert claim["correction"] == 1 / LOOKS["parts/1"]
    code, said = platform.claim("--yes", out="again")
    assert (code, "nothing new is shown" in said, platform.read("claim.json", "again")) == (0, True, claim), said


def test_words_that_are_chosen_by_the_public_hash_hide_no_claim(platform, words):
    """A poster repeats a thousand words of small hash. Of each window with them, they are the 1,000 that count."""
    platform.night.configure(more="spans = { windows = true }")
    h, generator, chosen = 3, np.random.default_rng(1), [0, 1, 2]
    halves = window_key(h, 10).astype("<u8")
    while len(chosen) < 1010:
        rows = np.stack([[*chosen[-h:], word] for word in generator.integers(len(words.words), size=40)])
        ids = words.tokens[rows].astype(np.uint32)
        nonces = (siphash24(half, ids[:, :h]) for half in (halves[:2].tobytes(), halves[2:].tobytes()))
        hashes = zip(*(number.tolist() for number in (*nonces, ids[:, h])), strict=True)
        packed = [struct.pack("<QQI", *step) for step in hashes]
        chosen.append(int(rows[min(range(40), key=lambda row: hashlib.sha256(packed[row]).digest()), h]))
    filler, marked = "".join(f" {words.words[word]}" for word in chosen), platform.text(1200).split()
    pieces = (f" {' '.join(marked[at : at + 100])}{filler}" for at in range(0, 1200, 100))
    platform.scan(filler + "".join(pieces))
    code, said = platform.claim("--yes")
    assert code == 0, said
    claim = platform.read("claim.json")
    assert (claim["scored"] < 110, claim["log10_p_global"] < -10, platform.checked()[0]) == (True, True, 3), claim


def test_claims_since_the_first_one_about_a_text_change_no_other_about_it(tmp_path, words, plain):
    """The text was claimed for one user. Then words of another user's part of it were claimed in another text."""
    platform = Platform(tmp_path, words, seeds=14)
    platform.night.configure(more="spans = { windows = true }")
    copied, own = (platform.forger.mark_words(platform.words, MESSAGE + 1, *made) for made in ((400, 7), (90, 8)))
    text = platform.text(600) + plain(1200, 3) + copied + own
    platform.scan(text, copied)
    assert platform.claim("--yes")[0] == 0
    platform.night.write("b", [text])
    platform.night.scan()
    alone = prepare(platform.night.config, "b:0", None)
    assert platform.claim("--yes", document="a:1", out="copied")[0] == 0
    code, said = platform.claim("--yes", document="b:0", out="second")
    assert code == 0, said
    claim = platform.read("claim.json", "second")
    assert (claim["message"], claim["event"], claim["begin"]) == (MESSAGE + 1, 1, alone.unit.begin), claim
    assert max(claim["log10_p_global"], claim["log10_p_user_global"]) == alone.log10_p
    for document, out in (("a:0", "case"), ("b:0", "second")):
        assert platform.claim("--yes", document=document, out=f"{out} again")[0] == 0
        assert platform.read("claim.json", f"{out} again") == platform.read("claim.json", out)
    assert platform.shown().number == 3


def test_a_claim_that_waits_is_finished_by_the_next_call_whatever_was_claimed_since(tmp_path, words, plain):
    """Another claim about some of its words is made first: it is computed anew, and then stays as it is."""
    platform = Platform(tmp_path, words, seeds=14)
    platform.night.configure(more="spans = { windows = true }")
    other, own = platform.text(70, 10), platform.text(50, 30)
    third = platform.text(90, 31) + " " + " ".join(own.split()[:20])
    platform.scan(plain(300, 1) + other + plain(300, 2) + own + plain(300, 3), other + plain(30, 3), third)
    early = prepare(platform.night.config, "a:0", None)
    assert platform.claim("--yes", document="a:1", out="other")[0] == 0
    with pytest.raises(Refused, match="run this again"):
        show(early)
    expected = show(prepare(platform.night.config, "a:0", None))["claim.json"]
    assert platform.claim("--yes", document="a:2", out="third")[0] == 0
    assert platform.claim("--yes", document="a:0")[0] == 0
    assert (platform.folder / "case/claim.json").read_bytes() == expected
    assert platform.shown().number == 3


def test_a_part_that_was_claimed_meanwhile_hides_no_other_part_of_its_text(tmp_path, words, plain):
    """The strongest part was flagged. Its words were then claimed in another text, so none of them is evidence."""
    platform = Platform(tmp_path, words, seeds=14)
    platform.night.configure(more="spans = { windows = true }")
    copied, own = platform.text(120, 7), platform.text(90, 8)
    platform.scan(plain(900, 1) + copied + plain(900, 2) + own + plain(900, 3), copied)
    assert platform.claim("--yes", document="a:1", out="copied")[0] == 0
    code, said = platform.claim("--yes")
    assert code == 0, said
    claim = platform.read("claim.json")
    assert (claim["look"], claim["scored"] < 150, platform.checked()[0]) == ("span", True, 3), claim
    assert platform.claim("--yes", out="again")[0] == 0
    assert (platform.read("claim.json", "again"), platform.shown().number) == (claim, 2)


@pytest.mark.parametrize("whose", ["of the same user", "of another user"])
@pytest.mark.parametrize("method", ["greenlist-v3", "gumbel-v3"])
def test_a_claimed_text_that_a_poster_copies_hides_no_claim(tmp_path, words, method, whose):
    """A claim counts the copied words at their mean at most, so its unit leaves them out."""
    platform = Platform(tmp_path, words, method=method)
    platform.night.configure(more="spans = { windows = true }")
    message = MESSAGE if whose == "of the same user" else MESSAGE + 1
    copied = platform.forger.mark_words(words, message, 300, 1)
    platform.scan(copied)
    assert platform.claim("--yes")[0] == 0
    platform.night.write("b", [copied + platform.text(160, 2)])
    platform.night.scan()
    code, said = platform.claim("--yes", document="b:0", out="second")
    assert code == 0, said
    claim = platform.read("claim.json", "second")
    assert (claim["look"], claim["scored"] < 230, claim["log10_p_global"] < -18) == ("span", True, True), claim
    assert platform.checked(out="second")[0] == 3
    code, said = platform.claim("--yes", document="b:0", out="again")
    assert (code, platform.read("claim.json", "again")) == (0, claim), said
    assert platform.shown().number == 2


def test_no_part_is_claimed_that_the_record_of_the_key_does_not_have(tmp_path, words, plain):
    platform = Platform(tmp_path, words, looks={"as written/1": 1.0})
    platform.scan(plain(1750, 1) + platform.text(400) + plain(1750, 2))
    code, said = platform.claim("--yes")
    assert code == 0, said
    claim = platform.read("claim.json")
    assert (claim["look"], claim["scored"], claim["log10_p_global"] > -24) == (None, 1000, True)


def test_a_paragraph_is_claimed_as_the_smallest_window_that_holds_it(platform, plain):
    platform.night.configure(more="spans = { windows = false, segments = true }")
    text = plain(300, 1) + "\n\n" + platform.text(90) + "\n\n" + plain(300, 2)
    flag, claim = claim_a_part(platform, text)
    assert claim["log10_p"] > flag["log10_p"]
    assert claim["end"] - claim["begin"] < 200


def test_a_normal_form_is_a_unit(platform):
    platform.night.configure(more="variants = { normalised = true }")
    platform.scan(platform.text(200).replace("e", "\u0435"))  # a Cyrillic letter that looks like it
    (flag,) = platform.night.verdicts().to_dicts()
    assert flag["variant"] == "normalised"
    code, said = platform.claim("--yes")
    assert code == 0, said
    code, said = platform.checked()
    assert ("FAILS" in said, "NOT CHECKED that scored.txt is the scored text, normalised" in said) == ((False, True)), (
        said
    )


def test_hidden_characters_elsewhere_in_a_text_hide_no_claim_about_a_paragraph(platform, plain):
    """A claim counts 1,000 positions of the normal form, most of them unmarked ones."""
    platform.night.configure(more="variants = { normalised = true }\nspans = { windows = true }")
    hidden = (plain(1500, 1) + platform.text(800, 2) + plain(1500, 3)).replace("e", "\u0435")
    platform.scan(hidden + platform.text(150))
    (flag,) = platform.night.verdicts().to_dicts()
    assert flag["variant"] == "normalised"
    code, said = platform.claim("--yes")
    assert code == 0, said
    claim = platform.read("claim.json")
    assert (claim["variant"], claim["look"], claim["scored"] < 200) == (None, "span", True), claim
    assert (claim["log10_p_global"] < -15, platform.checked()[0]) == (True, 3), platform.checked()[1]
    assert platform.claim("--yes", out="again")[0] == 0
    assert (platform.read("claim.json", "again"), platform.shown().number) == (claim, 1)


@pytest.mark.parametrize(
    ("registry", "why"),
    [
        ({"method": "greenlist", "window": 4}, "belongs to another stack, or to version 1 of our mark"),
        ({"window": 2}, "has windows of fewer than 3 tokens"),
        (
            {"looks": {"normalised/1": 1.0}},
            "look 'as written/1', which is not in the public record of key 'green'",
        ),
    ],
)
def test_keys_that_have_no_such_claim(tmp_path, words, registry, why):
    platform = Platform(tmp_path, words, **registry)
    platform.scan(platform.text())
    explained = call("explain", platform.night.config, "a:0")[1]
    assert why in " ".join(explained.split())
    code, said = platform.claim("--yes")
    assert (code, why in said, "`brickscan replay --proof`" in said) == (2, True, True)
    assert not platform.case.exists()
    assert not (platform.registry / "shown").exists()


def test_flags_that_have_no_such_claim(platform):
    platform.night.configure(more='dedup = "context"')
    platform.scan(platform.text())
    code, said = platform.claim("--yes")
    assert (code, "counted repeats differently from" in said) == (2, True), said
    code, said = platform.claim("--yes", document="nothing")
    assert (code, "no scan read a document of that name" in said) == (2, True)


def test_an_account(platform, monkeypatch):
    platform.scan(platform.text())
    monkeypatch.setattr(claims, "marked_accounts", lambda *_: [{"account_id": "user-17"}])
    code, said = platform.claim("--yes", document="user-17")
    assert (code, "'user-17' is an account" in said, "replay --proof" in said) == (2, True, True), said


def test_a_verdict_that_comes_out_differently(platform):
    platform.scan(platform.text())
    config = platform.night.config
    config.write_text(config.read_text().replace("rate = 1e-06", "rate = 1e-07"))
    text = platform.night.input / "a.parquet"
    kept = shutil.copy(text, platform.folder)
    platform.night.write("a", ["another text"])
    code, said = platform.claim("--yes")
    assert (code, platform.case.exists()) == (2, False), said
    shutil.copy(kept, text)
    assert not (platform.registry / "shown").exists()


def test_keys_of_other_stacks_are_counted_although_no_list_can_have_them(platform, tmp_path):
    config = tmp_path / "vllm.json"
    config.write_text(json.dumps({"key": 2**60 + 12345, "algorithm": "gumbel", "prf": "philox"}))
    common = ("--registry", platform.registry, "--tokenizer", TOKENIZER)
    code, said, err = call("keys", "add", "chat", "--from", config, *common)
    assert code == 0, said + err
    platform.scan(platform.text())
    code, said = platform.claim("--yes")
    assert (code, platform.read("claim.json")["correction"]) == (0, 2 / 0.25), said


def test_a_list_of_no_keys_is_refused(platform, tmp_path):
    platform.scan(platform.text())
    (tmp_path / "empty.txt").touch()
    code, said = platform.claim("--yes", "--list", tmp_path / "empty.txt")
    assert (code, "has no commitment yet" in said, platform.shown().number) == (2, True, 0), said


def test_the_list_is_asked_before_anything_is_shown(platform, tmp_path):
    """Keys that the list alone knows count; a list that lacks the key fails the claim."""
    platform.scan(platform.text())
    other, listed = make_registry(tmp_path / "other", "gumbel-v3"), tmp_path / "others.txt"
    call("keys", "publish", listed, "--registry", other)
    code, said = platform.claim("--yes", "--list", listed)
    assert (code, "(this fails: the list has the commitment" in said) == (2, True), said
    assert platform.shown().number == 0
    call("keys", "publish", listed, "--registry", platform.registry)
    assert platform.claim("--yes", "--list", listed)[0] == 0
    assert platform.read("claim.json")["correction"] == 2 / 0.25
    assert "FAILS" not in platform.checked(listed, listed.read_text().split()[-1])[1]


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("look", "levels", "how much they surprised a model"),
        ("audit", "alarm", "do not use any of its flags"),
        ("message", None, "no message is shown"),
    ],
)
def test_rows_that_have_no_such_claim(platform, monkeypatch, column, value, why):
    """Of flags whose row says so, here by a change of what `replay` found."""
    platform.scan(platform.text())
    replay = claims.replay

    def changed(*arguments: object) -> object:
        again = replay(*arguments)
        return again._replace(case=FlagCase({**again.case.row, column: value}, again.case.scan))

    monkeypatch.setattr(claims, "replay", changed)
    code, said = platform.claim("--yes")
    assert (code, why in said) == (2, True), said
    assert not (platform.registry / "shown").exists()


def test_a_claim_waits_for_whoever_began_before_its_event(platform, monkeypatch):
    platform.scan(platform.text())
    lease = HeldLease(platform.registry, "scan")
    lease.read({"green": 0})
    for _ in range(2):
        code, said = platform.claim("--yes")
        assert (code, "not written yet: scan " in said, "read events {'green': 0}" in said) == (2, True, True), said
        assert (platform.shown().number, platform.case.exists()) == (1, False)
    looks = []

    def look(seconds):
        looks.append(seconds)
        assert not platform.case.exists()
        if len(looks) == 3:
            lease.read({"green": 1})

    monkeypatch.setattr("scanner.claims.claim.time.sleep", look)
    code, said = platform.claim("--yes", "--wait")
    assert (code, looks, said.count("not yet: scan ")) == (0, [5.0] * 3, 1), said
    assert (platform.read("claim.json")["event"], platform.shown().number) == (1, 1)
    lease.end()


def test_a_registry_that_lacks_events_makes_no_claim(platform, plain):
    """Else the claim's event would take the number of one that is lost, and no copy could be put back any more."""
    path = Path(shown_path(platform.registry, "green"))
    platform.scan(platform.text(), platform.text(seed=2), platform.text(seed=3))
    assert platform.claim("--yes")[0] == 0
    kept, listed = path.read_bytes(), platform.folder / "list.txt"
    call("keys", "publish", listed, "--registry", platform.registry)
    path.unlink()
    code, said = platform.claim("--yes", "--list", listed, document="a:1", out="second")
    assert (code, "lacks event 1 " in said, path.exists()) == (2, True, False), said
    path.write_bytes(kept)
    platform.night.write("b", [plain(60, 1)])
    platform.night.scan()
    path.unlink()
    code, said = platform.claim("--yes", document="a:1", out="second")
    assert (code, "lacks event 1 " in said, path.exists()) == (2, True, False), said
    path.write_bytes(kept)
    assert platform.claim("--yes", "--list", listed, document="a:1", out="second")[0] == 0


@pytest.mark.parametrize("known", ["to a scan", "to the claim"])
def test_an_older_registry_that_is_put_back_while_it_is_asked_stops_a_claim(platform, known):
    """A scan that goes on by the event that is lost would seem to know the claim's own, of the same number."""
    path = Path(shown_path(platform.registry, "green"))
    platform.scan(platform.text())
    leaves = [bytes([number]) * 32 for number in range(2)]
    append_event(platform.registry, "green", b"one", [1], leaves[:1])
    older = path.read_bytes()
    first = prepare(platform.night.config, "a:0", None)
    append_event(platform.registry, "green", b"two", [2], leaves[1:])
    second = prepare(platform.night.config, "a:0", None)
    path.write_bytes(older)
    with leased(platform.registry, "scan", needed=known == "to a scan") as lease:
        lease.read({"green": 2})
        prepared, why = (
            (first, "of key 'green': an older") if known == "to a scan" else (second, "lacks event 2 of key")
        )
        with pytest.raises(Refused, match=why):
            show(prepared)
    assert path.read_bytes() == older
    show(first)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_older_registry_that_is_put_back_while_an_event_is_written_stops_a_claim(platform, monkeypatch, when):
    path = Path(shown_path(platform.registry, "green"))
    platform.scan(platform.text())
    append_event(platform.registry, "green", b"one", [1], [bytes(32)])
    prepared = prepare(platform.night.config, "a:0", None)

    def put_back(*arguments: object, **options: object) -> object:
        if when == "before":
            path.unlink()
        event = append_event(*arguments, **options)
        path.unlink()
        return event

    monkeypatch.setattr(claims, "append_event", put_back)
    with pytest.raises(Refused, match=f"lacks event {1 if when == 'before' else 2} of key"):
        show(prepared)
    assert platform.shown().number == 0


def test_a_claim_whose_event_is_lost_while_readers_are_waited_for_is_not_written(platform, monkeypatch):
    """Else nobody would know that its seeds are public: no scan has read the event, and no list has it."""
    path = Path(shown_path(platform.registry, "green"))
    platform.scan(platform.text())
    lease = HeldLease(platform.registry, "scan")
    lease.read({"green": 0})

    def put_back(_: float) -> None:
        path.unlink()
        lease.end()

    with monkeypatch.context() as patch:
        patch.setattr("scanner.claims.claim.time.sleep", put_back)
        code, said = platform.claim("--yes", "--wait")
    assert (code, "lacks event 1 " in said, platform.case.exists()) == (2, True, False), said
    assert platform.claim("--yes")[0] == 0
    assert platform.shown().number == 1


def test_a_claim_whose_readers_have_another_folder_of_leases_shows_nothing(platform):
    """As where a volume is mounted at `leases` for scans alone: a claim outside of it sees nobody, whoever reads."""
    leases = platform.registry / "leases"
    leases.mkdir()
    platform.scan(platform.text())
    leases.rename(platform.folder / "volume")
    for empty in (False, True):
        if empty:
            leases.mkdir()
        code, said = platform.claim("--yes")
        assert (code, "scans register in another folder" in said) == (2, True), said
        assert platform.shown().number == 0
    leases.rmdir()
    leases.symlink_to(platform.folder / "volume")
    assert platform.claim("--yes")[0] == 0


@pytest.mark.parametrize("empty", [False, True])
def test_a_folder_of_leases_that_goes_away_meanwhile_stops_a_claim(platform, monkeypatch, empty):
    """As where its volume is unmounted while somebody is asked, or while a claim waits for hours; scans have theirs."""
    leases, volume = platform.registry / "leases", platform.folder / "volume"

    def go_away(_: float = 0.0) -> None:
        leases.rename(volume)
        if empty:
            leases.mkdir()

    platform.scan(platform.text())
    prepared = prepare(platform.night.config, "a:0", None)
    go_away()
    with pytest.raises(Refused, match="scans register in another folder"):
        show(prepared)
    assert platform.shown().number == 0
    if empty:
        leases.rmdir()
    volume.rename(leases)
    with leased(platform.registry, "scan", needed=True) as lease, monkeypatch.context() as patch:
        lease.read({"green": 0})
        patch.setattr("scanner.claims.claim.time.sleep", go_away)
        code, said = platform.claim("--yes", "--wait")
        assert "waiting for" in said
        assert (code, "scans register in another folder" in said) == (2, True), said
        assert not platform.case.exists()
        if empty:
            leases.rmdir()
        volume.rename(leases)
    assert platform.claim("--yes")[0] == 0
    assert platform.shown().number == 1


def test_a_scan_that_has_not_ended_and_has_another_folder_of_leases_stops_a_claim(platform, monkeypatch):
    """As the first one in a container whose volume is mounted at `leases`: what it committed stands in the results."""
    leases, host, volume = platform.registry / "leases", platform.folder / "host", platform.folder / "volume"
    monkeypatch.setattr(  # clocks that do not differ, so that a second decides
        claims, "refuse_unread", lambda folder, since: refuse_unread(folder, since + CLOCK_MAY_DIFFER)
    )
    platform.scan(platform.text())
    assert platform.claim("--dry-run")[0] == 0
    leases.rename(host)
    time.sleep(1.1)
    said = []

    def claim(work: object, totals: ScanTotals) -> None:
        if totals.shards and not said:
            leases.rename(volume)
            host.rename(leases)
            said.append(platform.claim("--yes"))
            leases.rename(host)
            volume.rename(leases)

    platform.night.write("b", [platform.text(130, 2)])
    assert run_scan(platform.night.plan(), claim).exit_code == 0
    ((code, words),) = said
    assert (code, "scans register in another folder" in words) == (2, True), words
    assert platform.shown().number == 0


def test_a_flag_of_a_scan_that_was_killed_is_claimed_once_its_file_was_scanned_again(platform, monkeypatch):
    """The scan that continues leaves the flag's shard out, so a hint to scan again alone leads nowhere."""
    platform.scan_and_be_killed(monkeypatch, platform.text())
    for _ in range(2):
        code, said = platform.claim("--dry-run")
        assert (code, "did not finish" in said, "`touch` the file and scan again" in said) == (2, True, True), said
        platform.night.scan()
    os.utime(platform.night.input / "a.parquet", (0, 0))
    platform.night.scan()
    assert platform.claim("--dry-run")[0] == 0


def test_a_month_has_as_many_claims_as_scan_toml_allows(platform):
    platform.night.configure(more='claims = { asked_by = "the accused, in an appeal", most_a_month = 1 }')
    platform.scan(platform.text(), platform.text(130, 2))
    offered = " ".join(call("explain", platform.night.config, "a:0")[1].split())
    for told in (
        "Have it checked: a claim that anybody can check",
        "the accused, in an appeal",
        "1 such claim a month",
        f"brickscan claim {platform.night.config}",
    ):
        assert told in offered, offered
    code, said = platform.claim("--yes")
    assert (code, "who may ask for it, according to your scan.toml: the accused, in an appeal" in said) == (0, True), (
        said
    )
    code, said = platform.claim("--yes", document="a:1", out="second")
    assert (code, "1 claim showed seeds of it in" in said, "allows 1 a month" in said) == (2, True, True), said
    assert platform.claim("--yes", out="again")[0] == 0
    assert platform.shown().number == 1


@pytest.mark.parametrize("days", [-400, 400])
def test_a_clock_far_from_the_newest_scan_dates_no_event(platform, monkeypatch, days):
    """A date ahead would stay, since no later event is older: one month would have the claims of all later ones."""
    platform.scan(platform.text())

    class Wrong(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=days)

    with monkeypatch.context() as patch:
        patch.setattr(clock, "datetime", Wrong)
        code, said = platform.claim("--yes")
    assert (code, "this machine's clock" in said, platform.shown().number) == (2, True, 0), said
    assert platform.claim("--yes")[0] == 0


def test_a_reader_that_knows_an_event_which_the_registry_lacks_stops_a_claim(platform):
    """The claim's event would have the number of the one that is lost, and nobody would wait for the reader."""
    platform.scan(platform.text())
    lease = HeldLease(platform.registry, "program")
    lease.read({"green": 1})
    code, said = platform.claim("--yes")
    assert (code, "the registry has 0 of key 'green': an older registry" in said) == (2, True), said
    assert platform.shown().number == 0
    lease.end()
    assert platform.claim("--yes")[0] == 0


def test_a_folder_in_which_nothing_can_be_written_is_refused_before_anything_is_shown(platform, monkeypatch):
    platform.scan(platform.text())
    monkeypatch.setattr("scanner.claims.claim.os.access", lambda folder, how: folder != platform.folder)
    code, said = platform.claim("--yes")
    assert (code, "cannot write into" in said, platform.shown().number) == (2, True, 0), said


def test_a_name_may_be_as_long_as_names_are(platform):
    """Else the claim's seeds are shown, and its folder is not written."""
    platform.scan(platform.text())
    code, said = platform.claim("--yes", out="c" * 256)
    assert (code, "File name too long" in said, platform.shown().number) == (2, True, 0), said
    assert platform.claim("--yes", out="c" * 255)[0] == 0


def test_a_registry_that_cannot_be_locked_is_refused(platform):
    platform.scan(platform.text())
    (platform.registry / ".lock").unlink()
    (platform.registry / ".lock").mkdir()
    code, said = platform.claim("--yes")
    assert (code, "cannot be locked (Is a directory), so nothing was changed" in said) == (2, True), said
    assert platform.shown().number == 0
