"""Files that are written where others can plant links: what a link leads to stays as it is."""

from pathlib import Path

import pytest

from jobs.evidence import _write
from scanner.errors import Refused
from scanner.storage import locations
from scanner.storage.locations import write_new, write_whole


@pytest.fixture
def victim(tmp_path, monkeypatch) -> Path:
    """A file of somebody else, to which links lead from the one name that `secrets` would draw next."""
    monkeypatch.setattr(locations.secrets, "token_hex", lambda _: "drawn")
    victim = tmp_path / "registry.toml"
    victim.write_text("keys")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / ".page.html.drawn.unfinished").symlink_to(victim)
    return victim


@pytest.mark.parametrize(
    "write", [lambda page: write_whole(page, lambda file: file.write(b"x")), lambda page: _write(page, "x")]
)
def test_no_link_in_the_place_of_an_unfinished_file_is_followed(tmp_path, victim, write):
    with pytest.raises((OSError, Refused), match="File exists"):
        write(tmp_path / "pages" / "page.html")
    assert victim.read_text() == "keys"


def test_an_unfinished_file_has_another_name_each_time(tmp_path):
    page = tmp_path / "page.html"
    names = set()
    for _ in range(3):
        with locations.unfinished_beside(page) as unfinished:
            names.add(unfinished)
            unfinished.write_text("x")
    assert len(names) == 3
    assert [*tmp_path.iterdir()] == []


def test_a_new_file_takes_no_other_ones_place(tmp_path, victim):
    (tmp_path / "pages" / "figure.png").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_new(str(tmp_path / "pages" / "figure.png"), b"x")
    (tmp_path / "figures").symlink_to(tmp_path / "pages")
    with pytest.raises(Refused, match="is a link"):
        write_new(str(tmp_path / "figures" / "other.png"), b"x")
    assert victim.read_text() == "keys"
    write_new(str(tmp_path / "pages" / "other.png"), b"x")
    assert (tmp_path / "pages" / "other.png").read_bytes() == b"x"
