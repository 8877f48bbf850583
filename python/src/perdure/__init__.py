"""Perdure: mappings that are durable when the call returns, on memory that keeps its content.

    import perdure

    with perdure.Pool.create("words.pool", capacity=1 << 30) as pool:
        words = pool.create_index("words", "fptree", str, str)
        words["perdure"] = "to last, to go on existing"  # durable now
        for word, meaning in words.range(prefix="per"):
            print(word, meaning)

After a crash `Pool.open()` recovers. Everything raises subclasses of `perdure.Error`.
"""

from . import _errors
from ._errors import *  # noqa: F403: the classes of errors
from ._errors import Error, ErrorCode
from ._index import Index
from ._native import ffi as _ffi
from ._native import lib as _lib
from ._pool import CatalogEntry, Pool, PoolEvent, PoolInfo, PoolInspection, StructureInfo, catalog
from ._store import Batch, Store
from ._transaction import IndexInTransaction, Transaction

__version__: str = _ffi.string(_lib.perdure_version()).decode()

__all__ = [
    "Batch",
    "CatalogEntry",
    "Error",
    "ErrorCode",
    "Index",
    "IndexInTransaction",
    "Pool",
    "PoolEvent",
    "PoolInfo",
    "PoolInspection",
    "Store",
    "StructureInfo",
    "Transaction",
    "__version__",
    "catalog",
]
__all__ += sorted(
    name
    for name, one in vars(_errors).items()
    if isinstance(one, type) and issubclass(one, Error) and one is not Error
)
