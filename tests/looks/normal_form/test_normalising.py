"""A tree without a normal form reads each text as it is written, and refuses what only a normal form can answer."""

from pathlib import Path

import pytest

from scanner.detection.one_text import TextCheck
from scanner.errors import Refused
from scanner.looks import normalising
from scanner.looks.normalising import check_variants, normalise, scored_text
from schemas.config import VariantsConfig

HIDDEN = "\u200b".join("The cat sat on a mat.")


@pytest.fixture
def no_normal_form(monkeypatch):
    monkeypatch.setattr(normalising, "NORMAL_FORMS", ())


def test_a_row_of_the_text_as_written(no_normal_form):
    assert scored_text(HIDDEN, None) == normalise(HIDDEN) == HIDDEN


def test_a_row_of_the_normalised_text():
    assert scored_text(HIDDEN, "normalised") == normalise(HIDDEN) == HIDDEN.replace("\u200b", "")


def test_a_row_of_the_normalised_text_is_refused(no_normal_form):
    with pytest.raises(Refused, match="no normal form"):
        scored_text(HIDDEN, "normalised")


def test_a_configuration_that_normalises_is_refused(no_normal_form, night):
    check_variants(VariantsConfig())
    config = Path(night.config)
    TextCheck.of_config(config)
    text = config.read_text()
    assert "normalised" not in text
    config.write_text("variants = { normalised = true }\n" + text)
    with pytest.raises(Refused, match=r"variants\.normalised"):
        TextCheck.of_config(config)
