"""The detectors of transformers and SynthID beside ours, on the same tokens: `python -m tests.bench.torch_stacks`.

Each difference in p has two parts: the exact law in place of the stack's normal law, on the same positions, and leaving
out repeats. SynthID's packages give a score and no p-value; ours stands beside the normal tail of a fair coin, which
its users take. `--synthid` names the wheel of synthid-text 0.2.1, whose sums need jax; numpy takes its place here.
"""

import argparse
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from scanner.text import load_tokenizer, sha256_file
from scanner.watermark import Positions, Tokens, batch_tokens, scored_positions
from scanner.watermark.formats import make_format
from scanner.watermark.pvalues import log10_greenlist
from scanner.watermark.rule import log10_p_of
from tests.bench.fresh_keys import show
from tests.bench.stacks_night import STACKS

KEY = 15485863
SYNTHID_KEYS = STACKS["synthid"]["keys"]
WEIGHTS = np.linspace(10.0, 1.0, len(SYNTHID_KEYS))
GREEN: dict[str, tuple[str, dict[str, Any]]] = {
    "lefthash": ("hf-lefthash", {"context_width": 1}),
    "selfhash": ("hf-selfhash", {"context_width": 4}),
}
HISTORY = 1024

Floats = NDArray[np.float64]


def opened(scheme: str, width: int) -> Any:
    """Our reader of a green list of that vocabulary."""
    name, parameters = GREEN[scheme]
    return make_format(name, parameters | {"vocab_size": width}).open(KEY.to_bytes(8, "big"))


def windows(scheme: str, texts: Tokens, repeats: bool) -> Positions:
    """The positions that transformers scores: of every window, or of each distinct window once."""
    before = GREEN[scheme][1]["context_width"] - (scheme == "selfhash")
    return scored_positions(texts, before, "none" if repeats else "ngram")


class GreenDetector:
    """transformers' WatermarkDetector of a scheme; each text by itself."""

    def __init__(self, scheme: str, width: int) -> None:
        from transformers import WatermarkDetector, WatermarkingConfig

        config = types.SimpleNamespace(bos_token_id=-1, is_encoder_decoder=False, vocab_size=width)
        marking = WatermarkingConfig(hashing_key=KEY, seeding_scheme=scheme, **GREEN[scheme][1])
        self._detector = WatermarkDetector(config, "cpu", marking)

    def counts(self, texts: list[list[int]], repeats: bool) -> tuple[Floats, Floats, Floats]:
        """Scored tokens, green ones and log10 of its p-value: float64[D] each; −∞ where its p is 0."""
        import torch

        self._detector.ignore_repeated_ngrams = not repeats
        found = [self._detector(torch.tensor([ids]), return_dict=True) for ids in texts]
        with np.errstate(divide="ignore"):
            log10_p = np.log10([float(one.p_value[0]) for one in found])
        return (
            np.array([one.num_tokens_scored[0] for one in found]),
            np.array([one.num_green_tokens[0] for one in found]),
            log10_p,
        )


def green_rows(scheme: str, kind: str, texts: list[list[int]], width: int) -> Iterator[dict[str, Any]]:
    """Two rows: every window counts each time, or once."""
    mark, theirs, batch = opened(scheme, width), GreenDetector(scheme, width), batch_tokens(texts)
    ours = mark.rule.positions(batch, "ngram")
    log10_p = log10_p_of(mark.law, mark.score(batch, ours, 0), ours.scored)
    for repeats in (True, False):
        began = process_time()
        scored, green, their_p = theirs.counts(texts, repeats)
        seconds = process_time() - began
        same = windows(scheme, batch, repeats)
        counted = mark.score(batch, same, 0)
        exact = log10_greenlist(counted, same.scored, mark.law.of.gamma)
        yield {
            "stack": f"{scheme}, windows {'all' if repeats else 'once'}",
            "texts": f"{len(texts)} {kind}",
            "same positions": int((scored == same.scored).sum()),
            "same green": int((green == counted).sum()),
            "exact law": spread(exact - their_p),
            "and our repeats": spread(log10_p - their_p),
            "median log10 p": round(float(np.median(log10_p)), 1),
            "seconds a text": f"{seconds / len(texts):.3f}",
        }


def spread(difference: Floats) -> str:
    """Least, median and most of log10 (our p / theirs)."""
    there = difference[np.isfinite(difference)]
    return " ".join(f"{one:+.2g}" for one in np.quantile(there, [0.0, 0.5, 1.0]))


class SynthId:
    """transformers' bits and masks, and the mean and weighted mean of the package where its wheel is given."""

    def __init__(self, wheel: Path | None) -> None:
        import torch
        from transformers.generation.logits_process import SynthIDTextWatermarkLogitsProcessor

        self._processor = SynthIDTextWatermarkLogitsProcessor(
            ngram_len=5,
            keys=SYNTHID_KEYS,
            sampling_table_size=2**16,
            sampling_table_seed=0,
            context_history_size=HISTORY,
            device=torch.device("cpu"),
        )
        self.package = "synthid-text 0.2.1" if wheel else "its formula"
        self._means: Any = _packaged(wheel) if wheel else None

    def asked(self, ids: list[int]) -> tuple[int, float, float]:
        """Positions that are not masked, the mean of their bits and the weighted mean."""
        import torch

        one = torch.tensor([ids])
        bits = self._processor.compute_g_values(one).numpy().astype(np.float64)
        mask = self._processor.compute_context_repetition_mask(one).numpy().astype(np.float64)
        if self._means is not None:
            mean, weighted = (float(of(bits, mask)[0]) for of in self._means)
        else:
            kept = bits[0][mask[0] > 0]
            mean, weighted = float(kept.mean()), float((kept @ (WEIGHTS / WEIGHTS.sum())).mean())
        return int(mask.sum()), mean, weighted


def _packaged(wheel: Path) -> tuple[Any, Any]:
    """mean_score and weighted_mean_score of the wheel; numpy has all functions of jax that they call."""
    jax = types.ModuleType("jax")
    jax.numpy = np  # type: ignore[attr-defined]
    sys.modules.setdefault("jax", jax)
    sys.modules.setdefault("jax.numpy", np)
    sys.path.append(f"{wheel}/synthid_text")  # the package has no __init__, which an import from an archive needs
    import detector_mean

    return detector_mean.mean_score, detector_mean.weighted_mean_score


def synthid_rows(kind: str, texts: list[list[int]], wheel: Path | None) -> Iterator[dict[str, Any]]:
    """A row for each of the two scores."""
    theirs, batch = SynthId(wheel), batch_tokens(texts)
    began = process_time()
    said = np.array([theirs.asked(ids) for ids in texts])
    seconds = process_time() - began
    for score, column, weights in (("mean", 1, np.ones(len(WEIGHTS))), ("weighted", 2, WEIGHTS)):
        form: Any = make_format("synthid-table", {"score": score, "depth": len(SYNTHID_KEYS)})
        mark = form.open(b"".join(key.to_bytes(8, "big") for key in SYNTHID_KEYS))
        positions = mark.rule.positions(batch, "context")
        scored, own = positions.scored, form.weights()
        mean = mark.ones(batch, positions) @ own / (scored * own.sum())
        log10_p = log10_p_of(form.law(), mark.score(batch, positions, 0), scored)
        spread_of_one = np.sqrt((weights**2).sum() / weights.sum() ** 2 / 4.0 / said[:, 0])
        fair = stats.norm.logsf((said[:, column] - 0.5) / spread_of_one) / np.log(10.0)
        yield {
            "stack": f"synthid, {score} ({theirs.package})",
            "texts": f"{len(texts)} {kind}",
            "same positions": int((said[:, 0] == scored).sum()),
            "scores apart": f"{np.abs(said[:, column] - mean).max():.1e}",
            "our p / a fair coin's normal": spread(log10_p - fair),
            "median log10 p": round(float(np.median(log10_p)), 1),
            "seconds a text": f"{seconds / len(texts):.3f}",
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.torch_stacks", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="Parquet file with a column text")
    parser.add_argument("--tokenizer", type=Path, default=Path(".model/smollm2-135m-instruct/tokenizer.json"))
    parser.add_argument("--marked", type=Path, help="marked.parquet of tests.bench.stacks_night")
    parser.add_argument("--synthid", type=Path, help="wheel of synthid-text 0.2.1")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--most", type=int, default=150, help="tokens of a text; the stacks take a millisecond each")
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.tokenizer, sha256_file(options.tokenizer))

    def tokens_of(column: pl.Series) -> list[list[int]]:
        found = tokenizer.encode(column.to_list())
        each = [found.ids[a:b][: options.most].tolist() for a, b in zip(found.offsets, found.offsets[1:], strict=False)]
        return [ids for ids in each if len(ids) > 8]

    column = pl.read_parquet(options.corpus, columns=["text"])["text"].cast(pl.String, strict=False).drop_nulls()
    real = tokens_of(column.sample(2 * options.texts, seed=1))[: options.texts]
    written = pl.read_parquet(options.marked) if options.marked else None
    for scheme in GREEN:
        rows = list(green_rows(scheme, "not marked", real, tokenizer.vocab_size))
        if written is not None:
            marked = tokens_of(written.filter(key=scheme)["text"])
            rows += green_rows(scheme, "marked", marked, tokenizer.vocab_size)
        show(rows)
    rows = list(synthid_rows("not marked", real, options.synthid))
    if written is not None:
        rows += synthid_rows("marked", tokens_of(written.filter(key="synthid")["text"]), options.synthid)
    show(rows)


if __name__ == "__main__":
    main()
