"""Several keys in one batch: each row is marked under its own, as if it were alone."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from scanner.errors import Refused
from scanner.generation import LocalModel, Sampling, complete
from scanner.generation.processor import RowsProcessor
from scanner.watermark import GreenList, Gumbel, batch_tokens, scored_positions

FIRST, SECOND = bytes(range(32)), bytes(range(1, 33))
PROMPTS = ["w3 w4 w5 w6 w7", "w9 w10 w11", "w20 w21 w22 w23"]
MESSAGES = [3, 17, 41]


def test_rows_of_several_gumbel_keys_are_those_of_each_key_alone(tiny: LocalModel):
    one, two = Gumbel(FIRST, 2), Gumbel(SECOND, 2)
    together = complete(tiny, PROMPTS, Sampling(30), 1, [one, two, one], MESSAGES)
    for row, mark in enumerate([one, two, one]):
        alone = complete(tiny, PROMPTS[row : row + 1], Sampling(30), 1, mark, MESSAGES[row : row + 1])
        assert together[row] == alone[0]


def test_rows_of_several_green_lists_are_found_under_their_own_key(tiny: LocalModel):
    marks = [GreenList(secret, 2, Fraction(1, 4)) for secret in (FIRST, SECOND)]
    done = complete(tiny, PROMPTS, Sampling(100), 1, [marks[0], marks[1], marks[0]], MESSAGES)
    tokens = batch_tokens([tiny.tokenizer.encode(completion.text).ids for completion in done])
    positions = scored_positions(tokens, 2, "ngram")
    p = np.array(
        [mark.law.log10_p(mark.score(tokens, positions, np.array(MESSAGES)), positions.scored) for mark in marks]
    )
    right = np.array([[True, False, True], [False, True, False]])
    assert (p[right] < -8).all()
    assert (p[~right] > -5).all()


def test_marks_that_do_not_fit_the_prompts_are_refused(tiny: LocalModel):
    one = Gumbel(FIRST, 2)
    with pytest.raises(Refused, match="2 marks and 3 messages for 3 prompts"):
        complete(tiny, PROMPTS, Sampling(2), 1, [one, one], MESSAGES)
    with pytest.raises(Refused, match="marked with one method"):
        complete(tiny, PROMPTS, Sampling(2), 1, [one, one, GreenList(FIRST, 2, Fraction(1, 4))], MESSAGES)


def test_rows_that_no_group_names_stay_as_they_are():
    class Negate:
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            assert input_ids.tolist() == [[2], [0]]
            return -scores

    scores = torch.tensor([[1.0], [2.0], [3.0]])
    out = RowsProcessor([((2, 0), Negate())])(torch.tensor([[0], [1], [2]]), scores)  # type: ignore[arg-type]
    assert out.tolist() == [[-1.0], [2.0], [-3.0]]
    assert scores.tolist() == [[1.0], [2.0], [3.0]]
