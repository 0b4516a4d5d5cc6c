"""`brickscan canaries`: prompts for made-up users, whose marked texts every scan must find."""

from pathlib import Path

import click

from jobs.options import NamedPath, key_ids_option
from jobs.prompts import read_prompts
from jobs.text import tell
from scanner.errors import Refused


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
    default=0.9,
    show_default=True,
    help="Share of such texts that is to be found: see `brickscan plan --from`.",
)
def canaries(
    registry: Path, key_ids: tuple[str, ...], prompts: Path, out: Path, texts: int, users: int, power: float
) -> None:
    """Make prompts for canaries: users who are nobody, whose texts are marked as all others, and must be found.

    OUT has a row a text: user_id and prompt. Have the serving side complete them every night on its real path, each for
    its user_id, and let the texts come in with the export, with the user_id as their account. Every scan then says how
    many came, were found, and were named right, and ends with 5 when that is less than planned: a wrong tokenizer, key,
    window or table of users makes no quiet night any more. Their messages are given for good, and never to users.

    Run it again for new prompts, and whenever there is a new key: the canaries stay the same.

    \b
    Example:
      brickscan canaries --registry registry --prompts prompts.txt --out canaries.parquet --power 0.9
    """
    if out.suffix != ".parquet":
        raise Refused(f"--out {out}: Parquet is written, so the name must end in .parquet")
    if out.exists():
        raise Refused(f"--out {out}: exists already; name a file that does not")
    if not out.absolute().parent.is_dir():
        raise Refused(f"--out {out}: there is no folder {out.parent}; make it first")
    import numpy as np
    import polars as pl

    from scanner.registry import make_canaries
    from scanner.storage.whole import write_whole

    known = read_prompts(prompts)
    made = make_canaries(registry, key_ids or None, users, power)
    names = list(dict.fromkeys(canary.account_id for canary in made.made))[:users]
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
