"""Which flags have a claim that anybody can check: one function decides, for pages and for `brickscan claim`."""

from pathlib import Path

import pytest

from scanner.evidence.case import FlagCase
from scanner.evidence.offered_claim import offer, refusal
from scanner.registry import new_key
from scanner.registry.key_records import RecordTerms
from schemas.config import ClaimsConfig
from tests.fixed import fix_secrets
from tests.support.two_keys import TOKENIZER

LOOKS = ("as written/1", "normalised/1")
ROW = {"message": 7, "audit": "no_alarm", "look": None, "variant": None}
SCAN = {"dedup": "ngram", "filter_sha256": None}


@pytest.fixture
def registry(tmp_path):
    folder = tmp_path / "registry"
    fix_secrets(folder, "k", "short", "old")
    own = {"gamma": "1/4", "messages": 400, "tokenizer": TOKENIZER}
    terms = RecordTerms(dict.fromkeys(LOOKS, 0.5))
    keys = {
        key_id: new_key(folder, key_id, format="greenlist-v3", window=window, seeds=4, terms=terms, **own)
        for key_id, window in (("k", 3), ("short", 2))
    }
    return folder, keys | {"old": new_key(folder, "old", format="greenlist", window=4, **own)}


def words(registry, key_id="k", row=None, scan=SCAN, **settings):
    folder, keys = registry
    case = FlagCase({"path": "a.parquet", "row": 3, "doc_id": "it's", **ROW, **(row or {})}, scan)
    return offer(case, keys.get(key_id), str(folder), Path("scan.toml"), ClaimsConfig(**settings))


def test_the_offer_says_what_it_shows_before_its_command(registry):
    said = words(registry, asked_by="the accused", most_a_month=3)
    told = [
        "1,000 seeds",
        "sees every message",
        "no longer count",
        "5 %",
        "the accused",
        "3 such claims",
    ]
    places = [said.index(part) for part in (*told, "brickscan claim scan.toml")]
    assert places == sorted(places)
    assert "Who may ask" not in words(registry)


@pytest.mark.parametrize(
    ("changed", "scan", "key_id", "why", "by_secret"),
    [
        ({"message": None}, SCAN, "k", "no message is shown", False),
        ({}, None, "k", "its scan has not finished", False),
        ({"audit": "alarm"}, SCAN, "k", "raised an alarm", False),
        ({"look": "levels"}, SCAN, "k", "how much they surprised a model", False),
        ({}, SCAN, "old", "to another stack, or to version 1", True),
        ({}, SCAN, "short", "fewer than 3 tokens", True),
        ({}, SCAN | {"dedup": "context"}, "k", "counted repeats differently from", True),
        ({}, SCAN | {"filter_sha256": "ab"}, "k", "left out common n-grams", True),
        (
            {"look": "span"},
            SCAN,
            "k",
            "was found by the look 'parts/1', which is not in the public record of key 'k'",
            True,
        ),
    ],
)
def test_what_has_no_such_claim(registry, changed, scan, key_id, why, by_secret):
    refused = refusal(ROW | changed, scan, registry[1][key_id], LOOKS if key_id != "old" else ())
    assert (why in str(refused), "replay --proof" in str(refused)) == (True, by_secret)
    said = words(registry, key_id, changed, scan)
    assert "brickscan claim" not in (said or "")
    if by_secret:
        assert said.startswith("by a party that holds the key's secret")
        assert why in said
    else:
        assert said is None


def test_flags_that_nobody_can_be_offered(registry):
    assert words(registry, "gone") is None
    assert words(registry, scan=None) is None
    (registry[0] / "records" / "k.json").unlink()
    assert words(registry) is None
