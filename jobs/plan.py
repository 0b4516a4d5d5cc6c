"""`brickscan plan`: how many tokens a mark needs."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from jobs.mark import read_marked
from jobs.options import MOST_SEEDS, Folder, NamedPath, Real, Whole, groups_of
from jobs.text import numbers, tell
from scanner.errors import Refused
from schemas.registry import MAX_WINDOW, MasterKey

if TYPE_CHECKING:
    import polars as pl

    from scanner.power import Aim, MarkAssumption
    from schemas.words import Dedup


_CLAIMS = (
    "Power is the chance that the right message passes in a whole document as written. A wrong message passes as well "
    "with at most the FPR. Power is that of the plain sum; weights by a model find more.",
    "Tokens are assumed to be independent given the above. Tokens that repeat an earlier window and token do not "
    "count, so a text needs more tokens to make up for repeats and for edits.",
)

_NO_CONFIG = (
    "no scan.toml was given, so one look at each whole document is assumed, and keys with equal shares. A scan that "
    "tests normalised text, spans or accounts, or has weights, needs more tokens: name its scan.toml, or give K"
)


class PlanRow(NamedTuple):
    """One answer: the tokens that must be scored, a simulation's power for so many, and an estimate beside a bound.

    kind: the kind of the answer, in one to three words.
    """

    aim: "Aim"
    power: float
    scored: int
    passed: int | None
    estimate: int | None
    kind: str


@click.command("plan")
@click.argument("config", required=False, type=NamedPath(path_type=Path))
@click.option("--key", "key_id", help="Key of CONFIG  [default: the only one, or the one of --from]")
@click.option("--method", help="Method without a key: greenlist or gumbel")
@click.option(
    "--from",
    "marked_file",
    type=NamedPath(path_type=Path),
    help="Texts of `brickscan mark`, to measure their strength",
)
@click.option("--registry", type=Folder(), help="With --from: registry with the key that marked them (folder or URI)")
@click.option("--window", type=Whole(0, MAX_WINDOW), default=4, show_default=True, help="Window of the key, in tokens")
@click.option("--gamma", default="1/4", show_default=True, help="Share of green tokens (green list)")
@click.option("--delta", type=Real(), help="Bias of green tokens on flat logits, the best case (green list)")
@click.option("--green-share", type=Real(), help="Share of green tokens in your marked texts (green list)")
@click.option("--entropy", type=Real(), help="Mean of -p ln p of the written tokens in nats, at most 0.367 (Gumbel)")
@click.option("--probability", type=Real(), help="Probability of every written token (Gumbel)")
@click.option("--fpr", type=Real(), help="False-positive rate for a document  [default: 1e-6]")
@click.option(
    "--messages",
    type=Whole(1),
    multiple=True,
    help="Messages of each key (repeatable)  [default: 1, 1000, 100000; with --from, the key's]",
)
@click.option(
    "--users", type=Real(), help="Users of a key with groups, instead of --messages; also shows when they are named"
)
@click.option("--misnaming-rate", type=Real(), help="With --users: as in scan.toml  [default: as --fpr]")
@click.option(
    "--keys", type=Real(min=1), help="Number of keys that are tested, or 1 divided by all weights  [default: 1]"
)
@click.option(
    "--power",
    "powers",
    type=Real(),
    multiple=True,
    default=(0.5, 0.9, 0.99),
    show_default=True,
    help="Chance that a marked text is found (repeatable)",
)
@click.option("--simulate", type=Whole(0), default=2000, show_default=True, help="Simulated texts per row; 0: none")
@click.option("--seed", type=Whole(0, MOST_SEEDS), default=1, show_default=True)
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
) -> None:
    """Say how many tokens a marked text needs to be found.

    The best input is text from your own model: give texts of `brickscan mark` with --from. Otherwise give --green-share
    or --delta for a green list, --entropy or --probability for Gumbel; the answer is as good as that number. --entropy
    gives the paper's bound, which asks for much more than is needed, and an estimate beside it.

    With CONFIG, the scan's rates, keys and looks count. Without it, one look at each document is assumed. With --users,
    rows `named` say how many tokens it takes to also name the user.

    \b
    Example:
      brickscan plan scan.toml --from marked.parquet
      brickscan plan scan.toml --key spring-2026 --green-share 0.6
      brickscan plan --from marked.parquet --registry registry
      brickscan plan --method greenlist --green-share 0.6 --fpr 1e-6 --messages 100000
      brickscan plan --method gumbel --entropy 0.2
      brickscan plan --method greenlist --green-share 0.6 --users 1e9 --misnaming-rate 1e-4
    """
    import numpy as np

    from scanner.detection.one_text import ScannedKey
    from scanner.power import Aim, NamedToo, marked_text, tokens_needed
    from scanner.watermark.formats import format_of

    scanned: ScannedKey | None = None
    if config is not None:
        if messages or any(value is not None for value in (method, registry, fpr, users, misnaming_rate, keys)):
            raise click.UsageError(
                "CONFIG sets these: leave out --method, --registry, --fpr, --messages, --users and --keys."
            )
        file_key = None if marked_file is None else _key_of(marked_file)[1]
        if None not in (key_id, file_key) and key_id != file_key:
            raise Refused(f"--key {key_id}: the texts of --from {marked_file} are of key {file_key}; leave --key out")
        scanned = ScannedKey.of_config(config, file_key or key_id)
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
            raise click.UsageError("--from goes with --registry, and without --method or a strength: it measures them.")
        marked, key, window = _measured(marked_file, registry, scanned.dedup if scanned else "ngram")
        method = key.format
        if not messages and users is None:  # use the number of the key itself
            messages, groups = (key.messages,), key.parameters.get("groups")
    elif scanned is None and method is None:
        raise click.UsageError("Give CONFIG, or --method and a strength, or --from and --registry.")
    else:
        given = {"delta": delta, "green_share": green_share, "entropy": entropy, "probability": probability}
        if scanned is not None:
            method = scanned.key.format.removesuffix("-v3")  # both versions have the same power
            window = format_of(scanned.key).rule().context
            gamma, messages = scanned.key.parameters.get("gamma", gamma), (scanned.key.messages,)
            groups = scanned.key.parameters.get("groups")
        marked = marked_text(str(method), given | {"gamma": gamma})
    aims = [Aim(fpr, count, keys) for count in _counts(messages, groups)]
    generator = np.random.default_rng(seed)

    def row(aim: "Aim", power: float, marked: "MarkAssumption", kind: str | None) -> PlanRow:
        scored = max(tokens_needed(marked, aim, power), scanned.min_scored if scanned else 1)
        passed = marked.passed(scored, aim, simulate, generator) if simulate else None
        kind = kind or _kind(marked, scored, aim, rests_on_mean=green_share is not None)
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


def _groups(users: float | None, messages: tuple[int, ...], misnaming_rate: float | None) -> int | None:
    if users is None and misnaming_rate is not None:
        raise click.UsageError("--misnaming-rate goes with --users.")
    if users is not None and messages:
        raise click.UsageError("Give either --messages, or --users of a key with groups.")
    if misnaming_rate is not None and not 0 < misnaming_rate < 1:
        raise Refused(f"--misnaming-rate {misnaming_rate} is not allowed; a number between 0 and 1 is needed")
    return None if users is None else groups_of(users)


def _counts(messages: tuple[int, ...], groups: int | None) -> tuple[int, ...]:
    return messages or ((1, 1000, 100_000) if groups is None else (groups**2,))


def _key_of(file: Path) -> tuple["pl.DataFrame", str]:
    """Read texts that `brickscan mark` wrote under one key. Return them with the key's id."""
    texts = read_marked(file)
    ids = texts["key_id"].unique().to_list()
    if len(ids) != 1:
        raise Refused(f"--from {file}: holds texts of {len(ids)} keys; give those of one")
    return texts, str(ids[0])


def _measured(file: Path, registry: Path | str, dedup: "Dedup") -> tuple["MarkAssumption", MasterKey, int]:
    """Measure the strength of texts that `brickscan mark` wrote. Return it with their key and its window."""
    from scanner.detection.one_text import strengths_of
    from scanner.power import MeasuredTexts
    from scanner.registry import find_key, load_registry
    from scanner.watermark.formats import format_of

    texts, key_id = _key_of(file)
    key = find_key(load_registry(registry), key_id)
    law, strengths = strengths_of(registry, key, texts["text"].to_list(), texts["message"].to_numpy(), dedup)
    return MeasuredTexts.of(law, strengths), key, format_of(key).rule().context


def _estimate(marked: "MarkAssumption", aim: "Aim", power: float) -> int | None:
    """Estimate the tokens that suffice if all tokens are alike. Of both probabilities, the larger number counts.

    It is shown beside the bound. None: the mark has no estimate.
    """
    from scanner.power import GumbelEntropy, GumbelProbability, probabilities_of, tokens_needed

    if not isinstance(marked, GumbelEntropy):
        return None
    try:
        return max(tokens_needed(GumbelProbability(p, ""), aim, power) for p in probabilities_of(marked.entropy))
    except Refused:
        return None


_KINDS = {"GumbelEntropy": "bound", "MeasuredTexts": "measured"}


def _kind(marked: "MarkAssumption", scored: int, aim: "Aim", *, rests_on_mean: bool) -> str:
    """Return the kind of an answer.

    rests_on_mean: whether it rests on a mean, although single tokens may have different probabilities.
    """
    from scanner.power import GreenShare

    if rests_on_mean and isinstance(marked, GreenShare):
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
        prefix = "at most " if row.kind in ("bound", "named") else ""
        estimate = "" if row.estimate is None else f"; about {row.estimate:,} if all tokens are alike"
        cells = (f"{prefix}{row.scored:,}", f"{prefix}{row.scored + window:,}", f"{row.kind}{estimate}", power)
        lines.append((f"{row.aim.messages:,}", f"{row.power:g}", *cells))
    return [*numbers(lines)]
