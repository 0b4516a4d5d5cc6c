"""`brickscan init`: registry, first key and scan.toml from one file of somebody's own texts."""

import os
import re
from pathlib import Path

import click

from jobs.keys import new
from jobs.options import NamedPath
from jobs.text import counted, tell
from scanner.errors import Refused
from scanner.registry import TRIAL_BEGAN, add_users, begin_trial, load_registry
from scanner.registry.keys import refuse_real_name
from schemas.config import COST_OF_LOOKS
from schemas.registry import TRIAL_NAME

TRIAL_USERS = 20
"""Users of a trial."""

_HEAD = """\
# Written by `brickscan init` from {sample}. Check what it guessed; `brickscan schema scan` tells every field.
version = 0
registry = "registry"
results = "results"
false_positive_rate = 1e-6      # for a document, over all messages of all keys
variants = {{ normalised = true }}  # a second look without hidden characters, look-alikes and upper case
spans = {{ windows = true, segments = true }}  # parts of texts, too
# of a scan for 100,000 users, normalised costs {normalised} times the time, windows {windows}, segments {segments}

[input]
"""


@click.command()
@click.argument("sample", type=NamedPath(path_type=Path))
@click.option(
    "--tokenizer",
    default=None,
    metavar="PATH",
    help="The tokenizer.json of the model that will be marked; of a new key.",
)
@click.option("--folder", type=NamedPath(path_type=Path), default=Path(), help="Where all is made.  [default: here]")
@click.option("--key", "key_id", default=None, help="Id of the first key.  [default: first, or trial]")
@click.option(
    "--trial",
    is_flag=True,
    help=f"Make a key and {TRIAL_USERS} users that are dated back, to try text of any date; kept apart from real ones.",
)
@click.pass_context
def init(
    ctx: click.Context, sample: Path, tokenizer: str | None, folder: Path, key_id: str | None, trial: bool
) -> None:
    """Make a registry, its first key and scan.toml from one Parquet file of your own texts, and say what was guessed.

    SAMPLE: a file as they will come, a Delta table, or iceberg:CATALOG.NAMESPACE.TABLE. Which columns hold texts,
    ids, accounts and times is guessed from names, types and lengths. Nothing that is there is overwritten: a registry
    that `brickscan keys` made stays as it is, and scan.toml alone is made.

    \b
    Example:
      brickscan init incoming/2026-11-20/part-0.parquet --tokenizer tokenizer.json
    """
    from scanner.input.named_files import guess_columns, input_path, sample_of
    from scanner.input.tables import DELTA, ICEBERG

    config, registry = folder / "scan.toml", folder / "registry"
    if config.exists():
        raise Refused(f"{config}: is there already; name another --folder, or go on with what is there")
    keys = _keys_there(registry, tokenizer, key_id, trial)
    found = sample_of(sample)
    guess, path = guess_columns(found), found.table or input_path(sample)
    of_iceberg = path.startswith(ICEBERG)
    inside = not of_iceberg and folder.absolute().is_relative_to(found.table or sample.absolute().parent)
    if inside and found.table is not None:
        raise Refused(f"{folder}: lies in the Delta table {found.table}; name a --folder outside of it")
    if inside:
        path = str(sample.absolute())
    if not sample.is_absolute() and not of_iceberg:  # as the user named it, so that everything can be moved together
        path = os.path.relpath(path, folder.absolute())
    if keys:
        tell(f"registry {registry}: is there already, with {counted(len(keys), 'key')}: {', '.join(keys)}")
    else:
        keys = [key_id or ("trial" if trial else "first")]
        if trial:
            refuse_real_name("key", keys[0])
        active_from = TRIAL_BEGAN if trial else None
        ctx.invoke(new, key_id=keys[0], registry=registry, tokenizer=tokenizer, active_from=active_from)
    users = [f"{TRIAL_NAME}-{number:02}" for number in range(1, TRIAL_USERS + 1)] if trial else []
    if trial:
        begin_trial(registry)
        add_users(registry, None, users)
    path = path if found.table is None or of_iceberg else DELTA + path
    config.write_text(_toml(sample, path, guess._asdict() | {"where": found.where}), encoding="utf-8")
    tell("", f"wrote {config}; guessed from {sample}:")
    of_file = "the file alone, since what is made here lies beside it" if inside else "the file's folder"
    read = of_file if found.table is None else "the table"
    tell(f"  paths    {path!r}: {read}", *(f"  {line}" for line in guess.why))
    dated = re.search(r"\d{4}-\d{2}-\d{2}", sample.absolute().parent.name) if "{date}" in path else None
    newest = dated[0] if dated else found.date
    date = f" --date {newest}" if newest else ""
    tell("", "Next:")
    if trial:
        tell(f"  (users {users[0]} to {users[-1]} are there; a trial's results name nobody real)")
    else:
        tell(f"  brickscan users add --file users.csv --registry {registry}")
    tell(
        f"  have a model mark text under key {keys[0]}: `brickscan mark`, or in vLLM (the guide “Serve with vLLM”)",
        f"  brickscan scan {config}{date} --check",
        f"  brickscan scan {config}{date}",
        "A scan finds only text that was marked under a key of this registry.",
    )


def _keys_there(registry: Path, tokenizer: str | None, key_id: str | None, trial: bool) -> list[str]:
    """Ids of the keys of a registry that is there; none where one is to be made.

    Raises:
        Refused: a key is to be made and has no tokenizer, or is to be made in a registry that is there; it has no key.
    """
    if not registry.exists():
        if tokenizer is None:
            raise Refused("--tokenizer: is missing; name the tokenizer.json of the model that will be marked")
        return []
    given = {"--tokenizer": tokenizer, "--key": key_id, "--trial": trial}
    if named := [name for name, value in given.items() if value]:
        raise Refused(
            f"{registry}: is there already, and {' and '.join(named)} would make a key; leave that out to scan by the"
            " keys that are there, or name another --folder"
        )
    if not (keys := [key.key_id for key in load_registry(registry).keys]):
        raise Refused(f"{registry}: is there already, and has no key; make its first one with `brickscan keys new`")
    return keys


def _toml(sample: Path, path: str, columns: dict[str, object]) -> str:
    import tomli_w

    named = {name: columns[name] for name in ("where", "text", "id", "account", "time") if columns[name] is not None}
    missing = [
        f"# {name} = …    # no column was found\n" for name in ("id", "account", "time") if columns[name] is None
    ]
    return (
        _HEAD.format(sample=repr(sample.name), **COST_OF_LOOKS)
        + tomli_w.dumps({"paths": [path]} | named)
        + "".join(missing)
    )
