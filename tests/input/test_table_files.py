"""Data files of tables as columns, against plain objects."""

import random

from scanner.input.tables import LogEntry, Snapshot, TableFile, TableFiles, columns_of


def test_columns_give_the_files_back_sorted_and_each_once():
    rng, snapshot = random.Random(0), Snapshot("lake", "Delta", 3)
    assert [*TableFiles([])] == []
    for count in (1, 2, 50, 25_000):  # more than are objects at a time
        plain = list[TableFile]()
        for _ in range(count):
            parents = frozenset(rng.choice(["ab", "a", ""]))
            values = (("date", rng.choice([None, "2026-08-31", "ü"])),)
            entry = LogEntry(snapshot, values, rng.choice([b"", b"x"]), parents, rng.choice([0, 2**63 - 1]))
            name = rng.choice(["Z", "a", "ü", "\U0001f600", ""]) + str(rng.randrange(2 * count))
            plain.append(TableFile(name, rng.randrange(2**62), rng.choice([0, 2**63 - 1]), entry))
        first = {file.path: file for file in reversed(plain)}
        expected = sorted(first.values(), key=lambda file: file.path)
        files = TableFiles(columns_of(iter(plain)))
        assert len(files) == len(expected)
        for found, wanted in zip(files, expected, strict=True):
            assert found == wanted
            assert (found.entry.parents, found.entry.since) == (wanted.entry.parents, wanted.entry.since)
            assert found.entry.snapshot == snapshot
        assert [*files.paths()] == [file.path for file in expected]
        assert files[-1] == expected[-1]
        assert files[1:9] == expected[1:9]
        assert files[::-7] == expected[::-7]
