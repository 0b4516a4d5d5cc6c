"""What a token costs under each format, beside our green list in the same run: `python -m tests.bench.formats`.

One message (formats that name users: of one user), documents of 256 tokens as frequent as in text, repeats left out and
scores summed. Median, least and most of several rounds, in each of which the green list is timed again.
"""

import argparse
import secrets
import time
from typing import Any

import numpy as np

from scanner.watermark.format import DrawsKeys
from scanner.watermark.formats import FORMATS, make_format, seconds_a_token
from tests.bench import recording

VOCABULARY = 32_000
SECRET_BYTES = {"hf": 8, "sbw": 8, "synthid": 240, "three": 16}
"""Bytes of a stack's own secret, by the first word of its formats, where keys are not drawn from entropy."""

SMALL = bytes(byte & 0x7F | 1 for byte in range(256))
"""Odd bytes without their highest bit: SynthID's keys are below 2^63, and hashing keys are no multiples of 4,096."""

OURS: dict[str, Any] = {"window": 4, "gamma": "1/4"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.formats", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    recording.add_option(parser)
    options = parser.parse_args()
    rows = []
    ours = make_format("greenlist", OURS).open(bytes(range(16)))
    for name in FORMATS:
        fields = FORMATS[name].model_fields
        needed: dict[str, Any] = {"vocab_size": VOCABULARY} if "vocab_size" in fields else {}
        needed |= {"beacon": "00" * 32} if "beacon" in fields else {}
        form = make_format(
            name, dict(FORMATS[name].suggested) | needed | ({"gamma": "1/4"} if name.startswith("greenlist") else {})
        )
        entropy = secrets.token_bytes(SECRET_BYTES.get(name.split("-")[0], 32)).translate(SMALL)
        mark = form.open(form.draw_key(entropy) if isinstance(form, DrawsKeys) else entropy)
        pairs = [[seconds_a_token(of, 1, time.thread_time) for of in (mark, ours)] for _ in range(options.rounds)]
        seconds, baseline = np.array(pairs).T
        low, middle, high = np.quantile(seconds / baseline, [0.0, 0.5, 1.0])
        ns = 1e9 * np.median(seconds)
        print(f"{name:24} {ns:12,.1f} ns a token, {middle:10,.1f} times ours ({low:,.1f} to {high:,.1f})", flush=True)
        rows.append((f"`{name}`", float(ns), float(middle), float(low), float(high)))
    recording.record(
        options,
        parser.prog,
        group="Speed",
        title="Cost of one message, by format",
        sample=f"documents of 256 tokens; medians of {options.rounds} rounds, with the least and most of the ratio",
        columns=("format", "ns a token", "times `greenlist`", "least", "most"),
        rows=rows,
        mark="each format's own",
    )


if __name__ == "__main__":
    main()
