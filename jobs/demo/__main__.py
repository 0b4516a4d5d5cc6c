"""The demo: `make demo` runs `python -m jobs.demo`. Registry, users, a scan of real text, and how it did, in ./demo.

Everything is made afresh each time: the registry by the code that makes real ones, the verdicts by the job that makes
real ones. Only after the scan the truth is read, to be printed beside the verdicts. Needs neither torch nor a network.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.cli import run
from jobs.demo import CANARY_USERS, HERE, KEYS, make_registry
from jobs.scan import scan
from scanner import results
from schemas.config import DEFAULT_LOOKS
from schemas.words import Naming

FOLDER = Path("demo")
FALSE_POSITIVE_RATE = 1e-6
CANARY_TEXTS = 40
"""Texts of canaries.parquet: marked for made-up users, by the model that wrote the sample, and due in the scan."""

CONFIG = f"""\
# What `make demo` scans. Try: brickscan flagged demo/scan.toml
version = 2
registry = "registry"
results = "results"
false_positive_rate = {FALSE_POSITIVE_RATE:g}
{DEFAULT_LOOKS}
[input]
paths = ["documents"]
text = "text"
id = "doc_id"
account = "account_id"
time = "created_at"

[audit]
canaries = {CANARY_TEXTS}
"""

DETECTOR = """\
# What `brickscan serve demo/detector.toml` answers by: the keys and rules of scan.toml
version = 2
scan = "scan.toml"
"""

LENGTHS = ((60, 99), (100, 149), (150, 249), (250, 399), (400, 500))
"""Ranges of tokens that the model wrote, from … to."""


class Reply(NamedTuple):
    """A reply.

    quoted: the id of the document that it quotes.
    """

    doc_id: str
    account_id: str
    quoted: str
    own_words: str


REPLIES = (
    Reply(
        "reply-1",
        "account-017",
        "doc-0630",
        "Somebody pasted this into our thread yesterday, and two of my friends got the same lines by mail today. "
        "Does anybody know who sends it? I have asked the people who run the list, but they are away until Monday.",
    ),
    Reply(
        "reply-2",
        "account-063",
        "doc-0364",
        "I do not agree with a word of it. We tried the very same thing in our village three winters ago, with more "
        "hands than you have, and all that came of it was a broken fence and a long quarrel with the neighbours.",
    ),
    Reply(
        "reply-3",
        "account-120",
        "doc-0484",
        "Please take this down: it reads as though a machine had written it, and nobody here asked for it. If you have "
        "a question of your own, put it in your own words and one of us will try to help you when there is time.",
    ),
)

POSTED_AT = datetime(2026, 11, 10, 9, tzinfo=UTC)
"""Time of all replies: after the last document of the sample."""


def write_replies(samples: Sequence[Path], out: Path) -> None:
    """Write the replies as a file of documents with the columns of the sample.

    samples: files of the sample, in which the quoted documents stand.
    """
    documents = pa.concat_tables(pq.read_table(path, columns=["doc_id", "text"]) for path in samples)
    quoted = documents.filter(pc.is_in(documents["doc_id"], pa.array([reply.quoted for reply in REPLIES])))
    text_of = dict(zip(*(quoted[name].to_pylist() for name in ("doc_id", "text")), strict=True))
    rows = [
        {
            "doc_id": reply.doc_id,
            "text": f"{_quoting(text_of[reply.quoted])}\n\n{reply.own_words}",
            "account_id": reply.account_id,
            "created_at": POSTED_AT,
        }
        for reply in REPLIES
    ]
    pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(samples[0])), out)


def _quoting(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def prepare(folder: Path) -> Path:
    """Lay out registry, documents and configuration in the folder, in place of an earlier demo's; return scan.toml."""
    for name in ("registry", "documents", "results", "detector"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "documents").mkdir(parents=True)
    make_registry(folder / "registry", canaries=True)
    samples = sorted(HERE.glob("sample-*.parquet"))
    for sample in [*samples, HERE / "canaries.parquet"]:
        shutil.copyfile(sample, folder / "documents" / sample.name)
    write_replies(samples, folder / "documents" / "replies.parquet")
    config = folder / "scan.toml"
    config.write_text(CONFIG, encoding="utf-8")
    (folder / "detector.toml").write_text(DETECTOR, encoding="utf-8")
    return config


def compare(folder: str) -> pl.DataFrame:
    """Join the verdicts, flagged ones exact, with their truth: columns of both, the truth's with the suffix _true.

    Verdicts on canaries' texts, whose truth is their account, are left out.
    """
    truth = (
        pl.concat(map(pl.read_parquet, sorted(HERE.glob("truth*.parquet"))))
        .unique("doc_id")
        .rename({"tokens": "tokens_true"})
    )
    unflagged = results.verdicts(folder).filter(~pl.col("flagged"))
    canaries = pl.read_parquet(CANARY_USERS)["user_id"].unique().to_list()
    is_canary = pl.col("account_id").is_in(canaries).fill_null(value=False)
    verdicts = pl.concat([unflagged, results.flagged(folder).drop("audit")]).filter(~is_canary).collect()
    has_own_key = (pl.col("key_id") == pl.col("key_id_true")).fill_null(value=False)
    reply = pl.col("doc_id").is_in([reply.doc_id for reply in REPLIES]).fill_null(value=False)
    return verdicts.join(truth, on="doc_id", how="left", suffix="_true").with_columns(
        # beside replies, a document without an id alone has no truth
        pl.when(reply).then(pl.lit("reply")).otherwise(pl.col("kind").fill_null("bad")).alias("kind"),
        right=pl.col("flagged") & pl.col("user_id").eq_missing(pl.col("user_id_true")) & has_own_key,
        wrong=~reply
        & pl.col("named")
        .list.eval(pl.element().struct.field("user_id").drop_nulls())
        .list.set_difference(pl.concat_list("user_id_true"))
        .list.len()
        .gt(0)
        .fill_null(value=False),
    )


def report(rows: pl.DataFrame, quarantined: pl.DataFrame) -> str:
    """Write flags beside the truth, as two tables for people."""
    lines = [f"  {'not marked':<44}{'documents':>10}{'flagged':>10}"]
    for title, kind in (
        ("written by people", "human"),
        ("written by the model, without a mark", "model"),
        ("odd rows that could be read", "bad"),
    ):
        part = rows.filter(pl.col("kind") == kind)
        lines.append(f"  {title:<44}{part.height:>10}{part['flagged'].sum():>10}")
    reasons = quarantined["reason"].sort().to_list()
    lines += [f"  {'odd rows in quarantine':<44}{len(reasons):>10}   ({', '.join(reasons)})", ""]

    replies = rows.filter(pl.col("kind") == "reply")
    lines += [f"  {'marked: replies that quote marked text':<44}{replies.height:>10}{replies['flagged'].sum():>10}", ""]
    spans = [f"{low}-{high}" for low, high in LENGTHS]
    lines.append("  marked: how many of the documents were flagged, by the number of tokens that the model wrote")
    lines.append(f"  {'':<34}" + "".join(f"{title:>10}" for title in [*spans, "all"]))
    marked = rows.filter(pl.col("kind") == "marked").sort("key_id_true", "delta", "temperature", descending=True)
    settings = marked.partition_by("key_id_true", "temperature", "delta", as_dict=True, maintain_order=True)
    for (key_id, temperature, delta), part in settings.items():
        title = f"{key_id}, " + (f"temperature {temperature}" if delta is None else f"delta {delta}")
        cells = [part.filter(pl.col("tokens_true").is_between(low, high)) for low, high in LENGTHS] + [part]
        shares = [f"{cell['flagged'].sum()}/{cell.height}" for cell in cells]
        lines.append(f"  {title:<34}" + "".join(f"{cell:>10}" for cell in shares))
    return "\n".join([*lines, "", *_names(marked.filter(pl.col("user_id_true").is_not_null()), spans)])


def _names(marked: pl.DataFrame, spans: list[str]) -> list[str]:
    """Return names of documents that were marked for a user, by the tokens that the model wrote."""
    lines = [
        "  marked for a user: who is named for it",
        f"  {'':<34}" + "".join(f"{span:>10}" for span in [*spans, "all"]),
    ]
    cells = [marked.filter(pl.col("tokens_true").is_between(low, high)) for low, high in LENGTHS] + [marked]
    for title, chosen in (
        ("flagged", pl.col("flagged")),
        ("named: the user", pl.col("right")),
        ("undecided: a group, no single user", pl.col("naming") == Naming.UNDECIDED),
        ("wrong: somebody else", pl.col("wrong")),
    ):
        lines.append(f"  {title:<34}" + "".join(f"{cell.filter(chosen).height:>10}" for cell in cells))
    return lines


def example(rows: pl.DataFrame) -> str:
    """Write the least certain of the right flags, in the words that a flag allows."""
    right_flags = rows.filter("right").drop_nulls("user_id").sort("log10_p_global").tail(1)
    if right_flags.is_empty():
        return ""
    row = right_flags.row(0, named=True)
    return (
        f"The least certain of them: {row['doc_id']}, posted by {row['account_id']}, contains text marked for "
        f"{row['user_id']}\n(log10 p = {row['log10_p_global']:.1f}, corrected for {row['messages_tested']:,} messages, "
        f"and {row['correction']:g} times for keys and looks). Who posted it is another question.\n"
    )


def main() -> int:
    """Run the demo, and return the exit code of the scan."""
    start = time.monotonic()
    config = prepare(FOLDER)
    users = pl.read_parquet(HERE / "users.parquet")["user_id"].n_unique()
    print(f"Registry {FOLDER / 'registry'}: {len(KEYS)} keys, {users} users.", flush=True)
    code = run(scan, [str(config)])
    folder = str(FOLDER / "results")
    if code not in (0, 4):
        return code
    rows = compare(folder)
    quarantined = results.quarantine(folder).collect()
    print(
        f"\nFlagged at a false-positive rate of {FALSE_POSITIVE_RATE:g}, compared with the truth, which the scan "
        "never saw:\n"
    )
    print(report(rows, quarantined))
    print(
        f"\nThese tables leave out the {CANARY_TEXTS} canary texts, which are marked for users who do not exist.\n"
        "That the scan finds them shows that it finds marked text. If it missed half of them, it would end with 5."
    )
    print(f"\n{example(rows)}\nTables: {folder}/verdicts, /quarantine and /scans. Ask them, for example:\n")
    print(
        f"  .venv/bin/python -c \"import brickscan; print(brickscan.results('{folder}').flagged"
        ".group_by('user_id').len().sort('len', descending=True).collect().to_dicts())\"\n"
    )
    print(f"Also: .venv/bin/brickscan flagged {config}. All in {time.monotonic() - start:.0f} s.")
    return code


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m jobs.demo", description="Scan the demo's texts, in the folder demo."
    ).parse_args()
    sys.exit(main())
