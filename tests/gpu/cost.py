"""Costs of the kernels on a Hopper GPU, read off their machine code without a GPU: `python -m tests.gpu.cost`.

Integer logic, shifts and selections share one pipe of 64 lanes a multiprocessor and clock; additions may take another
pipe (IMAD.IADD). ChaCha and all kernels around it wait for the first pipe. The figures count the innermost loop, for
one block of the stream, without memory and barriers.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from scanner.gpu.kernels import count_runs, draw_entries, draws_of_steps, green_entries, green_of_steps, open_steps
from scanner.gpu.vectors import TOKENS_A_PROGRAM
from tests.bench.device_kernels import core

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SLOW_PIPE = {"LOP3", "SHF", "LEA", "SEL", "VIADD", "VIMNMX", "IADD3", "ISETP", "PRMT", "LOP", "I2FP", "SGXT", "FLO"}

BATCH = dict.fromkeys(("ids", "nonces", "keys", "begins", "ends", "firsts", "out"), "*i32")
ROWS = {"sip": "*i64", "key": "*i32", "windows": "*i64", "starts": "*i64"}
STEPS = {"steps": "*i32", "wanted": "*i8"}
OF_RUNS = BATCH | dict.fromkeys(("count", "blocks", "tiles"), "i32")
QUARTER = {"N": 1, "BITS": 2, "PLANES": 2}

KERNELS = {
    "core": (core, {"key": "*i32", "out": "*i32", "rounds": "i32"}, {"BLOCKS": 128}, 1),
    "rough scores": (count_runs, OF_RUNS, {"LEVELS": 12, "STEPS": 1, "BLOCKS": 128}, 1),
    "green vectors": (
        green_entries, ROWS | {"strips": "*i32", "out": "*i8", "count": "i32"},
        {**QUARTER, "WINDOW": 4, "GROUPS": 2}, 1,
    ),
    "draw vectors": (draw_entries, ROWS | {"out": "*i32", "count": "i32"}, {"WINDOW": 4, "GROUPS": 2}, 1),
    "step, version 3": (
        open_steps,
        {
            "window_key": "*i64", "secrets": "*i32", "windows": "*i64", "messages": "*i64", "steps": "*i32",
            "users": "i32",
        },
        {"SEEDS": 24, "GROUPED": True, "WINDOW": 4}, 1,
    ),
    "green vectors, version 3": (
        green_of_steps, STEPS | {"out": "*i8", "count": "i32"},
        {**QUARTER, "SHIFT": 8, "AT_ONCE": TOKENS_A_PROGRAM}, TOKENS_A_PROGRAM // 128,
    ),
    "first digits, version 3": (
        draws_of_steps, STEPS | {"out": "*i32", "count": "i32"},
        {"DIGITS": True, "WORDS": False, "AT_ONCE": TOKENS_A_PROGRAM}, TOKENS_A_PROGRAM // 128,
    ),
}  # fmt: skip
"""Kernel, types of its arguments, constants, and blocks that a thread computes in one turn of its loop."""


def cost(name: str) -> dict[str, float]:
    """Registers, bytes of stack, and instructions of the innermost loop (or of the whole) for one block."""
    kernel, types, constants, blocks = KERNELS[name]
    source = ASTSource(fn=kernel, signature={**types, **dict.fromkeys(constants, "constexpr")}, constexprs=constants)
    warps = constants.get("BLOCKS", 0) * constants.get("STEPS", 0) // 32 or constants.get("GROUPS", 8) // 2
    options = {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(compiled.asm["cubin"])
        usage, code = (
            subprocess.run([TOOLS / "cuobjdump", option, file], capture_output=True, text=True, check=True).stdout
            for option in ("-res-usage", "-sass")
        )
    counts = Counter(_loop(code))
    barriers = counts["BAR"]
    return {
        "registers": int(re.findall(r"REG:(\d+)", usage)[0]),
        "stack": int(re.findall(r"STACK:(\d+)", usage)[0]),
        "issued": sum(counts.values()) / blocks,
        "alu": sum(counts[op] for op in SLOW_PIPE) / blocks,
        "loads": counts["LDG"] / blocks,
        "stores": counts["STG"] / blocks,
        "barriers": barriers,
    }


def _loop(code: str) -> list[str]:
    """Operations of the shortest loop that computes blocks, or of all code where there is none."""
    lines = [(int(at, 16), text) for at, text in re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", code, re.MULTILINE)]
    jumps = [(int(found[1], 16), at) for at, text in lines if (found := re.search(r"BRA.*?0x([0-9a-f]+)", text))]
    bodies = [
        [re.sub(r"^@!?U?P\w+ ", "", text).split()[0].split(".")[0] for at, text in lines if begin <= at <= end]
        for begin, end in [*((begin, end) for begin, end in jumps if begin < end), (0, lines[-1][0])]
    ]
    return min((body for body in bodies if len(body) > 300), key=len)


def main() -> None:
    found = {name: cost(name) for name in KERNELS}
    if "--json" in sys.argv:
        print(json.dumps(found))
        return
    print(f"Triton {triton.__version__}, sm_90, for one block of the stream and thread")
    columns = ("registers", "stack", "issued", "alu", "loads", "stores", "barriers")
    print(f"{'kernel':26}" + "".join(f"{column:>11}" for column in columns) + f"{'core/alu':>11}")
    for name, figures in found.items():
        share = found["core"]["alu"] / figures["alu"]
        print(f"{name:26}" + "".join(f"{figures[column]:11.4g}" for column in columns) + f"{share:11.2f}")


if __name__ == "__main__":
    main()
