"""A registry with a key of each kind that a server marks with, and what opens one as a server does."""

from collections.abc import Callable
from pathlib import Path

import pytest
from brickscan_vllm.settings import Settings

from scanner.registry import new_key
from tests.fixed import fix_secrets

KINDS = {
    "greenlist": {"gamma": "1/4"},
    "gumbel": {},
    "greenlist-v2": {"gamma": "3/8"},
    "gumbel-v2": {},
}


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory, byte_tokenizer: Path) -> Path:
    """Keys named as their formats, window 3, 5,000 messages each."""
    folder = tmp_path_factory.mktemp("served")
    fix_secrets(folder, *KINDS)
    for kind, parameters in KINDS.items():
        new_key(folder, kind, format=kind, window=3, messages=5000, tokenizer=byte_tokenizer, **parameters)
    return folder


@pytest.fixture
def settings(keys: Path) -> Callable[..., Settings]:
    def of(key_id: str, service_message: int | None = None, gateway_secret: str | None = None) -> Settings:
        return Settings(keys, key_id, 2.5, service_message, gateway_secret)

    return of
