"""Keys and values: `int` (a word, 0 to 2**64 - 1), `bytes`, and `str` (UTF-8 bytes)."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from ._native import ffi, lib

U64: int = lib.PERDURE_U64
BYTES: int = lib.PERDURE_BYTES
WORD_MAX = 2**64 - 1

# A key or value as C takes it: the word, or the bytes and how many they are.
Plain = tuple[int, bytes, int]
# The same for a call that only reads it: the bytes, or where they are in somebody's buffer.
Lent = tuple[int, Any, int]


def lend_bytes(value: Any) -> tuple[Any, int]:
    """What C reads the bytes of a value from, and how many they are: of a buffer (bytearray, memoryview, an array, a
    mapped file) without a copy, if it is contiguous."""
    if type(value) is bytes:
        return value, len(value)
    view = _view(value)
    return ffi.from_buffer(view), view.nbytes


def _view(value: Any) -> memoryview:
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"bytes are wanted, not {type(value).__name__}") from None
    return view if view.c_contiguous else memoryview(view.tobytes())


class Codec:
    """How one type goes into an index and comes out of it."""

    kind: int
    type: type

    def plain(self, value: Any) -> Plain:
        raise NotImplementedError

    def lend(self, value: Any) -> Lent:
        """As plain(), for the time of a call."""
        return self.plain(value)

    def value(self, word: int, data: bytes) -> Any:
        """From a word, or from bytes."""
        raise NotImplementedError

    def column(self, column: Any, count: int) -> list[Any]:
        """The values of a page's column."""
        raise NotImplementedError

    def batch(self, values: Iterable[Any]) -> tuple[array[int], bytes]:
        """Words, or lengths, and the bytes one behind the other."""
        raise NotImplementedError


class IntCodec(Codec):
    kind = U64
    type = int

    def plain(self, value: Any) -> Plain:
        word = operator.index(value)
        if not 0 <= word <= WORD_MAX:
            raise OverflowError(f"{word} is no word: 0 to 2**64 - 1")
        return word, b"", 0

    def value(self, word: int, data: bytes) -> int:
        return word

    def column(self, column: Any, count: int) -> list[int]:
        return ffi.unpack(column.words, count) if count else []

    def batch(self, values: Iterable[Any]) -> tuple[array[int], bytes]:
        return array("Q", [self.plain(value)[0] for value in values]), b""


class BytesCodec(Codec):
    kind = BYTES
    type: type = bytes

    def plain(self, value: Any) -> Plain:
        if type(value) is not bytes:
            value = _view(value).tobytes()
        return 0, value, len(value)

    def lend(self, value: Any) -> Lent:
        data, size = lend_bytes(value)
        return 0, data, size

    def part(self, value: Any) -> bytes | memoryview:
        """What a batch joins."""
        return value if type(value) is bytes else _view(value)

    def value(self, word: int, data: bytes) -> Any:
        return data

    def column(self, column: Any, count: int) -> list[Any]:
        if not count:
            return []
        data = ffi.buffer(column.bytes, column.byte_count)[:] if column.byte_count else b""
        ends = ffi.unpack(column.words, count)
        begin = 0
        out = []
        for end in ends:
            out.append(self.value(0, data[begin:end]))
            begin = end
        return out

    def batch(self, values: Iterable[Any]) -> tuple[array[int], bytes]:
        parts = [self.part(value) for value in values]
        lengths = (len(one) if isinstance(one, bytes) else one.nbytes for one in parts)
        return array("Q", lengths), b"".join(parts)


class StrCodec(BytesCodec):
    type = str

    def plain(self, value: Any) -> Plain:
        if not isinstance(value, str):
            raise TypeError(f"a str is wanted, not {type(value).__name__}")
        data = value.encode()
        return 0, data, len(data)

    def lend(self, value: Any) -> Lent:
        return self.plain(value)

    def part(self, value: Any) -> bytes:
        return self.plain(value)[1]

    def value(self, word: int, data: bytes) -> str:
        return data.decode()


_CODECS: dict[type, Codec] = {int: IntCodec(), bytes: BytesCodec(), str: StrCodec()}


def codec_of(wanted: type) -> Codec:
    try:
        return _CODECS[wanted]
    except (KeyError, TypeError):
        raise TypeError(f"keys and values are int, bytes or str, not {wanted!r}") from None


def codec_for(wanted: type | None, kind: int, what: str, name: str) -> Codec:
    """The codec of an open structure: as wanted, or what its kind suggests."""
    codec = codec_of(wanted) if wanted is not None else _CODECS[int if kind == U64 else bytes]
    if codec.kind != kind:
        have = "int" if kind == U64 else "bytes or str"
        raise TypeError(f"the {what}s of {name!r} are {have}, not {codec.type.__name__}")
    return codec


def bytes_after(prefix: bytes) -> bytes | None:
    """The first byte string behind all that begin with a prefix; None if there is none."""
    shorter = prefix.rstrip(b"\xff")
    return shorter[:-1] + bytes([shorter[-1] + 1]) if shorter else None


def words_of(batch: Sequence[int]) -> Any:
    """Words of an array for C."""
    return ffi.from_buffer("uint64_t[]", batch) if len(batch) else ffi.NULL
