"""More than a hundred faults in real processes at random moments (`make chaos`): nothing is lost, doubled or different.

Each test injects one kind of fault many times, ends with an undisturbed run, and notes a row of the table.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from deltalake import DeltaTable, convert_to_deltalake

from tests.chaos.driver import FREEZES, MOMENTS
from tests.chaos.mounts import Mount, can_mount
from tests.chaos.night import Night
from tests.chaos.processes import kill_all, kill_driver, output_of, wait_for
from tests.chaos.worker import REASONS

pytestmark = [pytest.mark.chaos, pytest.mark.usefixtures("undisturbed")]

WORKERS, DRIVERS, PAIRS, THIRDS, NODES, COMMITS, FROZEN, DOCUMENTS, FILES, DISKS, TABLES = (
    30,
    10,
    5,
    3,
    8,
    12,
    7,
    5,
    12,
    5,
    8,
)
WAVES_SECONDS = float(os.environ.get("CHAOS_WAVES_SECONDS", "600"))
WAVE_SECONDS, WORKERS_IN_WAVES, SECONDS_A_SHARD_IN_WAVES = 30, 4, 8


def finish(night: Night) -> None:
    """Scan the night once more, undisturbed."""
    done = night.run()
    assert done.returncode == 0, done.stdout


def ends(process: "subprocess.Popen[str]") -> str:
    out = output_of(process)
    assert process.returncode == 0, out
    return out


def while_it_runs(
    new_night: Callable[..., Night], chance: random.Random, times: int, hit: Callable[[Night], bool], more: str = ""
) -> list[Night]:
    """Hit running scans `times` times at random moments; a new scan follows one that has ended, in pieces or not."""
    nights: list[Night] = []
    hits = 0
    while hits < times:
        night = new_night()
        night.configure(more=more)
        night.plan_faults(seconds=0.5)
        nights.append(night)
        process = night.start(pieces=chance.random() < 0.5)
        for _ in range(times - hits):
            wait_for(process, night.worker_pids)
            time.sleep(chance.uniform(0, 3))
            if process.poll() is not None:
                break
            hits += hit(night)
        ends(process)
    return nights


def test_workers_are_killed(new_night, chance, judge):
    def hit(night: Night) -> bool:
        alive = night.worker_pids()
        if alive:
            kill_all([chance.choice(alive)])
        return bool(alive)

    judge("SIGKILL of a worker", WORKERS, while_it_runs(new_night, chance, WORKERS, hit))


def test_nodes_are_killed(new_night, chance, judge, nodes):
    def hit(_: Night) -> bool:
        nodes.kill(chance.choice(nodes.nodes))
        nodes.nodes.append(nodes.add())
        return True

    nights = while_it_runs(new_night, chance, NODES, hit, more=f'address = "{nodes.address}"')
    judge("SIGKILL of a node", NODES, nights)


def test_half_of_the_nodes_are_taken_in_waves(new_night, chance, judge, nodes):
    """Each wave takes half of the nodes, announced or not, and new nodes join; no document is blamed."""
    nodes.nodes += [nodes.add() for _ in range(WORKERS_IN_WAVES - len(nodes.nodes))]
    nights, taken, end = [], 0, time.monotonic() + WAVES_SECONDS
    while time.monotonic() < end:
        nights.append(night := new_night())
        night.configure(workers=WORKERS_IN_WAVES, more=f'address = "{nodes.address}"')
        night.plan_faults(seconds=SECONDS_A_SHARD_IN_WAVES)
        process = night.start()
        wait_for(process, night.worker_pids)
        while process.poll() is None and time.monotonic() < end:
            next_wave = time.monotonic() + WAVE_SECONDS
            for node in chance.sample(nodes.nodes, WORKERS_IN_WAVES // 2):
                chance.choice([nodes.kill, nodes.take])(node)
                taken += 1
            nodes.nodes += [nodes.add() for _ in range(WORKERS_IN_WAVES - len(nodes.nodes))]
            while process.poll() is None and time.monotonic() < next_wave:
                time.sleep(0.1)
        ends(process)
    judge("half of the nodes taken, every 30 s", taken, nights)


def test_drivers_are_killed(new_night, chance, judge):
    nights, kills = [new_night()], 0
    while kills < DRIVERS:
        if nights[-1].done():
            nights.append(new_night())
        nights[-1].plan_faults(seconds=0.1)
        process = nights[-1].start()
        wait_until(process, nights[-1].worker_pids, chance)
        kills += kill_driver(process, chance)
    for night in nights:
        finish(night)
    judge("SIGKILL of the driver", DRIVERS, nights)


def test_two_drivers_on_one_night_with_other_packs(new_night, chance, judge, nodes):
    """One driver's pack spreads over several packs of the other. Each commits what the other has not, and one dies."""
    nights = []
    for _ in range(PAIRS):
        nights.append(night := new_night())
        night.plan_faults(seconds=0.2)
        both = []
        for workers in chance.sample([1, 2], 2):
            night.configure(workers=workers, more=f'address = "{nodes.address}"')
            both.append(night.start())
            wait_for(both[-1], lambda: (night.results / "verdicts").exists())
        dies, lives = chance.sample(both, 2)
        time.sleep(chance.uniform(0, 6))
        kill_driver(dies, chance)
        ends(lives)
        assert night.done()
        finish(night)
    judge("SIGKILL of one of two drivers with other packs", PAIRS, nights)


def test_three_drivers_share_a_night(new_night, chance, judge):
    """Each scans its part in pieces on a Ray of its own; one is killed and runs again. A last scan finds all done."""
    nights = []
    for _ in range(THIRDS):
        nights.append(night := new_night())
        night.configure(workers=1)
        night.plan_faults(seconds=0.2)
        running = {part: night.start(part=part, pieces=True) for part in ("1/3", "2/3", "3/3")}
        dies = chance.choice(sorted(running))
        wait_until(running[dies], lambda night=night: (night.results / "verdicts").exists(), chance)
        kill_driver(running.pop(dies), chance)
        running[dies] = night.start(part=dies, pieces=True)
        for process in running.values():
            ends(process)
        assert night.done()
        finish(night)
    judge("SIGKILL of one of three drivers with parts", THIRDS, nights)


def wait_until(process: "subprocess.Popen[str]", begun: Callable[[], object], chance: random.Random) -> None:
    """Wait until a random moment after something has begun; one time in four, a random moment from the start."""
    if chance.random() < 0.25:
        time.sleep(chance.uniform(0, 8))
    else:
        wait_for(process, begun)
    time.sleep(chance.uniform(0, 4))


@pytest.mark.parametrize("moment", MOMENTS)
def test_drivers_die_over_their_commits(new_night, chance, judge, nodes, moment):
    nights, deaths = [], 0
    while deaths < COMMITS:
        if not nights or nights[-1].done():
            nights.append(new_night())
            nights[-1].configure(more=f'address = "{nodes.address}"')
        fault = {"at": moment, "commit": chance.randint(1, 8), "delay": chance.uniform(0, 0.02)}
        done = nights[-1].run(**fault)
        assert done.returncode in (0, -signal.SIGKILL), done.stdout
        deaths += done.returncode == -signal.SIGKILL
    for night in nights:
        finish(night)
    judge(f"SIGKILL of the driver {moment}", COMMITS, nights)


def test_drivers_die_while_a_night_is_frozen(new_night, chance, judge, nodes):
    """A driver dies while it freezes earlier commits and forgets their transactions."""
    nights, deaths = [], 0
    while deaths < FROZEN:
        nights.append(night := new_night())
        night.configure(more=f'address = "{nodes.address}"')
        # late enough for the first flush: `during the commit` counts every table's commit
        died = night.run(at=chance.choice(MOMENTS), commit=chance.randint(9, 14), delay=0)
        assert died.returncode == -signal.SIGKILL, died.stdout
        assert not night.verdicts().is_empty()
        # some freezes have fewer commits, and the driver lives
        done = night.run(at=FREEZES, commit=1 + len(nights) % 6, delay=chance.choice([0, chance.uniform(0, 0.02)]))
        assert done.returncode in (0, -signal.SIGKILL), done.stdout
        deaths += done.returncode == -signal.SIGKILL
        finish(night)
    judge(f"SIGKILL of the driver {FREEZES}", FROZEN, nights)


def test_drivers_die_over_a_delta_table_that_is_rewritten(new_night, chance, judge, undisturbed):
    """A table's files are compacted after every other death; what was scanned in them before stays scanned."""
    kept, rewritten, deaths = new_night(copy=True), new_night(copy=True), 0
    for night in (kept, rewritten):
        convert_to_deltalake(str(night.input))
    while deaths < TABLES:
        night = chance.choice([kept, rewritten])
        fault = {"at": chance.choice(MOMENTS), "commit": chance.randint(1, 8), "delay": chance.uniform(0, 0.02)}
        done = night.run(**fault)
        assert done.returncode in (0, -signal.SIGKILL), done.stdout
        deaths += done.returncode == -signal.SIGKILL
        if not done.returncode:  # it came to its end: on to other results
            night.results = night.folder / f"results-{deaths}"
            night.configure()
        elif night is rewritten:
            DeltaTable(str(night.input)).optimize.compact(target_size=chance.choice([2**14, 2**20]))
    calm = Night(kept.folder.with_name("calm"), kept.registry, kept.input)
    for night in (kept, rewritten, calm):
        finish(night)
    assert rewritten.documents() == undisturbed.documents()
    judge("SIGKILL of the driver over a Delta table", TABLES, [kept], calm)


def test_documents_that_kill_eat_or_never_end(new_night, chance, judge, undisturbed):
    night = new_night()
    night.configure(stall_seconds=4)
    scorable = sorted(name for name in undisturbed.verdicts()["name"] if name.startswith("small"))
    faults = sorted(REASONS) * DOCUMENTS
    bad = dict(zip(chance.sample(scorable, len(faults)), faults, strict=True))
    night.plan_faults(documents=bad)
    finish(night)
    expected = {name: REASONS[fault] for name, fault in bad.items()}
    judge("a document that kills, eats memory or never ends", len(bad), [night], bad=expected)


def test_files_that_vanish_or_change(new_night, chance, judge):
    night = new_night(copy=True)
    spoilt = chance.sample(sorted(night.input.iterdir()), FILES)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in spoilt}
    vanish, change = spoilt[: FILES // 2], spoilt[FILES // 2 :]
    done = night.run(vanish=[str(path) for path in vanish], change=[str(path) for path in change])
    assert done.returncode == 0, done.stdout
    reasons = {path.name: "vanished" for path in vanish} | {path.name: "changed" for path in change}
    whole = {row["file"]: row["reason"] for row in night.quarantine().iter_rows(named=True) if row["row"] is None}
    assert whole == reasons
    for path, (content, modified) in before.items():
        path.write_bytes(content)
        os.utime(path, ns=(modified, modified))
    finish(night)
    judge("a file that vanishes or changes", FILES, [night], files=reasons)


@pytest.mark.skipif(not can_mount(), reason="a disk cannot be mounted here: needs root, and the right to mount")
def test_a_full_disk(new_night, chance, judge, tmp_path):
    with Mount.small_disk(tmp_path / "disk", "8m") as disk:
        night = new_night(results=disk / "results")
        for _ in range(DISKS):
            night.plan_faults()
            balloon = disk / "balloon"
            balloon.write_bytes(bytes(max(shutil.disk_usage(disk).free - chance.randint(0, 120) * 1024, 0)))
            full = night.run()
            assert_said(full, "No space left on device")
            balloon.unlink()
        finish(night)
        judge("a full disk", DISKS, [night])


@pytest.mark.skipif(not can_mount(), reason="a folder cannot be mounted here: needs root, and the right to mount")
def test_a_folder_of_results_that_becomes_read_only(new_night, chance, judge, tmp_path):
    nights = []
    with contextlib.ExitStack() as mounts:
        for number in range(DISKS):  # a new night each, as a nearly done one may end too soon
            results = mounts.enter_context(Mount.bind(tmp_path / f"there-{number}" / "results"))
            night = new_night(results=results)  # the plan of faults lies beside them
            night.plan_faults(seconds=0.5)
            process = night.start()
            wait_until(process, night.worker_pids, chance)
            Mount.read_only(results)
            out = output_of(process)
            Mount.writable(results)
            assert_said(subprocess.CompletedProcess([], process.returncode, out), "Read-only file system")
            finish(night)
            nights.append(night)
        judge("results that become read-only", DISKS, nights)


def assert_said(done: "subprocess.CompletedProcess[str]", what: str) -> None:
    assert done.returncode in (1, 2), done.stdout
    assert any(line.startswith("error: results: ") and what in line for line in done.stdout.splitlines()), done.stdout


def test_the_faults_are_a_hundred():
    assert (
        WORKERS
        + DRIVERS
        + PAIRS
        + THIRDS
        + NODES
        + COMMITS * len(MOMENTS)
        + FROZEN
        + len(REASONS) * DOCUMENTS
        + FILES
        + 2 * DISKS
        + TABLES
        >= 100
    )
