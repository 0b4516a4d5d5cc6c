"""`brickscan probe`: asks a server, and says which of its answers are marked, and if not, why not."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import click

from jobs.cli import when_interrupted
from jobs.decisions import needs_extra
from jobs.options import NamedPath, key_ids_option
from jobs.text import StepProgress, columns, complain, tell
from scanner.errors import Refused, ScanFailed
from scanner.printable import counted, printable

if TYPE_CHECKING:
    import pyarrow as pa

    from scanner.probe.config import ProbeConfig
    from scanner.probe.expected import ExpectedPage
    from scanner.probe.kept import KeptAnswers


@click.command()
@click.argument("config", required=False, type=NamedPath(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--check", "only_check", is_flag=True, help="Show what would be asked and what it would cost, without asking"
)
@click.option(
    "--answers",
    "log",
    type=NamedPath(path_type=Path, dir_okay=False, exists=True),
    help="Parquet file of answers, instead of a server: column `text`; `class`, `prompt`, `ids`, `user_id` if known",
)
@click.option("--registry", metavar="FOLDER", help="With --answers and no CONFIG: the registry (folder or URI)")
@key_ids_option
@click.option("--out", type=NamedPath(path_type=Path), help="Folder for the page  [default: as CONFIG says]")
@click.option("--texts", is_flag=True, help="One text of each class on the page")
@click.option(
    "--expect",
    type=NamedPath(path_type=Path, dir_okay=False, exists=True),
    help="Copy of an earlier probe.json; the exit code says whether everything that was marked still is",
)
def probe(
    config: Path | None,
    only_check: bool,
    log: Path | None,
    registry: str | None,
    key_ids: tuple[str, ...],
    out: Path | None,
    texts: bool,
    expect: Path | None,
) -> int:
    """Ask a server that should mark, and say which answers are marked, which are not, and why.

    CONFIG: a file such as

    \b
      version = 2
      registry = "registry"
      [server]
      url = "http://127.0.0.1:8000"
      model = "MODEL"
      token = "env:SERVER_TOKEN"   # where the server asks for one; never the token itself
      [price]                      # of a million tokens; no more than `most` is spent
      a_million_in = 0.5
      a_million_out = 1.5
      most = 2.0

    It asks in some twenty ways (temperatures, greedy, JSON, tools, streams, …), 20 answers each. Answers are tested
    under what the registry says of each key, then with one thing changed at a time: another window, γ, PRF, tokenizer,
    order of keys, …. The page in the folder `out` (probe.html, signed, and probe.json) says which of these marks, and
    for each class of request whether it is marked, how many answers a scan finds, and how many tokens that takes.

    Each answer is kept as it comes, so a probe that was killed goes on when you start it again. Once the page is
    written, the next call starts over. `brickscan schema probe` describes all fields of CONFIG.

    With --expect, the exit code is 0 where all that was marked still is; 3 where a class that was marked is not any
    more, or the server marks otherwise; 4 where a class that was marked cannot be told, since too few answers came.
    It is 1 where nothing was answered.

    \b
    Example:
      brickscan probe probe.toml --check
      brickscan probe probe.toml
      cp probe/probe.json expected.json
      brickscan probe probe.toml --expect expected.json
      brickscan probe --answers answers.parquet --registry registry --out page
    """
    if config is None and (log is None or registry is None or out is None):
        raise click.UsageError("Give a CONFIG; or give --answers with --registry and --out.")
    if config is not None and registry is not None:
        raise click.UsageError("--registry does not go with CONFIG, which names a registry.")
    with needs_extra("probe", "serve"):
        from scanner.probe.expected import read_expected
    expected = None if expect is None else read_expected(expect)
    if config is None:
        assert registry is not None  # noqa: S101
        assert out is not None  # noqa: S101
        assert log is not None  # noqa: S101
        return _judge(_read_answers(log), _Page(registry, key_ids, (), out, out / "signing", texts, expected))

    from scanner.probe.config import ProbeConfig
    from scanner.storage.locations import absolute
    from scanner.storage.toml import read_toml

    read, base = read_toml(config, ProbeConfig), config.absolute().parent
    page = _Page(
        absolute("registry", read.registry, base),
        key_ids or read.keys,
        tuple(base / path for path in read.tokenizers),
        out or base / read.out,
        base / read.signing,
        texts,
        expected,
    )
    if only_check:
        _show_plan(read, base, page)
        return 0
    return _judge(_read_answers(log), page) if log is not None else _ask_and_judge(read, base, page)


class _Page(NamedTuple):
    """The inputs of a page, and its place."""

    registry: str
    key_ids: tuple[str, ...]
    tokenizers: tuple[Path, ...]
    out: Path
    signing: Path
    texts: bool
    expected: "ExpectedPage | None"


def _show_plan(config: "ProbeConfig", base: Path, page: _Page) -> None:
    """Show the planned requests, the largest number of tokens and cost, and the kinds of requests that are left out.

    Raises SecretError: a token cannot be read, for which the probe itself would be refused.
    """
    from scanner.probe.analysis import count_hypotheses
    from scanner.probe.asking import Tokens, most_cost
    from scanner.probe.classes import classes_left_out, classes_of, requests_of

    requests, hypotheses = requests_of(config), count_hypotheses(page.registry, page.key_ids)
    of_class = Counter(request.of_class.name for request in requests)
    texts = Counter(dict.fromkeys(of_class, 0))
    for request in requests:
        texts[request.of_class.name] += request.texts
    rows = [(one.name, f"{of_class[one.name]:,}", f"{texts[one.name]:,}", one.about) for one in classes_of(config)]
    tokens_in, tokens_out = (
        sum(request.most_tokens_in for request in requests),
        sum(request.most_tokens_out for request in requests),
    )
    minutes = len(requests) / config.server.requests_a_minute
    tell(
        *columns([("class", "requests", "answers", ""), *rows]),
        f"{counted(len(requests), 'request')} for {counted(texts.total(), 'answer')}, in {minutes:.1f} minutes or more",
        f"tokens: {tokens_in:,} of prompts and {tokens_out:,} of answers at most",
        _cost_in_words(most_cost(requests, config.price), config),
        f"tested: {counted(hypotheses, 'configuration')} of the keys, on each class and on all answers",
        *(f"not asked: {line}" for line in classes_left_out(config)),
        "nothing was asked (--check)",
    )
    _tell_of_unknown_users(config, page)
    Tokens(config, base)


def _tell_of_unknown_users(config: "ProbeConfig", page: _Page) -> None:
    """Warn of users who hold no message of a key: nobody can then tell whether their answers carry the right one."""
    from scanner.probe.analysis import users_without_message

    users = [user.id for user in config.users]
    for key_id, unknown in users_without_message(page.registry, page.key_ids, users).items():
        complain(
            f"brickscan: warning: key {key_id} has no message of {', '.join(map(printable, unknown))}, so the page "
            "cannot say whether a scan would name them correctly; see `brickscan users list`"
        )


def _cost_in_words(cost: float, config: "ProbeConfig") -> str:
    if config.price is None:
        return "cost: not known, and not bounded; state it in [price]"
    most = config.price.most
    bound = "" if most is None else f"; no request is sent that could exceed {most:g}"
    return f"cost: {cost:.2f} at most, at the stated price{bound}"


def _read_answers(path: Path) -> "pa.Table":
    """Read a file of answers. Raises Refused: it cannot be read as Parquet."""
    import pyarrow as pa

    from scanner.errors import in_a_line
    from scanner.input.named_files import open_parquet

    try:
        return open_parquet(path, f"--answers {path}").read()
    except (OSError, pa.ArrowException) as error:
        raise Refused(f"--answers {path}: cannot be read as answers: {in_a_line(error)}") from None


def _ask_and_judge(config: "ProbeConfig", base: Path, page: _Page) -> int:
    """Ask the requests that have no answer yet, and write the page. Raises ScanFailed: no text came."""
    from scanner.probe.analysis import count_hypotheses
    from scanner.probe.asking import Tokens, ask
    from scanner.probe.classes import requests_of
    from scanner.probe.kept import KeptAnswers

    requests, tokens = requests_of(config), Tokens(config, base)
    if not requests:
        raise Refused("answers = 0 leaves nothing to ask; give a number, or a class that has one")
    # report faults of registry or keys before anything is paid for
    count_hypotheses(page.registry, page.key_ids)
    _tell_of_unknown_users(config, page)
    with KeptAnswers(page.out / "asking.jsonl") as kept:
        if kept.oldest is not None:
            answered, otherwise = len(requests) - len(kept.open_requests(requests)), kept.asked_otherwise(requests)
            again = f"; {otherwise:,} were asked with other settings and are asked again" if otherwise else ""
            complain(
                f"brickscan: continues with {answered:,} of {counted(len(requests), 'request')}, answered since "
                f"{kept.oldest}{again}: {printable(str(kept.path))}"
            )
        with (
            when_interrupted("probe: the answers so far are kept; the same command continues") as check,
            _Progress(check, "ask", "requests") as progress,
        ):
            asked = ask(config, requests, tokens, kept, progress)
        if asked.not_sent:
            complain(
                f"brickscan: {counted(asked.not_sent, 'request')} not sent: they could exceed `most`, and "
                f"{asked.cost:.2f} is already spent"
            )
        answers = kept.table(requests)
        _refuse_no_text(config, answers, kept)
        _write_answers(answers, page.out / "answers.parquet")
        code = _judge(answers, page)
        kept.discard()
    return code


def _refuse_no_text(config: "ProbeConfig", answers: "pa.Table", kept: "KeptAnswers") -> None:
    errors = Counter(answers["error"].drop_null().to_pylist())
    if answers["text"].null_count < len(answers):
        return
    from scanner.probe.replies import in_an_error

    kept.discard()
    why = f", most often because: {in_an_error(errors.most_common(1)[0][0])}" if errors else ""
    raise ScanFailed(f"{config.server.url}: no request got a text{why}; fix the cause and run this again")


def _write_answers(answers: "pa.Table", path: Path) -> None:
    """Write the answers to a file, so that they can be tested again (`--answers`)."""
    import pyarrow.parquet as pq

    from scanner.storage.locations import write_whole

    write_whole(path, lambda file: pq.write_table(answers, file))


def _judge(answers: "pa.Table", page: _Page) -> int:
    """Test answers, write the page, and compare it with the expected one. Return the exit code."""
    from scanner.probe.analysis import analyse
    from scanner.probe.expected import AS_EXPECTED, NOT_KNOWN, NOT_MARKED, changes
    from scanner.probe.page import in_short, write_page

    with (
        when_interrupted("probe: the answers are kept; the same command tests them again") as check,
        _Progress(check, "test", "configurations") as progress,
    ):
        result = analyse(answers, page.registry, page.key_ids, tokenizers=page.tokenizers, watch=progress)
    files = write_page(result, page.out, texts=page.texts, signing=page.signing)
    rows = [(printable(one.name), one.state, f"{one.answers:,}", f"{one.without_text:,}") for one in result.classes]
    tell(
        *in_short(result),
        *columns([("class", "says", "answers", "without a text"), *rows]),
        f"page: {', '.join(printable(str(file)) for file in files)}",
    )
    if page.expected is None:
        return AS_EXPECTED
    found = list(changes(page.expected, result))
    tell(*(f"NOT AS EXPECTED: {printable(change.sentence)}" for change in found))
    if not found:
        tell("as expected")
        return AS_EXPECTED
    return NOT_MARKED if any(change.code == NOT_MARKED for change in found) else NOT_KNOWN


class _Progress:
    """Shows how far a step of the probe is: a bar on a terminal, lines elsewhere. It is a context.

    check: called each time. Its exception ends the probe.
    step: what is done, for the lines.
    unit: what is counted, for the bar.
    """

    def __init__(self, check: Callable[[], None], step: str, unit: str) -> None:
        from tqdm import tqdm  # late: a tenth of a CPU second

        self._check, self._step = check, step
        self._steps = None if sys.stderr.isatty() else StepProgress("probe")
        self._bar: tqdm[None] = tqdm(unit=f" {unit}", dynamic_ncols=True, disable=self._steps is not None)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def __call__(self, done: int, of: int, cost: float = 0.0) -> None:
        """Show how many are done, and what they cost."""
        self._check()
        self._bar.total = of
        if cost:
            self._bar.set_postfix_str(f"cost {cost:.2f}", refresh=False)
        self._bar.update(done - self._bar.n)
        if self._steps:
            self._steps(self._step, done, of)
