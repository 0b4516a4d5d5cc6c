"""The price of a night: made-up figures priced by hand, and a real measurement of few documents."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobs.plan import night_lines
from scanner.cluster import night_price
from scanner.cluster.night_price import MeasuredCost, price_night
from scanner.errors import Refused
from schemas.tables import STAGES
from tests.support.command_line import call

WORK = [stage for stage in STAGES if stage != "commit"]


def rounds(*factors: float, seconds: float) -> list[dict[str, float]]:
    return [dict.fromkeys(WORK, factor * seconds / len(WORK)) | {"prove": 0.0} for factor in factors]


SHORT = MeasuredCost("gumbel", 1e9, 100.0, rounds(1, 3, 2, seconds=1e-3), 10)
LONG = MeasuredCost("gumbel", 1e9, 300.0, rounds(1, 3, 2, seconds=2e-3), 10, proof=0.03)


def test_a_night_is_linear_in_tokens_and_pays_for_its_proofs():
    (found,) = price_night([SHORT, LONG], 1000, 200, 1e9, 0.5)
    a_stage = 1000 * 2 * (1e-3 + 2e-3) / 2 / 5  # 200 tokens lie between 100 and 300; the factors' median is 2
    proofs = 1000 * 0.5 * 0.03 * 200 / 300
    assert found.stages == pytest.approx(dict.fromkeys(WORK, a_stage) | {"prove": proofs})
    assert found.seconds == pytest.approx(4 * a_stage + proofs)
    assert (found.low, found.high) == pytest.approx((2 * a_stage + proofs, 6 * a_stage + proofs))
    (unflagged,) = price_night([LONG, SHORT], 1000, 200, 1e9, 0)
    assert unflagged.seconds == pytest.approx(4 * a_stage)


def test_a_very_short_document_costs_no_less_than_nothing():
    steep = LONG._replace(rounds=rounds(1, 1, 1, seconds=1.0))
    (found,) = price_night([SHORT, steep], 1000, 1, 1e9, 0)
    assert found.low == found.seconds == 0


def test_other_numbers_of_users_are_refused():
    with pytest.raises(Refused, match=r"measured for 1e\+09; give one of these, or .* --users 1e\+06"):
        price_night([SHORT, LONG], 1000, 200, 1e6, 0)
    with pytest.raises(Refused, match="measured for none"):
        price_night([], 1000, 200, 1e6, 0)


@pytest.mark.parametrize("rows", [[SHORT], [SHORT, LONG, LONG], [SHORT, SHORT], [SHORT, LONG._replace(key_format="x")]])
def test_figures_that_lack_a_length_are_refused(rows):
    with pytest.raises(Refused, match="two lengths"):
        price_night(rows, 1, 200, 1e9, 0)


@pytest.mark.parametrize("option", ["--night", "--tokens", "--users"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_night_of_no_number_is_refused(figures, option, value):
    given = {"--night": "1e6", "--tokens": "200", "--users": "1e9"} | {option: value}
    code, _, said = call("plan", *(part for pair in given.items() for part in pair), "--figures", figures)
    assert (code, "is no number" in said) == (2, True)


@pytest.mark.parametrize("users", ["nan", "inf", "1e30", "0"])
def test_bench_refuses_users_that_no_key_has_room_for(tmp_path, users):
    code, _, said = call("bench", "--quick", "--users", users, "--figures", tmp_path / "bench.json")
    assert code == 2
    assert "--users" in said
    assert not any(tmp_path.iterdir())


@pytest.fixture
def figures(tmp_path) -> Path:
    file = tmp_path / "bench.json"
    said = {
        "measured_at": (datetime.now(UTC) - timedelta(days=3, hours=2, minutes=1)).isoformat(),
        "machine": "a machine",
        "version": "0.1.0",
        "tokenizer": "tokenizer.json",
        "measured": [row._asdict() for row in (SHORT, LONG)],
    }
    file.write_text(json.dumps(said))
    return file


def test_the_plan_names_its_figures_and_their_age(figures):
    _, said, _ = call("plan", "--night", "50e6", "--tokens", "200", "--users", "1e9", "--figures", figures)
    assert f"{figures}, 3 days and 2 hours old" in said
    assert "GPUs: not counted" in said
    assert "careful" not in said
    hours = (50e6 * (4 * 6e-4 + 0.1 * 0.02)) / 3600
    assert f"{hours:,.1f}" in said
    gpu_hours = 50e6 * 0.9 * 200 * 2 * 1e8 / 1e13 / 3600
    assert (
        f"45,000,000 unmarked documents besides at most, and marked ones that are not flagged: {gpu_hours:.1f}" in said
    )
    assert "careful: documents of 100 to 300 tokens" in "".join(night_lines(figures, 1, 400, 1e9, 0))


@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"measured": [{}]}', '{"measured": 1}'])
def test_what_is_no_file_of_figures_is_refused(tmp_path, content):
    file = tmp_path / "bench.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(Refused, match=r"brickscan bench"):
        list(night_lines(file, 1, 200, 1e9, 0))


@pytest.mark.costly
def test_it_measures_what_a_worker_does(tmp_path, monkeypatch):
    monkeypatch.setattr(night_price, "FORMATS_WITH_GROUPS", night_price.FORMATS_WITH_GROUPS[:1])
    monkeypatch.setattr(night_price, "_MOST", 64)
    file = tmp_path / "new" / "bench.json"
    assert call("bench", "--quick", "--users", "100", "--figures", file)[0] == 0
    short, long = (MeasuredCost(**row) for row in json.loads(file.read_text())["measured"])
    assert short.tokens < 100 < long.tokens
    assert all(set(cost) == set(WORK) and min(cost.values()) >= 0 for cost in short.rounds + long.rounds)
    assert len(short.rounds) == len(long.rounds) == 3
    assert all(sum(cost.values()) > 0 for cost in short.rounds)
    assert long.proof is not None
    assert long.proof > 0
    assert price_night([short, long], 1e6, 200, 100, 0.1)[0].seconds > 0
