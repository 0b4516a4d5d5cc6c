"""`brickscan plan --night`: what a night would cost on machines like the one that was measured."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from scanner.errors import Refused, in_a_line
from scanner.storage.named import parse_json, read_named


def night_lines(figures: Path, night: float, tokens: float, users: float, flagged: float) -> Iterator[str]:
    """Lines for people: whose figures these are, and core-hours by format and stage.

    Raises:
        Refused: there are no such figures.
    """
    if not math.isfinite(night * tokens * users * flagged):
        raise Refused("--night, --tokens, --users and --flagged must be finite numbers")
    from scanner.cluster.night_price import price_night
    from scanner.cluster.quick import Measured

    try:
        found = parse_json(read_named(figures))
        measured = [Measured(**row) for row in found["measured"]]
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
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    yield from ("  ".join(map(str.rjust, line, widths)) for line in lines)
    yield "GPUs: unknown, since none was measured: `brickscan bench` measures cores alone"
    yield "Not in it: the start of workers, the driver, tries that failed, and time in which cores wait for storage."
