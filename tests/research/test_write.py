"""Writing a unit: every token of the vocabulary may come, and each row carries its own mark."""

from scanner.generation import LocalModel
from scanner.research.scores import score_each
from scanner.research.units import Setting, batches, write_texts
from scanner.watermark import batch_tokens
from scanner.watermark.native.format import GreenListFormat, GumbelFormat

PROMPT = "w3 w4 w5 w6 w7"


def test_no_top_k_is_left_on(tiny: LocalModel):
    """transformers keeps the 50 most probable tokens by default; here 600 samples of one step show more than 50."""
    for setting in (
        Setting(None, None, 2.0, 1.0, 1),
        Setting(GreenListFormat(window=2, gamma="1/4"), 0.5, 2.0, 1.0, 1),
    ):
        (unit,) = batches(setting, "1", [(PROMPT, 0, message) for message in range(600)], 600)
        assert len({completion.text for completion in write_texts(tiny, unit)}) > 50


def test_each_row_carries_the_mark_of_its_key(tiny: LocalModel):
    rows = [(f"w{10 + i} {PROMPT}", i % 3, 0) for i in range(6)]
    for setting in (
        Setting(GumbelFormat(window=2), None, 1.0, 0.95, 80),
        Setting(GreenListFormat(window=2, gamma="1/4"), 4.0, 0.8, 0.95, 80),
    ):
        (unit,) = batches(setting, "1", rows, 8)
        texts = [completion.text for completion in write_texts(tiny, unit)]
        tokens = batch_tokens([[int(word[1:]) for word in text.split() if word[0] == "w"] for text in texts])
        marks = unit.watermarks()
        assert (score_each(marks, tokens, 0, 16).log10_p < -5).all()
        assert (score_each([*marks[1:], marks[0]], tokens, 0, 16).log10_p > -5).all()
        assert [completion.text for completion in write_texts(tiny, unit)] == texts
