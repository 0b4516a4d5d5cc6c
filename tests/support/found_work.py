"""The work that a scan found, without any files."""

from scanner.cluster.work import ScanWork
from scanner.input.files import InputFile
from scanner.input.shards import Range, Shard


def work(documents: int) -> ScanWork:
    file = InputFile("/in/a", "/in/a", "/in/a", 1, 1)
    return ScanWork(shard_count=1, skipped=0, left=(Shard("s", file, Range(0, documents, 1)),), shards=(), faults=())
