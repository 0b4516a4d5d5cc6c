"""Draws from a corpus before anything is scored: distinct texts, documents of a case, pieces of the figure."""

import numpy as np

from scanner.audit.calibration.calibration_plan import KEY_STRIDE, distinct_documents, draw_documents, draw_fragments


def test_a_text_counts_once():
    digests = [np.array([5, 7, 5], np.uint64), np.array([7, 9], np.uint64), np.array([], np.uint64)]
    assert [part.tolist() for part in distinct_documents(digests)] == [[0, 1], [1], []]
    assert distinct_documents([]) == []


def test_documents_are_drawn_without_replacement_while_they_last():
    available = [np.array([0, 2, 5]), np.array([], np.int64), np.array([1, 3])]
    drawn = draw_documents(available, 4, b"seed", case=3)
    assert sum(len(places) for places, _ in drawn) == 4
    for (places, _), offered in zip(drawn, available, strict=True):
        assert len(set(places.tolist())) == len(places)
        assert set(places.tolist()) <= set(offered.tolist())
    more = draw_documents(available, 12, b"seed", case=3)
    assert set(np.bincount(more[0][0], minlength=6)[[0, 2, 5]].tolist()) <= {2, 3}  # all come before any repeats
    numbers = np.concatenate([numbers for _, numbers in more])
    assert sorted(numbers.tolist()) == list(range(3 * KEY_STRIDE, 3 * KEY_STRIDE + 12))


def test_pieces_are_as_many_as_asked():
    lengths, available = [np.array([600, 255, 256]), np.array([1000])], [np.array([0, 1, 2]), np.array([0])]
    for count, wanted in ((3, 3), (6, 6), (100, 6)):
        taken = draw_fragments(lengths, available, count, 256, b"seed")
        assert sum(int(part.sum()) for part in taken) == wanted
        assert (np.concatenate(taken) <= [2, 0, 1, 3]).all()
    without = draw_fragments(lengths, [np.array([0]), np.array([], np.int64)], 100, 256, b"seed")
    assert [part.tolist() for part in without] == [[2, 0, 0], [0]]
