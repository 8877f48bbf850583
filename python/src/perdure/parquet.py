"""Parquet files in and out of an index, by way of pyarrow (`pip install './python[parquet]'`).

    from perdure import parquet

    parquet.load(index, "events.parquet", key="id", value="text")   # how many records
    parquet.dump(index, "copy.parquet")
"""

from __future__ import annotations

import os
from itertools import islice
from typing import Any, TypeVar

from ._index import Index

__all__ = ["dump", "load"]

K = TypeVar("K")
V = TypeVar("V")
_ROWS = 1 << 14  # at a time


def load(
    index: Index[K, V],
    path: str | os.PathLike[str],
    *,
    key: str = "key",
    value: str = "value",
) -> int:
    """Writes the records of two columns of a Parquet file, some thousand at a time as `update()` does: durable when it
    returns; after an error those before it are there. Returns how many. Columns are of what the index has: integers
    from 0 to 2**64 - 1 for int, strings for str, binary or strings for bytes. ValueError: a row has nothing there."""
    from pyarrow import parquet

    count = 0
    with parquet.ParquetFile(os.fspath(path)) as file:
        for name in (key, value):
            if name not in file.schema_arrow.names:
                known = ", ".join(file.schema_arrow.names)
                raise ValueError(f"{os.fspath(path)} has no column {name!r}; there are: {known}")
        for batch in file.iter_batches(batch_size=_ROWS, columns=[key, value]):
            keys = _column(batch.column(key), index.key_type, f"column {key!r}")
            values = _column(batch.column(value), index.value_type, f"column {value!r}")
            index.update(zip(keys, values))
            count += len(keys)
    return count


def dump(
    index: Index[K, V],
    path: str | os.PathLike[str],
    *,
    key: str = "key",
    value: str = "value",
) -> int:
    """Writes all records to a Parquet file of two columns, in the order of keys if the structure has one: of uint64,
    string (str) or binary (bytes). The file has its name when it is whole. Returns how many records there are."""
    import pyarrow
    from pyarrow import parquet

    types = {int: pyarrow.uint64(), str: pyarrow.string(), bytes: pyarrow.binary()}
    columns = [(key, types[index.key_type]), (value, types[index.value_type])]
    unfinished = f"{os.fspath(path)}.{os.getpid()}.unfinished"
    count = 0
    records = iter(index.items())
    try:
        schema = pyarrow.schema(columns)
        with parquet.ParquetWriter(unfinished, schema) as file:
            while part := list(islice(records, _ROWS)):
                arrays = [pyarrow.array(column, type_) for column, (_, type_) in zip(zip(*part), columns)]
                file.write_batch(pyarrow.record_batch(arrays, schema=schema))
                count += len(part)
        os.replace(unfinished, path)
    except BaseException:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        raise
    return count


def _column(column: Any, type_: type, what: str) -> list[Any]:
    if column.null_count:
        raise ValueError(f"{what} has a row without a value")
    plain: list[Any] = column.to_pylist()
    if type_ is bytes:
        return [one.encode() if isinstance(one, str) else one for one in plain]
    return plain
