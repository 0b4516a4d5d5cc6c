"""`brickscan keys add`: a key that another stack marks with."""

import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from jobs.key_words import ASSUMED, cautions, weight, what
from jobs.options import DATE, Folder, NamedPath, held_by_option
from jobs.text import complain, tell
from scanner.errors import Refused
from scanner.registry import load_registry, new_key, open_key, suggested_parameters
from scanner.registry.locked_files import local_folder
from scanner.registry.secrets import secret_path
from scanner.storage.named import parse_json, read_named
from schemas.registry import MasterKey

if TYPE_CHECKING:
    from scanner.watermark.stacks.configs import StackKey


@click.command("add")
@click.argument("key_id")
@click.option("--registry", required=True, type=Folder(), help="Folder of the registry.")
@click.option("--format", "name", help="Such as vllm-gumbel; see `brickscan formats`. Not needed with --from.")
@click.option("--from", "config", type=NamedPath(path_type=Path), help="The stack's JSON; its key is copied out of it.")
@click.option("--set", "words", multiple=True, metavar="NAME=VALUE", help="A parameter in the stack's own words.")
@click.option("--messages", default=1, show_default=True, help="Users of a format that names some: a message each.")
@click.option("--tokenizer", required=True, metavar="PATH", help="The tokenizer.json of the model that is marked.")
@click.option("--secret", metavar="REFERENCE", help="Where the key is, or is to be copied to; as for `keys new`.")
@click.option("--active-from", type=DATE, help="Since when (UTC) the stack marks with it.  [default: now]")
@held_by_option
def add(
    key_id: str,
    registry: Path | str,
    name: str | None,
    config: Path | None,
    words: tuple[str, ...],
    messages: int,
    tokenizer: str,
    secret: str | None,
    active_from: datetime | None,
    held_by: str | None,
) -> None:
    """Add a key that another stack marks with: vLLM, SGLang, transformers, SynthID or the paper's research code.

    A key is hexadecimal text in the file that --secret names: 16 digits a number, 32 for two keys of SGLang or for seed
    and salt of the research code, 480 for 30 keys of SynthID. With --from it is
    copied out of the stack's own configuration, of which the registry then holds a copy that nobody else can read.

    \b
    Example:
      brickscan keys add chat --registry registry --from watermark-config.json --tokenizer tokenizer.json
      brickscan keys add chat --registry registry --format vllm-gumbel --set context_width=4 \\
          --secret file:/etc/keys/chat.key --tokenizer tokenizer.json
    """
    from scanner.registry.tokenizer_files import narrow, pin_tokenizer
    from scanner.watermark.formats import format_of

    stack = _read_stack_config(config) if config else None
    if stack is not None and name not in (None, stack.format):
        raise Refused(f"--format {name}: {config} is one of {stack.format}; leave one of the two out")
    format_name = stack.format if stack else name
    if format_name is None:
        raise Refused(
            "name the format with --format (see `brickscan formats`), or the stack's configuration with --from"
        )
    path = secret_path(secret, registry) if secret and not stack else None
    if path is not None and not os.path.lexists(path):
        raise Refused(
            f"--secret {secret}: {path} is not there; give the file that holds the key which marks, or its "
            "configuration with --from"
        )
    parameters: dict[str, Any] = {
        **suggested_parameters(format_name),
        **(stack.parameters if stack else {}),
        **_parameters(words),
    }
    key = new_key(
        registry,
        key_id,
        format=format_name,
        **parameters,
        messages=messages,
        tokenizer=tokenizer,
        secret=secret,
        known=stack.secret if stack else None,
        active_from=active_from and active_from.replace(tzinfo=UTC),
        held_by=held_by,
    )
    tell(f"key         {key.key_id}: {what(key)}")
    tell(f"tokenizer   {key.tokenizer.file}, SHA-256 {key.tokenizer.sha256}")
    tell(f"secret      {key.secret}")
    tell(*weight(key))
    tell(*_floor(registry, key))
    tell(*_price(registry, key))
    tell(*(f"careful     {caution}" for caution in cautions(key)))
    caution = narrow(format_of(key), pin_tokenizer(local_folder(registry), tokenizer))
    complain(*([] if caution is None else [f"key {key.key_id!r}: {caution}"]))


def _read_stack_config(path: Path) -> "StackKey":
    from scanner.watermark.stacks.configs import read_config

    try:
        return read_config(read_named(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"--from {path}: cannot be read ({getattr(error, 'strerror', None) or 'no UTF-8'})") from None
    except ValueError as error:
        raise Refused(f"--from {path}: {error}") from None


def _parameters(words: tuple[str, ...]) -> dict[str, Any]:
    """The parameters of NAME=VALUE; a value is a number where it reads as one."""
    given: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise Refused("--set: NAME=VALUE is needed, such as context_width=4")
        try:
            given[name] = parse_json(value)
        except ValueError:
            given[name] = value
    return given


def _floor(registry: Path | str, key: MasterKey) -> list[str]:
    """What a key's few bits mean for its flags; empty if they are many."""
    from scanner.audit.calibration.admission import ASKED
    from scanner.detection.scan_plan import keys_tested
    from scanner.watermark.formats import format_of
    from scanner.watermark.rule import corrected

    basis = format_of(key).basis()
    if basis.proven:
        return []
    least = float(
        corrected(
            np.array(-basis.bits * math.log10(2.0)),
            key.messages,
            key.tested_among(keys_tested(load_registry(registry))),
        )
    )
    lines = [f"strength    {basis}: {2.0**basis.bits:.0e} trials find a key that makes the same marks"]
    if basis.assumed:
        lines = [
            f"strength    {ASSUMED}. A scan takes it down to the rate that an audit of your own texts showed "
            "(`brickscan calibrate`, then `brickscan keys admit`). Until then a scan goes on under the other keys and "
            "says that it left this one out, and its night is amber; `keys = [...]` in scan.toml with the ids of the "
            "others alone leaves it out without that. A scan whose `keys` names it is refused."
        ]
    if least > math.log10(ASKED):
        lines.append(
            f"No text can ever be flagged at {ASKED:g} under it: with {key.messages:,} messages the smallest p-value "
            f"is {10**least:.1e}. Fewer messages, or a looser rate, are needed."
        )
    return lines


def _price(registry: Path | str, key: MasterKey) -> list[str]:
    """The cost of a key in every scan, if it is high."""
    from scanner.watermark.formats import format_of
    from scanner.watermark.price import price

    found = price(format_of(key), open_key(registry, key), key.messages)
    return [] if found is None else [f"cost        {found.words()} (timed here)"]
