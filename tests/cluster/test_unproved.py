"""A night on a machine that computes wrongly: its flags are kept, name nobody, and end the scan with an alarm."""

import numpy as np
import pytest

from jobs.scan import outcome_record
from jobs.summary import summary
from scanner.cluster.worker import Worker
from scanner.results.current_rows import flags
from tests.support.command_line import call
from tests.support.two_keys import message_of

pytestmark = pytest.mark.usefixtures("without_ray")


class Wrong(Worker):
    """A worker that counts each green token twice under the key `green`."""

    def prepare(self) -> str:
        told = super().prepare()
        mark = next(test.watermark for test in self.scoring.detector._keys if test.key.key_id == "green")
        right = mark.search

        def wrong(tokens, positions, count):
            found = right(tokens, positions, count)
            score = found.score.copy()
            score[:, 0] = np.minimum(2 * score[:, 0], positions.scored)
            return found._replace(score=score)

        mark.search = wrong
        return told


def test_a_flag_that_is_not_proved_names_nobody_and_raises_the_alarm(night, registry, marked, plain):
    night.write("a", [marked(message_of(registry, "green", "alice"), 60, 1), *(plain(60, i) for i in range(4))])
    outcome = night.scan(worker=Wrong)
    counts = outcome.totals.counts
    assert (outcome.exit_code, outcome.audit.state, outcome.audit.traffic.unproved) == (3, "alarm", counts.unproved)
    assert counts.unproved == counts.flagged - counts.proved >= 4
    rows = night.verdicts()
    wrong = rows.filter(naming="unproved")
    assert wrong.height == counts.unproved == wrong["flagged"].sum()
    assert (wrong["proof"] == "differs").all()
    assert wrong["user_id"].null_count() == wrong.height
    assert sorted(flags(night.results).collect()["row"]) == rows.filter("flagged")["row"].to_list()
    said = " ".join(summary(outcome, night.results, 1e-6).split())
    assert (
        f"{counts.unproved} name no user: a slower method computed the flag again and found a different result" in said
    )
    assert said.startswith(f"USE NO FLAG OF THIS SCAN. A slower method computed {counts.unproved} flags again")
    assert outcome_record(outcome, night.plan())["unproved"] == counts.unproved
    code, out, _ = call("flagged", night.config)
    assert (
        code,
        out.count("nobody: a slower method computed the flag again and found a different result"),
    ) == (0, counts.unproved)
    again = night.scan()
    assert (again.exit_code, again.totals.counts.documents) == (3, 0)  # the rows and the alarm stand


def test_flags_of_a_sound_night_are_proved(night, registry, marked, plain):
    night.write("a", [marked(message_of(registry, "green", "alice"), 60, 1), *(plain(60, i) for i in range(4))])
    outcome = night.scan()
    assert outcome.exit_code == 0
    assert night.verdicts()["proof"].to_list() == ["proved", *[None] * 4]
    assert "proved       1 flag gave the same result when a slower method computed them again\n" in summary(
        outcome, "", 1e-6
    )
