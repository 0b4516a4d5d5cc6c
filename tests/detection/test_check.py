"""`brickscan check`: one text, one verdict a key, with the same numbers as a scan's."""

import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import brickscan
import pytest

from jobs.demo import __main__ as demo
from jobs.init import _HEAD
from scanner.cluster import scan
from scanner.detection.one_text import OpenedCheck, TextCheck, check_text
from scanner.error_shares import ErrorShares
from scanner.scan_plan import read_config
from scanner.watermark.laws import Binomial
from scanner.watermark.native import keyed
from schemas.config import COST_OF_LOOKS, DEFAULT_LOOKS
from tests.support.command_line import call
from tests.support.two_keys import message_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def texts(night, marked, plain, registry):
    """Files of one text each, which a night's scan reads as its documents in this order."""
    found = {
        "marked": marked(message_of(registry, "green", "alice"), 60, 1),
        "reserved": marked(19, 60, 2),
        "plain": plain(60, 3),
        "short": plain(5, 4),
    }
    for name, text in found.items():
        (night.folder / f"{name}.txt").write_text(text)
    night.write("a", list(found.values()))
    return found


@pytest.mark.usefixtures("without_ray")
def test_it_says_what_a_scan_says(night, texts):
    night.scan()
    rows = night.verdicts().to_dicts()
    same = (
        "key_id",
        "status",
        "tokens",
        "scored",
        "message",
        "score",
        "log10_p",
        "log10_p_global",
        "naming",
        "flagged",
        "proof",
    )
    for row, text in zip(rows, texts.values(), strict=True):
        found = {of_key["key_id"]: of_key for of_key in check_text(TextCheck.of_config(night.config), text.encode())}
        assert set(found) == {"green", "gum"}
        assert any(of_key["flagged"] for of_key in found.values()) == row["flagged"]
        if not row["flagged"]:
            continue
        best = found[row["key_id"]]
        assert {name: best[name] for name in same} == {name: row[name] for name in same}
        assert best["user_id"] == row["user_id"]
        assert min(of_key["log10_p_global"] for of_key in found.values()) == row["log10_p_global"]


def test_a_verdict_a_key_in_words(night, texts, registry):
    code, out, err = call("check", night.config, "--text", night.folder / "marked.txt")
    assert (code, err) == (0, "")
    head, green, gum, foot = out.splitlines()
    assert head.split() == ["key", "says", "p-value", "tokens", "scored", "computed", "again"]
    assert green.startswith("green  contains text marked for alice")
    assert green.endswith("  proved")
    assert gum.startswith("gum    no mark found")
    assert gum.endswith("  -")
    assert foot == "p-values are corrected for all messages of 2 keys; text counts as marked at 1 in 1,000,000"
    night.configure(more=DEFAULT_LOOKS)
    head, green, _, foot = call("check", night.config, "--text", night.folder / "marked.txt")[1].splitlines()
    assert "written by" not in out
    one = call("check", "--registry", registry, "--key", "green", "--text", night.folder / "marked.txt")[1]
    # p is corrected for all keys though one is asked for: who asks for fewer must get no smaller p-value
    assert [line.split() for line in one.splitlines()[:-1]] == [head.split(), green.split()]
    rate = foot.partition("; ")[2]
    assert one.endswith(f"2 keys, and for three looks: as written, normalised, in parts; {rate}\n")
    assert "too short to be scored" in call("check", night.config, "--text", night.folder / "short.txt")[1]
    assert "reserved: a false accusation" in call("check", night.config, "--text", night.folder / "reserved.txt")[1]
    stricter = call("check", "--registry", registry, "--fpr", "1e-300", "--text", night.folder / "marked.txt")[1]
    assert "contains" not in stricter


@pytest.mark.parametrize("how", ["hidden characters", "a part"])
def test_one_text_one_answer(night, marked, plain, registry, how):
    """`import brickscan` and `check --registry` passed over what a scan by the scan.toml of `init` finds."""
    text = marked(message_of(registry, "green", "alice"), 60, 1)
    if how == "hidden characters":
        text = "".join(f"{word[0]}\u200b{word[1:]} " for word in text.split())
    else:
        text = f"{plain(600, 5)}\n\n{text}\n\n{plain(600, 6)}"
    night.configure(more=DEFAULT_LOOKS)
    rows = OpenedCheck(TextCheck.of_config(night.config)).score_batch([text.encode()]).verdicts
    assert rows["user_id"].to_pylist() == ["alice"]
    opened = brickscan.open(registry).check([text]).rows
    assert opened.drop_columns("scanned_at").equals(rows.drop_columns("scanned_at"))
    (night.folder / "post.txt").write_text(text)
    of_config, of_registry = (
        call("check", *where, "--text", night.folder / "post.txt")[1].splitlines()
        for where in ((night.config,), ("--registry", registry))
    )
    assert of_registry[:-1] == of_config[:-1]
    assert "contains text marked for alice" in of_registry[1]


def test_the_demo_looks_as_init_has_scans_look(tmp_path):
    for written in (demo.CONFIG, _HEAD.format(sample="'a'", looks=DEFAULT_LOOKS, **COST_OF_LOOKS) + 'paths = ["a"]\n'):
        (tmp_path / "scan.toml").write_text(written)
        assert ErrorShares.of(read_config(tmp_path / "scan.toml")) == ErrorShares.by_default()


def test_a_flag_that_comes_out_differently_names_nobody_and_ends_with_3(night, texts, monkeypatch):
    law = Binomial.log10_p
    monkeypatch.setattr(Binomial, "log10_p", lambda *arguments: law(*arguments) * 1.001)
    code, out, _ = call("check", night.config, "--text", night.folder / "marked.txt")
    assert code == 3
    assert "alice" not in out
    assert out.splitlines()[1].startswith("green  contains text marked for nobody: a slower method")
    assert out.splitlines()[1].endswith("  differs")
    assert call("check", night.config, "--text", night.folder / "plain.txt")[0] == 0


def test_a_text_is_piped_in(night, texts, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(texts["marked"].encode())))
    assert "contains text marked for alice" in call("check", night.config)[1]


def test_what_cannot_be_right_is_refused(night, registry, texts):
    for arguments, words in (
        ((), "Give either CONFIG or --registry"),
        ((night.config, "--registry", registry), "Give either CONFIG"),
        ((night.config, "--fpr", "1e-3"), "--fpr goes with --registry"),
        ((night.config, "--key", "nosuch"), "'nosuch' is not in registry"),
        ((night.config, "--text", night.folder / "nosuch.txt"), "nosuch.txt: cannot be read"),
        (("--registry", night.folder), "holds no keys.toml"),
        (("--registry", night.folder / "nosuch"), "is not a folder\nhint: check the path"),
    ):
        code, out, err = call("check", *arguments)
        assert (code, out) == (2, "")
        assert words in err


def test_a_path_with_a_date_needs_none(night, texts):
    night.configure(paths=["in/{date}"])
    assert call("check", night.config, "--text", night.folder / "plain.txt")[0] == 0


@pytest.mark.costly
def test_it_starts_no_ray_and_makes_no_table(night, texts):
    code = "import sys; from jobs.cli import main\ntry: main()\nfinally: print('ray' in sys.modules, file=sys.stderr)"
    line = [sys.executable, "-c", code, "check", str(night.config), "--text", str(night.folder / "marked.txt")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "alice" in done.stdout
    assert done.stderr == "False\n"
    assert not Path(night.results).exists()


@pytest.mark.costly
@pytest.mark.usefixtures("ray_cluster")
def test_the_driver_of_a_scan_opens_no_key(night, texts, monkeypatch):
    def derived(*_: object) -> None:
        raise AssertionError("a sub-key was derived in the driver")

    monkeypatch.setattr(keyed.secret, "derive", derived)
    assert scan.run_scan(night.plan(), lambda work, totals: None).totals.counts.proved == 2
    assert night.verdicts()["flagged"].to_list() == [True, True, False, False]
