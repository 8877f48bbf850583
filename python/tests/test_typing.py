"""The type hints, by mypy, if it is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import perdure
import pytest

PROGRAM = """
import perdure
from typing_extensions import assert_type

pool = perdure.Pool.anonymous()
words = pool.create_index("words", "fptree", str, int)
assert_type(words["a"], int)
assert_type(next(words.range("a"))[0], str)
assert_type(pool.create_index("bytes")[b"a"], bytes)
assert_type(words.modify("a", lambda before: (before or 0) + 1), int | None)
assert_type(words.visit("a", float), float)
assert_type(pool.create_store("store")[b"a"], bytes)
with pool.transaction() as t:
    assert_type(t[words]["a"], int)
assert_type(pool.transact(lambda t: t[words].increment("a")), int)
"""


def test_hints(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    assert (Path(perdure.__file__).parent / "py.typed").exists()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    good = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", program], capture_output=True, text=True
    )
    assert good.returncode == 0, good.stdout
    program.write_text(PROGRAM + 'words[b"bytes"] = 1\n')
    bad = subprocess.run([sys.executable, "-m", "mypy", "--strict", program], capture_output=True)
    assert bad.returncode != 0
