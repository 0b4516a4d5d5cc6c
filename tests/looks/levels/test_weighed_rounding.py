"""A flag by levels of a long text is computed again as it stands: what the law adds for rounding is no difference."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scanner import generation
from scanner.detection.attribution import OpenedKey
from scanner.detection.rounding import nearly_equal
from scanner.evidence.replay import replay
from scanner.registry import new_key
from scanner.watermark.level_laws import CHARACTERS_READ
from tests.fixed import fix_secrets
from tests.support.foregone import chain_model  # noqa: F401 - a fixture
from tests.support.night import Night
from tests.support.opened import opened
from tests.support.two_keys import TOKENIZER

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("without_ray")]

FORM: dict[str, Any] = {"format": "vllm-dual-key", "alpha": 0.1, "messages": 1}
"""Two keys of which one counts a ninth of the other: their sums have the longest series, of most rounding."""

CHEAP = 0.02
"""Share of the tokens that count once, those of smallest draws; all others count eight times."""


def two_keys(folder: Path) -> OpenedKey:
    fix_secrets(folder, "k")
    secret = folder / "secrets" / "k.key"
    secret.write_text(secret.read_text()[:16])
    new_key(folder, "k", tokenizer=TOKENIZER, **FORM)
    (key,) = opened(folder)
    return key


def reading_by_draws(key: OpenedKey, text: str) -> NDArray[np.uint8]:
    """Steps of surprise by which a text that nobody marked speaks for a key: levels 8, and 1 where draws are small."""
    mark: Any = key.watermark
    tokens = key.tokenizer.encode([text])
    positions = mark.rule.positions(tokens, "ngram")
    added = mark.terms_of_keys(tokens, positions, 0)[0]
    cheap = positions.index[np.argsort(added)[: int(CHEAP * len(added))]]
    steps, begins = np.zeros(len(text), np.uint8), key.tokenizer.reference.begins(text)
    steps[begins] = 255
    steps[begins[cheap]] = 4
    return steps


def test_a_long_text_of_two_keys_is_computed_again_as_it_stands(
    tmp_path: Path,
    chain_model: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = two_keys(tmp_path / "registry")
    letters = np.random.default_rng(12).integers(ord("a"), ord("z") + 1, (CHARACTERS_READ // 6, 5)).astype(np.uint8)
    text = " ".join(word.tobytes().decode() for word in letters)

    def surprise(reader: generation.TextReader, texts: Sequence[str]) -> list[NDArray[np.uint8]]:
        return [reading_by_draws(key, one) for one in texts]

    monkeypatch.setattr(generation.TextReader, "surprise", surprise)
    night = Night(tmp_path, tmp_path / "registry")
    night.write("a", [text])
    night.configure(rate=0.01, more=f'[levels]\nmodel = "{chain_model}"\ncut = 1.0\n')
    night.scan()
    place = f"{next(night.input.glob('*.parquet'))}:0"
    found = {field.field: field for field in replay(night.config, place).fields}
    assert [name for name, field in found.items() if not field.equal] == []
    assert not nearly_equal(found["score"].recorded, found["score"].again)  # else this text shows nothing
    assert found["log10_p"].recorded > -20
