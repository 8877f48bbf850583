"""Writes the C source of the module `perdure._native`: python build_ffi.py C.H SHIM.C OUT.C

What Python can call is what perdure/c.h declares, and what shim.c adds; both are read, not copied.
"""

import re
import sys
from pathlib import Path

from cffi import FFI

# Called by C, written in Python (perdure/_callbacks.py).
CALLBACKS = """
extern "Python" void pypd_report(void *context, const char *sentence);
extern "Python" void pypd_figure(void *context, const char *name, double value, const char *unit);
extern "Python" void pypd_use(void *context, const perdure_datum *value);
extern "Python" void pypd_event(void *context, const perdure_event *event);
extern "Python" int pypd_structure(void *context, const char *name, const char *type,
                                   perdure_kind key, perdure_kind value);
extern "Python" int pypd_type(void *context, const char *name, const char *family, int ordered,
                              unsigned kinds);
extern "Python" int pypd_do_work(void *context, perdure_transaction *transaction);
"""


def without_preprocessor(text: str) -> str:
    """A header as cffi reads it: no comments, no directives, no bodies of functions."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"^[ \t]*#.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r'extern "C" \{', "", text)
    text = re.sub(r"^static inline [^;{]*\{.*?^\}\n", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^\}\s*$", "", text, flags=re.MULTILINE)


def declarations_of(shim: str) -> str:
    """The structs of the shim, its statuses and the prototypes of its functions."""
    text = re.sub(r"/\*.*?\*/", "", shim, flags=re.DOTALL)
    structs = re.findall(r"^typedef struct \w+ \{.*?^\} \w+;", text, flags=re.MULTILINE | re.DOTALL)
    constants = re.findall(r"^#define (PYPD_\w+ \d+)", text, flags=re.MULTILINE)
    functions = re.findall(r"^static (\w+ pypd_\w+\([^{;]*?\)) \{", text, flags=re.MULTILINE)
    return "\n".join(structs + [f"#define {one}" for one in constants] + [f"{one};" for one in functions])


def main() -> None:
    header, shim, out = (Path(argument) for argument in sys.argv[1:])
    ffi = FFI()
    ffi.cdef(without_preprocessor(header.read_text()))
    ffi.cdef(declarations_of(shim.read_text()))
    ffi.cdef(CALLBACKS)
    ffi.set_source("perdure._native", f'#include "{shim.name}"')
    ffi.emit_c_code(str(out))


if __name__ == "__main__":
    main()
