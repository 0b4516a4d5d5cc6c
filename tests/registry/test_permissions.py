"""Permissions of files: others cannot read tables of users and results, and cannot change a registry."""

import os
import stat

import pytest

from scanner.errors import Refused
from scanner.registry import add_users, list_users, load_registry
from scanner.results.transactions import append_audits, open_tables
from scanner.storage.locations import writable_by_others


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def for_others(folder):
    """Files below a folder that others may read, in folders that they may enter."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.stat().st_mode & stat.S_IROTH
        and all(above.stat().st_mode & stat.S_IXOTH for above in path.parents if above.is_relative_to(folder))
    ]


def test_others_cannot_read_a_new_registry_or_its_users(folder, make_key):
    make_key()
    add_users(folder, None, ["alice"])
    assert for_others(folder) == []
    assert list((folder / "users").glob("*.parquet"))


def test_others_cannot_read_the_users_of_a_registry_that_was_there(folder, make_key):
    folder.mkdir(mode=0o755)
    make_key()
    add_users(folder, None, ["alice"])
    assert (folder / "users").stat().st_mode & stat.S_IRWXO == 0
    assert [path.name for path in for_others(folder) if "users" in path.parts] == []


@pytest.mark.parametrize("there", [False, True])
def test_others_cannot_read_results(tmp_path, there):
    results = tmp_path / "deep" / "results"
    if there:
        results.mkdir(parents=True, mode=0o755)
    open_tables(str(results))
    append_audits(str(results), [])
    assert len(list(results.rglob("*.json"))) >= 5
    assert for_others(results) == []
    assert bool(results.stat().st_mode & 0o007) == there


def test_the_group_keeps_what_the_umask_leaves_it(tmp_path):
    os.umask(0o002)
    open_tables(str(tmp_path / "results"))
    assert stat.S_IMODE((tmp_path / "results" / "verdicts").stat().st_mode) == 0o770


@pytest.mark.parametrize("what", [".", "keys.toml", "users", ".."])
def test_a_registry_that_others_can_write_is_refused(folder, make_key, cli, what):
    make_key()
    add_users(folder, None, ["alice"])
    spoilt = folder / what
    mode = stat.S_IMODE(spoilt.stat().st_mode)
    spoilt.chmod(mode | stat.S_IWOTH)
    with pytest.raises(
        Refused, match=r"others can write .* \(mode 0..[2367]\), and so change its keys or users; .*chmod o-w"
    ):
        load_registry(folder)
    assert cli("users", "add", "bob", "--registry", folder).code == 2
    spoilt.chmod(mode)
    assert list_users(folder)["user_id"].to_list() == ["alice"]


def test_a_link_into_a_place_that_others_can_write_is_refused(folder, make_key, tmp_path):
    make_key()
    public = tmp_path / "public"
    public.mkdir()
    folder.rename(public / "registry")
    folder.symlink_to(public / "registry")
    load_registry(folder)
    public.chmod(0o777)
    with pytest.raises(Refused, match=r"others can write .*public"):
        load_registry(folder)
    public.chmod(0o1777)  # sticky as /tmp: nobody moves another's files
    load_registry(folder)


def test_a_sticky_folder_is_safe_around_a_registry_and_not_as_one(tmp_path):
    tmp_path.chmod(0o1777)
    (tmp_path / "keys.toml").touch(mode=0o600)
    assert writable_by_others([tmp_path / "keys.toml"]) is None
    assert writable_by_others([tmp_path]) == tmp_path
