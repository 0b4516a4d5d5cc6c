"""The best two messages by the path that scores one message at a time."""

from tests.watermark import brute_force
from tests.watermark.pairs import batch_tokens, scores_of_all


def assert_best_of_the_one_message_path(pair, batch, count):
    tokens = batch_tokens(batch)
    positions = pair.positions(tokens)
    best = pair.fast.best_two(tokens, positions, count)
    for d, row in enumerate(scores_of_all(pair, tokens, positions, count)):
        assert [best.message[d], best.second_message[d]] == brute_force.best_two(row)
        assert [best.score[d], best.second_score[d]] == row[[best.message[d], best.second_message[d]]].tolist()
