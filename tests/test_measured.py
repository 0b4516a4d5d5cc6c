"""Strength measured on marked texts, and the power that texts like them have."""

import math
import re
from fractions import Fraction

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from scipy import stats

from jobs.demo import HERE, make_registry
from jobs.plan import plan
from scanner.detection.detector import Detector
from scanner.detection.one_text import NOWHERE, ScannedKey, strengths_of
from scanner.detection.open_plan import open_keys
from scanner.detection.rules import Rules
from scanner.error_shares import ErrorShares
from scanner.errors import Refused
from scanner.looks.normalising import normalise
from scanner.power import (
    Aim,
    GreenShare,
    GumbelEntropy,
    MeasuredTexts,
    Strengths,
    gumbel_thresholds,
    probability_of,
    thresholds,
    tokens_needed,
)
from scanner.registry import Holders, find_key, load_registry, new_key, open_key
from scanner.scan_plan import read_config
from scanner.watermark.laws import Binomial, Gamma
from schemas.tables import DOCUMENTS
from tests.fixed import fix_secrets
from tests.support.two_keys import TOKENIZER

AIM = Aim(1e-6, 1000, 3)


def of(scores: list[np.ndarray]) -> Strengths:
    return Strengths(np.array([len(one) for one in scores]), np.array([one.sum() for one in scores]), tuple(scores))


def gumbel(texts: int, tokens: int, seed: int) -> list[np.ndarray]:
    """Token scores of texts under a Gumbel mark: each token has its own probability, each text its own certainty."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(texts):
        probability = random.beta(random.uniform(1, 4), 1.0, tokens)
        found.append(-np.log1p(-(random.random(tokens) ** probability)))
    return found


def test_thresholds_are_the_least_scores_that_pass() -> None:
    scored = np.array([1, 16, 40, 1000])
    assert thresholds(Gamma(), scored, AIM) == pytest.approx(gumbel_thresholds(scored, AIM), rel=1e-7)
    law = Binomial(Fraction(1, 4))
    for count, least in zip(scored.tolist(), thresholds(law, scored, AIM).tolist(), strict=True):
        passing = [s for s in range(count + 1) if AIM.passes(law.log10_p(np.array([s]), np.array([count])))[0]]
        assert least == (passing[0] if passing else count + 1)


def test_power_of_texts_alike_is_the_exact_one() -> None:
    """Where all tokens are green with one chance the law is binomial; normal sums miss its power by 0.04 at most."""
    random = np.random.default_rng(5)
    measured = MeasuredTexts.of(
        Binomial(Fraction(1, 4)), of([(random.random(20_000) < 0.55).astype(float) for _ in range(4)])
    )
    exact = GreenShare(Fraction(1, 4), 0.55, "")
    scored = np.arange(60, 260, 20)
    assert measured.power(scored, AIM) == pytest.approx(exact.power(scored, AIM), abs=0.04)


def test_fresh_texts_pass_as_often_as_the_measured_ones_say() -> None:
    """Strength is measured on 300 texts of 400 tokens and tried on 4,000 shorter texts with the p-values of a scan."""
    measured = MeasuredTexts.of(Gamma(), of(gumbel(300, 400, 1)))
    for scored in (60, 120, 240):
        sums = np.array([one.sum() for one in gumbel(4000, scored, 2)])
        found = AIM.passes(Gamma().log10_p(sums, scored)).mean()
        # a power from 300 texts has a standard deviation of 0.03; the limit is five of them
        assert measured.power(np.array([scored]), AIM)[0] == pytest.approx(found, abs=0.15)


def test_simulated_texts_pass_as_often_as_said() -> None:
    measured = MeasuredTexts.of(Gamma(), of(gumbel(50, 300, 3)))
    scored = tokens_needed(measured, AIM, 0.8)
    passed = measured.passed(scored, AIM, 4000, np.random.default_rng(8))
    assert passed / 4000 == pytest.approx(0.8, abs=0.06)  # sums are not quite normal


@pytest.mark.parametrize("probability", [0.01, 0.2, 0.5, 0.9, 1.0])
def test_the_probability_behind_a_mean_score(probability: float) -> None:
    """Against quadrature: the mean of -ln(1 - u^p) over u."""
    u = (np.arange(2_000_000) + 0.5) / 2_000_000
    assert probability_of(float(-np.log1p(-(u**probability)).mean())) == pytest.approx(probability, rel=1e-3)


def test_too_little_text_is_refused() -> None:
    with pytest.raises(Refused, match="no text has 16 scored tokens"):
        MeasuredTexts.of(Gamma(), of([np.ones(15)]))


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> pl.DataFrame:
    """The demo's marked texts by SmolLM2: key_id, message, text, temperature, delta, and the registry's folder."""
    folder = tmp_path_factory.mktemp("demo")
    make_registry(folder / "registry")
    raw = pa.schema([("doc_id", pa.binary()), ("text", pa.binary())])
    parts = [
        pq.read_table(path, columns=["doc_id", "text"]).cast(raw) for path in sorted(HERE.glob("sample-*.parquet"))
    ]
    text_of = {(row["doc_id"] or b"").decode(): row["text"] for row in pa.concat_tables(parts).to_pylist()}
    truth = pl.read_parquet(HERE / "truth.parquet").filter(kind="marked").unique("doc_id").sort("doc_id")
    texts = truth.with_columns(text=pl.Series([text_of[name].decode() for name in truth["doc_id"]]))
    texts.write_parquet(folder / "marked.parquet")
    return texts.with_columns(folder=pl.lit(str(folder)))


@pytest.mark.seconds
@pytest.mark.parametrize("setting", [("demo-gumbel", 1.0, None), ("demo-greenlist", 0.8, 3.0)])
def test_real_texts_need_about_as_many_tokens_as_is_said(demo, setting) -> None:
    """Half of the texts give the strength, the others are cut to the tokens needed; the paper's bound asks for more."""
    key_id, temperature, delta = setting
    registry = f"{demo['folder'][0]}/registry"
    own = demo.filter(pl.col("key_id") == key_id, temperature=temperature)
    own = own.filter(pl.col("delta") == delta) if delta else own
    key = find_key(load_registry(registry), key_id)
    aim = Aim(1e-6, key.messages, 2)
    law, strengths = strengths_of(registry, key, own["text"].to_list(), own["message"].to_numpy())
    first, second = strengths.of_tokens[::2], strengths.of_tokens[1::2]
    measured = MeasuredTexts.of(law, of(list(first)))
    needed = tokens_needed(measured, aim, 0.9)
    long = [one[: int(1.5 * needed)] for one in second if len(one) >= needed]
    sums, counts = np.array([one.sum() for one in long]), np.array([len(one) for one in long])
    passed = int(aim.passes(law.log10_p(sums, counts)).sum())
    assert len(long) >= 12
    assert stats.binomtest(passed, len(long), 0.75, alternative="less").pvalue > 1e-3
    assert tokens_needed(GumbelEntropy(0.3, ""), aim, 0.9) > 20 * needed


def call(*options: object) -> str:
    found = CliRunner().invoke(plan, [str(option) for option in options], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.seconds
def test_the_command_measures_what_mark_wrote(demo, tmp_path) -> None:
    file, registry = tmp_path / "marked.parquet", f"{demo['folder'][0]}/registry"
    own = demo.filter(key_id="demo-gumbel", temperature=1.0)
    own.write_parquet(file)
    out = call("--from", file, "--registry", registry, "--messages", 100_000, "--keys", 2, "--power", 0.9)
    assert "gumbel-v3, h = 4, false-positive rate 1e-06 for a document, 2 keys" in out
    measured = re.search(r"texts are marked as strongly as the (\d+) measured ones", out)
    assert measured is not None
    assert own.height - 2 <= int(measured[1]) <= own.height  # a text that repeats itself may have too few scored tokens
    row = out.splitlines()[-1].split()
    assert row[:2] == ["100,000", "0.9"]
    assert row[4] == "measured"
    assert 20 < int(row[2]) < 120
    assert math.isclose(float(row[5]), 0.9, abs_tol=0.08)  # the command's own simulation
    (key,) = (key for key in load_registry(registry).keys if key.key_id == "demo-gumbel")
    found, named = call("--from", file, "--registry", registry, "--power", 0.9, "--simulate", 0).splitlines()[-2:]
    assert (found.split()[0], found.split()[4]) == (f"{key.messages:,}", "measured")
    assert (named.split()[0], named.split()[-2]) == (f"{key.messages:,}", "named")  # by the key's groups


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--from", "no.parquet", "--registry", "r"], "no.parquet: cannot be read as Parquet"),
        (["--from", "two", "--registry", "r"], "holds texts of 3 keys; give those of one"),
    ],
)
def test_files_that_cannot_be_measured_are_refused(demo, tmp_path, options, words) -> None:
    options = [f"{demo['folder'][0]}/marked.parquet" if option == "two" else option for option in options]
    with pytest.raises(Refused, match=words):
        call(*options)


def test_measured_and_assumed_strength_do_not_mix(tmp_path) -> None:
    for options in (["--from", "x"], ["--from", "x", "--registry", "r", "--method", "gumbel"], []):
        assert CliRunner().invoke(plan, options).exit_code == 2


ALL_LOOKS = """\
version = 2
registry = "{registry}"
results = "results"
false_positive_rate = 1e-6
variants = {{ normalised = true }}
spans = {{ windows = true, segments = true }}
accounts = {{ nights = 7 }}
[input]
paths = ["in.parquet"]
account = "account_id"
"""
LOOKS = 1 / 0.3333
"""K of a document that is its own normal form, beside spans and accounts, for one key."""


@pytest.fixture(scope="module")
def three_keys(tmp_path_factory):
    """A folder with a registry of three keys and a scan that tests all that there is."""
    folder = tmp_path_factory.mktemp("keys")
    names = ("green", "second", "third")
    fix_secrets(folder / "registry", *names)
    for name in names:
        new_key(folder / "registry", name, format="greenlist", window=2, gamma="1/4", messages=200, tokenizer=TOKENIZER)
    (folder / "scan.toml").write_text(ALL_LOOKS.format(registry="registry"))
    return folder


def texts_of(registry, words, message: int, share: float, tokens: int, texts: int) -> list[str]:
    """Texts of words, each green with this chance, independently, under the key `green`."""
    mark, random = open_key(registry, find_key(load_registry(registry), "green")), np.random.default_rng(3)
    chosen = random.integers(len(words.words), size=(texts, tokens))
    for place in range(mark.window, tokens):
        window = words.tokens[chosen[:, place - mark.window : place]].astype(np.uint32)
        green = mark.green(mark.window_nonces(window), np.full(texts, message), int(words.tokens.max()) + 1)
        of_words = green[:, words.tokens]
        wanted = random.random(texts) < share
        for text in range(texts):
            chosen[text, place] = random.choice(np.flatnonzero(of_words[text] == wanted[text]))
    return ["".join(" " + words.words[i] for i in row) for row in chosen.tolist()]


@pytest.mark.costly
@pytest.mark.seconds
def test_what_is_planned_for_three_keys_and_all_looks_is_what_a_detector_finds(three_keys, words) -> None:
    """The exact law at K of scan.toml against the detector of a scan, on 400 texts; K of one look is far off."""
    share, tokens, number = 0.6, 72, 400
    scanned = ScannedKey.of_config(three_keys / "scan.toml", "green")
    assert scanned.correction == pytest.approx(3 * LOOKS)
    exact = GreenShare(Fraction(1, 4), share, "")
    scored = np.array([tokens - 2])
    planned, of_one_look = (exact.power(scored, Aim(1e-6, 200, keys))[0] for keys in (scanned.correction, 1))
    texts = ["so" + text for text in texts_of(three_keys / "registry", words, 7, share, tokens, number)]
    assert [normalise(text) for text in texts] == texts
    config = read_config(three_keys / "scan.toml")
    keys = open_keys(str(three_keys / "registry"), load_registry(three_keys / "registry").keys)
    documents = pa.RecordBatch.from_pylist(
        [{"row": row, "text": text.encode()} for row, text in enumerate(texts)], DOCUMENTS
    )

    def found(weights: ErrorShares) -> int:
        detector = Detector(
            keys,
            Holders.load(three_keys / "registry", [test.key.key_id for test in keys]),
            Rules(1e-6, 3, weights=weights),
        )
        rows = detector.score_batch(documents, NOWHERE)[0].to_pylist()
        assert {row["message"] for row in rows if row["flagged"] and row["message"] is not None} <= {7}
        return sum(row["flagged"] for row in rows)

    all_looks = ErrorShares.of(config)
    alone = found(all_looks._replace(span=None))  # documents as a whole, under the same weight
    low, high = stats.binomtest(alone, number).proportion_ci(1 - 1e-6)
    assert low < planned < high, (alone, planned)
    assert of_one_look > high, (alone, of_one_look)  # what was planned before
    assert found(all_looks) >= alone  # spans find some more, and take nothing away


def test_plan_goes_by_the_configuration_and_says_what_it_assumes_without_one(three_keys) -> None:
    few = ("--power", 0.9, "--simulate", 0)
    strength = ("--green-share", 0.6)
    without = call("--method", "greenlist", *strength, "--window", 2, "--messages", 200, *few)
    assert "Looks: no scan.toml was given, so one look " in without
    out = call(three_keys / "scan.toml", "--key", "green", *strength, *few)
    assert "greenlist, h = 2, false-positive rate 1e-06 for a document, K = 9.0009" in out
    assert "has 1/3 of the rate, documents as a whole 0.3333, and text that is its own normal form 1 of that" in out
    assert "tested, which finds some more: normalised text, spans, accounts" in out
    needed, needed_without = (int(said.splitlines()[-1].split()[2]) for said in (out, without))
    assert needed == tokens_needed(GreenShare(Fraction(1, 4), 0.6, ""), Aim(1e-6, 200, 3 * LOOKS), 0.9)
    assert needed > needed_without
    for wrong, words in (
        ((three_keys / "scan.toml", *strength), "--key is missing: name a key of "),
        (
            (three_keys / "scan.toml", "--key", "fourth", *strength),
            "--key fourth: name a key of .*: green, second",
        ),
    ):
        with pytest.raises(Refused, match=words):
            call(*wrong)
    for wrong in (("--fpr", 1e-4), ("--keys", 2), ("--messages", 3), ("--registry", three_keys)):
        given = [three_keys / "scan.toml", "--key", "green", *strength, *wrong]
        assert CliRunner().invoke(plan, [str(one) for one in given]).exit_code == 2
