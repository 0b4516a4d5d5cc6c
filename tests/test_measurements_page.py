"""docs/measurements.md is the page of the files beside it, and a file in another form is refused by name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.measurements import FOLDER, Measurement, read, write
from tests.support.measurements_page import PAGE, page_of

FIELDS: dict[str, Any] = {
    "group": "Speed",
    "title": "Cost of one message",
    "command": "python -m tests.bench.formats",
    "date": "2026-11-27",
    "machine": "one core",
    "mark": "version 3",
    "sample": "medians of 7 rounds",
    "columns": ["format", "ns a token"],
    "rows": [["`greenlist`", 26], ["a|b", "1.50"]],
}


def test_page_is_current():
    assert page_of(FOLDER) == PAGE.read_text(encoding="utf-8"), "docs/measurements.md: run `make reference`"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"author": "me"}, "author: Extra inputs"),
        ({"rows": [["`greenlist`", 26], ["`gumbel`"]]}, "Value error, row 2 has 1 cells; there are 2 columns"),
        ({"group": "Taste"}, "group: Input should be 'Speed'"),
        ({"date": "yesterday"}, "date: String should match"),
    ],
)
def test_other_forms_are_refused(tmp_path: Path, wrong: dict[str, Any], words: str):
    path = tmp_path / "cost-of-one.json"
    path.write_text(json.dumps(FIELDS | wrong))
    with pytest.raises(ValueError, match=re.escape(f"cost-of-one.json: {words}")):
        read(path)


def test_other_names_are_refused(tmp_path: Path):
    path = tmp_path / "Cost_of_one.json"
    path.write_text(json.dumps(FIELDS))
    with pytest.raises(ValueError, match=r"^Cost_of_one\.json: a measurement's file is named in kebab-case"):
        read(path)


def test_page_of_a_written_file(tmp_path: Path):
    write(tmp_path / "cost-of-one.json", Measurement.model_validate(FIELDS))
    assert read(tmp_path / "cost-of-one.json") == Measurement.model_validate(FIELDS)
    copied = FIELDS | {"transcribed": True, "note": "A note.", "rows": [["first", 12345]]}
    (tmp_path / "another.json").write_text(json.dumps(copied).replace("12345", "1.50"))
    page = page_of(tmp_path)
    assert "\n## Speed\n" in page
    assert '<a id="cost-of-one"></a>\n\n### Cost of one message\n\nCommand: `python -m tests.bench.formats`.' in page
    assert "| format | ns a token |\n| --- | ---: |\n| `greenlist` | 26 |\n| a\\|b | 1.50 |" in page
    assert "| first | 1.50 |\n\nA note." in page
    assert page.count("**Copied by hand.**") == 1
    assert "These tables are copied by hand: [another](#another)." in page
    (tmp_path / "third.json").write_text(json.dumps(copied).replace("12345", "1.50"))
    assert "except those that a command wrote itself: [cost-of-one](#cost-of-one)." in page_of(tmp_path)
