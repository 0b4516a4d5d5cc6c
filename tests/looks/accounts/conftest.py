"""Texts of people, of which accounts are made."""

import pytest

from tests.support.demo_texts import sample_texts


@pytest.fixture(scope="session")
def human_texts() -> list[str]:
    return sample_texts("human")
