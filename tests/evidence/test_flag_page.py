"""Pages of flags: any document's text stays text, and nothing on the page can load or run."""

import dataclasses
import re
import time
from datetime import UTC, datetime
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobs.evidence import _MARKS, _marked_lines
from scanner.errors import Refused
from scanner.evidence.account_owners import read_owners
from scanner.evidence.advice import RULES, advise, in_short
from scanner.evidence.case import FlagCase
from scanner.evidence.copied_text import CopiedShare
from scanner.evidence.explanation import Explanation, PartFinding, ScoreRun, TextEvidence, UserRuns
from scanner.evidence.page import CHARACTERS_A_PAGE, lines_of, marked_users, page, segments
from scanner.evidence.posted_text import MOST_MARKS, as_posted
from scanner.evidence.related_flags import GroupCounts
from scanner.printable import combines
from scanner.text.quoting import parts_of
from tests.support.hostile_pages import HOSTILE, check
from tests.support.rows import verdict


def explanation(text: str, field: str = "x", runs: list[ScoreRun] | None = None) -> Explanation:
    row = verdict(3, path=f"/in/{field}", user=field, doc_id=field, account_id=field, created_at=None, audit=None) | {
        "held_since": datetime(2026, 1, 1, tzinfo=UTC),
        "named": [],
        "further_messages": [],
        "proof": "proved",
        "basis": "key",
        "variant": None,
        "manifest": None,
        "look": None,
    }
    weighed = TextEvidence(9, 8, 1, 0, 8.0, runs or [], [])
    one = GroupCounts(1, 1, 1)
    return Explanation(
        FlagCase(row, None),
        1e-6,
        None,
        text,
        None,
        None,
        parts_of(text),
        weighed,
        None,
        one,
        one,
        one,
        one,
        None,
        None,
    )


def test_only_text_without_a_score_is_grey():
    """A text that is not weighed, since nobody is named, is not grey: all of it was scored."""
    weighed = explanation("some words, and more", runs=[ScoreRun(0, 10, 8, 0, -3.0)])
    assert page(weighed).count('<span class="un">') == 2  # the legend, and the rest of the text
    unweighed = dataclasses.replace(weighed, text_evidence=None, no_evidence="no message is shown for this flag")
    assert '<span class="un">' not in page(unweighed)


@pytest.mark.parametrize(
    ("silent", "p_own", "p_quoted"), [("own", -0.0, -9.0), ("quoted", -9.0, -1.9), (None, -3.0, -3.0)]
)
def test_no_shade_in_a_part_whose_own_p_is_not_small(silent, p_own, p_quoted):
    """A run that speaks very strongly, by chance or since it reaches over a part's edge, shades no innocent words."""
    text = "> quoted words\nown words that are longer"
    explained = explanation(text, runs=[ScoreRun(0, len(text), 8, 0, -5.0)])
    said = [PartFinding("own", 25, 8, p_own, -9.0), PartFinding("quoted", 15, 8, p_quoted, -9.0)]
    explained = dataclasses.replace(explained, text_evidence=explained.text_evidence._replace(parts=said))
    levels = {"quoted" if part.quoted else "own": part.level for part in segments(explained)}
    assert levels == {kind: 0 if kind == silent else 4 for kind in ("own", "quoted")}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_fields_stay_text(hostile):
    html = page(explanation(hostile, hostile, [ScoreRun(0, len(hostile), 8, 0, -5.0)]))
    shown = "".join(check(html).text)
    assert as_posted(hostile).splitlines()[0] in shown
    assert "\x1b" not in html
    assert "\u202e" not in html


@pytest.mark.seconds
@given(st.text(max_size=200))
@example("\r\n> a\r\n")
def test_any_text_stays_text(text):
    html = page(explanation(text, text or "x", [ScoreRun(0, max(len(text) // 2, 1), 8, 0, -3.0)]))
    assert as_posted(text).replace("\n", "") in "".join(check(html).text).replace("\n", "")


@given(
    st.text(alphabet="ab>\n ", max_size=60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(-6, 0)), max_size=8),
)
def test_segments_are_the_text(text, drawn):
    bounds = sorted({min(at, len(text)) for at, _ in drawn})
    levels = [level for _, level in drawn]
    runs = [ScoreRun(a, b, 8, 0, float(p)) for (a, b), p in zip(pairwise(bounds), levels, strict=False)]
    found = segments(explanation(text, runs=runs))
    assert "".join(part.text for part in found) == as_posted(text)
    at = 0
    for part in found:
        inside = [run.level for run in runs if run.begin <= at < run.end]
        assert part.level == (inside[0] if inside else None)
        at += len(part.text)


def test_a_long_text_is_cut_and_says_so():
    text = "word " * 20_000
    html = page(explanation(text, runs=[ScoreRun(i, i + 40, 8, 0, -3.0) for i in range(0, len(text), 40)]))
    assert len(html.encode()) < 200_000
    assert f"{len(text) - CHARACTERS_A_PAGE:,} more characters" in html


def test_a_page_stays_small_whatever_the_id():
    explained = explanation("text")
    for name in ("doc_id", "account_id", "user_id"):
        explained.row[name] = "i" * 2**20
    html = page(explained)
    assert len(html.encode()) < 20_000
    assert "i…i" in html


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("text", ["\U000e0001" * 50_000, "'" * 50_000, "> a\nb\n" * 9_000, "水" * 50_000])
def test_a_page_stays_small_whatever_is_in_the_text(text):
    began = time.process_time()
    html = page(explanation(text, runs=[ScoreRun(i, i + 3, 8, 0, -9.0) for i in range(0, len(text), 3)]))
    assert time.process_time() - began < 20  # a text that is one letter took minutes
    assert 100_000 < len(html.encode()) < 200_000
    left_out = int(re.search(r"([\d,]+) more characters", html).group(1).replace(",", ""))
    assert as_posted(text[:-left_out]).replace("\n", "") in "".join(check(html).text).replace("\n", "")


QUOTED = [PartFinding("own", 9, 8, 0.0, -0.1), PartFinding("quoted", 9, 8, -9.0, -9.0)]


def of(copied: float = 0.0, parts: tuple[PartFinding, ...] = (), **row: object) -> Explanation:
    found = explanation("some words")
    weighed = found.text_evidence._replace(parts=list(parts))
    changed = dataclasses.replace(found, text_evidence=weighed, copied=CopiedShare(copied, 1, 1))
    changed.row.update(row)
    return changed


TWO = [{"user_id": user, "naming": "named", "key_id": "key", "message": i} for i, user in enumerate("xy")]
TRAPS = {
    "alarm": (of(audit="alarm"), None),
    "computed again": (of(proof="differs"), None),
    "reserved": (of(naming="reserved"), "dismissed"),
    "undecided": (of(naming="undecided"), "unclear"),
    "anyone": (of(naming="assumed"), "unclear"),
    "erased": (of(user_id=None), "unclear"),
    "quoted": (of(parts=tuple(QUOTED)), "quoted"),
    "copied": (of(0.9, account_id="other"), "quoted"),
    "copied, perhaps": (dataclasses.replace(of(), copied=CopiedShare(0.0, 0, 0, not_read=1)), "unclear"),
    "an equal name": (of(), "unclear"),
    "other account": (of(account_id="other"), "unclear"),
    "no account": (of(account_id=None), "unclear"),
    "of two users": (dataclasses.replace(of(named=TWO), owned=True), "unclear"),
    "not checked": (dataclasses.replace(of(), owned=True, not_checked="no registry was named"), None),
    "canary": (dataclasses.replace(of(), canary=True), "allowed"),
    "edited": (
        dataclasses.replace(of(), text=None, text_evidence=None, no_text="the text there now"),
        "unclear",
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_no_trap_is_recommended_to_be_confirmed(trap):
    explained, decision = TRAPS[trap]
    assert advise(explained).decision == decision
    assert RULES[advise(explained).rule].finding


def test_only_a_record_confirms():
    """An account that is called like the user proves nothing; the platform's own record that it is theirs does."""
    assert of().row["account_id"] == of().row["user_id"]
    for owned, decision in ((None, "unclear"), (False, "unclear"), (True, "confirmed")):
        assert advise(dataclasses.replace(of(), owned=owned)).decision == decision
    assert advise(dataclasses.replace(of(0.9, account_id="other"), owned=True)).decision == "confirmed"
    assert "(no record says whose account it is)" in in_short(of())
    assert "(this user's account, by your records)" in in_short(dataclasses.replace(of(account_id="z"), owned=True))
    assert "; posted by an unknown account; " in in_short(of(account_id=None))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_read_a_record_of_owners(tmp_path, suffix):
    frame = pl.DataFrame({"account_id": [7, 7, 8], "user_id": ["alice", "bob", None]})
    path = tmp_path / f"owners{suffix}"
    (frame.write_csv if suffix == ".csv" else frame.write_parquet)(path)
    assert read_owners(path) == {"7": frozenset({"alice", "bob"})}
    with pytest.raises(Refused, match="cannot be read"):
        read_owners(tmp_path / "none.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(Refused, match="has no column 'account_id'; it has 'a', 'b'"):
        read_owners(tmp_path / "other.csv")


def test_say_what_chance_gives_in_a_night_of_this_size():
    """A flag near the threshold among very many documents is one that chance gives now and then."""
    found = explanation("some words")
    scan = {"documents": 68_000, "misnaming_rate": None, "false_positive_rate": 1e-6, "keys": [], "trial": False}
    near = dataclasses.replace(found, case=FlagCase(found.row, scan), expected=0.052)
    assert "In a scan of 68,000 documents, expect at most 0.05" in page(near)
    assert "In a scan of" not in page(found)


@given(
    st.lists(st.sampled_from(["café", "cafe\u0301", "a\u0308\u0301", "plain", "n\u0303"]), min_size=1, max_size=20),
    st.sets(st.integers(0, 60)),
    st.integers(20, 40),
)
def test_accents_stay_on_their_letters_and_words_whole_wherever_evidence_is_cut(words, cuts, width):
    text = " ".join(words)
    bounds = [0, *sorted(cut for cut in cuts if 0 < cut < len(text)), len(text)]
    found = segments(explanation(text, runs=[ScoreRun(a, b, 8, 0, -9.0) for a, b in pairwise(bounds)]))
    assert "".join(part.text for part in found) == text
    assert not any(combines(part.text[0]) for part in found)
    lines = [line for line in _marked_lines(found, width) if set(line) - set("".join(_MARKS) + " ")]
    assert [word for line in lines for word in line.split()] == words


def test_a_pile_of_accents_is_escaped_wherever_it_is_cut():
    text = "a" + "\u0301" * 40
    found = segments(explanation(text, runs=[ScoreRun(0, 9, 8, 0, -3.0), ScoreRun(9, len(text), 8, 0, -3.0)]))
    assert "".join(part.text for part in found).count("\u0301") == MOST_MARKS


def test_each_user_of_a_text_has_a_hue():
    """Where a text is marked for two users, the evidence of both is shaded, the stronger one where both speak."""
    own, other = [ScoreRun(0, 5, 8, 0, -9.0), ScoreRun(5, 10, 8, 0, 0.0)], [ScoreRun(5, 10, 8, 0, -9.0)]
    explained = dataclasses.replace(explanation("01234567890", runs=own), others=[UserRuns("bob", other)])
    found = [(part.text, part.level, part.user) for part in segments(explained)]
    assert found == [("01234", 4, 0), ("56789", 4, 1), ("0", None, 0)]
    html = page(explained)
    assert marked_users(explained) == ["x", "bob"]
    assert '<span class="l4 u1" title="very strongly, for bob">56789</span>' in html


def test_a_marked_part_has_a_line_in_the_margin():
    """The line stands beside the lines of the part; no empty line is boxed; brackets say where it begins and ends."""
    text = "one two\n\nthree four\nfive"
    span = {"char_from": 4, "char_to": 19, "tokens": 9, "quoted": 0.0, "log10_p_global": -9.0}
    explained = dataclasses.replace(explanation(text), spans=[span])
    lines = lines_of(segments(explained))
    assert ["".join(part.text for part in line.segments) for line in lines] == text.split("\n")
    assert [line.marked for line in lines] == [True, False, True, False]
    ends = [(part.text, part.begins_part, part.ends_part) for line in lines for part in line.segments if part.marked]
    assert ends == [("two", True, False), ("", False, False), ("three four", False, True)]
