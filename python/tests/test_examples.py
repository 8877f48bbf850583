"""The examples do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_tour_goes_to_its_end(tmp_path: Path) -> None:
    tour = subprocess.run(
        [sys.executable, EXAMPLES / "tour.py", tmp_path], capture_output=True, text=True, timeout=120
    )
    assert tour.returncode == 0, tour.stderr
    assert "perdure - to last, to go on existing\npersist - to flush" in tour.stdout
    assert "2 True 20\n15 an article\n1048576 b'\\x00\\x01\\x02\\x03'" in tour.stdout
    assert "there are" in tour.stdout


def test_its_cells_are_a_notebook() -> None:
    text = (EXAMPLES / "tour.py").read_text()
    cells = text.split("\n# %%")[1:]
    assert len(cells) > 15
    for cell in cells:
        kind, _, body = cell.partition("\n")
        if kind == " [markdown]":
            assert all(line.startswith("#") for line in body.split("\n") if line), body
        else:
            compile(body, "cell", "exec")
