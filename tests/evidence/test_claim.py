"""A claim that a third party checks with a separate script, which knows both versions and finds every lie."""

import hashlib
import json
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest

from scanner.evidence import check_claim
from scanner.evidence.check_claim import Mark, any_of
from scanner.watermark.laws import Binomial
from scanner.watermark.proof import log10_any_of
from tests.support.command_line import call
from tests.support.two_keys import message_of

ANSWERS = Path(check_claim.__file__).parents[1] / "watermark" / "native"


def label_of(case: dict) -> str:
    groups = f";groups={case['groups']}" if case.get("groups") else ""
    gamma = f";gamma={case['gamma']}" if case["method"] == "greenlist" else ""
    return f"{case['method']}{'-v2' if case.get('version') == 2 else ''};h={case['window']}{gamma}{groups}"


@pytest.mark.parametrize("name", ["known_answers.json", "known_answers_2.json"])
def test_the_script_gives_the_known_answers(name):
    tried = set()
    for case in json.loads((ANSWERS / name).read_text())["documents"]:
        if case["method"] == "gumbel-log" or case["dedup"] != "ngram":
            continue
        mark, tokens, h = Mark(label_of(case), bytes.fromhex(case["secret"])), case["tokens"], case["window"]
        ngrams = list(dict.fromkeys(tuple(tokens[t - h : t + 1]) for t in range(h, len(tokens))))
        score = sum(mark.term(list(ngram), case["message"]) for ngram in ngrams)
        assert len(ngrams) == case["scored"]
        assert score == pytest.approx(case["score"], rel=1e-9)
        if ngrams:
            assert mark.log10_p(case["score"], len(ngrams)) == pytest.approx(case["log10_p"], rel=1e-9, abs=1e-12)
        tried.add((case["method"], bool(case.get("groups"))))
    assert len(tried) >= 2


@pytest.mark.parametrize("tests", [1, 3, 2 / 0.72, 2000, 10**9])
@pytest.mark.parametrize("log10_p", [-300.0, -28.5, -3.0, -0.1])
def test_corrections(log10_p, tests):
    assert any_of(log10_p, tests) == pytest.approx(log10_any_of(log10_p, tests), rel=1e-9, abs=1e-12)


def test_a_long_text_is_checked_in_seconds():
    """A green list of 50,000 scored tokens, whose law term by term took minutes; the result is the scan's own."""
    began = time.process_time()
    mark = Mark("greenlist;h=4;gamma=1/4", bytes(32))
    found = any_of(mark.log10_p(30_000.0, 50_000), 10**5)
    assert time.process_time() - began < 20
    law = Binomial(Fraction(1, 4))
    assert found == pytest.approx(float(law.log10_p(30_000.0, 50_000)) + 5, rel=1e-9)


@pytest.mark.usefixtures("without_ray")
def test_a_claim_holds_the_text_that_was_posted(night, registry, marked, tmp_path):
    """Invalid UTF-8 is scored as U+FFFD, but the claim's digest is that of the posted bytes."""
    raw = b"\xff\xfe\r\n" + marked(message_of(registry, "green", "alice"), 80, 1).encode()
    night.write("a", [raw])
    night.scan()
    case = tmp_path / "case"
    code, out, err = call("replay", night.config, "a:0", "--proof", case)
    assert code == 0, out + err
    claim = json.loads((case / "claim.json").read_text())
    assert (case / "text.txt").read_bytes() == raw
    assert hashlib.sha256(raw).hexdigest() == claim["text_sha256"]
    assert (case / "scored.txt").read_bytes() == raw.decode(errors="replace").encode()
    assert check(case, registry / "secrets" / "green.key")[0] == 0
    assert "a part of it alone was looked at (invalid_utf8)" in call("explain", night.config, "a:0")[1]


@pytest.mark.usefixtures("without_ray")
def test_a_claim_is_checked_without_brickscan(night, registry, marked, plain, tmp_path):
    night.write("a", [marked(message_of(registry, "green", "alice"), 80, 1), plain(80, 1)])
    night.scan()
    case = tmp_path / "case"
    code, out, _ = call("replay", night.config, "a:0", "--proof", case)
    assert (code, "check.py SECRET_FILE" in out) == (0, True)
    secret = registry / "secrets" / "green.key"
    assert check(case, secret)[0] == 0
    code, said = check(case, registry / "secrets" / "gum.key")
    assert (code, "FAILS  the key is the one that was committed to" in said) == (1, True)
    held = secret.read_text().strip()
    assert [path.name for path in case.iterdir() if held in path.read_text()] == []
    claim = json.loads((case / "claim.json").read_text())
    for name, value in (
        ("score", claim["score"] + 1),
        ("message", claim["message"] + 1),
        ("messages", 1),
        ("tests", 1),
    ):
        (case / "claim.json").write_text(json.dumps(claim | {name: value}))
        assert check(case, secret)[0] == 1, name
    (case / "claim.json").write_text(json.dumps(claim))
    rows = (case / "ngrams.csv").read_text().splitlines()
    for changed in ([*rows, rows[0]], rows[1:], [*rows[:-1], "1,2,3"]):
        (case / "ngrams.csv").write_text("\n".join(changed) + "\n")
        assert check(case, secret)[0] == 1
    code, _, err = call("replay", night.config, "a:0", "--proof", case)
    assert (code, "name a folder that is new" in err) == (2, True)


def check(case: Path, secret: Path) -> tuple[int, str]:
    """Runs the script by an interpreter that finds none of our modules."""
    found = subprocess.run(
        [sys.executable, "-I", "-S", str(case / "check.py"), str(secret)], capture_output=True, text=True, check=False
    )
    return found.returncode, found.stdout
