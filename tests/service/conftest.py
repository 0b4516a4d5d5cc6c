"""One scan of hostile texts, ids, accounts and a user for all tests of a process."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanner.registry import add_users
from tests.support.hostile_pages import HOSTILE
from tests.support.night import Night
from tests.support.opened_once import keep_inspector
from tests.support.signed_tables import drop_table
from tests.support.two_keys import marked_text, message_of
from tests.support.without_ray import put_in_the_place_of_ray

MALLORY = "<img src=x onerror=alert(1)>\"'&"
FILE = "<b onclick=x>\n%2F&=?#"
IDS = [" ".join(HOSTILE[i : i + 3]) for i in range(0, len(HOSTILE), 3)]
"""Ids of texts marked for alice; each joins several hostile strings, since each flag costs a second."""

FLAGS = len(IDS) + 1


@pytest.fixture(scope="package")
def scanned(tmp_path_factory, registry, words) -> Night:
    """Flags of alice and of a user whose name is markup; ids, accounts and the file's name are markup too."""
    folder = tmp_path_factory.mktemp("review")
    own = Path(shutil.copytree(registry, folder / "registry"))
    add_users(own, ["green"], [MALLORY])
    marked = marked_text(own, words)
    alice, mallory = (message_of(own, "green", user) for user in ("alice", MALLORY))
    texts = [f"> {hostile}\n{marked(alice, 80, seed)}\n{hostile}" for seed, hostile in enumerate(IDS)]
    texts += [marked(mallory, 90, 50), None]
    ids = [*IDS, "plain", "none"]
    with pytest.MonkeyPatch.context() as patch:
        put_in_the_place_of_ray(patch)
        keep_inspector(patch)
        night = Night(folder, own)
        night.configure(columns='account = "account"')
        night.write(FILE, texts, doc_id=ids, account=ids[::-1])
        night.scan()
    return night


@pytest.fixture
def night(scanned) -> Iterator[Night]:
    """The scanned night without decisions."""
    drop_table(scanned.results, scanned.registry, "decisions")
    yield scanned
    drop_table(scanned.results, scanned.registry, "decisions")
