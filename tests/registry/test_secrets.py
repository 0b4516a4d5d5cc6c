"""Secrets that are read, secrets that are refused, and no key byte anywhere but in the return value."""

import os
import random
import stat

import pytest

from scanner.errors import SecretError
from scanner.registry.secrets import _pattern, new_secret_file, read_secret

HEX = random.Random(1).randbytes(32).hex()


def write(path, text=HEX + "\n", mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return f"file:{path.name}"


def test_a_new_file_is_private_random_and_read_back(tmp_path):
    old = os.umask(0)
    try:
        secret = new_secret_file(tmp_path / "a" / "b" / "k.key")
    finally:
        os.umask(old)
    assert len(secret) == 32
    assert secret != new_secret_file(tmp_path / "other.key")
    assert read_secret("file:a/b/k.key", tmp_path) == secret
    assert (tmp_path / "a/b/k.key").read_text() == secret.hex() + "\n"
    assert stat.S_IMODE((tmp_path / "a/b/k.key").stat().st_mode) == 0o600
    assert {stat.S_IMODE((tmp_path / part).stat().st_mode) for part in ("a", "a/b")} == {0o700}


def test_a_file_is_never_overwritten(tmp_path):
    write(tmp_path / "k.key", "kept")
    (tmp_path / "dangling.key").symlink_to(tmp_path / "elsewhere")
    for name in ("k.key", "dangling.key"):
        with pytest.raises(SecretError, match=name):
            new_secret_file(tmp_path / name)
    assert (tmp_path / "k.key").read_text() == "kept"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
@pytest.mark.parametrize("text", [HEX, HEX + "\n", f"  {HEX.upper()}\r\n"])
def test_private_files_are_read(tmp_path, mode, text):
    assert read_secret(write(tmp_path / "k.key", text, mode), tmp_path) == bytes.fromhex(HEX)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o620, 0o660, 0o666])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path, mode):
    with pytest.raises(SecretError, match=f"{mode:04o}.*chmod 600"):
        read_secret(write(tmp_path / "k.key", mode=mode), tmp_path)


def test_links_are_followed_before_rights_are_checked(tmp_path):
    write(tmp_path / "mounted", mode=0o440)
    write(tmp_path / "open", mode=0o644)
    (tmp_path / "good").symlink_to("mounted")
    (tmp_path / "bad").symlink_to("open")
    assert read_secret("file:good", tmp_path) == bytes.fromhex(HEX)
    with pytest.raises(SecretError, match="0644"):
        read_secret("file:bad", tmp_path)


def test_what_is_no_file_is_refused_and_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(mode=0o700)
    for name in ("pipe", "folder"):
        with pytest.raises(SecretError, match="regular file"):
            read_secret(f"file:{name}", tmp_path)
    with pytest.raises(SecretError, match="No such file"):
        read_secret("file:missing", tmp_path)
    with pytest.raises(SecretError, match="not a path"):
        read_secret("file:a\0b", tmp_path)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("ab" * 15, "15 bytes"),
        ("ab" * 65, "65 bytes"),
        ("ab" * 5000, "more than 64 bytes"),
        ("", "not hexadecimal"),
        ("abc" * 11, "not hexadecimal"),
        ("0x" + HEX, "not hexadecimal"),
        (HEX + " " + HEX, "not hexadecimal"),
        ("g" * 64, "not hexadecimal"),
        ("é" * 32, "not hexadecimal"),
    ],
)
def test_what_is_no_secret_is_refused_wherever_it_is(tmp_path, monkeypatch, text, what):
    monkeypatch.setenv("BRICKSCAN_TEST", text)
    for reference, where in ((write(tmp_path / "k.key", text), "k.key"), ("env:BRICKSCAN_TEST", "BRICKSCAN_TEST")):
        with pytest.raises(SecretError, match=f"{where}.*{what}") as raised:
            read_secret(reference, tmp_path)
        assert not text or text not in str(raised.value)


@pytest.mark.parametrize("size", [16, 64])
def test_secrets_of_the_allowed_lengths(tmp_path, monkeypatch, size):
    secret = random.Random(size).randbytes(size)
    monkeypatch.setenv("BRICKSCAN_TEST", secret.hex())
    assert read_secret("env:BRICKSCAN_TEST", tmp_path) == secret
    assert read_secret(write(tmp_path / "k.key", secret.hex()), tmp_path) == secret


RANDOM = random.Random(2).randbytes(32)


@pytest.mark.parametrize(
    ("secret", "what"),
    [
        (bytes(32), "repeats"),
        (b"\xff" * 16, "repeats"),
        (RANDOM[:8] * 4, "repeats"),
        (RANDOM[:16] * 2, "repeats"),
        (bytes(range(100, 132)), "few different bytes"),
        (bytes(range(250, 10, -3))[:64], "few different bytes"),
        (bytes(24) + RANDOM[:8], "few different bytes"),
        (b"\xde\xad\xbe\xef" * 7 + b"\x00\x01\x02\x03", "few different bytes"),
        (b"correct horse battery staple 42!", "text, such as a password|few different bytes"),
        (RANDOM.hex().encode()[:40], "text, such as a password|few different bytes"),
    ],
)
def test_a_secret_that_can_be_guessed_is_refused(tmp_path, secret, what):
    with pytest.raises(SecretError, match=f"can be guessed: .*({what}).*openssl rand -hex 32") as raised:
        read_secret(write(tmp_path / "k.key", secret.hex()), tmp_path)
    assert secret.hex() not in str(raised.value)


@pytest.mark.seconds
@pytest.mark.parametrize("size", [16, 24, 32, 64])
def test_random_secrets_are_not_refused(tmp_path, size):
    """20,000 draws of each size from fixed seeds; by chance, one in 7 million secrets of 16 bytes is text."""
    draw = random.Random(size)
    assert [i for i in range(20_000) if _pattern(draw.randbytes(size))] == []


def test_a_secret_as_kubernetes_mounts_it(tmp_path):
    """The file is a link into `..data`, itself a link to a dated folder; an update replaces `..data` in one step."""
    mounted = tmp_path / "keys"

    def update(folder: str, text: str, mode: int) -> None:
        (mounted / folder).mkdir(parents=True)
        write(mounted / folder / "summer", text, mode)
        (mounted / "..new").symlink_to(folder)
        (mounted / "..new").rename(mounted / "..data")

    update("..2026_11_20_01_00_00.1", HEX, 0o440)
    (mounted / "summer").symlink_to("..data/summer")
    assert read_secret(f"file:{mounted}/summer", tmp_path) == bytes.fromhex(HEX)
    update("..2026_11_21_01_00_00.2", RANDOM.hex(), 0o440)
    assert read_secret(f"file:{mounted}/summer", tmp_path) == RANDOM
    update("..2026_11_22_01_00_00.3", HEX, 0o644)
    with pytest.raises(SecretError, match="0644"):
        read_secret(f"file:{mounted}/summer", tmp_path)


def test_an_unset_variable_is_named(tmp_path):
    with pytest.raises(SecretError, match="BRICKSCAN_UNSET is not set"):
        read_secret("env:BRICKSCAN_UNSET", tmp_path)
