"""Check the secrets, tokenizers and users of a plan before any work, and open them in every worker."""

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scanner.detection.attribution import OpenedKey, stay_on_cpu
from scanner.detection.detector import Detector
from scanner.detection.left_out import NO_FILTER, NgramFilter
from scanner.detection.proving import ProvedKey, Prover
from scanner.detection.rows import TextIds
from scanner.detection.rules import Rules
from scanner.detection.stated_shares import account_correction, span_correction, text_corrections
from scanner.looks.normalising import check_variants
from scanner.registry import Holders, check_secret, open_key, read_secret, tokenizer_path
from scanner.registry.shown_seeds import ShownUpTo, shown_then
from scanner.scan_plan import Plan
from scanner.text import Tokenizer, load_tokenizer
from scanner.watermark import Watermark
from scanner.watermark.format import LeavesOut, ProofPath, Proves
from scanner.watermark.formats import format_of
from schemas.registry import MasterKey

if TYPE_CHECKING:
    import torch


def check_plan(plan: Plan) -> None:
    """Refuse, before any work, everything that workers could not open. It opens no key and keeps nothing.

    Raises:
        SecretError: a secret cannot be read or is not the recorded one.
        TokenizerError: a tokenizer file cannot be read or is not the pinned one.
        Refused: the users cannot be read, or texts are to be normalised but there is no normal form.
    """
    check_variants(plan.config.variants)
    for look in (check_secrets, check_tokenizers, check_users):
        look(plan)


def check_secrets(plan: Plan) -> None:
    """Check the secrets, a part of `check_plan`.

    Raises:
        SecretError: as `check_plan`.
    """
    for key in plan.keys:
        check_secret(plan.registry, key)
    open_text_ids(plan)


def check_tokenizers(plan: Plan) -> None:
    """Check that tokenizers load, a part of `check_plan`.

    Raises:
        TokenizerError: as `check_plan`.
    """
    _load_tokenizers(plan.registry, plan.keys)


def check_users(plan: Plan) -> None:
    """Check that the users can be read, a part of `check_plan`.

    Raises:
        Refused: as `check_plan`.
    """
    Holders.load(plan.registry, [key.key_id for key in plan.keys])


def open_detector(plan: Plan, device: "torch.device | None" = None, ngram_filter: NgramFilter = NO_FILTER) -> Detector:
    """Read secrets, tokenizers and users, as every worker does for itself. Raises as `check_plan`.

    device: where all messages of a key are scored. None: on the CPU.
    ngram_filter: n-grams that are left out of scoring.
    """
    opened_keys = open_keys(plan.registry, plan.keys, _mover_to(device), shown=plan.shown)
    rules = Rules.of(plan.config, plan.keys_tested, ngram_filter)
    holders = Holders.load(plan.registry, [key.key_id for key in plan.keys])
    return Detector(opened_keys, holders, rules, open_prover(plan.registry, opened_keys, rules))


def open_text_ids(plan: Plan) -> TextIds:
    """Read the audit secret, as every worker does for itself.

    Raises:
        SecretError: it cannot be read.
    """
    return TextIds(*(read_secret(secret, plan.registry) for secret in (plan.audit_secret, plan.lasting_secret)))


def open_prover(
    registry: Path | str,
    opened_keys: Sequence[OpenedKey],
    rules: Rules,
    slow_path: Callable[[ProofPath, OpenedKey], ProofPath] | None = None,
) -> Prover:
    """Open the prover of keys' flags. It reads the secrets once more, for the slow paths.

    slow_path: turns a key's slow path into that of a look. None: the plain sum is proved.

    Raises:
        SecretError: a secret cannot be read.
    """
    keys, secret = [], b""
    for opened_key in opened_keys:
        secret = check_secret(registry, opened_key.key)
        path = _opener_of_path(opened_key, secret, slow_path)
        shares = rules.shares_of_proofs, opened_key.key, rules.keys_tested
        common = rules.ngram_filter.of(opened_key.key.tokenizer.sha256, opened_key.watermark.rule)
        keys.append(
            ProvedKey(
                path,
                opened_key.tokenizer.reference,
                opened_key.key.messages,
                corrections=text_corrections(*shares),
                correction_of_spans=span_correction(*shares),
                correction_of_accounts=account_correction(*shares),
                common=common,
            )
        )
    return Prover(keys, secret[:64], rules)


def _opener_of_path(
    opened_key: OpenedKey, secret: bytes, slow_path: Callable[[ProofPath, OpenedKey], ProofPath] | None
) -> Callable[[], ProofPath] | None:
    """Return a function that opens a key's slow path, once. None: its format has none. Its repr shows no secret."""
    how = format_of(opened_key.key)
    if not isinstance(how, Proves):
        return None

    @functools.cache
    def open_path() -> ProofPath:
        path = how.proof(secret)
        path = path.leave_out(opened_key.shown) if isinstance(path, LeavesOut) else path
        return path if slow_path is None else slow_path(path, opened_key)

    return open_path


def open_keys(
    registry: Path | str,
    keys: Sequence[MasterKey],
    to_device: Callable[[Watermark], Watermark] = stay_on_cpu,
    *,
    fast: bool = True,
    shown: Iterable[tuple[str, ShownUpTo]] = (),
) -> list[OpenedKey]:
    """Open keys with their secrets and tokenizers.

    Args:
        registry: folder or URI.
        keys: keys of the registry.
        to_device: moves a watermark to its device.
        fast: as for scanner.text.
        shown: for each key id, the last event whose shown seeds are left out. For other keys, those of all events are.

    Raises:
        SecretError, TokenizerError: a key cannot be opened.
        Refused: the shown seeds of a key cannot be read, or not up to that event.
    """
    tokenizers, then, opened_keys = _load_tokenizers(registry, keys, fast=fast), dict(shown), list[OpenedKey]()
    for key in keys:
        seeds = shown_then(registry, key, then.get(key.key_id))
        mark = to_device(open_key(registry, key, seeds))
        opened_keys.append(OpenedKey(key, mark, tokenizers[key.tokenizer.sha256], to_device, seeds.buckets))
    return opened_keys


def _load_tokenizers(registry: Path | str, keys: Sequence[MasterKey], *, fast: bool = True) -> dict[str, Tokenizer]:
    key_of_tokenizer = {key.tokenizer.sha256: key for key in reversed(keys)}
    return {
        sha256: load_tokenizer(tokenizer_path(registry, key), sha256, fast=fast)
        for sha256, key in key_of_tokenizer.items()
    }


def _mover_to(device: "torch.device | None") -> Callable[[Watermark], Watermark]:
    if device is None:
        return stay_on_cpu
    from scanner.gpu.marks import on_device

    return functools.partial(on_device, device=device)
