"""Run `brickscan mark`: complete prompts with a local model, marked for users, and write the texts with the truth."""

import contextlib
import dataclasses
import fcntl
import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import compress, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.cli import when_interrupted
from jobs.options import MOST_SEEDS, NamedPath, Real, Whole, refuse_output
from jobs.text import MarkProgress, columns, complain, tell
from scanner.errors import Refused, TokenizerError, in_a_line, install_of
from scanner.input.named_files import open_parquet
from scanner.printable import counted, printable
from scanner.storage.locations import MOST_LIST, read_named, write_whole
from schemas.registry import MAX_MESSAGES, RESERVED_EVERY, is_reserved

if TYPE_CHECKING:
    import polars as pl

    from scanner.registry.users_snapshot import UsersSnapshot
    from schemas.config import ReaderDtype
    from schemas.registry import MasterKey

MOST_ROWS_NAMED = 10
"""Most prompts that are left out and shown by number."""


class PromptList(NamedTuple):
    """Prompts, and the user id of each prompt. None: the file has no column `user_id`."""

    prompts: list[str]
    users: list[Any] | None


def read_marked(path: Path) -> "pl.DataFrame":
    """Read the columns key_id, message and text of a file of `brickscan mark`, given by --from.

    Raises:
        Refused: the file cannot be read as such, or has no text.
    """
    import polars as pl

    names = ["key_id", "message", "text"]
    try:
        texts = pl.DataFrame(open_parquet(path, f"--from {path}").read(columns=names)).select(names).drop_nulls()
    except (OSError, pa.ArrowException, pl.exceptions.PolarsError) as error:
        raise Refused(f"--from {path}: cannot be read as what `brickscan mark` writes ({in_a_line(error)})") from None
    if texts.is_empty():
        raise Refused(f"--from {path}: has no text; give texts that `brickscan mark` wrote")
    return texts


def read_prompts(path: Path, field: str = "--prompts") -> list[str]:
    """Read only the prompts of a file. See `read_prompt_list`."""
    return read_prompt_list(path, field).prompts


def read_prompt_list(path: Path, field: str = "--prompts") -> PromptList:
    """Read the prompts of a file: the lines of a text file, or the columns `prompt` and `user_id` of a Parquet file.

    Blank prompts and nulls are left out. Their number, and the places of the first of them, are printed on stderr.

    field: the option with the file's name, for the error.

    Raises:
        Refused: the file cannot be read, or has no prompt.
    """
    rows = path.suffix == ".parquet"
    try:
        parquet = open_parquet(path, f"{field} {path}") if rows else None
        names = parquet.schema_arrow.names if parquet else []
        if rows and "prompt" not in names:
            raise Refused(f"{field} {path}: has no column 'prompt'; it has {', '.join(map(repr, names))}")
        users = None
        if parquet:
            columns = parquet.read(columns=[name for name in ("prompt", "user_id") if name in names])
            entries = columns.column("prompt").to_pylist()
            users = columns.column("user_id").to_pylist() if "user_id" in names else None
        else:
            with io.TextIOWrapper(io.BytesIO(read_named(path, MOST_LIST)), encoding="utf-8") as lines:
                entries = [line.removesuffix("\n") for line in lines]
    except (OSError, UnicodeDecodeError, KeyError, pa.ArrowException) as error:
        raise Refused(f"{field} {path}: cannot be read as prompts: {in_a_line(error)}") from None
    written = [isinstance(prompt, str) and bool(prompt.strip()) for prompt in entries]
    prompts = list(compress(entries, written))
    if not prompts:
        raise Refused(f"{field} {path}: has no prompt; write one per line, or a Parquet column 'prompt' of strings")
    blank = [number for number, prompt in enumerate(written, 0 if rows else 1) if not prompt]
    if blank:
        explanation = "null or blank rows (counted from 0)" if rows else "blank lines (counted from 1)"
        first = ", ".join(map(str, blank[:MOST_ROWS_NAMED])) + (", …" if len(blank) > MOST_ROWS_NAMED else "")
        complain(f"prompts {path}: {len(blank)} of {len(entries)} left out, {explanation}: {first}")
    return PromptList(prompts, None if users is None else list(compress(users, written)))


MARKED_COLUMNS = pa.schema(
    [
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("user_id", pa.string()),  # null if a message was given that no user holds
        pa.field("message", pa.int64(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),  # only the completion
        pa.field("tokens", pa.int64(), nullable=False),  # as many as the model wrote; the text may give others
    ]
)
"""Columns that `brickscan mark` writes: one row per completion, with the truth."""

Row = tuple[Any, ...]


class KeptRows:
    """Rows of MARKED_COLUMNS on disk, written batch by batch, beside the Parquet file that they become.

    The file OUT.unfinished has a line of JSON for the call and one for each batch. A batch is there completely or not
    at all. The file cannot be mistaken for Parquet. `kept_rows` makes objects of this class.
    """

    def __init__(self, out: Path, file: BinaryIO, batches: list[list[Row]]) -> None:
        self._out, self._file, self._batches = out, file, batches

    @property
    def batches(self) -> int:
        """Return the number of batches on disk."""
        return len(self._batches)

    @property
    def rows(self) -> list[Row]:
        """Return the rows of all batches, in order."""
        return [row for batch in self._batches for row in batch]

    def add(self, batch: Sequence[Row]) -> None:
        """Write a batch to the disk. Raises OSError."""
        self._file.write(json.dumps(batch).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._batches.append(list(batch))

    def finish(self) -> None:
        """Write OUT in one step, and remove the file beside it. Raises OSError."""
        columns = [dict(zip(MARKED_COLUMNS.names, row, strict=True)) for row in self.rows]
        table = pa.Table.from_pylist(columns, schema=MARKED_COLUMNS)
        write_whole(self._out, lambda file: pq.write_table(table, file))
        unfinished(self._out).unlink()


def unfinished(out: Path) -> Path:
    """Return the path of an output's rows while they are incomplete."""
    return out.with_name(f"{out.name}.unfinished")


@contextlib.contextmanager
def kept_rows(out: Path, call: Sequence[Any]) -> Iterator[KeptRows]:
    """Open the rows that an interrupted call has left beside `out`, or begin without rows.

    Args:
        out: the future Parquet file.
        call: everything that decides the rows, as JSON values. The file has a digest of it.

    Raises:
        Refused: another call left the rows, or a running call is writing them.
    """
    path, begun = unfinished(out), {"call": hashlib.sha256(json.dumps(call).encode()).hexdigest()}
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused(
                f"--out {out}: another `brickscan mark` is writing it; wait for it, or name another file"
            ) from None
        file.seek(0)
        written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        file.truncate(len(whole))  # removes a line that was cut off
        if not whole:
            file.write(json.dumps(begun).encode() + b"\n")
        head, *batches = [json.loads(line) for line in whole.splitlines()] or [begun]
        if head != begun:
            raise Refused(
                f"--out {out}: {path.name} beside it has the completions of an interrupted run with other options, "
                "prompts, users or model; run it as before to continue, or delete that file to start over"
            )
        store = KeptRows(out, file, [[tuple(row) for row in batch] for batch in batches])
        try:
            yield store
        finally:
            if not store.batches:
                path.unlink(missing_ok=True)


class Recipient(NamedTuple):
    """The user for whom a completion is marked: the message, and the user who holds it (None with --message)."""

    user_id: str | None
    message: int


@click.command("mark")
@click.option("--registry", type=NamedPath(path_type=Path), required=True, help="Folder of the registry")
@click.option("--key", "key_id", required=True, help="Key to mark with, not retired")
@click.option("--user", "user_ids", multiple=True, help="User to mark for (repeatable)")
@click.option(
    "--message",
    "messages",
    type=Whole(0, MAX_MESSAGES - 1),
    multiple=True,
    help="Message to mark with, instead of a user's",
)
@click.option("--model", "folder", type=NamedPath(path_type=Path), required=True, help="Folder of the model")
@click.option(
    "--prompts",
    type=NamedPath(path_type=Path),
    required=True,
    help=(
        "Prompts, one per line, or Parquet with a column 'prompt', and 'user_id' if no --user is given; blank prompts "
        "are left out"
    ),
)
@click.option("--out", type=NamedPath(path_type=Path), required=True, help="New Parquet file")
@click.option("--max-new-tokens", type=Whole(1), default=256, show_default=True, help="Most tokens of a completion")
@click.option("--temperature", type=Real(), default=1.0, show_default=True)
@click.option(
    "--top-p",
    type=Real(),
    default=0.95,
    show_default=True,
    help="Sample from the most likely tokens up to this probability; 1: all tokens",
)
@click.option(
    "--top-k",
    type=Whole(0),
    default=0,
    show_default=True,
    help="Sample from this many of the most likely tokens; 0: all",
)
@click.option("--delta", type=Real(), default=3.0, show_default=True, help="Bias of green tokens (green list)")
@click.option(
    "--skip-used-windows", is_flag=True, help="Mark each window only once in a text: better prose, less power"
)
@click.option("--batch-size", type=Whole(1), default=16, show_default=True)
@click.option("--seed", type=Whole(0, MOST_SEEDS), default=0, show_default=True)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where the model runs; on a GPU, give --batch-size a few hundred",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Precision of the model; bfloat16 takes half of the memory, and is fast only on GPUs",
)
@click.option("--verify", is_flag=True, help="Strength, log10 p and expected power of each completion")
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
    device: str,
    dtype: "ReaderDtype",
    verify: bool,
) -> None:
    """Complete prompts with a local model, marked for users, and write Parquet with the truth.

    Each prompt is completed once; several users take turns. OUT has the columns key_id, user_id, message, prompt, text
    and tokens. Nothing is downloaded. Run the same command again after an interruption: it goes on where it stopped.

    \b
    Example:
      brickscan mark --registry registry --key summer-2026 --user alice --user bob \\
          --model models/smollm2 --prompts prompts.txt --out marked.parquet --verify
    """
    from scanner.registry import find_key, load_registry
    from scanner.registry.keys import open_key_to_mark

    key = find_key(load_registry(registry), key_id)
    if key.retired_at is not None:
        raise Refused(
            f"--key {key_id}: was retired on {key.retired_at:%Y-%m-%d}; a retired key never marks, name another key"
        )
    if not key.marks(datetime.now(UTC)):
        raise Refused(
            f"--key {key_id}: is active from {key.active_from or 'the start'} until "
            f"{key.active_until or 'it is retired'} and marks nothing at other times; name another key"
        )
    refuse_output(out)
    texts, users = read_prompt_list(prompts)
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
            f"run `make model`, or {install_of('model')}"
        ) from None

    how = Sampling(max_new_tokens, temperature, top_k, top_p, delta, skip_used_windows)
    watermark = open_key_to_mark(registry, key)
    model = load_model(folder, device=device, dtype=dtype)
    if model.tokenizer_sha256 != key.tokenizer.sha256:
        raise TokenizerError(
            f"--model {folder}: its tokenizer.json has SHA-256 {model.tokenizer_sha256}, but key {key_id!r} is pinned "
            f"to {key.tokenizer.sha256}; a mark can only be read with the key's own tokenizer"
        )
    check_prompts(model.encode(texts)[1].sum(dim=1).tolist(), watermark.rule.context, max_new_tokens, model.positions)
    call = [key_id, str(key.created_at), str(folder.absolute()), dataclasses.asdict(how), seed, batch_size]
    call += [device, dtype]  # other sums are rounded otherwise, and may choose other tokens
    prompts_of_turns = list(zip(turns, texts, strict=True))
    with (
        when_interrupted(f"mark: finished batches are kept beside {out}; the same command goes on") as check,
        kept_rows(out, [*call, prompts_of_turns]) as store,
        MarkProgress(len(texts), check) as progress,
    ):
        for batch, start in enumerate(range(0, len(texts), batch_size)):
            if batch >= store.batches:
                whom, these = zip(*prompts_of_turns[start : start + batch_size], strict=True)
                messages_of = [recipient.message for recipient in whom]
                done = complete(model, these, how, seed + batch, watermark, messages_of, progress.token)
                store.add([(key_id, *to, prompt, *text) for to, prompt, text in zip(whom, these, done, strict=True)])
            progress(len(store.rows))
        store.finish()
    tell(f"{len(store.rows)} completions marked with {key_id}: {out}")
    if verify:
        tell(*_verified(registry, key, store.rows))


def _verified(registry: Path, key: "MasterKey", rows: "Sequence[Row]") -> list[str]:
    """Write a line for each completion: how strongly it is marked, and how likely texts of its length are found."""
    from scanner.audit.calibration.admission import USUAL_RATE
    from scanner.detection.one_text import strengths_of
    from scanner.error_shares import AS_WRITTEN, ErrorShares
    from scanner.power import LEAST_SCORED, Aim, MeasuredTexts
    from scanner.registry import load_registry
    from scanner.scan_plan import keys_tested
    from scanner.watermark.rule import corrected, log10_p_of

    index_of = {name: MARKED_COLUMNS.names.index(name) for name in MARKED_COLUMNS.names}
    texts, messages = ([row[index_of[name]] for row in rows] for name in ("text", "message"))
    law, strengths = strengths_of(registry, key, texts, np.array(messages, np.int64))
    tested = keys_tested(load_registry(registry))
    aim = Aim(USUAL_RATE, key.messages, ErrorShares.by_default().corrections(key, tested)[AS_WRITTEN, 0, 1])
    if law is None or max(strengths.scored) < LEAST_SCORED:
        return [f"no completion has {LEAST_SCORED} scored tokens: too short to be read back"]
    power = MeasuredTexts.of(law, strengths).power(strengths.scored, aim)
    log10_p = corrected(log10_p_of(law, strengths.score, strengths.scored), aim.messages, aim.correction)
    per_token = strengths.score / np.maximum(strengths.scored, 1)
    strength = "green share" if law.discrete else "probability, entropy"
    cells = zip(rows, strengths.scored, per_token, log10_p, power, strict=True)
    lines = [
        (
            str(number),
            printable(str(row[index_of["user_id"]] or f"message {row[index_of['message']]}"), 40),
            f"{scored:,}",
            f"{token_score:.3f}" if law.discrete else _probability_and_entropy(token_score),
            f"{p:.1f}",
            f"{chance:.3f}",
        )
        for number, (row, scored, token_score, p, chance) in enumerate(cells)
    ]
    head = ("row", "marked for", "scored tokens", strength, "log10 p", "expected power")
    return [
        *columns([head, *lines]),
        f"log10 p is corrected for {counted(aim.messages, 'message')} of {counted(tested, 'key')}, and for parts;",
        f"power is the chance that texts of this strength and length are found at {aim.false_positive_rate:g}",
    ]


def _probability_and_entropy(mean_score: float) -> str:
    """Write the probability that all tokens would have at this mean score, and its entropy −p ln p, as for `plan`."""
    from scanner.power import probability_of

    p = probability_of(mean_score)
    return f"{p:.3f}, {-p * math.log(p):.3f}"


def recipients(registry: Path, key: "MasterKey", user_ids: Sequence[str], messages: Sequence[int]) -> list[Recipient]:
    """Return recipients of completions, in the given order.

    Raises:
        Refused: there are neither users nor messages, or both. Or a user holds no message of the key. Or a message is
            out of range or reserved (a detection of a reserved message must stay known to be false).
    """
    if bool(user_ids) == bool(messages):
        no_users = "; the key names no user, so give --message 0" if key.messages == 1 else ""
        raise Refused(f"say whom to mark for: --user or --message, once or more (not both){no_users}")
    message_of = _messages_held(registry, key, user_ids) if user_ids else {}
    for user_id in user_ids:
        if user_id not in message_of:
            raise Refused(
                f"--user {user_id}: holds no message of key {key.key_id!r}; give one with `brickscan users add`"
            )
    for message in messages:
        if not 0 <= message < key.messages:
            raise Refused(f"--message {message}: key {key.key_id!r} has messages 0 to {key.messages - 1}")
        if is_reserved(message):
            raise Refused(f"--message {message}: is reserved and never marks text; every {RESERVED_EVERY}th message is")
    given = np.array(messages, np.int64)
    holders = _held(registry, lambda users: users.rows_of_messages(key.key_id, given)) if messages else []
    user_of = {message: user for user, message in holders}
    return [Recipient(user_id, message_of[user_id]) for user_id in user_ids] + [
        Recipient(user_of.get(message), message) for message in messages
    ]


def _messages_held(registry: Path, key: "MasterKey", user_ids: Sequence[str]) -> dict[str, int]:
    return dict(_held(registry, lambda users: users.rows_of_users(user_ids, [key.key_id])))


def _held(registry: Path, find: Callable[["UsersSnapshot"], "pl.DataFrame"]) -> list[tuple[str, int]]:
    """Return user and message of the rows that `find` selects, if the user holds it, verified by the users' chain."""
    from scanner.registry import verified_rows
    from scanner.results.registry_record import users_beside

    rows = verified_rows(registry, users_beside(registry), find)
    return rows.filter(rows["removed_at"].is_null()).select("user_id", "message").rows()


def recipients_of_rows(registry: Path, key: "MasterKey", users: Sequence[Any]) -> list[Recipient]:
    """Return the recipients that the rows of the prompts name, in order.

    Raises:
        Refused: a row names no user, or a user who holds no message of the key.
    """
    for number, user in enumerate(users):
        if not isinstance(user, str):
            raise Refused(f"--prompts: row {number} (counted from 0), user_id = {user!r}: a text is needed")
    message_of = _messages_held(registry, key, list(dict.fromkeys(users)))
    for number, user in enumerate(users):
        if user not in message_of:
            raise Refused(
                f"--prompts: row {number} (counted from 0), user_id = {user!r}: holds no message of key "
                f"{key.key_id!r}; give one with `brickscan users add`, or name others with --user"
            )
    return [Recipient(user, message_of[user]) for user in users]
