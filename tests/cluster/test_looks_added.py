"""Other shares of looks for texts that were scanned: refused, unless the scan is told to pay their price."""

import json
from datetime import UTC, datetime

import pytest

from jobs.summary import summary
from scanner.error_shares import ErrorShares, price_of_looks
from scanner.errors import Refused
from schemas.registry import MasterKey, TokenizerFile
from tests.support.command_line import call

pytestmark = pytest.mark.usefixtures("without_ray")


def key(name: str = "gumbel", **parameters: object) -> MasterKey:
    """A key on record."""
    return MasterKey(
        key_id="k",
        format=name,
        parameters=parameters,
        messages=1,
        tokenizer=TokenizerFile(file="t.json", sha256="0" * 64),
        secret="env:SECRET",
        created_at=datetime.now(UTC),
    )


PLAIN, NORMALISED = ErrorShares.equal(normalised=False), ErrorShares.equal(normalised=True)
HALF = PLAIN._replace(document=0.5)


@pytest.mark.parametrize(
    ("history", "price"),
    [
        ([PLAIN], 1.0),
        ([NORMALISED, NORMALISED], 1.0),
        ([PLAIN, NORMALISED], 1.5),
        ([NORMALISED, PLAIN], 1.5),  # the text as it stands has all of the rate again
        ([HALF._replace(span=0.5)], 1.0),
        ([PLAIN, HALF._replace(span=0.5)], 1.5),
        ([HALF._replace(span=0.5), HALF._replace(span=0.5, segments=True)], 1.5),
        ([PLAIN, PLAIN._replace(document=0.3333, span=0.3333, account=0.3333)], 1.6666),
        ([HALF, HALF._replace(span=0.5)], 1.0),  # a share that was kept for later
        ([PLAIN._replace(as_written=0.5), NORMALISED], 1.0),
        ([PLAIN, NORMALISED, HALF._replace(span=0.5)], 2.0),
    ],
)
def test_price_of_looks(history, price):
    assert price_of_looks(history, [key(window=4)]) == pytest.approx(price, abs=1e-9)


def test_no_price_of_a_look_that_a_key_does_not_get():
    """Keys whose law is assumed have no normalised look, and a text keeps its whole share."""
    assert price_of_looks([PLAIN, NORMALISED], [key("sbw")]) == 1.0


LATER = "variants = { normalised = true }"


def test_looks_added_to_results_are_refused_or_paid_for(night, own_registry, plain):
    """New files alone have the new looks for nothing; old ones have them for half of the rate more, which is said."""
    night.write("a", [plain(40, 1)])
    night.scan()
    night.configure(more=LATER)
    with pytest.raises(Refused, match=r"a\.parquet was scanned with other shares of looks .* 1\.5 times as often"):
        night.scan()
    code, _, err = call("scan", night.config, "--check")
    assert (code, "looks_added = true" in err) == (2, True)
    night.configure(more=f"looks_added = true\n{LATER}")
    paid = night.scan()
    assert (paid.work.looks_price, paid.totals.counts.documents) == (1.5, 1)
    assert "flagged 1.5 times as often" in " ".join(summary(paid, night.results, 1e-6).split())
    code, out, _ = call("scan", night.config, "--check", "--summary", "json")
    assert json.loads(out)["done"]["looks_price"] == 1.5


def test_looks_of_new_files_cost_nothing(night, own_registry, plain):
    night.write("a", [plain(40, 1)])
    night.scan()
    (night.input / "a.parquet").unlink()
    night.write("b", [plain(40, 2)])
    night.configure(more=LATER)
    assert night.scan().work.looks_price == 1.0


def test_looks_with_a_share_from_the_first_scan_cost_nothing(night, own_registry, plain):
    night.write("a", [plain(40, 1)])
    shares = "weights = { as_written = 0.5, normalised = 0.5 }"
    night.configure(more=shares)
    night.scan()
    night.configure(more=f"{shares}\n{LATER}")
    second = night.scan()
    assert (second.work.looks_price, second.totals.counts.documents) == (1.0, 1)
