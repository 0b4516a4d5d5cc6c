"""`brickscan plan` and `brickscan bench`: how many tokens a mark needs, and what a night costs."""

import importlib.util
import io
import json
import math
import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from jobs.mark import read_marked
from jobs.options import MOST_SEEDS, Folder, NamedPath, Real, Whole, groups_of
from jobs.text import complain, numbers, tell
from scanner.errors import Refused, in_a_line, install_of
from scanner.storage.locations import parse_json, read_named
from schemas.registry import MAX_WINDOW, MasterKey

if TYPE_CHECKING:
    import polars as pl

    from scanner.power import Aim, MarkAssumption
    from schemas.words import Dedup


def night_lines(figures: Path, night: float, tokens: float, users: float, flagged: float) -> Iterator[str]:
    """Lines for people: whose figures these are, and core-hours by format and stage.

    Raises:
        Refused: there are no such figures.
    """
    if not math.isfinite(night * tokens * users * flagged):
        raise Refused("--night, --tokens, --users and --flagged must be finite numbers")
    from scanner.cluster.night_price import (
        OPERATIONS_A_SECOND,
        READER_PARAMETERS,
        MeasuredCost,
        price_night,
        price_reading,
    )

    try:
        found = parse_json(read_named(figures))
        measured = [MeasuredCost(**row) for row in found["measured"]]
        age = datetime.now(UTC) - datetime.fromisoformat(found["measured_at"])
    except FileNotFoundError:
        raise Refused(f"--figures {figures}: is not there; `brickscan bench --quick` writes it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(
            f"--figures {figures}: is no file of `brickscan bench` ({in_a_line(error)}); measure again"
        ) from None
    prices = price_night(measured, night, tokens, users, flagged)
    yield (
        f"{night:,.0f} documents of {tokens:g} tokens under one key with room for {users:,.0f} users, "
        f"{flagged:.3g} of them flagged and proved"
    )
    days, hours = age.days, age.seconds // 3600
    yield f"figures: {figures}, {days} days and {hours} hours old, of brickscan {found['version']}"
    yield f"measured on: {found['machine']}; tokenizer {found['tokenizer']}"
    least, most = (round(edge(one.tokens for one in measured)) for edge in (min, max))
    if not least <= tokens <= most:
        yield f"careful: documents of {least} to {most} tokens were measured, and {tokens:g} lies outside"
    rounds = f"least to most of {prices[0].rounds} rounds"
    head = ("format", "core-hours", rounds, *prices[0].stages, "documents a core-hour")
    lines = [head]
    for price in prices:
        spent = [f"{seconds / 3600:,.1f}" for seconds in price.stages.values()]
        limits = f"{price.low / 3600:,.1f} to {price.high / 3600:,.1f}"
        rate = f"{night / (price.seconds / 3600):,.0f}"
        lines.append((price.key_format, f"{price.seconds / 3600:,.1f}", limits, *spent, rate))
    yield from numbers(lines)
    yield "GPUs: not counted, since `brickscan bench` measures cores alone"
    read, gpu_hours = price_reading(night, tokens, users, flagged)
    yield (
        f"A model of [weights_by] reads {read:,.0f} unmarked documents besides at most, and marked ones that are not "
        f"flagged: {gpu_hours:,.1f} GPU hours for each {READER_PARAMETERS:,.0f} parameters, by an estimate of "
        f"{OPERATIONS_A_SECOND:g} operations a second. `brickscan scan --check` measures it on your CPUs."
    )
    yield "Not in it: the start of workers, the driver, tries that failed, and time in which cores wait for storage."


FIGURES = Path(click.get_app_dir("brickscan")) / "bench.json"
"""File of figures, unless another one is named."""

figures_option = click.option(
    "--figures",
    type=NamedPath(path_type=Path, dir_okay=False),
    default=FIGURES,
    show_default="bench.json in brickscan's folder of the user",
    help="File of what `brickscan bench` measured.",
)


@click.command()
@click.option("--quick", is_flag=True, help="Three rounds of each figure, in place of ten.")
@click.option(
    "--users",
    type=Real(min=1),
    multiple=True,
    default=(1e9,),
    show_default=True,
    help="Users of a key; may be given several times.",
)
@click.option("--tokenizer", type=NamedPath(path_type=Path), help="A tokenizer.json.  [default: that of the demo]")
@figures_option
def bench(quick: bool, users: tuple[float, ...], tokenizer: Path | None, figures: Path) -> None:
    """Measure what a document costs on this machine: core-seconds to read, tokenise, score, prove and write.

    A worker of a scan, in this process, scans documents made of the demo's text under new keys of version 2; decoys are
    scored as in every scan. CPU seconds are counted, so that other work on the machine disturbs little. No GPU is
    measured.

    \b
    Example:
      brickscan bench --quick
      brickscan bench --quick --users 1e7 --tokenizer tokenizer.json
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from jobs.demo import HERE, TOKENIZER
    from scanner.cluster.night_price import FORMATS_WITH_GROUPS, measure

    for number in users:
        groups_of(number)
    stored = pq.read_table(HERE / "sample-1.parquet", columns=["text"])["text"].cast(pa.binary()).to_pylist()
    texts = [text.decode(errors="ignore") for text in stored if text]
    rows = []
    for row in measure(FORMATS_WITH_GROUPS, users, tokenizer or TOKENIZER, texts, 3 if quick else 10):
        rows.append(row._asdict())
        a_document = sorted(sum(cost.values()) for cost in row.rounds)
        complain(
            f"event=bench format={row.key_format} users={row.users:g} tokens={row.tokens:.0f} "
            f"documents={row.documents} us_a_document={1e6 * a_document[0]:.0f}..{1e6 * a_document[-1]:.0f}"
        )
    figures.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "version": version("brickscan"),
        "tokenizer": str(tokenizer or TOKENIZER.name),
        "measured": rows,
    }
    figures.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    tell(f"wrote {figures}")


def _machine() -> str:
    facts = {}
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        first = cpus.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
        facts = dict(line.replace("\t", "").split(":", 1) for line in first.splitlines() if ":" in line)
    name = facts.get("model name", platform.processor()).strip()
    family = f", family {facts['cpu family'].strip()}" if "cpu family" in facts else ""
    return f"{name}{family}, {len(os.sched_getaffinity(0))} cores"


_CLAIMS = (
    "Power is the chance that the right message passes in a document as a whole, as it stands; a wrong one passes as"
    " well with at most the FPR. By the plain sum alone: what weights of a model find comes on top.",
    "Tokens are taken to be independent given the above. Tokens that repeat an earlier window and token do not count:"
    " they come on top, as do edits of the text.",
)

_NO_CONFIG = (
    "no scan.toml was given, so one look is assumed, at each document as a whole, and keys of equal shares. A scan"
    " that tests normalised text, spans or accounts, or has weights, needs more tokens: name its scan.toml, or give K"
)


class PlanRow(NamedTuple):
    """One answer: tokens that must be scored, a simulation's power for that many, and an estimate beside a bound.

    kind: the answer's kind, in a word or three.
    """

    aim: "Aim"
    power: float
    scored: int
    passed: int | None
    estimate: int | None
    kind: str


@click.command("plan")
@click.argument("config", required=False, type=NamedPath(path_type=Path))
@click.option("--key", "key_id", help="With CONFIG: the key.  [default: the only one, or that of --from]")
@click.option("--method", help="What the key's method is to be: greenlist or gumbel.")
@click.option(
    "--from",
    "marked_file",
    type=NamedPath(path_type=Path),
    help="Texts of `brickscan mark`, whose strength is measured.",
)
@click.option("--registry", type=Folder(), help="With --from: folder or URI of the registry whose key marked them.")
@click.option("--window", type=Whole(0, MAX_WINDOW), default=4, show_default=True, help="h of the key.")
@click.option("--gamma", default="1/4", show_default=True, help="Share of green tokens (green list).")
@click.option("--delta", type=Real(), help="Bias of green tokens, on flat logits: the best case (green list).")
@click.option("--green-share", type=Real(), help="Share of green tokens in one's own marked texts (green list).")
@click.option("--entropy", type=Real(), help="Mean of -p ln p of the written tokens, in nats, at most 0.367 (Gumbel).")
@click.option("--probability", type=Real(), help="Probability of every written token (Gumbel).")
@click.option("--fpr", type=Real(), help="False-positive rate for a document.  [default: 1e-6]")
@click.option(
    "--messages",
    type=Whole(1),
    multiple=True,
    help="Of each key; may be given several times.  [default: 1, 1000, 100000; with --from those of its key]",
)
@click.option(
    "--users", type=Real(), help="Instead of --messages: users of a key in groups, as for `keys new`; also when named."
)
@click.option("--misnaming-rate", type=Real(), help="With --users: as in scan.toml.  [default: that of --fpr]")
@click.option("--keys", type=Real(min=1), help="K: keys that are tested, or 1 over all weights.  [default: 1]")
@click.option(
    "--power",
    "powers",
    type=Real(),
    multiple=True,
    default=(0.5, 0.9, 0.99),
    show_default=True,
    help="Chance that a marked text is found; may be given several times.",
)
@click.option("--simulate", type=Whole(0), default=2000, show_default=True, help="Texts a row; 0: none.")
@click.option("--seed", type=Whole(0, MOST_SEEDS), default=1, show_default=True)
@click.option("--plot", type=NamedPath(path_type=Path), help="PNG file to write: power against tokens.")
@click.option("--night", type=Real(min=1), help="Say what so many documents cost instead, with --users.")
@click.option("--tokens", type=Real(min=1), default=200, show_default=True, help="With --night: of a document.")
@click.option(
    "--flagged",
    type=Real(0, 1),
    default=0.1,
    show_default=True,
    help="With --night: share of the documents that is flagged, each of which is proved.",
)
@figures_option
def plan(
    config: Path | None,
    key_id: str | None,
    method: str | None,
    marked_file: Path | None,
    registry: Path | str | None,
    window: int,
    gamma: str,
    delta: float | None,
    green_share: float | None,
    entropy: float | None,
    probability: float | None,
    fpr: float | None,
    messages: tuple[int, ...],
    users: float | None,
    misnaming_rate: float | None,
    keys: float | None,
    powers: tuple[float, ...],
    simulate: int,
    seed: int,
    plot: Path | None,
    night: float | None,
    tokens: float,
    flagged: float,
    figures: Path,
) -> None:
    """Say how many tokens a marked text needs, so that it is detected with a given power.

    Measure it if you can: --from takes texts that your own model wrote (`brickscan mark`). Without such texts, give
    --delta or --green-share for the green list, --entropy or --probability for Gumbel; the answer is exact if the
    number is true. With --entropy it is the paper's bound, which asks for many times more than suffices, beside an
    estimate.

    CONFIG: the file of a scan. Then its rates and min_scored count, the messages of the key, and K: the number of keys
    and their weights, and those of the variants, spans and accounts that it tests. Without it, one look at each
    document is assumed, and --keys, --fpr and --messages.

    With --users, a key in groups as `keys new` makes it: rows `named` say how many tokens suffice, so that the text is
    found and its user is named, in text that is marked for one user alone.

    With --night, core-hours of a night of so many documents, from what `brickscan bench` measured on this machine.

    \b
    Example:
      brickscan plan scan.toml --from marked.parquet
      brickscan plan scan.toml --key spring-2026 --green-share 0.6
      brickscan plan --from marked.parquet --registry registry
      brickscan plan --method greenlist --green-share 0.6 --fpr 1e-6 --messages 100000 --plot plan.png
      brickscan plan --method gumbel --entropy 0.2
      brickscan plan --method greenlist --green-share 0.6 --users 1e9 --misnaming-rate 1e-4
      brickscan plan --night 50e6 --tokens 200 --users 1e9
    """
    if night is not None:
        if users is None or config or marked_file or method or messages:
            raise click.UsageError("--night goes with --users, and with no CONFIG, --from, --method or --messages.")
        tell(*night_lines(figures, night, tokens, users, flagged))
        return
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise Refused(f"--plot needs matplotlib; leave --plot out, or install it with {install_of('audit')}")
    if plot is not None and (plot.is_dir() or not plot.absolute().parent.is_dir()):
        raise Refused(f"--plot {plot}: is a folder, or in a folder that is not there; name a file in one that is")
    import numpy as np

    from scanner.detection.one_text import ScannedKey
    from scanner.power import Aim, NamedToo, marked_text, tokens_needed
    from scanner.watermark.formats import format_of

    scanned: ScannedKey | None = None
    if config is not None:
        if messages or any(value is not None for value in (method, registry, fpr, users, misnaming_rate, keys)):
            raise click.UsageError(
                "CONFIG says it: give no --method, --registry, --fpr, --messages, --users or --keys."
            )
        of_file = None if marked_file is None else _key_of(marked_file)[1]
        if None not in (key_id, of_file) and key_id != of_file:
            raise Refused(f"--key {key_id}: the texts of --from {marked_file} are of key {of_file}; leave --key out")
        scanned = ScannedKey.of_config(config, of_file or key_id)
        registry, fpr, keys = scanned.registry, scanned.false_positive_rate, scanned.correction
    elif key_id is not None:
        raise click.UsageError("--key goes with CONFIG.")
    fpr, keys = 1e-6 if fpr is None else fpr, 1.0 if keys is None else keys
    if not 0 < fpr < 1:
        raise Refused(f"--fpr {fpr} is not allowed; a number between 0 and 1 is needed")
    for power in powers:
        if not 0 < power < 1:
            raise Refused(f"--power {power} is not allowed; a number between 0 and 1 is needed")
    marked: MarkAssumption
    groups = _groups(users, messages, misnaming_rate)
    if marked_file is not None:
        if registry is None or method or any(v is not None for v in (delta, green_share, entropy, probability)):
            raise click.UsageError("--from goes with --registry, and with no --method or strength: it measures them.")
        marked, key, window = _measured(marked_file, registry, scanned.dedup if scanned else "ngram")
        method = key.format
        if not messages and users is None:  # the number of the key itself
            messages, groups = (key.messages,), key.parameters.get("groups")
    elif scanned is None and method is None:
        raise click.UsageError("Give CONFIG, or --method and a strength, or --from and --registry.")
    else:
        given = {"delta": delta, "green_share": green_share, "entropy": entropy, "probability": probability}
        if scanned is not None:
            method, window, of_key = format_of(scanned.key).columns()
            method = method.removesuffix("-v2")  # power is alike in both versions
            gamma, messages = of_key or gamma, (scanned.key.messages,)
            groups = scanned.key.parameters.get("groups")
        marked = marked_text(str(method), given | {"gamma": gamma})
    aims = [Aim(fpr, count, keys) for count in _counts(messages, groups)]
    generator = np.random.default_rng(seed)

    def row(aim: "Aim", power: float, marked: "MarkAssumption", kind: str | None) -> PlanRow:
        scored = max(tokens_needed(marked, aim, power), scanned.min_scored if scanned else 1)
        passed = marked.passed(scored, aim, simulate, generator) if simulate else None
        kind = kind or _kind(marked, scored, aim, of_a_mean=green_share is not None)
        return PlanRow(aim, power, scored, passed, _estimate(marked, aim, power), kind)

    rows = [row(aim, power, marked, None) for aim in aims for power in powers]
    if groups is not None:
        named = NamedToo(marked, groups, (scanned.misnaming_rate if scanned else misnaming_rate) or fpr)
        rows += [row(aims[0], power, named, "named") for power in powers]
    tested = f"K = {keys:g}" if scanned else f"{keys:g} key{'s' * (keys > 1)}"
    tell(f"{method}, h = {window}, false-positive rate {fpr:g} for a document, {tested}")
    tell(f"Looks: {scanned.looks if scanned else _NO_CONFIG}")
    tell(f"Assumes: {marked.assumes}")
    for claim in _CLAIMS:
        tell(claim)
    tell(*_table(rows, window, simulate))
    if plot is not None:
        plot.write_bytes(power_png(marked, rows, f"{method}, FPR {fpr:g}\n{marked.assumes}"))
        tell(f"wrote {plot}")


def _groups(users: float | None, messages: tuple[int, ...], misnaming_rate: float | None) -> int | None:
    if users is None and misnaming_rate is not None:
        raise click.UsageError("--misnaming-rate goes with --users.")
    if users is not None and messages:
        raise click.UsageError("Give --messages, or --users of a key in groups; one of the two.")
    if misnaming_rate is not None and not 0 < misnaming_rate < 1:
        raise Refused(f"--misnaming-rate {misnaming_rate} is not allowed; a number between 0 and 1 is needed")
    return None if users is None else groups_of(users)


def _counts(messages: tuple[int, ...], groups: int | None) -> tuple[int, ...]:
    return messages or ((1, 1000, 100_000) if groups is None else (groups**2,))


def _key_of(file: Path) -> tuple["pl.DataFrame", str]:
    """Texts that `brickscan mark` wrote, of one key, and its id."""
    texts = read_marked(file)
    ids = texts["key_id"].unique().to_list()
    if len(ids) != 1:
        raise Refused(f"--from {file}: holds texts of {len(ids)} keys; give those of one")
    return texts, str(ids[0])


def _measured(file: Path, registry: Path | str, dedup: "Dedup") -> tuple["MarkAssumption", MasterKey, int]:
    """The strength of texts that `brickscan mark` wrote, with their key and its window."""
    from scanner.detection.one_text import strengths_of
    from scanner.power import MeasuredTexts
    from scanner.registry import find_key, load_registry
    from scanner.watermark.formats import format_of

    texts, key_id = _key_of(file)
    key = find_key(load_registry(registry), key_id)
    law, strengths = strengths_of(registry, key, texts["text"].to_list(), texts["message"].to_numpy(), dedup)
    return MeasuredTexts.of(law, strengths), key, format_of(key).rule().context


def _estimate(marked: "MarkAssumption", aim: "Aim", power: float) -> int | None:
    """An estimate beside the bound: tokens that suffice if all tokens are alike, the larger for both probabilities."""
    from scanner.power import GumbelEntropy, GumbelProbability, probabilities_of, tokens_needed

    if not isinstance(marked, GumbelEntropy):
        return None
    try:
        return max(tokens_needed(GumbelProbability(p, ""), aim, power) for p in probabilities_of(marked.entropy))
    except Refused:
        return None


_KINDS = {"GumbelEntropy": "bound", "MeasuredTexts": "measured"}


def _kind(marked: "MarkAssumption", scored: int, aim: "Aim", *, of_a_mean: bool) -> str:
    """The kind of an answer. of_a_mean: the answer rests on a mean, while single tokens' chances may differ."""
    from scanner.power import GreenShare

    if of_a_mean and isinstance(marked, GreenShare):
        return "exact or more" if marked.bounds(scored, aim) else "exact if chances are alike"
    return _KINDS.get(type(marked).__name__, "exact")


def _table(rows: list[PlanRow], window: int, texts: int) -> list[str]:
    from scipy import stats  # type: ignore[import-untyped]

    head = ("messages", "power", "scored tokens", "tokens of text", "answer", "simulated power (95 % interval)")
    lines = [head]
    for row in rows:
        power = "-"
        if row.passed is not None:
            interval = stats.binomtest(row.passed, texts).proportion_ci(0.95)
            power = f"{row.passed / texts:.3f} ({interval.low:.3f} to {interval.high:.3f}), n = {texts}"
        most = "at most " if row.kind in ("bound", "named") else ""
        estimate = "" if row.estimate is None else f"; about {row.estimate:,} if all tokens are alike"
        cells = (f"{most}{row.scored:,}", f"{most}{row.scored + window:,}", f"{row.kind}{estimate}", power)
        lines.append((f"{row.aim.messages:,}", f"{row.power:g}", *cells))
    return [*numbers(lines)]


def power_png(marked: "MarkAssumption", rows: list[PlanRow], title: str) -> bytes:
    """Power against scored tokens, a curve for each number of messages, as PNG."""
    import numpy as np
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(8, 5), layout="constrained")
    ax = drawing.subplots()
    most = max(row.scored for row in rows)
    counts = np.unique(np.linspace(1, 1.3 * most, 120).astype(np.int64))
    for aim in dict.fromkeys(row.aim for row in rows):
        ax.plot(counts, marked.power(counts, aim), label=f"M = {aim.messages:,}")
    ax.set(xlabel="scored tokens", ylabel="power" if marked.exact else "power, lower bound", ylim=(0, 1))
    ax.set_title(title, fontsize=8, wrap=True)
    ax.grid(alpha=0.3)
    ax.legend()
    out = io.BytesIO()
    drawing.savefig(out, format="png", dpi=120)
    return out.getvalue()
