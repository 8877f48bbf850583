"""The key-value store."""

from __future__ import annotations

import random
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import perdure
import pytest


@pytest.fixture
def store(pool: perdure.Pool) -> perdure.Store:
    return pool.create_store("store", ordered=True, partitions=4)


def test_agrees_with_a_dict(path: Path) -> None:
    draw = random.Random(1)
    model: dict[bytes, bytes] = {}
    with perdure.Pool.create(path, capacity=64 << 20) as pool:
        store = pool.create_store("store")
        for step in range(5000):
            key = b"%d" % draw.randrange(300)
            value = b"%d" % step * draw.randrange(30)
            action = draw.randrange(6)
            if action < 2:
                store[key] = value
                model[key] = value
            elif action == 2:
                assert store.insert(key, value) == (key not in model)
                model.setdefault(key, value)
            elif action == 3:
                assert store.replace(key, value) == (key in model)
                if key in model:
                    model[key] = value
            elif action == 4:
                assert store.pop(key, None) == model.pop(key, None)
            else:
                assert store.get(key) == model.get(key)
                assert (key in store) == (key in model)
        assert dict(store.items()) == model and len(store) == len(model)
        assert store.check() == []
    with perdure.Pool.open(path) as pool:
        assert dict(pool.open_store("store")) == model


def test_versions(store: perdure.Store) -> None:
    first = store.put(b"a", b"1")
    assert store.get_versioned(b"a") == (b"1", first)
    assert store.compare_and_swap(b"a", first, b"2")
    assert not store.compare_and_swap(b"a", first, b"3")
    assert not store.compare_and_remove(b"a", first)
    found = store.get_versioned(b"a")
    assert found is not None and found[1] > first
    assert store.compare_and_remove(b"a", found[1])
    assert store.get_versioned(b"a") is None
    with pytest.raises(KeyError):
        store[b"a"]
    with pytest.raises(KeyError):
        del store[b"a"]


def test_numbers_and_appending(store: perdure.Store) -> None:
    assert store.increment(b"n") == 1
    assert store.increment(b"n", -43) == -42
    assert store[b"n"] == b"-42"
    assert store.append(b"n", b"!") == 4
    with pytest.raises(perdure.InvalidArgumentError):
        store.increment(b"n")


def test_modify_by_several_threads(store: perdure.Store) -> None:
    def work() -> None:
        for i in range(300):
            store.modify(b"%d" % (i % 3), lambda before: (before or b"") + b"x")
            store.increment(b"n")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(store[b"%d" % i]) for i in range(3)] == [400] * 3
    assert store[b"n"] == b"1200"
    assert store.modify(b"n", lambda _: None) is None
    assert b"n" not in store


def test_expiry(store: perdure.Store) -> None:
    now = datetime.now(timezone.utc)
    store.put(b"gone", b"x", expires=now - timedelta(seconds=1))
    store.put(b"stays", b"x", expires=now + timedelta(hours=1))
    store.put(b"ttl", b"x", ttl=3600)
    store.put(b"past", b"x", expires=-5.0)
    assert [key in store for key in (b"gone", b"stays", b"ttl", b"past")] == [False, True, True, False]
    with pytest.raises(perdure.InvalidArgumentError):
        store.put(b"both", b"x", ttl=1, expires=1)


def test_batches_are_all_or_nothing(store: perdure.Store) -> None:
    store[b"old"] = b"1"
    with store.batch() as batch:
        batch[b"a"] = b"1"
        batch.put(b"b", b"2", ttl=3600)
        del batch[b"old"]
        assert len(batch) == 3
        assert b"a" not in store
    assert dict(store) == {b"a": b"1", b"b": b"2"}
    with pytest.raises(ZeroDivisionError), store.batch() as batch:
        batch[b"c"] = b"%d" % (1 // 0)
    assert b"c" not in store
    batch = store.batch()
    batch[b"d"] = b"4"
    batch.apply()
    batch.clear()
    batch.apply()
    assert store[b"d"] == b"4"
    store.update({b"e": b"5"})
    store.update([(b"f", b"6")])
    assert store.get_many([b"f", b"none", b"e"]) == [b"6", None, b"5"]
    assert store.get_many([]) == []


def test_ranges_both_ways(store: perdure.Store) -> None:
    keys = [b"%05d" % number for number in range(0, 6000, 2)]
    store.update((key, key * 3) for key in keys[:100])
    for key in keys[100:]:
        store[key] = key * 3

    def ranged(*arguments: Any, **named: Any) -> list[bytes]:
        records = list(store.range(*arguments, **named))
        assert all(value == key * 3 for key, value in records)
        return [key for key, _ in records]

    assert ranged() == keys
    assert ranged(reverse=True) == keys[::-1]
    for bounds in ((b"00011", b"00017"), (b"00012", b"00016"), (b"9", None), (None, b"00004"),
                   (b"00020", b"00010"), (b"00999", b"04001")):  # fmt: skip
        start, stop = bounds
        expected = [
            key for key in keys if key >= (start or b"") and (stop is None or key < stop)
        ]
        assert ranged(start, stop) == expected
        assert ranged(start, stop, reverse=True) == expected[::-1]
        assert ranged(start, stop, limit=2) == expected[:2]
        assert ranged(start, stop, limit=2, reverse=True) == expected[::-1][:2]
    for limit in (0, 1, 16, 17, 18, 200, 2999, 3000, 3001):
        assert ranged(limit=limit) == keys[:limit]
        assert ranged(limit=limit, reverse=True) == keys[::-1][:limit]
    # Each of them fills a page.
    store[b"large"] = b"large" * 3 * 100_000
    store[b"larger"] = b"larger" * 3 * 100_000
    assert [k for k, _ in store.range(b"05990", reverse=True)] == [
        b"larger", b"large", b"05998", b"05996", b"05994", b"05992", b"05990",
    ]  # fmt: skip
    del store[b"large"], store[b"larger"]
    assert ranged(prefix=b"0100") == [key for key in keys if key.startswith(b"0100")]
    assert ranged(prefix=b"0100", reverse=True) == [
        key for key in keys[::-1] if key.startswith(b"0100")
    ]


def test_a_hash_index_has_no_order(pool: perdure.Pool) -> None:
    store = pool.create_store("store", ordered=False)
    store[b"a"] = b"1"
    assert list(store) == [b"a"]
    with pytest.raises(perdure.WrongTypeError):
        list(store.range())
    with pytest.raises(perdure.WrongTypeError):
        list(store.range(reverse=True))
    with pytest.raises(TypeError):
        pool.create_store("other", fanout=3)


def test_boundaries_and_workers(pool: perdure.Pool) -> None:
    store = pool.create_store("store", ordered=True, boundaries=[b"h", b"p"], workers=2)
    store.update({b"a": b"1", b"k": b"2", b"z": b"3"})
    assert [key for key, _ in store.range()] == [b"a", b"k", b"z"]
    assert store.statistics()["records"] == 3
