"""Spans through a whole scan: committed once, named, erased, and dropped with their night."""

import polars as pl
import pytest

from scanner.evidence.explainer import Explainer
from scanner.evidence.page import page
from scanner.evidence.replay import replay
from scanner.evidence.sentences import record_of
from scanner.results.retention import erase_user
from scanner.results.transactions import read_whole
from tests.support.two_keys import message_of

pytestmark = pytest.mark.usefixtures("without_ray")


@pytest.fixture
def scanned(night, registry, marked, plain):
    alice = message_of(registry, "green", "alice")
    night.configure(more="spans = { windows = true }")
    quoted = "".join(f"> {marked(alice, 40, seed)}\n" for seed in (6, 7, 8))
    quoting = f"{plain(600, 9)}\n\n{quoted}\n{plain(900, 10)}"
    night.write(
        "a", [plain(500, 1) + marked(alice, 80, 2) + plain(300, 3), plain(300, 4), marked(alice, 120, 5), quoting]
    )
    night.scan()
    return night


def spans_in(night) -> pl.DataFrame:
    return read_whole(night.results, "spans").collect().sort("path", "row", "log10_p")


@pytest.mark.costly
def test_a_night_with_spans(scanned):
    night = scanned
    verdicts, spans = night.verdicts(), spans_in(night)
    assert verdicts["flagged"].to_list() == [True, False, True, True]
    assert verdicts["look"].to_list() == ["span", None, None, "span"]
    assert spans["row"].unique(maintain_order=True).to_list() == [0, 2, 3]
    assert set(spans["user_id"]) == {"alice"}
    assert set(spans["keys"]) == {night.plan().key_set}
    assert set(spans["proof"]) == {"proved"}
    night.scan()
    assert spans_in(night).equals(spans)  # committed once
    replayed = replay(night.config, "a:0")
    assert replayed.evidence_equal, [field for field in replayed.fields if not field.equal]
    with_spans = night.plan().verdict_settings
    night.configure()
    without = night.plan().verdict_settings
    assert without != with_spans
    assert '"weights"' not in night.plan().verdict_settings
    of_both = "spans = { windows = true, segments = true }"
    night.configure(more=of_both)
    assert night.plan().verdict_settings not in (with_spans, without)
    night.configure(more="spans = { windows = true }")
    explained_quotation(night)
    erase_user(night.results, ["alice"])
    erased = spans_in(night)
    assert (set(erased["user_id"]), set(erased["naming"])) == ({None}, {"removed"})
    columns = ["user_id", "naming"]
    assert erased.drop(columns).equals(spans.drop(columns))


def explained_quotation(night) -> None:
    """Check that the quoting text's explanation says where its marked part is, for whom, and that its poster quotes."""
    explained = Explainer(night.config).explain("a:3")
    record, html = record_of(explained), page(explained)
    (span,) = record["spans"]
    quoted = explained.text.index(">"), explained.text.rindex("\n\n")
    assert quoted[0] <= span["char_from"] < span["char_to"] <= quoted[1] + 1
    assert (span["user_id"], record["look"]) == ("alice", "span")
    said = {line["heading"]: line["sentence"] for line in record["says"]}
    assert said["Marked parts"].endswith(
        "All of them are in quoted lines: the account that posted this quotes marked text"
    )
    assert "have a part that scores as high" in said["How rarely chance does this"]
    assert html.count('<span class="line m">') > 0
    assert "A part that is marked on its own is between" in html


def test_units_need_weights_that_leave_room(night):
    from scanner.errors import Refused

    for weights, wrong in (
        ("document = 0.9", "weights.span is missing"),
        ("document = 0.9, span = 0.2", "more than 1"),
    ):
        night.configure(more=f"spans = {{ windows = true }}\nweights = {{ {weights} }}")
        with pytest.raises(Refused, match=wrong):
            night.plan()
    night.configure(more="spans = { windows = true }\nweights = { document = 0.9, span = 0.1 }")
    assert '"span":0.1' in night.plan().verdict_settings.replace(" ", "")
