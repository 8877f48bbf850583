"""What C calls: each appends to the list whose handle it is given, or calls what is."""

from __future__ import annotations

from typing import Any

from ._native import ffi, lib


_INTERNAL: int = lib.PERDURE_INTERNAL


def _text(text: Any) -> str:
    plain: bytes = ffi.string(text)
    return plain.decode(errors="replace")


@ffi.def_extern()
def pypd_report(context: Any, sentence: Any) -> None:
    ffi.from_handle(context).append(_text(sentence))


@ffi.def_extern()
def pypd_figure(context: Any, name: Any, value: float, unit: Any) -> None:
    ffi.from_handle(context).append((_text(name), value))


@ffi.def_extern()
def pypd_use(context: Any, value: Any) -> None:
    ffi.from_handle(context)(value)


@ffi.def_extern()
def pypd_event(context: Any, event: Any) -> None:
    ffi.from_handle(context)(event)


@ffi.def_extern(error=0)
def pypd_structure(context: Any, name: Any, kind: Any, key: int, value: int) -> int:
    ffi.from_handle(context).append((_text(name), _text(kind), key, value))
    return 1


@ffi.def_extern(error=0)
def pypd_type(context: Any, name: Any, family: Any, ordered: int, kinds: int) -> int:
    ffi.from_handle(context).append((_text(name), _text(family), ordered != 0, kinds))
    return 1


@ffi.def_extern(error=_INTERNAL)
def pypd_do_work(context: Any, _: Any) -> int:
    status: int = ffi.from_handle(context)()
    return status
