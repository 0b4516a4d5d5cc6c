"""List the configurations that a server may have in place of the stated one: single changes first, then pairs.

A key on record states a format, its parameters and a secret. Mistakes of servers are close to it: another γ, another
window, another function of the same secret, or only one of two keys. Every neighbour here is a known format under a
secret that is made of the stated one, so its law is known. Mistakes that need another secret are left out.

Two changes are tried as a pair if they occur together. For example, a window and a γ are copied from the same example,
or a server that is started without arguments has all defaults of its stack.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

from scanner.watermark.format import Format, HasOtherKeys, OtherKey
from scanner.watermark.formats import FORMATS, make_format
from scanner.watermark.hidden_value import HiddenValue

STATED = "as the key says"
"""Name of the stated configuration among the hypotheses."""

WINDOW_FIELDS = ("window", "context_width", "context_window", "ngram_len")
SHARE_FIELDS = ("gamma", "greenlist_ratio")
WINDOWS = (0, 1, 2, 3, 4, 5, 6, 8)
SHARES_OF_OURS = ("1/8", "1/4", "1/2", "3/4")
SHARES_OF_STACKS = (0.1, 0.25, 0.5, 0.75)
VOCABULARY_MULTIPLES = (1, 64, 128, 256)
"""Multiples to which serving stacks round up the width of a model's logits."""

FAMILIES = (
    ("greenlist", "gumbel"),
    ("greenlist-v3", "gumbel-v3", "greenlist", "gumbel"),
    ("hf-lefthash", "hf-selfhash", "sbw"),
    ("vllm-gumbel", "vllm-dual-key", "sglang-one-key"),
    ("three-bricks-openai", "three-bricks-maryland"),
    ("synthid-table", "synthid-mixed"),
)
"""Families of formats that take the same secret. The first family that has a format lists its alternatives."""


@dataclass(frozen=True)
class Hypothesis:
    """A configuration under which answers are tested.

    name: STATED, or the changes, such as `window=3`. Unique among the hypotheses of a key.
    words: the server's behaviour, as words that follow "the server". Empty for the stated configuration.
    form: its format.
    secret: its secret, made of the stated one.
    messages: M that its answers may carry.
    part: set if the configuration is a part of the stated key.
    """

    name: str
    words: str
    form: Format
    secret: HiddenValue[bytes] = field(repr=False)
    messages: int
    part: OtherKey | None = None


def hypotheses_of(form: Format, secret: bytes, messages: int, vocabulary: int) -> list[Hypothesis]:
    """Return the stated configuration, its neighbours, and pairs of changes.

    A neighbour is left out if it draws in the same way as an earlier one, or if its format refuses it.

    Args:
        form: the stated format.
        secret: the stated secret.
        messages: M of the key.
        vocabulary: number of tokens of the key's tokenizer.
    """
    # 1. one change of a parameter
    changes = dict[str, tuple[dict[str, Any], str]]()
    windows, shares = list(_windows(form)), list(_shares(form))
    for name, values, words in (*windows, *shares, *_others(form, vocabulary)):
        changes[name] = (values, words)
    # 2. pairs: a window with a share of green tokens, and all defaults of the stack
    for window, share in [(window, share) for window in windows[:3] for share in shares]:
        changes[f"{window[0]} {share[0]}"] = (window[1] | share[1], f"{window[2]}, and {share[2]}")
    defaults = {name: info.default for name, info in type(form).model_fields.items() if not info.is_required()}
    if form.version is None and defaults.keys() & {*WINDOW_FIELDS, *SHARE_FIELDS}:
        changes["defaults"] = (defaults, f"has the defaults of {form.title}, the key has others")
    found = [Hypothesis(STATED, "", form, HiddenValue(secret), messages)]
    candidates: list[tuple[str, str, str, Mapping[str, Any], HiddenValue[bytes], OtherKey | None]] = [
        (name, words, form.name, form.model_dump() | values, HiddenValue(secret), None)
        for name, (values, words) in changes.items()
    ]
    # 3. other functions of the same secret, and keys made of its parts
    candidates += [(*scheme, HiddenValue(secret), None) for scheme in _schemes(form, vocabulary)]
    if isinstance(form, HasOtherKeys):
        candidates += [
            (
                other.words,
                other.words,
                other.format.name,
                other.format.model_dump(),
                other.secret,
                None if other.share is None and other.layers is None else other,
            )
            for other in form.other_keys(secret)
        ]
    # 4. leave out those that are refused, or that draw in the same way as an earlier one
    labels = {_drawn_by(form, secret)}
    for name, words, format_name, parameters, made_secret, part in candidates:
        try:
            made = make_format(format_name, parameters)
            made.open(made_secret.value)
            own_messages = _messages_of(made, messages)
        except ValueError:
            continue
        draws = _drawn_by(made, made_secret.value)
        if draws not in labels:
            labels.add(draws)
            found.append(Hypothesis(name, words, made, made_secret, own_messages, part))
    return found


def _messages_of(form: Format, messages: int) -> int:
    """Return the number of messages of a neighbour: that of the key, or one if its marks carry no message.

    Raises:
        ValueError: it can have neither.
    """
    try:
        form.check_messages(messages)
    except ValueError:
        form.check_messages(1)
        return 1
    return messages


def _drawn_by(form: Format, secret: bytes) -> tuple[object, ...]:
    """Return a value that is equal for configurations with equal draws. It omits a width that the draws do not use."""
    window, width = getattr(form.rule(), "window", None), _value_of(form, WINDOW_FIELDS)
    parameters = form.model_dump()
    if window is not None and width is not None and form.version is None and _ignores_width(form):
        parameters = {name: value for name, value in parameters.items() if name not in WINDOW_FIELDS}
    return form.name, secret, tuple(sorted((name, str(value)) for name, value in parameters.items()))


def _ignores_width(form: Format) -> bool:
    """Return whether a wider window changes no draw, because the rule hashes the same tokens."""
    (field_name,) = [name for name in WINDOW_FIELDS if name in type(form).model_fields]
    wider = type(form).model_validate(form.model_dump() | {field_name: int(getattr(form, field_name)) + 1})
    return bool(getattr(wider.rule(), "window", None) == getattr(form.rule(), "window", None))


def _value_of(form: Format, fields: Sequence[str]) -> Any:  # noqa: ANN401 - a parameter is of any type
    return next((getattr(form, name) for name in fields if name in type(form).model_fields), None)


Change = tuple[str, dict[str, Any], str]
"""A name, the changed parameters, and the server's behaviour in words."""


def _windows(form: Format) -> Iterator[Change]:
    """Yield other windows, nearest to the stated one first."""
    for name in WINDOW_FIELDS:
        if name in type(form).model_fields:
            stated, more = int(getattr(form, name)), int(name == "ngram_len")
            for window in sorted(WINDOWS, key=partial(_apart, stated - more)):
                if window + more != stated:
                    words = f"draws by a window of {window} token{'s' * (window != 1)}, the key says {stated - more}"
                    yield f"{name}={window + more}", {name: window + more}, words


def _apart(one: int, other: int) -> int:
    return abs(one - other)


def _shares(form: Format) -> Iterator[Change]:
    """Yield other shares of green tokens."""
    for name in SHARE_FIELDS:
        if name in type(form).model_fields:
            stated = getattr(form, name)
            for share in SHARES_OF_OURS if isinstance(stated, str) else SHARES_OF_STACKS:
                if share != stated:
                    words = f"uses γ = {_real(share)}, the key says {_real(stated)}"
                    yield f"{name}={share}", {name: share}, words


def _real(share: str | float) -> str:
    """Write a share as a number. It is stated as a fraction or as a number."""
    return f"{float(Fraction(share)):g}"


def _others(form: Format, vocabulary: int) -> Iterator[Change]:
    """Yield changes of parameters that only some formats have."""
    fields = type(form).model_fields
    if "seeding" in fields:
        for seeding in fields["seeding"].annotation.__args__:  # type: ignore[union-attr]
            yield (
                f"seeding={seeding}",
                {"seeding": seeding},
                f"seeds by {seeding!r}, the key says {getattr(form, 'seeding')!r}",  # noqa: B009
            )
    if form.vocabulary() is not None:
        for multiple in VOCABULARY_MULTIPLES:
            width = -(-vocabulary // multiple) * multiple
            words = f"draws over {width:,} tokens, the key says {form.vocabulary():,}"
            yield f"vocab_size={width}", {"vocab_size": width}, words
    if "sampling_table_seed" in fields:
        words = "draws by the table of seed 0, the key has another"
        yield "sampling_table_seed=0", {"sampling_table_seed": 0}, words
    if getattr(form, "groups", None) is not None:
        yield "groups=none", {"groups": None}, "marks without groups, the key has some"


def _schemes(form: Format, vocabulary: int) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """Yield name, words, format and parameters of other functions of the same secret."""
    stated = form.model_dump()
    family = next((family for family in FAMILIES if form.name in family), ())
    window = _value_of(form, WINDOW_FIELDS)
    for name in family:
        if name == form.name or name not in FORMATS:
            continue
        entry = FORMATS[name]
        parameters = {parameter: value for parameter, value in stated.items() if parameter in entry.model_fields}
        defaults: dict[str, Any] = {"vocab_size": vocabulary}
        defaults |= dict.fromkeys(SHARE_FIELDS, "1/4" if entry.version else 0.25)
        if window is not None:
            defaults |= dict.fromkeys(WINDOW_FIELDS, window)
        if (share := _value_of(form, SHARE_FIELDS)) is not None:
            defaults |= dict.fromkeys(SHARE_FIELDS, share)
        for parameter, value in defaults.items():
            if parameter in entry.model_fields:
                parameters.setdefault(parameter, value)
        parameters.pop("seeding", None)
        words = f"marks by the format {name} ({entry.title}), the key says {form.name}"
        yield f"format={name}", words, name, parameters
