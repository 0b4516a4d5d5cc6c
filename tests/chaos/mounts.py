"""Small disks and read-only folders: root ignores file modes, so these are real mounts, undone at the end."""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

REMOUNTS = 200
BUSY = 32  # mount's exit status on a busy filesystem


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def can_mount() -> bool:
    """Whether this process may mount; root in a container often may not."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            _mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", folder)
        except (OSError, subprocess.CalledProcessError):
            return False
        subprocess.run(["umount", folder], check=True)
    return True


class Mount:
    """Mounts that last for a `with` block."""

    @staticmethod
    @contextlib.contextmanager
    def small_disk(folder: Path, size: str) -> Iterator[Path]:
        folder.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)

    @staticmethod
    @contextlib.contextmanager
    def bind(folder: Path) -> Iterator[Path]:
        """A folder that can be made read-only."""
        folder.mkdir(parents=True)
        _mount("--bind", str(folder), str(folder))
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)

    @staticmethod
    def read_only(folder: Path) -> None:
        """Make a folder read-only, between two writes: the kernel refuses while a file is open for writing."""
        for attempt in range(REMOUNTS):
            try:
                _mount("-o", "remount,ro,bind", str(folder))
            except subprocess.CalledProcessError as error:
                if error.returncode != BUSY or attempt == REMOUNTS - 1:
                    raise
                time.sleep(0.01)
            else:
                return

    @staticmethod
    def writable(folder: Path) -> None:
        _mount("-o", "remount,rw,bind", str(folder))
