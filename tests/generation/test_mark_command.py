"""`brickscan mark`: the truth it writes, and what it refuses before any work."""

import re
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from jobs.cli import brickscan, run
from jobs.mark import MARKED_COLUMNS, kept_rows, mark
from jobs.text import MarkProgress
from scanner.detection.one_text import TextCheck, check_text
from scanner.errors import Refused
from scanner.generation import LocalModel
from scanner.registry import add_users, list_users, load_registry, new_key, open_key, remove_users, retire_key
from scanner.watermark import batch_tokens, scored_positions
from tests.fixed import fix_secrets

USERS = ["ada", "bob", "cy"]


@pytest.fixture
def registry(tmp_path: Path, tiny_folder: Path) -> Path:
    folder = tmp_path / "registry"
    fix_secrets(folder, "green", "gum")
    for key_id, method, gamma in (("green", "greenlist", "1/4"), ("gum", "gumbel", None)):
        new_key(
            folder,
            key_id,
            format=method,
            window=2,
            **({} if gamma is None else {"gamma": gamma}),
            messages=1000,
            tokenizer=tiny_folder / "tokenizer.json",
        )
    add_users(folder, None, USERS)
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("w3 w4 w5\n\nw6 w7\nw8 w8\nw9 w10\nw11 w12 w13 w14\n")
    return path


def call(registry: Path, model: Path, prompts: Path, out: Path, *more: str) -> str:
    """Output of the command; raises `Refused` where the command refuses."""
    arguments = ["--registry", registry, "--model", model, "--prompts", prompts, "--out", out, *more]
    found = CliRunner().invoke(mark, [str(argument) for argument in arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.parametrize("key_id", ["green", "gum"])
def test_texts_are_marked_for_users_in_turn(
    key_id: str, registry: Path, tiny_folder: Path, tiny: LocalModel, prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "marked.parquet"
    turns = ["--user", "cy", "--user", "ada"]
    output = call(
        registry, tiny_folder, prompts, out, "--key", key_id, *turns, "--max-new-tokens", "150", "--batch-size", "2"
    )
    assert f"5 completions marked with {key_id}" in output
    assert f"prompts {prompts}: 1 of 6 left out, blank lines (counted from 1): 2\n" in output
    assert pq.read_schema(out).equals(MARKED_COLUMNS)
    rows = pl.read_parquet(out)
    assert rows["user_id"].to_list() == ["cy", "ada", "cy", "ada", "cy"]
    assert rows["prompt"].to_list() == ["w3 w4 w5", "w6 w7", "w8 w8", "w9 w10", "w11 w12 w13 w14"]
    message_of = dict(list_users(registry, [key_id]).select("user_id", "message").iter_rows())
    assert rows["message"].to_list() == [message_of[user] for user in rows["user_id"]]

    tokens = batch_tokens([tiny.tokenizer.encode(text, add_special_tokens=False).ids for text in rows["text"]])
    assert rows["tokens"].to_list() == [150] * 5
    assert (np.diff(tokens.offsets) > 100).all()  # control tokens that the model wrote are not in the text
    (key,) = (key for key in load_registry(registry).keys if key.key_id == key_id)
    watermark = open_key(registry, key)
    best = watermark.best_two(tokens, scored_positions(tokens, 2, "ngram"), key.messages)
    assert best.message.tolist() == rows["message"].to_list()


@pytest.mark.parametrize(("key_id", "strength"), [("green", "green share"), ("gum", "probability, entropy")])
def test_every_completion_is_read_back(
    key_id: str, strength: str, registry: Path, tiny_folder: Path, prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "marked.parquet"
    told = call(
        registry, tiny_folder, prompts, out, "--key", key_id, "--user", "ada", "--max-new-tokens", "150", "--verify"
    ).splitlines()
    head, *lines, foot, _ = told[-8:]
    assert re.split(r"  +", head) == ["row", "marked for", "scored tokens", strength, "log10 p", "expected power"]
    cells = [re.split(r"  +", line) for line in lines]
    assert [(row[0], row[1]) for row in cells] == [(str(i), "ada") for i in range(5)]
    rows = pl.read_parquet(out)
    for row, text, message in zip(cells, rows["text"], rows["message"], strict=True):
        (verdict,) = check_text(TextCheck.of_registry(registry, [key_id], 1e-6), text.encode())
        assert (verdict["message"], int(row[2])) == (message, verdict["scored"])
        assert float(row[4]) == pytest.approx(verdict["log10_p_global"], abs=0.051)
        if key_id == "green":
            assert float(row[3]) == pytest.approx(verdict["score"] / verdict["scored"], abs=6e-4)
        assert 0.9 < float(row[5]) <= 1.0  # a model of much entropy
    assert "corrected for 1,000 messages of 2 keys" in foot
    short = call(
        registry, tiny_folder, prompts, tmp_path / "s.parquet", "--key", key_id, "--user", "ada", "--max-new-tokens",
        "5", "--verify",
    )  # fmt: skip
    assert "too short to be read back" in short


def test_parquet_prompts_and_messages(registry: Path, tiny_folder: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.parquet", tmp_path / "marked.parquet"
    pq.write_table(pa.table({"prompt": ["w3\nw4", None, "w5 w6"] + [" \t"] * 10, "other": range(13)}), prompts)
    message = list_users(registry, ["gum"])["message"][0]
    free = next(m for m in range(1000) if m not in list_users(registry, ["gum"])["message"])
    output = call(
        registry, tiny_folder, prompts, out, "--key", "gum", "--message", str(message), "--message", str(free),
        "--max-new-tokens", "5",
    )  # fmt: skip
    assert ": 11 of 13 left out, null or blank rows (counted from 0): 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, …\n" in output
    rows = pl.read_parquet(out)
    assert rows["prompt"].to_list() == ["w3\nw4", "w5 w6"]
    assert rows["message"].to_list() == [message, free]
    assert rows["user_id"].to_list() == [list_users(registry, ["gum"])["user_id"][0], None]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--key", "none", "--user", "ada"], "key 'none' is not in the registry; its keys: green, gum"),
        (["--key", "green"], "--user or --message"),
        (["--key", "green", "--user", "ada", "--message", "1"], "not both"),
        (["--key", "green", "--user", "eve"], "--user eve: holds no message of key 'green'"),
        (["--key", "green", "--user", "bob"], "--user bob: holds no message of key 'green'"),  # removed below
        (["--key", "green", "--message", "1000"], "--message 1000: key 'green' has messages 0 to 999"),
        (["--key", "green", "--message", "19"], "--message 19: is reserved"),
        (["--key", "green", "--user", "ada", "--temperature", "0"], "temperature = 0.0"),
        (["--key", "green", "--user", "ada", "--delta", "-1"], "delta = -1.0"),
        (["--key", "green", "--user", "ada", "--device", "cuda"], "device 'cuda': torch "),
        (["--key", "green", "--user", "ada", "--max-new-tokens", "253", "--batch-size", "1"], "prompt 4 (of 0 to 4)"),
    ],
)
def test_refused(
    options: list[str], words: str, registry: Path, tiny_folder: Path, prompts: Path, tmp_path: Path
) -> None:
    remove_users(registry, ["bob"])
    out = tmp_path / "marked.parquet"
    with pytest.raises(Refused, match=re.escape(words)):
        call(registry, tiny_folder, prompts, out, *options)
    assert not out.exists()


def test_a_retired_key_never_marks(registry: Path, tiny_folder: Path, prompts: Path, tmp_path: Path) -> None:
    retire_key(registry, "green")
    with pytest.raises(Refused, match="retired key never marks"):
        call(registry, tiny_folder, prompts, tmp_path / "out.parquet", "--key", "green", "--user", "ada")


@pytest.mark.parametrize("times", ["active_from = 2096-01-01T00:00:00Z", "active_until = 2020-01-01T00:00:00Z"])
def test_a_key_marks_only_while_it_is_active(
    times: str, registry: Path, tiny_folder: Path, prompts: Path, tmp_path: Path
) -> None:
    path = registry / "keys.toml"
    path.write_text(path.read_text().replace("created_at = ", f"{times}\ncreated_at = "))
    with pytest.raises(Refused, match=r"is active from .* until .* and marks nothing at other times"):
        call(registry, tiny_folder, prompts, tmp_path / "out.parquet", "--key", "green", "--user", "ada")


def test_the_model_must_have_the_keys_tokenizer(
    registry: Path, tiny_folder: Path, prompts: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other-model"
    other.mkdir()
    for file in tiny_folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "tokenizer.json").write_text((tiny_folder / "tokenizer.json").read_text() + "\n")
    with pytest.raises(Refused, match=r"SHA-256 [0-9a-f]{64}, but key 'gum' is pinned to [0-9a-f]{64}"):
        call(registry, other, prompts, tmp_path / "out.parquet", "--key", "gum", "--user", "ada")


def test_files_that_cannot_be_right_are_refused(registry: Path, tiny_folder: Path, tmp_path: Path) -> None:
    some = ["--key", "gum", "--user", "ada"]
    blank, columns, binary = tmp_path / "blank.txt", tmp_path / "columns.parquet", tmp_path / "binary.txt"
    short = tmp_path / "short.txt"
    short.write_text("w3 w4\nw5\n")
    with pytest.raises(Refused, match=r"prompt 1 \(of 0 to 1\) has 1 tokens, fewer than the window of 2"):
        call(registry, tiny_folder, short, tmp_path / "out.parquet", *some)
    blank.write_text("\n \n")
    pq.write_table(pa.table({"text": ["w3"]}), columns)
    binary.write_bytes(b"\xff\xfe")
    for path, words in ((blank, "has no prompt"), (columns, "has no column 'prompt'; it has 'text'$"), (binary, "cannot be read"), (tmp_path / "no.txt", "cannot be read")):  # fmt: skip  # noqa: E501
        with pytest.raises(Refused, match=words):
            call(registry, tiny_folder, path, tmp_path / "out.parquet", *some)
    with pytest.raises(Refused, match="exists already"):
        call(registry, tiny_folder, blank, columns, *some)
    with pytest.raises(Refused, match=r"there is no folder .*nowhere; make it first"):
        call(registry, tiny_folder, blank, tmp_path / "nowhere" / "out.parquet", *some)


@pytest.mark.parametrize("name", ["out.csv", "out.json", "out", "out.parquet.gz"])
def test_a_name_that_says_something_else_than_parquet_is_refused(
    name: str, registry: Path, tiny_folder: Path, prompts: Path, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=r"Parquet is written, so the name must end in \.parquet"):
        call(registry, tiny_folder, prompts, tmp_path / name, "--key", "gum", "--user", "ada")


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_torch_the_command_says_what_to_install(
    missing: str, registry: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("scanner.generation")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(Refused, match=rf"needs torch and transformers, and {missing} is missing: run `make model`"):
        call(registry, tmp_path, prompts, tmp_path / "out.parquet", "--key", "gum", "--user", "ada")


def test_a_key_of_another_stack_marks(registry: Path, tiny_folder: Path, prompts: Path, tmp_path: Path) -> None:
    """A vLLM key marks for trials: every completion is found under it, none under the other keys."""
    tokenizer = tiny_folder / "tokenizer.json"
    new_key(registry, "stack", format="vllm-gumbel", messages=1, tokenizer=tokenizer)
    out = tmp_path / "marked.parquet"
    with pytest.raises(Refused, match="names no user, so give --message 0"):
        call(registry, tiny_folder, prompts, out, "--key", "stack")
    call(registry, tiny_folder, prompts, out, "--key", "stack", "--message", "0", "--max-new-tokens", "60")
    for text in pl.read_parquet(out)["text"]:
        verdicts = check_text(TextCheck.of_registry(registry, [], 1e-6), text.encode())
        flagged = {verdict["key_id"]: verdict["flagged"] for verdict in verdicts}
        assert flagged == {"green": False, "gum": False, "stack": True}


def test_prompts_that_say_whom_they_are_for_are_marked_for_these(
    registry: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    """`brickscan canaries` writes such prompts; --user overrides their column, with a notice."""
    prompts, out = tmp_path / "asked.parquet", tmp_path / "marked.parquet"
    users = ["bob", "cy", "ada", "bob"]
    pl.DataFrame({"user_id": users, "prompt": ["w3 w4", "w5 w6", " ", "w6 w7"]}).write_parquet(prompts)
    short = ("--key", "green", "--max-new-tokens", "5")
    call(registry, tiny_folder, prompts, out, *short)
    rows = pl.read_parquet(out)
    message_of = dict(list_users(registry, ["green"]).select("user_id", "message").iter_rows())
    assert rows.select("user_id", "message", "prompt").rows() == [
        ("bob", message_of["bob"], "w3 w4"),
        ("cy", message_of["cy"], "w5 w6"),
        ("bob", message_of["bob"], "w6 w7"),
    ]
    told = call(registry, tiny_folder, prompts, tmp_path / "ada.parquet", *short, "--user", "ada")
    assert "its column user_id is not used" in told
    assert set(pl.read_parquet(tmp_path / "ada.parquet")["user_id"]) == {"ada"}
    for wrong, said in (("nobody", "user_id = 'nobody': holds no message of key 'green'"), (None, "a text is needed")):
        pl.DataFrame({"user_id": ["bob", wrong], "prompt": ["w3 w4", "w4 w5"]}).write_parquet(prompts)
        with pytest.raises(Refused, match=r"row 1 \(counted from 0\)") as refused:
            call(registry, tiny_folder, prompts, tmp_path / "no.parquet", *short)
        assert said in str(refused.value)


def interrupted_after(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Ctrl-C come in the middle of the batch after so many."""
    from scanner import generation

    done, real = [0], generation.complete

    def complete(*arguments):
        *before, watch = arguments
        done[0] += 1

        def interrupt(written: int) -> None:
            watch(written)
            if done[0] > batches and written == 3:
                raise KeyboardInterrupt

        return real(*before, interrupt)

    monkeypatch.setattr(generation, "complete", complete)


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_an_interrupted_call_goes_on_where_it_was(
    batches: int,
    registry: Path,
    tiny_folder: Path,
    prompts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C in any batch keeps those before it; the same call makes the file that an undisturbed one makes."""
    out, whole = tmp_path / "marked.parquet", tmp_path / "whole.parquet"
    kept = tmp_path / "marked.parquet.unfinished"
    asked = ["--key", "green", "--user", "cy", "--max-new-tokens", "9", "--batch-size", "2"]
    line = ["mark", "--registry", registry, "--model", tiny_folder, "--prompts", prompts, "--out", out, *asked]
    call(registry, tiny_folder, prompts, whole, *asked)
    with monkeypatch.context() as patch:
        interrupted_after(batches, patch)
        assert run(brickscan, list(map(str, line))) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert not out.exists()
    assert kept.exists() == (batches > 0)
    if batches:
        with kept.open("a") as file:
            file.write('[["green", "cy", 1')  # as SIGKILL within a write leaves it
        with pytest.raises(Refused, match="interrupted run with other options"):
            call(registry, tiny_folder, prompts, out, *asked, "--seed", "5")
        with pytest.raises(Refused, match="interrupted run with other options"):
            call(registry, tiny_folder, prompts, out, *asked, "--dtype", "bfloat16")
    call(registry, tiny_folder, prompts, out, *asked)
    assert pl.read_parquet(out).equals(pl.read_parquet(whole))
    assert not kept.exists()


def test_rows_of_a_running_call_are_not_touched(tmp_path: Path) -> None:
    out = tmp_path / "marked.parquet"
    with kept_rows(out, ["a"]) as kept:
        kept.add([("green", "cy", 1, "w3", "w4\u2028", 1)])
        with pytest.raises(Refused, match="another `brickscan mark` is writing it"), kept_rows(out, ["a"]):
            pass
    with kept_rows(out, ["a"]) as again:
        assert again.rows == kept.rows


def test_progress_in_a_log_is_a_line_and_on_a_terminal_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with MarkProgress(5, lambda: None) as progress:
        progress.token(7)
        progress(5)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"event=mark step='complete' done=5/5 seconds=\d+\.\d", line)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with MarkProgress(5, lambda: None) as progress:
        progress(2)
        progress.token(7)
    shown = capsys.readouterr().err
    assert "2/5" in shown
    assert "token 7 of this batch" in shown
    assert "event=" not in shown
