"""Rules that every entry of FORMATS keeps, future ones too: labels, secrets, scores, laws and known answers."""

import copy
import hashlib
import pickle

import numpy as np
import pytest
from scipy import stats

from scanner.watermark import Positions, batch_tokens, formats
from scanner.watermark.format import (
    Commits,
    DrawsKeys,
    Proves,
    ProvesUserEvidence,
    ScoresParts,
    Searches,
    SearchesWindows,
    format_name,
)
from scanner.watermark.formats import FORMATS, make_format
from scanner.watermark.pooled_positions import pooled_positions
from scanner.watermark.positions import reach_of
from scanner.watermark.rule import log10_p_of
from tests.support.key_bytes import forms

PARAMETERS = {
    "greenlist": [
        {"window": 4, "gamma": "1/4"},
        {"window": 3, "gamma": "1/4"},
        {"window": 4, "gamma": "1/2"},
        {"window": 0, "gamma": "3/8"},
    ],
    "gumbel": [{"window": 4}, {"window": 0}],
    "greenlist-v3": [
        {"window": 4, "gamma": "1/4", "beacon": "5a" * 32},
        {"window": 3, "gamma": "1/4", "beacon": "00" * 32},
        {"window": 4, "gamma": "1/2", "beacon": "5a" * 32, "seeds": 12},
        {"window": 0, "gamma": "3/8", "beacon": "5a" * 32},
        {"window": 4, "gamma": "1/4", "beacon": "5a" * 32, "groups": 9},
    ],
    "gumbel-v3": [
        {"window": 4, "beacon": "5a" * 32},
        {"window": 0, "beacon": "00" * 32},
        {"window": 4, "beacon": "5a" * 32, "groups": 9, "seeds": 4},
    ],
    "vllm-gumbel": [{}, {"context_width": 5}, {"partial_contexts": "dropped"}],
    "vllm-dual-key": [{}, {"context_width": 5}, {"partial_contexts": "dropped"}, {"alpha": 0.2}],
    "sglang-one-key": [{}, {"context_window": 5}],
    "sglang-two-keys": [{}, {"context_window": 5}, {"mixing_probability": 0.3}],
    "sglang-user-keys": [{}, {"context_window": 5}],
    "hf-lefthash": [
        {"vocab_size": 1000},
        {"vocab_size": 1001, "context_width": 3},
        {"vocab_size": 1000, "greenlist_ratio": 0.5},
    ],
    "hf-selfhash": [{"vocab_size": 1000, "context_width": 4}, {"vocab_size": 1001, "greenlist_ratio": 0.5}],
    "synthid-table": [
        {},
        {"depth": 9, "ngram_len": 3, "score": "mean"},
        {"published": True},
        {"sampling_table_size": 2**10, "sampling_table_seed": 7},
    ],
    "synthid-mixed": [{}, {"depth": 9, "ngram_len": 3, "score": "mean"}, {"published": True}],
    "three-bricks-openai": [
        {"vocab_size": 1000},
        {"vocab_size": 1001, "window": 2, "seeding": "additive"},
        {"vocab_size": 1000, "seeding": "additive", "table_seed": 3},
    ],
    "three-bricks-maryland": [
        {"vocab_size": 1000},
        {"vocab_size": 1001, "window": 1, "seeding": "min", "gamma": 0.5},
        {"vocab_size": 1000, "seeding": "skip", "table_seed": 3},
    ],
    "sbw": [{}, {"seeding": "minhash", "gamma": 0.25}, {"seeding": "additive", "context_width": 1}],
}
"""Parameters that each format is tested with: each parameter has two values or more."""

ALL = [FORMATS[name].model_validate(parameters) for name, some in PARAMETERS.items() for parameters in some]
ONE_OF_EACH = [FORMATS[name].model_validate(some[0]) for name, some in PARAMETERS.items()]
KEYS = 4000
SLOWLY_OPENED = dict.fromkeys(
    ("hf-lefthash", "synthid-table", "three-bricks-openai", "three-bricks-maryland"), 1000
) | {
    "hf-selfhash": 200  # each key shuffles a table of a million entries
}
"""Number of keys for formats that seed a torch generator, which is slow; `make null` takes millions of keys."""


def secret_of(form, number: int = 0) -> bytes:
    """A drawn secret of a format, or a decoy's where p-values hold over no draw of a key."""
    draw = form.draw_key if isinstance(form, DrawsKeys) else form.decoy_key
    return draw(hashlib.sha256(f"{form.label()} {number}".encode()).digest())


@pytest.mark.parametrize("form", ALL, ids=lambda form: form.label())
def test_nothing_of_the_key_is_shown(form):
    secret = secret_of(form)
    mark = form.open(secret)
    tokens = batch_tokens([list(range(30))])
    mark.score(tokens, mark.rule.positions(tokens, "ngram"), 0)
    whole = [str(int.from_bytes(secret[i : i + 8], "big")) for i in range(0, len(secret), 8)]
    hidden = forms(secret) + whole + [hex(int(number))[2:] for number in whole]
    for shown in (repr(mark), str(mark), repr([mark]), repr(vars(mark))):
        assert [form for form in hidden if form in shown] == []
    assert form.label() in repr(mark)
    for save in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled"):
            save(mark)


MEMBERS = {
    Searches: {"search"},
    ScoresParts: {"terms", "single_message", "user_evidence"},
    SearchesWindows: {"search_parts"},
}
"""Members of a mark with an ability, besides those of every mark."""


@pytest.mark.parametrize("form", ALL, ids=lambda form: form.label())
def test_abilities_of_a_class_are_those_of_each_mark(form):
    mark = form.open(secret_of(form))
    for ability, members in MEMBERS.items():
        assert isinstance(mark, ability) == all(hasattr(mark, name) for name in members), ability
    assert isinstance(mark, ScoresParts) == form.scores_parts


@pytest.mark.seconds
@pytest.mark.parametrize("form", ALL, ids=lambda form: form.label())
def test_slow_path_scores_posts_as_one_text(form):
    """Posts of few distinct tokens, so that tuples repeat within posts, across posts and over their borders."""
    secret, random = secret_of(form), np.random.default_rng(1)
    mark = form.open(secret)
    posts = batch_tokens([random.integers(6, size=size) for size in (30, 3, 0, 40, 1, 25)])
    begins, reach = np.array([0, 6]), reach_of(mark.rule)
    positions = pooled_positions(mark.rule, reach, posts, begins, "ngram")
    borders = {
        int(place)
        for begin, end in zip(posts.offsets, posts.offsets[1:], strict=False)
        for place in range(begin, min(begin + reach, end))
    }
    scored, (score,) = form.proof(secret).scores(posts.ids, [0], "ngram", borders)
    together = posts._replace(offsets=posts.offsets[begins])
    assert scored == positions.scored[0] > 0
    assert score == pytest.approx(float(mark.score(together, positions, 0)[0]), rel=1e-9)


@pytest.mark.costly
@pytest.mark.parametrize("form", ALL, ids=lambda form: form.label())
def test_what_proves_its_flags_finds_the_same(form):
    """Scores agree up to rounding, also for repeats, short texts and the last message; p-values agree for flags."""
    assert isinstance(form, Proves)
    secret, random = secret_of(form), np.random.default_rng(2)
    mark, proof = form.open(secret), form.proof(secret)
    last = 129 if form.model_dump().get("groups") is None else form.groups**2 - 1
    messages = [0, 3, last] if isinstance(mark, Searches) else [0]
    for length in (0, 3, 20, 90):
        tokens = batch_tokens([random.integers(0, 2**15, length).tolist() + [5, 6, 7, 5, 6, 7, 5, 6] * (length > 3)])
        for dedup in form.dedups(["ngram", "context", "none"]):
            positions = mark.rule.positions(tokens, dedup)
            scored, scores = proof.scores(tokens.ids, messages, dedup)
            assert scored == positions.scored[0]
            fast = [float(mark.score(tokens, positions, message)[0]) for message in messages]
            assert scores == pytest.approx(fast, rel=1e-12 if form.name[:7] != "synthid" else 1e-9, abs=1e-12)
            own = proof.user_evidence(tokens.ids, messages, dedup) if isinstance(proof, ProvesUserEvidence) else None
            if own is not None:
                alone = [float(mark.parts(tokens, positions, message)[1][0]) for message in messages]
                steps = int((~mark.group_steps(tokens, positions)).sum())
                assert own == (steps, pytest.approx(alone, rel=1e-12, abs=1e-12), form.groups)
            assert (own is None) == (form.model_dump().get("groups") is None)
            common_places = frozenset(random.permutation(length)[: length // 3].tolist())
            stays = np.array([place not in common_places for place in positions.index.tolist()], bool)
            rest = Positions(positions.index[stays], np.array([0, stays.sum()]))
            scored, scores = proof.scores(tokens.ids, messages, dedup, common_places)
            assert scored == rest.scored[0]
            fast = [float(mark.score(tokens, rest, message)[0]) for message in messages]
            assert scores == pytest.approx(fast, rel=1e-12 if form.name[:7] != "synthid" else 1e-9, abs=1e-12)
    for scored in (16, 60, 300):
        for share in (0.2, 0.5, 0.9, 1.4, 2.5):
            score = min(round(share * scored), scored) if form.law().discrete else share * scored
            fast = float(form.law().log10_p(score, scored))
            assert proof.log10_p(score, scored) == pytest.approx(fast, rel=1e-9, abs=1e-12)
    whole = [str(int.from_bytes(secret[i : i + 8], "big")) for i in range(0, len(secret), 8)]
    shown = repr(proof) + repr(vars(proof))
    assert [form for form in forms(secret) + whole if form in shown] == []
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(proof)


@pytest.mark.parametrize("form", ALL, ids=lambda form: form.label())
def test_a_context_whose_first_token_has_no_draw_counts_the_same_in_proofs(form):
    """With dedup `context`, a proof took a context's next place where no draw has the first one's token."""
    window = form.rule().context
    context = list(range(2, 2 + window))
    tokens = batch_tokens([[9, *context, 2**15, 8, *context, 7, 9, *context, 6, 4, 3, 5, 4, 6, 3]])
    secret = secret_of(form)
    mark, proof = form.open(secret), form.proof(secret)
    for dedup in form.dedups(["ngram", "context", "none"]):
        positions = mark.rule.positions(tokens, dedup)
        scored, scores = proof.scores(tokens.ids, [0], dedup)
        assert scored == positions.scored[0]
        assert scores == pytest.approx([float(mark.score(tokens, positions, 0)[0])], rel=1e-9, abs=1e-12)


def test_every_format_is_tested_with_every_parameter():
    assert PARAMETERS.keys() == FORMATS.keys()
    for name, some in PARAMETERS.items():
        for field, info in FORMATS[name].model_fields.items():
            values = {str(one.get(field, info.default)) for one in some}
            assert len(values) > 1, f"{name}: {field} has one value in these tests"


def test_labels_tell_parameters_apart_and_never_change():
    """Labels are pinned, since they stand in tables, shard ids and commitments."""
    labels = [form.label() for form in ALL]
    assert len(set(labels)) == len(labels)
    assert all(label.isascii() and label.isprintable() for label in labels)
    assert [format_name(label) for label in labels] == [form.name for form in ALL]
    assert [form.label() for form in ONE_OF_EACH] == [
        "greenlist;h=4;gamma=1/4",
        "gumbel;h=4",
        "greenlist-v3;h=4;gamma=1/4;seeds=24",
        "gumbel-v3;h=4;seeds=24",
        "vllm-gumbel;prf=philox4x32-10-v1;context_width=4;partial=scored",
        "vllm-dual-key;prf=philox4x32-10-v1;context_width=4;partial=scored;alpha=0.1",
        "sglang-one-key;context_window=4",
        "sglang-two-keys;context_window=4;mixing_probability=0.5",
        "sglang-user-keys;context_window=4",
        "hf-lefthash;vocab_size=1000;greenlist_ratio=0.25;context_width=1",
        "hf-selfhash;vocab_size=1000;greenlist_ratio=0.25;context_width=4",
        "synthid-table;ngram_len=5;depth=30;score=weighted;table=65536;table_seed=0",
        "synthid-mixed;ngram_len=5;depth=30;score=weighted",
        "three-bricks-openai;h=4;vocab_size=1000;seeding=hash",
        "three-bricks-maryland;h=4;vocab_size=1000;seeding=hash;gamma=0.25",
        "sbw;seeding=selfhash;context_width=4;gamma=0.5",
    ]


@pytest.mark.parametrize("form", ALL, ids=lambda form: form.label())
def test_what_a_key_is_made_of(form):
    """Drawn keys open; a short key commits to nothing, and no p-value under a key of b bits is below 2^-b."""
    assert isinstance(form, DrawsKeys) or form.basis().assumed
    assert len(secret_of(form)) in form.secret_bytes
    assert form.open(secret_of(form)).basis == form.basis()
    assert isinstance(form, Commits) == form.basis().proven
    if not form.basis().proven:
        assert str(form.basis()) == ("assumed" if form.basis().assumed else f"key-{form.basis().bits}-bits")
        law = form.law()
        assert float(law.log10_p(min(1e5, law.largest(100)), 100)) == pytest.approx(-form.basis().bits * np.log10(2.0))


@pytest.mark.costly
@pytest.mark.parametrize("form", ALL, ids=lambda form: form.label())
def test_p_is_uniform_over_drawn_keys(form):
    """One text with repeats: Kolmogorov-Smirnov at 1e-7, with the randomised p where the law is discrete.

    SynthID's sums are whole numbers too, but its score does not show them, and a dual key's p is the smaller of two,
    each with a share, which bounds it: their p are tested for being too small alone.
    """
    rng = np.random.default_rng(3)
    tokens = batch_tokens([rng.integers(0, 40, 90).tolist()])
    keys = SLOWLY_OPENED.get(form.name, KEYS)
    scores, scored = np.empty(keys), np.empty(keys, np.int64)
    for number in range(keys):
        mark = form.open(secret_of(form, number))
        positions = mark.rule.positions(tokens, "ngram")
        scores[number], scored[number] = mark.score(tokens, positions, 0)[0], positions.scored[0]
    law = form.law()
    p = 10.0 ** log10_p_of(law, scores, scored)
    if law.discrete:
        p -= rng.random(keys) * (p - 10.0 ** log10_p_of(law, scores + 1, scored))
    how = "greater" if form.name.startswith(("synthid", "vllm-dual-key")) else "two-sided"
    assert stats.kstest(p, "uniform", alternative=how).pvalue > 1e-7


@pytest.mark.parametrize("form", ONE_OF_EACH, ids=lambda form: form.label())
def test_a_search_finds_what_scoring_message_by_message_finds(form):
    """Best two, ties to the smaller message, scores to the last bit."""
    mark = form.open(secret_of(form))
    if not isinstance(mark, Searches):
        with pytest.raises(ValueError, match="give 1"):
            form.check_messages(2)
        return
    rng = np.random.default_rng(5)
    tokens = batch_tokens([rng.integers(0, 60, length).tolist() for length in (5, 9, 30, 200)])
    positions, count = mark.rule.positions(tokens, "ngram"), 130
    found = mark.search(tokens, positions, count)
    each = np.array([mark.score(tokens, positions, message) for message in range(count)], np.float64)
    for d in range(4):
        best = np.lexsort((np.arange(count), -each[:, d]))[:2]
        assert found.message[d, :2].tolist() == best.tolist()
        assert found.score[d, :2].tolist() == each[best, d].tolist()


@pytest.mark.parametrize("form", ALL, ids=lambda form: form.label())
def test_only_parameters_of_the_format(form):
    with pytest.raises(ValueError, match="window_size"):
        type(form).model_validate({"window_size": 4})
    assert form == make_format(form.name, form.model_dump())


def test_known_answers_of_every_format_pass():
    assert {entry.answers.shipped for entry in FORMATS.values()} == set(formats.shipped())
    for file in formats.shipped():
        results = formats.check(file.read_text(encoding="utf-8"))
        assert all(result.passed for result in results)
        assert not [failure for result in results for failure in result.failures]
