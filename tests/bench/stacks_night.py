"""One night of real text under the marks of other stacks: `make stacks-night CORPUS=human.parquet`.

SmolLM2 completes prompts under transformers' own marking classes, and under two keys of ours. Keys without a law are
audited on other text of people, and admitted as far as the audit allows; a key that is not admitted far enough is left
out of the scan. Then all completions, cut to several lengths, and text of people are scanned at once.
"""

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from tokenizers import Tokenizer

from scanner import results
from scanner.registry import load_registry
from scanner.watermark.formats import format_of
from tests.bench.fresh_keys import show
from tests.support.command_line import call

PROMPTS = Path(__file__).parents[2] / "jobs" / "demo" / "prompts.txt"
PIECE = 64
STACKS: dict[str, dict[str, Any]] = {
    "lefthash": {"hashing_key": 15485863, "seeding_scheme": "lefthash", "context_width": 1},
    "selfhash": {"hashing_key": 15485863, "seeding_scheme": "selfhash", "context_width": 4},
    "synthid": {"keys": np.random.default_rng(22).integers(1, 2**62, 20).tolist(), "ngram_len": 5},
    "synthid-public": {"keys": [654, 400, 836, 123, 340, 443, 597, 160, 57], "ngram_len": 5},
}
"""Configurations of transformers, as their users write them; the hashing key is the library's default."""

NATIVE = "greenlist", "gumbel"


def answered(*words: object) -> str:
    """The output of a command. Raises RuntimeError: it did not end with 0."""
    code, out, err = call(*words)
    if code != 0:
        raise RuntimeError(f"{' '.join(map(str, words))} ended with {code}: {err}{out}")
    return out


def make_keys(folder: Path, model: Path) -> None:
    """A registry with a key of each kind; ours with users."""
    registry, tokenizer = folder / "registry", model / "tokenizer.json"
    common = ("--registry", registry, "--tokenizer", tokenizer)
    width = json.loads((model / "config.json").read_text())["vocab_size"]
    for name, config in STACKS.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
        words = ["--set", f"vocab_size={width}"] if "hashing_key" in config else []
        print(answered("keys", "add", name, *common, "--from", folder / f"{name}.json", *words), flush=True)
    for name in NATIVE:
        answered("keys", "new", name, *common, "--method", name, "--users", 100_000)
        answered("users", "add", "--registry", registry, "--key", name, *(f"{name}-{i}" for i in range(20)))


def completions(name: str, model: Path, prompts: list[str], most: int) -> list[str]:
    """Completions that the model writes under a configuration of transformers."""
    import torch
    from transformers import SynthIDTextWatermarkingConfig, WatermarkingConfig

    from scanner.generation import load_model

    config = STACKS[name]
    kind = WatermarkingConfig if "hashing_key" in config else SynthIDTextWatermarkingConfig
    loaded, said = load_model(model), []
    torch.manual_seed(1)
    for begin in range(0, len(prompts), 16):
        ids, mask = loaded.encode(prompts[begin : begin + 16])
        out = loaded.model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_p=0.95,
            top_k=0,
            max_new_tokens=most,
            pad_token_id=loaded.pad_id,
            watermarking_config=kind(**config),
        )
        said += [loaded.decode(row[ids.shape[1] :].tolist()) for row in out]
    return said


def marked(folder: Path, options: argparse.Namespace) -> pl.DataFrame:
    """Key, user and text of completions, equally many of each key. They take minutes, so the folder keeps them."""
    prompts, most = PROMPTS.read_text(encoding="utf-8").splitlines()[: options.prompts], max(options.lengths) + 10
    (folder / "prompts.txt").write_text("\n".join(prompts))
    common = ("--registry", folder / "registry", "--model", options.model, "--prompts", folder / "prompts.txt")
    for name in (*NATIVE, *STACKS):
        out, users = folder / f"{name}.parquet", [word for i in range(20) for word in ("--user", f"{name}-{i}")]
        if out.exists():
            continue
        if name in NATIVE:
            answered("mark", *common, "--key", name, *users, "--out", out, "--max-new-tokens", most)
        else:
            texts = completions(name, options.model, prompts, most)
            rows = {"key_id": [name] * len(texts), "user_id": pl.Series([None] * len(texts), dtype=pl.String)}
            pl.DataFrame(rows | {"text": texts}).write_parquet(out)
        print(name, "written", flush=True)
    columns = pl.col("key_id").alias("key"), pl.col("user_id").alias("user"), "text"
    found = pl.concat([pl.read_parquet(folder / f"{name}.parquet").select(columns) for name in (*NATIVE, *STACKS)])
    found.write_parquet(folder / "marked.parquet")
    return found


def pieces(texts: Iterable[str], tokenizer: Tokenizer, length: int) -> Iterator[str]:
    """Texts in pieces of so many tokens, whole pieces alone."""
    for text in texts:
        begins = [begin for begin, _ in tokenizer.encode(text, add_special_tokens=False).offsets[::length]]
        yield from (text[a:b] for a, b in pairwise(begins))


def human(options: argparse.Namespace, tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Texts of people for the night, whole, and pieces of others for the audit."""
    column = pl.scan_parquet(options.corpus).select(pl.col("text").cast(pl.String, strict=False)).collect()["text"]
    texts = column.drop_nulls().sample(fraction=1.0, shuffle=True, seed=1)
    rest = (text[:20_000] for text in texts[options.human :])
    return texts[: options.human].to_list(), list(islice(pieces(rest, tokenizer, PIECE), options.audited))


def audit(folder: Path, model: Path, texts: list[str]) -> None:
    """Audit the keys without a law on texts, and admit those that pass."""
    assumed = [key.key_id for key in load_registry(folder / "registry").keys if format_of(key).basis().assumed]
    pl.DataFrame({"text": texts}).write_parquet(folder / "audited.parquet", row_group_size=5000)
    digest = hashlib.sha256((model / "tokenizer.json").read_bytes()).hexdigest()
    (folder / "calibration.toml").write_text(
        f'results = "audit"\ntokenizer = {{ file = "{model / "tokenizer.json"}", sha256 = "{digest}" }}\n'
        '[input]\npaths = ["audited.parquet"]\ntext = "text"\n'
        f'[keys]\nregistry = "registry"\nkeys = {json.dumps(assumed)}\nmessages = 2\n[cluster]\nworkers = 1\n'
    )
    print(call("calibrate", folder / "calibration.toml")[1], flush=True)
    for name in assumed:
        print(*call("keys", "admit", name, "--registry", folder / "registry", "--results", folder / "audit")[1:])


def scan(folder: Path, rate: float, texts: pl.DataFrame) -> pl.DataFrame:
    """Verdicts on texts under all keys that are admitted so far; the texts' own columns stand beside them."""
    (folder / "in").mkdir(exist_ok=True)
    texts.with_row_index("doc_id").with_columns(pl.col("doc_id").cast(pl.String)).write_parquet(folder / "in/a.parquet")
    keys = [key.key_id for key in load_registry(folder / "registry").keys]
    while True:
        (folder / "scan.toml").write_text(
            f'version = 2\nregistry = "registry"\nresults = "results"\nfalse_positive_rate = {rate}\n'
            f"keys = {json.dumps(keys)}\n"
            '[input]\npaths = ["in"]\ntext = "text"\nid = "doc_id"\n[cluster]\nworkers = 1\n'
        )
        code, out, err = call("scan", folder / "scan.toml")
        refused = [key for key in keys if f"key {key!r}" in err] if code == 2 else []
        if not refused:
            print(out, err, f"exit code {code}", flush=True)
            exact = results.flagged(str(folder / "results")).select("doc_id", exact="log10_p_global")
            found = results.verdicts(str(folder / "results")).join(exact, on="doc_id", how="left")
            return found.sort(pl.col("doc_id").cast(pl.Int64)).collect()
        print(err, flush=True)
        keys.remove(refused[0])


def table(texts: pl.DataFrame, verdicts: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """A row for each key and length: how many are flagged, under the right key, named, and wrongly."""
    both = pl.concat([texts.select("key", "user", "length"), verdicts.drop("length", strict=False)], how="horizontal")
    for (key, length), some in both.group_by("key", "length", maintain_order=True):
        flagged = some.filter("flagged")
        named = flagged.filter(naming="named")
        yield {
            "marked under": key,
            "tokens": length,
            "texts": len(some),
            "flagged": len(flagged),
            "under its key": len(flagged.filter(pl.col("key_id") == pl.col("key"))),
            "named": len(named),
            "named rightly": len(named.filter(pl.col("user_id") == pl.col("user"))),
            "wrongly": len(named.filter(pl.col("user_id").ne_missing(pl.col("user")))),
            "median scored": some["scored"].median(),
            "median log10 p": None if flagged.is_empty() else round(flagged["exact"].median() or 0.0, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.stacks_night", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="Parquet file with a column text, of people")
    parser.add_argument("--model", type=Path, default=Path(".model/smollm2-135m-instruct"))
    parser.add_argument("--folder", type=Path, default=Path("build/stacks-night"), help="what is made is kept there")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--lengths", type=int, nargs="+", default=[50, 100, 200], help="tokens that texts are cut to")
    parser.add_argument("--human", type=int, default=5000, help="texts of people in the night")
    parser.add_argument("--human-length", type=int, help="tokens that these are cut to; by default they are whole")
    parser.add_argument(
        "--audited", type=int, default=300_000, help=f"pieces of {PIECE} tokens that keys are audited on"
    )
    parser.add_argument("--rate", type=float, default=1e-3)
    options = parser.parse_args()
    folder, model = options.folder.absolute(), options.model.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "registry").exists():
        make_keys(folder, model)
    written, tokenizer = marked(folder, options), Tokenizer.from_file(str(model / "tokenizer.json"))
    people, others = human(options, tokenizer)
    if options.human_length:
        people = [one for text in people for one in islice(pieces([text + " ."], tokenizer, options.human_length), 1)]
    if not (folder / "audit").exists():
        audit(folder, model, others)
    rows = [
        (key, user, length, piece)
        for key, user, text in written.rows()
        for length in options.lengths
        for piece in islice(pieces([text + " ."], tokenizer, length), 1)
    ]
    rows += [("nobody's", None, 0, text) for text in people]
    texts = pl.DataFrame(rows, schema=["key", "user", "length", "text"], orient="row")
    show(list(table(texts, scan(folder, options.rate, texts))))


if __name__ == "__main__":
    main()
