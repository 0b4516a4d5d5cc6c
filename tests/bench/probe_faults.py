"""How often planted faults are named, and faults where there is none: `python -m tests.bench.probe_faults --seeds 20`.

A server draws answers from next-token distributions of a real model (tests/probe/recorded_chances.npy) or random ones,
a key for each seed, with one fault or none. A page of the answers says what differs. Printed are, for each fault, on
how many pages it is named in the words for it, on how many pages anything else is said, and how often the limits of
the share of unmarked answers hold the truth.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from scanner.probe.analysis import KeyResult, analyse
from scanner.registry import load_registry, open_key
from scanner.watermark.format import HasOtherKeys
from scanner.watermark.formats import format_of, make_format
from tests.probe.planted import (
    GREEDY,
    PLAIN,
    RECORDED,
    VOCABULARY,
    Server,
    answers_table,
    green_server,
    gumbel_server,
    make_registry,
    mixed_server,
    prompts_of,
    secret_for,
    token_ids,
    tournament_server,
)

MESSAGE = 7
FORMS = {
    "gumbel-v3": ({"window": 4}, 32, 1000),
    "greenlist-v3": ({"window": 4, "gamma": "1/4"}, 32, 1000),
    "vllm-dual-key": ({}, 8, 1),
    "sglang-two-keys": ({}, 16, 1),
    "synthid-table": ({}, 240, 1),
}


class Bench:
    """A key, and servers near to it."""

    def __init__(
        self, folder: Path, form: str, seed: int, answers: int, length: int, recorded: np.ndarray | None
    ) -> None:
        parameters, size, messages = FORMS[form]
        self.name, self.seed, self.length, self.recorded = form, seed, length, recorded
        self.secret = secret_for(f"fault {form} {seed}", size)
        self.registry = make_registry(folder, form, self.secret, messages, **parameters)
        key = load_registry(self.registry).keys[0]
        self.mark, self.form, self.parameters = open_key(self.registry, key), format_of(key), key.parameters
        self.prompts = prompts_of(answers, seed)

    def changed(self, name: str = "", **parameters):
        return make_format(name or self.name, self.parameters | parameters).open(self.secret)

    def parts(self) -> tuple[Server, Server]:
        assert isinstance(self.form, HasOtherKeys)
        first, second = self.form.other_keys(self.secret)[:2]
        return tuple(gumbel_server(one.format.open(one.secret.value)) for one in (first, second))

    def backwards(self) -> bytes:
        return b"".join(self.secret[i : i + 8] for i in range(len(self.secret) - 8, -1, -8))

    def ids(self, server: Server, number: int = 0, *, prompt_enters: bool = True) -> np.ndarray:
        lacks_prompt = self.name.startswith("vllm")
        prompts = np.full_like(self.prompts, 2**32 - 1) if lacks_prompt else self.prompts
        seed = 10 * self.seed + number
        return token_ids(server, prompts, self.length, seed, prompt_enters=prompt_enters, recorded=self.recorded)

    def table(self, ids: np.ndarray, name: str = "sampled") -> pa.Table:
        return answers_table(ids, self.prompts, name)

    def other_tokenizer(self) -> pa.Table:
        """Answers with ids of another vocabulary."""
        ids = self.ids(gumbel_server(self.mark, MESSAGE))
        return self.table((ids + 1) % len(VOCABULARY)).append_column("ids", pa.array(ids.tolist()))

    def half(self) -> pa.Table:
        """Answers of which every second one is marked."""
        is_marked = (np.arange(len(self.prompts)) % 2 == 0)[:, None]
        return self.table(np.where(is_marked, self.ids(gumbel_server(self.mark, MESSAGE)), self.ids(PLAIN, 1)))

    def two_classes(self, server: Server) -> pa.Table:
        """Marked answers, and a class of another server."""
        marked = self.table(self.ids(gumbel_server(self.mark, MESSAGE)))
        return pa.concat_tables([marked, self.table(self.ids(server, 1), "other")])


class Fault(NamedTuple):
    """A fault.

    form: of the key.
    answers: makes them.
    words: what names it among the differences; None: nothing may differ.
    unmarked: the class that is left unmarked.
    """

    form: str
    answers: Callable[[Bench], pa.Table]
    words: str | None
    unmarked: str = ""


def gumbel(bench: Bench, **changes: object) -> pa.Table:
    return bench.table(bench.ids(gumbel_server(bench.changed(**changes), MESSAGE)))


def dual(bench: Bench, share: float) -> pa.Table:
    return bench.table(bench.ids(mixed_server(*bench.parts(), share)))


FAULTS = {
    "none (Gumbel)": Fault("gumbel-v3", gumbel, None),
    "none (green list)": Fault("greenlist-v3", lambda b: b.table(b.ids(green_server(b.mark, MESSAGE))), None),
    "none (two keys, vLLM)": Fault("vllm-dual-key", lambda b: dual(b, 0.1), None),
    "none (two keys, SGLang)": Fault("sglang-two-keys", lambda b: b.table(b.ids(gumbel_server(b.mark))), None),
    "none (layers)": Fault("synthid-table", lambda b: b.table(b.ids(tournament_server(b.mark))), None),
    "wrong γ": Fault(
        "greenlist-v3",
        lambda b: b.table(b.ids(green_server(b.changed(gamma="1/2"), MESSAGE))),
        "uses γ = 0.5, the key says 0.25",
    ),
    "wrong window": Fault("gumbel-v3", lambda b: gumbel(b, window=3), "draws by a window of 3 tokens, the key says 4"),
    "another tokenizer": Fault("gumbel-v3", Bench.other_tokenizer, "uses another tokenizer than the key's"),
    "wrong PRF": Fault(
        "gumbel-v3",
        lambda b: b.table(b.ids(green_server(b.changed("greenlist-v3", gamma="1/4"), MESSAGE))),
        "marks by the format greenlist-v3",
    ),
    "layers' keys reversed": Fault(
        "synthid-table",
        lambda b: b.table(b.ids(tournament_server(b.form.open(b.backwards())))),
        "has the layers' keys in reverse order",
    ),
    "half of the layers": Fault(
        "synthid-table",
        lambda b: b.table(b.ids(tournament_server(b.mark, layers=15))),
        "marks with the first 15 layers' keys alone",
    ),
    "one key of two": Fault("vllm-dual-key", lambda b: dual(b, 0.0), "marks with key A of the two alone"),
    "α wrong": Fault("vllm-dual-key", lambda b: dual(b, 0.5), "% of the tokens with the second key, the key says 10%"),
    "prompt left out": Fault(
        "gumbel-v3",
        lambda b: b.table(b.ids(gumbel_server(b.mark, MESSAGE), prompt_enters=False)),
        "leaves the prompt out of the contexts",
    ),
    "class unmarked, opt-out": Fault("gumbel-v3", lambda b: b.two_classes(PLAIN), None, "other"),
    "greedy": Fault("gumbel-v3", lambda b: b.two_classes(GREEDY), None, "other"),
    "replica, half of the answers": Fault("gumbel-v3", Bench.half, "marks only some answers of class sampled"),
}


def is_named(fault: Fault, key: KeyResult) -> tuple[bool, bool]:
    """Whether a page names the fault, and whether it says anything else."""
    states = {one.name: one.state for one in key.classes}
    says = [sentence for sentence in key.differences if fault.words is None or fault.words not in sentence]
    named = len(says) < len(key.differences) or fault.words is None
    expected = {name: "unmarked" if name == fault.unmarked else "marked" for name in states}
    return named and key.named is not None and (not fault.unmarked or states == expected), bool(says)


def pages(fault: Fault, seeds: int, answers: int, length: int, recorded: np.ndarray | None) -> Iterator[KeyResult]:
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder), fault.form, seed, answers, length, recorded)
            yield analyse(fault.answers(bench), bench.registry).keys[0]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.probe_faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--answers", type=int, default=24, help="of a class")
    parser.add_argument("--length", type=int, default=120, help="tokens of an answer")
    parser.add_argument("--random", action="store_true", help="random next-token distributions, not recorded ones")
    parser.add_argument("--only", choices=sorted(FAULTS), nargs="*", help="these faults alone")
    options = parser.parse_args()
    recorded = None if options.random else np.load(RECORDED)
    for name, fault in FAULTS.items():
        if options.only and name not in options.only:
            continue
        named, else_said, shares = 0, 0, list[bool]()
        for key in pages(fault, options.seeds, options.answers, options.length, recorded):
            right, other = is_named(fault, key)
            named, else_said = named + right, else_said + other
            shares += [one.unmarked.low <= 0.5 <= one.unmarked.high for one in key.classes if one.unmarked is not None]
        held = f", limits hold the truth on {sum(shares)} of {len(shares)}" if shares else ""
        print(f"{name}: named on {named} of {options.seeds} pages, else said on {else_said}{held}", flush=True)


if __name__ == "__main__":
    main()
