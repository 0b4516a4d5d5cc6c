"""A scan that asks for GPUs on a cluster without GPUs."""

from pathlib import Path

import pytest

from scanner.cluster import pool
from scanner.cluster.pool import Pool
from scanner.cluster.scan_check import check_scan
from scanner.errors import Refused
from scanner.storage.toml import read_toml
from schemas.config import ScanConfig

pytestmark = pytest.mark.usefixtures("ray_cluster")


def ask(night, lines: str) -> None:
    night.config.write_text(night.config.read_text() + lines)  # the file's last section is [cluster]


@pytest.mark.costly
def test_it_scores_on_cpus_and_says_so_once(night, plain, caplog):
    for number in range(3):
        night.write(f"f{number}", [plain(30, number)])
    ask(night, "gpus_per_worker = 0.25\n")
    assert night.scan().exit_code == 0
    assert len(night.verdicts()) == 3
    said = [record.message for record in caplog.records if "GPU" in record.message]
    assert len(said) == 1
    assert "cluster.gpus_per_worker = 0.25: the cluster has 0 GPUs" in said[0]


@pytest.mark.costly
def test_it_refuses_where_gpus_are_required(night, plain):
    night.write("f", [plain(30, 1)])
    ask(night, "gpus_per_worker = 1.0\nrequire_gpus = true\n")
    with pytest.raises(Refused, match=r"has 0 GPUs, too few for one worker; add GPUs, or remove"):
        night.scan()
    with pytest.raises(Refused, match=r"has 0 GPUs, too few for one worker"):
        list(check_scan(night.config))
    assert not Path(night.results).exists()


@pytest.mark.costly
@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("gpus_per_worker = 1.5\n", "a share of one GPU, or whole GPUs"),
        ("gpus_per_worker = -1.0\n", "greater than or equal to 0"),
        ("require_gpus = true\n", "needs gpus_per_worker"),
    ],
)
def test_what_ray_cannot_give_is_refused(night, lines, complaint):
    ask(night, lines)
    with pytest.raises(Refused, match=complaint):
        read_toml(night.config, ScanConfig)


@pytest.mark.costly
def test_a_warning_of_many_workers_is_given_once(caplog):
    import ray

    class Warns:
        def prepare(self) -> str:
            return "a GPU that cannot be used"

    actor = ray.remote(num_cpus=0)(Warns)
    workers = Pool(actor.remote, 2)
    try:
        while not all(slot.ready for slot in workers._slots):
            for slot in workers._slots:
                if slot.calls:
                    workers._take(slot)
    finally:
        workers.close()
    assert [record.message for record in caplog.records if record.name == pool.__name__] == [
        "a GPU that cannot be used"
    ]
