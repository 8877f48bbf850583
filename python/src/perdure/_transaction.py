"""Transactions: writes to several keys, of several indexes of one pool, all or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._callbacks import pypd_do_work  # noqa: F401: C calls it
from ._codec import U64
from ._errors import InvalidArgumentError, check
from ._handle import give_back, take_results
from ._index import Index
from ._native import ffi, lib

if TYPE_CHECKING:
    from ._pool import Pool

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

_INSERT, _UPDATE, _UPSERT = range(3)
_RAISE: Any = object()


class Transaction:
    """Writes to indexes of a pool that happen together or not at all; made by `Pool.transaction()` and
    `Pool.transact()`. `transaction[index]` has the calls of the index, within the transaction: they see what it has
    written, which others do not before it commits.

    Serializable: the commit raises `ConflictError`, and has changed nothing, if a value that the transaction has
    read is another one by then. What it writes without reading makes no conflict. Limits: 64 indexes, 1 MiB of keys
    and values."""

    def __init__(self, transaction: Any, of_transact: bool) -> None:
        self._transaction = transaction
        self._of_transact = of_transact
        self._lock = threading.Lock()

    def __getitem__(self, index: Index[K, V]) -> IndexInTransaction[K, V]:
        if not isinstance(index, Index):
            raise TypeError(
                f"an Index takes part in a transaction, not a {type(index).__name__}; a store does when it was "
                "opened by open_index()"
            )
        return IndexInTransaction(self, index)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.abort()
        elif not self.closed:
            self.commit()

    def commit(self) -> None:
        """All that was written happens; it is durable on return. The transaction has ended, also by an error."""
        self._require_own()
        with self._lock:
            try:
                check(lib.pypd_transaction_commit(self._transaction))
            finally:
                lib.pypd_transaction_free(self._transaction)

    def abort(self) -> None:
        """Nothing has happened. The transaction has ended; of one that has ended already it does nothing."""
        self._require_own()
        with self._lock:
            lib.pypd_transaction_free(self._transaction)

    def _require_own(self) -> None:
        if self._of_transact:
            raise InvalidArgumentError("transact() ends its transaction itself; raise to abort it")

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return bool(self._transaction.of == ffi.NULL)


class IndexInTransaction(Generic[K, V]):
    """An index within a transaction."""

    __slots__ = ("_handle", "_index", "_lock", "_transaction")

    def __init__(self, transaction: Transaction, index: Index[K, V]) -> None:
        self._transaction = transaction._transaction
        self._lock = transaction._lock
        self._index = index
        self._handle = index._handle

    def _lookup(self, key: K, missing: Any) -> Any:
        index = self._index
        word, data, size = index._plain_key(key)
        out = take_results()
        with self._lock:
            check(
                lib.pypd_transaction_lookup(
                    self._transaction, self._handle, index._key.kind, word, data, size,
                    out.value, out.flag,
                )  # fmt: skip
            )
        value = missing
        if out.flag[0]:
            is_word = index._value.kind == U64
            value = out.value.word if is_word else index._value.value(0, out.bytes())
        give_back(out)
        return value

    def _write(self, verb: int, key: K, value: V) -> bool:
        index = self._index
        key_word, key_data, key_size = index._plain_key(key)
        word, data, size = index._plain_value(value)
        out = take_results()
        with self._lock:
            check(
                lib.pypd_transaction_write(
                    self._transaction, self._handle, verb, index._key.kind, key_word, key_data,
                    key_size, index._value.kind, word, data, size, out.flag,
                )  # fmt: skip
            )
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

    def __contains__(self, key: K) -> bool:
        return self._lookup(key, _RAISE) is not _RAISE

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
        index = self._index
        word, data, size = index._plain_key(key)
        out = take_results()
        with self._lock:
            check(
                lib.pypd_transaction_remove(
                    self._transaction, self._handle, index._key.kind, word, data, size, out.flag
                )
            )
        done: bool = out.flag[0] != 0
        give_back(out)
        return done

    def __delitem__(self, key: K) -> None:
        if not self.discard(key):
            raise KeyError(key)

    def increment(self, key: K, by: int = 1) -> int:
        """Adds to a value that is an int, 0 if the key is absent, modulo 2**64. Returns the sum."""
        index = self._index
        word, data, size = index._plain_key(key)
        out = take_results()
        with self._lock:
            check(
                lib.pypd_transaction_increment(
                    self._transaction, self._handle, index._key.kind, word, data, size, by, out.word
                )
            )
        total: int = out.word[0]
        give_back(out)
        return total


def begin(pool: Pool) -> Transaction:
    out = ffi.gc(ffi.new("pypd_transaction *"), lib.pypd_transaction_free)
    check(lib.pypd_transaction_begin(pool._handle, out))
    return Transaction(out, False)


def transact(pool: Pool, work: Callable[[Transaction], R]) -> R:
    transaction = Transaction(ffi.new("pypd_transaction *"), True)
    results: list[R] = []
    raised: list[BaseException] = []

    # Called by C: once, and again after a conflict.
    def attempt() -> int:
        results.clear()
        raised.clear()
        try:
            results.append(work(transaction))
        except BaseException as error:
            raised.append(error)
            return int(lib.PYPD_RAISED)
        return 0

    context = ffi.new_handle(attempt)
    status = lib.pypd_transact(pool._handle, lib.pypd_do_work, context, transaction._transaction)
    if raised:
        raise raised[0]
    check(status)
    return results[0]
