"""`brickscan mark`: completes prompts with a local model, marked for users, and writes the texts with the truth."""

import dataclasses
import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from jobs.cli import when_interrupted
from jobs.options import NamedPath
from jobs.text import columns, complain, tell
from scanner.errors import Refused, TokenizerError
from scanner.printable import printable

if TYPE_CHECKING:
    from jobs.marked_rows import Row
    from schemas.registry import MasterKey


class Recipient(NamedTuple):
    """The user for whom a completion is marked: the message, and the user who holds it (None with --message)."""

    user_id: str | None
    message: int


@click.command("mark")
@click.option("--registry", type=NamedPath(path_type=Path), required=True, help="Folder of the registry.")
@click.option("--key", "key_id", required=True, help="Key to mark with; not a retired one.")
@click.option("--user", "user_ids", multiple=True, help="User to mark for; may be given more than once.")
@click.option("--message", "messages", type=int, multiple=True, help="Message to mark with, instead of a user's.")
@click.option("--model", "folder", type=NamedPath(path_type=Path), required=True, help="Folder of the model.")
@click.option(
    "--prompts",
    type=NamedPath(path_type=Path),
    required=True,
    help="One a line, or Parquet with a column 'prompt'; blank ones and nulls are left out, which is said on stderr. "
    "A column 'user_id' says whom each is for, where neither --user nor --message does.",
)
@click.option("--out", type=NamedPath(path_type=Path), required=True, help="Parquet file to write; must not exist.")
@click.option("--max-new-tokens", type=int, default=256, show_default=True, help="Of each completion.")
@click.option("--temperature", type=float, default=1.0, show_default=True)
@click.option("--top-p", type=float, default=0.95, show_default=True, help="1: all tokens.")
@click.option("--top-k", type=int, default=0, show_default=True, help="0: all tokens.")
@click.option("--delta", type=float, default=3.0, show_default=True, help="Bias of green tokens (green list only).")
@click.option("--skip-used-windows", is_flag=True, help="Mark each window once in a text: better prose, less power.")
@click.option("--batch-size", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--verify", is_flag=True, help="Read every completion back: its strength, log10 p and expected power.")
def mark(
    registry: Path,
    key_id: str,
    user_ids: tuple[str, ...],
    messages: tuple[int, ...],
    folder: Path,
    prompts: Path,
    out: Path,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    delta: float,
    skip_used_windows: bool,
    batch_size: int,
    seed: int,
    verify: bool,
) -> None:
    """Complete prompts with a local model, marked for users, and write Parquet with the truth.

    Every prompt is completed once. With several users (or messages) they take turns: the first prompt is marked for the
    first, the second for the second, and so on, round and round. OUT has a row for each completion: key_id, user_id,
    message, prompt, text and tokens. Nothing is downloaded. Run again after an interruption, the same command goes on
    from the batches that were finished, which stand in OUT.unfinished.

    \b
    Example:
      brickscan mark --registry registry --key summer-2026 --user alice --user bob \\
          --model models/smollm2 --prompts prompts.txt --out marked.parquet --verify
    """
    from jobs.marked_rows import kept_rows
    from jobs.progress import MarkProgress
    from jobs.prompts import read_asked
    from scanner.registry import find_key, load_registry, open_key

    key = find_key(load_registry(registry), key_id)
    if key.retired_at is not None:
        raise Refused(
            f"--key {key_id}: was retired on {key.retired_at:%Y-%m-%d}; a retired key never marks, name another"
        )
    if not key.marks(datetime.now(UTC)):
        raise Refused(
            f"--key {key_id}: is active from {key.active_from or 'the start'} until "
            f"{key.active_until or 'it is retired'} and marks nothing at other times; name another"
        )
    if out.suffix != ".parquet":
        raise Refused(f"--out {out}: Parquet is written, so the name must end in .parquet")
    if out.exists():
        raise Refused(f"--out {out}: exists already; name a file that does not")
    if not out.absolute().parent.is_dir():
        raise Refused(f"--out {out}: there is no folder {out.parent}; make it first")
    texts, users = read_asked(prompts)
    if user_ids or messages or users is None:
        turns = list(islice(cycle(recipients(registry, key, user_ids, messages)), len(texts)))
    else:
        turns = recipients_of_rows(registry, key, users)
    if users is not None and (user_ids or messages):
        complain(f"prompts {prompts}: its column user_id is not used, since --user or --message says whom to mark for")

    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
    try:
        from scanner.generation import Sampling, check_prompts, complete, load_model
    except ModuleNotFoundError as error:
        raise Refused(
            f"marking needs torch and transformers, and {error.name} is missing: "
            "run `make model`, or pip install 'brickscan[model]'"
        ) from None

    how = Sampling(max_new_tokens, temperature, top_k, top_p, delta, skip_used_windows)
    watermark = open_key(registry, key)
    model = load_model(folder)
    if model.tokenizer_sha256 != key.tokenizer.sha256:
        raise TokenizerError(
            f"--model {folder}: its tokenizer.json has SHA-256 {model.tokenizer_sha256}, but key {key_id!r} is "
            f"pinned to {key.tokenizer.sha256}; a mark can be read with the key's own tokenizer only"
        )
    check_prompts(model.encode(texts)[1].sum(dim=1).tolist(), watermark.rule.context, max_new_tokens, model.positions)
    call = [key_id, str(key.created_at), str(folder.absolute()), dataclasses.asdict(how), seed, batch_size]
    asked = list(zip(turns, texts, strict=True))
    with (
        when_interrupted(f"mark: finished batches are kept beside {out}; the same command goes on") as check,
        kept_rows(out, [*call, asked]) as kept,
        MarkProgress(len(texts), check) as progress,
    ):
        for batch, start in enumerate(range(0, len(texts), batch_size)):
            if batch >= kept.batches:
                whom, these = zip(*asked[start : start + batch_size], strict=True)
                messages_of = [recipient.message for recipient in whom]
                done = complete(model, these, how, seed + batch, watermark, messages_of, progress.token)
                kept.add([(key_id, *to, prompt, *text) for to, prompt, text in zip(whom, these, done, strict=True)])
            progress(len(kept.rows))
        kept.finish()
    tell(f"{len(kept.rows)} completions marked with {key_id}: {out}")
    if verify:
        tell(*_verified(registry, key, kept.rows))


def _verified(registry: Path, key: "MasterKey", rows: "Sequence[Row]") -> list[str]:
    """A line for each completion: how strongly it is marked, and how likely texts of its length are found."""
    import numpy as np

    from jobs.marked_rows import MARKED
    from scanner.audit.calibration.admission import ASKED
    from scanner.detection.one_text import strengths_of
    from scanner.detection.scan_plan import keys_tested
    from scanner.measured import LEAST_SCORED, Measured
    from scanner.power import Aim
    from scanner.registry import load_registry
    from scanner.watermark.rule import corrected, log10_p_of

    places = {name: MARKED.names.index(name) for name in MARKED.names}
    texts, messages = ([row[places[name]] for row in rows] for name in ("text", "message"))
    law, strengths = strengths_of(registry, key, texts, np.array(messages, np.int64))
    aim = Aim(ASKED, key.messages, key.tested_among(keys_tested(load_registry(registry))))
    if law is None or max(strengths.scored) < LEAST_SCORED:
        return [f"no completion has {LEAST_SCORED} scored tokens: too short to be read back"]
    power = Measured.of(law, strengths).power(strengths.scored, aim)
    log10_p = corrected(log10_p_of(law, strengths.score, strengths.scored), aim.messages, aim.keys)
    per_token = strengths.score / np.maximum(strengths.scored, 1)
    strength = "green share" if law.discrete else "probability, entropy"
    cells = zip(rows, strengths.scored, per_token, log10_p, power, strict=True)
    lines = [
        (
            str(number),
            printable(str(row[places["user_id"]] or f"message {row[places['message']]}"), 40),
            f"{scored:,}",
            f"{of_token:.3f}" if law.discrete else _alike(of_token),
            f"{p:.1f}",
            f"{chance:.3f}",
        )
        for number, (row, scored, of_token, p, chance) in enumerate(cells)
    ]
    head = ("row", "marked for", "scored tokens", strength, "log10 p", "expected power")
    return [
        *columns([head, *lines]),
        f"log10 p is corrected for {aim.messages:,} messages of {aim.keys} keys; power is the chance that such texts "
        f"of that length are found at {aim.false_positive_rate:g}",
    ]


def _alike(of_token: float) -> str:
    """The probability that all tokens would have at this mean score, and its entropy −p ln p, as `plan` takes them."""
    from scanner.measured import probability_of

    p = probability_of(of_token)
    return f"{p:.3f}, {-p * math.log(p):.3f}"


def recipients(registry: Path, key: "MasterKey", user_ids: Sequence[str], messages: Sequence[int]) -> list[Recipient]:
    """Recipients of completions, in the order given.

    Raises:
        Refused: neither users nor messages or both, a user who holds no message of the key, a message out of range or
            reserved (a detection of a reserved message must stay a known false accusation).
    """
    from scanner.registry import messages_held, users_named
    from schemas.registry import RESERVED_EVERY, is_reserved

    if bool(user_ids) == bool(messages):
        raise Refused("name whom to mark for: --user, or --message, once or more (and not both)")
    message_of = messages_held(registry, key.key_id, user_ids)
    for user_id in user_ids:
        if user_id not in message_of:
            raise Refused(
                f"--user {user_id}: holds no message of key {key.key_id!r}; give one with `brickscan users add`"
            )
    for message in messages:
        if not 0 <= message < key.messages:
            raise Refused(f"--message {message}: key {key.key_id!r} has messages 0 to {key.messages - 1}")
        if is_reserved(message):
            raise Refused(f"--message {message}: is reserved and marks no text; every {RESERVED_EVERY}th message is")
    user_of = users_named(registry, key.key_id, messages)
    return [Recipient(user_id, message_of[user_id]) for user_id in user_ids] + [
        Recipient(user_of.get(message), message) for message in messages
    ]


def recipients_of_rows(registry: Path, key: "MasterKey", users: Sequence[Any]) -> list[Recipient]:
    """Recipients that the prompts' own rows name, in order.

    Raises:
        Refused: a row names nobody, or a user who holds no message of the key.
    """
    from scanner.registry import messages_held

    for number, user in enumerate(users):
        if not isinstance(user, str):
            raise Refused(f"--prompts: row {number} (counted from 0), user_id = {user!r}: a text is needed")
    message_of = messages_held(registry, key.key_id, list(dict.fromkeys(users)))
    for number, user in enumerate(users):
        if user not in message_of:
            raise Refused(
                f"--prompts: row {number} (counted from 0), user_id = {user!r}: holds no message of key "
                f"{key.key_id!r}; give one with `brickscan users add`, or name others with --user"
            )
    return [Recipient(user, message_of[user]) for user in users]
