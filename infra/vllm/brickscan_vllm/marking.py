"""Logits in, marked logits out, under the key that a server marks with.

The file keys.toml is read as `brickscan` reads it; the secret never leaves the worker that marks.

Logits in, marked logits out: all rows of a step at once, on the device that holds them (SPEC §2, SPEC_3 §1).

A green list adds δ to green tokens, and vLLM samples as always. Gumbel applies each row's temperature, min-p, top-k and
top-p, chooses the token, and makes all others impossible: whatever vLLM does then, this token comes out.
"""

import hashlib
import logging
import math
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from brickscan_vllm.settings import Settings
from scanner.errors import Refused, ScanFailed, SecretError, TokenizerError
from scanner.gpu.vectors import (
    GreenRule,
    PlainSeededVectors,
    PlainVectors,
    RowSampling,
    SeededVectors,
    SeedSource,
    Vectors,
    siphash,
    weights_of_rows,
)
from scanner.registry.leases import HeldLease, NoLease, take_lease
from scanner.registry.secrets import read_secret
from scanner.registry.shown_seeds import ShownSeeds, shown_since, shown_then
from scanner.storage.locations import writable_by_others
from scanner.storage.toml import read_toml
from scanner.watermark.native.secret import (
    SubKeys,
    beacon_of_digest,
    commitment,
    derive,
    derive_seed_key,
    label,
    rule_of,
    window_key,
)
from schemas.registry import MasterKey, Registry, is_reserved, parse_gamma

FORMATS = {"greenlist": 1, "gumbel": 1, "greenlist-v3": 3, "gumbel-v3": 3}
"""Formats that a server marks with, and their version of the watermark."""


@dataclass(frozen=True)
class ServedKey:
    """A label's parameters and what draws its marks, as secret as the master key; the repr hides it.

    rule: the rule of a green list; None: a Gumbel mark. source: the sub-keys of version 1, or the seeds' of version 3.
    shown: seeds that claims showed: steps that meet them are not marked (SPEC_3 §4).
    """

    label: str
    window: int
    rule: GreenRule | None
    delta: float
    source: SubKeys | SeedSource
    shown: ShownSeeds = field(default=ShownSeeds(), repr=False, compare=False)


def find_key(settings: Settings) -> MasterKey:
    """Return the registry's record of the key, checked: a server can mark with its format, and it marks now.

    Raises:
        Refused: there is no registry or no such key, others can change it, or it marks nothing now.
    """
    path = settings.registry / "keys.toml"
    open_to = writable_by_others([path])
    if open_to is not None:
        raise Refused(
            f"registry {settings.registry}: others can write {open_to} (mode "
            f"{stat.S_IMODE(open_to.stat().st_mode):04o}) and so change its keys; remove that permission (chmod o-w "
            f"{open_to})"
        )
    keys = read_toml(path, Registry).keys
    found = next((key for key in keys if key.key_id == settings.key_id), None)
    if found is None:
        known = ", ".join(key.key_id for key in keys) or "none yet"
        raise Refused(f"key {settings.key_id!r} is not in the registry {settings.registry}; its keys: {known}")
    if found.format not in FORMATS:
        raise Refused(f"key {found.key_id!r}: a server marks with {', '.join(FORMATS)}, not with {found.format!r}")
    refuse_if_it_marks_nothing(found)
    check_message(found, settings.service_message, "BRICKSCAN_SERVICE_MESSAGE")
    return found


def refuse_if_it_marks_nothing(key: MasterKey) -> None:
    """Raise Refused when nothing may be marked with a key now."""
    if key.waits_for_beacon:
        raise Refused(
            f"key {key.key_id!r} waits for the beacon that its public record names, and marks nothing until its value "
            f"is set; set it with `brickscan keys beacon {key.key_id}` once it is out"
        )
    if not key.marks(datetime.now(UTC)):
        raise Refused(
            f"key {key.key_id!r} does not mark now (from {key.active_from}, until {key.active_until}, retired at "
            f"{key.retired_at}); name an active key, or make one with `brickscan keys new`"
        )


def check_message(key: MasterKey, message: int | None, name: str) -> None:
    """Raise Refused for a message that no user of a key can have; None is allowed."""
    if message is None:
        return
    if not 0 <= message < key.messages:
        raise Refused(f"{name} = {message} is not a message of key {key.key_id!r}; allowed: 0 to {key.messages - 1}")
    if is_reserved(message):
        raise Refused(f"{name} = {message} is reserved: no user ever gets it, and a scan counts it as an error")


def open_key(settings: Settings) -> ServedKey:
    """Open the key, ready to mark: its secret is read here.

    Raises:
        Refused: as `find_key` does, R does not follow from the key's record, or what claims showed of the key cannot be
            read; SecretError: the secret cannot be read, or is not the one that was committed to.
    """
    key = find_key(settings)
    parameters, version = key.parameters, FORMATS[key.format]
    gamma = parse_gamma(str(parameters["gamma"])) if "gamma" in parameters else None
    window, groups, seeds = int(parameters["window"]), parameters.get("groups"), parameters.get("seeds")
    name = label(key.format, window, gamma, groups, seeds)
    secret = read_secret(key.secret, settings.registry)
    if commitment(secret, name, version).hex() != key.commitment:
        raise SecretError(
            f"key {key.key_id!r}: the secret at {key.secret} does not fit the recorded commitment "
            f"{str(key.commitment)[:16]}…; there is a different secret there now, or its format or parameters were "
            "edited"
        )
    source: SubKeys | SeedSource
    if seeds is None:
        source = derive(secret, name)
    else:
        seed_key = derive_seed_key(secret, name).words
        source = SeedSource(seed_key, _beacon(key), window_key(window, seeds), seeds, groups)
    shown = shown_then(settings.registry, key)
    return ServedKey(name, window, None if gamma is None else GreenRule(*rule_of(gamma)), settings.delta, source, shown)


def _beacon(key: MasterKey) -> bytes:
    """Return R of a key whose beacon is set, as it follows from its record.

    Raises:
        Refused: the registry has another R, under which no scan would find what is marked.
    """
    beacon = beacon_of_digest(bytes.fromhex(key.record or ""), bytes.fromhex(key.beacon_value or ""))
    if key.record is None or key.parameters.get("beacon") != beacon.hex():
        raise Refused(
            f"key {key.key_id!r}: its beacon does not follow from record and beacon_value; one of them was edited: "
            "restore the original"
        )
    return beacon


def check_tokenizer(key: MasterKey, file: Path | None, served: str) -> None:
    """Refuse a server whose tokenizer is not, byte for byte, the one that the key's texts are read with.

    Args:
        key: the key's record.
        file: the served model's tokenizer.json, if it was found.
        served: the tokenizer's name in the server's configuration.

    Raises:
        TokenizerError: states both hashes.
    """
    if file is None:
        raise TokenizerError(
            f"tokenizer {served!r}: no tokenizer.json was found for it on this machine, so it cannot be compared with "
            f"the tokenizer of key {key.key_id!r}; give --tokenizer a local folder that contains it"
        )
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    if sha256 != key.tokenizer.sha256:
        raise TokenizerError(
            f"tokenizer {file}: has SHA-256 {sha256}, but key {key.key_id!r} is read with the tokenizer of SHA-256 "
            f"{key.tokenizer.sha256}; make a key for this tokenizer, or serve the model with the key's"
        )


def open_marker(
    settings: Settings, device: torch.device, ranks: torch.distributed.ProcessGroup | None = None
) -> "ServedMarker":
    """Open the key, ready to mark on a device, and hold a lease of what is known of claims. Raises as `open_key`.

    ranks: as for Marker.

    Refused: the registry cannot be written.
    """
    record = find_key(settings)
    lease = take_lease(settings.registry, "server", needed=record.record is not None)
    try:
        return ServedMarker(settings, record, device, lease, ranks)
    except BaseException:
        lease.end()
        raise


LOG = logging.getLogger("vllm.brickscan")

AT_ONCE = 1 << 23
"""Logits whose weights are computed at a time: 64 MiB for each of a few copies."""

BELOW = 30.0
"""Distance below the largest logit, and δ more, at which a token is not written: e^-30 of the largest's chance."""

NEVER = 2**31 - 1
"""Number of the event of a bucket that was never shown: above all others."""

SURE = 0.999
"""Probability from which a token comes whatever is marked, as under a grammar, or a temperature near 0."""


class Marker:
    """Marks the rows of a step under one key on one device.

    Args:
        key: the key that marks.
        device: the logits' device.
        lease: of what it knows of claims; once it is over, nothing more is marked.
        ranks: the processes that a model is split over, this one among them. Each of them samples every token, and all
            have to sample the same one, though each reads of claims in its own minute. None: it is one process.
    """

    def __init__(
        self,
        key: ServedKey,
        device: torch.device,
        lease: HeldLease | NoLease | None = None,
        ranks: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        self._key, self._vectors, self._lease = key, _vectors(key, device), lease or NoLease()
        self.window, self.is_green_list = key.window, key.rule is not None
        self._device, self._ranks = device, ranks
        self._shown = self._table(key.shown), key.shown.number
        self._said = False

    def _table(self, shown: ShownSeeds) -> torch.Tensor | None:
        """Return the number of the event that showed each bucket, int32[2^n]; None: none was shown."""
        if not isinstance(self._key.source, SeedSource) or not len(shown.buckets):
            return None
        table = torch.full((1 << self._key.source.seeds,), NEVER, dtype=torch.int32)
        for event, buckets in zip(shown.events, shown.newly, strict=True):
            table[torch.from_numpy(buckets)] = event.number
        return table.to(self._device)

    def __repr__(self) -> str:
        return f"Marker({self._key.label})"

    def mark(
        self, logits: torch.Tensor, windows: torch.Tensor, messages: torch.Tensor, on: torch.Tensor, how: RowSampling
    ) -> torch.Tensor:
        """Mark the rows that are on, in place, but for those whose seed a claim showed.

        Args:
            logits: float32[R, V], written.
            windows: int64[R, h], the tokens before each row's step; any values where the row is not on.
            messages: int64[R].
            on: bool[R].
            how: sampling of each row; a green list needs none of it.

        Returns:
            bool[R]: rows in which one token is as good as sure, or that are not marked since their seed was shown, or
                the lease is over: a mark shows nothing there.
        """
        are_shown = self._are_shown(windows)
        on = on & ~are_shown
        forced = torch.empty(len(logits), dtype=torch.bool, device=logits.device)
        step = max(AT_ONCE // logits.shape[1], 1)
        for begin in range(0, len(logits), step):
            rows = slice(begin, begin + step)
            some = windows[rows].contiguous(), messages[rows].contiguous(), on[rows, None]
            if self._key.rule is not None:
                forced[rows] = self._add_delta(self._key.rule, logits[rows], *some)
            else:
                sampling = RowSampling(
                    how.temperature[rows], how.top_p[rows], how.min_p[rows], how.top_k[rows], how.cuts
                )
                forced[rows] = self._leave_one(logits[rows], *some, sampling)
        return forced | are_shown

    def _may_mark(self) -> bool:
        """Return whether the lease holds; once it does not, a line in the log says why."""
        try:
            self._lease.check()
        except (Refused, ScanFailed) as why:
            if not self._said:
                self._said = True
                LOG.error("nothing is marked until this server is restarted: %s", why)
            return False
        return True

    def _are_shown(self, windows: torch.Tensor) -> torch.Tensor:
        """Say which rows' windows, int64[R, h], meet a seed that was shown, bool[R]: all once the lease is over.

        Ranks go by the last event that all of them know. A claim waits for the last of them.
        """
        source, may_mark = self._key.source, self._may_mark()  # first: a forked process reads anew what was shown
        if not isinstance(source, SeedSource):
            return torch.zeros(len(windows), dtype=torch.bool, device=windows.device)
        table, number = self._shown
        known = self._least(number if may_mark else -1)
        if table is None:
            return torch.zeros(len(windows), dtype=torch.bool, device=windows.device) | (known < 0)
        nonces = siphash([int(word) for word in source.window_key[:2].view(np.int64)], windows)
        return (table[(nonces >> (64 - source.seeds)) & ((1 << source.seeds) - 1)] <= known) | (known < 0)

    def _least(self, event: int) -> int | torch.Tensor:
        """Return the smallest number of all ranks, on the device; without ranks, the number itself."""
        if self._ranks is None:
            return event
        least = torch.full((), event, dtype=torch.int32, device=self._device)
        torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN, self._ranks)
        return least

    def _add_delta(
        self, rule: GreenRule, logits: torch.Tensor, windows: torch.Tensor, messages: torch.Tensor, on: torch.Tensor
    ) -> torch.Tensor:
        """Add δ to the green tokens of rows that are on."""
        delta = self._key.delta
        least = logits.amax(dim=1, keepdim=True) - delta
        forced = (logits >= least + math.log1p(-SURE)).sum(dim=1) == 1
        green = self._vectors.green(windows, messages, on & (logits >= least - BELOW), rule)
        logits.add_((green & on).to(logits), alpha=delta)
        return forced

    def _leave_one(
        self, logits: torch.Tensor, windows: torch.Tensor, messages: torch.Tensor, on: torch.Tensor, how: RowSampling
    ) -> torch.Tensor:
        """Set 0 for the chosen token of each row that is on, and −∞ for all others. Other rows stay as they are."""
        weights = weights_of_rows(logits, how)
        token = self._vectors.choose(windows, messages, torch.where(on, weights, 0.0))[:, None]
        logits.masked_fill_(on, -torch.inf)
        logits.scatter_(1, token, logits.gather(1, token).masked_fill(on, 0.0))
        return weights.sum(dim=1) * SURE < 1.0  # weights are relative to the largest one


class ServedMarker(Marker):
    """A marker of a server, which reads each minute what claims showed meanwhile."""

    def __init__(
        self,
        settings: Settings,
        record: MasterKey,
        device: torch.device,
        lease: HeldLease | NoLease,
        ranks: torch.distributed.ProcessGroup | None,
    ) -> None:
        key = open_key(settings)
        super().__init__(key, device, lease, ranks)
        self._registry, self._record, self._known = settings.registry, record, key.shown.last
        lease.read({record.key_id: key.shown.number})
        lease.follow(self.read_anew)

    def read_anew(self) -> dict[str, int]:
        """Read what was shown, leave it out from now on, and return the number of the last event by the key's id.

        Raises:
            Refused: it cannot be read, or lacks what was read before.
        """
        shown = shown_since(self._registry, self._record, self._known)
        if shown.last != self._known:
            self._shown, self._known = (self._table(shown), shown.number), shown.last
        return {self._record.key_id: shown.number}


def _vectors(key: ServedKey, device: torch.device) -> PlainVectors | PlainSeededVectors | Vectors | SeededVectors:
    """Return the key's vectors: by Triton on a GPU, else by torch alone, with the same integers."""
    on_gpu = device.type == "cuda"
    if isinstance(key.source, SeedSource):
        return (SeededVectors if on_gpu else PlainSeededVectors)(key.source, device)
    return (Vectors if on_gpu else PlainVectors)(key.source.chacha, key.source.sip, device)
