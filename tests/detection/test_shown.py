"""What claims have shown is not scored: detectors, their proofs and decoys leave it out, and say how much it was."""

import errno
import gc
import os
from pathlib import Path

import brickscan
import numpy as np
import pyarrow as pa
import pytest

from scanner.detection.attribution import BatchOrigin
from scanner.detection.detector import Detector
from scanner.detection.one_text import OpenedCheck, TextCheck
from scanner.detection.open_plan import open_keys, open_prover
from scanner.detection.rules import Rules
from scanner.errors import Refused, ScanFailed
from scanner.registry import Holders, leases, load_registry, open_key
from scanner.registry.leases import readers_before
from scanner.registry.shown_seeds import ShownUpTo, read_shown, shown_path
from scanner.watermark.formats import format_of
from schemas.tables import DOCUMENTS
from tests.support.showing import make_seeded_registry, show_text
from tests.support.two_keys import marked_text, message_of

pytestmark = pytest.mark.seconds


@pytest.fixture
def folder(tmp_path):
    return make_seeded_registry(tmp_path / "registry", "seeded", "other")


@pytest.fixture
def marked(folder, words):
    return marked_text(folder, words, "seeded")


def detector_of(folder, shown=()):
    keys = open_keys(folder, load_registry(folder).keys, fast=False, shown=shown)
    rules = Rules(1e-6, len(keys))
    return Detector(
        keys, Holders.load(folder, [key.key.key_id for key in keys]), rules, open_prover(folder, keys, rules)
    )


def score(detector, *texts):
    rows = [{"row": row, "text": text.encode()} for row, text in enumerate(texts)]
    result = detector.score_batch(pa.RecordBatch.from_pylist(rows, DOCUMENTS), BatchOrigin("scan", "shard", "a"))
    return result.verdicts.to_pylist(), result.lengths.to_pydict()


def test_what_was_shown_is_left_out_and_counted(folder, marked, plain):
    alice = message_of(folder, "seeded", "alice")
    claimed, other, unmarked = marked(alice, 120, 1), marked(alice, 400, 2), plain(200, 3)
    before, lengths = score(detector_of(folder), claimed, other, unmarked)
    assert [row["flagged"] for row in before] == [True, True, False]
    assert [row["shown"] for row in before] == [0, 0, 0] == lengths["shown"]
    assert "shown:seeded" not in lengths
    event = show_text(folder, claimed)
    assert len(event.leaves) > 80

    after, lengths = score(detector_of(folder), claimed, other, unmarked)
    assert [row["flagged"] for row in after] == [False, True, False]
    assert after[0]["key_id"] == "other"  # of which nothing was shown
    assert after[1]["key_id"] == "seeded"
    assert (after[1]["naming"], after[1]["user_id"], after[1]["proof"]) == ("named", "alice", "proved")
    assert 0 < after[1]["shown"] < 100
    assert after[1]["scored"] + after[1]["shown"] == before[1]["scored"]
    assert after[1]["log10_p"] > before[1]["log10_p"]
    # a row that is not flagged says what is under the first key, and every key's counts are told apart
    assert lengths["shown:seeded"][0] == before[0]["scored"]
    assert lengths["scored:seeded"][0] == 0
    assert lengths["scored:seeded"][1] + lengths["shown:seeded"][1] == before[1]["scored"]
    assert "shown:other" not in lengths


def test_a_text_all_of_which_was_shown_is_not_simply_too_short(folder, marked):
    claimed = marked(message_of(folder, "seeded", "alice"), 120, 1)
    show_text(folder, claimed)
    show_text(folder, claimed, "other")
    ((row,), lengths) = score(detector_of(folder), claimed)
    assert (row["status"], row["scored"]) == ("too_short", 0)
    assert row["shown"] == lengths["shown"][0] > 80


def test_an_earlier_state_is_scored_again_as_it_was(folder, marked):
    alice = message_of(folder, "seeded", "alice")
    texts = [marked(alice, 120, seed) for seed in (1, 2, 3)]
    (key, _), states = load_registry(folder).keys, []
    for text in texts:
        states.append((read_shown(folder, key).last, score(detector_of(folder), *texts)[0]))
        show_text(folder, text)
    for then, verdicts in states:
        found = score(detector_of(folder, [("seeded", then)]), *texts)[0]
        assert [row | {"scanned_at": None} for row in found] == [row | {"scanned_at": None} for row in verdicts]
    assert len({then.head for then, _ in states}) == 3
    for lost in (ShownUpTo(4, "1" * 64), states[2][0]._replace(head="1" * 64)):
        with pytest.raises(Refused, match=f"lacks event {lost.number} .*older registry"):
            detector_of(folder, [("seeded", lost)])


def test_decoys_leave_out_what_their_key_does(folder, marked):
    text = marked(message_of(folder, "seeded", "alice"), 300, 1)
    show_text(folder, marked(message_of(folder, "seeded", "bob"), 200, 2))
    detector = detector_of(folder)
    ((row,), _) = score(detector, text)
    decoy = format_of(load_registry(folder).keys[0]).open(bytes(range(32)))
    under = detector.under({"seeded": decoy}, Holders.load(folder, ["seeded"]), 1e-6)
    ((of_decoy,), _) = score(under, text)
    assert (of_decoy["flagged"], of_decoy["scored"], of_decoy["shown"]) == (False, row["scored"], row["shown"])
    assert row["shown"] > 0


def test_keys_of_which_nothing_was_shown_share_positions(folder, marked):
    first, second = (open_key(folder, key) for key in load_registry(folder).keys)
    assert first.rule == second.rule
    show_text(folder, marked(1, 60, 1))
    first, again = (open_key(folder, key) for key in load_registry(folder).keys)
    assert first.rule != again.rule == second.rule
    assert not np.array_equal(first.rule.is_shown, np.zeros(1024, np.bool_))


def test_who_looks_at_texts_for_long_follows_what_is_shown(folder, marked):
    text = marked(message_of(folder, "seeded", "alice"), 300, 1)
    check = TextCheck.of_registry(folder, ("seeded",), 1e-6)
    opened = OpenedCheck(check, fast=False, reader="program")
    (before,) = opened.score_batch([text.encode()]).verdicts.to_pylist()
    assert (before["flagged"], before["shown"]) == (True, 0)
    show_text(folder, text)
    (lease,) = readers_before(folder, "seeded", 1)
    assert (lease.kind, lease.events) == ("program", {"seeded": 0})
    for holds_before in (True, False):
        opened._lease.renew()
        assert bool(readers_before(folder, "seeded", 1)) == holds_before
        (after,) = opened.score_batch([text.encode()]).verdicts.to_pylist()
        assert (after["flagged"], after["shown"]) == (False, before["scored"])
        assert opened.of_each_key(text.encode())[0]["shown"] == before["scored"]
    (file,) = (folder / "leases").glob("*.json")
    file.unlink()
    opened._lease.renew()
    with pytest.raises(ScanFailed, match="this lease could not be renewed"):
        opened.score_batch([text.encode()])
    again = OpenedCheck(check, fast=False, reader="program")
    assert len(readers_before(folder, "seeded", 2)) == 1
    del again
    gc.collect()
    assert readers_before(folder, "seeded", 2) == []
    OpenedCheck(check, fast=False)  # a look at one text
    assert readers_before(folder, "seeded", 2) == []


def test_who_cannot_read_the_events_for_a_minute_goes_on_as_long_as_its_lease_holds(folder, marked, monkeypatch):
    """As a process with too many open files, or a network drive that answers late: claims wait for it meanwhile."""
    text = marked(message_of(folder, "seeded", "alice"), 300, 1)
    opened = OpenedCheck(TextCheck.of_registry(folder, ("seeded",), 1e-6), fast=False, reader="program")
    show_text(folder, text)

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr("scanner.registry.shown_seeds.read_named", fail)
        opened._lease.renew()
    assert opened.score_batch([text.encode()]).verdicts["flagged"].to_pylist() == [True]
    assert len(readers_before(folder, "seeded", 1)) == 1
    opened._lease.renew()
    assert opened.score_batch([text.encode()]).verdicts["flagged"].to_pylist() == [False]
    with monkeypatch.context() as patch:
        patch.setattr("scanner.registry.shown_seeds.read_named", fail)
        opened._lease.renew()
        opened._lease._valid_until = 0.0
        with pytest.raises(ScanFailed, match=r"seeded.jsonl: cannot be read \(Too many open files\)"):
            opened.score_batch([text.encode()])


@pytest.mark.parametrize("back", ["nothing", "the first event", "other events"])
def test_who_looks_at_texts_for_long_refuses_an_older_registry(folder, marked, back):
    """What was left out once is never scored again as if it were secret."""
    text = marked(message_of(folder, "seeded", "alice"), 300, 1)
    path = Path(shown_path(folder, "seeded"))
    for seed in (2, 3):
        show_text(folder, marked(1, 60, seed))
    other = path.read_bytes()
    path.unlink()
    show_text(folder, marked(1, 60, 4))
    first = path.read_bytes()
    opened = OpenedCheck(TextCheck.of_registry(folder, ("seeded",), 1e-6), fast=False, reader="program")
    show_text(folder, text)
    opened._lease.renew()
    assert opened.score_batch([text.encode()]).verdicts["flagged"].to_pylist() == [False]
    path.unlink()
    if back != "nothing":
        path.write_bytes(first if back == "the first event" else other)
    opened._lease.renew()
    with pytest.raises(ScanFailed, match=r"lacks event 2 of key 'seeded'.*older registry"):
        opened.score_batch([text.encode()])


def test_who_opens_keys_says_first_what_it_has_read(folder, monkeypatch):
    """Else a detector that is killed again and again while it opens keys, which takes long, makes claims wait."""
    show_text(folder, "a few words of a text")
    said = []

    def killed(*_: object, **__: object) -> None:
        said.extend(lease.events for lease in readers_before(folder, "seeded", 9))
        raise MemoryError

    monkeypatch.setattr("scanner.detection.one_text.open_keys", killed)
    with pytest.raises(MemoryError) as kept:  # as in a notebook, where the object would live on in the traceback
        OpenedCheck(TextCheck.of_registry(folder, ("seeded",), 1e-6), fast=False, reader="detector")
    assert said == [{"seeded": 1}]
    assert readers_before(folder, "seeded", 9) == []
    del kept


def test_a_program_that_changes_its_working_folder_reads_the_same_registry(folder, marked, monkeypatch):
    text = marked(message_of(folder, "seeded", "alice"), 300, 1)
    monkeypatch.chdir(folder.parent)
    opened = brickscan.open(folder.name)
    monkeypatch.chdir(folder)
    assert opened.check(text).users == ("alice",)
    show_text(folder, text)
    opened._check._lease.renew()
    assert opened.check(text).users == ()
    assert opened.messages("seeded", ["alice"])


def test_a_program_that_reads_the_registry_by_its_uri_reads_anew_each_minute(folder, marked, monkeypatch):
    """No claim waits for it, but an operator who brings it the new events need not start it again."""
    keys = folder / "keys.toml"
    keys.write_text(keys.read_text().replace("file:secrets", f"file:{folder}/secrets"))
    alice = message_of(folder, "seeded", "alice")
    text, other = marked(alice, 300, 1), marked(alice, 300, 2)
    opened = brickscan.open(f"file://{folder}", ["seeded"])
    show_text(folder, text)
    assert opened.check(text).users == ("alice",)
    seconds = leases._seconds
    monkeypatch.setattr(leases, "_seconds", lambda: seconds() + leases.SECONDS_TO_RENEW)
    assert opened.check(text).users == ()
    assert opened.check(other).users == ("alice",)
    Path(shown_path(folder, "seeded")).unlink()
    assert opened.check(text).users == ()
    monkeypatch.setattr(leases, "_seconds", lambda: seconds() + 2 * leases.SECONDS_TO_RENEW)
    for _ in range(2):
        with pytest.raises(Refused, match=r"lacks event 1 of key 'seeded'.*older registry"):
            opened.check(text)
    assert not (folder / "leases").exists()
