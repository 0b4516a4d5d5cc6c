"""Time goes by the length of what strangers write: patterns, parsers of text and tokenizers, at doublings of length.

What is timed is found in the tree, so a new pattern is timed without a word here: calls of `re`, patterns of pydantic
fields, and functions that need a text, a line or a value alone. Hostile inputs are runs of a pattern's characters and
of pairs of them, from its own alphabet and a fixed list, with an end that matches nothing.

CPU time of a thread is measured, the least of three, so a loaded machine slows a figure, not a ratio. From an eighth to
the full length it may grow 25 times: in proportion it grows 8 times, by the square 64 times.
"""

import ast
import contextlib
import importlib
import inspect
import itertools
import re
import time
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _constants as nodes  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]

import pytest

from scanner.errors import BrickscanError
from scanner.printable import skeleton
from tests.support.opened import demo_tokenizer
from tests.support.syntax_trees import tree_of

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.costly  # half a minute of a core
PACKAGES = ("schemas", "scanner", "jobs")
SHORT, LONG = 512, 4096
LARGEST_RATIO = 25
UNNOTICED = 0.004
"""CPU seconds at the full length which nobody judges: by the square, each step would take less than a ns."""

FIXED = "aA1 \t\n\r.,'\"<>()[]{}&;#/\\=-_:@\x00\u200b\u00a0é\u0301\u0315аα한ß日🅰"
WITHOUT_ONE = frozenset({"pattern"})
"""Names of local variables that a call of `re` takes its pattern from, each of a table of the same module."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            yield name, tree_of(path)


class Used(typing.NamedTuple):
    """A pattern, and whether it is only asked whether it matches from the beginning of a text."""

    pattern: re.Pattern
    at_the_beginning: bool


def patterns() -> dict[str, Used]:
    """Every pattern of the tree, by where it stands."""
    found = {}
    for name, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            given = next((k.value for k in node.keywords if k.arg == "pattern"), None)
            given_by_field = given is not None
            of_re = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "re"
            if given is None and not (of_re and node.func.attr not in ("escape", "purge")):
                continue
            where, module = f"{name}:{node.lineno}", importlib.import_module(name)
            given = given or node.args[0]
            flags = [a for a in node.args[1:] if ast.unparse(a).startswith("re.")]
            try:
                values = [evaluated(one, module) for one in (given, *flags)]
            except NameError:
                found.update(indirect(where, given, module, tree, node))
                continue
            found[where] = Used(re.compile(values[0], sum(values[1:])), given_by_field or only_matched(node, tree))
    return found


def only_matched(call: ast.Call, tree: ast.Module) -> bool:
    """Whether all that a module does with a pattern is to match it, by the name that it is given there."""
    method = typing.cast(ast.Attribute, call.func).attr
    names = [ast.unparse(n.targets[0]) for n in ast.walk(tree) if isinstance(n, ast.Assign) and n.value is call]
    of_name = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n.value) in names}
    return {method} <= {"match", "fullmatch"} or (bool(of_name) and of_name <= {"match", "fullmatch"})


def evaluated(node: ast.expr, module: object) -> typing.Any:
    return eval(compile(ast.Expression(node), "pattern", "eval"), vars(module))


def indirect(where: str, given: ast.expr, module: object, tree: ast.Module, call: ast.Call) -> dict[str, Used]:
    """Patterns that a function makes, by calling it; or all texts in the module's tables, where a variable has them."""
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        if call in ast.walk(function) and function.returns and "re.Pattern" in ast.unparse(function.returns):
            return {where: Used(getattr(module, function.name)(), False)}
    assert ast.unparse(given) in WITHOUT_ONE, f"{where}: no test can see this pattern; make it a constant of the module"
    tables = [value for value in vars(module).values() if isinstance(value, dict | tuple | list)]
    texts = {text for table in tables for text in texts_in(table)}
    assert texts, where
    return {f"{where} {text}": Used(re.compile(text), True) for text in texts}


def texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from texts_in((*value.keys(), *value.values()))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from texts_in(one)


def alphabet(tree: object) -> Iterator[str]:
    """A character for each literal, range and class of a parsed pattern."""
    if isinstance(tree, tuple) and len(tree) == 2 and tree[0] in (nodes.LITERAL, nodes.NOT_LITERAL):
        yield chr(tree[1])
    elif isinstance(tree, tuple) and len(tree) == 2 and tree[0] is nodes.RANGE:
        yield chr(tree[1][0])
    elif isinstance(tree, _parser.SubPattern | list | tuple):
        for one in tree:
            yield from alphabet(one)


def example(tree: object, more: int = 0) -> str:
    """A text that the beginning of a pattern matches, or nearly; with some more of what may repeat."""
    text = ""
    for kind, value in tree:  # type: ignore[attr-defined]
        if kind in (nodes.MAX_REPEAT, nodes.MIN_REPEAT, nodes.POSSESSIVE_REPEAT):
            text += example(value[2], more) * min(max(value[0], more), value[1], 40)
        elif kind is nodes.SUBPATTERN:
            text += example(value[3], more)
        elif kind is nodes.BRANCH:
            text += example(value[1][0], more)
        elif kind in (nodes.LITERAL, nodes.NOT_LITERAL, nodes.IN, nodes.ANY):
            text += next(alphabet([(kind, value)]), "a")
    return text


def runs_of(pattern: re.Pattern) -> Iterator[str]:
    """What to repeat: characters, pairs of a pattern's own ones, examples of what it matches and their beginnings."""
    flat = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = _parser.parse(flat)
    letters = [*dict.fromkeys(alphabet(tree))][:12]
    yield from dict.fromkeys([*letters, *FIXED])
    yield from map("".join, itertools.permutations([*letters[:8], " ", "a", "\n"], 2))
    for some in (example(tree), example(tree, 1), example(tree, 2)):
        yield from (some[:end] for end in (1, 2, 3, len(some) // 2, len(some)) if some[:end])


def texts_of(run: str, length: int) -> Iterator[str]:
    many = run * (length // len(run))
    yield from (many, many + "\x00", "a" + many, "AB" + many)


def seconds(call: Callable[[str], object], text: str, times: int = 3) -> float:
    taken = []
    for _ in range(times):
        begin = time.thread_time()
        with contextlib.suppress(BrickscanError, ValueError, TypeError, ArithmeticError, KeyError, RecursionError):
            call(text)
        taken.append(time.thread_time() - begin)
    return min(taken)


def too_slow(call: Callable[[str], object], run: str) -> str | None:
    """Where time grows faster than the length: which text, and the seconds at both lengths."""
    for small in (16, 20, 128):  # what doubles with each character must not get to the full length
        for text in texts_of(run, small):
            if seconds(call, text, 1) > 0.05 and seconds(call, text) > 0.05:
                return f"{text[:20]!r}… of {small}: more than 0.05 s"
    for text, short in zip(texts_of(run, LONG), texts_of(run, SHORT), strict=True):
        if seconds(call, text, 1) <= UNNOTICED or (full := seconds(call, text)) <= UNNOTICED:
            continue
        part = seconds(call, short)
        if full > LARGEST_RATIO * max(part, 1e-6):
            return f"{text[:20]!r}…: {part:.4f} s at {len(short)}, {full:.4f} s at {len(text)}"
    return None


def search(used: Used) -> Callable[[str], object]:
    """What is done with a pattern: found everywhere in a text, or matched against all of it."""
    pattern, at_the_beginning = used
    given = (lambda text: text) if isinstance(pattern.pattern, str) else str.encode
    if at_the_beginning:
        return lambda text: pattern.fullmatch(given(text))
    return lambda text: sum(1 for _ in pattern.finditer(given(text)))


def parsers() -> dict[str, Callable[[str], object]]:
    """Functions of the tree that need a text alone, by name."""
    found = {}
    for name, tree in modules():
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef) or not node.args.args:
                continue
            first, others = node.args.args[0], len(node.args.args) - 1 - len(node.args.defaults)
            kind = ast.unparse(first.annotation) if first.annotation else ""
            wanted = first.arg in ("text", "line", "value", "raw", "digits") and kind.split(" ")[0] in ("str", "bytes")
            if wanted and others <= 0 and None not in node.args.kw_defaults:
                function = getattr(importlib.import_module(name), node.name)
                found[f"{name}.{node.name}"] = as_text(inspect.unwrap(function), kind.startswith("bytes"))
    return {**found, "scanner.printable.skeleton": skeleton}


def as_text(function: Callable[..., object], binary: bool) -> Callable[[str], object]:
    def call(text: str) -> None:
        result = function(text.encode() if binary else text)
        if isinstance(result, Iterator):
            for _ in result:
                pass

    return call


def test_slow_patterns_are_noticed():
    for slow in (r"(?:^|[.!?]\s+|\n\s*)[a-z]", r"(a+)+$", r" +\n", r"<q.*?>"):
        used = Used(re.compile(slow), False)
        assert any(too_slow(search(used), run) for run in runs_of(used.pattern)), slow


def test_time_of_all_that_reads_text_goes_by_the_length():
    found = {where: (search(used), runs_of(used.pattern)) for where, used in patterns().items()}
    assert len(found) > 40
    assert any(where.startswith("scanner.text.quoting:") for where in found)
    of_parsers = [
        *FIXED,
        *map("".join, itertools.permutations("A<\n .'\u0301", 2)),
        "<blockquote>",
        "</blockquote>",
        ".\n'",
        "\u0315\u0301",
        "\u0f73",  # two marks of several classes, and no mark itself
    ]
    found |= {name: (call, iter(of_parsers)) for name, call in parsers().items()}
    assert {"scanner.looks.normalising.normalise", "scanner.printable.safe", "scanner.text.quoting.parts_of"} < {*found}
    tokenizer = demo_tokenizer()
    for name, encode in (("fast", tokenizer.encode), ("reference", tokenizer.reference.encode)):
        found[name] = (lambda text, encode=encode: encode([text])), iter([*FIXED, "ab", "a ", "\n ", "<s>"])
    slow = {where: why for where, (call, runs) in found.items() for run in runs if (why := too_slow(call, run))}
    assert not slow
