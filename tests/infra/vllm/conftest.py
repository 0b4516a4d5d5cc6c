"""A registry with a key of each kind that a server marks with, and settings of a server for each key."""

from collections.abc import Callable
from pathlib import Path

import pytest
from brickscan_vllm.settings import Settings

from scanner.registry import new_key
from tests.fixed import fix_secrets

MESSAGES = 5000
GROUPED = {"groups": 80, "messages": 6400}
KINDS = {
    "greenlist": {"format": "greenlist", "gamma": "1/4"},
    "gumbel": {"format": "gumbel"},
    "greenlist-v3": {"format": "greenlist-v3", "gamma": "3/8", "seeds": 8},
    "gumbel-v3": {"format": "gumbel-v3", "seeds": 10},
    "greenlist-groups": {"format": "greenlist-v3", "gamma": "1/4", "seeds": 8, **GROUPED},
    "gumbel-groups": {"format": "gumbel-v3", "seeds": 8, **GROUPED},
}


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory, byte_tokenizer: Path) -> Path:
    """Keys of window 3: one of each format with 5,000 messages, and keys of version 3 with 80 groups of 80."""
    folder = tmp_path_factory.mktemp("served")
    fix_secrets(folder, *KINDS)
    for kind, parameters in KINDS.items():
        new_key(folder, kind, window=3, tokenizer=byte_tokenizer, **{"messages": MESSAGES, **parameters})
    return folder


@pytest.fixture
def settings(keys: Path) -> Callable[..., Settings]:
    def of(key_id: str, service_message: int | None = None, gateway_secret: str | None = None) -> Settings:
        return Settings(keys, key_id, 2.5, service_message, gateway_secret)

    return of
