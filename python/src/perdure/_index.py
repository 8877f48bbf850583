"""Any structure of the catalogue, as a mapping."""

from __future__ import annotations

import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator, MutableMapping, ValuesView
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._callbacks import pypd_figure, pypd_report, pypd_use  # noqa: F401: C calls them
from ._codec import BYTES, U64, WORD_MAX, Codec, IntCodec, bytes_after, words_of
from ._errors import InvalidArgumentError, WrongTypeError, check
from ._handle import Handle, give_back, new_page, take_results
from ._native import ffi, lib

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, NDArray

    from ._pool import Pool

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

_INSERT, _UPDATE, _UPSERT, _BULK_UPSERT = range(4)
_ALL = 2**64 - 1
_PAGE_RECORDS = 1024
_PAGE_BYTES = 1 << 20
_RAISE: Any = object()


class Index(Handle, MutableMapping[K, V], Generic[K, V]):
    """A structure of a pool: a mapping whose every write is durable when the call returns.

    Keys and values are `int` (0 to 2**64 - 1), `bytes`, or `str` (kept as UTF-8). Made by
    `Pool.create_index()` and `Pool.open_index()`. Any thread may call anything at any time; calls into the
    library do not hold the interpreter's lock.

    Ordered structures (`ordered`) iterate in the order of their keys, page by page, and have `range()`.
    Others collect what they have in memory first."""

    def __init__(
        self, pool: Pool, handle: Any, name: str, structure: str, ordered: bool, key: Codec, value: Codec
    ) -> None:
        super().__init__(handle)
        self._pool = pool  # stays open while this is reachable
        self._name = name
        self._structure = structure
        self._ordered = ordered
        self._key = key
        self._value = value
        self._plain_key = key.plain
        self._plain_value = value.lend
        self._words = value.kind == U64

    # ---- what it is

    @property
    def name(self) -> str:
        return self._name

    @property
    def structure(self) -> str:
        """The name of its structure in the catalogue, such as "plush"."""
        return self._structure

    @property
    def ordered(self) -> bool:
        return self._ordered

    @property
    def key_type(self) -> type:
        return self._key.type

    @property
    def value_type(self) -> type:
        return self._value.type

    def __repr__(self) -> str:
        state = "closed " if self.closed else ""
        types = f"{self._key.type.__name__} to {self._value.type.__name__}"
        return f"<{state}perdure.Index {self._name!r}: {self._structure}, {types}>"

    def __enter__(self) -> Index[K, V]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- single records

    def _lookup(self, key: K, missing: Any) -> Any:
        word, data, size = self._plain_key(key)
        out = take_results()
        status = lib.pypd_lookup(
            self._handle, self._key.kind, word, data, size, out.value, out.flag
        )
        if status:
            check(status)
        value = missing
        if out.flag[0]:
            value = out.value.word if self._words else self._value.value(0, out.bytes())
        give_back(out)
        return value

    def visit(self, key: K, use: Callable[[Any], R], default: Any = _RAISE) -> R:
        """Returns `use(value)` of the value where it lies: of bytes and str a read-only memoryview of the bytes in the
        pool, without a copy, which ends when `use` returns; of int the int. They stay as they are meanwhile, whoever
        writes to the key. (BzTree, Sheaf and the store copy them once.)

        `use` may use the index, but not close it (InUseError); it should be short, and not wait for other threads. BufferError if it
        keeps the view, or a part of it. KeyError, or `default`, if the key is absent."""
        word, data, size = self._plain_key(key)
        results: list[Any] = []
        errors: list[BaseException] = []

        def see(datum: Any) -> None:
            try:
                results.append(use(datum.word) if self._words else _show(datum, use))
            except BaseException as error:  # noqa: BLE001: C is in between
                errors.append(error)

        out = take_results()
        context = ffi.new_handle(see)
        status = lib.pypd_visit(
            self._handle, self._key.kind, word, data, size, lib.pypd_use, context, out.flag
        )
        give_back(out)
        if errors:
            raise errors[0]
        check(status)
        if results:
            result: R = results[0]
            return result
        if default is _RAISE:
            raise KeyError(key)
        return default  # type: ignore[no-any-return]

    def _write(self, verb: int, key: K, value: V) -> bool:
        key_word, key_data, key_size = self._plain_key(key)
        word, data, size = self._plain_value(value)
        out = take_results()
        status = lib.pypd_write(
            self._handle, verb, self._key.kind, key_word, key_data, key_size,
            self._value.kind, word, data, size, out.flag,
        )  # fmt: skip
        if status:
            check(status)
        done: bool = out.flag[0] != 0
        give_back(out)
        return done

    def __getitem__(self, key: K) -> V:
        value: V = self._lookup(key, _RAISE)
        if value is _RAISE:
            raise KeyError(key)
        return value

    def get(self, key: K, default: Any = None) -> Any:
        return self._lookup(key, default)

    def __contains__(self, key: object) -> bool:
        return self._lookup(key, _RAISE) is not _RAISE  # type: ignore[arg-type]

    def __setitem__(self, key: K, value: V) -> None:
        self._write(_UPSERT, key, value)

    def insert(self, key: K, value: V) -> bool:
        """Only if the key is absent. Returns whether it was."""
        return self._write(_INSERT, key, value)

    def replace(self, key: K, value: V) -> bool:
        """Only if the key is there. Returns whether it was."""
        return self._write(_UPDATE, key, value)

    def discard(self, key: K) -> bool:
        """Removes a key. Returns whether it was there."""
        word, data, size = self._plain_key(key)
        out = take_results()
        check(lib.pypd_remove(self._handle, self._key.kind, word, data, size, out.flag))
        done: bool = out.flag[0] != 0
        give_back(out)
        return done

    def __delitem__(self, key: K) -> None:
        if not self.discard(key):
            raise KeyError(key)

    def pop(self, key: K, default: Any = _RAISE) -> Any:
        """Removes a key and returns its value: of several threads one gets it."""
        while True:
            value = self._lookup(key, _RAISE)
            if value is _RAISE:
                if default is _RAISE:
                    raise KeyError(key)
                return default
            if self.compare_remove(key, value):
                return value

    def setdefault(self, key: K, default: Any = None) -> Any:
        """The value of a key, which is `default` from now on if it has none."""
        while True:
            value = self._lookup(key, _RAISE)
            if value is not _RAISE:
                return value
            if self.insert(key, default):
                return default

    # ---- reading and writing in one step

    def compare_exchange(self, key: K, expected: V, desired: V) -> bool:
        """Writes `desired` if the key is there with the value `expected`. Returns whether it did."""
        key_word, key_data, key_size = self._plain_key(key)
        old_word, old_data, old_size = self._plain_value(expected)
        word, data, size = self._plain_value(desired)
        out = take_results()
        check(
            lib.pypd_compare_exchange(
                self._handle, self._key.kind, key_word, key_data, key_size,
                self._value.kind, old_word, old_data, old_size, word, data, size, out.flag,
            )  # fmt: skip
        )
        done: bool = out.flag[0] != 0
        give_back(out)
        return done

    def compare_remove(self, key: K, expected: V) -> bool:
        """Removes the key if its value is `expected`. Returns whether it did."""
        key_word, key_data, key_size = self._plain_key(key)
        word, data, size = self._plain_value(expected)
        out = take_results()
        check(
            lib.pypd_compare_remove(
                self._handle, self._key.kind, key_word, key_data, key_size,
                self._value.kind, word, data, size, out.flag,
            )  # fmt: skip
        )
        done: bool = out.flag[0] != 0
        give_back(out)
        return done

    def increment(self, key: K, by: int = 1) -> int:
        """Adds to a value that is an int, 0 if the key is absent, modulo 2**64. Returns the sum."""
        word, data, size = self._plain_key(key)
        out = take_results()
        check(
            lib.pypd_increment(self._handle, self._key.kind, word, data, size, by, out.word)
        )
        total: int = out.word[0]
        give_back(out)
        return total

    def modify(self, key: K, change: Callable[[V | None], V | None]) -> V | None:
        """Gives the key the value `change(value)`, in one step; `change` gets None if the key is absent, and
        removes it by returning None. It is called again if another thread wrote to the key meanwhile, so it
        should do nothing else. Returns the new value. If `change` raises, nothing is changed."""
        while True:
            before = self._lookup(key, None)
            after = change(before)
            if before is None:
                if after is None or self.insert(key, after):
                    return after
            elif after is None:
                if self.compare_remove(key, before):
                    return None
            elif self.compare_exchange(key, before, after):
                return after

    # ---- many records

    def get_many(self, keys: Iterable[K], default: Any = None) -> list[Any]:
        """The values of several keys, faster than one after the other."""
        words, data = self._key.batch(keys)
        page = new_page()
        found = bytearray(len(words))
        if len(words) == 0:
            return []
        check(
            lib.pypd_multi_lookup(
                self._handle, self._key.kind, words_of(words), ffi.from_buffer(data), len(words),
                ffi.from_buffer("unsigned char[]", found), page,
            )  # fmt: skip
        )
        values = iter(self._value.column(page.values, page.count))
        return [next(values) if flag else default for flag in found]

    def _write_many(self, records: Iterable[tuple[K, V]], inserted: bool) -> list[bool]:
        keys: list[K] = []
        values: list[V] = []
        for key, value in records:
            keys.append(key)
            values.append(value)
        key_words, key_data = self._key.batch(keys)
        value_words, value_data = self._value.batch(values)
        flags = bytearray(len(keys))
        if not keys:
            return []
        check(
            lib.pypd_multi_write(
                self._handle,
                self._key.kind, words_of(key_words), ffi.from_buffer(key_data),
                self._value.kind, words_of(value_words), ffi.from_buffer(value_data),
                len(keys), ffi.from_buffer("unsigned char[]", flags) if inserted else ffi.NULL,
            )  # fmt: skip
        )
        return [flag != 0 for flag in flags]

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Writes the records of a mapping, or pairs. Each record is atomic and all are durable on return, with
        fewer fences than one after the other; the whole is not atomic (`Store.batch()` is)."""
        if hasattr(other, "keys") and not isinstance(other, Index):
            other = [(key, other[key]) for key in other.keys()]
        elif isinstance(other, Index):
            other = other.items()
        self._write_many(other, False)
        if more:
            self._write_many(more.items(), False)  # type: ignore[arg-type]

    def insert_many(self, records: Iterable[tuple[K, V]]) -> list[bool]:
        """Writes the records whose keys are absent. Returns of each whether it was written."""
        return self._write_many(records, True)

    def load(self, records: Iterable[tuple[K, V]]) -> int:
        """Writes many records, which are durable once all are written: a crash before the end may lose any of
        them. Faster than update() in structures that have a mode for it. Returns how many there were."""
        count = 0
        for key, value in records:
            self._write(_BULK_UPSERT, key, value)
            count += 1
        self.checkpoint()
        return count

    def checkpoint(self, threads: int = 0) -> None:
        """Makes durable what load() has written."""
        check(lib.pypd_checkpoint(self._handle, threads))

    def clear(self) -> None:
        """Removes all keys, one after the other."""
        for key in list(self):
            self.discard(key)

    # ---- iteration

    def _pages(self, start: Any, beyond: bool, limit: int) -> Iterator[tuple[list[K], list[V]]]:
        """From `start`, or behind it, in the order of keys."""
        word, data, size = self._plain_key(start) if start is not None else (0, b"", 0)
        records = 16  # the first page is small: many want few
        while limit > 0:
            if beyond:
                if self._key.kind == BYTES:
                    data, size = data + b"\0", size + 1
                elif word == WORD_MAX:
                    return
                else:
                    word += 1
            page = new_page()
            wanted = min(records, limit)
            check(
                lib.pypd_scan(
                    self._handle, self._key.kind, word, data, size, wanted, _PAGE_BYTES, page
                )
            )
            count = page.count
            if count == 0:
                return
            yield self._key.column(page.keys, count), self._value.column(page.values, count)
            if not page.full:
                return
            limit -= count
            beyond = True
            last = page.keys.words[count - 1]
            if self._key.kind == BYTES:
                begin = page.keys.words[count - 2] if count > 1 else 0
                data = ffi.buffer(page.keys.bytes, page.keys.byte_count)[begin:last]
                size = len(data)
            else:
                word = last
            records = min(8 * records, _PAGE_RECORDS)

    def _pages_down(
        self, stop: int | bytes | None, limit: int
    ) -> Iterator[tuple[list[K], list[V]]]:
        """Downwards from before `stop`, as it is stored, or from the last record on."""
        records = 16
        while limit > 0:
            word, data = 0, b""
            if isinstance(stop, int):
                word = stop
            elif stop is not None:
                data = stop
            page = new_page()
            check(
                lib.pypd_scan_back(
                    self._handle, stop is not None, self._key.kind, word, data, len(data),
                    min(records, limit), _PAGE_BYTES, page,
                )
            )  # fmt: skip
            keys = self._key.column(page.keys, page.count)
            yield keys, self._value.column(page.values, page.count)
            if not page.full:
                return
            limit -= page.count
            word, data, _ = self._plain_key(keys[-1])
            stop = data if self._key.kind == BYTES else word
            records = min(8 * records, _PAGE_RECORDS)

    def range(
        self,
        start: K | None = None,
        stop: K | None = None,
        *,
        prefix: K | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[K, V]]:
        """Records with start <= key < stop, or whose keys begin with a prefix, in the order of keys, or from the
        last one down: words as numbers, bytes and str as their bytes. Ordered structures only.

        Records are read by the page: one that is written meanwhile may or may not be seen, others are seen
        once. The index may be changed meanwhile."""
        if not self._ordered:
            raise WrongTypeError(
                f"{self._structure} keeps no order: iterate over items(), or use an ordered structure, "
                "such as fptree"
            )
        if prefix is not None:
            if start is not None or stop is not None:
                raise InvalidArgumentError("a prefix stands for start and stop")
            if self._key.kind != BYTES:
                raise TypeError("a prefix is of bytes or str; the keys are int")
        return self._range(start, stop, prefix, _ALL if limit is None else limit, reverse)

    def remove_range(
        self, start: K | None = None, stop: K | None = None, *, prefix: K | None = None
    ) -> int:
        """Removes the records that range() would give, each of them atomically. Returns how many it removed."""
        return sum(self.discard(key) for key, _ in self.range(start, stop, prefix=prefix))

    def _range(
        self, start: Any, stop: Any, prefix: Any, limit: int, reverse: bool = False
    ) -> Iterator[tuple[K, V]]:
        end: Any = None
        as_bytes = self._key.kind == BYTES
        if prefix is not None:
            start = prefix
            end = bytes_after(self._plain_key(prefix)[1])
        elif stop is not None:
            word, data, _ = self._plain_key(stop)
            end = data if as_bytes else word
        is_str = self._key.type is str
        if reverse:
            least: Any = None
            if start is not None:
                word, data, _ = self._plain_key(start)
                least = data if as_bytes else word
            for keys, values in self._pages_down(end, limit):
                for key, value in zip(keys, values):
                    if least is not None and (key.encode() if is_str else key) < least:  # type: ignore[attr-defined]
                        return
                    yield key, value
            return
        for keys, values in self._pages(start, False, limit):
            for key, value in zip(keys, values):
                if end is not None and (key.encode() if is_str else key) >= end:  # type: ignore[attr-defined]
                    return
                yield key, value

    def _unordered(self, count_max: int = _ALL) -> tuple[list[K], list[V]]:
        page = new_page()
        check(lib.pypd_for_each(self._handle, count_max, page))
        return self._key.column(page.keys, page.count), self._value.column(page.values, page.count)

    def _records(self) -> Iterator[tuple[K, V]]:
        if self._ordered:
            return self._range(None, None, None, _ALL)
        return zip(*self._unordered())

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._records())

    def __reversed__(self) -> Iterator[K]:
        """The keys from the last one down. Ordered structures only."""
        return (key for key, _ in self.range(reverse=True))

    def items(self) -> ItemsView[K, V]:
        return _Items(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def __len__(self) -> int:
        """How many records there are, by a walk over all of them."""
        out = ffi.new("uint64_t *")
        check(lib.pypd_count(self._handle, out))
        total: int = out[0]
        return total

    def __bool__(self) -> bool:
        """Whether there is a record. Without an order: by a walk over all of them."""
        if self._ordered:
            return next(self._range(None, None, None, 1), None) is not None
        return bool(self._unordered(1)[0])

    # ---- NumPy

    def _arrays(self) -> Any:
        if self._key.kind != U64 or not self._words:
            raise WrongTypeError("arrays are for indexes from int to int")
        import numpy

        return numpy

    @staticmethod
    def _words_in(numpy: Any, array: ArrayLike) -> Any:
        if isinstance(array, (list, tuple)):  # whose type NumPy would guess
            return numpy.array([IntCodec().plain(one)[0] for one in array], dtype=numpy.uint64)
        given = numpy.asarray(array)
        if given.dtype.kind not in "ui" and given.size > 0:
            raise TypeError(f"an array of integers is wanted, not of {given.dtype}")
        if given.dtype.kind == "i" and given.size > 0 and given.min() < 0:
            raise OverflowError("a negative number is no word: 0 to 2**64 - 1")
        return numpy.ascontiguousarray(given, dtype=numpy.uint64).reshape(-1)

    @staticmethod
    def _c(array: Any, kind: str = "uint64_t[]") -> Any:
        return ffi.from_buffer(kind, array) if array.size else ffi.NULL

    def lookup_array(
        self, keys: ArrayLike
    ) -> tuple[NDArray[numpy.uint64], NDArray[numpy.bool_]]:
        """The values of an array of keys, and which of them are there; others have the value 0."""
        numpy = self._arrays()
        words = self._words_in(numpy, keys)
        values = numpy.zeros(words.size, dtype=numpy.uint64)
        found = numpy.zeros(words.size, dtype=numpy.bool_)
        check(
            lib.pypd_lookup_words(
                self._handle, self._c(words), words.size, self._c(values),
                self._c(found, "unsigned char[]"),
            )  # fmt: skip
        )
        return values, found

    def _two(self, keys: ArrayLike, values: ArrayLike) -> Any:
        numpy = self._arrays()
        words, others = self._words_in(numpy, keys), self._words_in(numpy, values)
        if words.size != others.size:
            raise InvalidArgumentError(f"{words.size} keys, and {others.size} values")
        return numpy, words, others

    def upsert_array(self, keys: ArrayLike, values: ArrayLike) -> None:
        """Writes records of two arrays, as update() does."""
        _, words, others = self._two(keys, values)
        check(
            lib.pypd_upsert_words(self._handle, self._c(words), self._c(others), words.size)
        )

    def insert_array(self, keys: ArrayLike, values: ArrayLike) -> NDArray[numpy.bool_]:
        """Writes those whose keys are absent. Returns which they were."""
        numpy, words, others = self._two(keys, values)
        inserted = numpy.zeros(words.size, dtype=numpy.bool_)
        check(
            lib.pypd_insert_words(
                self._handle, self._c(words), self._c(others), words.size,
                self._c(inserted, "unsigned char[]"),
            )  # fmt: skip
        )
        return inserted  # type: ignore[no-any-return]

    def scan_array(
        self, start: int = 0, limit: int = 1 << 16
    ) -> tuple[NDArray[numpy.uint64], NDArray[numpy.uint64]]:
        """Up to `limit` records with keys from `start` on, in the order of keys, as two arrays."""
        numpy = self._arrays()
        keys = numpy.empty(limit, dtype=numpy.uint64)
        values = numpy.empty(limit, dtype=numpy.uint64)
        out = ffi.new("uint64_t *")
        check(
            lib.pypd_scan_words(
                self._handle, start, limit, self._c(keys), self._c(values), out
            )
        )
        count = out[0]
        return keys[:count].copy(), values[:count].copy()

    # ---- inspection

    def check(self) -> list[str]:
        """What is wrong with the structure, in sentences: nothing. Needs that nobody writes."""
        problems: list[str] = []
        context = ffi.new_handle(problems)
        check(lib.pypd_check(self._handle, lib.pypd_report, context))
        return problems

    def statistics(self) -> dict[str, float]:
        """Figures for people: levels, fill, DRAM and pool bytes."""
        figures: list[tuple[str, float]] = []
        context = ffi.new_handle(figures)
        check(lib.pypd_statistics(self._handle, lib.pypd_figure, context))
        return dict(figures)


def _show(datum: Any, use: Callable[[memoryview], R]) -> R:
    """Calls `use` with the bytes of a datum of C, which are there for the call."""
    memory = ffi.buffer(datum.data, datum.size) if datum.size else b""
    references = sys.getrefcount(memory)  # how many that are differs between releases of Python
    view = memoryview(memory).toreadonly()
    try:
        result = use(view)
    finally:
        view.release()  # BufferError: something else still reads it
    # Parts of the view keep the memory's object.
    if datum.size and sys.getrefcount(memory) > references:
        raise BufferError("a part of the value's view was kept; it ends with the call")
    return result


class _Items(ItemsView[K, V]):
    _mapping: Index[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping._records()


class _Values(ValuesView[V]):
    _mapping: Index[Any, V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping._records())
