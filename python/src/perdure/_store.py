"""The key-value store: versions, expiry, atomic batches, cursors."""

from __future__ import annotations

import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, MutableMapping, ValuesView
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ._callbacks import pypd_figure, pypd_report  # noqa: F401: C calls them
from ._codec import BytesCodec, bytes_after, lend_bytes, words_of
from ._errors import InvalidArgumentError, check
from ._handle import Handle, give_back, new_page, take_results
from ._native import ffi, lib

if TYPE_CHECKING:
    from ._pool import Pool

_ALL = 2**64 - 1
_PAGE_RECORDS = 1024
_PAGE_BYTES = 1 << 20
_RAISE: Any = object()
_codec = BytesCodec()

Expiry = float | datetime | None


def _expires_ms(expires: Expiry, ttl: float | None) -> int:
    """Milliseconds since 1970; 0 is never."""
    if ttl is not None:
        if expires is not None:
            raise InvalidArgumentError("expires and ttl say the same")
        expires = time.time() + ttl
    if expires is None:
        return 0
    seconds = expires.timestamp() if isinstance(expires, datetime) else expires
    return max(1, int(seconds * 1000))


def _bytes(value: Any) -> bytes:
    return _codec.plain(value)[1]


class Store(Handle, MutableMapping[bytes, bytes]):
    """A key-value store of a pool, from bytes to bytes. Made by `Pool.create_store()` and `Pool.open_store()`.
    Any thread may call anything at any time; each write is durable when the call returns.

    Beside what a mapping has: versions with compare-and-swap, expiry (`expires`: seconds since 1970, or a
    datetime; `ttl`: seconds from now), batches that are atomic, and, with an ordered index, ranges both ways."""

    def __init__(self, pool: Pool, handle: Any, name: str) -> None:
        super().__init__(handle)
        self._pool = pool  # stays open while this is reachable
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"<{'closed ' if self.closed else ''}perdure.Store {self._name!r}>"

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- single records

    def get_versioned(self, key: bytes) -> tuple[bytes, int] | None:
        """The value of a key and its version, for compare_and_swap(); None if there is none."""
        data = _bytes(key)
        out = take_results()
        check(
            lib.pypd_store_get(self._handle, data, len(data), out.value, out.word, out.flag)
        )
        found = (out.bytes(), out.word[0]) if out.flag[0] else None
        give_back(out)
        return found

    def get(self, key: bytes, default: Any = None) -> Any:
        found = self.get_versioned(key)
        return default if found is None else found[0]

    def __getitem__(self, key: bytes) -> bytes:
        found = self.get_versioned(key)
        if found is None:
            raise KeyError(key)
        return found[0]

    def __contains__(self, key: object) -> bool:
        return self.get_versioned(key) is not None  # type: ignore[arg-type]

    def put(
        self, key: bytes, value: bytes, *, expires: Expiry = None, ttl: float | None = None
    ) -> int:
        """Writes a record. Returns its version: of two records of a key the later has the higher one."""
        k, (v, size) = _bytes(key), lend_bytes(value)
        out = take_results()
        check(
            lib.pypd_store_put(
                self._handle, k, len(k), v, size, _expires_ms(expires, ttl), out.word
            )
        )
        version: int = out.word[0]
        give_back(out)
        return version

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.put(key, value)

    def _write_if(self, call: Any, key: bytes, *arguments: Any) -> bool:
        data = _bytes(key)
        out = take_results()
        check(call(self._handle, data, len(data), *arguments, out.flag))
        done: bool = out.flag[0] != 0
        give_back(out)
        return done

    def insert(
        self, key: bytes, value: bytes, *, expires: Expiry = None, ttl: float | None = None
    ) -> bool:
        """Only if the key is absent. Returns whether it was."""
        v, size = lend_bytes(value)
        return self._write_if(lib.pypd_store_insert, key, v, size, _expires_ms(expires, ttl))

    def replace(
        self, key: bytes, value: bytes, *, expires: Expiry = None, ttl: float | None = None
    ) -> bool:
        """Only if the key is there. Returns whether it was."""
        v, size = lend_bytes(value)
        return self._write_if(lib.pypd_store_update, key, v, size, _expires_ms(expires, ttl))

    def compare_and_swap(
        self,
        key: bytes,
        version: int,
        value: bytes,
        *,
        expires: Expiry = None,
        ttl: float | None = None,
    ) -> bool:
        """Only if the record is there and has this version. Returns whether it was written."""
        v, size = lend_bytes(value)
        return self._write_if(lib.pypd_store_cas, key, version, v, size, _expires_ms(expires, ttl))

    def compare_and_remove(self, key: bytes, version: int) -> bool:
        """Removes the record if it is there and has this version. Returns whether it did."""
        return self._write_if(lib.pypd_store_cas_remove, key, version)

    def discard(self, key: bytes) -> bool:
        """Removes a key. Returns whether it was there."""
        return self._write_if(lib.pypd_store_remove, key)

    def __delitem__(self, key: bytes) -> None:
        if not self.discard(key):
            raise KeyError(key)

    def pop(self, key: bytes, default: Any = _RAISE) -> Any:
        """Removes a key and returns its value: of several threads one gets it."""
        while True:
            found = self.get_versioned(key)
            if found is None:
                if default is _RAISE:
                    raise KeyError(key)
                return default
            if self.compare_and_remove(key, found[1]):
                return found[0]

    def setdefault(self, key: bytes, default: Any = None) -> Any:
        """The value of a key, which is `default` from now on if it has none."""
        while True:
            value = self.get(key)
            if value is not None:
                return value
            if self.insert(key, default):
                return default

    def increment(self, key: bytes, by: int = 1) -> int:
        """Adds to a number in decimal digits, 0 if the key is absent; in one step. Returns the sum."""
        data = _bytes(key)
        out = take_results()
        check(lib.pypd_store_increment(self._handle, data, len(data), by, out.sum))
        total: int = out.sum[0]
        give_back(out)
        return total

    def append(self, key: bytes, suffix: bytes) -> int:
        """Appends to a value, empty if the key is absent; in one step. Returns its new length."""
        data, (more, size) = _bytes(key), lend_bytes(suffix)
        out = take_results()
        check(lib.pypd_store_append(self._handle, data, len(data), more, size, out.word))
        length: int = out.word[0]
        give_back(out)
        return length

    def modify(
        self, key: bytes, change: Callable[[bytes | None], bytes | None], *, ttl: float | None = None
    ) -> bytes | None:
        """Gives the key the value `change(value)`, in one step; `change` gets None if the key is absent, and
        removes it by returning None. It is called again if another thread wrote to the key meanwhile. The new
        record never expires unless `ttl` is given. Returns the new value."""
        while True:
            found = self.get_versioned(key)
            after = change(None if found is None else found[0])
            if found is None:
                if after is None or self.insert(key, after, ttl=ttl):
                    return after
            elif after is None:
                if self.compare_and_remove(key, found[1]):
                    return None
            elif self.compare_and_swap(key, found[1], after, ttl=ttl):
                return after

    # ---- many records

    def get_many(self, keys: Iterable[bytes], default: Any = None) -> list[Any]:
        """The values of several keys, faster than one after the other."""
        lengths, data = _codec.batch(keys)
        if len(lengths) == 0:
            return []
        page = new_page()
        found = bytearray(len(lengths))
        check(
            lib.pypd_store_multi_get(
                self._handle, words_of(lengths), ffi.from_buffer(data), len(lengths),
                ffi.from_buffer("unsigned char[]", found), page,
            )  # fmt: skip
        )
        values = iter(_codec.column(page.values, page.count))
        return [next(values) if flag else default for flag in found]

    def batch(self) -> Batch:
        """Writes that become durable together:

            with store.batch() as batch:
                batch[b"from"] = b"90"
                batch[b"to"] = b"110"
                del batch[b"offer"]

        All of them are there after a crash, or none; no other thread sees a part. They are applied at the end of
        the `with` statement, unless it ends with an exception."""
        return Batch(self)

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Writes the records of a mapping, or pairs, as one atomic batch."""
        if more:
            raise TypeError("keys are bytes: give a mapping, or pairs")
        with self.batch() as batch:
            pairs = other.items() if hasattr(other, "items") else other
            for key, value in pairs:
                batch.put(key, value)

    def clear(self) -> None:
        """Removes all keys, one after the other."""
        for key in list(self):
            self.discard(key)

    # ---- iteration

    def range(
        self,
        start: bytes | None = None,
        stop: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Records with start <= key < stop, or whose keys begin with a prefix, in the order of keys, or from the
        last one down. Stores with an ordered index only; read by the page, as those of Index.range()."""
        if prefix is not None:
            if start is not None or stop is not None:
                raise InvalidArgumentError("a prefix stands for start and stop")
            start, stop = _bytes(prefix), bytes_after(_bytes(prefix))
        first = b"" if start is None else _bytes(start)
        last = None if stop is None else _bytes(stop)
        count = _ALL if limit is None else limit
        return self._down(first, last, count) if reverse else self._up(first, last, count)

    def _up(
        self, start: bytes, stop: bytes | None, limit: int
    ) -> Iterator[tuple[bytes, bytes]]:
        records = 16
        while limit > 0:
            page = new_page()
            wanted = min(records, limit)
            check(
                lib.pypd_store_scan(self._handle, start, len(start), wanted, _PAGE_BYTES, page)
            )
            keys = _codec.column(page.keys, page.count)
            for key, value in zip(keys, _codec.column(page.values, page.count)):
                if stop is not None and key >= stop:
                    return
                yield key, value
            if not page.full:
                return
            limit -= page.count
            start = keys[-1] + b"\0"
            records = min(8 * records, _PAGE_RECORDS)

    def _down(
        self, start: bytes, stop: bytes | None, limit: int
    ) -> Iterator[tuple[bytes, bytes]]:
        records = 16
        while limit > 0:
            page = new_page()
            wanted = min(records, limit)
            seek = (ffi.NULL, 0) if stop is None else (stop, len(stop))
            check(lib.pypd_store_scan_down(self._handle, *seek, wanted, _PAGE_BYTES, page))
            keys = _codec.column(page.keys, page.count)
            for key, value in zip(keys, _codec.column(page.values, page.count)):
                if key < start:
                    return
                yield key, value
            if not page.full:
                return
            limit -= page.count
            stop = keys[-1]
            records = min(8 * records, _PAGE_RECORDS)

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        page = new_page()
        check(lib.pypd_store_for_each(self._handle, _ALL, page))
        return zip(
            _codec.column(page.keys, page.count), _codec.column(page.values, page.count)
        )

    def __iter__(self) -> Iterator[bytes]:
        """The keys, in no particular order; collected in memory first. range() goes by the page."""
        return (key for key, _ in self._records())

    def items(self) -> ItemsView[bytes, bytes]:
        return _Items(self)

    def values(self) -> ValuesView[bytes]:
        return _Values(self)

    def __len__(self) -> int:
        """How many records there are, with those that have expired and are not compacted yet."""
        out = ffi.new("uint64_t *")
        check(lib.pypd_store_size(self._handle, out))
        total: int = out[0]
        return total

    # ---- inspection

    def check(self) -> list[str]:
        """What is wrong with the store, in sentences: nothing. Needs that nobody writes."""
        problems: list[str] = []
        context = ffi.new_handle(problems)
        check(lib.pypd_store_check(self._handle, lib.pypd_report, context))
        return problems

    def statistics(self) -> dict[str, float]:
        """Figures for people: records, bytes, compaction, DRAM."""
        figures: list[tuple[str, float]] = []
        context = ffi.new_handle(figures)
        check(lib.pypd_store_statistics(self._handle, lib.pypd_figure, context))
        return dict(figures)


class Batch:
    """Writes of a store that become durable together; see Store.batch(). For one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        out = ffi.new("perdure_batch **")
        check(lib.perdure_batch_create(out))
        self._batch = ffi.gc(out[0], lib.perdure_batch_free)
        self._count = 0

    def put(
        self, key: bytes, value: bytes, *, expires: Expiry = None, ttl: float | None = None
    ) -> None:
        k, v = _bytes(key), _bytes(value)
        check(
            lib.perdure_batch_put(self._batch, k, len(k), v, len(v), _expires_ms(expires, ttl))
        )
        self._count += 1

    def discard(self, key: bytes) -> None:
        """Removes a key, if it is there."""
        data = _bytes(key)
        check(lib.perdure_batch_remove(self._batch, data, len(data)))
        self._count += 1

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.put(key, value)

    def __delitem__(self, key: bytes) -> None:
        self.discard(key)

    def __len__(self) -> int:
        """How many writes there are."""
        return self._count

    def clear(self) -> None:
        check(lib.perdure_batch_clear(self._batch))
        self._count = 0

    def apply(self) -> None:
        """Carries them out. The batch stays as it is."""
        check(lib.pypd_store_apply(self._store._handle, self._batch))

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.apply()


class _Items(ItemsView[bytes, bytes]):
    _mapping: Store

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._mapping._records()


class _Values(ValuesView[bytes]):
    _mapping: Store

    def __iter__(self) -> Iterator[bytes]:
        return (value for _, value in self._mapping._records())
