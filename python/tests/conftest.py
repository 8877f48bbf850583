from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import perdure
import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.pool"


@pytest.fixture
def pool(path: Path) -> Iterator[perdure.Pool]:
    with perdure.Pool.create(path, capacity=128 << 20) as pool:
        yield pool
