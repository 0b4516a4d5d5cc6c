"""Scans record up to which event they left out what claims showed, replay by it, and refuse an older registry."""

import gc
import shutil
from pathlib import Path

import brickscan
import pytest

from jobs.summary import summary
from scanner.cluster.scan import run_scan
from scanner.errors import Refused, ScanFailed
from scanner.evidence.explainer import Explainer
from scanner.evidence.replay import replay
from scanner.looks.accounts.follow_up import AccountWorker
from scanner.registry import load_registry, new_key
from scanner.registry.leases import HeldLease, readers_before
from scanner.registry.shown_seeds import read_shown, shown_now, shown_path
from scanner.results.current_rows import ranges_ever
from scanner.results.queries import accounts
from scanner.results.registry_record import refuse_lost_events
from scanner.service import scoring
from scanner.service.scoring import Scorer, ServedScan
from schemas.service import DetectorConfig
from tests.support.command_line import call
from tests.support.night import Night
from tests.support.showing import SEEDS, make_seeded_registry, show_text
from tests.support.two_keys import TOKENIZER, marked_text, message_of

pytestmark = [pytest.mark.usefixtures("without_ray"), pytest.mark.seconds]


@pytest.fixture
def night(tmp_path, opened_once):
    return Night(tmp_path, make_seeded_registry(tmp_path / "registry"))


@pytest.fixture
def marked(night, words):
    return marked_text(night.registry, words, "seeded")


def replayed(night, document):
    again = replay(night.config, document)
    assert again.evidence_equal, [field for field in again.fields if not field.equal]
    return again.case


@pytest.mark.costly
def test_scans_before_and_after_a_claim(night, marked, plain):
    (key,) = load_registry(night.registry).keys
    alice = message_of(night.registry, "seeded", "alice")
    texts = [marked(alice, 300, 1), marked(alice, 300, 2), plain(200, 3)]
    night.write("a", texts)
    first = night.scan()
    assert night.verdicts()["shown"].to_list() == [0, 0, 0]
    (recorded,) = night.last_scan()["keys"]
    assert (recorded["event"], recorded["events_head"]) == (0, "0" * 64)
    assert recorded["positions_shown"] is None
    assert "claims showed" not in summary(first, night.results, 1e-6)
    assert call("keys", "status", night.config)[:2] == (0, "seeded: nothing was shown\n")
    assert "shown by claims" not in call("keys", "list", "--registry", night.registry)[1]

    show_text(night.registry, texts[0])
    night.write("b", texts)
    second = night.scan()
    rows = night.verdicts().filter(night.verdicts()["path"].str.ends_with("b.parquet"))
    assert rows["flagged"].to_list() == [False, True, False]
    assert rows["status"].to_list()[0] == "too_short"
    before = night.verdicts().filter(night.verdicts()["path"].str.ends_with("a.parquet"))["scored"]
    assert (rows["scored"] + rows["shown"]).to_list() == before.to_list()
    (recorded,) = night.last_scan()["keys"]
    state = read_shown(night.registry, key)
    assert (recorded["event"], recorded["events_head"]) == (1, state.head)
    assert recorded["positions_shown"] == rows["shown"].sum()
    assert recorded["positions"] == rows["scored"].sum()
    said = " ".join(summary(second, night.results, 1e-6).split())
    share = rows["shown"].sum() / before.sum()
    assert f"under seeded, {share:.1%} of the positions were left out because claims showed their seeds" in said
    assert "make a new key" in said
    code, told, _ = call("keys", "status", night.config)
    assert (code, " ".join(told.split())) == (
        0,
        f"seeded: shown by claims: 1 event, {len(state.buckets)} of 1,024 seeds under seeded, {share:.1%} of the "
        "positions were left out because claims showed their seeds; make a new key, and retire this one "
        f"({rows['shown'].sum():,} of {before.sum():,}, by scans that read event 1)",
    )
    listed = call("keys", "list", "--registry", night.registry)[1]
    assert f"  shown by claims: 1 event, {len(state.buckets)} of 1,024 seeds; `brickscan keys status` says" in listed

    show_text(night.registry, texts[1])
    for document in ("a:0", "a:1", "b:1"):  # each by the event that its scan recorded
        case = replayed(night, document)
    evidence = Explainer(night.config).explain("b:1").text_evidence
    assert (evidence.shown, evidence.scored) == (case.row["shown"], case.row["scored"])
    assert evidence.tokens == evidence.scored + evidence.shown + evidence.repeats + evidence.unscored
    assert set(ranges_ever(night.results).select("events").collect()["events"]) == {
        f'{{"seeded": [0, "{"0" * 64}"]}}',
        f'{{"seeded": [1, "{state.head}"]}}',
    }


def test_a_registry_that_lacks_what_a_scan_read_is_refused(night, marked, plain):
    older = Path(shutil.copytree(night.registry, night.folder / "older"))
    show_text(night.registry, marked(3, 60, 1))
    show_text(night.registry, marked(3, 60, 2))
    night.write("a", [plain(60, 3)])
    night.scan()
    path = Path(shown_path(night.registry, "seeded"))
    kept = path.read_bytes()
    for seed in (4, 5):
        show_text(older, marked(3, 60, seed))
    other = Path(shown_path(older, "seeded")).read_bytes()
    night.write("b", [plain(60, 4)])
    for content in (None, kept.splitlines(keepends=True)[0], other):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(Refused, match=r"lacks event 2 of key 'seeded'.*older registry "):
            night.scan()
        (night.folder / "post.txt").write_text("a post")
        text = "--text", night.folder / "post.txt"
        for arguments in (
            ("check", night.config, *text),
            ("check", "--registry", night.registry, *text),
            ("keys", "status", night.config),
        ):
            code, _, err = call(*arguments)
            assert (code, "lacks event 2 " in err) == (2, True), err
        with pytest.raises(Refused, match="lacks event 2 "):
            brickscan.open(night.registry)
        with pytest.raises(Refused, match="lacks event 2 "):
            Scorer(ServedScan.of(DetectorConfig(version=2), night.folder), b"1" * 32)
    path.write_bytes(kept)
    assert night.scan().exit_code == 0


def test_an_older_registry_that_is_put_back_while_a_scan_reads_it_is_refused(night, marked, plain, monkeypatch):
    show_text(night.registry, marked(3, 60, 1))
    night.write("a", [plain(60, 3)])
    night.scan()

    def put_back(*arguments: object) -> object:
        Path(shown_path(night.registry, "seeded")).unlink()
        return shown_now(*arguments)

    night.write("b", [plain(60, 4)])
    monkeypatch.setattr("scanner.cluster.scan.shown_now", put_back)
    with pytest.raises(Refused, match="lacks event 1 of key 'seeded'"):
        night.scan()


def test_a_key_that_was_made_again_under_another_id_lacks_what_scans_read_of_it(night, marked, plain):
    """Where an older registry was put back that has no record of it either: its seeds are the same, and some public."""
    show_text(night.registry, marked(3, 60, 1))
    night.write("a", [plain(60, 3)])
    assert night.scan().exit_code == 0
    registry, secret = night.folder / "other", "file:secrets/seeded.key"
    shutil.copytree(night.registry / "secrets", registry / "secrets")
    parameters = {"window": 3, "gamma": "1/4", "seeds": SEEDS, "tokenizer": TOKENIZER, "messages": 400}
    again = new_key(registry, "again", format="greenlist-v3", secret=secret, **parameters)
    new = new_key(registry, "new", format="greenlist-v3", **parameters)
    refuse_lost_events(night.results, str(registry), [new])
    with pytest.raises(Refused, match="lacks event 1 of key 'again'"):
        refuse_lost_events(night.results, str(registry), [new, again])


def test_a_scan_holds_a_lease_of_what_it_read(night, plain):
    """From before it reads events until it ended, of whichever ending."""
    found = []

    def watch(work, totals):
        found.append(readers_before(night.registry, "seeded", 1))

    night.write("a", [plain(60, 1)])
    assert run_scan(night.plan(), watch).exit_code == 0
    assert {(lease.kind, *lease.events.items()) for leases in found for lease in leases} == {("scan", ("seeded", 0))}
    assert readers_before(night.registry, "seeded", 1) == []


def test_a_scan_whose_lease_is_over_commits_nothing_more(night, plain):
    def delete_lease(work, totals):
        for file in (night.registry / "leases").glob("*.json"):
            (lease,) = (one for one in gc.get_objects() if isinstance(one, HeldLease) and one._path == file)
            file.unlink()
            lease.renew()

    night.write("a", [plain(60, 1)])
    with pytest.raises(ScanFailed, match=r"could not be renewed .somebody deleted it."):
        run_scan(night.plan(), delete_lease)
    assert night.last_scan()["exit_code"] == 1
    assert len(night.verdicts()) == 0
    assert night.scan().exit_code == 0
    assert len(night.verdicts()) == 1


def test_a_scan_whose_lease_was_deleted_commits_nothing_more_before_it_is_renewed(night, plain):
    night.write("a", [plain(60, 1)])
    with pytest.raises(ScanFailed, match=r"could not be renewed .somebody deleted it."):
        run_scan(night.plan(), lambda work, totals: [path.unlink() for path in leases_of(night)])
    assert len(night.verdicts()) == 0


def leases_of(night):
    return [*(night.registry / "leases").glob("*.json")]


def test_a_scan_whose_lease_is_over_commits_no_account_more(night, marked, monkeypatch):
    """Though actors finish so often that nothing is asked while none does."""
    night.configure(more="accounts = { nights = 1 }", columns='account = "who"')
    alice = message_of(night.registry, "seeded", "alice")
    night.write("a", [marked(alice, 60, seed) for seed in (1, 2)], who=["u"] * 2)
    found = AccountWorker.do

    def do(self, part):
        for path in leases_of(night):
            path.unlink()
        return found(self, part)

    with monkeypatch.context() as patch:
        patch.setattr(AccountWorker, "do", do)
        with pytest.raises(ScanFailed, match=r"could not be renewed .somebody deleted it."):
            night.scan()
    assert len(accounts(night.results).collect()) == 0
    assert night.scan().exit_code == 0
    assert len(accounts(night.results).collect()) == 1


def test_a_scan_that_cannot_hold_a_lease_is_refused(night, plain):
    night.write("a", [plain(60, 1)])
    (night.registry / "leases").write_text("")
    with pytest.raises(Refused, match="leases: cannot be written"):
        night.scan()


@pytest.mark.costly
def test_a_process_of_a_detector_whose_lease_is_over_makes_room_for_another(night, plain, monkeypatch):
    """Else it would answer no text any more, until somebody started the detector again."""
    scorer = Scorer(ServedScan.of(DetectorConfig(version=2), night.folder), b"1" * 32)
    monkeypatch.setattr(scoring, "_scorer", scorer)
    texts = [plain(200, 1).encode()]
    assert [finding.result for finding in scoring.find_marks_of(texts)[0]] == ["not found"]
    (file,) = (night.registry / "leases").glob("detector-*.json")
    file.unlink()
    scorer._opened._lease.renew()
    with pytest.raises(ValueError, match="no key is open"):
        scoring.find_marks_of(texts)
