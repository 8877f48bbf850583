"""Parquet in and out, if pyarrow is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import perdure
import pytest

pyarrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")


def records_of(key: type, value: type, count: int) -> dict[Any, Any]:
    def one(kind: type, number: int) -> Any:
        if kind is int:
            return 2**64 - 1 - number
        return f"ä{number}" if kind is str else b"\xff%d" % number

    return {one(key, i): one(value, i) for i in range(count)}


@pytest.mark.parametrize("types", [(int, int), (str, str), (bytes, bytes), (int, str), (str, int)])
def test_there_and_back(
    pool: perdure.Pool, tmp_path: Path, types: tuple[type, type], monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure import parquet as ours

    monkeypatch.setattr(ours, "_ROWS", 1000)

    key, value = types
    first: Any = pool.create_index("first", "p-hot+vl", key, value)
    second: Any = pool.create_index("second", "plush", key, value)
    records = records_of(key, value, 2500)
    first.update(records)
    file = tmp_path / "records.parquet"
    assert ours.dump(first, file, key="k", value="v") == len(records)
    assert parquet.ParquetFile(file).schema_arrow.names == ["k", "v"]
    assert ours.load(second, file, key="k", value="v") == len(records)
    assert dict(second) == records
    assert [one.name for one in tmp_path.glob("*.unfinished")] == []


def test_columns_of_other_programs(pool: perdure.Pool, tmp_path: Path) -> None:
    from perdure import parquet as ours

    file = tmp_path / "events.parquet"
    table = {
        "id": pyarrow.array([1, 2, 3], pyarrow.int32()),
        "text": pyarrow.array(["a", "b", "a"]).dictionary_encode(),
        "holes": pyarrow.array([1, None, 3]),
        "negative": pyarrow.array([1, -2, 3]),
    }
    parquet.write_table(pyarrow.table(table), file)
    texts = pool.create_index("texts", "fptree", int, bytes)
    assert ours.load(texts, file, key="id", value="text") == 3
    assert dict(texts) == {1: b"a", 2: b"b", 3: b"a"}
    words = pool.create_index("words", "fptree", int, int)
    with pytest.raises(ValueError, match="holes"):
        ours.load(words, file, key="id", value="holes")
    with pytest.raises(OverflowError):
        ours.load(words, file, key="id", value="negative")
    with pytest.raises(ValueError, match="no column 'key'; there are: id, text"):
        ours.load(words, file)
    assert len(words) == 0
    assert ours.dump(words, tmp_path / "none.parquet") == 0
    assert parquet.ParquetFile(tmp_path / "none.parquet").metadata.num_rows == 0
