"""`brickscan calibrate` whole, on the demo's sample: table, figures, exit codes; a reduced version of the real run."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from jobs.calibrate import calibrate, module, table
from jobs.cli import brickscan, run
from scanner import results
from scanner.audit.calibration.calibration_plan import plan_calibration
from scanner.audit.statistics.hits import THRESHOLDS
from scanner.cluster import calibrate as calibrating
from scanner.cluster.corpus import CorpusPart
from scanner.errors import TableError
from scanner.registry import new_key, set_audit_secret
from scanner.results.transactions import append_audits
from scanner.signing import keep_signatures, opened_signers, sign_with
from scanner.storage.locations import table_uri
from scanner.text import sha256_file
from schemas.audit import AUDIT_KINDS, AUDITS
from schemas.words import AuditVerdict
from tests.fixed import fix_secrets
from tests.support.demo_texts import DEMO, sample_texts
from tests.support.rows import filled

CONFIG = """\
results = "audit"
[tokenizer]
file = "{demo}/tokenizer.json"
sha256 = "{sha256}"
[input]
paths = ["corpus.parquet"]
account = "account"
[law]
tests = {tests}
messages = 4096
windows = [0, 2]
gammas = ["1/4"]
[figure]
pieces = 400
windows = [0, 4]
[cluster]
workers = 1
"""
KEYS = """
[keys]
registry = "registry"
messages = 8
tokens = 256
"""


def make(folder: Path, texts: list[str], tests: int = 1_000_000, more: str = "") -> Path:
    table = pa.table({"text": texts, "account": [f"account-{i % 50}" for i in range(len(texts))]})
    pq.write_table(table, folder / "corpus.parquet", row_group_size=100)
    config = folder / "calibration.toml"
    sha256 = sha256_file(DEMO / "tokenizer.json")
    config.write_text(CONFIG.format(demo=DEMO, sha256=sha256, tests=tests) + more)
    return config


def rows_of(folder: Path) -> pl.DataFrame:
    return results.audits(str(folder / "audit")).collect()


@pytest.mark.costly
@pytest.mark.usefixtures("ray_cluster")
def test_an_unmarked_corpus_passes(tmp_path, human_texts, capsys):
    fix_secrets(tmp_path / "registry", "k1")
    new_key(
        tmp_path / "registry", "k1", format="greenlist", window=4, gamma="1/4", messages=500,
        tokenizer=DEMO / "tokenizer.json",
    )  # fmt: skip
    config = make(tmp_path, [*human_texts, *human_texts[:7]], more=KEYS)
    assert run(calibrate, [str(config)]) == 0
    rows = rows_of(tmp_path)
    cases, thresholds = 6, len(THRESHOLDS)
    assert Counter(rows["kind"].to_list()) == {
        "law_total": 2 * thresholds,
        "law_best_total": 2 * thresholds,
        "law": cases * thresholds + cases,
        "figure": 2 * 2 * 3 * 6,
        "key": thresholds,
        "key_messages": thresholds,
    }
    assert set(rows["kind"]) == set(AUDIT_KINDS)
    assert set(rows["verdict"]) <= set(AuditVerdict)
    assert rows.columns == AUDITS.names
    totals = rows.filter(pl.col("kind") == "law_total")
    assert (totals["tests"] >= 1_000_000).all()
    assert totals.filter(pl.col("threshold") >= 1e-3)["verdict"].unique().to_list() == ["holds"]
    assert (totals["low"] <= totals["hits"]).all()
    assert (totals["hits"] <= totals["high"]).all()
    keys = rows.filter(pl.col("kind") == "key")
    assert keys["tests"].unique().to_list() == [len(human_texts)]  # a text that is posted twice counts once
    ((cluster, clusters),) = keys.select("cluster", "clusters").unique().rows()
    assert cluster == "account, piece"
    assert 10 < clusters <= 50
    out = capsys.readouterr().out
    assert f"{len(human_texts) + 7} documents, {len(human_texts)} distinct texts" in out
    assert "FAILED" not in out
    *_, admitted, signed = out.splitlines()
    assert re.fullmatch(r"k1 can be admitted .*; for 1e-06 .*documents.* are needed.*", admitted)
    (one,) = keys.filter(threshold=0.01).to_dicts()
    assert signed.startswith(
        f"k1: of {len(human_texts):,} unmarked texts, {clusters} independent pieces, {one['hits']} were flagged at 0.01"
    )
    assert signed.endswith("; 1e-06 follows from theory and was not measured")
    undecided = int((rows["verdict"] == "undecided").sum())
    assert undecided > 0
    assert re.search(f"^{undecided} rows undecided", out, re.MULTILINE)
    assert " undecided\n" not in out
    assert sum(line.endswith(" undecided") for line in table(rows.to_dicts(), everything=True)) > 0
    figures = {path.name.split("-", 2)[2]: path for path in (tmp_path / "audit" / "figures").iterdir()}
    assert set(figures) == {"details.json", "figure.png", "law.png"}
    details = json.loads(figures["details.json"].read_text())
    assert [entry["label"].split(";")[1] for entry in details["figure"]] == ["h=0", "h=4"] * 2
    assert '"text":' not in json.dumps(details)
    assert not list((tmp_path / "audit").glob(".tokens-*"))


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_corpus_with_marked_text_ends_with_code_3_and_a_sentence(tmp_path, human_texts, capsys):
    registry = tmp_path / "registry"
    secret = DEMO / "secrets" / "demo-paper.key"
    new_key(
        registry, "seen", format="greenlist", window=4, gamma="1/4", messages=100_000,
        tokenizer=DEMO / "tokenizer.json", secret=f"file:{private(secret, tmp_path)}",
    )  # fmt: skip
    config = make(tmp_path, [*human_texts, *sample_texts("marked", "demo-paper")[:20]], 500_000, KEYS)
    assert run(module, ["--config", str(config), "--show-text"]) == 3
    rows = rows_of(tmp_path)
    assert set(rows.filter(pl.col("verdict") == "too small", pl.col("kind") != "figure")["key_id"]) == {"seen"}
    assert set(rows.filter(pl.col("kind") == "law_total")["tests"]) == {3 * 4096 * 41}
    out = capsys.readouterr().out
    assert "FAILED: p-values are too small for all messages of key seen: " in out
    assert "the law itself holds" in out


def private(secret: Path, folder: Path) -> Path:
    """A copy of a secret that only its owner can read, as the registry demands."""
    copy = folder / "secret.key"
    copy.touch(mode=0o600)
    copy.write_bytes(secret.read_bytes())
    return copy


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_the_same_seed_gives_the_same_counts(tmp_path, human_texts):
    def counts(seed: str) -> list[tuple[object, ...]]:
        config = make(tmp_path, human_texts[:120], tests=50_000)
        text = (
            config.read_text()
            .replace("pieces = 400", "pieces = 20")
            .replace("results = ", f'seed = "{seed}"\nresults = ')
        )
        config.write_text(text)
        run(calibrate, [str(config)])
        newest = rows_of(tmp_path).sort("at").filter(pl.col("audit_id") == pl.col("audit_id").last())
        return newest.select("kind", "method", "label", "dedup", "test", "threshold", "hits", "expected").rows()

    first = counts("one")
    assert sorted(map(str, first)) == sorted(map(str, counts("one")))
    assert sorted(map(str, first)) != sorted(map(str, counts("two")))


@pytest.mark.costly
@pytest.mark.parametrize("most", [1, 7, 10**6])
def test_much_work_is_cut_into_calls_that_take_seconds(tmp_path, human_texts, monkeypatch, most):
    monkeypatch.setattr(calibrating, "TESTS_A_CALL", most * 4096)
    plan = plan_calibration(make(tmp_path, human_texts[:2], tests=10**6))
    sizes = np.array([40, 400, 400, 400])
    parts = [CorpusPart(i, f"part {i}", sizes, np.arange(4, dtype=np.uint64) + 4 * i, ()) for i in range(2)]
    calls = list(calibrating._law_calls(plan, plan.config.law, parts))
    drawn = {}
    for call in calls:
        case, part, documents, numbers, *_ = call.arguments
        assert len(documents) == len(numbers) <= most
        drawn.setdefault((case, part), []).extend(zip(documents.tolist(), numbers.tolist(), strict=True))
    assert len(drawn) == 2 * len(plan.law_cases())
    for found in drawn.values():
        assert len(found) == len(set(found)) > 7
        assert [number for _, number in found] == sorted(number for _, number in found)
    whole = len(drawn) == len(calls)
    assert whole == (most == 10**6)


@pytest.mark.costly
def test_sigterm_ends_it_with_143_a_sentence_and_nothing_written(tmp_path, human_texts):
    config = make(tmp_path, human_texts, tests=10**9)
    command = [sys.executable, "-m", "jobs.calibrate", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "step='tokenised'" in line)  # a worker on Ray has begun
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    said = [line for line in err.splitlines() if line.startswith("brickscan: ")]
    assert said == [
        "brickscan: calibrate: nothing was written; run it again from the start",
        "brickscan: interrupted by SIGTERM",
    ]
    assert out == ""
    assert not (tmp_path / "audit" / "audits").exists()
    assert not list((tmp_path / "audit").glob(".tokens-*"))


@pytest.mark.costly
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[law]", "[lore]"), "field 'lore' is unknown"),
        (("tests = 1000000", "tests = 0"), "law.tests"),
        (("windows = [0, 2]", "windows = [0, 17]"), "law.windows.1"),
        (('gammas = ["1/4"]', 'gammas = ["1/3"]'), "gammas.0' = '1/3'"),
        (("corpus.parquet", "nothing.parquet"), "does not exist"),
        (("tokenizer.json", "nothing.json"), "nothing.json"),
        (("results", 'seed = ""\nresults'), "seed"),
        (("windows = [0, 2]", 'windows = [0]\ndedups = ["context"]'), "add another window"),
        (("windows = [0, 2]", 'windows = [0, 2]\ndedups = ["none"]'), "'none': Input should be 'ngram' or 'context'"),
        (("[input]", '[input]\ntext = "body"'), "column 'body' (text) is missing\nhint: there are: text"),
    ],
)
def test_what_cannot_be_right_is_refused(tmp_path, capsys, change, said, without_ray):
    config = make(tmp_path, ["some text"])
    assert change[0] in config.read_text()
    config.write_text(config.read_text().replace(*change, 1))
    assert run(calibrate, [str(config)]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "audit" / "audits").exists()


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_too_little_text_is_refused(tmp_path, capsys):
    config = make(tmp_path, ["some text"])
    assert run(calibrate, [str(config)]) == 2
    assert "no document has 64 tokens" in capsys.readouterr().err
    config.write_text(config.read_text().split("[law]")[0] + "[figure]\npieces = 3\n")
    assert run(calibrate, [str(config)]) == 2
    assert "the corpus has 0 pieces of 256 tokens" in capsys.readouterr().err


def test_nothing_to_do_is_refused(tmp_path, capsys):
    config = make(tmp_path, ["some text"])
    config.write_text(config.read_text().split("[law]")[0])
    assert run(calibrate, [str(config)]) == 2
    assert "[law], [figure] or [keys]" in capsys.readouterr().err


@pytest.mark.usefixtures("without_ray")
def test_results_are_looked_at_before_the_work(tmp_path, monkeypatch):
    """Hours of work end with rows in `audits`: deleted ones and edited ones are refused before it."""
    registry = tmp_path / "registry"
    new_key(registry, "seen", format="greenlist", window=4, gamma="1/4", messages=16, tokenizer=DEMO / "tokenizer.json")
    set_audit_secret(registry)
    config, folder = make(tmp_path, ["a text"], more=KEYS), str(tmp_path / "audit")

    class AtWork(Exception):
        """The work has begun."""

    def begin_work(*_arguments):
        raise AtWork

    monkeypatch.setattr(calibrating, "run_calibration", begin_work)
    sign_with(folder, str(registry))
    append_audits(folder, [filled(AUDITS, audit_id="first")])
    assert keep_signatures(folder) is None
    shutil.rmtree(folder)
    opened_signers._signers.clear()
    with pytest.raises(TableError, match="audits: was signed but no longer exists"):  # it says how many keys were tried
        calibrate.callback(config, None, 1e-6, False, False)
    Path(folder).mkdir(exist_ok=True)
    assert run(brickscan, ["keys", "admit", "seen", "--registry", str(registry), "--results", folder]) == 2
    assert run(brickscan, ["sign", str(config), "--yes"]) == 0
    with pytest.raises(AtWork):
        calibrate.callback(config, None, 1e-6, False, False)
    append_audits(folder, [filled(AUDITS, audit_id="second")])
    assert keep_signatures(folder) is None

    uri = table_uri(folder, "audits")
    write_deltalake(uri, pa.Table.from_pylist([filled(AUDITS, audit_id="forged")], AUDITS), mode="overwrite")
    opened_signers._signers.clear()
    with pytest.raises(TableError, match="audits: its files are not those that brickscan committed"):
        calibrate.callback(config, None, 1e-6, False, False)


@pytest.mark.usefixtures("without_ray")
def test_audits_that_nobody_signed_admit_no_key(tmp_path, capsys):
    """The first calibration into the folder named no registry: anybody may have written its rows."""
    registry, folder = tmp_path / "registry", str(tmp_path / "audit")
    new_key(registry, "seen", format="greenlist", window=4, gamma="1/4", messages=16, tokenizer=DEMO / "tokenizer.json")
    set_audit_secret(registry)
    config = make(tmp_path, ["a text"], more=KEYS)
    append_audits(folder, [filled(AUDITS, audit_id="law alone")])
    with pytest.raises(TableError, match="audits: it is not signed"):
        calibrate.callback(config, None, 1e-6, False, False)
    assert run(brickscan, ["keys", "admit", "seen", "--registry", str(registry), "--results", folder]) == 2
    assert " the audits" in capsys.readouterr().err
