"""Quotations as spans in whole scans: with new keys, frozen nights, packs, cut texts and canaries."""

import re
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from scanner import results
from scanner.controls.canaries.canary_counts import CanaryCounts
from scanner.evidence.replay import replay
from scanner.input import documents
from scanner.registry import add_users, make_canaries, new_key
from scanner.results.retention import freeze
from scanner.results.transactions import read_whole
from tests.fixed import fix_secrets
from tests.support.signed_tables import delete_results
from tests.support.two_keys import TOKENIZER, marked_text, message_of

pytestmark = pytest.mark.usefixtures("without_ray")
SEGMENTS = "spans = { segments = true }"


@pytest.fixture
def quoting(marked, plain, own_registry):
    """A function for texts that quote 80 words, marked for a message of `green`, between unmarked words."""

    def make(message: int, seed: int, mark=marked) -> str:
        quotation = "".join(f"> {mark(message, 40, seed + i)}\n" for i in range(2))
        return f"{plain(1_000, seed + 4)}\n\n{quotation}\n{plain(600, seed + 5)}"

    return make


def spans_in(night) -> pl.DataFrame:
    return read_whole(night.results, "spans").collect().sort("path", "row", "key_id", "log10_p")


@pytest.mark.costly
def test_a_later_key_finds_its_own_quotations_and_those_of_others_stand(night, own_registry, quoting, words, plain):
    file = own_registry / "keys.toml"
    made = f"{datetime.now(UTC) - timedelta(days=30):%Y-%m-%dT%H:%M:%SZ}"
    file.write_text(re.sub(r"^created_at = .*$", f"created_at = {made}", file.read_text(), flags=re.MULTILINE))
    alice = message_of(own_registry, "green", "alice")
    fix_secrets(own_registry, "late")
    before = file.read_text()
    new_key(own_registry, "late", format="greenlist", window=2, gamma="1/4", messages=2000, tokenizer=TOKENIZER)
    add_users(own_registry, ["late"], ["alice"], datetime.now(UTC) - timedelta(hours=1))
    later, file_with_late = message_of(own_registry, "late", "alice"), file.read_text()
    late = quoting(later, 20, marked_text(own_registry, words, "late"))
    file.write_text(before)
    night.configure(more=SEGMENTS)
    night.write("a", [quoting(alice, 10) + "\n\n" + late, plain(300, 1), late])
    night.scan()
    first = spans_in(night)
    assert first.select("row", "key_id", "form", "proof").rows() == [(0, "green", "quotation", "proved")]
    assert replay(night.config, "a:0").evidence_equal
    freeze(night.results, datetime.now(UTC) + timedelta(days=40))
    file.write_text(file_with_late)
    night.scan()
    told = spans_in(night)
    assert told.select("row", "key_id", "user_id").rows() == [
        (0, "green", "alice"),
        (0, "late", "alice"),
        (2, "late", "alice"),
    ]
    assert results.spans(night.results).collect().height == 3
    night.scan()
    assert spans_in(night).equals(told)


@pytest.mark.costly
def test_texts_that_are_cut_and_no_utf8_have_their_segments_where_they_stand(night, registry, quoting, monkeypatch):
    alice = message_of(registry, "green", "alice")
    text = "é" * 10 + "\r\n\r\n" + quoting(alice, 30)
    whole, cut = text.encode(), text.index("\n\n", text.rindex(">"))
    size = len(text[: cut + 400].encode())
    monkeypatch.setattr(documents, "MAX_TEXT_BYTES", size)
    night.configure(more=SEGMENTS)
    night.write("a", [whole, b"\xff\xfe\n\n" + whole[: size - 20]])
    night.scan()
    assert night.verdicts()["status"].to_list() == ["scored_in_part"] * 2
    told = spans_in(night)
    assert told.select("form", "proof", "user_id").rows() == [("quotation", "proved", "alice")] * 2
    begin, end = text.index("> "), text.rindex(">")
    assert told["char_from"][0] == begin
    assert end < told["char_to"][0] <= cut + 2
    assert told["quoted"].min() > 0.99


def test_a_canary_that_is_named_by_a_quotation_alone_is_found(night, own_registry, quoting, plain):
    made = make_canaries(own_registry, ["green"], 2, 0.9).made
    night.configure(columns='account = "account"', audit="canaries = 4", more=SEGMENTS)
    texts = [quoting(made[i % 2].message, 10 * i) for i in range(4)]
    night.write("a", [*texts, plain(60, 1)], account=[*(made[i % 2].account_id for i in range(4)), "somebody"])
    outcome = night.scan()
    verdicts = night.verdicts()
    assert verdicts["look"].to_list() == ["span"] * 4 + [None]
    counted = CanaryCounts(**outcome.audit.facts["canaries"])
    assert (counted.due, counted.came, counted.found, counted.right, counted.wrong) == (4, 4, 4, 4, 0)
    assert outcome.exit_code == 0


@pytest.mark.costly
def test_packs_of_small_files_have_the_rows_of_files_alone(night, registry, quoting, plain, monkeypatch):
    alice = message_of(registry, "green", "alice")
    night.configure(more=SEGMENTS)
    for i in range(6):
        night.write(f"f{i}", [quoting(alice, 10 * i), plain(50, i)] if i % 2 else [plain(50, i)])
    night.scan()
    in_packs = spans_in(night).drop("scan_id", "scanned_at")
    assert in_packs.height == 3
    monkeypatch.setattr("scanner.cluster.packs.MOST_IN_A_PACK", 1)
    delete_results(night.results, night.registry)
    night.scan()
    assert spans_in(night).drop("scan_id", "scanned_at").equals(in_packs)
