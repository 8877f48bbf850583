"""Handles of the library. Calls are counted in C (shim.c): who closes waits for those under way, and who comes
later is refused."""

from __future__ import annotations

from typing import Any

from ._errors import check
from ._native import ffi, lib


class Handle:
    """An open pool, index or store."""

    def __init__(self, handle: Any) -> None:
        # Freed with this object, and closed then at the latest.
        self._handle = ffi.gc(handle, lib.pypd_release)

    # Of an open structure there is one object; compare contents as dict(index).
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def closed(self) -> bool:
        return bool(lib.pypd_is_closed(self._handle))

    def close(self) -> None:
        """Closes it in order, once other threads' calls have returned. To close again does nothing."""
        check(lib.pypd_close(self._handle))


class Results:
    """Where C puts what it answers."""

    __slots__ = ("count", "flag", "sum", "value", "word")

    def __init__(self) -> None:
        self.value = ffi.gc(ffi.new("perdure_value *"), lib.perdure_value_free)
        self.flag = ffi.new("int *")
        self.word = ffi.new("uint64_t *")
        self.sum = ffi.new("int64_t *")

    def bytes(self) -> bytes:
        """The value's bytes."""
        data: bytes = ffi.buffer(self.value.data, self.value.size)[:]
        return data


# Used again, so that a call allocates nothing. Whoever takes one has it alone, be it another thread, or a
# signal's handler in the midst of a call.
_idle: list[Results] = []
_BYTES_KEPT = 1 << 20


def take_results() -> Results:
    try:
        return _idle.pop()
    except IndexError:
        return Results()


def give_back(results: Results) -> None:
    if results.value.capacity <= _BYTES_KEPT and len(_idle) < 64:
        _idle.append(results)


def c_text(text: str | bytes, what: str) -> bytes:
    """Text for C, which ends at the first zero."""
    plain = text.encode() if isinstance(text, str) else text
    if b"\0" in plain:
        raise ValueError(f"{what} has a zero in it: {text!r}")
    return plain


def new_page() -> Any:
    """Room for records that C collects."""
    return ffi.gc(ffi.new("pypd_page *"), lib.pypd_page_free)


def made(create: Any, *arguments: Any) -> Any:
    """Calls what makes a handle."""
    out = ffi.new("pypd_handle **")
    check(create(*arguments, out))
    return out[0]
