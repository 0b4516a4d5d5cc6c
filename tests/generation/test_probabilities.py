"""Token probabilities in batches against one pass a token, and the Neyman-Pearson score of marked text."""

import numpy as np
import pytest
import torch

from scanner.errors import Refused
from scanner.generation import GumbelProcessor, LocalModel, token_log_probabilities
from scanner.generation import model as module
from scanner.watermark import Gumbel, batch_tokens, scored_positions
from tests.generation import slow
from tests.generation.neyman_pearson import neyman_pearson

TEXTS = [[5, 9, 9, 40], [7], [], list(range(3, 90))]
CONTEXTS = [[11, 12], [13], [4, 5, 6], []]


def one_by_one(model: LocalModel, before: list[int], text: list[int], how: tuple[float, int, float]) -> list[float]:
    out = []
    for t, token in enumerate(text):
        seen = [*before, *text[:t]]
        if not seen:
            out.append(np.nan)
            continue
        with torch.inference_mode():
            logits = model.model(torch.tensor([seen])).logits[0, -1].tolist()
        p = float(slow.distribution(logits, *how)[token])
        out.append(np.log(p) if p > 0 else -np.inf)
    return out


@pytest.mark.parametrize("how", [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.2, 60, 0.9)])
@pytest.mark.parametrize("contexts", [None, CONTEXTS], ids=["text alone", "after a prompt"])
def test_against_one_pass_a_token(tiny: LocalModel, contexts: list[list[int]] | None, how: tuple[float, int, float]):
    found = token_log_probabilities(tiny, TEXTS, contexts, temperature=how[0], top_k=how[1], top_p=how[2])
    for text, before, own in zip(TEXTS, contexts or [[]] * 4, found, strict=True):
        assert own.tolist() == pytest.approx(
            one_by_one(tiny, before, text[:12], how) + own[12:].tolist(), abs=1e-4, nan_ok=True
        )
        assert np.isnan(own).tolist() == [not before and t == 0 for t in range(len(text))]


def test_batches_and_parts_change_nothing_that_the_model_can_see(tiny: LocalModel, monkeypatch: pytest.MonkeyPatch):
    """Small batches change nothing; in a text that is cut, each token has at least half a part of text before it."""
    texts = [np.random.default_rng(n).integers(3, 97, n) for n in (3, 60, 200, 10)]
    whole = token_log_probabilities(tiny, texts)
    monkeypatch.setattr(module, "BATCH_TOKENS", 64)
    monkeypatch.setattr(module, "LOGIT_ROWS", 7)
    for a, b in zip(whole, token_log_probabilities(tiny, texts), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    monkeypatch.setattr(module, "TOKENS_A_WINDOW", 40)
    cut = token_log_probabilities(tiny, texts)
    np.testing.assert_allclose(cut[0], whole[0], atol=1e-4)
    np.testing.assert_allclose(cut[2][:40], whole[2][:40], atol=1e-4)
    assert np.isfinite(cut[2][1:]).all()
    begin = 40 - 20
    alone = token_log_probabilities(tiny, [texts[2][40:60]], [texts[2][begin:40].tolist()])
    np.testing.assert_allclose(cut[2][40:60], alone[0], atol=1e-4)


def test_marked_text_has_extremely_low_p_where_the_model_is_asked_as_it_wrote(tiny: LocalModel) -> None:
    how = {"temperature": 0.6, "top_p": 0.9}
    prompts, mark = torch.tensor([[3, 4, 5, 6, 7], [20, 21, 22, 23, 24]]), Gumbel(bytes(range(40)), 2)
    marking = GumbelProcessor(mark, [4, 8], [5, 5], **how)
    mask = torch.ones_like(prompts)
    written = tiny.model.generate(
        prompts, attention_mask=mask, logits_processor=[marking], max_new_tokens=100, do_sample=False, pad_token_id=0
    )
    texts = written[:, 5:].tolist()
    tokens = batch_tokens(texts)
    positions = scored_positions(tokens, 2, "ngram")
    draws = mark.draws_of(tokens, positions, np.array([4, 8]))
    asked = token_log_probabilities(tiny, texts, prompts.tolist(), **how)
    right = neyman_pearson(draws, np.concatenate(asked)[positions.index], positions.offsets)
    main = mark.law.log10_p(mark.score(tokens, positions, np.array([4, 8])), positions.scored)
    assert (right.log10_p < main - 3).all()
    others = mark.draws_of(tokens, positions, np.array([5, 9]))
    assert (neyman_pearson(others, np.concatenate(asked)[positions.index], positions.offsets).log10_p > -3).all()


def test_refused(tiny: LocalModel) -> None:
    with pytest.raises(Refused, match="temperature = 0"):
        token_log_probabilities(tiny, TEXTS, temperature=0.0)
