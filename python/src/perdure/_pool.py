"""Pools: files, or anonymous memory, that hold structures."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from ._callbacks import pypd_event, pypd_structure, pypd_type  # noqa: F401: C calls them
from ._codec import U64, codec_for, codec_of
from ._errors import InUseError, NoSuchNameError, check
from ._handle import Handle, c_text, give_back, made, take_results
from ._index import Index
from ._native import ffi, lib
from ._store import Store
from ._transaction import Transaction, begin, transact

K = TypeVar("K", int, bytes, str)
V = TypeVar("V", int, bytes, str)
H = TypeVar("H", bound=Handle)
R = TypeVar("R")
Durability = Literal["best", "process", "power"]
Domain = Literal["page", "line", "byte"]
EventKind = Literal["opened", "recovered", "grown", "nearly-full", "damaged"]

_EVENTS: tuple[EventKind, ...] = ("opened", "recovered", "grown", "nearly-full", "damaged")
_DURABILITIES = ("best", "process", "power")
_DOMAINS = (None, "page", "line", "byte")


@dataclass(frozen=True)
class PoolInfo:
    """What is known of an open pool."""

    capacity_bytes: int
    size_bytes: int  # that it occupies on its medium
    allocated_bytes: int
    free_bytes: int  # in free blocks of what it has grown to
    generation: int  # how often it was opened for writing
    format_version: int
    clean: bool  # whether the last close before this open was clean
    read_only: bool
    durability: str
    uuid: str
    medium: str  # "file", "tmpfs", "dax", ...
    domain: str  # "page", "line", "byte"


@dataclass(frozen=True)
class PoolEvent:
    """What happens to a pool, with its sizes at that moment."""

    kind: EventKind
    path: str  # of the pool; empty of an anonymous one
    message: str  # a sentence for a log
    size_bytes: int  # what the pool has grown to
    used_bytes: int
    capacity_bytes: int


# Of hooks that C may call until the last structure of their pool is closed, whenever that is: they stay.
_hooks: list[Any] = []


def _hook_of(on_event: Callable[[PoolEvent], None]) -> Any:
    def tell(event: Any) -> None:
        told = PoolEvent(
            kind=_EVENTS[event.kind],
            path=ffi.string(event.path).decode(errors="replace"),
            message=ffi.string(event.message).decode(errors="replace"),
            size_bytes=event.size_bytes,
            used_bytes=event.used_bytes,
            capacity_bytes=event.capacity_bytes,
        )
        on_event(told)

    hook = ffi.new_handle(tell)
    _hooks.append(hook)
    return hook


@dataclass(frozen=True)
class StructureInfo:
    """A structure of a pool."""

    name: str
    structure: str  # of the catalogue, such as "plush"
    key: type  # int or bytes
    value: type


@dataclass(frozen=True)
class PoolInspection:
    """What `Pool.inspect()` finds, in a pool that a process may have open for writing at that moment."""

    open_to_write: bool  # a process has it open for writing
    info: PoolInfo
    structures: list[StructureInfo]


@dataclass(frozen=True)
class CatalogEntry:
    """A structure that pools can have."""

    name: str
    family: str
    ordered: bool
    kinds: frozenset[tuple[type, type]]  # pairs of int and bytes: keys and values


def _kind(kind: int) -> type:
    return int if kind == U64 else bytes


def _info_of(info: Any) -> PoolInfo:
    return PoolInfo(
        capacity_bytes=info.capacity_bytes,
        size_bytes=info.size_bytes,
        allocated_bytes=info.allocated_bytes,
        free_bytes=info.free_bytes,
        generation=info.generation,
        format_version=info.format_version,
        clean=info.clean != 0,
        read_only=info.read_only != 0,
        durability=_DURABILITIES[info.durability],
        uuid=ffi.string(info.uuid).decode(),
        medium=ffi.string(info.medium).decode(),
        domain=ffi.string(info.domain).decode(),
    )


def catalog() -> list[CatalogEntry]:
    """Every structure there is, in the order of the documentation's table."""
    found: list[tuple[str, str, bool, int]] = []
    context = ffi.new_handle(found)
    check(lib.perdure_catalog(lib.pypd_type, context))
    return [
        CatalogEntry(
            name,
            family,
            ordered,
            frozenset(
                (_kind(key), _kind(value))
                for key in (0, 1)
                for value in (0, 1)
                if kinds >> (2 * key + value) & 1
            ),
        )
        for name, family, ordered, kinds in found
    ]


_ordered = {entry.name: entry.ordered for entry in catalog()}


def _options(options: dict[str, Any]) -> tuple[Any, int, list[Any]]:
    """An array of options for C, how many there are, and what must stay alive meanwhile."""
    texts: list[Any] = []
    array = ffi.new("perdure_option[]", len(options))
    for at, (name, value) in enumerate(options.items()):
        texts += [
            ffi.new("char[]", c_text(name, "an option")),
            ffi.new("char[]", c_text(str(value), "an option")),
        ]
        array[at].name, array[at].value = texts[-2:]
    return array, len(options), texts


def _number_of(value: Any, names: tuple[Any, ...], what: str) -> int:
    if value not in names:
        known = ", ".join(repr(name) for name in names if name is not None)
        raise ValueError(f"{what} is {value!r}; it is one of {known}")
    return names.index(value)


class Pool(Handle):
    """An open pool. `Pool.create()`, `Pool.open()` and `Pool.anonymous()` make one; use it in a `with`
    statement, or close() it: what is not closed in order is recovered when it is opened the next time."""

    def __init__(self, handle: Any, path: str | None) -> None:
        super().__init__(handle)
        self._path = path
        self._open: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._lock = threading.Lock()  # of _open
        _pools.add(self)

    @staticmethod
    def _c_options(
        capacity: int = 0,
        growth: int = 0,
        reserve: int = 0,
        durability: Durability = "best",
        domain: Domain | None = None,
        read_only: bool = False,
        verify: bool = False,
        seal: bool = True,
        verify_payload: bool = True,
        huge_pages: bool = True,
        capacity_at_least: int = 0,
        serve_backups: bool = False,
        copy_max: int = 0,
        on_event: Callable[[PoolEvent], None] | None = None,
        nearly_full_percent: int = 90,
    ) -> Any:
        options = ffi.new("perdure_pool_options *")
        options.size = ffi.sizeof("perdure_pool_options")
        options.capacity_bytes = capacity
        options.growth_bytes = growth
        options.reserve_bytes = reserve
        options.durability = _number_of(durability, _DURABILITIES, "durability")
        options.domain = _number_of(domain, _DOMAINS, "domain")
        options.read_only = read_only
        options.verify = verify
        options.no_seal = not seal
        options.trust_payload = not verify_payload
        options.small_pages = not huge_pages
        options.capacity_at_least_bytes = capacity_at_least
        options.serve_backups = serve_backups
        options.copy_bytes_max = copy_max
        if on_event is not None:
            if not 0 <= nearly_full_percent <= 100:
                raise ValueError(f"nearly_full_percent is {nearly_full_percent}; it is 0 to 100")
            options.on_event = ffi.addressof(lib, "pypd_tell")
            options.on_event_context = _hook_of(on_event)
            options.nearly_full_percent = nearly_full_percent or 101  # never
        return options

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        capacity: int = 1 << 30,
        *,
        growth: int = 0,
        reserve: int = 0,
        durability: Durability = "best",
        domain: Domain | None = None,
        seal: bool = True,
        verify_payload: bool = True,
        huge_pages: bool = True,
        serve_backups: bool = False,
        on_event: Callable[[PoolEvent], None] | None = None,
        nearly_full_percent: int = 90,
    ) -> Pool:
        """Makes a pool in a file that is not there yet. It may grow to `capacity` bytes; the file grows by
        `growth` bytes when it must, and has `reserve` of them from the beginning.

        `durability`: "process" (what is written survives the process), "power" (and a power failure:
        DurabilityError where the medium cannot), or "best" (what the medium can do without a system call for
        each write). `serve_backups`: other processes of this user may have backups made (backup_live). `on_event` is
        told what happens to the pool, in the middle of the call that makes it happen, and by any thread: it must be
        quick, and not use the pool or anything in it; `nearly_full_percent`: when the event of that name comes. `seal`,
        `verify_payload`, `huge_pages` and `domain` are as in perdure/pool.h."""
        options = cls._c_options(
            capacity, growth, reserve, durability, domain, False, False, seal, verify_payload, huge_pages,
            serve_backups=serve_backups, on_event=on_event, nearly_full_percent=nearly_full_percent,
        )  # fmt: skip
        return cls(made(lib.pypd_pool_create, c_text(os.fsencode(path), "a path"), options), os.fspath(path))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        verify: bool = False,
        growth: int = 0,
        durability: Durability = "best",
        domain: Domain | None = None,
        seal: bool = True,
        verify_payload: bool = True,
        huge_pages: bool = True,
        capacity_at_least: int = 0,
        serve_backups: bool = False,
        copy_max: int = 0,
        on_event: Callable[[PoolEvent], None] | None = None,
        nearly_full_percent: int = 90,
    ) -> Pool:
        """Opens a pool, and completes what a crash interrupted. `read_only`: on a private copy; the file is not
        written to. `verify`: compares all of it with the seals of the last close first. `capacity_at_least`: a pool
        that may grow to fewer bytes may grow to so many from now on; releases that know pool format 2 alone refuse
        it then. `serve_backups`: other processes of this user may have backups made (backup_live). `copy_max`: how
        many bytes of memory a copy may take, which is read where permissions let nobody lock the file; 0: half of
        what the machine has free. `on_event`, `nearly_full_percent`: as in create()."""
        options = cls._c_options(
            0, growth, 0, durability, domain, read_only, verify, seal, verify_payload, huge_pages,
            capacity_at_least, serve_backups, copy_max, on_event, nearly_full_percent,
        )  # fmt: skip
        return cls(made(lib.pypd_pool_open, c_text(os.fsencode(path), "a path"), options), os.fspath(path))

    @classmethod
    def anonymous(cls, capacity: int = 1 << 30, *, huge_pages: bool = True) -> Pool:
        """A pool in memory, which ends with the process: for tests."""
        options = cls._c_options(capacity, huge_pages=huge_pages)
        return cls(made(lib.pypd_pool_anonymous, options), None)

    @property
    def path(self) -> str | None:
        """Its file; None if it is anonymous."""
        return self._path

    def __repr__(self) -> str:
        return f"<{'closed ' if self.closed else ''}perdure.Pool {self._path or 'anonymous'!r}>"

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the structures that are open, then the pool, cleanly; once other threads' calls have returned.
        To close again does nothing."""
        for attempts_left in (2, 1, 0):
            with self._lock:
                open_now = list(self._open)
            for structure in open_now:
                structure.close()
            try:
                return super().close()
            except InUseError:
                if attempts_left == 0:
                    raise  # other threads go on opening structures

    def sync(self) -> None:
        """What is written survives a power failure where the medium can: msync of an ordinary file."""
        check(lib.pypd_pool_sync(self._handle))

    def backup(
        self, path: str | os.PathLike[str], base: str | os.PathLike[str] | None = None
    ) -> None:
        """A copy of the pool as it is at one instant, while other threads write to it. With `base`, an earlier
        backup, only what differs from that, which must be there for restore(), beside it or where it was. Replaces
        an earlier backup, but no other file. What it asks of signal handlers: docs/operations.md."""
        base_text = ffi.NULL if base is None else c_text(os.fsencode(base), "a path")
        check(lib.pypd_pool_backup(self._handle, c_text(os.fsencode(path), "a path"), base_text))

    @staticmethod
    def backup_live(
        pool: str | os.PathLike[str],
        path: str | os.PathLike[str],
        base: str | os.PathLike[str] | None = None,
    ) -> None:
        """The same of the pool file `pool` that another process has open to write with `serve_backups`: that process
        makes the backup, and goes on. `LockedError`: it does not make any."""
        base_text = ffi.NULL if base is None else c_text(os.fsencode(base), "a path")
        check(
            lib.perdure_pool_backup_live(
                c_text(os.fsencode(pool), "a path"), c_text(os.fsencode(path), "a path"), base_text
            )
        )

    @staticmethod
    def restore(backup: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
        """Makes a pool, in a file that is not there yet, of a backup. All of it is verified: `CorruptError`, and no
        file, if it was changed."""
        check(
            lib.perdure_pool_restore(
                c_text(os.fsencode(backup), "a path"), c_text(os.fsencode(path), "a path")
            )
        )

    def check(self) -> list[str]:
        """What is wrong with the pool, in sentences: nothing. Needs that nobody writes."""
        problems: list[str] = []
        context = ffi.new_handle(problems)
        check(lib.pypd_pool_check(self._handle, lib.pypd_report, context))
        return problems

    def info(self) -> PoolInfo:
        info = ffi.new("perdure_pool_info *")
        info.size = ffi.sizeof("perdure_pool_info")
        check(lib.pypd_pool_info(self._handle, info))
        return _info_of(info)

    @staticmethod
    def inspect(path: str | os.PathLike[str]) -> PoolInspection:
        """What the file of a pool tells while another process may have it open for writing. Takes no lock, and needs
        read permission alone. What only that process knows of `info` (clean, durability, domain) means nothing then."""
        info = ffi.new("perdure_pool_info *")
        info.size = ffi.sizeof("perdure_pool_info")
        found: list[tuple[str, str, int, int]] = []
        context = ffi.new_handle(found)
        open_to_write = ffi.new("int *")
        check(
            lib.perdure_pool_inspect(
                c_text(os.fsencode(path), "a path"), info, lib.pypd_structure, context, open_to_write
            )
        )
        return PoolInspection(
            open_to_write=open_to_write[0] != 0,
            info=_info_of(info),
            structures=[
                StructureInfo(name, kind, _kind(key), _kind(value)) for name, kind, key, value in found
            ],
        )

    # ---- structures

    def structures(self) -> list[StructureInfo]:
        """What the pool has."""
        found: list[tuple[str, str, int, int]] = []
        context = ffi.new_handle(found)
        check(lib.pypd_pool_structures(self._handle, lib.pypd_structure, context))
        return [
            StructureInfo(name, kind, _kind(key), _kind(value)) for name, kind, key, value in found
        ]

    def __contains__(self, name: object) -> bool:
        """Whether there is a structure of this name."""
        return any(one.name == name for one in self.structures())

    def __iter__(self) -> Iterator[str]:
        """The names of its structures."""
        return iter([one.name for one in self.structures()])

    def drop(self, name: str) -> int:
        """Removes a structure that is not open, with all that it holds, in one step that a crash does not cut.
        Returns how many bytes of the pool are free again."""
        out = take_results()
        check(lib.pypd_pool_drop(self._handle, c_text(name, "a name"), out.word))
        freed: int = out.word[0]
        give_back(out)
        return freed

    def rename(self, name: str, new_name: str) -> None:
        """Gives a structure that is not open another name."""
        check(
            lib.pypd_pool_rename(self._handle, c_text(name, "a name"), c_text(new_name, "a name"))
        )

    def shrink(self) -> int:
        """Gives the free end of the pool's file back to its file system, while no structure is open (`InUseError`).
        Returns by how many bytes it is shorter. Nothing is moved; the pool grows again when it must."""
        out = take_results()
        check(lib.pypd_pool_shrink(self._handle, out.word))
        shrunk: int = out.word[0]
        give_back(out)
        return shrunk

    def transaction(self) -> Transaction:
        """Writes to several keys, of several indexes, that happen together or not at all:

            with pool.transaction() as t:
                t[accounts].increment("alice", -10)
                t[accounts].increment("bob", 10)
                t[audit][4711] = "10 from alice to bob"

        Committed, and durable, when the block ends; an exception aborts it. `ConflictError` if others have changed
        what it has read: nothing has happened, and another attempt may do (transact() makes them)."""
        return begin(self)

    def transact(self, work: Callable[[Transaction], R]) -> R:
        """Calls `work` with a transaction, commits, and does both again after a conflict; after some attempts while
        other transactions of the pool wait. So `work` should do nothing but use the transaction. Returns what it
        returned last; if it raises, nothing has happened."""
        return transact(self, work)

    @overload
    def create_index(
        self, name: str, structure: str, key: type[K], value: type[V], **options: Any
    ) -> Index[K, V]: ...
    @overload
    def create_index(
        self, name: str, structure: str, key: type[K], **options: Any
    ) -> Index[K, bytes]: ...
    @overload
    def create_index(self, name: str, structure: str = ..., **options: Any) -> Index[bytes, bytes]: ...
    def create_index(
        self,
        name: str,
        structure: str = "plush",
        key: type = bytes,
        value: type = bytes,
        **options: Any,
    ) -> Any:
        """Makes a structure of the catalogue: "plush" (a hash table that writes fast), "fptree" (ordered), or any
        other of `perdure.catalog()`. Keys and values are `int`, `bytes` or `str`; options are the structure's,
        as `perdure list` tells them: `pool.create_index("words", "plush", str, int, partitions=16)`."""
        key_codec, value_codec = codec_of(key), codec_of(value)
        array, count, alive = _options(options)
        handle = made(
            lib.pypd_index_create, self._handle, c_text(name, "a name"), c_text(structure, "a structure"),
            key_codec.kind, value_codec.kind, array, count,
        )  # fmt: skip
        index: Index[Any, Any] = Index(
            self, handle, name, structure, _ordered[structure], key_codec, value_codec
        )
        return self._add(index)

    def _type_of(self, name: str) -> str:
        for one in self.structures():
            if one.name == name:
                return one.structure
        raise NoSuchNameError(f"{self._path or 'the pool'} has no structure {name!r}")

    @overload
    def open_index(
        self, name: str, key: type[K], value: type[V], **options: Any
    ) -> Index[K, V]: ...
    @overload
    def open_index(self, name: str, key: type[K], **options: Any) -> Index[K, Any]: ...
    @overload
    def open_index(self, name: str, **options: Any) -> Index[Any, Any]: ...
    def open_index(
        self, name: str, key: type | None = None, value: type | None = None, **options: Any
    ) -> Any:
        """Opens a structure, and completes what a crash interrupted. Without `key` and `value` its byte strings
        are `bytes`; give `str` for text."""
        structure = self._type_of(name)
        array, count, alive = _options(options)
        handle = made(lib.pypd_index_open, self._handle, c_text(name, "a name"), array, count)
        try:
            kinds = ffi.new("perdure_kind[2]")
            check(lib.pypd_index_kinds(handle, kinds, kinds + 1))
            key_codec = codec_for(key, kinds[0], "key", name)
            value_codec = codec_for(value, kinds[1], "value", name)
        except BaseException:
            lib.pypd_release(handle)
            raise
        index: Index[Any, Any] = Index(
            self, handle, name, structure, _ordered[structure], key_codec, value_codec
        )
        return self._add(index)

    def create_store(self, name: str, **options: Any) -> Store:
        """Makes a key-value store, from bytes to bytes: options are `ordered` (scans in the order of keys; else a
        hash index), `partitions`, `block_bytes`, `boundaries` (keys that cut it into partitions), and those of
        open_store()."""
        return self._add(Store(self, self._make_store(lib.pypd_store_create, name, options), name))

    def open_store(self, name: str, **options: Any) -> Store:
        """Opens a store: options are `ordered`, `garbage_percent`, `recovery_threads`, `workers`, `balance`, as in
        perdure/store.h."""
        return self._add(Store(self, self._make_store(lib.pypd_store_open, name, options), name))

    def _add(self, structure: H) -> H:
        with self._lock:
            self._open.add(structure)
        return structure

    def _make_store(self, make: Any, name: str, options: dict[str, Any]) -> Any:
        given = ffi.new("perdure_store_options *")
        given.size = ffi.sizeof("perdure_store_options")
        ordered = options.pop("ordered", None)
        given.index = 0 if ordered is None else 2 if ordered else 1
        boundaries = [bytes(one) for one in options.pop("boundaries", ())]
        datums = ffi.new("perdure_datum[]", len(boundaries))
        alive = [ffi.from_buffer(one) for one in boundaries]
        for datum, one in zip(datums, alive):
            datum.kind, datum.data, datum.size = lib.PERDURE_BYTES, one, len(one)
        given.boundaries, given.boundary_count = datums, len(boundaries)
        known = (
            "partitions", "block_bytes", "garbage_percent", "recovery_threads", "workers", "balance",
        )  # fmt: skip
        for option, value in options.items():
            if option not in known:
                raise TypeError(f"a store has no option {option!r}")
            setattr(given, option, int(value))
        return made(make, self._handle, c_text(name, "a name"), given)


# Closed when the interpreter ends, so that the next opening has nothing to recover.
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()
