"""Every structure of the catalogue as a mapping, against a dict."""

from __future__ import annotations

import random
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import perdure
import pytest

TYPES = [(int, int), (bytes, bytes), (str, int), (int, str), (str, str)]
WORD_MAX = 2**64 - 1


def supports(entry: perdure.CatalogEntry, key: type, value: type) -> bool:
    def stored(one: type) -> type:
        return int if one is int else bytes

    return (stored(key), stored(value)) in entry.kinds


CASES = [
    pytest.param(entry.name, key, value, id=f"{entry.name}-{key.__name__}-{value.__name__}")
    for entry in perdure.catalog()
    for key, value in TYPES
    if supports(entry, key, value)
]
ORDERED = {entry.name: entry.ordered for entry in perdure.catalog()}
MAKE: dict[type, Callable[[int], Any]] = {
    int: lambda number: number * 0x9E3779B97F4A7C15 % 2**64,
    bytes: lambda number: bytes(number % 5) + str(number).encode(),
    str: lambda number: "é" * (number % 3) + str(number),
}


def order_of(key: Any) -> Any:
    return key.encode() if isinstance(key, str) else key


@pytest.mark.parametrize(("structure", "key", "value"), CASES)
def test_agrees_with_a_dict(path: Path, structure: str, key: type, value: type) -> None:
    draw = random.Random(structure)
    model: dict[Any, Any] = {}
    with perdure.Pool.create(path, capacity=64 << 20) as pool:
        index = pool.create_index("index", structure, key, value)
        for step in range(3000):
            k = MAKE[key](draw.randrange(300))
            v = MAKE[value](step)
            action = draw.randrange(9)
            if action < 3:
                index[k] = v
                model[k] = v
            elif action == 3:
                assert index.insert(k, v) == (k not in model)
                model.setdefault(k, v)
            elif action == 4:
                assert index.replace(k, v) == (k in model)
                if k in model:
                    model[k] = v
            elif action == 5:
                assert index.discard(k) == (k in model)
                model.pop(k, None)
            elif action == 6:
                assert index.get(k) == model.get(k)
                assert (k in index) == (k in model)
            elif action == 7:
                expected = model.get(k, v) if draw.random() < 0.7 else v
                right = k in model and model[k] == expected
                assert index.compare_exchange(k, expected, v) == right
                if right:
                    model[k] = v
            else:
                assert index.pop(k, None) == model.pop(k, None)
        assert dict(index) == model
        assert len(index) == len(model)
        assert index.check() == []
    with perdure.Pool.open(path) as pool:
        assert pool.check() == []
        index = pool.open_index("index", key, value)
        assert dict(index.items()) == model
        assert sorted(index.values(), key=order_of) == sorted(model.values(), key=order_of)
        if ORDERED[structure]:
            assert list(index) == sorted(model, key=order_of)


@pytest.mark.parametrize("structure", ORDERED)
def test_several_threads_count_exactly(pool: perdure.Pool, structure: str) -> None:
    kinds = next(entry.kinds for entry in perdure.catalog() if entry.name == structure)
    key = bytes if (bytes, bytes) in kinds else int
    words = (key, int) in kinds
    index: Any = pool.create_index("counts", structure, key, int if words else bytes)

    def add(before: bytes | None) -> bytes:
        return str(int(before or b"0") + 1).encode()

    def work() -> None:
        for i in range(400):
            if words:
                index.increment(MAKE[key](i % 5))
            else:
                index.modify(MAKE[key](i % 5), add)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {int(value) for value in index.values()} == {4 * 400 // 5}


def test_modify_keeps_writes_and_removes(pool: perdure.Pool) -> None:
    index = pool.create_index("index", "cceh", str, int)
    assert index.modify("a", lambda before: 1 if before is None else before + 1) == 1
    assert index.modify("a", lambda before: 1 if before is None else before + 1) == 2
    with pytest.raises(ZeroDivisionError):
        index.modify("a", lambda _: 1 // 0)
    assert index["a"] == 2
    assert index.modify("a", lambda _: None) is None
    assert "a" not in index
    assert index.modify("a", lambda _: None) is None
    assert index.setdefault("a", 5) == 5
    assert index.setdefault("a", 6) == 5
    assert index.increment("a", -7) == WORD_MAX - 1
    assert index.increment("a", 2) == 0
    assert index.compare_remove("a", 1) is False
    assert index.compare_remove("a", 0) is True


@pytest.mark.parametrize("structure", [name for name, ordered in ORDERED.items() if ordered])
@pytest.mark.parametrize("key", [int, str])
def test_ranges(pool: perdure.Pool, structure: str, key: type) -> None:
    if not any(one.name == structure and supports(one, key, bytes) for one in perdure.catalog()):
        pytest.skip("it does not have such keys")
    # plush+range must know which keys there will be.
    options = {"key_max": 6000} if structure == "plush+range" else {}
    index: Any = pool.create_index("index", structure, key, bytes, **options)
    assert list(index.range()) == []
    assert not index
    # More than one page, and values that fill a page before its records do.
    numbers = list(range(0, 6000, 2))
    make = (lambda number: number) if key is int else (lambda number: f"{number:05}")
    index.update((make(number), b"%d" % number * (1 + number % 50)) for number in numbers)
    assert index
    assert [k for k, _ in index.range()] == [make(number) for number in numbers]
    assert [k for k, _ in index.range(make(11), make(17))] == [make(12), make(14), make(16)]
    assert [k for k, _ in index.range(make(12), make(16))] == [make(12), make(14)]
    assert [k for k, _ in index.range(make(2000), limit=1500)] == [
        make(number) for number in range(2000, 5000, 2)
    ]
    assert list(index.range(make(5999))) == []
    assert list(index.range(make(20), make(10))) == []
    assert list(index.range(limit=0)) == []
    # The same backwards.
    every = [make(number) for number in numbers]
    assert list(reversed(index)) == every[::-1]
    bounds: Any = [(11, 17), (12, 16), (None, 16), (5990, None), (20, 10), (0, 0), (5999, None)]
    for low, high in bounds:
        start, stop = (None if one is None else make(one) for one in (low, high))
        upwards = list(index.range(start, stop))
        assert list(index.range(start, stop, reverse=True)) == upwards[::-1]
        assert list(index.range(start, stop, limit=2, reverse=True)) == upwards[::-1][:2]
    for limit in (0, 1, 16, 17, 2999):
        assert [k for k, _ in index.range(limit=limit, reverse=True)] == every[::-1][:limit]
    if key is str:
        assert [k for k, _ in index.range(prefix="0100", reverse=True)] == [
            make(n) for n in range(1008, 998, -2)
        ]
        # Each of them fills a page.
        index["large"] = index["larger"] = bytes(3 << 20)
        assert [k for k, _ in index.range("05996", reverse=True)] == [
            "larger", "large", "05998", "05996",
        ]  # fmt: skip
        del index["large"], index["larger"]
        assert [k for k, _ in index.range(prefix="0100")] == [make(n) for n in range(1000, 1010, 2)]
        assert list(index.range(prefix="x")) == []
        assert [k for k, _ in index.range(prefix="")] == [make(number) for number in numbers]
    else:
        with pytest.raises(TypeError):
            index.range(prefix=1)
        if not options:
            index[WORD_MAX] = b"last"
            assert list(index.range(WORD_MAX)) == [(WORD_MAX, b"last")]
            assert next(reversed(index)) == WORD_MAX
            assert [k for k, _ in index.range(5990, WORD_MAX, reverse=True)] == every[:-6:-1]
            assert [k for k, _ in index.range(WORD_MAX - 1)] == [WORD_MAX]
    # It may be changed meanwhile.
    everything = [k for k, _ in index.range()]
    assert index.remove_range(everything[2], everything[5]) == 3
    assert [k for k, _ in index.range()] == everything[:2] + everything[5:]
    for k, _ in index.range():
        del index[k]
    assert list(index) == []
    assert index.remove_range() == 0


def test_prefixes_of_the_highest_bytes(pool: perdure.Pool) -> None:
    index = pool.create_index("index", "wbtree", bytes, bytes)
    for k in (b"", b"\xfe\xff", b"\xff", b"\xff\x00", b"\xff\xff", b"\xff\xff\xff"):
        index[k] = k
    assert [k for k, _ in index.range(prefix=b"\xff\xff")] == [b"\xff\xff", b"\xff\xff\xff"]
    assert [k for k, _ in index.range(prefix=b"\xfe\xff")] == [b"\xfe\xff"]
    assert [k for k, _ in index.range(b"", b"\xff")] == [b"", b"\xfe\xff"]


def test_batches(pool: perdure.Pool) -> None:
    index = pool.create_index("index", "plush", str, bytes)
    index.update({f"k{i}": b"x" * i for i in range(300)})
    index.update([("k1", b"other")], extra=b"more")
    assert index.get_many(["k0", "none", "k2", "extra", "k1"]) == [
        b"", None, b"xx", b"more", b"other",
    ]  # fmt: skip
    assert index.get_many([]) == []
    assert index.insert_many([("k0", b"no"), ("new", b"yes")]) == [False, True]
    assert index.insert_many([]) == []
    assert index.load((f"l{i}", b"%d" % i) for i in range(1000)) == 1000
    assert index["l999"] == b"999"
    other = pool.create_index("other", "fptree", str, bytes)
    other.update(index)
    assert dict(other) == dict(index)
    index.clear()
    assert len(index) == 0
    assert not index


def test_arrays(pool: perdure.Pool) -> None:
    numpy = pytest.importorskip("numpy")
    index = pool.create_index("index", "fptree", int, int)
    keys = numpy.random.default_rng(1).permutation(5000)
    index.upsert_array(keys, keys * 3)
    values, found = index.lookup_array(numpy.arange(4990, 5010))
    assert found.tolist() == [True] * 10 + [False] * 10
    assert values[:10].tolist() == [3 * k for k in range(4990, 5000)]
    assert values[10:].sum() == 0
    assert index.insert_array([5000, 1, 2**64 - 1], [1, 1, 1]).tolist() == [True, False, True]
    # Strided, and of another type: converted.
    some, _ = index.lookup_array(numpy.arange(20, dtype=numpy.int32)[::5])
    assert some.tolist() == [0, 15, 30, 45]
    first, second = index.scan_array(4998)
    assert first.tolist() == [4998, 4999, 5000, WORD_MAX]
    assert second.tolist() == [14994, 14997, 1, 1]
    assert index.scan_array(0, 3)[0].tolist() == [0, 1, 2]
    assert [array.size for array in index.lookup_array([])] == [0, 0]
    index.upsert_array([], [])
    with pytest.raises(TypeError):
        index.lookup_array([1.5])
    with pytest.raises(OverflowError):
        index.lookup_array([-1])
    with pytest.raises(perdure.InvalidArgumentError):
        index.upsert_array([1, 2], [3])
    with pytest.raises(perdure.WrongTypeError):
        pool.create_index("bytes", "fptree", int, bytes).lookup_array([1])


def test_types_are_checked(pool: perdure.Pool) -> None:
    words: Any = pool.create_index("words", "plush", int, int)
    texts: Any = pool.create_index("texts", "plush", str, bytes)
    for wrong in ("1", 1.5, None, b"1"):
        with pytest.raises(TypeError):
            words[wrong] = 1
    for beyond in (-1, 2**64):
        with pytest.raises(OverflowError):
            words[beyond] = 1
    with pytest.raises(TypeError):
        texts[b"bytes"] = b""
    with pytest.raises(TypeError):
        texts["text"] = "text"
    texts["buffers"] = memoryview(bytearray(b"of any kind"))
    assert texts["buffers"] == b"of any kind"
    texts["\0"] = b"\0\xff"
    assert texts["\0"] == b"\0\xff"
    with pytest.raises(perdure.WrongTypeError):
        texts.increment("text")
    with pytest.raises(perdure.WrongTypeError):
        texts.range()
    with pytest.raises(KeyError):
        words[1]
    with pytest.raises(KeyError):
        del words[1]
    with pytest.raises(KeyError):
        words.pop(1)


def test_a_call_in_a_call_does_not_change_its_answer(pool: perdure.Pool) -> None:
    """As a signal's handler would make one: results are not shared."""
    index = pool.create_index("index", "plush", str, bytes)
    index["a"] = b"of a"
    index["b"] = b"of b"

    class Nested:
        def __iter__(self) -> Any:
            yield "a"
            assert index["b"] == b"of b"
            yield "a"

    assert index.get_many(Nested()) == [b"of a"] * 2
    assert index.modify("a", lambda before: (before or b"") + index["b"]) == b"of aof b"


@pytest.mark.parametrize("structure", ["fptree", "p-hot+vl", "plush", "bztree", "p-bwtree", "sheaf"])
def test_values_are_seen_where_they_lie(pool: perdure.Pool, structure: str) -> None:
    texts = pool.create_index("texts", structure, str, bytes)
    value = bytes(range(256)) * 100
    texts["a"] = value
    texts["empty"] = b""
    assert texts.visit("a", bytes) == value
    assert texts.visit("a", len) == len(value)
    assert texts.visit("empty", bytes) == b""
    with pytest.raises(KeyError):
        texts.visit("b", len)
    assert texts.visit("b", len, -1) == -1

    def writes(view: memoryview) -> bool:
        assert view.readonly
        for i in range(100):
            texts["a"] = b"another %d" % i
        return view == value

    assert texts.visit("a", writes)
    assert texts["a"] == b"another 99"
    words = pool.create_index("words", structure, int, int)
    words[1] = 2**64 - 1
    assert words.visit(1, lambda word: word) == 2**64 - 1
    texts.close()
    with pytest.raises(perdure.Error):
        texts.visit("a", len)


def test_views_end_with_the_call(pool: perdure.Pool) -> None:
    texts = pool.create_index("texts", "p-art+vl", str, str)
    texts["a"] = "äöü"
    assert texts.visit("a", lambda view: str(view, "utf-8")) == "äöü"
    kept: list[memoryview] = []
    texts.visit("a", lambda view: kept.append(view))
    with pytest.raises(ValueError, match="released"):
        bytes(kept[0])
    kept.clear()
    with pytest.raises(BufferError):
        texts.visit("a", lambda view: kept.append(view[1:]))
    with pytest.raises(BufferError):
        texts.visit("a", lambda view: view[1:])
    numpy = pytest.importorskip("numpy")
    with pytest.raises(BufferError):
        texts.visit("a", lambda view: numpy.frombuffer(view, dtype=numpy.uint8))
    assert texts.visit("a", lambda view: int(numpy.frombuffer(view, dtype=numpy.uint8).max())) == 195

    for closes in (texts.close, pool.close):
        with pytest.raises(perdure.InUseError, match="visit"):
            texts.visit("a", lambda _: closes())
    assert texts["a"] == "äöü"

    def fails(_: memoryview) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        texts.visit("a", fails)


def test_buffers_are_values(pool: perdure.Pool) -> None:
    index = pool.create_index("index", "fptree", bytes, bytes)
    numbers = array("i", [1, -2, 3])
    strided = memoryview(b"abcdef")[::2]
    for one in (bytearray(b"bytes"), memoryview(b"views")[1:], numbers, strided, memoryview(b"")):
        wanted = memoryview(one).tobytes()
        index[b"a"] = one
        assert index[b"a"] == wanted
        assert index.compare_exchange(b"a", one, b"other")
        index.update([(b"b", one), (b"c", b"plain"), (bytearray(b"d"), one)])
        assert [index[key] for key in (b"b", b"c", b"d")] == [wanted, b"plain", wanted]
        store = pool.create_store("store")
        store.put(b"a", one)
        assert store[b"a"] == wanted
        assert store.append(b"a", one) == 2 * len(wanted)
        store.close()
        pool.drop("store")
    numpy = pytest.importorskip("numpy")
    matrix = numpy.arange(12, dtype=numpy.float64).reshape(3, 4)
    index[b"m"] = matrix
    assert (numpy.frombuffer(index[b"m"]).reshape(3, 4) == matrix).all()
    index[b"m"] = matrix.T  # not contiguous
    assert (numpy.frombuffer(index[b"m"]).reshape(4, 3) == matrix.T).all()
