"""Small graphs, a target and a store in a fresh file."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.experience.store import Store
from compiler.target import Target, load_target

# experience_samples, for the tests here and for the processes they start
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def target() -> Target:
    return load_target("sn40l")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'experience.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened
