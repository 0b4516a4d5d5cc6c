"""Documents that older keys have scanned are scanned once under a new key alone, and no older flag is hidden."""

import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from scanner import results
from scanner.errors import Refused
from scanner.evidence.replay import replay
from scanner.input.shards import key_set
from scanner.registry import add_users, load_registry, make_canaries, new_key
from tests.fixed import fix_secrets
from tests.support.command_line import call
from tests.support.table_histories import scan_here
from tests.support.two_keys import TOKENIZER, marked_text, message_of

pytestmark = pytest.mark.usefixtures("without_ray")


def add_key(folder: Path, key_id: str) -> None:
    """Add a key now, and give alice a message under it."""
    fix_secrets(folder, key_id)
    new_key(folder, key_id, format="greenlist", window=2, gamma="1/4", messages=2000, tokenizer=TOKENIZER)
    # a message given after the documents' first scan would name nobody
    add_users(folder, [key_id], ["alice"], datetime.now(UTC) - timedelta(hours=1))


def make_older(folder: Path) -> None:
    """Make a registry's keys a month old, so that the registry counts as set up."""
    made = f"{datetime.now(UTC) - timedelta(days=30):%Y-%m-%dT%H:%M:%SZ}"
    file = folder / "keys.toml"
    file.write_text(re.sub(r"^created_at = .*$", f"created_at = {made}", file.read_text(), flags=re.MULTILINE))


@pytest.fixture
def late_marked(own_registry, words, tmp_path):
    """Text marked for alice under `late`, a key that the night's registry does not have yet."""
    make_older(own_registry)
    with_late = Path(shutil.copytree(own_registry, tmp_path / "with_late"))
    add_key(with_late, "late")
    make, message = marked_text(with_late, words, "late"), message_of(with_late, "late", "alice")
    return lambda length, seed: make(message, length, seed)


@pytest.fixture
def scanned(night, own_registry, marked, plain, late_marked):
    """A night scanned under `green` and `gum`; one text is marked under `late`, a key that is added afterwards."""
    alice = message_of(own_registry, "green", "alice")
    night.write("a", [marked(alice, 60, 1), late_marked(60, 2), *(plain(40, seed) for seed in range(20)), None])
    night.write("b", [plain(40, seed) for seed in range(30)])
    first = night.scan()
    assert [row["doc_id"] for row in flagged(night)] == ["a:0"]
    return first


def flagged(night) -> list[dict]:
    return results.flagged(night.results).sort("path", "row").collect().to_dicts()


def shards(night) -> pl.DataFrame:
    return results.current_rows.ranges_ever(night.results).sort("scanned_at", "path").collect()


@pytest.mark.costly
def test_only_the_new_key_looks_at_what_older_ones_have_looked_at(night, own_registry, scanned, plain):
    before, rows = flagged(night)[0], night.verdicts()
    assert scanned.totals.counts.documents == 53
    add_key(own_registry, "late")
    assert [key.one_of for key in load_registry(own_registry).keys] == [4, 4, 4]
    night.write("c", [plain(40, 99)])
    out = call("scan", night.config, "--check")[1]
    assert "53 documents only under late: the other keys are done" in out
    second = night.scan()
    assert second.totals.counts.documents == 54
    ranges = shards(night).select("path", "keys").rows()
    old, new, of_all = (key_set(ids) for ids in (["green", "gum"], ["late"], ["green", "gum", "late"]))
    names = [Path(path).stem for path, _ in ranges]
    assert sorted(zip(names, [digest for _, digest in ranges], strict=True)) == sorted(
        [("a", old), ("b", old), ("a", new), ("b", new), ("c", of_all)]
    )
    # rows of the old keys stay; a document is flagged when any key finds its mark
    assert night.verdicts().filter(pl.col("scan_id") == before["scan_id"]).equals(rows)
    after = flagged(night)
    assert [(row["doc_id"], row["key_id"], row["user_id"], row["correction"]) for row in after] == [
        ("a:0", "green", "alice", 2), ("a:1", "late", "alice", 4),
    ]  # fmt: skip
    assert after[0] | {"audit": None} == before | {"audit": None}
    assert results.verdicts(night.results).collect().height == 53
    whole = second.unread.whole
    assert (whole.documents, whole.quarantined, whole.flagged) == (54, 1, 2)

    third = night.scan()
    assert (third.work.left, third.totals.counts.documents) == ((), 0)
    assert third.unread.whole == whole
    for doc in ("a:0", "a:1"):
        found = replay(night.config, doc)
        assert found.equal, (doc, [field for field in found.fields if not field.equal])


@pytest.mark.costly
def test_a_second_new_key_looks_alone_too_and_an_end_between_is_gone_on_with(night, own_registry, scanned, monkeypatch):
    add_key(own_registry, "late")
    from scanner.cluster.commits import Committer

    flush, died = Committer.flush, []

    def dies(self):
        """The driver dies once the first shard under the new key is committed."""
        flush(self)
        if self.totals.shards and not died:
            died.append(True)
            raise KeyboardInterrupt

    monkeypatch.setattr(Committer, "flush", dies)
    assert night.scan().exit_code == 130
    monkeypatch.undo()
    done = shards(night).height
    night.scan()
    assert shards(night).height == 4 >= done
    add_key(own_registry, "later")
    last = night.scan()
    assert {shard.keys for shard in last.work.left} == {("later",)}
    assert sorted(shards(night)["keys"].unique()) == sorted(map(key_set, (["green", "gum"], ["late"], ["later"])))
    of_documents = night.verdicts().group_by("path", "row").len()["len"]
    assert of_documents.unique().to_list() == [3], "each document has one row for each set of keys"
    assert night.scan().work.left == ()


@pytest.mark.costly
def test_keys_that_are_named_one_after_the_other_look_once_each(night, own_registry, scanned, plain):
    """A scan with `keys = ["late"]` is the look of the new key; a later scan under all keys has nothing left to do."""
    add_key(own_registry, "late")
    night.configure(more='keys = ["late"]')
    assert night.scan().totals.counts.documents == 53
    night.configure()
    last = night.scan()
    assert last.work.left == ()
    assert last.unread.whole.flagged == 2


def test_what_changes_the_verdicts_of_old_keys_scans_under_all_again(night, own_registry, scanned):
    add_key(own_registry, "late")
    night.configure(more="weights = { document = 0.9 }")
    assert {shard.keys for shard in night.scan().work.left} == {()}


@pytest.mark.costly
@pytest.mark.parametrize("rule", ["min_scored = 17", 'dedup = "context"'])
@pytest.mark.parametrize("new_key_too", [False, True])
def test_a_second_rule_for_what_was_scanned_is_refused(night, own_registry, scanned, plain, rule, new_key_too):
    """The refusal, also by --check, comes before any write. New files alone are scanned under the new rule."""
    if new_key_too:
        add_key(own_registry, "late")
    night.configure(more=rule)
    before = night.verdicts()
    with pytest.raises(Refused, match=r"a\.parquet was scanned with dedup = 'ngram', min_scored = 16"):
        night.scan()
    code, _, err = call("scan", night.config, "--check")
    assert (code, "restore the earlier settings" in err) == (2, True)
    assert night.verdicts().equals(before)
    for name in ("a", "b"):
        (night.input / f"{name}.parquet").unlink()
    night.write("c", [plain(40, 99)])
    assert night.scan().totals.counts.documents == 1


@pytest.mark.parametrize("rule", ["min_scored = 17", 'dedup = "context"'])
def test_a_second_rule_after_a_scan_that_was_killed_is_refused(night, own_registry, plain, rule):
    """Its committed shards say by which rule it went; it left no row in `scans`."""
    for name in ("a", "b"):
        night.write(name, [plain(40, ord(name))])
    scan_here(night, 0, shards=1)
    assert not len(results.scans(night.results).collect())
    before = night.verdicts()
    night.configure(more=rule)
    with pytest.raises(Refused, match=r"a\.parquet was scanned with dedup = 'ngram', min_scored = 16"):
        night.scan()
    assert night.verdicts().equals(before)
    night.configure()
    assert night.scan().totals.counts.documents == 1


def test_the_first_keys_alone_have_nothing_to_look_at_again(night, own_registry, scanned):
    """Rows from before the keys had weights stand as they are."""
    add_key(own_registry, "late")
    night.configure(more='keys = ["green", "gum"]')
    assert night.scan().work.left == ()


def test_a_key_of_the_first_day_changes_the_share_of_all(night, own_registry, plain):
    night.write("a", [plain(40, 1)])
    night.scan()
    add_key(own_registry, "soon")
    assert {key.one_of for key in load_registry(own_registry).keys} == {None}
    assert {shard.keys for shard in night.scan().work.left} == {()}


@pytest.mark.costly
def test_the_audit_counts_texts_once_and_canaries_under_their_own_key(night, own_registry, marked, plain):
    """Decoys drawn again for the same texts are no new evidence; a canary is counted by the row of its own key."""
    make_canaries(own_registry, ["green"], 6, 0.9)
    make_older(own_registry)
    made = load_registry(own_registry).canaries.made
    texts = [marked(one.message, 80, seed) for seed, one in enumerate(made)]
    night.configure(columns='account = "account"', audit="share = 1.0")
    night.write("a", texts, account=[one.account_id for one in made])
    night.write("b", [plain(40, seed) for seed in range(30)], account=["x"] * 30)
    first = night.scan()
    assert first.audit.facts["canaries"]["found"] == len(made) > 0
    add_key(own_registry, "late")
    second = night.scan()
    assert {shard.keys for shard in second.work.left} == {("late",)}
    assert [second.audit.facts["canaries"][name] for name in ("found", "came")] == [len(made), len(made)]

    decoys = [outcome.audit.fields()["decoys"] for outcome in (first, second)]
    assert decoys == [2 * 36, 36]  # under decoys of two keys, and then of the one that is new
    assert second.audit.traffic.texts == first.audit.traffic.texts


@pytest.mark.costly
def test_parts_stand_that_every_key_found_whenever_it_came(night, own_registry, marked, plain, late_marked):
    """One text has a part marked under `green` and one under a later key; each part is listed once."""
    alice = message_of(own_registry, "green", "alice")
    more = "spans = { windows = true }"
    night.configure(more=more)
    night.write("a", [marked(alice, 90, 1) + plain(200, 3) + late_marked(90, 2)])
    night.scan()
    add_key(own_registry, "late")
    night.scan()

    def told() -> list[str]:
        return results.spans(night.results).sort("char_from").collect()["key_id"].to_list()

    assert told() == ["green", "late"]
    for key_ids in ('["green", "late"]', '["late"]'):
        night.configure(more=f"keys = {key_ids}\n{more}")
        night.scan()
        assert told() == ["green", "late"]


@pytest.mark.costly
def test_status_names_nights_that_wait_for_a_new_key(night, scanned, own_registry):
    """A night that was scanned before a key was made waits to be scanned under it, until it is."""
    asked = ("status", night.config, "--format", "json")
    assert json.loads(call(*asked)[1])["needs_attention"] == []
    add_key(own_registry, "late")
    (hand,) = json.loads(call(*asked)[1])["needs_attention"]
    assert re.fullmatch(r"night \S+ was scanned without key late: run `brickscan scan .*` again", hand)
    night.scan()
    assert json.loads(call(*asked)[1])["needs_attention"] == []
