"""Mark on a device: draw the secret vectors of a step, and choose its token by Gumbel's rule (SPEC §1, §2, SPEC_3 §1).

Kernels draw the vectors if Triton is installed, and torch draws them otherwise. In torch, signed tensors of 32 and 64
bits represent unsigned integers: sums wrap, and after a shift to the right the copied sign bits are cleared.

In version 3, a draw under a label with groups begins with eight digits from planes, and its other 24 digits cost
another block. The first eight digits bound the token's cost from both sides. `choose` therefore completes the draws of
only a few tokens: those that no other token beats by its first eight digits. That costs one block a token.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from scanner.gpu.kernels import STEP_WORDS, draw_entries, draws_of_steps, green_entries, green_of_steps, open_steps


class GreenRule(NamedTuple):
    """The share of green tokens in the form that kernels need (SPEC §1).

    n, bits: γ = n / 2^bits in lowest terms.
    planes: number of planes in a block.
    """

    n: int
    bits: int
    planes: int


def minus_ln_r(draws: torch.Tensor) -> torch.Tensor:
    """Compute −ln r of draws, exact near r = 1 (SPEC §2).

    Takes uint32 in int32, and returns float64 of the same shape.
    """
    w = (draws.long() & 0xFFFFFFFF).double()
    high = -torch.log1p((w - 4294967295.5) * 2.0**-32)
    return torch.where(draws < 0, high, -torch.log((w + 0.5) * 2.0**-32))


def weights(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Divide each token's probability by that of the most probable token: float64[B, V] (scanner.watermark.cut).

    Tokens that are cut get 0. Top-k is applied first, then top-p: it keeps the smallest set of most probable tokens
    that has at least top_p of the probability that top-k left. Ties with the last token of the set are kept too.
    """
    as_floats = logits.float()
    w = torch.exp((as_floats - as_floats.amax(dim=1, keepdim=True)).double() / temperature)
    if 0 < top_k < w.shape[1]:
        w = w.where(w >= w.topk(top_k, dim=1).values[:, -1:], 0.0)
    if top_p < 1.0:
        ordered = w.sort(dim=1, descending=True).values
        held = ordered.cumsum(dim=1)
        last = (held < top_p * held[:, -1:]).sum(dim=1, keepdim=True)
        w = w.where(w >= ordered.gather(1, last), 0.0)
    return w


class RowSampling(NamedTuple):
    """How each row is sampled: float64[B], except for the last two fields.

    temperature: divides the logits.
    top_p: 1 keeps all tokens.
    min_p: least share of the most probable token's probability. 0 keeps all tokens.
    top_k: int64[B]. 0 keeps all tokens.
    cuts: whether any row has a top_k or top_p. The host knows this without asking the device.
    """

    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor
    cuts: bool


def weights_of_rows(logits: torch.Tensor, how: RowSampling) -> torch.Tensor:
    """Compute `weights` with a temperature, min-p, top-k and top-p of its own for each row: float64[B, V]."""
    as_floats = logits.float()
    w = torch.exp((as_floats - as_floats.amax(dim=1, keepdim=True)).double() / how.temperature[:, None])
    w = w.where(w >= how.min_p[:, None], 0.0)
    if not how.cuts:
        return w
    ordered = w.sort(dim=1, descending=True).values
    least_place = torch.where(how.top_k > 0, how.top_k, w.shape[1]).clamp(max=w.shape[1]) - 1
    of_top_k = ordered.gather(1, least_place[:, None])
    ordered = ordered.where(ordered >= of_top_k, 0.0)
    held = ordered.cumsum(dim=1)
    least_place = (held < how.top_p[:, None] * held[:, -1:]).sum(dim=1)
    of_top_p = ordered.gather(1, least_place[:, None])
    return w.where(w >= torch.where(how.top_p[:, None] < 1.0, of_top_p, of_top_k), 0.0)


def choose(draws: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Choose the token with the least −ln(r)/weight in each row, ties to the smallest id: int64[B] for [B, V] both."""
    cost = torch.where(weights > 0, minus_ln_r(draws) / weights, torch.inf)
    return cost.argmin(dim=1)  # the first of equal costs


BLOCKS_AT_ONCE = 1 << 15
"""Number of blocks computed at a time. So many fit into a core's cache, and are worth the cost of a call of torch."""

_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_LOW = 0xFFFFFFFF


class SeedSource(NamedTuple):
    """The values from which a label draws the keys of its steps (SPEC_3 §1).

    They are as secret as the master key, and the repr does not show them.

    seed_key: uint32[8].
    beacon: R, 32 bytes.
    window_key: uint64[4], public.
    seeds: n, of 2^n seeds.
    groups: B. None: no groups.
    """

    seed_key: NDArray[np.uint32]
    beacon: bytes
    window_key: NDArray[np.uint64]
    seeds: int
    groups: int | None

    def __repr__(self) -> str:
        return f"SeedSource(2^{self.seeds} seeds)"


class PlainVectors:
    """Secret vectors of one key of version 1 on one device, by torch alone. See `Vectors`. The repr shows no secret.

    Args:
        chacha: uint32[8].
        sip: uint64[2].
        device: the device.
    """

    def __init__(self, chacha: NDArray[np.uint32], sip: NDArray[np.uint64], device: torch.device) -> None:
        self._key = torch.from_numpy(chacha.view(np.int32).copy()).to(device)
        self._sip = [int(word) for word in sip.view(np.int64)]

    def green(
        self, windows: torch.Tensor, messages: torch.Tensor, wanted: torch.Tensor, rule: GreenRule
    ) -> torch.Tensor:
        """Return which tokens are green: int8[R, V]. Arguments as for Vectors.green."""
        height, count = 16 // rule.planes, wanted.shape[1]
        blocks, offsets = self._blocks(windows, messages, count, 512 * height)
        planes = [
            blocks[q * height : (q + 1) * height].permute(1, 2, 0, 3).flatten(1)  # a word's lane is its lowest digit
            for q in range(rule.bits)
        ]
        entries = offsets[:, None] + torch.arange(count, device=windows.device)
        words = _below(planes, rule).gather(1, entries >> 5)
        return ((words >> (entries & 31).int()) & 1).to(torch.int8)

    def draws(self, windows: torch.Tensor, messages: torch.Tensor, count: int) -> torch.Tensor:
        """Return draws of the tokens 0 … count−1, uint32 in int32[R, count]. Arguments as for `green`."""
        blocks, offsets = self._blocks(windows, messages, count, 256)
        entries = offsets[:, None] + torch.arange(count, device=windows.device)
        return blocks.permute(1, 2, 0, 3).flatten(1).gather(1, entries)

    def choose(self, windows: torch.Tensor, messages: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the token of each row, int64[R]. Arguments as for Vectors.choose."""
        return choose(self.draws(windows, messages, weights.shape[1]), weights)

    def _blocks(
        self, windows: torch.Tensor, starts: torch.Tensor, count: int, entries_a_group: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the groups of version 1 that contain each row's run, and the run's start within them.

        Returns:
            int32[16, R, G, 16] and int64[R].
        """
        first = starts // entries_a_group
        groups = -(-(count + entries_a_group - 1) // entries_a_group)
        lanes = torch.arange(16 * groups, device=windows.device)
        counters = 16 * first[:, None] + lanes
        nonces = siphash(self._sip, windows)[:, None].expand_as(counters)
        found = chacha8(self._key, counters.reshape(-1), nonces.reshape(-1))
        return found.view(16, len(windows), groups, 16), starts - first * entries_a_group


def _below(planes: list[torch.Tensor], rule: GreenRule) -> torch.Tensor:
    """Return which entries are below n, as bits. Digits come most significant first, and n is odd."""
    out = ~planes[-1]
    for q in range(1, rule.bits):
        plane = ~planes[-1 - q]
        out = plane | out if (rule.n >> q) & 1 else plane & out
    return out


def chacha8(key: torch.Tensor, counters: torch.Tensor, nonces: torch.Tensor) -> torch.Tensor:
    """Compute blocks of ChaCha with 8 rounds, int32[16, N], for counters and nonces of int64[N].

    key: int32[8] for all blocks, or int32[8, N] with one key for each block.
    """
    a = torch.tensor(_CONSTANTS, dtype=torch.int64, device=key.device).int()[:, None].repeat(1, len(counters))
    b, c = (key.view(8, -1)[at : at + 4].expand(4, len(counters)).clone() for at in (0, 4))
    d = torch.stack([counters, counters >> 32, nonces, nonces >> 32]).int()
    start = torch.cat([a, b, c, d])
    for _ in range(4):
        _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat([a, b, c, d]).add_(start)


def _quarter_rounds(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> None:
    """Run four quarter rounds side by side and in place, one for each row of int32[4, N]."""
    for by_d, by_b in ((16, 12), (8, 7)):
        a.add_(b)
        _rotate(d.bitwise_xor_(a), by_d)
        c.add_(d)
        _rotate(b.bitwise_xor_(c), by_b)


def _rotate(words: torch.Tensor, by: int) -> None:
    high = words << by
    words.bitwise_right_shift_(32 - by).bitwise_and_((1 << by) - 1).bitwise_or_(high)


def siphash(key: list[int], windows: torch.Tensor) -> torch.Tensor:
    """Compute SipHash-2-4 of each row of tokens, 4 little-endian bytes each: uint64 in int64[R] for int64[R, h]."""
    rows, width = windows.shape
    k0, k1 = (torch.full((rows,), word, dtype=torch.int64, device=windows.device) for word in key)
    a, b = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D
    c, d = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573
    for pair in range(width // 2 + 1):
        word = torch.zeros_like(k0)
        for half, at in enumerate(range(2 * pair, min(2 * pair + 2, width))):
            word |= (windows[:, at] & _LOW) << (32 * half)
        if pair == width // 2:
            word |= (4 * width) << 56  # the length in bytes, in the top byte of the last word
        d = d ^ word
        for _ in range(2):
            a, b, c, d = _sip_round(a, b, c, d)
        a = a ^ word
    c = c ^ 0xFF
    for _ in range(4):
        a, b, c, d = _sip_round(a, b, c, d)
    return a ^ b ^ c ^ d


def _sip_round(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    a, c = a + b, c + d
    b, d = _rotate64(b, 13) ^ a, _rotate64(d, 16) ^ c
    a, c = _rotate64(a, 32) + d, c + b
    d, b = _rotate64(d, 21) ^ a, _rotate64(b, 17) ^ c
    return a, b, _rotate64(c, 32), d


def _rotate64(words: torch.Tensor, by: int) -> torch.Tensor:
    return (words << by) | ((words >> (64 - by)) & ((1 << by) - 1))


GROUPS_A_PROGRAM = 2
"""Number of groups of blocks that a program computes, one block a thread."""

TOKENS_A_PROGRAM = 512
"""Number of tokens that a program computes in version 3, four blocks a thread."""


class Vectors:
    """Secret vectors of one key of version 1 on one device. Its sub-keys are as secret as the master key.

    The repr shows no secret.

    Args:
        chacha: uint32[8].
        sip: uint64[2].
        device: the device.
    """

    def __init__(self, chacha: NDArray[np.uint32], sip: NDArray[np.uint64], device: torch.device) -> None:
        self._key = torch.from_numpy(chacha.view(np.int32).copy()).to(device)
        self._sip = torch.from_numpy(sip.view(np.int64).copy()).to(device)

    def green(
        self, windows: torch.Tensor, messages: torch.Tensor, wanted: torch.Tensor, rule: GreenRule
    ) -> torch.Tensor:
        """Return which tokens are green: int8[R, V].

        Args:
            windows: int64[R, h], the tokens before the step, contiguous.
            messages: int64[R].
            wanted: bool[R, V], the tokens that matter. Only its shape is used here, because all tokens are
                computed.
            rule: γ.
        """
        (rows, count), device = wanted.shape, windows.device
        chunks = _chunks(count, 8192 // rule.planes)
        out = torch.empty((rows, count), dtype=torch.int8, device=device)
        strips = torch.empty(rows * chunks * GROUPS_A_PROGRAM * (256 // rule.planes), dtype=torch.int32, device=device)
        green_entries[(rows, chunks)](
            self._sip, self._key, windows, messages, strips, out, count,
            N=rule.n, BITS=rule.bits, PLANES=rule.planes, WINDOW=windows.shape[1], GROUPS=GROUPS_A_PROGRAM,
            num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
        return out

    def draws(self, windows: torch.Tensor, messages: torch.Tensor, count: int) -> torch.Tensor:
        """Return draws of the tokens 0 … count−1, uint32 in int32[R, count]. Arguments as for `green`."""
        out = torch.empty((len(windows), count), dtype=torch.int32, device=windows.device)
        draw_entries[(len(windows), _chunks(count, 256))](
            self._sip, self._key, windows, messages, out, count,
            WINDOW=windows.shape[1], GROUPS=GROUPS_A_PROGRAM, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
        return out

    def choose(self, windows: torch.Tensor, messages: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the token with the least −ln(r)/weight in each row, ties to the smallest id: int64[R].

        Args:
            windows: int64[R, h], the tokens before the step, contiguous.
            messages: int64[R].
            weights: float64[R, V], 0 for tokens that cannot be written. A row of zeros gets any token.
        """
        return choose(self.draws(windows, messages, weights.shape[1]), weights)


def _chunks(count: int, entries_a_group: int) -> int:
    """Return the number of programs for a row, so that their groups contain any run of `count` entries."""
    return -(-(count + entries_a_group - 1) // (GROUPS_A_PROGRAM * entries_a_group))


Opened = TypeVar("Opened")
"""State that a device keeps for opened steps."""

_ROOM = 1e-9
"""Margin of costs, as a share. It exceeds the rounding of logarithms, so rounding never decides a comparison."""


class _SeededVectors(ABC, Generic[Opened]):
    """Secret vectors of one key of version 3 on one device. The repr shows no secret.

    Args:
        source: source of the steps' keys.
        device: the device.
    """

    def __init__(self, source: SeedSource, device: torch.device) -> None:
        self._source = source
        edges = torch.arange(256) << 24
        least, most = (minus_ln_r((edges + more).int()).to(device) for more in (0xFFFFFF, 0))
        self._least_cost, self._most_cost = least, most

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source})"

    @abstractmethod
    def _open(self, windows: torch.Tensor, messages: torch.Tensor) -> Opened:
        """Open the steps after windows, int64[R, h], with the numbers that messages, int64[R], read in them."""

    @abstractmethod
    def _green(self, steps: Opened, wanted: torch.Tensor, rule: GreenRule) -> torch.Tensor:
        """Return which of the wanted tokens are green: int8[R, V] for bool[R, V], 0 for other tokens."""

    @abstractmethod
    def _draws(self, steps: Opened, wanted: torch.Tensor, digits: bool, words: bool) -> torch.Tensor:
        """Return draws of wanted tokens, uint32 in int32[R, V], 0 for other tokens.

        digits: whether draws begin with eight digits from planes.
        words: whether draws also have digits from a word. Digits that are left out are 0.
        """

    def green(
        self, windows: torch.Tensor, messages: torch.Tensor, wanted: torch.Tensor, rule: GreenRule
    ) -> torch.Tensor:
        """Return which tokens are green: int8[R, V], 0 for tokens that are not wanted.

        Arguments as for Vectors.green.
        """
        return self._green(self._open(windows, messages), wanted, rule)

    def draws(self, windows: torch.Tensor, messages: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return draws, uint32 in int32[R, V], 0 for tokens that are not wanted. Arguments as for `green`."""
        return self._draws(self._open(windows, messages), wanted, self._source.groups is not None, True)

    def choose(self, windows: torch.Tensor, messages: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the token of each row, int64[R]. Arguments as for Vectors.choose."""
        steps, can_win = self._open(windows, messages), weights > 0
        if self._source.groups is None:
            return choose(self._draws(steps, can_win, False, True), weights)
        digits = (self._draws(steps, can_win, True, False).long() >> 24) & 255
        least, most = (
            torch.where(can_win, cost[digits] / weights, torch.inf) for cost in (self._least_cost, self._most_cost)
        )
        can_win &= least <= most.amin(dim=1, keepdim=True) * (1.0 + _ROOM)
        return choose(self._draws(steps, can_win, True, True), torch.where(can_win, weights, 0.0))


class PlainSteps(NamedTuple):
    """Steps in torch. Their keys are secret, and the repr shows none.

    keys: int32[8, R].
    nonces: uint64 in int64[R].
    numbers: int64[R], the numbers that messages read in the steps.
    """

    keys: torch.Tensor
    nonces: torch.Tensor
    numbers: torch.Tensor

    def __repr__(self) -> str:
        return f"{len(self.numbers)} steps"


_ROUGH = -(2**63)
"""2^63 in int64. Counters with this offset are those of the eight planes."""


class PlainSeededVectors(_SeededVectors[PlainSteps]):
    """Secret vectors of version 3 in torch alone. The host waits for the device. Arguments as for SeededVectors."""

    def __init__(self, source: SeedSource, device: torch.device) -> None:
        super().__init__(source, device)
        words = np.stack([source.seed_key, np.frombuffer(source.beacon, "<u4")]).astype(np.uint32).view(np.int32)
        self._seed_key, self._beacon = torch.from_numpy(words).to(device)
        window_key = [int(word) for word in source.window_key.view(np.int64)]
        self._window_keys = window_key[:2], window_key[2:]

    def _open(self, windows: torch.Tensor, messages: torch.Tensor) -> PlainSteps:
        nonces, seconds = (siphash(key, windows) for key in self._window_keys)
        seeds, groups = self._source.seeds, self._source.groups
        buckets = (nonces >> (64 - seeds)) & ((1 << seeds) - 1)
        keys = chacha8(self._seed_key, torch.zeros_like(buckets), buckets)[:8] ^ self._beacon[:, None]
        keys[0] ^= seconds.int()
        keys[1] ^= (seconds >> 32).int()
        if groups is None:
            return PlainSteps(keys, nonces, messages)
        group, user = messages // groups, messages % groups
        is_shared = ((keys[7].long() & _LOW) * 3) >> 32 == 0
        return PlainSteps(keys, nonces, torch.where(is_shared, group, (group << 16) + user))

    def _green(self, steps: PlainSteps, wanted: torch.Tensor, rule: GreenRule) -> torch.Tensor:
        height = 16 // rule.planes

        def read(blocks: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
            word = (numbers >> 5) & (height - 1)
            planes = [blocks.gather(0, (q * height + word)[None])[0] for q in range(rule.bits)]
            return (_below(planes, rule) >> (numbers & 31).int()) & 1

        return self._read(steps, wanted, 32 * height, 0, read).to(torch.int8)

    def _draws(self, steps: PlainSteps, wanted: torch.Tensor, digits: bool, words: bool) -> torch.Tensor:
        def read_word(blocks: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
            return blocks.gather(0, (numbers & 15)[None])[0]

        def read_digits(blocks: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
            word, bit = (numbers >> 5) & 1, (numbers & 31).int()
            planes = [blocks.gather(0, (2 * q + word)[None])[0] for q in range(8)]
            return torch.stack([((plane >> bit) & 1) << (31 - q) for q, plane in enumerate(planes)]).sum(0).int()

        if not digits:
            return self._read(steps, wanted, 16, 0, read_word)
        first = self._read(steps, wanted, 64, _ROUGH, read_digits)
        return first | ((self._read(steps, wanted, 16, 0, read_word) >> 8) & 0xFFFFFF) if words else first

    def _read(
        self,
        steps: PlainSteps,
        wanted: torch.Tensor,
        per_block: int,
        added: int,
        read: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Read entries with `read` in each wanted token's block, some blocks at a time: int32[R, V].

        Args:
            steps: R steps.
            wanted: bool[R, V].
            per_block: number of entries of a block.
            added: offset of the counters.
            read: returns the entries of a block, int32[16, N], for numbers, int64[N].
        """
        out = torch.zeros(wanted.shape, dtype=torch.int32, device=wanted.device)
        shift = per_block.bit_length() - 1
        rows, tokens = wanted.nonzero(as_tuple=True)
        for begin in range(0, len(rows), BLOCKS_AT_ONCE):
            row, token = rows[begin : begin + BLOCKS_AT_ONCE], tokens[begin : begin + BLOCKS_AT_ONCE]
            number = steps.numbers[row]
            counters = (token << (32 - shift)) | (number >> shift) | added
            out[row, token] = read(chacha8(steps.keys[:, row], counters, steps.nonces[row]), number)
        return out


class SeededVectors(_SeededVectors[torch.Tensor]):
    """Secret vectors of one key of version 3 on one device, by Triton. The repr shows no secret.

    Args:
        source: source of the steps' keys.
        device: the device.
    """

    def __init__(self, source: SeedSource, device: torch.device) -> None:
        super().__init__(source, device)
        words = np.concatenate([source.seed_key, np.frombuffer(source.beacon, "<u4")]).astype(np.uint32)
        self._secrets = torch.from_numpy(words.view(np.int32)).to(device)
        self._window_key = torch.from_numpy(source.window_key.view(np.int64).copy()).to(device)

    def _open(self, windows: torch.Tensor, messages: torch.Tensor) -> torch.Tensor:
        """Return steps in the layout of `kernels.open_steps`: int32[R, STEP_WORDS]."""
        groups = self._source.groups
        steps = torch.empty((len(windows), STEP_WORDS.value), dtype=torch.int32, device=windows.device)
        open_steps[(len(windows),)](
            self._window_key, self._secrets, windows, messages, steps, groups or 1,
            SEEDS=self._source.seeds, GROUPED=groups is not None, WINDOW=windows.shape[1], num_warps=1,
        )  # fmt: skip
        return steps

    def _green(self, steps: torch.Tensor, wanted: torch.Tensor, rule: GreenRule) -> torch.Tensor:
        rows, count = wanted.shape
        out = torch.empty((rows, count), dtype=torch.int8, device=wanted.device)
        green_of_steps[(rows, -(-count // TOKENS_A_PROGRAM))](
            steps, wanted.contiguous().view(torch.int8), out, count,
            N=rule.n, BITS=rule.bits, PLANES=rule.planes, SHIFT=10 - rule.planes.bit_length(),
            AT_ONCE=TOKENS_A_PROGRAM, num_warps=4,
        )  # fmt: skip
        return out

    def _draws(self, steps: torch.Tensor, wanted: torch.Tensor, digits: bool, words: bool) -> torch.Tensor:
        rows, count = wanted.shape
        out = torch.empty((rows, count), dtype=torch.int32, device=wanted.device)
        draws_of_steps[(rows, -(-count // TOKENS_A_PROGRAM))](
            steps, wanted.contiguous().view(torch.int8), out, count,
            DIGITS=digits, WORDS=words, AT_ONCE=TOKENS_A_PROGRAM, num_warps=4,
        )  # fmt: skip
        return out
