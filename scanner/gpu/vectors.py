"""Marking on a device: the secret vectors of a step, and Gumbel's choice of a token (SPEC §1, §2, SPEC_2 §1).

Vectors are drawn in one launch where Triton is, else in torch alone. There tensors of 32 and 64 bits stand for unsigned
integers: sums wrap, and a shift to the right clears what it copied in.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scanner.gpu.kernels import draw_entries, draws_of_runs, green_entries, green_of_runs


class GreenRule(NamedTuple):
    """The share of green tokens as kernels need it (SPEC §1).

    n, bits: γ = n / 2^bits in lowest terms.
    planes: number of planes a block carries.
    """

    n: int
    bits: int
    planes: int


def minus_ln_r(draws: torch.Tensor) -> torch.Tensor:
    """Compute −ln r of draws as marking uses it, exact near r = 1 (SPEC §2).

    It is float64 for uint32 in int32, of the same shape.
    """
    w = (draws.long() & 0xFFFFFFFF).double()
    high = -torch.log1p((w - 4294967295.5) * 2.0**-32)
    return torch.where(draws < 0, high, -torch.log((w + 0.5) * 2.0**-32))


def weights(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Compute probabilities over that of the most probable token: float64[B, V] (scanner.watermark.cut).

    Tokens that are cut have 0. Top-k comes first, then top-p: the smallest set of most probable tokens that holds at
    least top_p of what top-k left. Tokens exactly as probable as the last token kept are kept too.
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
    min_p: least share of the most probable token's probability, 0 keeps all.
    top_k: int64[B], 0 keeps all.
    cuts: whether any row has a top_k or top_p, which the host knows without asking the device.
    """

    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor
    cuts: bool


def weights_of_rows(logits: torch.Tensor, how: RowSampling) -> torch.Tensor:
    """Compute `weights` with a temperature, min-p, top-k and top-p for each row: float64[B, V]."""
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
    """Choose the token of least −ln(r)/weight of each row, ties to the smallest id: int64[B] for [B, V] both."""
    cost = torch.where(weights > 0, minus_ln_r(draws) / weights, torch.inf)
    return cost.argmin(dim=1)  # the first of equal costs


BLOCKS_AT_ONCE = 1 << 15
"""Blocks that are computed at a time: they stay in a core's cache, and outweigh the cost of a call of torch."""

_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_LOW = 0xFFFFFFFF


class PlainVectors:
    """Secret vectors of one key on one device, as scanner.gpu.vectors.Vectors. Its repr shows nothing.

    Args:
        chacha: uint32[8].
        sip: uint64[2].
        device: the device.
    """

    def __init__(self, chacha: NDArray[np.uint32], sip: NDArray[np.uint64], device: torch.device) -> None:
        self._key = torch.from_numpy(chacha.view(np.int32).copy()).to(device)
        self._sip = [int(word) for word in sip.view(np.int64)]

    def green(self, windows: torch.Tensor, messages: torch.Tensor, count: int, rule: GreenRule) -> torch.Tensor:
        """Return which of the tokens 0 … count−1 are green: int8[R, count]; arguments as for Vectors.green."""
        height = 16 // rule.planes
        blocks, offsets = self._blocks(windows, messages, count, 512 * height)
        planes = [
            blocks[q * height : (q + 1) * height].permute(1, 2, 0, 3).flatten(1)  # a word's lane is its lowest digit
            for q in range(rule.bits)
        ]
        entries = offsets[:, None] + torch.arange(count, device=windows.device)
        words = _below(planes, rule).gather(1, entries >> 5)
        return ((words >> (entries & 31).int()) & 1).to(torch.int8)

    def draws(self, windows: torch.Tensor, messages: torch.Tensor, count: int) -> torch.Tensor:
        """Return draws of the tokens 0 … count−1, uint32 in int32[R, count]; arguments as for `green`."""
        blocks, offsets = self._blocks(windows, messages, count, 256)
        entries = offsets[:, None] + torch.arange(count, device=windows.device)
        return blocks.permute(1, 2, 0, 3).flatten(1).gather(1, entries)

    def green_runs(
        self, windows: torch.Tensor, messages: torch.Tensor, groups: int | None, rule: GreenRule, wanted: torch.Tensor
    ) -> torch.Tensor:
        """Return green tokens of version 2, int8[R, V]; 0 where not wanted. Arguments as for Vectors.green_runs."""
        height = 16 // rule.planes

        def of(blocks: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
            word = (numbers >> 5) & (height - 1)
            planes = [blocks.gather(0, (q * height + word)[None])[0] for q in range(rule.bits)]
            return (_below(planes, rule) >> (numbers & 31).int()) & 1

        return self._runs(windows, messages, groups, wanted, 32 * height, of, torch.int8)

    def draw_runs(
        self, windows: torch.Tensor, messages: torch.Tensor, groups: int | None, wanted: torch.Tensor
    ) -> torch.Tensor:
        """Return draws of version 2, uint32 in int32[R, V]; 0 where they are not wanted."""

        def of(blocks: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
            return blocks.gather(0, (numbers & 15)[None])[0]

        return self._runs(windows, messages, groups, wanted, 16, of, torch.int32)

    def _blocks(
        self, windows: torch.Tensor, starts: torch.Tensor, count: int, entries_a_group: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the groups of version 1 that hold each row's run, and where in them it begins.

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

    def _runs(
        self,
        windows: torch.Tensor,
        messages: torch.Tensor,
        groups: int | None,
        wanted: torch.Tensor,
        entries_a_block: int,
        of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Read entries with `of` in each wanted token's block, some at a time; the host waits for the device."""
        nonces = siphash(self._sip, windows)
        numbers = numbers_of(nonces, messages, groups)
        out = torch.zeros(wanted.shape, dtype=dtype, device=windows.device)
        shift = entries_a_block.bit_length() - 1
        rows, tokens = wanted.nonzero(as_tuple=True)
        for begin in range(0, len(rows), BLOCKS_AT_ONCE):
            row, token = rows[begin : begin + BLOCKS_AT_ONCE], tokens[begin : begin + BLOCKS_AT_ONCE]
            number = numbers[row]
            counters = (token << (32 - shift)) | (number >> shift)
            out[row, token] = of(chacha8(self._key, counters, nonces[row]), number).to(dtype)
        return out


def numbers_of(nonces: torch.Tensor, messages: torch.Tensor, groups: int | None) -> torch.Tensor:
    """Return the number that each row's message reads at its step, int64[R] (SPEC_2 §2)."""
    if groups is None:
        return messages
    group, user = messages // groups, messages % groups
    of_group = ((((nonces >> 32) & _LOW) * 3) >> 32) == 0
    return torch.where(of_group, group, (group << 16) + user)


def _below(planes: list[torch.Tensor], rule: GreenRule) -> torch.Tensor:
    """Return bits of the entries whose digits, most significant first, make a number below n, which is odd."""
    out = ~planes[-1]
    for q in range(1, rule.bits):
        plane = ~planes[-1 - q]
        out = plane | out if (rule.n >> q) & 1 else plane & out
    return out


def chacha8(key: torch.Tensor, counters: torch.Tensor, nonces: torch.Tensor) -> torch.Tensor:
    """Compute blocks of ChaCha with 8 rounds, int32[16, N], for a key of int32[8], counters and nonces of int64[N]."""
    a = torch.tensor(_CONSTANTS, dtype=torch.int64, device=key.device).int()[:, None].repeat(1, len(counters))
    b, c = (key[at : at + 4, None].repeat(1, len(counters)) for at in (0, 4))
    d = torch.stack([counters, counters >> 32, nonces, nonces >> 32]).int()
    start = torch.cat([a, b, c, d])
    for _ in range(4):
        _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat([a, b, c, d]).add_(start)


def _quarter_rounds(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> None:
    """Run four quarter rounds side by side, one in each row of int32[4, N], in place."""
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
"""Groups of blocks that a program computes, one block a thread."""

TOKENS_A_PROGRAM = 512
"""Tokens that a program computes in version 2, four blocks a thread: they share the hash of their window."""


class Vectors:
    """Secret vectors of one key on one device. Its sub-keys are as secret as the master key; its repr shows nothing.

    Args:
        chacha: uint32[8].
        sip: uint64[2].
        device: the device.
    """

    def __init__(self, chacha: NDArray[np.uint32], sip: NDArray[np.uint64], device: torch.device) -> None:
        self._key = torch.from_numpy(chacha.view(np.int32).copy()).to(device)
        self._sip = torch.from_numpy(sip.view(np.int64).copy()).to(device)

    def green(self, windows: torch.Tensor, messages: torch.Tensor, count: int, rule: GreenRule) -> torch.Tensor:
        """Return which of the tokens 0 … count−1 are green: int8[R, count].

        Args:
            windows: int64[R, h], the tokens before the step, contiguous.
            messages: int64[R].
            count: number of tokens.
            rule: γ.
        """
        rows, device = len(windows), windows.device
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
        """Return draws of the tokens 0 … count−1, uint32 in int32[R, count]; arguments as for `green`."""
        out = torch.empty((len(windows), count), dtype=torch.int32, device=windows.device)
        draw_entries[(len(windows), _chunks(count, 256))](
            self._sip, self._key, windows, messages, out, count,
            WINDOW=windows.shape[1], GROUPS=GROUPS_A_PROGRAM, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
        return out

    def green_runs(
        self, windows: torch.Tensor, messages: torch.Tensor, groups: int | None, rule: GreenRule, wanted: torch.Tensor
    ) -> torch.Tensor:
        """Return which tokens are green in version 2: int8[R, V].

        Args:
            windows: int64[R, h], the tokens before the step, contiguous.
            messages: int64[R].
            groups: B; None: no groups.
            rule: γ.
            wanted: bool[R, V], the tokens that matter; only its shape is used here, since all are computed.
        """
        rows, count = wanted.shape
        out = torch.empty((rows, count), dtype=torch.int8, device=windows.device)
        green_of_runs[(rows, -(-count // TOKENS_A_PROGRAM))](
            self._sip, self._key, windows, messages, out, groups or 1, count,
            N=rule.n, BITS=rule.bits, PLANES=rule.planes, SHIFT=10 - rule.planes.bit_length(),
            GROUPED=groups is not None, WINDOW=windows.shape[1], AT_ONCE=TOKENS_A_PROGRAM,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        return out

    def draw_runs(
        self, windows: torch.Tensor, messages: torch.Tensor, groups: int | None, wanted: torch.Tensor
    ) -> torch.Tensor:
        """Return draws of version 2, uint32 in int32[R, V]; arguments as for `green_runs`."""
        rows, count = wanted.shape
        out = torch.empty((rows, count), dtype=torch.int32, device=windows.device)
        draws_of_runs[(rows, -(-count // TOKENS_A_PROGRAM))](
            self._sip, self._key, windows, messages, out, groups or 1, count,
            GROUPED=groups is not None, WINDOW=windows.shape[1], AT_ONCE=TOKENS_A_PROGRAM,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        return out


def _chunks(count: int, entries_a_group: int) -> int:
    """Return the number of programs a row: their groups hold any run of so many entries."""
    return -(-(count + entries_a_group - 1) // (GROUPS_A_PROGRAM * entries_a_group))
