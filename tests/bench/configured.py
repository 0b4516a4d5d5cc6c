"""Registries and configurations of the scans that benchmarks run."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import tomli_w

from jobs.init import _HEAD, DEFAULT_LOOKS
from scanner.registry import new_key
from schemas.config import COST_OF_LOOKS, ScanAuditConfig

CONFIG = """\
version = 2
registry = "registry"
results = "results"
false_positive_rate = 1e-6
[input]
paths = ["{corpus}"]
text = "text"
{id}
[cluster]
workers = {workers}
[audit]
share = {share}
all_messages_share = {all_messages_share}
decisions_share = {decisions_share}
"""
NO_AUDIT = (0.0, 0.0, 0.0)
"""Shares of documents that decoys score, as in AUDIT."""
_AUDIT = ScanAuditConfig()
AUDIT = (_AUDIT.share, _AUDIT.all_messages_share, _AUDIT.decisions_share)
"""Shares of documents that decoys score, for one message and for all, and of those that are decided whole."""

VERSION_1: dict[str, Any] = {"format": "greenlist", "window": 4, "gamma": "1/4"}
"""Key of version 1, as `new_key` takes it."""
VERSION_3: dict[str, dict[str, Any]] = {
    "greenlist-v3": {"format": "greenlist-v3", "window": 4, "gamma": "1/4", "seeds": 8},
    "gumbel-v3": {"format": "gumbel-v3", "window": 4, "seeds": 8},
}
"""Keys of version 3, by their format; with few seeds, which cost the same to draw from and are made at once."""

GROUPS = 325
"""Groups of a key for 100,000 users."""
ONE_MESSAGE: dict[str, Any] = {"messages": 1}
"""Messages of a key that marks for everybody alike."""
FOR_USERS: dict[str, Any] = {"messages": GROUPS**2, "groups": GROUPS}
"""Messages of a key for 100,000 users."""
ASKED = "asked: 0.4"
"""Share of the speed of one message that is asked of a scan with 100,000 users."""


_WRITTEN = tomllib.loads(_HEAD.format(sample="", looks=DEFAULT_LOOKS, **COST_OF_LOOKS))
LOOKS_OF_INIT: dict[str, dict[str, bool]] = {name: _WRITTEN[name] for name in ("variants", "spans")}
"""Looks at texts beside the whole text as it stands, as `brickscan init` writes them."""


def add_looks(config: Path, looks: Mapping[str, Mapping[str, bool]]) -> Path:
    """Turn looks on in a scan's configuration. Returns it."""
    config.write_text(config.read_text() + tomli_w.dumps(looks))
    return config


def make_scan(
    folder: Path, tokenizer: Path, keys: int, workers: int, paths: Sequence[Path], audit: tuple, **form: Any
) -> Path:
    """Write a registry and a scan's configuration into a folder. Returns the latter.

    form: format, parameters and messages of the keys, as `new_key` takes them; messages: 1 by default.
    """
    for number in range(keys):
        new_key(folder / "registry", f"k{number}", tokenizer=tokenizer, **ONE_MESSAGE | form)
    config = folder / "scan.toml"
    known = pq.read_schema(paths[0]).names
    config.write_text(
        CONFIG.format(
            corpus='", "'.join(str(path.resolve()) for path in paths),
            id='id = "doc_id"' if "doc_id" in known else "",
            workers=workers,
            share=audit[0],
            all_messages_share=audit[1],
            decisions_share=audit[2],
        )
    )
    return config
