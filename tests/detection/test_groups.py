"""Keys with groups of users, from text to verdict: who is named, and that no user is shown where none is certain."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from scanner.detection import attribution, detector
from scanner.detection.attribution import BatchOrigin
from scanner.detection.detector import Detector
from scanner.detection.one_text import TextCheck, check_text
from scanner.detection.open_plan import open_detector, open_prover
from scanner.detection.rules import Rules
from scanner.error_shares import ErrorShares
from scanner.registry import Holders
from scanner.scan_plan import make_plan
from schemas.tables import DOCUMENTS
from tests import reference3
from tests.support.groups import GROUPS, USERS, held, make_key, writer
from tests.support.two_keys import words_of_one_token


@pytest.fixture(scope="module", params=["greenlist-v3", "gumbel-v3"])
def key(request, tmp_path_factory):
    return make_key(tmp_path_factory.mktemp("groups") / "registry", request.param, groups=GROUPS)


@pytest.fixture(scope="module")
def words():
    return words_of_one_token()


@pytest.fixture(scope="module")
def write(key, words):
    return writer(key, words)


def verdicts(key, texts: list[str]) -> list[dict]:
    registry, under_test = key
    under = Detector(
        [under_test],
        Holders.load(registry, ["k"]),
        rules := Rules(1e-6, 1),
        open_prover(registry, [under_test], rules),
    )
    return said(under, texts)


def said(under: Detector, texts: list[str]) -> list[dict]:
    after = datetime(2100, 1, 1, tzinfo=UTC)
    times = {"created_at": after, "created_at_latest": after}
    rows = [{"row": i, "doc_id": str(i), "text": text.encode(), **times} for i, text in enumerate(texts)]
    found, refused, *_ = under.score_batch(
        pa.RecordBatch.from_pylist(rows, DOCUMENTS), BatchOrigin("scan", "shard", "a.parquet")
    )
    assert not len(refused)
    return found.to_pylist()


def of_other_groups(messages: dict[str, int], users: list[str], count: int, besides=frozenset()) -> list[str]:
    """The first users that are all in different groups: messages are dealt by chance."""
    first = {messages[user] // GROUPS: user for user in reversed(users)}
    return [user for group, user in first.items() if group not in besides][:count]


@pytest.mark.seconds
def test_whose_text_it_is_is_named(key, write):
    messages = held(key)
    texts = [write(messages[user], 140, seed) for seed, user in enumerate(USERS[:6])]
    for row, user in zip(verdicts(key, texts), USERS, strict=False):
        assert (row["flagged"], row["naming"], row["user_id"], row["message"]) == (True, "named", user, messages[user])
        assert row["messages_tested"] == GROUPS**2
        assert row["proof"] == "proved"


@pytest.mark.seconds
def test_the_numbers_are_those_of_the_plain_reference(key, write, words):
    registry, under_test = key
    message = held(key)[USERS[7]]
    text = write(message, 140, 11)
    (row,) = verdicts(key, [text])
    form, gamma = under_test.key.format.removesuffix("-v3"), under_test.key.parameters.get("gamma")
    secret = bytes.fromhex((registry / "secrets" / "k.key").read_text())
    beacon = bytes.fromhex(under_test.key.parameters["beacon"])
    plain = reference3.Method(form, secret, 2, gamma and reference3.Fraction(gamma), GROUPS, 8, beacon)
    ids = under_test.tokenizer.encode([text]).ids.tolist()
    best = plain.search(ids)[0]
    assert row["message"] == best.message == message
    assert row["score"] == pytest.approx(best.score, rel=1e-12)
    assert row["log10_p"] == pytest.approx(best.log10_p, rel=1e-9)
    assert row["log10_p_global"] == pytest.approx(best.log10_p_all, rel=1e-9)


@pytest.mark.seconds
def test_text_of_three_is_that_of_the_best_and_not_of_a_fourth(key, write):
    messages = held(key)
    whose = of_other_groups(messages, USERS[20:], 3)
    text = "".join(write(messages[user], 200, seed) for seed, user in enumerate(whose))
    (row,) = verdicts(key, [text])
    assert row["naming"] == "named"
    assert row["user_id"] in whose
    assert row["message"] == messages[row["user_id"]]
    assert row["proof"] == "proved"
    assert {one["user_id"]: one["message"] for one in row["named"]} == {user: messages[user] for user in whose}
    assert row["named"][0]["user_id"] == row["user_id"]
    p = [one["log10_p_global"] for one in row["named"]]
    assert p == sorted(p)
    assert p[:2] == [row["log10_p_global"], row["runner_up_log10_p_global"]]


def test_what_nobody_holds_is_told_beside_who_is_named(key, write):
    """Text for a message that nobody holds, and for a reserved one, beside a user's."""
    messages = held(key)
    user = of_other_groups(messages, USERS[40:], 1, besides={0, 59 // GROUPS})[0]
    free = next(m for m in range(GROUPS) if m not in messages.values() and m % 20 != 19)
    text = write(messages[user], 200, 1) + write(free, 200, 2) + write(59, 200, 3)
    (row,) = verdicts(key, [text])
    told = {one["message"]: (one["naming"], one["user_id"], one["key_id"]) for one in row["named"]}
    assert told == {
        messages[user]: ("named", user, "k"),
        free: ("unallocated", None, "k"),
        59: ("reserved", None, "k"),
    }
    assert (row["naming"], row["user_id"], "k") == told[row["message"]]


def test_text_that_is_marked_in_the_steps_of_a_group_alone_names_nobody(key, write):
    """Such a text fits all users of the group: it is flagged, and the best user, perhaps a stranger, is not shown."""
    message = held(key)[USERS[3]]
    row = verdicts(key, [write(message, 900, 5, shared=True)])[0]
    assert (row["flagged"], row["naming"], row["message"], row["user_id"]) == (True, "undecided", None, None)
    assert row["log10_p_global"] < -6
    assert row["score"] > 0
    assert row["named"] is None
    assert row["proof"] == "proved"


@pytest.mark.costly
@pytest.mark.seconds
def test_the_misnaming_rate_is_that_of_the_configuration(key, write, tmp_path):
    """At a rate of nearly 1 the best user of a group is named, and proved; at the default rate nobody is."""
    config, text = tmp_path / "scan.toml", write(held(key)[USERS[3]], 900, 5, shared=True)
    for rate, undecided in (("", True), ("misnaming_rate = 0.9999999\n", False)):
        head = f'version = 2\nregistry = "{key[0]}"\nresults = "out"\nfalse_positive_rate = 1e-6\n{rate}'
        config.write_text(f'{head}[input]\npaths = ["in"]\n')
        (checked,) = check_text(TextCheck.of_config(config), text.encode())
        (scanned,) = said(open_detector(make_plan(config)), [text])
        for row in (checked, scanned):
            assert (row["naming"] == "undecided") == undecided
            assert (row["flagged"], row["proof"]) == (True, "proved")


@pytest.mark.seconds
@pytest.mark.parametrize("hidden_first", [False, True])
def test_a_normalised_text_may_have_more_candidates_than_it_had_or_fewer(key, write, hidden_first):
    """Two users' texts, in which zero-width characters hide both marks or one; both users are looked for."""
    registry, under_test = key
    messages = held(key)
    one, two = (write(messages[user], 200, seed) for seed, user in enumerate(USERS[30:32]))
    rules = Rules(1e-6, 1, weights=ErrorShares.equal(normalised=True))
    under = Detector([under_test], Holders.load(registry, ["k"]), rules)
    both = "".join(write(messages[user], 200, 7 + i) for i, user in enumerate(USERS[32:37]))
    texts = ["\u200b".join(one + two), both] if hidden_first else ["\u200b".join(one), both]
    first, second = said(under, texts)
    assert (first["variant"], second["variant"]) == ("normalised", None)
    assert first["user_id"] in USERS[30:32]
    assert second["user_id"] in USERS[32:37]


def test_the_runner_up_is_corrected_as_the_verdict_is(key, write):
    messages = held(key)
    text = "".join(
        write(messages[user], 200, seed) for seed, user in enumerate(of_other_groups(messages, USERS[20:], 2))
    )
    (row,) = verdicts(key, [text])
    for name in ("log10_p", "runner_up_log10_p"):
        assert row[f"{name}_global"] == pytest.approx(row[name] + 2 * np.log10(GROUPS), abs=1e-6)
    assert row["log10_p"] <= row["runner_up_log10_p"] < -8


def test_a_name_that_rests_on_the_steps_of_a_group_alone_is_refuted(key, write, monkeypatch):
    """Once the second rule of naming is left out, and once its p-value is wrong."""
    text, plain = write(held(key)[USERS[3]], 900, 5, shared=True), attribution.decide
    monkeypatch.setattr(attribution, "decide", lambda found, rate, _: plain(found, rate, 1.0))
    row = verdicts(key, [text])[0]
    assert (row["naming"], row["user_id"], row["proof"], row["named"]) == ("unproved", None, "differs", None)
    monkeypatch.setattr(attribution, "decide", plain)
    searched = detector.search

    def wrong(*arguments):
        found = searched(*arguments)
        return found._replace(log10_p_own=found.log10_p_global)

    monkeypatch.setattr(detector, "search", wrong)
    row = verdicts(key, [text])[0]
    assert (row["naming"], row["user_id"], row["proof"]) == ("unproved", None, "differs")


@pytest.mark.seconds
@pytest.mark.parametrize("form", ["greenlist-v3", "gumbel-v3"])
def test_without_groups_whose_text_it_is_is_named_beside_others(tmp_path, words, form):
    key = make_key(tmp_path / "registry", form)
    messages, write = held(key), writer(key, words)
    one, two = (write(messages[user], 140, seed) for seed, user in enumerate(USERS[:2]))
    rows = verdicts(key, [one, two + one])
    assert [(row["flagged"], row["naming"]) for row in rows] == [(True, "named")] * 2
    assert rows[0]["user_id"] == USERS[0]
    assert rows[1]["user_id"] in USERS[:2]
    assert rows[1]["message"] == messages[rows[1]["user_id"]]
