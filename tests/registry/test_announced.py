"""The public list of commitments: lines are appended, numbered and counted, and a missing line is found."""

import re
import shutil
from hashlib import sha256
from pathlib import Path
from threading import Thread

import pytest

from scanner.registry import add_users, find_key, keys_file, load_registry, new_key
from scanner.registry.shown_seeds import append_event, event_head, shown_path
from tests.support.command_line import call


def add(folder, key_id):
    tokenizer = folder.parent / "tokenizer.json"
    new_key(folder, key_id, format="greenlist-v3", window=4, gamma="1/4", seeds=8, messages=20, tokenizer=tokenizer)


@pytest.fixture
def listed(tmp_path, tokenizer):
    """A folder with a list of three keys, published one by one, and a copy of the list after each key."""
    for number, key_id in enumerate(("spring", "summer", "autumn"), start=1):
        add(tmp_path / "registry", key_id)
        code, out, err = call("keys", "publish", tmp_path / "list.txt", "--registry", tmp_path / "registry")
        assert (code, err) == (0, "")
        assert f"{number} commitment" in out
        assert "; 1 of them new" in out
        (tmp_path / f"copy-{number}.txt").write_bytes((tmp_path / "list.txt").read_bytes())
    return tmp_path


def test_lines_have_numbers_and_heads_that_a_few_lines_of_python_compute(listed):
    lines = [line.split(" ") for line in (listed / "list.txt").read_text().splitlines()]
    assert [(line[0], line[2]) for line in lines] == [("1", "spring"), ("2", "summer"), ("3", "autumn")]
    keys = load_registry(listed / "registry").keys
    assert [(line[3], line[6]) for line in lines] == [(key.commitment, key.record) for key in keys]
    head = "0" * 64
    for line in lines:
        head = sha256(f"brickscan commitments 5\n{head}\n{' '.join(line[:9])}".encode()).hexdigest()
        assert line[7:] == ["-", "-", head]
        assert line[4:6] == ["20", sha256((listed / "tokenizer.json").read_bytes()).hexdigest()]
    for number in (1, 2):
        assert (listed / "list.txt").read_bytes().startswith((listed / f"copy-{number}.txt").read_bytes())


def test_what_is_published_is_published_once_and_short_keys_never(listed, tokenizer):
    before = (listed / "list.txt").read_bytes()
    short = new_key(listed / "registry", "short", format="vllm-gumbel", messages=1, tokenizer=tokenizer)
    assert short.commitment is None
    code, out, _ = call("keys", "publish", listed / "list.txt", "--registry", listed / "registry")
    said, left_out = out.splitlines()[-2:]
    assert (code, said.endswith("; 0 of them new"), left_out.endswith(" give the key away: short")) == (0, True, True)
    assert (listed / "list.txt").read_bytes() == before


def test_registries_that_publish_to_one_list_at_once_lose_no_line(listed, monkeypatch):
    """Else a head that one of them has told to others would stand in the list never again."""
    add(listed / "registry", "winter")
    add(listed / "other", "elsewhere")
    path, write_whole = listed / "list.txt", keys_file.write_whole
    other = Thread(target=keys_file.publish, args=(listed / "other", path))

    def write(*arguments):
        if arguments[0] == path and other.ident is None:
            other.start()
            other.join(0.5)  # as long as it takes where nothing keeps it waiting
        write_whole(*arguments)

    monkeypatch.setattr(keys_file, "write_whole", write)
    keys_file.publish(listed / "registry", path)
    other.join(60)
    assert [line.key_id for line in keys_file.read_published(path)] == [
        *("spring", "summer", "autumn", "winter", "elsewhere")
    ]


def test_a_list_that_was_written_while_users_were_read_never_goes_back(listed, monkeypatch):
    """Of two at once, the one that read fewer users would have written last: messages would seem to be taken back."""
    path, registry, dealt = listed / "list.txt", listed / "registry", keys_file._dealt

    def read_slowly(*arguments):
        read = dealt(*arguments)
        if not slowly:
            slowly.append(True)
            add_users(registry, ["summer"], ["zoe"])
            keys_file.publish(registry, path)
        return read

    slowly: list[bool] = []
    add_users(registry, ["summer"], ["alice"])
    monkeypatch.setattr(keys_file, "_dealt", read_slowly)
    lines, newly = keys_file.publish(registry, path)
    assert (newly, lines[-1].dealt.split(":")[0]) == (0, "2")
    assert keys_file.read_published(path) == lines


def test_lines_of_another_registry_do_not_delay_a_list(listed, monkeypatch):
    """Users of a large registry take minutes to read: another one that publishes meanwhile would stop it for ever."""
    path, dealt, times = listed / "list.txt", keys_file._dealt, []

    def read_slowly(folder, *others):
        read = dealt(folder, *others)
        if folder == listed / "registry":
            times.append(folder)
            add_users(listed / "other", ["elsewhere"], [f"user-{len(times)}"])
            monkeypatch.setattr(keys_file, "_dealt", dealt)
            keys_file.publish(listed / "other", path)
            monkeypatch.setattr(keys_file, "_dealt", read_slowly)
        return read

    add_users(listed / "registry", ["summer"], ["alice"])
    add(listed / "other", "elsewhere")
    monkeypatch.setattr(keys_file, "_dealt", read_slowly)
    lines, newly = keys_file.publish(listed / "registry", path)
    assert (newly, len(times), lines[-1].key_id, lines[-2].key_id) == (1, 1, "summer", "elsewhere")
    assert keys_file.read_published(path) == lines


def test_a_list_stays_what_a_link_leads_to_and_keeps_its_mode(listed):
    """Else the public file stays behind, and lists of two registries fork."""
    path, link = listed / "list.txt", listed / "link.txt"
    link.symlink_to(path)
    path.chmod(0o664)
    add_users(listed / "registry", ["summer"], ["alice"])
    lines, newly = keys_file.publish(listed / "registry", link)
    assert (newly, link.is_symlink(), keys_file.read_published(path)) == (1, True, lines)
    assert path.stat().st_mode & 0o777 == 0o664


def test_a_list_as_it_was_written_is_counted(listed):
    for more in ([], ["--earlier", listed / "copy-2.txt"], ["--registry", listed / "registry"]):
        code, out, err = call("keys", "verify", listed / "list.txt", *more)
        assert (code, err) == (0, "")
        assert out.startswith("3 commitments published, head ")
        assert "lacks" not in out


def test_keys_that_the_registry_lacks_are_named(listed):
    """As where a backup is older than a key: nothing else tells, once its results are gone too."""
    registry, path = listed / "registry", listed / "list.txt"
    keys = registry / "keys.toml"
    keys.write_text(keys.read_text().rsplit("[[keys]]", 1)[0])
    code, out, err = call("keys", "verify", path, "--registry", registry)
    assert (code, err) == (0, "")
    assert re.search("^the registry lacks these keys of the list, .*: autumn$", out, re.MULTILINE), out
    for key_id, why in (("autumn", "secret file:secrets/autumn.key: exists already"), ("spring", "in the registry")):
        code, _, err = call("keys", "new", key_id, "--registry", registry, "--tokenizer", listed / "tokenizer.json")
        assert (code, why in err) == (2, True), err


def test_messages_that_were_changed_are_published_again(listed):
    toml = listed / "registry" / "keys.toml"
    toml.write_text(toml.read_text().replace("messages = 20", "messages = 40", 1))
    assert call("keys", "verify", listed / "list.txt", "--registry", listed / "registry")[0] == 3
    code, out, _ = call("keys", "publish", listed / "list.txt", "--registry", listed / "registry")
    assert (code, out.splitlines()[-1].split(",")[0]) == (0, "3 commitments published")
    assert [line.split()[4] for line in (listed / "list.txt").read_text().splitlines()] == ["20", "20", "20", "40"]


@pytest.mark.seconds
@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[1:],
        lambda lines: [lines[0], lines[2]],
        lambda lines: [lines[1], lines[0], lines[2]],
        lambda lines: [lines[0].replace("spring", "sprung"), *lines[1:]],
        lambda lines: [*lines[:2], lines[2].replace(" autumn ", " winter ")],
        lambda lines: [lines[0], lines[1][:-1] + ("0" if lines[1][-1] != "0" else "1"), lines[2]],
        lambda lines: [*lines, "rubbish"],
    ],
)
def test_a_line_that_is_changed_or_gone_is_refused_by_both(listed, change):
    path = listed / "list.txt"
    path.write_text("".join(line + "\n" for line in change(path.read_text().splitlines())))
    before = path.read_bytes()
    for arguments in (["verify", path], ["publish", path, "--registry", listed / "registry"]):
        code, _, err = call("keys", *arguments)
        assert code == 2
        assert f"{path}, line " in err
    assert path.read_bytes() == before


def test_lines_off_the_end_are_missed_by_who_kept_a_copy_and_by_the_registry(listed):
    path = listed / "copy-2.txt"
    assert call("keys", "verify", path)[0] == 0
    code, _, err = call("keys", "verify", path, "--earlier", listed / "list.txt")
    assert code == 3
    assert "line 3 of the earlier copy, of key autumn, is not in the list" in err
    code, _, err = call("keys", "verify", path, "--registry", listed / "registry")
    assert code == 3
    assert "key autumn of the registry, with its messages, tokenizer, record and " in err


def test_a_list_that_was_begun_anew_is_not_the_one_of_the_copy(listed):
    add(listed / "other", "spring")
    call("keys", "publish", listed / "anew.txt", "--registry", listed / "other")
    code, _, err = call("keys", "verify", listed / "anew.txt", "--earlier", listed / "copy-1.txt")
    assert code == 3
    assert "line 1 of the earlier copy" in err
    call("keys", "publish", listed / "list.txt", "--registry", listed / "other")  # two registries, one list
    assert call("keys", "verify", listed / "list.txt", "--registry", listed / "other")[1].startswith("4 commitments")


def test_keys_without_a_record_have_a_dash_and_lists_of_the_form_before_records_are_refused(listed, tokenizer):
    new_key(listed / "registry", "old", format="greenlist", window=4, gamma="1/4", messages=20, tokenizer=tokenizer)
    path = listed / "list.txt"
    assert call("keys", "publish", path, "--registry", listed / "registry")[0] == 0
    assert [line.split()[6] == "-" for line in path.read_text().splitlines()] == [False, False, False, True]
    before, head = [line.split()[:6] for line in path.read_text().splitlines()], "0" * 64
    lines = []
    for line in before:
        head = sha256(f"brickscan commitments 2\n{head}\n{' '.join(line)}".encode()).hexdigest()
        lines.append(f"{' '.join(line)} {head}\n")
    path.write_text("".join(lines))
    for arguments in (["verify", path], ["publish", path, "--registry", listed / "registry"]):
        code, _, err = call("keys", *arguments)
        assert (
            code,
            "line 1: is not of the form `number day key commitment messages tokenizer record shown" in err,
        ) == (2, True)
    assert path.read_text() == "".join(lines)


def test_what_was_shown_of_a_key_is_published_with_its_head(listed):
    registry, path = listed / "registry", listed / "list.txt"
    event, _ = append_event(registry, "summer", b"a text", [7], [bytes(32)])
    code, _, err = call("keys", "verify", path, "--registry", registry)
    assert (code, "key summer of the registry, with its messages, tokenizer, record and shown" in err) == (
        3,
        True,
    )
    code, out, _ = call("keys", "publish", path, "--registry", registry)
    assert (code, "; 1 of them new" in out) == (0, True)
    lines = [line.split() for line in path.read_text().splitlines()]
    assert [(line[2], line[7]) for line in lines] == [
        ("spring", "-"),
        ("summer", "-"),
        ("autumn", "-"),
        ("summer", f"1:{event_head(event)}"),
    ]
    assert call("keys", "verify", path, "--registry", registry, "--earlier", listed / "copy-3.txt")[0] == 0


def test_a_record_that_is_not_the_one_in_the_list_is_told(listed):
    path, (first, *_) = listed / "list.txt", load_registry(listed / "registry").keys
    head, lines = "0" * 64, []
    for line in path.read_text().splitlines():
        body = line.rpartition(" ")[0].replace(first.record, "0" * 64)
        head = sha256(f"brickscan commitments 5\n{head}\n{body}".encode()).hexdigest()
        lines.append(f"{body} {head}\n")
    path.write_text("".join(lines))
    code, _, err = call("keys", "verify", path, "--registry", listed / "registry")
    assert (code, "key spring of the registry, with its messages, tokenizer, record and " in err) == (3, True)


def test_a_registry_that_lacks_a_published_event_is_refused(listed):
    """An older registry was put back: its keys would mark and score with what the list says is public."""
    registry, path = listed / "registry", listed / "list.txt"
    shown = Path(shown_path(registry, "summer"))
    append_event(registry, "summer", b"a text", [7], [bytes(32)])
    older = shown.read_bytes()
    assert call("keys", "publish", path, "--registry", registry)[0] == 0
    append_event(registry, "summer", b"another", [8], [bytes(31) + b"1"])
    assert call("keys", "publish", path, "--registry", registry)[0] == 0
    before = path.read_bytes()
    shown.write_bytes(older)
    for number in (1, 2):  # the second: another event has its number
        for arguments in (["verify", path], ["publish", path]):
            code, _, err = call("keys", *arguments, "--registry", registry)
            wanted = 3 if arguments[0] == "verify" else 2
            assert (code, "lacks event 2 of key 'summer'" in err) == (wanted, True), (number, err)
        append_event(registry, "summer", b"a third", [9], [bytes(31) + b"2"])
    assert path.read_bytes() == before


def test_each_key_that_lost_something_is_named(listed, tmp_path):
    """What is to be done with a key depends on it: one that lost events may be scanned no more."""
    registry, path = listed / "registry", listed / "list.txt"
    shutil.copytree(registry, tmp_path / "older")
    append_event(registry, "summer", b"a text", [7], [bytes(32)])
    append_event(registry, "autumn", b"a text", [7], [bytes(32)])
    for key_id in ("spring", "summer"):
        add_users(registry, [key_id], ["alice"])
    assert call("keys", "publish", path, "--registry", registry)[0] == 0
    code, _, err = call("keys", "verify", path, "--registry", tmp_path / "older")
    assert code == 3, err
    told = [re.search("(lacks event|key) .*?'([a-z]+)'", line).groups() for line in err.splitlines()]
    assert told == [("lacks event", "summer"), ("lacks event", "autumn"), ("key", "spring"), ("key", "summer")], err


def make_again(registry, key_id, again):
    """Make a key of another registry from the secret of this one's; return both keys."""
    (again / "secrets").mkdir(parents=True)
    secret = again / "secrets" / "june.key"
    secret.write_bytes((registry / "secrets" / f"{key_id}.key").read_bytes())
    secret.chmod(0o600)
    add(again, "june")
    return find_key(load_registry(registry), key_id), find_key(load_registry(again), "june")


def test_a_key_that_was_made_again_from_its_secret_is_refused_by_what_the_list_says_of_it(listed):
    """Its record can be another one, but its seeds are the same, and so are those that claims have shown."""
    registry, path, again = listed / "registry", listed / "list.txt", listed / "again"
    append_event(registry, "summer", b"a text", [7], [bytes(32)])
    assert call("keys", "publish", path, "--registry", registry)[0] == 0
    before = path.read_bytes()
    old, new = make_again(registry, "summer", again)
    assert (old.commitment == new.commitment, old.record == new.record) == (True, False)
    for command, wanted in (("verify", 3), ("publish", 2)):
        code, _, err = call("keys", command, path, "--registry", again)
        assert (code, "lacks event 1 of key 'june'" in err) == (wanted, True), err
    assert path.read_bytes() == before


def test_a_key_that_was_made_again_under_another_id_gives_no_message_a_second_time(listed):
    """Else a text that was marked for the first user would be found, and name the second."""
    registry, path, again = listed / "registry", listed / "list.txt", listed / "again"
    add_users(registry, ["spring"], ["alice"])
    assert call("keys", "publish", path, "--registry", registry)[0] == 0
    before = path.read_bytes()
    old, new = make_again(registry, "spring", again)
    assert (old.commitment, old.record) == (new.commitment, new.record)
    for command, wanted in (("verify", 3), ("publish", 2)):
        code, _, err = call("keys", command, path, "--registry", again)
        assert (code, "messages of key 'june' were given as those of key 'spring'" in err) == (wanted, True), err
    assert path.read_bytes() == before
