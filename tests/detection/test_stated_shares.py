"""K of proofs is computed from the configuration by a path of its own: what is lost on the other one is refuted."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from scanner.detection.attribution import BatchOrigin, BatchResult
from scanner.detection.detector import Detector
from scanner.detection.open_plan import open_prover
from scanner.detection.rules import Rules
from scanner.detection.stated_shares import StatedShares, account_correction, span_correction, text_corrections
from scanner.error_shares import ErrorShares
from scanner.registry import Holders, load_registry
from schemas.config import ScanConfig
from schemas.registry import MasterKey
from schemas.tables import DOCUMENTS
from tests.support.opened import opened
from tests.support.two_keys import message_of

SPANS = {"windows": True}
SHARES = {"document": 0.4, "span": 0.3, "account": 0.2, "levels": 0.1, "as_written": 0.9, "normalised": 0.1}


def configuration(**fields: object) -> ScanConfig:
    same = {"version": 2, "registry": "r", "results": "o", "false_positive_rate": 1e-6}
    return ScanConfig.model_validate(same | {"input": {"paths": ("in.parquet",), "account": "who"}} | fields)


def looks() -> list[ScanConfig]:
    """Every choice of looks and variants, with equal shares and with shares of their own."""
    choices = []
    for spans, accounts, levels, normalised, shares in product(
        ({}, SPANS, {"segments": True}), (None, {"nights": 7}), (None, {"model": "m"}), (False, True), ({}, SHARES)
    ):
        variants, on = {"normalised": normalised}, {"spans": spans, "accounts": accounts, "levels": levels}
        choices.append(configuration(variants=variants, weights=shares, **on))
    return choices


@pytest.fixture(scope="module")
def keys(registry) -> list[MasterKey]:
    """Keys of all kinds: of many messages, of one that a model can weigh, of a weight of its own, of an assumed law."""
    green = load_registry(registry).keys[0]
    how = {"key_id": "k", "secret": "file:k", "created_at": green.created_at, "tokenizer": green.tokenizer}
    one = MasterKey.model_validate(how | {"format": "gumbel", "parameters": {"window": 4}, "messages": 1})
    return [
        green,
        green.model_copy(update={"one_of": 4}),
        one,
        MasterKey.model_validate(how | {"format": "sbw", "parameters": {}, "messages": 1}),
    ]


@pytest.mark.parametrize("config", looks())
def test_both_paths_give_the_same_numbers(config, keys):
    weights, stated = ErrorShares.of(config), StatedShares.of_config(config)
    nights = config.accounts.nights if config.accounts else 1
    for key in keys:
        np.testing.assert_allclose(text_corrections(stated, key, 3), weights.corrections(key, 3), rtol=1e-15)
        assert span_correction(stated, key, 3) == weights.correction_of_spans(key, 3)
        if weights.account is not None:
            assert account_correction(stated, key, 3) == pytest.approx(weights.correction_of_accounts(key, 3) * nights)
        if weights.levels is not None:
            by_levels = text_corrections(stated.of_levels(), key, 3), weights.for_levels().corrections(key, 3)
            np.testing.assert_allclose(*by_levels, rtol=1e-15)
        on_record = StatedShares.on_record(**weights._asdict())
        np.testing.assert_array_equal(text_corrections(on_record, key, 3), text_corrections(stated, key, 3))


def test_numbers_of_a_text_with_all_looks(keys):
    """The example of the docstring, and of ErrorShares.corrections."""
    stated = StatedShares.of_config(configuration(variants={"normalised": True}, spans=SPANS))
    assert text_corrections(stated, keys[0], 2)[0].tolist() == [[2, 4], [4, 8]]
    assert span_correction(stated, keys[0], 2) == 4
    shares = {"document": 0.6, "span": 0.4, "as_written": 0.75, "normalised": 0.25}
    stated = StatedShares.of_config(configuration(variants={"normalised": True}, spans=SPANS, weights=shares))
    expected = [[[2, 2 / 0.6], [2 / 0.75, 2 / 0.45]], [[8, 2 / 0.15], [8, 2 / 0.15]]]
    np.testing.assert_allclose(text_corrections(stated, keys[0], 2), expected, rtol=1e-15)


@pytest.fixture
def scanned(registry, marked, plain):
    """Gives the verdicts and spans of a marked text, of one in capitals, and of one in the middle of plain text."""
    alice = message_of(registry, "green", "alice")
    long = plain(900, 1) + marked(alice, 80, 2) + plain(700, 3)
    texts = [marked(alice, 60, 1), marked(alice, 60, 2).replace("e", "\u0435"), long]

    def scan() -> BatchResult:
        under_test = opened(registry)
        rules = Rules.of(configuration(variants={"normalised": True}, spans=SPANS), 2)
        detector = Detector(
            under_test, Holders.load(registry, ["green", "gum"]), rules, open_prover(registry, under_test, rules)
        )
        rows = [{"row": row, "text": text.encode()} for row, text in enumerate(texts)]
        return detector.score_batch(pa.RecordBatch.from_pylist(rows, DOCUMENTS), BatchOrigin("s", "s", "p"))

    return scan


def proofs(result: BatchResult) -> SimpleNamespace:
    return SimpleNamespace(texts=result.verdicts["proof"].to_pylist(), parts=set(result.spans["proof"].to_pylist()))


@pytest.mark.seconds
def test_sound_flags_are_proved(scanned):
    result = scanned()
    assert result.verdicts["variant"].to_pylist() == [None, "normalised", None]
    assert proofs(result) == SimpleNamespace(texts=["proved"] * 3, parts={"proved"})


@pytest.mark.seconds
def test_flags_of_parts_that_pay_for_no_key_and_no_look_are_refuted(scanned, monkeypatch):
    """p of parts is a quarter of what it should be: such flags read `proved` while proofs shared the number."""
    monkeypatch.setattr(ErrorShares, "correction_of_spans", lambda *_: 1.0)
    assert proofs(scanned()) == SimpleNamespace(texts=["differs", "proved", "differs"], parts={"differs"})


@pytest.mark.seconds
def test_flags_of_texts_that_pay_for_no_look_are_refuted(scanned, monkeypatch):
    whole = ErrorShares.corrections
    monkeypatch.setattr(ErrorShares, "corrections", lambda self, *key: whole(self, *key) / 2)
    assert proofs(scanned()) == SimpleNamespace(texts=["differs", "differs", "proved"], parts={"proved"})


@pytest.mark.seconds
def test_flags_that_pay_for_no_other_key_are_refuted(scanned, monkeypatch):
    monkeypatch.setattr(MasterKey, "tested_among", lambda *_: 1)
    assert proofs(scanned()) == SimpleNamespace(texts=["differs"] * 3, parts={"differs"})
