"""`brickscan init` and `canaries`: what is made once, before the first night.

A registry, its first key and scan.toml come from one file of somebody's own texts; canaries are prompts for made-up
users, whose marked texts every scan must find.
"""

import os
import re
from pathlib import Path

import click
import numpy as np
import polars as pl
import tomli_w

from jobs.keys import new
from jobs.mark import read_marked, read_prompts
from jobs.options import NamedPath, Real, Whole, key_ids_option, refuse_output, refuse_wrong_clock
from jobs.text import tell
from scanner.errors import Refused, ScanFailed
from scanner.input.files import list_files
from scanner.input.named_files import guess_columns, input_path, sample_of
from scanner.input.tables import DELTA_PREFIX, ICEBERG_PREFIX
from scanner.printable import counted
from scanner.registry import TRIAL_BEGAN, add_users, begin_trial, find_key, load_registry, make_canaries
from scanner.registry.keys import refuse_real_name
from scanner.storage.locations import write_whole
from schemas.config import COST_OF_LOOKS, DEFAULT_LOOKS
from schemas.registry import TRIAL_NAME, CanaryStrength

TRIAL_USERS = 20
"""Number of users of a trial."""

_HEAD = """\
# Written by `brickscan init` from {sample}. Check its guesses; `brickscan schema scan` describes every field.
version = 2
registry = "registry"
results = "results"
false_positive_rate = 1e-6      # for a document, over all messages of all keys
{looks}\
# of a scan for 100,000 users, normalised costs {normalised} times the time, windows {windows}, segments {segments}

[input]
"""


@click.command()
@click.argument("sample", type=NamedPath(path_type=Path))
@click.option(
    "--tokenizer",
    default=None,
    metavar="PATH",
    help="tokenizer.json of the model that will be marked, for a new key",
)
@click.option("--folder", type=NamedPath(path_type=Path), default=Path(), help="Folder for the files  [default: here]")
@click.option("--key", "key_id", default=None, help="Id of the first key  [default: first, or trial]")
@click.option(
    "--trial",
    is_flag=True,
    help=f"Make a trial: a backdated key and {TRIAL_USERS} backdated users, for text of any date, separate from real "
    "ones",
)
@click.pass_context
def init(
    ctx: click.Context, sample: Path, tokenizer: str | None, folder: Path, key_id: str | None, trial: bool
) -> None:
    """Make a registry, a first key and a scan.toml for your own texts.

    SAMPLE is one file as they will come, a folder of them, a Delta table, or iceberg:CATALOG.NAMESPACE.TABLE. The
    columns of texts, ids, accounts and times are guessed, and the guesses are shown. Nothing that exists is
    overwritten.

    \b
    Example:
      brickscan init incoming/2026-11-20/part-0.parquet --tokenizer tokenizer.json
      brickscan init incoming/2026-11-20/part-0.parquet --tokenizer tokenizer.json --trial
    """
    config, registry = folder / "scan.toml", folder / "registry"
    if config.exists():
        raise Refused(f"{config}: already exists; name another --folder, or use the existing file")
    keys = _existing_keys(registry, tokenizer, key_id, trial)
    source = sample_of(sample)
    whole = source.table or source.folder  # None: a file; its folder is read, unless the new files lie in it
    guess, path = guess_columns(source), source.table or input_path(source.folder / "*" if source.folder else sample)
    is_iceberg = path.startswith(ICEBERG_PREFIX)
    inside = not is_iceberg and folder.absolute().is_relative_to(whole or sample.absolute().parent)
    if inside and whole is not None:
        raise Refused(f"{folder}: is inside {whole}, which a scan would read; name a --folder outside it")
    alone = "what is made here is stored next to it" if inside else None if whole else _why_alone(sample)
    if alone:
        path = str(sample.absolute())
    if not sample.is_absolute() and not is_iceberg:  # relative, so everything can be moved together
        path = os.path.relpath(path, folder.absolute())
    if keys:
        tell(f"registry {registry}: already exists, with {counted(len(keys), 'key')}: {', '.join(keys)}")
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
    path = path if source.table is None or is_iceberg else DELTA_PREFIX + path
    config.write_text(_toml(sample, path, guess._asdict() | {"where": source.where}), encoding="utf-8")
    guessed_from = sample if source.folder is None else f"its newest file, {source.file}"
    tell("", f"wrote {config}; guessed from {guessed_from}:")
    file_words = f"the file alone, since {alone}" if alone else "the file's folder"
    read = "the table" if source.table else "the folder" if source.folder else file_words
    tell(f"  paths    {path!r}: {read}", *(f"  {line}" for line in guess.why))
    folder_name = (source.folder or sample.absolute().parent).name
    dated = re.search(r"\d{4}-\d{2}-\d{2}", folder_name) if "{date}" in path else None
    newest = dated[0] if dated else source.date
    date = f" --date {newest}" if newest else ""
    tell("", "Next:")
    if trial:
        tell(f"  (users {users[0]} to {users[-1]} exist already; a trial's results name no real person)")
    elif not (registry / "users").is_dir() and any(key.messages > 1 for key in load_registry(registry).keys):
        tell(f"  brickscan users add --file users.csv --registry {registry}")
    tell(
        f"  have a model mark text under key {keys[0]}: `brickscan mark`, or in vLLM (the guide “Serve with vLLM”)",
        f"  brickscan scan {config}{date} --check",
        f"  brickscan scan {config}{date}",
        "A scan finds only text that was marked under a key of this registry.",
    )


def _why_alone(sample: Path) -> str | None:
    """Return why a scan would refuse to read the folder of a file. None: it reads it."""
    try:
        list_files([str(sample.absolute().parent)])
    except (Refused, ScanFailed) as error:
        return f"its folder cannot be used: {error}"
    return None


def _existing_keys(registry: Path, tokenizer: str | None, key_id: str | None, trial: bool) -> list[str]:
    """Return the ids of the keys of an existing registry. Empty: a registry is to be made.

    Raises:
        Refused: the registry cannot be used, and none can be made.
    """
    if not registry.exists():
        if tokenizer is None:
            raise Refused("--tokenizer: is missing; name the tokenizer.json of the model that will be marked")
        return []
    given = {"--tokenizer": tokenizer, "--key": key_id, "--trial": trial}
    if named := [name for name, value in given.items() if value]:
        raise Refused(
            f"{registry}: already exists, and {' and '.join(named)} would make a key; leave that out to scan with the "
            "existing keys, or name another --folder"
        )
    if not (keys := [key.key_id for key in load_registry(registry).keys]):
        raise Refused(f"{registry}: already exists but has no key; make its first key with `brickscan keys new`")
    return keys


def _toml(sample: Path, path: str, columns: dict[str, object]) -> str:
    named = {name: columns[name] for name in ("where", "text", "id", "account", "time") if columns[name] is not None}
    missing = [
        f"# {name} = …    # no column was found\n" for name in ("id", "account", "time") if columns[name] is None
    ]
    return (
        _HEAD.format(sample=repr(sample.name), looks=DEFAULT_LOOKS, **COST_OF_LOOKS)
        + tomli_w.dumps({"paths": [path]} | named)
        + "".join(missing)
    )


TEXTS_MEASURED = 200
"""Number of texts of a key that are measured. keys.toml has a row of numbers for each."""


@click.command("canaries")
@click.option("--registry", type=NamedPath(path_type=Path), required=True, help="Folder of the registry")
@key_ids_option
@click.option(
    "--prompts",
    type=NamedPath(path_type=Path),
    required=True,
    help="Prompts to draw from: one per line, or Parquet with a column 'prompt'",
)
@click.option("--out", type=NamedPath(path_type=Path), required=True, help="New Parquet file")
@click.option("--texts", type=Whole(1), default=200, show_default=True, help="Number of prompts")
@click.option("--users", type=Whole(1), default=20, show_default=True, help="Number of canary users, who take turns")
@click.option(
    "--power",
    type=Real(0, 1, min_open=True, max_open=True),
    help="Share of the texts that every scan must find, instead of --from  [default: 0.9]",
)
@click.option(
    "--from",
    "marked_file",
    type=NamedPath(path_type=Path),
    help="Texts of `brickscan mark` like the canaries', from which each scan computes the expected share",
)
def canaries(
    registry: Path,
    key_ids: tuple[str, ...],
    prompts: Path,
    out: Path,
    texts: int,
    users: int,
    power: float | None,
    marked_file: Path | None,
) -> None:
    """Make prompts for canaries: made-up users whose marked texts every scan must find.

    OUT has a row for each text, with user_id and prompt. Let the serving side complete the prompts every night, marked
    for their user_id, and send the texts in with the export, with user_id as the account. Every scan then says how many
    came, were found and were named right, and ends with exit code 5 if they are fewer than planned. That catches a
    wrong tokenizer, key, window or table of users.

    Run it again for new prompts, and after you make a key. With --from, each scan plans for its own keys and looks;
    without it, for --power, which is too much once there are more keys.

    \b
    Example:
      brickscan canaries --registry registry --prompts prompts.txt --out canaries.parquet --from marked.parquet
      brickscan canaries --registry registry --prompts prompts.txt --out canaries.parquet --power 0.9
    """
    if power is not None and marked_file is not None:
        raise click.UsageError("Give either --power, or --from with texts to measure it on.")
    refuse_output(out)
    refuse_wrong_clock(registry)

    prompt_list = read_prompts(prompts)
    measured = [] if marked_file is None else _measured(marked_file, registry)
    if measured:
        power = _power(registry, measured)
    recorded = make_canaries(registry, key_ids or None, users, 0.9 if power is None else power, measured=measured)
    names = list(dict.fromkeys(canary.account_id for canary in recorded.made))[:users]
    generator = np.random.default_rng()  # seeded by the operating system
    rounds = -(-texts // len(prompt_list))
    chosen = np.concatenate([generator.permutation(len(prompt_list)) for _ in range(rounds)])[:texts]
    rows = pl.DataFrame(
        {"user_id": [names[i % len(names)] for i in range(texts)], "prompt": [prompt_list[i] for i in chosen.tolist()]}
    )
    write_whole(out, lambda file: rows.write_parquet(file))
    tell(
        f"{counted(texts, 'prompt')} for {len(names):,} canaries: {out}",
        "Complete each for its user_id as for any user, and post the text under the user_id as the account.",
        f"Then say in scan.toml: [audit] canaries = {texts}",
    )


def _measured(file: Path, registry: Path) -> list[CanaryStrength]:
    """Read texts like canaries' back under their keys."""
    from scanner.detection.one_text import canary_strength

    record, marked = load_registry(registry), read_marked(file)
    key_groups = (
        (name, marked.filter(key_id=name).head(TEXTS_MEASURED)) for name in marked["key_id"].unique(maintain_order=True)
    )
    return [
        canary_strength(
            registry, find_key(record, name), texts_of_key["text"].to_list(), texts_of_key["message"].to_numpy()
        )
        for name, texts_of_key in key_groups
    ]


def _power(registry: Path, measured: list[CanaryStrength]) -> float:
    """Return the share of measured texts that pass at 1e-6 among the registry's keys with one look: 0.01 to 0.99."""
    from scanner.audit.calibration.admission import USUAL_RATE
    from scanner.scan_plan import keys_tested
    from scanner.watermark.rule import corrected, passes

    record, shares = load_registry(registry), []
    for strength in measured:
        key = find_key(record, strength.key_id)
        correction = key.tested_among(keys_tested(record))
        share = float(passes(corrected(strength.log10_p, key.messages, correction), USUAL_RATE).mean())
        number = len(strength.scored)
        tell(
            f"{key.key_id}: {share:.0%} of {number:,} texts pass at {USUAL_RATE:g} among {correction:,} keys, "
            "with one look"
        )
        shares.append(share)
    return min(max(min(shares), 0.01), 0.99)
