"""How far a scan is: a bar on a terminal, a line of key=value pairs per commit elsewhere; both on stderr."""

import sys
import time
from collections.abc import Mapping

from tqdm import tqdm

from scanner.audit.live import LiveAudit
from scanner.cluster import Totals, Work


class Progress:
    """Shows totals as they grow; to be called as run_scan's `watch`, and closed at the end."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._bar: tqdm[None] | None = None

    def __call__(self, work: Work, totals: Totals) -> None:
        """Show what is committed, of what there is to do."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = totals.counts.text_bytes / 1e6 / seconds
        if sys.stderr.isatty():
            if self._bar is None:
                self._bar = tqdm(total=work.documents, unit=" documents", unit_scale=True, dynamic_ncols=True)
            self._bar.set_postfix_str(f"{rate:.2f} MB/s, {totals.counts.flagged} flagged", refresh=False)
            self._bar.update(totals.counts.documents - self._bar.n)
            return
        fields = {
            "event": "scan",
            "shards": f"{totals.shards + work.skipped}/{work.shards}",
            "documents": f"{totals.counts.documents}/{work.documents}",
            "flagged": totals.counts.flagged,
            "quarantined": totals.counts.quarantined,
            "files_quarantined": totals.files_quarantined,
            "mb_per_s": f"{rate:.2f}",
            "seconds": f"{seconds:.1f}",
        }
        _log(fields)

    def compiling(self) -> None:
        """Say why the first scan after an installation or upgrade begins slowly."""
        if sys.stderr.isatty():
            print("compiling kernels for this machine, once: some tens of seconds", file=sys.stderr)
        else:
            _log({"event": "compile_kernels", "once": "true"})

    def audited(self, audit: LiveAudit) -> None:
        """Tell how the audit ended, where no one watches a bar."""
        if not sys.stderr.isatty():
            _log({"event": "audit"} | audit.fields())

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.close()


def _log(fields: Mapping[str, object]) -> None:
    print(" ".join(f"{name}={value}" for name, value in fields.items()), file=sys.stderr, flush=True)
