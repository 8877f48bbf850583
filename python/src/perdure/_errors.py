"""Errors: one class for each code of the library, under `perdure.Error`."""

from __future__ import annotations

import enum
from typing import ClassVar

from ._native import ffi, lib


class ErrorCode(enum.IntEnum):
    """The codes of perdure/error.h, and NO_MEMORY. They never change."""

    INVALID_ARGUMENT = 1
    NOT_FOUND = 2
    NOT_A_FILE = 3
    PERMISSION = 4
    EMPTY = 5
    FOREIGN = 6
    TRUNCATED = 7
    CORRUPT = 8
    VERSION = 9
    LOCKED = 10
    WRONG_TYPE = 11
    NO_SUCH_NAME = 12
    NAME_EXISTS = 13
    EXISTS = 14
    CAPACITY = 15
    POOL_FULL = 16
    NO_SPACE = 17
    READ_ONLY = 18
    DURABILITY = 19
    TOO_LARGE = 20
    IO = 21
    IN_USE = 22
    INTERNAL = 23
    CONFLICT = 24
    TOO_OLD = 25
    NO_MEMORY = 100


class Error(Exception):
    """What the library refuses or meets; the message names the value and says what to do."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL


class InvalidArgumentError(Error, ValueError):
    """An argument that the call cannot be carried out with."""

    code = ErrorCode.INVALID_ARGUMENT


class NotFoundError(Error):
    """There is no file of this name."""

    code = ErrorCode.NOT_FOUND


class NotAFileError(Error):
    """The name is that of a folder, or of something else that cannot be mapped."""

    code = ErrorCode.NOT_A_FILE


class PermissionDeniedError(Error):
    """The file may not be opened so."""

    code = ErrorCode.PERMISSION


class EmptyFileError(Error):
    """The file has no bytes."""

    code = ErrorCode.EMPTY


class ForeignFileError(Error):
    """The file is no pool."""

    code = ErrorCode.FOREIGN


class TruncatedError(Error):
    """The file is shorter than its header says."""

    code = ErrorCode.TRUNCATED


class CorruptError(Error):
    """What was read is not what was written."""

    code = ErrorCode.CORRUPT


class VersionError(Error):
    """A release with another format made the pool."""

    code = ErrorCode.VERSION


class LockedError(Error):
    """Another process has the pool open."""

    code = ErrorCode.LOCKED


class WrongTypeError(Error, TypeError):
    """Keys, values or a structure of another type than was asked for."""

    code = ErrorCode.WRONG_TYPE


class NoSuchNameError(Error):
    """The pool has no structure of this name."""

    code = ErrorCode.NO_SUCH_NAME


class NameExistsError(Error):
    """The pool has a structure of this name."""

    code = ErrorCode.NAME_EXISTS


class ExistsError(Error):
    """The file is there."""

    code = ErrorCode.EXISTS


class CapacityError(Error):
    """A capacity that no pool can have."""

    code = ErrorCode.CAPACITY


class PoolFullError(Error):
    """The pool has reached its capacity; nothing was changed."""

    code = ErrorCode.POOL_FULL


class NoSpaceError(Error):
    """The file system has no room for the pool to grow; nothing was changed."""

    code = ErrorCode.NO_SPACE


class ReadOnlyError(Error):
    """The pool is open for reading."""

    code = ErrorCode.READ_ONLY


class DurabilityError(Error):
    """The medium cannot keep what was asked for."""

    code = ErrorCode.DURABILITY


class TooLargeError(Error, ValueError):
    """A key or value is longer than the structure takes."""

    code = ErrorCode.TOO_LARGE


class IOFailedError(Error):
    """The medium has failed, now or before; the pool does not write any more."""

    code = ErrorCode.IO


class InUseError(Error):
    """It is open, and cannot be opened or closed now."""

    code = ErrorCode.IN_USE


class InternalError(Error):
    """A fault of the library."""

    code = ErrorCode.INTERNAL


class ConflictError(Error):
    """What a transaction has read was changed by others; nothing was changed, and another attempt may do."""

    code = ErrorCode.CONFLICT


class TooOldError(Error):
    """A snapshot was given up: what it needs took more memory than it may."""

    code = ErrorCode.TOO_OLD


class NoMemoryError(Error, MemoryError):
    """The process has no memory left."""

    code = ErrorCode.NO_MEMORY


class ClosedError(Error, ValueError):
    """The pool, index or store has been closed, or the transaction has ended."""

    code = ErrorCode.INVALID_ARGUMENT


_BY_CODE: dict[int, type[Error]] = {
    one.code: one for one in Error.__subclasses__() if one is not ClosedError
}


def check(status: int) -> None:
    """Raises what a call of the library that did not return 0 says."""
    if status == 0:
        return
    if status == lib.PYPD_CLOSED:
        raise ClosedError("this pool, index, store or transaction has been closed")
    if status == lib.PYPD_CALLING:
        raise InUseError("it cannot be closed by what its own visit() or transact() calls, nor by on_event")
    if status == lib.PYPD_TOO_MANY:
        raise TooLargeError("a transaction has at most 64 indexes")
    told = lib.perdure_last_status() == status
    message = ffi.string(lib.perdure_last_error()).decode(errors="replace") if told else ""
    raise _BY_CODE.get(status, InternalError)(message or "there is no memory left")
