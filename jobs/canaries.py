"""`brickscan canaries`: prompts for made-up users, whose marked texts every scan must find."""

from pathlib import Path

import click

from jobs.mark import read_marked, read_prompts
from jobs.options import NamedPath, key_ids_option
from jobs.text import tell
from scanner.errors import Refused
from schemas.registry import CanaryStrength

MOST_MEASURED = 200
"""Texts of a key that are measured: a row of numbers each in keys.toml."""


@click.command("canaries")
@click.option("--registry", type=NamedPath(path_type=Path), required=True, help="Folder of the registry.")
@key_ids_option
@click.option(
    "--prompts",
    type=NamedPath(path_type=Path),
    required=True,
    help="Prompts to draw from: one a line, or Parquet with a column 'prompt'. Best such as users write.",
)
@click.option("--out", type=NamedPath(path_type=Path), required=True, help="Parquet file to write; must not exist.")
@click.option("--texts", type=click.IntRange(min=1), default=200, show_default=True, help="Prompts of a night.")
@click.option("--users", type=click.IntRange(min=1), default=20, show_default=True, help="Canaries, who take turns.")
@click.option(
    "--power",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Instead of --from: share of such texts that every scan is to find, whatever it tests.  [default: 0.9]",
)
@click.option(
    "--from",
    "marked_file",
    type=NamedPath(path_type=Path),
    help="Texts of `brickscan mark`, like those of the canaries: each scan plans by them for its own keys and looks.",
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
    """Make prompts for canaries: users who are nobody, whose texts are marked as all others, and must be found.

    OUT has a row a text: user_id and prompt. Have the serving side complete them every night on its real path, each for
    its user_id, and let the texts come in with the export, with the user_id as their account. Every scan then says how
    many came, were found, and were named right, and ends with 5 when that is less than planned: a wrong tokenizer, key,
    window or table of users makes no quiet night any more. Their messages are given for good, and never to users.

    Run it again for new prompts, and whenever there is a new key: the canaries stay the same.

    With --from each scan plans by its own number of keys, weights, variants, spans, accounts, rates and min_scored.
    Without, it plans for --power alone, which is too much once there are more keys or looks.

    \b
    Example:
      brickscan canaries --registry registry --prompts prompts.txt --out canaries.parquet --from marked.parquet
      brickscan canaries --registry registry --prompts prompts.txt --out canaries.parquet --power 0.9
    """
    if power is not None and marked_file is not None:
        raise click.UsageError("Give --power, or --from with texts that it is measured on; one of the two.")
    if out.suffix != ".parquet":
        raise Refused(f"--out {out}: Parquet is written, so the name must end in .parquet")
    if out.exists():
        raise Refused(f"--out {out}: exists already; name a file that does not")
    if not out.absolute().parent.is_dir():
        raise Refused(f"--out {out}: there is no folder {out.parent}; make it first")
    import numpy as np
    import polars as pl

    from scanner.registry import make_canaries
    from scanner.storage.locations import write_whole

    known = read_prompts(prompts)
    measured = [] if marked_file is None else _measured(marked_file, registry)
    if measured:
        power = _power(registry, measured)
    recorded = make_canaries(registry, key_ids or None, users, 0.9 if power is None else power, measured=measured)
    names = list(dict.fromkeys(canary.account_id for canary in recorded.made))[:users]
    generator = np.random.default_rng()  # seeded by the operating system
    rounds = -(-texts // len(known))
    chosen = np.concatenate([generator.permutation(len(known)) for _ in range(rounds)])[:texts]
    rows = pl.DataFrame(
        {
            "user_id": [names[i % len(names)] for i in range(texts)],
            "prompt": [known[i] for i in chosen.tolist()],
        }
    )
    write_whole(out, lambda file: rows.write_parquet(file))
    tell(
        f"{texts:,} prompts for {len(names):,} canaries: {out}",
        "Complete each for its user_id as for any user, with the user_id as the account that posts the text.",
        f"Then say in scan.toml: [audit] canaries = {texts}",
    )


def _measured(file: Path, registry: Path) -> list[CanaryStrength]:
    """Texts like canaries', read back under their keys."""
    from scanner.detection.one_text import canary_strength
    from scanner.registry import find_key, load_registry

    known, marked = load_registry(registry), read_marked(file)
    of_keys = (
        (name, marked.filter(key_id=name).head(MOST_MEASURED)) for name in marked["key_id"].unique(maintain_order=True)
    )
    return [
        canary_strength(
            registry, find_key(known, name), texts_of_key["text"].to_list(), texts_of_key["message"].to_numpy()
        )
        for name, texts_of_key in of_keys
    ]


def _power(registry: Path, measured: list[CanaryStrength]) -> float:
    """Share of the measured texts that pass at 1e-6 among the registry's keys with one look, from 0.01 to 0.99."""
    from scanner.audit.calibration.admission import USUAL_RATE
    from scanner.registry import find_key, load_registry
    from scanner.scan_plan import keys_tested
    from scanner.watermark.rule import corrected, passes

    known, shares = load_registry(registry), []
    for of_key in measured:
        key = find_key(known, of_key.key_id)
        correction = key.tested_among(keys_tested(known))
        share = float(passes(corrected(of_key.log10_p, key.messages, correction), USUAL_RATE).mean())
        number = len(of_key.scored)
        tell(
            f"{key.key_id}: {share:.0%} of {number:,} texts pass at {USUAL_RATE:g} among {correction:,} keys, "
            "with one look"
        )
        shares.append(share)
    return min(max(min(shares), 0.01), 0.99)
